//! Going down and up a tree of any depth with few handles and no recursion.
//!
//! ```text
//!   root ── a ── b ── … ── y ── z      links, from the root to where we are
//!    ▲                 └──┴──┴── open: the last few, and always the root
//!    └── closed in between; reopened by `..` from below, and checked to be the same inode
//! ```
//!
//! INVARIANT: a directory whose mode was widened gets its mode back when it is left, also when
//! the walk ends early.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::handle::{self, Access, Identity, Meta, OpenDirectory};

/// BOUND: handles of one chain. An agent nests as deep as it likes; 1024 is the usual limit of a
/// process and several chains are open at once.
const OPEN_LINKS: usize = 32;

/// The directories from a root down to the current one.
#[derive(Debug)]
pub(crate) struct Chain {
    links: Vec<Link>,
    /// How many of the last links stay open.
    open: usize,
}

#[derive(Debug)]
struct Link {
    fd: Option<OwnedFd>,
    identity: Identity,
    restore: Option<u32>,
}

impl Chain {
    /// Starts at a root, with its own handle on it.
    pub fn new(root: BorrowedFd<'_>, access: Access) -> io::Result<(Self, Meta)> {
        Self::with_open(root, access, OPEN_LINKS)
    }

    /// The same with fewer handles, for who walks many trees at once.
    pub fn with_open(
        root: BorrowedFd<'_>,
        access: Access,
        open: usize,
    ) -> io::Result<(Self, Meta)> {
        let opened = handle::reopen_directory(root, access)?;
        let meta = opened.meta;
        let mut chain = Self {
            links: Vec::new(),
            open: open.max(1),
        };
        chain.push(opened);
        Ok((chain, meta))
    }

    /// The current directory.
    pub fn here(&self) -> BorrowedFd<'_> {
        let last = self.links.last().and_then(|link| link.fd.as_ref());
        last.expect("the last link of a chain is always open")
            .as_fd()
    }

    pub fn push(&mut self, directory: OpenDirectory) {
        self.links.push(Link {
            fd: Some(directory.fd),
            identity: directory.meta.identity,
            restore: directory.restore,
        });
        if self.links.len() > self.open + 1 {
            let closed = self.links.len() - 1 - self.open;
            self.links[closed].fd = None;
        }
    }

    /// Goes back up. `ESTALE` where the directory above is no longer the one we came through.
    pub fn pop(&mut self) -> io::Result<()> {
        if self.links.len() < 2 {
            return Ok(());
        }
        let left = self.links.pop().expect("the length was just checked");
        // Closed where the way up from below it was lost already: an agent moves directories.
        let Some(below) = left.fd else {
            return Err(Errno::STALE.into());
        };
        let above = self.links.last_mut().expect("the root stays");
        let reopened = match above.fd {
            Some(_) => Ok(()),
            None => climb(below.as_fd(), above.identity).map(|fd| above.fd = Some(fd)),
        };
        if let Some(mode) = left.restore {
            handle::set_mode(below.as_fd(), mode)?;
        }
        reopened
    }
}

fn climb(below: BorrowedFd<'_>, expected: Identity) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(below, "..", flags, Mode::empty())?;
    if handle::look_at(fd.as_fd())?.identity != expected {
        return Err(Errno::STALE.into());
    }
    Ok(fd)
}

impl Drop for Chain {
    fn drop(&mut self) {
        while self.links.len() > 1 {
            if self.pop().is_err() {
                break;
            }
        }
        if let Some(Link {
            fd: Some(fd),
            restore: Some(mode),
            ..
        }) = self.links.first()
        {
            // The tree may be gone by now, and there is nobody left to tell.
            let _ = handle::set_mode(fd.as_fd(), *mode);
        }
    }
}

/// One step of a descent.
#[derive(Debug)]
pub(crate) enum Step {
    /// Now in this directory, freshly opened.
    Entered(Vec<u8>, Meta),
    /// Back in the directory above.
    Left,
    /// The directory could not be opened; still where we were.
    Closed(Vec<u8>, io::Error),
}

/// A depth-first walk whose visitor says which directories to go into.
#[derive(Debug)]
pub(crate) struct Descent {
    chain: Chain,
    /// For each directory on the way, the names below it still to be entered.
    queued: Vec<Vec<Vec<u8>>>,
    access: Access,
}

impl Descent {
    pub fn new(root: BorrowedFd<'_>, access: Access) -> io::Result<(Self, Meta)> {
        let (chain, meta) = Chain::new(root, access)?;
        let descent = Self {
            chain,
            queued: vec![Vec::new()],
            access,
        };
        Ok((descent, meta))
    }

    pub fn here(&self) -> BorrowedFd<'_> {
        self.chain.here()
    }

    /// Asks for a directory in the current one to be entered later.
    pub fn queue(&mut self, name: Vec<u8>) {
        self.queued
            .last_mut()
            .expect("a walk that is not over has a directory")
            .push(name);
    }

    pub fn advance(&mut self) -> io::Result<Option<Step>> {
        let Some(names) = self.queued.last_mut() else {
            return Ok(None);
        };
        if let Some(name) = names.pop() {
            return Ok(Some(
                match handle::open_directory(self.here(), &name, self.access) {
                    Ok(directory) => {
                        let meta = directory.meta;
                        self.chain.push(directory);
                        self.queued.push(Vec::new());
                        Step::Entered(name, meta)
                    }
                    Err(error) => Step::Closed(name, error),
                },
            ));
        }
        self.queued.pop();
        if self.queued.is_empty() {
            return Ok(None);
        }
        self.chain.pop()?;
        Ok(Some(Step::Left))
    }
}

/// Adds a name to the path of a walk and gives where the path ended before.
pub(crate) fn push_name(path: &mut Vec<u8>, name: &[u8]) -> usize {
    let above = path.len();
    if above > 0 {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    above
}
