//! Directories of the user's that git keeps things in: opened once, and read by that descriptor.
//!
//! HOSTILE: whoever prepared the folder made everything in there. No link is followed below the
//! descriptor, nothing above it is reached, nothing but a regular file within its bound is read, and
//! no file that is a second name of somebody else's.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use super::GitError;
use super::files::{self, Contents, Opened};
use super::refusal::{Reason, Refusal};

/// An open directory, whose files must belong to the folder's owner.
#[derive(Clone, Debug)]
pub(super) struct Directory {
    path: PathBuf,
    fd: Arc<OwnedFd>,
    owner: u32,
}

/// What a name is expected to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    File,
    Directory,
}

impl Directory {
    /// Opens a directory by its real path. A link on the way has come there since the path was
    /// resolved, and is an error.
    pub(super) fn open(path: &Path, owner: u32) -> rustix::io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let fd = rustix::fs::openat2(CWD, path, flags, Mode::empty(), resolve)?;
        Ok(Self {
            path: path.to_owned(),
            fd: Arc::new(fd),
            owner,
        })
    }

    /// Opens a directory below this one.
    pub(super) fn below(&self, name: &Path) -> rustix::io::Result<Self> {
        let fd = files::open_beneath(&*self.fd, name, OFlags::PATH | OFlags::DIRECTORY)?;
        Ok(Self {
            path: self.path.join(name),
            fd: Arc::new(fd),
            owner: self.owner,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Who must own what is read here.
    pub(super) fn owner(&self) -> u32 {
        self.owner
    }

    pub(super) fn stat(&self) -> rustix::io::Result<Stat> {
        rustix::fs::fstat(&*self.fd)
    }

    /// What is at a path below, itself no link; `None` if nothing is.
    pub(super) fn look(&self, name: &Path) -> rustix::io::Result<Option<Stat>> {
        match files::open_beneath(&*self.fd, name, OFlags::PATH) {
            Ok(fd) => Ok(Some(rustix::fs::fstat(fd)?)),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Reads a regular file of at most `limit` bytes; `None` where there is none.
    pub(super) fn read(&self, name: &Path, limit: u64) -> Result<Option<Contents>, GitError> {
        let path = || self.path.join(name);
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let fd = match files::open_beneath(&*self.fd, name, flags) {
            Ok(fd) => fd,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            // A link, a socket or a device without a driver.
            Err(Errno::LOOP | Errno::NXIO | Errno::NODEV | Errno::XDEV) => {
                return Err(GitError::ReadSpecial { path: path() });
            }
            Err(error) => {
                return Err(GitError::Read {
                    path: path(),
                    source: error.into(),
                });
            }
        };
        let failed = |source| GitError::Read {
            path: path(),
            source,
        };
        let stat = rustix::fs::fstat(&fd).map_err(|errno| failed(errno.into()))?;
        if !is_own_file(&stat, self.owner) {
            return Err(GitError::ReadForeign {
                path: path(),
                uid: stat.st_uid,
            });
        }
        match files::read_open(fd, limit).map_err(failed)? {
            Opened::Contents(contents) => Ok(Some(contents)),
            Opened::Special => Err(GitError::ReadSpecial { path: path() }),
            Opened::TooLarge => Err(GitError::ReadTooLarge {
                path: path(),
                limit,
            }),
        }
    }

    /// Like [`Self::read`], but a file that cannot be used counts as absent.
    pub(super) fn read_if_usable(&self, name: &Path, limit: u64) -> Option<Vec<u8>> {
        self.read(name, limit)
            .ok()
            .flatten()
            .map(|contents| contents.bytes)
    }

    /// The names in a directory below and their types, at most `limit` of them; none where there
    /// is no such directory.
    pub(super) fn list(
        &self,
        name: &Path,
        limit: usize,
    ) -> Result<Vec<(OsString, FileType)>, GitError> {
        let failed = |errno: Errno| GitError::List {
            path: self.path.join(name),
            source: errno.into(),
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let fd = match files::open_beneath(&*self.fd, name, flags) {
            Ok(fd) => fd,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(Vec::new()),
            Err(errno) => return Err(failed(errno)),
        };
        let mut names = Vec::new();
        for entry in Dir::new(fd).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            if names.len() == limit {
                return Err(GitError::ListTooLong {
                    path: self.path.clone(),
                    limit,
                });
            }
            let name = OsStr::from_bytes(name);
            let kind = match entry.file_type() {
                // Some file systems do not say.
                FileType::Unknown => self.kind_of(&self.fd, name)?,
                kind => kind,
            };
            names.push((name.to_owned(), kind));
        }
        Ok(names)
    }

    fn kind_of(&self, directory: &OwnedFd, name: &OsStr) -> Result<FileType, GitError> {
        let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::statat(directory, name, flags)
            .map(|stat| FileType::from_raw_mode(stat.st_mode))
            .map_err(|errno| GitError::List {
                path: self.path.join(name),
                source: errno.into(),
            })
    }

    /// Whether a path below is absent or what it should be: no link, and no other kind.
    pub(super) fn vet(&self, name: &Path, expected: Expected) -> Result<(), Refusal> {
        let refused = |reason| Err(Refusal::new(self.path.join(name), reason));
        let stat = match self.look(name) {
            Ok(None) => return Ok(()),
            Ok(Some(stat)) => stat,
            Err(Errno::LOOP | Errno::XDEV) => return refused(Reason::Link),
            Err(errno) => return refused(Reason::Unreadable(errno)),
        };
        match (expected, FileType::from_raw_mode(stat.st_mode)) {
            (_, FileType::Symlink) => refused(Reason::Link),
            (Expected::File, FileType::RegularFile) if is_own_file(&stat, self.owner) => Ok(()),
            (Expected::File, FileType::RegularFile) => refused(Reason::Foreign {
                uid: stat.st_uid,
                owner: self.owner,
            }),
            (Expected::Directory, FileType::Directory) => Ok(()),
            _ => refused(Reason::Special),
        }
    }
}

/// Whether a file may be read for a folder of this owner. A file with one name was put there by who
/// may write to the directory; a second name (a hard link) gives its content to who may not read it.
pub(super) fn is_own_file(stat: &Stat, owner: u32) -> bool {
    stat.st_uid == owner || stat.st_nlink == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_files_below_the_directory_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap();
        let run = |script: &str| {
            let mut command = std::process::Command::new("sh");
            let status = command.args(["-euc", script]).current_dir(&top).status();
            assert!(status.unwrap().success());
        };
        run(
            "mkdir git out; echo plain > git/plain; echo out > out/file; ln -s ../out/file git/link
             ln -s ../out git/way; ln -s plain git/near; mkfifo git/pipe; mkdir git/directory
             ln -s /dev/zero git/device; truncate -s 1M git/large",
        );
        let uid = rustix::process::geteuid().as_raw();
        let directory = Directory::open(&top.join("git"), uid).unwrap();
        for (name, read) in [
            ("plain", Some(Some("plain\n"))),
            ("absent", Some(None)),
            ("absent/file", Some(None)),
            ("plain/file", Some(None)),
            ("link", None),
            ("way/file", None),
            ("near", None),
            ("pipe", None),
            ("directory", None),
            ("device", None),
            ("large", None),
            ("../out/file", None),
            ("/etc/passwd", None),
        ] {
            let found = directory.read(Path::new(name), 4096).ok();
            let found = found.map(|contents| contents.map(|contents| contents.bytes));
            let read = read.map(|text| text.map(|text: &str| text.as_bytes().to_vec()));
            assert_eq!(found, read, "{name}");
        }
        // By a link it is opened only if nobody put one there since.
        assert!(Directory::open(&top.join("git/way"), uid).is_err());
        let listed = directory.list(Path::new("."), 100).unwrap();
        let pipe = listed.iter().find(|(name, _)| name == "pipe").unwrap();
        assert_eq!((listed.len(), pipe.1), (8, FileType::Fifo));
        assert!(directory.list(Path::new("."), 3).is_err());
        assert_eq!(directory.list(Path::new("way"), 3).unwrap(), []);
    }

    #[test]
    fn file_of_somebody_else_with_two_names_is_not_read() {
        let mut stat: Stat = rustix::fs::stat("/").unwrap();
        for (uid, names, own) in [
            (1000, 1, true),
            (1000, 2, true),
            (0, 1, true),
            (0, 2, false),
            (1001, 2, false),
        ] {
            (stat.st_uid, stat.st_nlink) = (uid, names);
            assert_eq!(is_own_file(&stat, 1000), own, "{uid} {names}");
        }
    }
}
