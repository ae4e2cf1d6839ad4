//! Doing what a plan says: everything is staged, the intent is written down, and then there are only
//! renames.
//!
//! A file is exchanged with what replaces it in one step, so that its place is never empty, and what
//! came out is looked at: where it is not what was planned for, everything is put back.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;

use ringfence_model::ByteText;
use rustix::fs::{FlockOperation, Mode, RenameFlags};
use rustix::io::Errno;

use super::intent::{Intent, Planned, Print, State};
use super::plan::{Op, Plan, Seen, What};
use super::recover;
use super::stage::Stage;
use super::{Allowed, ApplyError, Conflict};
use crate::changes::BlobHasher;
use crate::changes::handle::{self, Access, Kind};
use crate::fail;
use crate::home::Home;
use crate::ids::RunId;
use crate::lock::FileLock;
use crate::patch::{Found, above, find_in, hash_of};

/// Carries a plan out.
pub(super) fn execute(
    home: &Home,
    run: RunId,
    root: BorrowedFd<'_>,
    top: &Path,
    plan: &Plan,
    allowed: &Allowed<'_>,
) -> Result<(), ApplyError> {
    let _lock = FileLock::wait(&recover::lock_path(home), || {})?;
    // Somebody may have rejected it while others were waited for.
    allowed()?;
    // Another home may be at work in the same folder.
    let locked = rustix::fs::flock(root, FlockOperation::NonBlockingLockExclusive);
    // Not every file system has locks.
    if locked == Err(Errno::WOULDBLOCK) {
        return Err(ApplyError::Busy(top.to_owned()));
    }
    let mut intent = Intent::begin(run, top)?;
    intent.write(home)?;
    let stage = match Stage::make(root, intent.stage()) {
        Ok(stage) => stage,
        Err(source) => {
            intent.forget(home);
            return Err(stage_error(&intent.stage(), source));
        }
    };
    fail::point("apply:begun");
    let prepared = prepare(root, &stage, plan, &mut intent);
    let prepared = prepared.and_then(|()| {
        fail::point("apply:staged");
        // A power cut must not leave names without contents behind.
        rustix::fs::syncfs(&stage.dir)
            .map_err(|errno| stage_error(&intent.stage(), errno.into()))?;
        intent.state = State::Swapping;
        intent.write(home)
    });
    if let Err(error) = prepared {
        stage.clear();
        intent.forget(home);
        return Err(error);
    }
    fail::point("apply:recorded");
    if let Err(error) = swap(root, &stage, plan, &intent) {
        let left = recover::undo(root, &stage, &intent);
        if !left.is_empty() {
            // What was there stays in the stage, and the intent with it.
            return Err(ApplyError::NotUndone(left));
        }
        stage.clear();
        intent.forget(home);
        return Err(error);
    }
    fail::point("apply:swapped");
    // The names are on the disk before the word that they are.
    let synced = rustix::fs::fsync(&stage.dir);
    synced.map_err(|errno| stage_error(&intent.stage(), errno.into()))?;
    intent.state = State::Done;
    intent.write(home)?;
    fail::point("apply:done");
    recover::clear(root, stage, &intent);
    fail::point("apply:cleared");
    intent.forget(home);
    Ok(())
}

/// Makes everything that comes, and writes down what will be renamed.
fn prepare(
    root: BorrowedFd<'_>,
    stage: &Stage<'_>,
    plan: &Plan,
    intent: &mut Intent,
) -> Result<(), ApplyError> {
    check_case(stage, plan)?;
    let mut directories = BTreeSet::new();
    for (number, Op { path, what }) in plan.ops.iter().enumerate() {
        let new = match what {
            What::Put {
                mode,
                content,
                over,
            } => {
                let made = stage.put(number, path, *mode, content, over.as_ref());
                let made = made.map_err(|source| stage_error(path, source))?;
                directories.extend(above(path).map(ByteText::from));
                Some(Print::of(&made))
            }
            What::Remove(_) | What::RemoveDirectory => None,
        };
        let path = ByteText::from(&path[..]);
        intent.ops.push(Planned { path, new });
    }
    // Those that are there, and stay, are not ours to make.
    let goes: BTreeSet<&[u8]> = plan
        .ops
        .iter()
        .filter(|op| matches!(op.what, What::Remove(_)))
        .map(|op| &op.path[..])
        .collect();
    let is_there = |path: &ByteText| {
        let path = path.as_bytes();
        !above(path).any(|above| goes.contains(above))
            && !goes.contains(path)
            && parent(root, path)
                .and_then(|(dir, name)| handle::look(dir.as_fd(), name))
                .is_ok_and(|meta| meta.is_some())
    };
    intent.directories = directories
        .into_iter()
        .filter(|path| !is_there(path))
        .collect();
    Ok(())
}

