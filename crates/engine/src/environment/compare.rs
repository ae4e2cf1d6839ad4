//! Two layers that should be the same, path by path.
//!
//! Nothing is made equal that is not: compiled files with times in them differ, and that is said. Times
//! of files and their owners are no part of a layer's digest and are not compared.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};

use ringfence_model::ByteText;
use serde::Serialize;

use super::EnvironmentError;
use crate::changes::handle::{self, Access, Kind, Meta};
use crate::layers::digest_of_file;

/// BOUND: what is listed; how many there are is counted.
const LISTED: usize = 10_000;

/// How a path differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// The environment has it, the new setup did not make it.
    OnlyKept,
    OnlyNew,
    Kind,
    Mode,
    Content,
}

impl How {
    /// For a person.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OnlyKept => "only in what is kept",
            Self::OnlyNew => "only in what was made now",
            Self::Kind => "another kind of file",
            Self::Mode => "another mode",
            Self::Content => "other content",
        }
    }
}

/// One path that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Begins with the layer: `workspace/…`, `home/…`.
    pub path: ByteText,
    pub how: How,
}

/// What differs, and how many paths that are in all.
#[derive(Debug, Default)]
pub(super) struct Differences {
    pub listed: Vec<Difference>,
    pub count: u64,
}

impl Differences {
    fn add(&mut self, path: &[u8], how: How) {
        self.count += 1;
        if self.listed.len() < LISTED {
            let path = ByteText::from(path);
            self.listed.push(Difference { path, how });
        }
    }
}

/// Compares two trees; `name` is put before each path.
pub(super) fn compare(
    kept: BorrowedFd<'_>,
    new: BorrowedFd<'_>,
    name: &str,
    out: &mut Differences,
) -> Result<(), EnvironmentError> {
    let mut open = vec![Vec::new()];
    while let Some(path) = open.pop() {
        directory(kept, new, &path, name, &mut open, out).map_err(EnvironmentError::Read)?;
    }
    Ok(())
}

/// Access to the trees: ours, so that modes may be widened to read.
const ACCESS: Access = Access::Widen;

fn directory(
    kept: BorrowedFd<'_>,
    new: BorrowedFd<'_>,
    path: &[u8],
    name: &str,
    open: &mut Vec<Vec<u8>>,
    out: &mut Differences,
) -> io::Result<()> {
    let (kept, new) = (enter(kept, path)?, enter(new, path)?);
    let mut names: BTreeSet<Vec<u8>> = handle::names(kept.as_fd(), usize::MAX)?
        .into_iter()
        .collect();
    names.extend(handle::names(new.as_fd(), usize::MAX)?);
    for entry in names {
        let mut below = path.to_vec();
        crate::changes::descent::push_name(&mut below, &entry);
        let shown = [name.as_bytes(), b"/", &below].concat();
        let looked = (
            handle::look(kept.as_fd(), &entry)?,
            handle::look(new.as_fd(), &entry)?,
        );
        match looked {
            (Some(_), None) => out.add(&shown, How::OnlyKept),
            (None, Some(_)) => out.add(&shown, How::OnlyNew),
            (Some(old), Some(now)) => {
                if old.kind != now.kind {
                    out.add(&shown, How::Kind);
                    continue;
                }
                if old.kind != Kind::Symlink && old.mode & 0o7777 != now.mode & 0o7777 {
                    out.add(&shown, How::Mode);
                }
                match old.kind {
                    Kind::Directory => open.push(below),
                    _ if is_same(kept.as_fd(), new.as_fd(), &entry, &old, &now)? => {}
                    _ => out.add(&shown, How::Content),
                }
            }
            (None, None) => {}
        }
    }
    Ok(())
}

fn enter(root: BorrowedFd<'_>, path: &[u8]) -> io::Result<std::os::fd::OwnedFd> {
    if path.is_empty() {
        return Ok(handle::reopen_directory(root, ACCESS)?.fd);
    }
    let (parent, name) = handle::hold_parent(root, path, ACCESS)?;
    Ok(handle::open_directory(parent.as_fd(), name, ACCESS)?.fd)
}

fn is_same(
    kept: BorrowedFd<'_>,
    new: BorrowedFd<'_>,
    name: &[u8],
    old: &Meta,
    now: &Meta,
) -> io::Result<bool> {
    match old.kind {
        Kind::Symlink => {
            let target = |dir| handle::read_link(dir, name, ACCESS).map(|(target, _)| target);
            Ok(target(kept)? == target(new)?)
        }
        Kind::File if old.size != now.size => Ok(false),
        Kind::File => {
            // HOSTILE: a file of terabytes may be one hole.
            let digest = |dir| {
                let opened = handle::open_file(dir, name, ACCESS)?;
                digest_of_file(&opened.file, opened.meta.size)
            };
            Ok(digest(kept)? == digest(new)?)
        }
        _ => Ok(true),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn each_difference_is_told_once() {
        let place = tempfile::tempdir().expect("a place");
        for side in ["kept", "new"] {
            let side = place.path().join(side);
            fs::create_dir_all(side.join("d/e")).expect("directories");
            fs::write(side.join("d/e/same"), "same").expect("a file");
            fs::write(side.join("mode"), "x").expect("a file");
        }
        let at = |path: &str| place.path().join(path);
        fs::write(at("kept/d/content"), "a").expect("a file");
        fs::write(at("new/d/content"), "b").expect("a file");
        fs::write(at("kept/old"), "").expect("a file");
        fs::write(at("new/fresh"), "").expect("a file");
        fs::set_permissions(at("new/mode"), fs::Permissions::from_mode(0o700)).expect("a mode");
        std::os::unix::fs::symlink("a", at("kept/link")).expect("a link");
        std::os::unix::fs::symlink("b", at("new/link")).expect("a link");
        let open = |path| File::open(at(path)).expect("a directory");
        let mut out = Differences::default();
        let (kept, new) = (open("kept"), open("new"));
        compare(kept.as_fd(), new.as_fd(), "home", &mut out).expect("compared");
        let mut told: Vec<(String, How)> = out
            .listed
            .iter()
            .map(|difference| (difference.path.to_text(), difference.how))
            .collect();
        told.sort_by(|a, b| a.0.cmp(&b.0));
        assert_eq!(
            told,
            [
                ("home/d/content".to_owned(), How::Content),
                ("home/fresh".to_owned(), How::OnlyNew),
                ("home/link".to_owned(), How::Content),
                ("home/mode".to_owned(), How::Mode),
                ("home/old".to_owned(), How::OnlyKept),
            ]
        );
        assert_eq!(out.count, 5);
    }
}
