//! A copy of a program that can be executed at once.

use std::path::Path;
use std::process::Command;

/// Another process writes it: a fork in a neighbouring test would hold our descriptor open, and what
/// is open for writing cannot be executed.
pub fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").args([from, to]).status();
    assert!(copied.unwrap().success());
}