/// Refuses names that are one on this file system.
fn check_case(stage: &Stage<'_>, plan: &Plan) -> Result<(), ApplyError> {
    if !folds_case(stage).unwrap_or(false) {
        return Ok(());
    }
    let put = plan
        .ops
        .iter()
        .filter(|op| matches!(op.what, What::Put { .. }));
    let conflicts = folding(put.map(|op| &op.path[..]));
    if conflicts.is_empty() {
        Ok(())
    } else {
        Err(ApplyError::Conflicts(conflicts))
    }
}

/// Paths, and directories of them, that are one where case does not count.
fn folding<'p>(paths: impl Iterator<Item = &'p [u8]>) -> Vec<Conflict> {
    let fold = |path: &[u8]| String::from_utf8_lossy(path).to_lowercase();
    let mut known = BTreeMap::new();
    let mut conflicts = Vec::new();
    for path in paths.flat_map(|path| above(path).chain([path])) {
        let other = known.entry(fold(path)).or_insert(path);
        if *other != path {
            let why = format!(
                "it is the same name as `{}` on this file system",
                ByteText::from(*other)
            );
            conflicts.push(Conflict {
                path: ByteText::from(path),
                why,
            });
        }
    }
    conflicts
}

fn folds_case(stage: &Stage<'_>) -> io::Result<bool> {
    rustix::fs::mkdirat(&stage.dir, "fold", Mode::RWXU)?;
    let folds = handle::look(stage.dir.as_fd(), b"FOLD")?.is_some();
    rustix::fs::unlinkat(&stage.dir, "fold", rustix::fs::AtFlags::REMOVEDIR)?;
    Ok(folds)
}

/// All renames, in order.
fn swap(
    root: BorrowedFd<'_>,
    stage: &Stage<'_>,
    plan: &Plan,
    intent: &Intent,
) -> Result<(), ApplyError> {
    let comes = |op: &Op| matches!(op.what, What::Put { .. });
    let first = plan.ops.iter().position(comes).unwrap_or(plan.ops.len());
    for (number, op) in plan.ops.iter().enumerate() {
        if number == first {
            fail::point("apply:removed");
            make_directories(root, &intent.directories)?;
        }
        one(root, stage, number, op)?;
        if number == first {
            fail::point("apply:half");
        }
    }
    Ok(())
}

fn make_directories(root: BorrowedFd<'_>, directories: &[ByteText]) -> Result<(), ApplyError> {
    for directory in directories {
        let path = directory.as_bytes();
        let failed = |source: io::Error| swap_error(path, source);
        let (dir, name) = parent(root, path).map_err(failed)?;
        match rustix::fs::mkdirat(&dir, name, Mode::from_raw_mode(0o777)) {
            Err(Errno::EXIST) => continue,
            made => made.map_err(|errno| failed(errno.into()))?,
        }
        if rustix::process::geteuid().is_root() {
            let above = handle::look_at(dir.as_fd()).map_err(failed)?;
            let owner = Some(rustix::fs::Uid::from_raw(above.owner));
            let group = Some(rustix::fs::Gid::from_raw(above.group));
            let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
            let given = rustix::fs::chownat(&dir, name, owner, group, flags);
            given.map_err(|errno| failed(errno.into()))?;
        }
    }
    Ok(())
}

fn one(root: BorrowedFd<'_>, stage: &Stage<'_>, number: usize, op: &Op) -> Result<(), ApplyError> {
    let path = &op.path[..];
    let failed = |source: io::Error| swap_error(path, source);
    let (dir, name) = parent(root, path).map_err(failed)?;
    let (dir, staged) = (dir.as_fd(), number.to_string());
    match &op.what {
        What::Put { over: None, .. } => {
            let moved = rename_new(stage.dir.as_fd(), staged.as_bytes(), dir, name);
            moved.map_err(|errno| match errno {
                Errno::EXIST => moved_on(path),
                errno => failed(errno.into()),
            })
        }
        What::Put {
            over: Some(seen), ..
        } => {
            let out = exchange(stage.dir.as_fd(), staged.as_bytes(), dir, name);
            let out = out.map_err(|errno| match errno {
                Errno::NOENT => moved_on(path),
                errno => failed(errno.into()),
            })?;
            check(stage, &out, seen, path)
        }
        What::Remove(seen) => {
            let moved = rename_new(dir, name, stage.dir.as_fd(), staged.as_bytes());
            moved.map_err(|errno| match errno {
                Errno::NOENT => moved_on(path),
                errno => failed(errno.into()),
            })?;
            check(stage, staged.as_bytes(), seen, path)
        }
        What::RemoveDirectory => {
            let moved = rename_new(dir, name, stage.dir.as_fd(), staged.as_bytes());
            moved.map_err(|errno| failed(errno.into()))?;
            match is_empty_tree(stage, staged.as_bytes()) {
                Ok(true) => Ok(()),
                _ => Err(moved_on(path)),
            }
        }
    }
}

