//! Bounded reading of files that someone else wrote, and writing of our own.
//!
//! A read never follows a link in the last component (unless the file is the user's own dotfile),
//! never blocks on a FIFO, never reads beyond its bound. Writing happens only below the mask, and in
//! directories of our own.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Timespec, Timestamps, XattrFlags};

use super::GitError;

/// Whether a symbolic link in the last component may be followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Links {
    Refuse,
    /// Only for files of the user's home, which are often links into a repository of dotfiles.
    Follow,
}

/// A file's bytes and the time of its last change.
#[derive(Debug)]
pub(super) struct Contents {
    pub bytes: Vec<u8>,
    pub mtime: Timespec,
}

/// Reads a regular file of at most `limit` bytes; `None` where there is none.
pub(super) fn read(path: &Path, limit: u64, links: Links) -> Result<Option<Contents>, GitError> {
    let mut flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    if links == Links::Refuse {
        flags |= OFlags::NOFOLLOW;
    }
    let fd = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(fd) => fd,
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => return Ok(None),
        // A link, a socket or a device without a driver.
        Err(rustix::io::Errno::LOOP | rustix::io::Errno::NXIO | rustix::io::Errno::NODEV) => {
            return Err(GitError::ReadSpecial {
                path: path.to_owned(),
            });
        }
        Err(error) => {
            return Err(GitError::Read {
                path: path.to_owned(),
                source: error.into(),
            });
        }
    };
    match read_open(fd, limit) {
        Ok(Opened::Contents(contents)) => Ok(Some(contents)),
        Ok(Opened::Special) => Err(GitError::ReadSpecial {
            path: path.to_owned(),
        }),
        Ok(Opened::TooLarge) => Err(GitError::ReadTooLarge {
            path: path.to_owned(),
            limit,
        }),
        Err(source) => Err(GitError::Read {
            path: path.to_owned(),
            source,
        }),
    }
}

/// Like [`read`], but a file that cannot be used counts as absent.
pub(super) fn read_if_usable(path: &Path, limit: u64, links: Links) -> Option<Vec<u8>> {
    read(path, limit, links)
        .ok()
        .flatten()
        .map(|contents| contents.bytes)
}

/// What an opened file turned out to be.
#[derive(Debug)]
pub(super) enum Opened {
    Contents(Contents),
    Special,
    TooLarge,
}

/// Reads what an open descriptor holds, if that is a regular file within the bound.
pub(super) fn read_open(fd: OwnedFd, limit: u64) -> io::Result<Opened> {
    let stat = rustix::fs::fstat(&fd)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Ok(Opened::Special);
    }
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    if size > limit {
        return Ok(Opened::TooLarge);
    }
    let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or(0).saturating_add(1));
    // One more than the bound, so that a file that grew meanwhile is noticed.
    File::from(fd)
        .take(limit.saturating_add(1))
        .read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Ok(Opened::TooLarge);
    }
    let mtime = Timespec {
        tv_sec: stat.st_mtime,
        tv_nsec: stat.st_mtime_nsec as _,
    };
    Ok(Opened::Contents(Contents { bytes, mtime }))
}

/// Opens a path below a directory, crossing no link on the way.
pub(crate) fn open_beneath(
    dir: impl AsFd,
    path: &Path,
    flags: OFlags,
) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    // `openat2` may ask to be called again while the tree is being renamed; a bound, not a loop.
    for _ in 0..16 {
        match rustix::fs::openat2(
            dir.as_fd(),
            path,
            flags | OFlags::CLOEXEC | OFlags::NOFOLLOW,
            Mode::empty(),
            resolve,
        ) {
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            other => return other,
        }
    }
    Err(rustix::io::Errno::AGAIN)
}

/// What lies at a path below a directory, without crossing a link; `None` if nothing does.
pub(super) fn kind_beneath(dir: impl AsFd, path: &Path) -> Option<FileType> {
    let fd = open_beneath(dir, path, OFlags::PATH).ok()?;
    let stat = rustix::fs::fstat(&fd).ok()?;
    Some(FileType::from_raw_mode(stat.st_mode))
}

