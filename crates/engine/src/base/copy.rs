//! A folder as it is, copied file by file.
//!
//! It is read relative to directory handles, no link is followed and nothing of it is written. A
//! file is cloned where the file system can, linked to a base's where that holds the same, else
//! copied. Git directories are left out; special and unreadable files are too, with a note.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use ringfence_model::ByteText;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::error::access;
use super::files::{self, MAX_ENTRIES, join, relative, times};
use super::{BaseError, files::open_directory};
use crate::git::open_beneath;

/// Decides what becomes of a regular file.
pub(super) trait Sharing {
    /// Gives the file its name in `target` without copying, if that can be done.
    fn link(&mut self, path: &[u8], stat: &Stat, target: &OwnedFd, name: &[u8])
    -> io::Result<bool>;

    /// The file was copied.
    fn copied(&mut self, path: &[u8], stat: &Stat);

    /// Whether anything below a directory is committed.
    fn has_tracked_below(&self, directory: &[u8]) -> bool;
}

/// Every file is copied.
#[derive(Debug)]
pub(super) struct CopyAll;

impl Sharing for CopyAll {
    fn link(&mut self, _: &[u8], _: &Stat, _: &OwnedFd, _: &[u8]) -> io::Result<bool> {
        Ok(false)
    }

    fn copied(&mut self, _: &[u8], _: &Stat) {}

    fn has_tracked_below(&self, _: &[u8]) -> bool {
        false
    }
}

/// Whether these are the names in a git directory, whatever that is called.
fn are_of_git(names: &[Vec<u8>]) -> bool {
    ["HEAD", "objects", "refs"]
        .iter()
        .all(|part| names.iter().any(|name| name == part.as_bytes()))
}

/// Copies all of `source` into the empty directory `target`; gives notes.
pub(super) fn copy_tree(
    source: &Path,
    target: &Path,
    sharing: &mut dyn Sharing,
) -> Result<Vec<String>, BaseError> {
    let (from, to) = (open_directory(source)?, open_directory(target)?);
    let mut notes = Vec::new();
    let mut seen = 0;
    let mut pending = vec![Vec::new()];
    while let Some(directory) = pending.pop() {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let opened = open_beneath(&from, relative(&directory), flags)
            .map_err(io::Error::from)
            .and_then(|open| Ok((files::names(&open)?, open)));
        let (names, open) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                notes.push(skipped(&directory, &error));
                continue;
            }
        };
        let is_top = directory.is_empty();
        if !is_top && are_of_git(&names) && !sharing.has_tracked_below(&directory) {
            notes.push(skipped(&directory, &"it is a git directory"));
            continue;
        }
        let place = open_beneath(
            &to,
            relative(&directory),
            OFlags::RDONLY | OFlags::DIRECTORY,
        )
        .map_err(|errno| access("open", target.join(relative(&directory)))(errno.into()))?;
        for name in names {
            seen += 1;
            if seen > MAX_ENTRIES {
                return Err(BaseError::TooMany {
                    path: source.to_owned(),
                    limit: MAX_ENTRIES,
                });
            }
            let path = join(&directory, &name);
            let failed = |source| access("copy to", target.join(relative(&path)))(source);
            match one(&open, &place, &path, &name, sharing) {
                Ok(Done::Directory) => pending.push(path),
                Ok(Done::Entry) => {}
                Ok(Done::Skipped(why)) => notes.push(skipped(&path, &why)),
                Err(error) => return Err(failed(error)),
            }
        }
    }
    Ok(notes)
}

fn skipped(path: &[u8], why: &dyn std::fmt::Display) -> String {
    let path = ByteText::from(path);
    format!("`{path}` was left out: {why}")
}

enum Done {
    Directory,
    Entry,
    Skipped(String),
}

/// An error is of the target's side; what the source refuses is skipped.
fn one(
    from: &OwnedFd,
    to: &OwnedFd,
    path: &[u8],
    name: &[u8],
    sharing: &mut dyn Sharing,
) -> io::Result<Done> {
    let stat = match rustix::fs::statat(from, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return Ok(Done::Entry),
        Err(errno) => return Ok(Done::Skipped(io::Error::from(errno).to_string())),
    };
    let time = times(stat.st_mtime, stat.st_mtime_nsec as u32);
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => {
            rustix::fs::mkdirat(to, name, Mode::RWXU)?;
            // We must be able to fill and to remove it ourselves.
            let mode = Mode::from_raw_mode((stat.st_mode & 0o777) | 0o700);
            rustix::fs::chmodat(to, name, mode, AtFlags::empty())?;
            Ok(Done::Directory)
        }
        FileType::Symlink => {
            let target = match rustix::fs::readlinkat(from, name, Vec::new()) {
                Ok(target) => target,
                Err(errno) => return Ok(Done::Skipped(io::Error::from(errno).to_string())),
            };
            rustix::fs::symlinkat(&target, to, name)?;
            rustix::fs::utimensat(to, name, &time, AtFlags::SYMLINK_NOFOLLOW)?;
            sharing.copied(path, &stat);
            Ok(Done::Entry)
        }
        FileType::RegularFile => {
            if sharing.link(path, &stat, to, name)? {
                return Ok(Done::Entry);
            }
            let file = match files::open_file(from, name) {
                Ok(file) => file,
                Err(error) => return Ok(Done::Skipped(error.to_string())),
            };
            let mode = (stat.st_mode & 0o777) | 0o400;
            let date = (stat.st_mtime, stat.st_mtime_nsec as u32);
            write_copy(&file, to, name, mode, date)?;
            sharing.copied(path, &stat);
            Ok(Done::Entry)
        }
        _ => Ok(Done::Skipped("it is a special file".to_owned())),
    }
}

/// Writes a new file with what another holds: a clone where the file system can.
pub(super) fn write_copy(
    file: &File,
    directory: impl AsFd,
    name: &[u8],
    mode: u32,
    (seconds, nanoseconds): (i64, u32),
) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let mut copy = File::from(rustix::fs::openat(directory, name, flags, Mode::RWXU)?);
    if rustix::fs::ioctl_ficlone(&copy, file).is_err() {
        io::copy(&mut { file }, &mut copy)?;
    }
    rustix::fs::fchmod(&copy, Mode::from_raw_mode(mode))?;
    rustix::fs::futimens(&copy, &times(seconds, nanoseconds))?;
    Ok(())
}
