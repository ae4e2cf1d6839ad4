//! How much disk a layer takes, also while an agent is still writing it.

use std::collections::HashSet;
use std::io;
use std::os::fd::BorrowedFd;

use super::ChangesError;
use super::descent::{Descent, Step};
use super::handle::{self, Access, Identity, Kind, Meta};
use super::omissions::Tally;

/// BOUND: a live tree may be moved under the walker. It starts over this often, and then gives the
/// most it saw.
const ATTEMPTS: usize = 3;
/// BOUND: files with several names that are remembered to be counted once.
const REMEMBERED_LINKS: usize = 1 << 20;

/// Disk use of a tree, its root included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Usage {
    pub bytes: u64,
    pub inodes: u64,
}

/// Files with several names that were counted already, of one tree or of many.
#[derive(Debug, Default)]
pub struct Inodes(HashSet<Identity>);

/// Measures all that is below a directory. What vanishes meanwhile is not counted.
///
/// A directory that its own mode closes is opened for as long as it is read. A live agent can see
/// that, and a mode that it sets in that moment is lost.
pub fn measure(dir: BorrowedFd<'_>) -> Result<Usage, ChangesError> {
    measure_apart(dir, &mut Inodes::default())
}

/// The same without what was counted before: files that several trees share count in the first.
pub fn measure_apart(dir: BorrowedFd<'_>, seen: &mut Inodes) -> Result<Usage, ChangesError> {
    let mut most = Usage::default();
    for _ in 0..ATTEMPTS {
        let mut usage = Usage::default();
        let mut fresh = Vec::new();
        let walked = walk(dir, seen, &mut fresh, &mut usage);
        if walked.is_err() {
            for identity in &fresh {
                seen.0.remove(identity);
            }
        }
        most = most.max(usage);
        match walked {
            Ok(()) => return Ok(usage),
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::STALE.raw_os_error()) => {
            }
            Err(error) => return Err(ChangesError::Measure(error)),
        }
    }
    Ok(most)
}

fn walk(
    dir: BorrowedFd<'_>,
    seen: &mut Inodes,
    fresh: &mut Vec<Identity>,
    usage: &mut Usage,
) -> io::Result<()> {
    let mut count = |meta: &Meta| {
        let several = meta.links > 1 && meta.kind != Kind::Directory;
        if several && seen.0.contains(&meta.identity) {
            return;
        }
        if several && seen.0.len() < REMEMBERED_LINKS {
            seen.0.insert(meta.identity);
            fresh.push(meta.identity);
        }
        usage.inodes += 1;
        usage.bytes = usage.bytes.saturating_add(meta.blocks.saturating_mul(512));
    };
    let (mut descent, root) = Descent::new(dir, Access::Widen)?;
    count(&root);
    loop {
        for name in handle::names(descent.here(), usize::MAX).or_else(vanished)? {
            if let Some(meta) = look_past(descent.here(), &name)? {
                count(&meta);
                if meta.kind == Kind::Directory {
                    descent.queue(name);
                }
            }
        }
        loop {
            match descent.advance()? {
                Some(Step::Entered(..)) => break,
                Some(Step::Closed(_, error)) if is_passed_over(&error) => {}
                Some(Step::Closed(_, error)) => return Err(error),
                Some(Step::Left) => {}
                None => return Ok(()),
            }
        }
    }
}

/// Counts the files below a directory of a layer that stays behind, by the sizes they say.
pub(super) fn tally(dir: BorrowedFd<'_>) -> io::Result<Tally> {
    let (mut descent, _) = Descent::new(dir, Access::Widen)?;
    let mut total = Tally::default();
    loop {
        for name in handle::names(descent.here(), usize::MAX)? {
            match look_past(descent.here(), &name)? {
                Some(meta) if meta.kind == Kind::Directory => descent.queue(name),
                Some(meta) => {
                    let is_file = matches!(meta.kind, Kind::File | Kind::Symlink);
                    total.add(Tally::file(if is_file { meta.size } else { 0 }));
                }
                None => {}
            }
        }
        loop {
            match descent.advance()? {
                Some(Step::Entered(..)) => break,
                Some(Step::Closed(_, error)) if is_passed_over(&error) => {}
                Some(Step::Closed(_, error)) => return Err(error),
                Some(Step::Left) => {}
                None => return Ok(total),
            }
        }
    }
}

/// Looks at an entry; what is closed to us counts for nothing.
fn look_past(dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<Option<Meta>> {
    match handle::look(dir, name) {
        Err(error) if is_passed_over(&error) => Ok(None),
        other => other,
    }
}

fn is_passed_over(error: &io::Error) -> bool {
    handle::is_gone(error) || handle::is_closed(error)
}

/// A directory that was removed after it was opened lists as `ENOENT`.
fn vanished(error: io::Error) -> io::Result<Vec<Vec<u8>>> {
    if error.kind() == io::ErrorKind::NotFound {
        Ok(Vec::new())
    } else {
        Err(error)
    }
}
