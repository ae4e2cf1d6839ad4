//! Which changes a rule may approve without a person: an allowlist of kinds of change and of kinds of path.
//!
//! ```text
//! change ─▶ regular file, before and after? ─▶ text that is no program? ─┐
//! path   ─▶ plain name? ─▶ no dot file? ─▶ runs nothing, checks nothing? ─▶ source or document? ─▶ may be approved
//! ```
//!
//! INVARIANT: what is not on a list is for a person. Patterns of a rule are asked afterwards and can only
//! narrow this.
//!
//! HOSTILE: an agent chose each path and content.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use crate::changes::{Change, ChangeKind, FileMode, Side};
use crate::check::protected;
use crate::paths::{self, runs};

/// Documents by the ends of their names. None of them is interpreted by what shows it but `md`, whose
/// dialects that run code have ends of their own.
const DOCUMENTS: [&str; 12] = [
    "md", "markdown", "rst", "adoc", "asciidoc", "txt", "text", "org", "tex", "bib", "csv", "tsv",
];

/// Documents without an end.
const NAMED: [&str; 11] = [
    "authors",
    "changelog",
    "changes",
    "contributing",
    "copying",
    "history",
    "license",
    "news",
    "notice",
    "readme",
    "todo",
];

/// Why a person must look at a path, whatever the change is. `None`: a rule may approve a change there.
pub fn why_not_path(path: &[u8]) -> Option<&'static str> {
    let names = || path.split(|&byte| byte == b'/');
    if names().any(|name| name.starts_with(b".")) {
        return Some("is a dot file, or in a dot directory");
    }
    if !names().all(is_plain) {
        return Some("has a name that not every machine takes for the same");
    }
    // HOSTILE: it would decide about the next run.
    if paths::name(path) == "ringfence.toml" {
        return Some("steers later runs");
    }
    if let Some((_, what)) = runs::what_runs(path) {
        return Some(what_it_is(what));
    }
    if paths::is_generated(path) {
        return Some("is a lock file, or generated");
    }
    if protected::usual().matches(Path::new(OsStr::from_bytes(path))) {
        return Some("decides how checks are done: a test, a setting, a manifest or a recipe");
    }
    let extension = paths::extension(path);
    let is_known = DOCUMENTS.contains(&extension.as_str())
        || NAMED.contains(&paths::name(path).as_str())
        || paths::is_source(path);
    (!is_known).then_some("is of no kind that is known as plain source or a document")
}

/// The rows of the table say what runs a file; a reason says what the file is.
fn what_it_is(what: &'static str) -> &'static str {
    match what {
        "continuous integration" => "is for continuous integration",
        "instructions for coding agents" | "configuration of coding agents" => {
            "steers coding agents"
        }
        _ => "is a recipe or a setting: something runs it, or by it",
    }
}

/// Whether all machines take a name for the same, and no shell or program for more than a name.
///
/// An allowlist of ASCII: it has no look-alikes, no forms of a letter, nothing that cannot be seen.
fn is_plain(name: &[u8]) -> bool {
    const OTHERS: &[u8] = b"-_.+@ ()[],=";
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || OTHERS.contains(byte);
    // Windows takes `CON.txt` for the console.
    let stem = name.split(|&byte| byte == b'.').next().unwrap_or(name);
    let stem = String::from_utf8_lossy(stem).trim_end().to_lowercase();
    let port = ["com", "lpt"].iter().any(|port| {
        let number = stem.strip_prefix(port);
        number.is_some_and(|number| number.len() == 1 && number.as_bytes()[0].is_ascii_digit())
    });
    let device = port || ["con", "prn", "aux", "nul"].contains(&stem.as_str());
    name.iter().all(plain)
        && !name.starts_with(b"-")
        && !name.starts_with(b" ")
        && !name.ends_with(b" ")
        && !name.ends_with(b".")
        && !name.is_empty()
        && !device
}

/// Why a person must look at a change: the path, and why.
pub fn why_not(changes: &[Change]) -> Option<String> {
    for change in changes {
        let path = &change.path;
        if let Some(why) = why_not_path(path.as_bytes()) {
            return Some(format!("`{path}` {why}"));
        }
        if let ChangeKind::Renamed { from } = &change.kind
            && let Some(why) = why_not_path(from.as_bytes())
        {
            return Some(format!("`{path}` was `{from}`, which {why}"));
        }
        let sides = [&change.old, &change.new];
        let is = |mode| {
            let has = |side: &Side| side.mode == mode;
            sides.iter().any(|side| side.as_ref().is_some_and(has))
        };
        if is(FileMode::Symlink) {
            return Some(format!("`{path}` is or was a symbolic link"));
        }
        if is(FileMode::Executable) {
            return Some(format!("`{path}` is or was executable"));
        }
        if change.binary {
            return Some(format!("`{path}` is no text"));
        }
    }
    changes_type(changes).map(|path| format!("`{path}` changes its type"))
}

/// A path that is a file before and a directory after, or the reverse.
fn changes_type(changes: &[Change]) -> Option<String> {
    let mut gone: BTreeSet<&[u8]> = BTreeSet::new();
    let mut made: BTreeSet<&[u8]> = BTreeSet::new();
    for change in changes {
        let path = change.path.as_bytes();
        match &change.kind {
            ChangeKind::Added => drop(made.insert(path)),
            ChangeKind::Deleted => drop(gone.insert(path)),
            ChangeKind::Renamed { from } => {
                gone.insert(from.as_bytes());
                made.insert(path);
            }
            ChangeKind::Modified => {}
        }
    }
    let mut pairs = [(&gone, &made), (&made, &gone)].into_iter();
    pairs.find_map(|(files, others)| {
        let above = |path: &&[u8]| {
            let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
            let mut above = ends.map(|(at, _)| &path[..at]).chain([*path]);
            above.any(|directory| files.contains(directory))
        };
        let found = others.iter().copied().find(|path| above(path))?;
        Some(crate::ByteText::from(found).to_text())
    })
}

/// Whether a content is one that the kernel would run, or no text at all.
pub fn is_program(content: &[u8]) -> bool {
    content.starts_with(b"#!") || content.contains(&0) || content.starts_with(b"\x7fELF")
}

#[cfg(test)]
mod tests;
