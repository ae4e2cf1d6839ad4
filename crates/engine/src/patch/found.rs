//! What a tree has at a path, seen by descriptor.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd};

use ringfence_model::changes::{FileMode, Side};

use crate::changes::handle::{self, Access, Kind, Meta};

use super::{hash_of, is_content};

/// What is there.
#[derive(Debug)]
pub(crate) enum Found {
    Nothing,
    /// A file, or the target of a link. At most as many bytes as were asked for, and one more.
    Content {
        mode: FileMode,
        bytes: Vec<u8>,
        meta: Meta,
    },
    Directory,
    /// A FIFO, a socket, a device.
    Special,
}

impl Found {
    /// Whether it is what a side names.
    pub fn is(&self, side: &Side) -> bool {
        match self {
            Self::Content { mode, bytes, .. } => {
                *mode == side.mode && is_content(bytes, side, hash_of(&side.oid))
            }
            _ => false,
        }
    }
}

/// Looks at a path below a directory, and through no link. `NOTDIR` and `LOOP` where something on
/// the way is no directory.
pub(crate) fn find(top: BorrowedFd<'_>, path: &[u8], most: u64) -> io::Result<Found> {
    let (dir, name) = match handle::hold_parent(top, path, Access::AsItIs) {
        Ok(parent) => parent,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
        Err(error) => return Err(error),
    };
    find_in(dir.as_fd(), name, most)
}

/// The same for a name in a directory.
pub(crate) fn find_in(dir: BorrowedFd<'_>, name: &[u8], most: u64) -> io::Result<Found> {
    let Some(meta) = handle::look(dir, name)? else {
        return Ok(Found::Nothing);
    };
    match meta.kind {
        Kind::Directory => Ok(Found::Directory),
        Kind::Whiteout | Kind::Special => Ok(Found::Special),
        Kind::Symlink => {
            let (bytes, meta) = handle::read_link(dir, name, Access::AsItIs)?;
            let mode = FileMode::Symlink;
            Ok(Found::Content { mode, bytes, meta })
        }
        Kind::File => {
            let opened = handle::open_file(dir, name, Access::AsItIs)?;
            let mode = if opened.meta.owner_executes() {
                FileMode::Executable
            } else {
                FileMode::Regular
            };
            let meta = opened.meta;
            let bytes = read(opened.file, opened.meta.size.min(most), most)?;
            Ok(Found::Content { mode, bytes, meta })
        }
    }
}

fn read(file: File, expected: u64, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(usize::try_from(expected).unwrap_or(0).saturating_add(1));
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok(bytes)
}
