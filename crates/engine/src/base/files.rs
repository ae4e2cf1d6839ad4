//! Directories and files of a base, with modes that no umask changes, and listing what is there.
//!
//! INVARIANT: nothing here follows a link below a base.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File, Permissions};
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use ringfence_model::changes::ObjectHash;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, Timespec, Timestamps};

use super::BaseError;
use super::error::access;
use crate::changes::BlobHasher;
use crate::git::open_beneath;

/// BOUND: entries of one base; more would need gigabytes to be held at once.
pub(super) const MAX_ENTRIES: usize = 2_000_000;

/// Makes a directory with exactly this mode; one that is there gets it.
pub(super) fn make_directory(path: &Path, mode: u32) -> Result<(), BaseError> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(access("create", path)(error));
        }
        _ => {}
    }
    std::fs::set_permissions(path, Permissions::from_mode(mode)).map_err(access("open up", path))
}

/// Makes a directory below another and those on the way, all 0755.
pub(super) fn make_directories(top: &Path, below: &Path) -> Result<PathBuf, BaseError> {
    let mut path = top.to_owned();
    for part in below {
        path.push(part);
        make_directory(&path, 0o755)?;
    }
    Ok(path)
}

/// Writes a file that everybody may read.
pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<(), BaseError> {
    std::fs::write(path, bytes)
        .and_then(|()| std::fs::set_permissions(path, Permissions::from_mode(0o644)))
        .map_err(access("write", path))
}

/// Sets the time of the last change, of a link itself too.
pub(super) fn set_mtime(path: &Path, seconds: i64) -> Result<(), BaseError> {
    rustix::fs::utimensat(CWD, path, &times(seconds, 0), AtFlags::SYMLINK_NOFOLLOW)
        .map_err(|errno| access("date", path)(errno.into()))
}

/// Both times of a file.
pub(super) fn times(seconds: i64, nanoseconds: u32) -> Timestamps {
    let time = Timespec {
        tv_sec: seconds,
        tv_nsec: nanoseconds.into(),
    };
    Timestamps {
        last_access: time,
        last_modification: time,
    }
}

pub(super) fn open_directory(path: &Path) -> Result<OwnedFd, BaseError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| access("open", path)(errno.into()))
}

/// A relative path of bytes.
pub(super) fn relative(path: &[u8]) -> &Path {
    match path {
        b"" => Path::new("."),
        path => Path::new(OsStr::from_bytes(path)),
    }
}

/// `directory/name`.
pub(super) fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    match directory {
        b"" => name.to_vec(),
        directory => [directory, b"/", name].concat(),
    }
}

/// The names in a directory, sorted; without git's own directory, which is never part of a tree.
pub(super) fn names(directory: impl AsFd) -> io::Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") && !name.eq_ignore_ascii_case(b".git") {
            names.push(name.to_vec());
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Something that lies in a workspace.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// Relative to the workspace.
    pub path: Vec<u8>,
    pub stat: Stat,
}

impl Found {
    pub fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }
}

/// All that is below a directory, sorted by path; directories for which `stop` holds are listed and
/// not looked into.
pub(crate) fn list(top: &Path, stop: impl Fn(&[u8]) -> bool) -> Result<Vec<Found>, BaseError> {
    let root = open_directory(top)?;
    let mut found: Vec<Found> = Vec::new();
    let mut pending = vec![Vec::new()];
    while let Some(directory) = pending.pop() {
        let at = || top.join(relative(&directory));
        let failed = |source| access("list", at())(source);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let open = open_beneath(&root, relative(&directory), flags)
            .map_err(|errno| failed(errno.into()))?;
        for name in names(&open).map_err(failed)? {
            let stat = rustix::fs::statat(&open, &name[..], AtFlags::SYMLINK_NOFOLLOW)
                .map_err(|errno| failed(errno.into()))?;
            let path = join(&directory, &name);
            if found.len() == MAX_ENTRIES {
                return Err(BaseError::TooMany {
                    path: top.to_owned(),
                    limit: MAX_ENTRIES,
                });
            }
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory && !stop(&path) {
                pending.push(path.clone());
            }
            found.push(Found { path, stat });
        }
    }
    found.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

/// Opens a regular file below a directory.
pub(crate) fn open_file(root: impl AsFd, path: &[u8]) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(open_beneath(root, relative(path), flags)?);
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::ErrorKind::InvalidInput.into())
    }
}

/// Git's name for what a file holds.
pub(super) fn blob_id(file: &mut File, hash: ObjectHash) -> io::Result<Vec<u8>> {
    let length = file.metadata()?.len();
    let mut hasher = BlobHasher::new(hash, length);
    // BOUND: most files are small, and so is what is set to zero for them.
    let mut buffer = vec![0; length.clamp(1, 64 << 10) as usize];
    let mut read = 0u64;
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            length => {
                read += length as u64;
                hasher.update(&buffer[..length]);
            }
        }
    }
    if read != length {
        return Err(io::Error::other("the file changed while it was read"));
    }
    Ok(hasher.finish_bytes())
}

/// Opens the directory that holds a path below another.
pub(super) fn open_parent(root: impl AsFd, path: &Path) -> io::Result<OwnedFd> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    Ok(open_beneath(
        root,
        parent,
        OFlags::RDONLY | OFlags::DIRECTORY,
    )?)
}
