//! Looking once more at single files of a change set, and at the names that lie beside them.

use std::io;
use std::os::fd::AsFd as _;

use ringfence_model::ByteText;
use ringfence_model::changes::{Change, ChangeKind, Side};

use super::Sources;
use super::handle::{self, Access, Kind};
use super::source::{self, Tree};

/// What a changed file held before; `None` where there was none, it has more bytes, or it is not
/// the same any more.
pub fn old_bytes(sources: &Sources, change: &Change, most: u64) -> Option<Vec<u8>> {
    let path = match &change.kind {
        ChangeKind::Renamed { from } => from,
        _ => &change.path,
    };
    side(sources, Tree::Base, path, change.old.as_ref(), most)
}

/// What a changed file holds now.
pub fn new_bytes(sources: &Sources, change: &Change, most: u64) -> Option<Vec<u8>> {
    side(
        sources,
        Tree::Layer,
        &change.path,
        change.new.as_ref(),
        most,
    )
}

fn side(
    sources: &Sources,
    tree: Tree,
    path: &ByteText,
    side: Option<&Side>,
    most: u64,
) -> Option<Vec<u8>> {
    let side = side.filter(|side| side.size <= most)?;
    let path = sources.in_folder(path.as_bytes())?;
    source::bytes(sources, tree, path, side).ok()
}

/// The names in a directory of the base that the layer did not remove, sorted; at most so many.
pub fn names_left(sources: &Sources, directory: &[u8], limit: usize) -> Vec<Vec<u8>> {
    let read = || -> io::Result<Vec<Vec<u8>>> {
        let Some(directory) = sources.in_folder(directory) else {
            return Ok(Vec::new());
        };
        let open = |root, access| {
            let inside = if directory.is_empty() {
                b"x".to_vec()
            } else {
                [directory, b"/x"].concat()
            };
            let (held, _) = handle::hold_parent(root, &inside, access)?;
            handle::reopen_directory(held.as_fd(), Access::AsItIs)
        };
        let base = open(sources.base.as_fd(), Access::AsItIs)?;
        // What cannot be told is taken to be there: better a flag too many.
        if is_replaced(sources, directory).unwrap_or(false) {
            return Ok(Vec::new());
        }
        let mut names = handle::names(base.fd.as_fd(), limit)?;
        if let Ok(layer) = open(sources.upper.as_fd(), Access::AsItIs) {
            names.retain(|name| {
                let meta = handle::look(layer.fd.as_fd(), name).ok().flatten();
                meta.is_none_or(|meta| meta.kind != Kind::Whiteout)
            });
        }
        Ok(names)
    };
    read().unwrap_or_default()
}

/// Whether the layer hides all that the base has in a directory: it, or one above it, was removed,
/// or removed and made again.
fn is_replaced(sources: &Sources, directory: &[u8]) -> io::Result<bool> {
    let mut here = sources.upper.try_clone()?;
    if directory.is_empty() {
        return Ok(false);
    }
    for component in directory.split(|&byte| byte == b'/') {
        match handle::look(here.as_fd(), component)? {
            None => return Ok(false),
            Some(meta) if meta.kind != Kind::Directory => return Ok(true),
            Some(_) => {}
        }
        let held = handle::open_directory(here.as_fd(), component, Access::AsItIs)?;
        if handle::attribute(held.fd.as_fd(), "user.overlay.opaque")?.is_some() {
            return Ok(true);
        }
        here = held.fd;
    }
    Ok(false)
}