/// Opens a directory for looking up names below it.
pub(super) fn open_directory(path: &Path) -> Result<OwnedFd, GitError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).map_err(|error| GitError::Read {
        path: path.to_owned(),
        source: error.into(),
    })
}

/// The real path, every link resolved.
pub(super) fn canonical(path: &Path) -> Result<PathBuf, GitError> {
    path.canonicalize()
        .map_err(|source| GitError::Canonicalise {
            path: path.to_owned(),
            source,
        })
}

/// Writes a new file below the mask.
pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<(), GitError> {
    std::fs::write(path, bytes).map_err(|source| GitError::Write {
        path: path.to_owned(),
        source,
    })
}

/// Writes a new file below the mask and gives it the time of the file that it stands for.
pub(super) fn write_dated(path: &Path, bytes: &[u8], mtime: Timespec) -> Result<(), GitError> {
    write(path, bytes)?;
    set_mtime(path, mtime)
}

fn set_mtime(path: &Path, mtime: Timespec) -> Result<(), GitError> {
    let times = Timestamps {
        last_access: mtime,
        last_modification: mtime,
    };
    rustix::fs::utimensat(rustix::fs::CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).map_err(
        |error| GitError::Write {
            path: path.to_owned(),
            source: error.into(),
        },
    )
}

/// Removes a file that we made.
pub(super) fn remove_file(path: &Path) -> Result<(), GitError> {
    std::fs::remove_file(path).map_err(|source| GitError::Remove {
        path: path.to_owned(),
        source,
    })
}

/// Creates a directory below the mask, with its parents.
pub(super) fn create_dirs(path: &Path) -> Result<(), GitError> {
    std::fs::create_dir_all(path).map_err(|source| GitError::CreateDirectory {
        path: path.to_owned(),
        source,
    })
}

/// Creates `mask/relative` with its parents, each with the mode and time of the folder's own:
/// overlayfs shows the attributes of the uppermost layer that has the directory.
pub(super) fn mirror_dirs(folder: &Path, mask: &Path, relative: &Path) -> Result<(), GitError> {
    create_dirs(&mask.join(relative))?;
    let mut at = relative;
    while !at.as_os_str().is_empty() {
        if let Ok(metadata) = std::fs::symlink_metadata(folder.join(at))
            && metadata.is_dir()
        {
            let path = mask.join(at);
            // We must be able to write below it ourselves, whatever the folder's mode.
            let mode = std::fs::Permissions::from_mode((metadata.mode() & 0o777) | 0o700);
            std::fs::set_permissions(&path, mode).map_err(|source| GitError::Write {
                path: path.clone(),
                source,
            })?;
            let mtime = Timespec {
                tv_sec: metadata.mtime(),
                tv_nsec: metadata.mtime_nsec() as _,
            };
            set_mtime(&path, mtime)?;
        }
        at = at.parent().unwrap_or(Path::new(""));
    }
    Ok(())
}

/// Tells overlayfs (`userxattr`) that nothing of a directory below this one shines through.
pub(super) fn mark_opaque(path: &Path) -> Result<(), GitError> {
    rustix::fs::setxattr(path, "user.overlay.opaque", b"y", XattrFlags::empty()).map_err(|error| {
        GitError::MarkOpaque {
            path: path.to_owned(),
            source: error.into(),
        }
    })
}

/// Makes a name of the layers below vanish: a whiteout, which needs no privilege since Linux 5.8.
pub(super) fn white_out(path: &Path) -> Result<(), GitError> {
    match rustix::fs::mknodat(
        rustix::fs::CWD,
        path,
        FileType::CharacterDevice,
        Mode::empty(),
        rustix::fs::makedev(0, 0),
    ) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(error) => Err(GitError::Hide {
            path: path.to_owned(),
            source: error.into(),
        }),
    }
}
