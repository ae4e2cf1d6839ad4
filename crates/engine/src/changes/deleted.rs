//! A directory of the base that is gone: every file below it is a deletion of its own.

use std::os::fd::BorrowedFd;
use std::rc::Rc;

use ringfence_model::ByteText;
use ringfence_model::changes::WhyOmitted;

use super::ChangesError;
use super::descent::{Descent, Step};
use super::handle::{self, Access, Kind};
use super::judge::{Around, Entry, Judge, Place};
use super::names;

/// Judges everything below the directory at `path`, whose name is looked up in `dir`. A directory
/// that does not cross is not walked.
pub(super) fn directory(
    judge: &mut Judge<'_>,
    dir: BorrowedFd<'_>,
    path: &[u8],
    around: &Around,
) -> Result<(), ChangesError> {
    let (mut descent, _) =
        Descent::new(dir, Access::AsItIs).map_err(|source| list_error(path, source))?;
    descent.queue(names::last(path).to_vec());
    let mut path = Path(path.to_vec());
    // On whose line each directory on the way gathers what is ignored below it.
    let mut gathers = vec![around.gathers.clone()];
    while let Some(step) = descent
        .advance()
        .map_err(|source| list_error(&path.0, source))?
    {
        match step {
            Step::Closed(name, error) => {
                let why = if handle::is_gone(&error) {
                    WhyOmitted::BaseMoved
                } else if handle::is_closed(&error) {
                    WhyOmitted::Unreadable
                } else {
                    return Err(list_error(&path.0, error));
                };
                path.push(&name, gathers.len());
                let line = gathers.last().and_then(Option::as_ref);
                judge.directory_kept(&path.0, why, line);
                path.pop(gathers.len());
            }
            Step::Left => {
                gathers.pop();
                path.pop(gathers.len());
            }
            Step::Entered(name, meta) => {
                path.push(&name, gathers.len());
                let moved = judge.has_moved(&meta);
                let line = enter(judge, &mut descent, &mut path.0, moved, &gathers)?;
                gathers.push(line);
            }
        }
    }
    Ok(())
}

/// Judges the files of the current directory and queues its directories.
fn enter(
    judge: &mut Judge<'_>,
    descent: &mut Descent,
    path: &mut Vec<u8>,
    moved: bool,
    gathers: &[Option<Rc<[u8]>>],
) -> Result<Option<Rc<[u8]>>, ChangesError> {
    let is_nested = gathers.len() > 1;
    let line = gathers.last().and_then(Option::as_ref);
    let gathers = match judge.directory(path, line) {
        Entry::Cross(gathers) => gathers,
        Entry::Refuse(why) => {
            judge.directory_kept(path, why, line);
            return Ok(None);
        }
    };
    let around = Around { moved, gathers };
    let found =
        handle::names(descent.here(), usize::MAX).map_err(|source| list_error(path, source))?;
    // Git removes the directory above its last file, but not one that holds a directory.
    if found.is_empty() && is_nested {
        judge.empty_directory_kept(path);
    }
    for name in found {
        let above = path.len();
        path.push(b'/');
        path.extend_from_slice(&name);
        match handle::look(descent.here(), &name) {
            Ok(Some(meta)) if meta.kind == Kind::Directory => descent.queue(name),
            // The overlay takes a whiteout in its lower layer for nothing.
            Ok(Some(meta)) if meta.kind == Kind::Whiteout => {}
            Ok(Some(meta)) => {
                judge.deleted(
                    Place {
                        dir: descent.here(),
                        path,
                        meta,
                    },
                    &around,
                )?;
            }
            Ok(None) => judge.deleted_unseen(path, &around),
            Err(_) => judge.directory_kept(path, WhyOmitted::Unreadable, around.gathers.as_ref()),
        }
        path.truncate(above);
    }
    Ok(around.gathers)
}

/// The path of the current directory. The first name entered is already part of it.
struct Path(Vec<u8>);

impl Path {
    fn push(&mut self, name: &[u8], depth: usize) {
        if depth > 1 {
            self.0.push(b'/');
            self.0.extend_from_slice(name);
        }
    }

    fn pop(&mut self, depth: usize) {
        if depth > 1 {
            let slash = self.0.iter().rposition(|&byte| byte == b'/');
            self.0
                .truncate(slash.expect("a name below the root was pushed after a slash"));
        }
    }
}

fn list_error(path: &[u8], source: std::io::Error) -> ChangesError {
    ChangesError::List {
        path: ByteText::from(path),
        source,
    }
}
