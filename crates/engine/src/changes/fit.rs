//! Keeps a patch within its bound by leaving the largest changes behind.

use std::io::{self, Write};

use ringfence_model::changes::{Change, ChangeKind, Side, WhyOmitted};

use super::hunks::Effort;
use super::omissions::Omissions;
use super::{ChangesError, Sources, leave, patch};

/// Leaves changes behind until the rest fits, smallest kept first. True where some were.
pub(super) fn drop_largest(
    sources: &Sources,
    changes: &mut Vec<Change>,
    omissions: &mut Omissions,
    patch_bytes: u64,
) -> Result<bool, ChangesError> {
    let most = changes
        .iter()
        .fold(0_u64, |sum, change| sum.saturating_add(most_bytes(change)));
    if most <= patch_bytes {
        return Ok(false);
    }
    let mut effort = Effort::default();
    let mut sizes = Vec::with_capacity(changes.len());
    for (index, change) in changes.iter().enumerate() {
        sizes.push((
            written_bytes(sources, change, &mut effort, patch_bytes)?,
            index,
        ));
    }
    // The two changes of a path that changed its type go together.
    for index in 1..changes.len() {
        if changes[index].path == changes[index - 1].path {
            let both = sizes[index].0.saturating_add(sizes[index - 1].0);
            sizes[index].0 = both;
            sizes[index - 1].0 = both;
        }
    }
    sizes.sort_unstable();
    let mut dropped = vec![false; changes.len()];
    let mut total = 0_u64;
    for (bytes, index) in sizes {
        total = total.saturating_add(bytes);
        dropped[index] = total > patch_bytes;
    }
    for index in 1..changes.len() {
        if changes[index].path == changes[index - 1].path {
            let either = dropped[index] || dropped[index - 1];
            dropped[index] = either;
            dropped[index - 1] = either;
        }
    }
    let before = changes.len();
    let mut index = 0;
    changes.retain(|change| {
        let dropped = dropped[index];
        index += 1;
        if dropped {
            leave(omissions, change, WhyOmitted::TooLarge);
        }
        !dropped
    });
    Ok(changes.len() < before)
}

/// More than the change can take in a patch, without reading it.
fn most_bytes(change: &Change) -> u64 {
    let size = |side: &Option<Side>| side.as_ref().map_or(0, |side| side.size);
    let from = match &change.kind {
        ChangeKind::Renamed { from } => from.as_bytes().len(),
        _ => 0,
    };
    // Each name is written at most four times, each byte of it at most as four; a text of empty
    // lines doubles.
    let names = 16 * (from + change.path.as_bytes().len()) as u64;
    1000 + names + 2 * size(&change.old).saturating_add(size(&change.new))
}

/// What the change takes in a patch; anything over the bound where it is over the bound.
fn written_bytes(
    sources: &Sources,
    change: &Change,
    effort: &mut Effort,
    bound: u64,
) -> Result<u64, ChangesError> {
    let mut sink = Sink { bytes: 0, bound };
    match patch::write_change(sources, change, effort, &mut sink, &mut |_, _, _| {}) {
        Err(error) if sink.bytes <= bound => Err(error),
        _ => Ok(sink.bytes),
    }
}

/// Counts bytes, and takes no more of them than it must.
struct Sink {
    bytes: u64,
    bound: u64,
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes = self.bytes.saturating_add(bytes.len() as u64);
        if self.bytes > self.bound {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
