//! Which change is meant by a path that a person typed.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use ringfence_model::ByteText;
use ringfence_model::changes::{Change, ChangeKind};

use super::{Blame, BlameError};
use crate::run::why;

/// Where sandboxes have their folder, unless it has its own path.
const INSIDE: &str = "/workspace";
/// BOUND: other paths that are offered.
const NEAR: usize = 5;

/// A path as it was typed, and where.
#[derive(Debug)]
pub struct Asked<'a> {
    pub path: &'a Path,
    pub cwd: &'a Path,
}

impl Blame {
    /// The changes at a path, or below it where it is a directory, by their numbers.
    ///
    /// A path counts from the working directory where that is in the folder's repository, and
    /// else, or where nothing changed there, from its top or from the folder.
    pub fn find(&self, asked: &Asked<'_>) -> Result<Vec<usize>, BlameError> {
        let candidates = self.candidates(asked);
        for path in &candidates {
            let found = self.at(path);
            if !found.is_empty() {
                return Ok(found);
            }
        }
        Err(self.nothing(asked, &candidates))
    }

    /// From the top of the repository, the likeliest first.
    fn candidates(&self, asked: &Asked<'_>) -> Vec<Vec<u8>> {
        let folder = bytes_path(&self.result.folder);
        let prefix = bytes_path(&self.writers.prefix);
        // Names are also taken as they are printed.
        let quoted = asked.path.to_str().filter(|text| text.starts_with('"'));
        let unquoted = quoted.and_then(ByteText::from_text);
        let typed = unquoted
            .as_ref()
            .map_or(asked.path, |name| bytes_path(name));
        let depth = prefix.components().count();
        let top = folder.ancestors().nth(depth).unwrap_or(folder);
        let mut all = Vec::new();
        if let Ok(below) = lexical(&asked.cwd.join(typed)).strip_prefix(top) {
            all.push(below.to_owned());
        }
        match typed.strip_prefix(INSIDE) {
            Ok(inside) => all.push(prefix.join(lexical(inside))),
            Err(_) if typed.is_absolute() => {}
            Err(_) => {
                all.push(lexical(typed));
                all.push(lexical(&prefix.join(typed)));
            }
        }
        let mut bytes: Vec<Vec<u8>> = Vec::new();
        for path in all {
            let path = path.as_os_str().as_bytes().to_vec();
            if !bytes.contains(&path) {
                bytes.push(path);
            }
        }
        bytes
    }

    fn at(&self, path: &[u8]) -> Vec<usize> {
        let below = |other: &ByteText| {
            let rest = other.as_bytes().strip_prefix(path);
            path.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
        };
        let is_meant = |change: &Change| match &change.kind {
            ChangeKind::Renamed { from } => below(from) || below(&change.path),
            _ => below(&change.path),
        };
        let changes = self.result.changes.iter().enumerate();
        let meant = changes.filter(|(_, change)| is_meant(change));
        meant.map(|(number, _)| number).collect()
    }

    fn nothing(&self, asked: &Asked<'_>, candidates: &[Vec<u8>]) -> BlameError {
        let path = ByteText::from(asked.path.as_os_str().as_bytes()).to_text();
        let run = self.result.run.to_string();
        let meant = |omitted: &ByteText| {
            let above = |path: &Vec<u8>| {
                let rest = path.strip_prefix(omitted.as_bytes());
                rest.is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
            };
            candidates.iter().any(above)
        };
        if let Some(omitted) = self.result.omitted.iter().find(|o| meant(&o.path)) {
            let why = why(omitted.why);
            return BlameError::LeftBehind { path, run, why };
        }
        let near = self.near(asked.path.file_name().unwrap_or_default());
        BlameError::NotChanged { path, run, near }
    }

    /// Changed paths that may have been meant: of the same name, or one that looks like it.
    fn near(&self, name: &OsStr) -> Vec<String> {
        let name = name.as_bytes().to_ascii_lowercase();
        let changes = self.result.changes.iter();
        let mut scored: Vec<(usize, &ByteText)> = changes
            .filter_map(|change| {
                let last = bytes_path(&change.path).file_name()?;
                Some((
                    distance(&name, &last.as_bytes().to_ascii_lowercase())?,
                    &change.path,
                ))
            })
            .collect();
        scored.sort();
        scored.dedup();
        let near = scored.into_iter().take(NEAR);
        near.map(|(_, path)| path.to_text()).collect()
    }
}

/// How unlike two names are; `None` where they have nothing in common.
fn distance(one: &[u8], other: &[u8]) -> Option<usize> {
    let head = one.iter().zip(other).take_while(|(a, b)| a == b).count();
    let (one_rest, other_rest) = (&one[head..], &other[head..]);
    let tail = one_rest
        .iter()
        .rev()
        .zip(other_rest.iter().rev())
        .take_while(|(a, b)| a == b)
        .count();
    let differs = one_rest.len().max(other_rest.len()) - tail;
    (differs * 2 <= one.len().max(other.len())).then_some(differs)
}

fn bytes_path(bytes: &ByteText) -> &Path {
    Path::new(OsStr::from_bytes(bytes.as_bytes()))
}

/// Without `.` and `..`, by the letters alone: what is asked about may not be there any more.
fn lexical(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                plain.pop();
            }
            part => plain.push(part),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_look_alike_are_near() {
        for (one, other, expected) in [
            ("auth.rs", "auth.rs", Some(0)),
            ("auht.rs", "auth.rs", Some(2)),
            ("auth.r", "auth.rs", Some(1)),
            ("auth", "auth.rs", Some(3)),
            ("auth.rs", "main.rs", None),
            ("x", "main.rs", None),
        ] {
            assert_eq!(
                distance(one.as_bytes(), other.as_bytes()),
                expected,
                "{one} {other}"
            );
        }
    }

    #[test]
    fn dots_are_taken_by_the_letters() {
        for (path, plain) in [
            ("./a/../b/./c", "b/c"),
            ("../a", "a"),
            ("/a/b/../../c/", "/c"),
            (".", ""),
        ] {
            assert_eq!(lexical(Path::new(path)), Path::new(plain));
        }
    }
}
