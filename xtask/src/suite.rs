//! `cargo xtask test`: runs the tests with nextest and prints a summary.

mod junit;
mod summary;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use junit::Case;
use summary::Summary;

/// What nextest exits with where tests failed, and nothing else went wrong.
const TESTS_FAILED: i32 = 100;

/// What is built: the points at which the fault tests kill a process are compiled in.
const BUILD: &[&str] = &[
    "--workspace",
    "--locked",
    "--features",
    "ringfence/failpoints",
];

/// Runs the tests that the filters name, or all. True if none failed.
pub fn run(root: &Path, filters: &[&str]) -> Result<bool> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(
        || root.join("target"),
        |directory| root.join(PathBuf::from(directory)),
    );
    let nextest = Nextest {
        root,
        target,
        build: BUILD,
    };
    let summary = Summary::of(&nextest.run("default", filters)?);
    write!(std::io::stdout().lock(), "{summary}")?;
    Ok(summary.is_success())
}

struct Nextest<'a> {
    /// The workspace, with a `.config/nextest.toml`.
    root: &'a Path,
    target: PathBuf,
    build: &'a [&'a str],
}

impl Nextest<'_> {
    /// Runs tests with a profile of `.config/nextest.toml`, and returns what its report says.
    fn run(&self, profile: &str, words: &[&str]) -> Result<Vec<Case>> {
        // nextest writes below its own store, whatever the target directory is.
        let report = self
            .root
            .join("target/nextest")
            .join(profile)
            .join("junit.xml");
        // A report of an earlier run must not pass for one of this run.
        if report.exists() {
            std::fs::remove_file(&report)
                .with_context(|| format!("cannot remove {}", report.display()))?;
        }
        let listed = self.list(words)?;
        let status = self
            .command("run", words)
            .args(["--no-fail-fast", "--profile", profile])
            // Whatever the environment says.
            .args(["--retries", "0", "--no-tests", "fail"])
            .status()
            .context("cannot run `cargo nextest`")?;
        if !matches!(status.code(), Some(0 | TESTS_FAILED)) {
            bail!("`cargo nextest` ended with {status}");
        }
        let text = std::fs::read_to_string(&report)
            .with_context(|| format!("cannot read {}", report.display()))?;
        let cases = junit::parse(&text)?;
        // A run that was interrupted reports what ran until then.
        ensure!(
            cases.len() == listed,
            "{} of {listed} tests ran",
            cases.len()
        );
        let failed = cases.iter().filter(|case| case.failed).count();
        if status.success() != (failed == 0) {
            bail!("nextest ended with {status}, and its report has {failed} failed tests");
        }
        Ok(cases)
    }

    /// How many tests these words select.
    fn list(&self, words: &[&str]) -> Result<usize> {
        let output = self
            .command("list", words)
            .args(["--message-format", "oneline"])
            .stderr(Stdio::inherit())
            .output()
            .context("cannot run `cargo nextest`")?;
        ensure!(output.status.success(), "`cargo nextest list` failed");
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text.lines().filter(|line| !line.trim().is_empty()).count())
    }

    /// `cargo nextest VERB` on what is built for the tests.
    fn command(&self, verb: &str, words: &[&str]) -> Command {
        let mut command = Command::new("cargo");
        // `cargo run` sets these for us. Build scripts that look at them, as that of `ring`, would run again,
        // and everything after them would be built again: 90 s.
        let of_cargo_run = std::env::vars_os().map(|(name, _)| name).filter(|name| {
            let name = name.to_string_lossy();
            name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
        });
        for name in of_cargo_run {
            command.env_remove(name);
        }
        command
            .args(["nextest", verb])
            .args(self.build)
            .arg("--cargo-quiet")
            .args(words)
            .env("CARGO_TARGET_DIR", &self.target)
            .current_dir(self.root);
        command
    }
}
