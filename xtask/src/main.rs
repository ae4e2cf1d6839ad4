//! `cargo xtask tidy`: rules of this repository that no compiler checks.

mod tidy;

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

#[allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line program talks to a terminal"
)]
fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    if words != ["tidy"] {
        eprintln!("usage: cargo xtask tidy");
        return ExitCode::from(2);
    }
    match tidy_repository() {
        Ok(report) if report.findings.is_empty() => {
            println!(
                "tidy: {} checks on {} files, nothing found",
                report.checks, report.files
            );
            ExitCode::SUCCESS
        }
        Ok(report) => {
            for finding in &report.findings {
                println!("{finding}");
            }
            eprintln!("tidy: {} findings", report.findings.len());
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn tidy_repository() -> Result<tidy::Report> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("xtask has no parent directory")?;
    let tree = read_tree(root)?;
    Ok(tidy::check(&tree))
}

/// Every file that git tracks or would take, with its text. Files that are not UTF-8 are left out.
fn read_tree(root: &Path) -> Result<tidy::Tree> {
    let listing = Command::new("git")
        .args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ])
        .current_dir(root)
        .output()
        .context("cannot run `git ls-files`")?;
    if !listing.status.success() {
        bail!(
            "`git ls-files` failed: {}",
            String::from_utf8_lossy(&listing.stderr).trim()
        );
    }
    let mut tree = tidy::Tree::default();
    for name in listing.stdout.split(|byte| *byte == 0) {
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