/// Whether what came out is what was planned for.
fn check(stage: &Stage<'_>, name: &[u8], seen: &Seen, path: &[u8]) -> Result<(), ApplyError> {
    let found = find_in(stage.dir.as_fd(), name, seen.meta.size)
        .map_err(|source| swap_error(path, source))?;
    let same = match &found {
        Found::Content { mode, bytes, meta } => {
            let mut hasher = BlobHasher::new(hash_of(&seen.oid), bytes.len() as u64);
            hasher.update(bytes);
            *mode == seen.mode && meta.identity == seen.meta.identity && hasher.finish() == seen.oid
        }
        _ => false,
    };
    if same { Ok(()) } else { Err(moved_on(path)) }
}

/// A directory with nothing but directories in it.
fn is_empty_tree(stage: &Stage<'_>, name: &[u8]) -> io::Result<bool> {
    let mut pending = vec![name.to_vec()];
    while let Some(path) = pending.pop() {
        let (dir, last) = handle::hold_parent(stage.dir.as_fd(), &path, Access::AsItIs)?;
        let opened = handle::open_directory(dir.as_fd(), last, Access::AsItIs)?;
        for name in handle::names(opened.fd.as_fd(), usize::MAX)? {
            match handle::look(opened.fd.as_fd(), &name)? {
                Some(meta) if meta.kind == Kind::Directory => {
                    pending.push([&path[..], b"/", &name].concat())
                }
                _ => return Ok(false),
            }
        }
    }
    Ok(true)
}

/// The end of the name of what was replaced, where a file system cannot exchange.
pub(super) const OLD: &[u8] = b".old";

/// Puts a staged file over another, which comes out; gives its name in the stage.
pub(super) fn exchange(
    stage: BorrowedFd<'_>,
    staged: &[u8],
    dir: BorrowedFd<'_>,
    name: &[u8],
) -> Result<Vec<u8>, Errno> {
    match rustix::fs::renameat_with(stage, staged, dir, name, RenameFlags::EXCHANGE) {
        Ok(()) => return Ok(staged.to_vec()),
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {}
        Err(errno) => return Err(errno),
    }
    let old = [staged, OLD].concat();
    rustix::fs::renameat(dir, name, stage, &old[..])?;
    rename_new(stage, staged, dir, name)?;
    Ok(old)
}

/// Renames to a name that nobody has.
pub(super) fn rename_new(
    from: BorrowedFd<'_>,
    old: &[u8],
    to: BorrowedFd<'_>,
    new: &[u8],
) -> Result<(), Errno> {
    match rustix::fs::renameat_with(from, old, to, new, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {}
        other => return other,
    }
    // The best that such a file system has.
    match rustix::fs::statat(to, new, rustix::fs::AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => rustix::fs::renameat(from, old, to, new),
        Ok(_) => Err(Errno::EXIST),
        Err(errno) => Err(errno),
    }
}

/// The directory of a path, and its last name.
pub(super) fn parent<'p>(
    root: BorrowedFd<'_>,
    path: &'p [u8],
) -> io::Result<(std::os::fd::OwnedFd, &'p [u8])> {
    handle::hold_parent(root, path, Access::AsItIs)
}

fn moved_on(path: &[u8]) -> ApplyError {
    ApplyError::Conflicts(vec![Conflict {
        path: ByteText::from(path),
        why: "it changed while the patch was being applied".to_owned(),
    }])
}

fn stage_error(path: &[u8], source: io::Error) -> ApplyError {
    let path = ByteText::from(path);
    ApplyError::Stage { path, source }
}

fn swap_error(path: &[u8], source: io::Error) -> ApplyError {
    let path = ByteText::from(path);
    ApplyError::Swap { path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// patch-013: which names are one where case does not count. No file system of the test
    /// machines is such a one.
    #[test]
    fn names_that_fold_together_are_found() {
        for (paths, folding_one) in [
            (&["a", "b", "ab"][..], None),
            (&["README.md", "readme.md"], Some("readme.md")),
            (&["src/a", "SRC/b"], Some("SRC")),
            (&["src/a", "src/b"], None),
            (&["\u{c9}t\u{e9}", "\u{e9}t\u{e9}"], Some("\u{e9}t\u{e9}")),
            (&["d/x", "D"], Some("D")),
        ] {
            let found = folding(paths.iter().map(|path| path.as_bytes()));
            let found = found.first().map(|conflict| conflict.path.to_text());
            assert_eq!(found.as_deref(), folding_one, "{paths:?}");
        }
    }
}
