//! What a patch makes of the files, in memory.
//!
//! As with `git apply`, renames and copies start from the files as they are on disk, whatever
//! their order in the patch; a file that is changed twice is changed one after the other.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use ringfence_model::ByteText;
use ringfence_model::tools::FailureKind;

use super::hunks::{self, MAX_COMPARED};
use super::parse::{FilePatch, Kind};
use crate::content::{self, Executable};
use crate::failure::{Outcome, conflict, denied, invalid, not_found, too_large};
use crate::place::{Last, Parents, Root};

/// BOUND: content that one patch may touch, before and after.
const MAX_TOTAL: usize = 64 << 20;

/// A file as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Before {
    pub content: Vec<u8>,
    pub mode: u32,
}

/// A file as it will be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct After {
    pub content: Vec<u8>,
    /// What the file had, if there was one.
    pub mode: Option<u32>,
    pub executable: Executable,
    kind: Kind,
}

/// What the hunks of a file start from.
struct Start {
    content: Vec<u8>,
    mode: Option<u32>,
    executable: Executable,
}

#[derive(Debug)]
pub struct Plan<'a> {
    root: &'a Root,
    /// Names that the patch takes away, wherever in it.
    leaving: BTreeSet<Vec<u8>>,
    pub before: BTreeMap<Vec<u8>, Option<Before>>,
    /// `None`: there will be nothing.
    pub after: BTreeMap<Vec<u8>, Option<After>>,
    total: usize,
    compared: usize,
}

impl<'a> Plan<'a> {
    pub fn new(root: &'a Root, files: &[FilePatch<'_>]) -> Self {
        let leaving = files
            .iter()
            .filter(|file| matches!(file.kind, Kind::Delete | Kind::Rename))
            .filter_map(|file| file.old.clone())
            .collect();
        Self {
            root,
            leaving,
            before: BTreeMap::new(),
            after: BTreeMap::new(),
            total: 0,
            compared: MAX_COMPARED,
        }
    }

    pub fn add(&mut self, file: &FilePatch<'_>) -> Outcome<()> {
        let old = file.old.as_deref().unwrap_or_default();
        let new = file.new.as_deref().unwrap_or_default();
        let path = ByteText::from(if new.is_empty() { old } else { new });
        let start = match file.kind {
            Kind::Create => None,
            Kind::Modify | Kind::Delete => Some(self.current(old)?),
            Kind::Rename | Kind::Copy => Some(self.original(old, file.kind)?),
        };
        if matches!(file.kind, Kind::Create | Kind::Rename | Kind::Copy) {
            self.must_be_free(new)?;
        }
        let content = start.as_ref().map_or(&[][..], |start| &start.content);
        let content = if file.hunks.is_empty() {
            content.to_vec()
        } else {
            hunks::apply(content, &file.hunks, &path, &mut self.compared)?
        };
        self.count(content.len())?;
        if file.kind == Kind::Delete {
            if !content.is_empty() {
                return Err(conflict(format!(
                    "`{path}` has more in it than the patch deletes"
                )));
            }
            self.after.insert(old.to_vec(), None);
            return Ok(());
        }
        let asked = match file.mode {
            Some(0o755) => Executable::Yes,
            Some(_) => Executable::No,
            None => Executable::Keep,
        };
        let mode = start.as_ref().and_then(|start| start.mode);
        let executable = match start {
            Some(start) if asked == Executable::Keep => start.executable,
            _ => asked,
        };
        if file.kind == Kind::Rename {
            // Unless another file has come in its place.
            self.after.entry(old.to_vec()).or_insert(None);
        }
        let after = After {
            content,
            mode,
            executable,
            kind: file.kind,
        };
        self.after.insert(new.to_vec(), Some(after));
        Ok(())
    }

    /// The file as the patch has left it so far.
    fn current(&mut self, path: &[u8]) -> Outcome<Start> {
        match self.after.get(path) {
            Some(Some(after)) => Ok(Start {
                content: after.content.clone(),
                mode: after.mode,
                executable: after.executable,
            }),
            Some(None) => Err(missing(path)),
            None => self.found(path),
        }
    }

    /// The file as it is on disk, for a rename or a copy.
    fn original(&mut self, path: &[u8], kind: Kind) -> Outcome<Start> {
        let changed =
            matches!(self.after.get(path), Some(Some(after)) if after.kind == Kind::Modify);
        let gone = matches!(self.after.get(path), Some(None));
        if kind == Kind::Rename && (changed || gone) {
            return Err(invalid(format!(
                "the patch changes `{}` and renames it in another place",
                ByteText::from(path)
            )));
        }
        self.found(path)
    }

    /// The file on disk, which must be there.
    fn found(&mut self, path: &[u8]) -> Outcome<Start> {
        let before = self.on_disk(path)?.ok_or_else(|| missing(path))?;
        Ok(Start {
            content: before.content,
            mode: Some(before.mode),
            executable: Executable::Keep,
        })
    }

    fn must_be_free(&mut self, path: &[u8]) -> Outcome<()> {
        let taken = match self.after.get(path) {
            Some(after) => after.is_some(),
            None => self.on_disk(path)?.is_some() && !self.leaving.contains(path),
        };
        if taken {
            return Err(conflict(format!(
                "`{}` is there already",
                ByteText::from(path)
            )));
        }
        Ok(())
    }

    fn on_disk(&mut self, path: &[u8]) -> Outcome<Option<Before>> {
        if let Some(before) = self.before.get(path) {
            return Ok(before.clone());
        }
        check_name(path)?;
        let before = if self.is_below_leaving(path) {
            None
        } else {
            read(self.root, path)?
        };
        self.count(before.as_ref().map_or(0, |before| before.content.len()))?;
        self.before.insert(path.to_vec(), before.clone());
        Ok(before)
    }

    /// Whether a file that the patch takes away is in the way: a directory will be there instead.
    pub fn is_below_leaving(&self, path: &[u8]) -> bool {
        memchr::memchr_iter(b'/', path).any(|at| self.leaving.contains(&path[..at]))
    }

    fn count(&mut self, bytes: usize) -> Outcome<()> {
        self.total += bytes;
        if self.total > MAX_TOTAL {
            return Err(too_large(format!(
                "the patch touches more than {MAX_TOTAL} bytes"
            )));
        }
        Ok(())
    }
}

