//! Reading a side of a change again, by its path, when a patch is made of it.
//!
//! What is read must be what the change set says, to the byte; otherwise the base (or the layer)
//! moved in between and there is no patch.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use ringfence_model::ByteText;
use ringfence_model::changes::{FileMode, Side};

use super::content;
use super::handle::{self, Access, OpenFile};
use super::oid;
use super::{ChangesError, Sources};

/// Which tree a side is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tree {
    Base,
    Layer,
}

impl Tree {
    fn root(self, sources: &Sources) -> (BorrowedFd<'_>, Access) {
        match self {
            Self::Base => (sources.base.as_fd(), Access::AsItIs),
            Self::Layer => (sources.upper.as_fd(), Access::Widen),
        }
    }
}

/// All bytes of a side; at most `side.size` of them.
pub(super) fn bytes(
    sources: &Sources,
    tree: Tree,
    path: &[u8],
    side: &Side,
) -> Result<Vec<u8>, ChangesError> {
    let mut bytes = Vec::new();
    pass(sources, tree, path, side, &mut |piece| {
        bytes.extend_from_slice(piece);
        Ok(())
    })?;
    Ok(bytes)
}

/// Passes a side on piece by piece. It is known to be the right one only when this has returned.
pub(super) fn pass(
    sources: &Sources,
    tree: Tree,
    path: &[u8],
    side: &Side,
    to: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> Result<(), ChangesError> {
    let moved = || ChangesError::MovedWhileRendering {
        path: ByteText::from(path),
    };
    let read_error = |source: io::Error| {
        if handle::is_gone(&source) {
            moved()
        } else {
            ChangesError::Read {
                path: ByteText::from(path),
                source,
            }
        }
    };
    let (root, access) = tree.root(sources);
    let (dir, name) = handle::hold_parent(root, path, access).map_err(read_error)?;
    if side.mode == FileMode::Symlink {
        let (target, _) = handle::read_link(dir.as_fd(), name, access).map_err(read_error)?;
        if oid::blob(sources.hash, &target) != side.oid {
            return Err(moved());
        }
        return to(&target).map_err(ChangesError::WritePatch);
    }
    let OpenFile {
        mut file,
        meta,
        elsewhere,
    } = handle::open_file(dir.as_fd(), name, access).map_err(read_error)?;
    let executable = side.mode == FileMode::Executable;
    if elsewhere.is_some() || meta.size != side.size || meta.owner_executes() != executable {
        return Err(moved());
    }
    let mut unwritten = None;
    let read = content::stream(&mut file, side.size, sources.hash, |piece| {
        to(piece).map_err(|error| {
            let kind = error.kind();
            unwritten = Some(error);
            kind.into()
        })
    });
    if let Some(error) = unwritten {
        return Err(ChangesError::WritePatch(error));
    }
    if read.map_err(read_error)? == side.oid {
        Ok(())
    } else {
        Err(moved())
    }
}
