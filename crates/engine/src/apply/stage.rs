//! The stage: a directory in the folder in which every file is made whole before it gets its place.
//!
//! A file that is new is made in the directory that it will be in, without a name, so that it gets the
//! group and the access list that this directory gives; then it is named in the stage. One that takes
//! the place of another has all that from the other.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use ringfence_model::changes::FileMode;
use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, Uid, XattrFlags};
use rustix::io::Errno;

use super::plan::Seen;
use crate::changes::handle::{self, Access, Meta};
use crate::changes::remove_tree;
use crate::layers::attributes;
use crate::patch::above;

#[derive(Debug)]
pub(super) struct Stage<'a> {
    root: BorrowedFd<'a>,
    pub dir: OwnedFd,
    name: Vec<u8>,
}

impl<'a> Stage<'a> {
    pub fn make(root: BorrowedFd<'a>, name: Vec<u8>) -> io::Result<Self> {
        rustix::fs::mkdirat(root, &name[..], Mode::RWXU)?;
        let stage = Self::open(root, name)?;
        // What replaces a file gets that file's access list, and none of a directory; neither does
        // the stage, which one could close to its owner.
        handle::set_mode(stage.dir.as_fd(), 0o700)?;
        match rustix::fs::fremovexattr(&stage.dir, "system.posix_acl_default") {
            Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(stage),
            Err(errno) => Err(errno.into()),
        }
    }

    /// One that is there.
    pub fn open(root: BorrowedFd<'a>, name: Vec<u8>) -> io::Result<Self> {
        let dir = handle::open_directory(root, &name, Access::AsItIs)?.fd;
        Ok(Self { root, dir, name })
    }

    /// Removes it with all that is in it.
    pub fn clear(self) {
        // What stays is named in an intent that says so, or means nothing.
        let _ = remove_tree(self.root, &self.name);
    }

    /// Makes a file or link; what it replaces gives owner, permissions and attributes.
    pub fn put(
        &self,
        number: usize,
        path: &[u8],
        mode: FileMode,
        content: &[u8],
        over: Option<&Seen>,
    ) -> io::Result<Meta> {
        let name = number.to_string();
        let owner = self.owner(path, over)?;
        if mode == FileMode::Symlink {
            rustix::fs::symlinkat(content, &self.dir, &name)?;
            if let Some((uid, gid)) = owner {
                let flags = AtFlags::SYMLINK_NOFOLLOW;
                rustix::fs::chownat(&self.dir, &name, Some(uid), Some(gid), flags)?;
            }
        } else {
            let over = over.filter(|seen| seen.mode != FileMode::Symlink);
            let mut file = match over {
                Some(_) => self.named(&name, mode)?,
                None => self.nameless(path, &name, mode)?,
            };
            file.file.write_all(content)?;
            if let Some((uid, gid)) = owner {
                rustix::fs::fchown(&file.file, Some(uid), Some(gid))?;
            }
            if let Some(seen) = over {
                self.like(&file.file, path, seen, mode)?;
            }
            if !file.named {
                let path = handle::by_handle(file.file.as_fd());
                rustix::fs::linkat(CWD, path, &self.dir, &name, AtFlags::SYMLINK_FOLLOW)?;
            }
        }
        let meta = handle::look(self.dir.as_fd(), name.as_bytes())?;
        meta.ok_or_else(|| Errno::NOENT.into())
    }

    /// Who owns what is made, where that is not simply us.
    fn owner(&self, path: &[u8], over: Option<&Seen>) -> io::Result<Option<(Uid, Gid)>> {
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        let meta = match over {
            Some(seen) => seen.meta,
            None => handle::look_at(self.nearest(path)?.as_fd())?,
        };
        Ok(Some((Uid::from_raw(meta.owner), Gid::from_raw(meta.group))))
    }

    /// The deepest directory on the way to a path that is there.
    fn nearest(&self, path: &[u8]) -> io::Result<OwnedFd> {
        let mut above: Vec<&[u8]> = above(path).collect();
        while let Some(directory) = above.pop() {
            if let Ok(fd) = handle::hold_directory(self.root, directory) {
                return Ok(fd);
            }
        }
        self.root.try_clone_to_owned()
    }

    /// A new file, with what the directory gives that it will be in.
    fn nameless(&self, path: &[u8], name: &str, mode: FileMode) -> io::Result<Made> {
        let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
        match rustix::fs::openat(self.nearest(path)?, ".", flags, bits(mode)) {
            Ok(fd) => Ok(Made {
                file: fd.into(),
                named: false,
            }),
            // Not on this file system.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => self.named(name, mode),
            Err(errno) => Err(errno.into()),
        }
    }

    fn named(&self, name: &str, mode: FileMode) -> io::Result<Made> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.dir, name, flags, bits(mode))?;
        Ok(Made {
            file: fd.into(),
            named: true,
        })
    }

    /// Gives a file what the one that it replaces has besides its content.
    fn like(&self, file: &File, path: &[u8], seen: &Seen, mode: FileMode) -> io::Result<()> {
        let kept = handle::hold_parent(self.root, path, Access::AsItIs)
            .and_then(|(dir, name)| handle::hold_in(dir.as_fd(), name, Access::AsItIs))
            .and_then(|old| attributes::read(old.as_fd(), attributes::Which::All));
        for (name, value) in kept.unwrap_or_default() {
            // As far as we may.
            let _ = rustix::fs::fsetxattr(file, name, &value, XattrFlags::empty());
        }
        if !rustix::process::geteuid().is_root() {
            let _ = rustix::fs::fchown(file, None, Some(Gid::from_raw(seen.meta.group)));
        }
        let bits = permissions(seen.meta.mode, seen.mode, mode);
        Ok(rustix::fs::fchmod(file, Mode::from_raw_mode(bits))?)
    }
}

/// What a new file may be, as far as the caller's umask lets it.
fn bits(mode: FileMode) -> Mode {
    Mode::from_raw_mode(match mode {
        FileMode::Executable => 0o777,
        _ => 0o666,
    })
}

struct Made {
    file: File,
    /// In the stage already.
    named: bool,
}

/// The permissions of a file that is replaced; who may read it may execute it, where it becomes a
/// program.
fn permissions(bits: u32, old: FileMode, new: FileMode) -> u32 {
    let bits = bits & 0o777;
    match (old, new) {
        (FileMode::Regular, FileMode::Executable) => bits | (bits & 0o444) >> 2,
        (FileMode::Executable, FileMode::Regular) => bits & !0o111,
        _ => bits,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_but_the_last_are_kept() {
        use FileMode::{Executable, Regular};
        for (bits, old, new, made) in [
            (0o644, Regular, Executable, 0o755),
            (0o600, Regular, Executable, 0o700),
            (0o640, Regular, Regular, 0o640),
            (0o775, Executable, Regular, 0o664),
            (0o4755, Executable, Executable, 0o755),
        ] {
            assert_eq!(permissions(bits, old, new), made, "{bits:o}");
        }
    }
}
