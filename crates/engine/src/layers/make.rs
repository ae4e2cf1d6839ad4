//! Making entries of a layer: by a link to what is there, or anew.
//!
//! A file with several names is first made in a *yard*, a directory beside the target, and linked
//! from there under each name: the directory that holds its first name may be deep, finished and
//! closed by the time the second one comes.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::attributes::{self, Opaque, Which};
use super::content::{self, Cloning};
use crate::changes::handle::{self, Access, Identity, Kind, Meta};

/// BOUND: files with several names that are remembered; the names of more become files apart.
const REMEMBERED_LINKS: usize = 1 << 20;

/// Where an entry is read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin<'a> {
    pub dir: BorrowedFd<'a>,
    pub name: &'a [u8],
    pub meta: Meta,
    pub access: Access,
}

#[derive(Debug)]
pub(super) struct Maker {
    parent: OwnedFd,
    yard_name: Vec<u8>,
    yard: Option<OwnedFd>,
    linked: HashMap<Identity, u64>,
    cloning: Cloning,
    pub bytes: u64,
}

/// Makes a directory that is ours to fill.
pub(super) fn directory(dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    Ok(rustix::fs::mkdirat(dir, name, Mode::RWXU)?)
}

/// The name of the yard beside a target.
pub(super) fn yard_name(target: &[u8]) -> Vec<u8> {
    [target, super::YARD.as_bytes()].concat()
}

impl Maker {
    pub fn new(parent: BorrowedFd<'_>, target: &[u8]) -> io::Result<Self> {
        Ok(Self {
            parent: parent.try_clone_to_owned()?,
            yard_name: yard_name(target),
            yard: None,
            linked: HashMap::new(),
            cloning: Cloning::Tried,
            bytes: 0,
        })
    }

    /// Makes an entry a second name of what is there, or copies it where that cannot be.
    pub fn link(&mut self, from: Origin<'_>, to: BorrowedFd<'_>) -> io::Result<()> {
        match link(from.dir, from.name, to, from.name) {
            // Too many names, not ours to link, or on another file system.
            Err(Errno::MLINK | Errno::PERM | Errno::XDEV) => self.copy(from, to),
            other => Ok(other?),
        }
    }

    /// Copies an entry that is not a directory.
    pub fn copy(&mut self, from: Origin<'_>, to: BorrowedFd<'_>) -> io::Result<()> {
        let identity = from.meta.identity;
        let number = match self.linked.get(&identity) {
            Some(&number) => number,
            None if from.meta.links < 2 || self.linked.len() >= REMEMBERED_LINKS => {
                return self.anew(from, to, from.name);
            }
            None => {
                let number = self.linked.len() as u64;
                let yard = self.yard()?;
                self.anew(from, yard.as_fd(), number.to_string().as_bytes())?;
                self.linked.insert(identity, number);
                number
            }
        };
        let yard = self.yard()?;
        match link(yard.as_fd(), number.to_string().as_bytes(), to, from.name) {
            // The name in the yard is one more than there were.
            Err(Errno::MLINK) => self.anew(from, to, from.name),
            other => Ok(other?),
        }
    }

    fn yard(&mut self) -> io::Result<OwnedFd> {
        let yard = match self.yard.take() {
            Some(yard) => yard,
            None => {
                match directory(self.parent.as_fd(), &self.yard_name) {
                    Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                        return Err(error);
                    }
                    // Left by who was killed: names in it would be in our way.
                    Err(_) => {
                        let removed =
                            crate::changes::remove_tree(self.parent.as_fd(), &self.yard_name);
                        removed.map_err(io::Error::other)?;
                        directory(self.parent.as_fd(), &self.yard_name)?;
                    }
                    Ok(()) => {}
                }
                let opened =
                    handle::open_directory(self.parent.as_fd(), &self.yard_name, Access::Take)?;
                opened.fd
            }
        };
        let again = yard.try_clone()?;
        self.yard = Some(yard);
        Ok(again)
    }

    fn anew(&mut self, from: Origin<'_>, to: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
        match from.meta.kind {
            Kind::File => self.file(from, to, name),
            Kind::Symlink => {
                let (target, meta) = handle::read_link(from.dir, from.name, from.access)?;
                rustix::fs::symlinkat(target, to, name)?;
                attributes::apply_to_link(to, name, &meta)
            }
            Kind::Whiteout => whiteout(to, name),
            Kind::Special => special(from, to, name),
            Kind::Directory => Err(Errno::ISDIR.into()),
        }
    }

    fn file(&mut self, from: Origin<'_>, to: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
        attributes::with_file(from.dir, from.name, from.access, |source, meta| {
            let flags =
                OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let made = rustix::fs::openat(to, name, flags, Mode::RUSR | Mode::WUSR)?;
            let (source, made) = (File::from(source.try_clone_to_owned()?), File::from(made));
            self.bytes += content::copy(&source, &made, meta.size, &mut self.cloning)?;
            let found = attributes::read(source.as_fd(), Which::All)?;
            attributes::apply(made.as_fd(), meta, &found, Opaque::Unmarked)
        })
    }
}

/// Says that a name is not there.
pub(crate) fn whiteout(dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    let kind = FileType::CharacterDevice;
    Ok(rustix::fs::mknodat(dir, name, kind, Mode::empty(), 0)?)
}

/// A FIFO or a socket is a name and a mode; what was in it or behind it is gone.
///
/// HOSTILE: a socket is not left out, because it hides what is below it.
fn special(from: Origin<'_>, to: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    let kind = from.meta.file_type;
    if !matches!(kind, FileType::Fifo | FileType::Socket) {
        // No agent can make one.
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a device"));
    }
    rustix::fs::mknodat(to, name, kind, Mode::RUSR | Mode::WUSR, 0)?;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let made = rustix::fs::openat(to, name, flags, Mode::empty())?;
    attributes::apply(made.as_fd(), &from.meta, &Vec::new(), Opaque::Unmarked)
}

fn link(
    from: BorrowedFd<'_>,
    old: &[u8],
    to: BorrowedFd<'_>,
    new: &[u8],
) -> rustix::io::Result<()> {
    // Without flags a link is linked itself, not followed.
    rustix::fs::linkat(from, old, to, new, AtFlags::empty())
}
