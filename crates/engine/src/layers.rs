//! Layers on disk: copying one, squashing several into one, and telling whether one changed.
//!
//! ```text
//!   topmost ─┐
//!   …        ├─ merge ─▶ one layer that shows the same ┐
//!   lowest  ─┘                                         ├─ on top of `below`
//!   below: the view of everything under them ──────────┘
//! ```
//!
//! Copying is merging one layer of which nothing is dropped and nothing is shared.
//!
//! HOSTILE: an agent wrote what is in a layer. It is read relative to directory handles, no link is
//! followed, nothing but regular files and directories is opened, and nothing recurses.
//!
//! INVARIANT: a layer that is read stays as it is; modes that had to be widened are put back. A
//! target that could not be made whole is removed. Who is killed at it leaves the target `NAME` and
//! `NAME.links` beside it, and nothing else.

mod assemble;
pub(crate) mod attributes;
mod content;
mod digest;
mod error;
mod make;

use std::os::fd::{AsFd as _, BorrowedFd};

use ringfence_model::ByteText;
use rustix::fs::StatVfsMountFlags;

pub use crate::changes::{Inodes, Usage};
pub(crate) use attributes::with_file;
pub use digest::digest;
pub(crate) use digest::digest_of_file;
pub use error::LayersError;
pub(crate) use make::whiteout;

use crate::changes::handle::{self, Access};
use crate::changes::{measure_apart, remove_tree};
use assemble::{Assembly, Manner};

/// The end of the name of what is beside a layer while it is made.
pub const YARD: &str = ".links";

/// What was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// Entries of the new layer, without its root.
    pub entries: u64,
    /// Bytes of content that were written; what is linked or cloned costs nothing.
    pub bytes: u64,
}

/// Copies a layer as it is: types, modes, times, whiteouts, opaque marks, other attributes of
/// users, hard links within it, holes. The owner is kept as root; where it cannot be, what would
/// run a file as its owner is dropped. A socket becomes one that nobody listens at.
pub fn copy(
    from: BorrowedFd<'_>,
    to_parent: BorrowedFd<'_>,
    name: &[u8],
) -> Result<Copied, LayersError> {
    build(&[from], None, to_parent, name, Manner::Copy)
}

/// Squashes layers, topmost first, into one that shows the same on top of `below`, the view of
/// everything under them. Files are hard links to those of the layers, which nobody may change any
/// more; where a link cannot be made, they are copied.
pub fn merge(
    layers: &[BorrowedFd<'_>],
    below: Option<BorrowedFd<'_>>,
    to_parent: BorrowedFd<'_>,
    name: &[u8],
) -> Result<Copied, LayersError> {
    build(layers, below, to_parent, name, Manner::Merge)
}

fn build(
    layers: &[BorrowedFd<'_>],
    below: Option<BorrowedFd<'_>>,
    to_parent: BorrowedFd<'_>,
    name: &[u8],
    manner: Manner,
) -> Result<Copied, LayersError> {
    if layers.is_empty() {
        return Err(LayersError::NoLayers);
    }
    make::directory(to_parent, name).map_err(|source| LayersError::Make {
        path: ByteText::from(name),
        source,
    })?;
    // INVARIANT: the target is ours from here on; one that was there before was an error.
    let built =
        Assembly::new(layers, below, to_parent, name, manner).and_then(|assembly| assembly.run());
    let yard = make::yard_name(name);
    if built.is_err() {
        // The first error is the one to tell; what is left is swept with the parent.
        let _ = remove_tree(to_parent, name);
        let _ = remove_tree(to_parent, &yard);
        return built;
    }
    remove_tree(to_parent, &yard).map_err(LayersError::RemoveYard)?;
    built
}

/// Writes everything of the tree's file system to disk.
pub fn sync(tree: BorrowedFd<'_>) -> Result<(), LayersError> {
    let opened = handle::reopen_directory(tree, access(tree)).map_err(LayersError::Open)?;
    let synced = rustix::fs::syncfs(&opened.fd);
    if let Some(mode) = opened.restore {
        handle::set_mode(opened.fd.as_fd(), mode).map_err(LayersError::Open)?;
    }
    synced.map_err(|errno| LayersError::Sync(errno.into()))
}

/// Disk use of a tree without what `seen` has from trees measured before.
pub fn usage(tree: BorrowedFd<'_>, seen: &mut Inodes) -> Result<Usage, LayersError> {
    measure_apart(tree, seen).map_err(LayersError::Usage)
}

/// Whether modes of a tree are widened to read it. Root reads everything as it is, and the modes
/// of a view cannot be changed.
fn access(tree: BorrowedFd<'_>) -> Access {
    let read_only = rustix::fs::fstatvfs(tree)
        .is_ok_and(|stats| stats.f_flag.contains(StatVfsMountFlags::RDONLY));
    if read_only || rustix::process::geteuid().is_root() {
        Access::AsItIs
    } else {
        Access::Widen
    }
}