fn missing(path: &[u8]) -> crate::failure::Failure {
    not_found(format!("there is no `{}`", ByteText::from(path)))
}

/// HOSTILE: names in a patch lead where they say, plainly, and never into git's own files.
fn check_name(path: &[u8]) -> Outcome<()> {
    let shown = ByteText::from(path);
    for part in path.split(|byte| *byte == b'/') {
        if part == b".." || path.starts_with(b"/") {
            return Err(denied(format!("`{shown}` leads out of the root")));
        }
        if part.is_empty() || part == b"." {
            return Err(invalid(format!("`{shown}` is not a plain path")));
        }
        if part.eq_ignore_ascii_case(b".git") {
            return Err(denied(format!("`{shown}` belongs to git")));
        }
    }
    Ok(())
}

fn read(root: &Root, path: &[u8]) -> Outcome<Option<Before>> {
    let asked = ByteText::from(path);
    let place = match root.find(&asked, Last::Keep, Parents::Existing) {
        Ok(place) => place,
        Err(failure) if failure.kind == FailureKind::NotFound => return Ok(None),
        Err(failure) => return Err(failure),
    };
    // Two names for one file would be two files in the plan.
    if place.path != Path::new(OsStr::from_bytes(path)) {
        return Err(denied(format!("`{asked}` goes through a link")));
    }
    let Some(mode) = content::replaceable(&place)? else {
        return Ok(None);
    };
    let content = content::read_whole(&place)?;
    Ok(Some(Before { content, mode }))
}
