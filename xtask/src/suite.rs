//! `cargo xtask test`: runs the tests with nextest, tries failed ones again by themselves, and prints a summary.
//!
//! ```text
//! nextest, all tests ──▶ junit.xml ──▶ failed ones ──▶ attack, race or crash test ──▶ failed
//!                                                └──▶ up to two more tries, alone ──▶ flaky or failed
//! ```

mod junit;
mod retries;
mod summary;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use junit::Case;
use summary::{Failure, Summary};

/// BOUND: a test that fails this often more fails the run.
const RETRIES: usize = 2;
/// BOUND: if more tests fail, the change is broken, and retries would only take long.
const MAX_RETRIED: usize = 20;
/// What nextest exits with where tests failed, and nothing else went wrong.
const TESTS_FAILED: i32 = 100;

/// What is built: the points at which the fault tests kill a process are compiled in.
const BUILD: &[&str] = &[
    "--workspace",
    "--locked",
    "--features",
    "ringfence/failpoints",
];

/// Runs the tests that the filters name, or all. True if none failed for good.
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
    if filters.is_empty() {
        retries::check_list(&nextest.list(filters)?)?;
    }
    let summary = nextest.run_and_retry(filters)?;
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
    fn run_and_retry(&self, filters: &[&str]) -> Result<Summary> {
        let cases = self.run("default", filters)?;
        let failed = || cases.iter().filter(|case| case.failed);
        let is_broken = failed().count() > MAX_RETRIED;
        let mut failures = Vec::new();
        for case in failed() {
            let failure = if !is_broken && retries::is_retried(case) {
                self.retry(case)
            } else {
                Failure::Final {
                    case: case.clone(),
                    tries: 1,
                }
            };
            failures.push(failure);
        }
        Ok(Summary::of(&cases, failures))
    }

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
        let listed = self.list(words)?.len();
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

    /// The tests that these words select, each as its program and name.
    fn list(&self, words: &[&str]) -> Result<Vec<String>> {
        let output = self
            .command("list", words)
            // Whatever the environment says: the names are compared.
            .args(["--message-format", "oneline", "--color", "never"])
            .stderr(Stdio::inherit())
            .output()
            .context("cannot run `cargo nextest`")?;
        ensure!(output.status.success(), "`cargo nextest list` failed");
        let text = String::from_utf8_lossy(&output.stdout);
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        Ok(lines.map(str::to_owned).collect())
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

    /// Runs a failed test again by itself.
    fn retry(&self, case: &Case) -> Failure {
        let only = format!("binary_id(={}) & test(={})", case.program, case.name);
        for retry in 1..=RETRIES {
            match self.run("retry", &["-E", &only]) {
                Ok(again) if again.len() == 1 && !again[0].failed => {
                    return Failure::Flaky {
                        case: case.clone(),
                        tries: 1 + retry,
                    };
                }
                Ok(_) => {}
                // The summary of all other tests is still to come: this try failed.
                Err(error) => warn(&format!("cannot run `{}` again: {error:#}", case.name)),
            }
        }
        Failure::Final {
            case: case.clone(),
            tries: 1 + RETRIES,
        }
    }
}

fn warn(text: &str) {
    // Nobody is left to tell where standard error is closed.
    let _ = writeln!(std::io::stderr().lock(), "warning: {text}");
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Three tests that fail at their first try; two of them pass at the second.
    const TESTS: &str = r#"
        fn passes_at_its_second_try(name: &str) {
            let marker = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
            let is_second = marker.exists();
            std::fs::write(marker, "").unwrap();
            assert!(is_second, "this is the first try of {name}");
        }
        #[test]
        fn flaky() { passes_at_its_second_try("flaky") }
        #[test]
        fn flaky_escape() { passes_at_its_second_try("flaky_escape") }
        #[test]
        fn broken() { panic!("this is always so") }
        #[test]
        fn good() {}
    "#;
    const PROFILES: &str =
        "profile.default.junit.path = 'junit.xml'\nprofile.retry.junit.path = 'junit.xml'\n";

    fn summary(filters: &[&str]) -> Summary {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        for (path, text) in [
            (
                "Cargo.toml",
                "package = { name = 'demo', edition = '2024' }\nworkspace = {}\n",
            ),
            ("src/lib.rs", ""),
            ("tests/integration.rs", TESTS),
            (".config/nextest.toml", PROFILES),
        ] {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let nextest = Nextest {
            root,
            target: root.join("target"),
            build: &["--offline"],
        };
        nextest.run_and_retry(filters).unwrap()
    }

    #[test]
    fn flaky_test_is_listed_with_its_first_failure_and_does_not_fail_the_run() {
        let summary = summary(&["-E", "test(=flaky) | test(=good)"]);
        assert!(summary.is_success());
        let text = summary.to_string();
        for part in [
            "FLAKY demo::integration flaky (passed at try 2)\n",
            "this is the first try of flaky\n",
            "1 flaky tests\n    2 passed, 0 failed, 0 skipped\n",
        ] {
            assert!(text.contains(part), "{part:?} is not in {text}");
        }
    }

    #[test]
    fn broken_tests_and_flaky_escapes_fail_the_run() {
        let summary = summary(&["-E", "not test(=flaky)"]);
        assert!(!summary.is_success());
        let text = summary.to_string();
        for part in [
            "FAILED demo::integration broken (failed, tries: 3)\n",
            "FAILED demo::integration flaky_escape (failed, tries: 1)\n",
            "1 passed, 2 failed, 0 skipped\n",
        ] {
            assert!(text.contains(part), "{part:?} is not in {text}");
        }
    }
}
