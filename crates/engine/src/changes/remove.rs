//! Removing a tree that an agent built.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};

use ringfence_model::ByteText;
use rustix::fs::AtFlags;
use rustix::io::Errno;

use super::ChangesError;
use super::descent::Chain;
use super::handle::{self, Access, Kind};

/// BOUND: names held at once for each directory on the way; a directory may hold millions.
const BATCH_NAMES: usize = 4096;

/// Removes an entry of `parent` with all that is below it, whatever its depth, names and modes.
/// What is not there is no error.
pub fn remove_tree(parent: BorrowedFd<'_>, name: &[u8]) -> Result<(), ChangesError> {
    remove(parent, name).map_err(|source| ChangesError::Remove {
        name: ByteText::from(name),
        source,
    })
}

fn remove(parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    match handle::look(parent, name)? {
        None => return Ok(()),
        Some(meta) if meta.kind != Kind::Directory => return unlink(parent, name),
        Some(_) => {}
    }
    let root = handle::open_directory(parent, name, Access::Take)?;
    let (mut chain, _) = Chain::new(root.fd.as_fd(), Access::Take)?;
    let mut way = vec![Level::clear(Vec::new(), chain.here())?];
    while let Some(level) = way.last_mut() {
        if let Some(name) = level.below.pop() {
            match handle::open_directory(chain.here(), &name, Access::Take) {
                Ok(directory) => {
                    chain.push(directory);
                    way.push(Level::clear(name, chain.here())?);
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        } else if level.has_more {
            let again = handle::reopen_directory(chain.here(), Access::Take)?;
            *level = Level::clear(std::mem::take(&mut level.name), again.fd.as_fd())?;
        } else {
            let name = std::mem::take(&mut level.name);
            way.pop();
            if !way.is_empty() {
                chain.pop()?;
                remove_directory(chain.here(), &name)?;
            }
        }
    }
    drop(chain);
    remove_directory(parent, name)
}

/// A directory on the way down whose files are gone.
struct Level {
    name: Vec<u8>,
    /// The directories in it that are still to be removed.
    below: Vec<Vec<u8>>,
    /// Whether its listing was cut, so that there may be more of both.
    has_more: bool,
}

impl Level {
    /// Removes the files of a freshly opened directory.
    fn clear(name: Vec<u8>, dir: BorrowedFd<'_>) -> io::Result<Self> {
        let names = handle::names(dir, BATCH_NAMES)?;
        let has_more = names.len() == BATCH_NAMES;
        let mut below = Vec::new();
        for name in names {
            match handle::look(dir, &name)? {
                Some(meta) if meta.kind == Kind::Directory => below.push(name),
                Some(_) => unlink(dir, &name)?,
                None => {}
            }
        }
        Ok(Self {
            name,
            below,
            has_more,
        })
    }
}

fn unlink(dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

fn remove_directory(dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    match rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
