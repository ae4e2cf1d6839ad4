//! Tools of this repository: `cargo xtask tidy` checks rules that no compiler checks, `cargo xtask test`
//! runs the tests.

mod suite;
mod tidy;

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};

#[allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line program talks to a terminal"
)]
fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["tidy"] => tidy_repository(),
        ["test", filters @ ..] => root().and_then(|root| suite::run(root, filters)),
        _ => {
            eprintln!("usage: cargo xtask tidy\n       cargo xtask test [NEXTEST ARGUMENTS]");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn root() -> Result<&'static Path> {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("xtask has no parent directory")
}

/// True if nothing was found.
#[allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "findings are what the command prints"
)]
fn tidy_repository() -> Result<bool> {
    let root = root()?;
    let mut tree = read_tree(root)?;
    tree.commits = read_commits(root)?;
    let report = tidy::check(&tree);
    if report.findings.is_empty() {
        println!(
            "tidy: {} checks on {} files and {} commits, nothing found",
            report.checks, report.files, report.commits
        );
        return Ok(true);
    }
    for finding in &report.findings {
        println!("{finding}");
    }
    eprintln!("tidy: {} findings", report.findings.len());
    Ok(false)
}

/// The commits after the one that `xtask/history-start` names.
fn read_commits(root: &Path) -> Result<Vec<tidy::history::Commit>> {
    let start = std::fs::read_to_string(root.join("xtask/history-start"))
        .context("cannot read `xtask/history-start`")?;
    let start = start.trim();
    ensure!(
        start.len() == 40 && start.chars().all(|c| c.is_ascii_hexdigit()),
        "`xtask/history-start` must name a commit by its 40 digits"
    );
    git(root, &["merge-base", "--is-ancestor", start, "HEAD"])
        .context("the commit in `xtask/history-start` is not in the history of HEAD; if this clone is shallow, run `git fetch --unshallow`")?;
    let range = format!("{start}..HEAD");
    let log = git(
        root,
        &["log", "-M", "--numstat", tidy::history::LOG_FORMAT, &range],
    )
    .context("cannot read the history")?;
    let commits = tidy::history::parse_log(&String::from_utf8_lossy(&log));
    let count = git(root, &["rev-list", "--count", &range])?;
    ensure!(
        String::from_utf8_lossy(&count).trim() == commits.len().to_string(),
        "the output of `git log` was not understood"
    );
    Ok(commits)
}

fn git(root: &Path, words: &[&str]) -> Result<Vec<u8>> {
    let output = Command::new("git")
        .args(words)
        .current_dir(root)
        .output()
        .context("cannot run `git`")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("`git {}` failed: {}", words[0], said.trim());
    }
    Ok(output.stdout)
}

/// Every file that git tracks or would take, with its text. Files that are not UTF-8 are left out.
fn read_tree(root: &Path) -> Result<tidy::Tree> {
    let listing = git(
        root,
        &[
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ],
    )?;
    let mut tree = tidy::Tree::default();
    for name in listing.split(|byte| *byte == 0) {
        let Ok(name) = std::str::from_utf8(name) else {
            continue;
        };
        // A tracked file may have been removed from the working tree; links are not followed.
        let path = root.join(name);
        let is_file = path
            .symlink_metadata()
            .is_ok_and(|metadata| metadata.is_file());
        if name.is_empty() || !is_file {
            continue;
        }
        let bytes = std::fs::read(&path).with_context(|| format!("cannot read `{name}`"))?;
        tree.insert(name, String::from_utf8(bytes).ok());
    }
    Ok(tree)
}
