//! Why a git directory is not used for a folder.
//!
//! A folder from anywhere may name any repository of the host: by a gitfile, by `commondir`, by a
//! link, by the list of borrowed objects. What is read and shown must lie below the folder, or in a
//! git directory that names this very folder as its work tree, and belong to the folder's owner.

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use ringfence_model::ByteText;
use rustix::io::Errno;

use super::GitError;

/// A path that is not as it must be, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    path: PathBuf,
    reason: Reason,
}

/// What is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    Link,
    /// A FIFO, a device, or a directory in place of a file.
    Special,
    Unreadable(Errno),
    /// It names a path that is neither below the folder nor points back to it.
    LeadsOut(PathBuf),
    /// It lends objects from there.
    Borrows(PathBuf),
    Foreign {
        uid: u32,
        owner: u32,
    },
    /// The folder's owner is neither the caller nor root.
    Caller {
        owner: u32,
        caller: u32,
    },
    /// It is not laid out as git does it.
    Layout,
    /// It names another directory as its work tree.
    WorkTree(PathBuf),
}

impl Reason {
    /// Why a file could not be read.
    pub(super) fn of(error: &GitError) -> Self {
        match error {
            GitError::ReadSpecial { .. } => Self::Special,
            GitError::Read { source, .. } | GitError::List { source, .. } => {
                Self::Unreadable(Errno::from_io_error(source).unwrap_or(Errno::IO))
            }
            _ => Self::Layout,
        }
    }
}

impl Refusal {
    pub(super) fn new(path: PathBuf, reason: Reason) -> Self {
        Self { path, reason }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |path: &PathBuf| ByteText::from(path.as_os_str().as_bytes());
        let path = name(&self.path);
        match &self.reason {
            Reason::Link => write!(
                f,
                "`{path}` is a symbolic link, which is not followed; run on a fresh clone"
            ),
            Reason::Special => write!(f, "`{path}` is not a file or directory as git makes it"),
            Reason::Unreadable(errno) => {
                let why = std::io::Error::from(*errno);
                write!(f, "`{path}` cannot be opened: {why}")
            }
            Reason::LeadsOut(to) => write!(
                f,
                "`{path}` leads to `{}`, which is outside of the folder and does not point back to \
                 it; run on a fresh clone",
                name(to)
            ),
            Reason::Borrows(from) => write!(
                f,
                "`{path}` borrows objects from `{}`, which is outside of the folder; make the \
                 repository whole with `git repack -a -d` and remove that file",
                name(from)
            ),
            Reason::Foreign { uid, owner } => write!(
                f,
                "`{path}` belongs to uid {uid}, and the folder to uid {owner}; give it to the \
                 folder's owner with `chown`"
            ),
            Reason::Caller { owner, caller } => write!(
                f,
                "`{path}` belongs to uid {owner}, and you are uid {caller}; run on a clone of your \
                 own"
            ),
            Reason::Layout => write!(f, "`{path}` holds what git does not put there"),
            Reason::WorkTree(tree) => write!(
                f,
                "`{path}` is the git directory of `{}`, not of this folder",
                name(tree)
            ),
        }
    }
}
