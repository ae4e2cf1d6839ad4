//! Undoing what was begun, and clearing up what was done.
//!
//! Everything is told from the disk: which file is in the stage and which is in its place. So it
//! does not matter where somebody was killed, and it can be done twice.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::{Path, PathBuf};

use ringfence_model::ByteText;
use rustix::fs::{AtFlags, FlockOperation, RenameFlags};

use super::ApplyError;
use super::execute::{OLD, parent, rename_new};
use super::intent::{Intent, Planned, Print, State};
use super::stage::Stage;
use crate::changes::handle::{self, Meta};
use crate::home::Home;
use crate::ids::RunId;
use crate::journal::{LoadError, load_file};
use crate::lock::FileLock;
use crate::patch::above;

/// BOUND: a million renames with long names.
const INTENT_BYTES: u64 = 1 << 30;

/// What became of one that was cut short.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settled {
    pub run: RunId,
    pub top: PathBuf,
    /// False where it was undone.
    pub finished: bool,
    /// What could not be put back, because somebody changed it since.
    pub left: Vec<String>,
}

pub(super) fn lock_path(home: &Home) -> PathBuf {
    home.applying().join("lock")
}

/// Settles what killed processes left. Does nothing while somebody is at work.
pub fn recover(home: &Home) -> Result<Vec<Settled>, ApplyError> {
    let intents = intents(&home.applying());
    if intents.is_empty() {
        return Ok(Vec::new());
    }
    let Some(_lock) = FileLock::take(&lock_path(home))? else {
        return Ok(Vec::new());
    };
    let mut settled = Vec::new();
    for path in intents {
        let intent = match read(&path) {
            Ok(Some(intent)) => intent,
            Ok(None) => continue,
            Err(source) => return Err(ApplyError::Intent { path, source }),
        };
        settled.extend(settle(home, &intent));
    }
    Ok(settled)
}

fn intents(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(directory) else {
        return Vec::new();
    };
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut paths: Vec<PathBuf> = paths
        .filter(|path| path.extension().is_some_and(|end| end == "json"))
        .collect();
    paths.sort();
    paths
}

fn read(path: &Path) -> io::Result<Option<Intent>> {
    match load_file(path, INTENT_BYTES) {
        Ok(text) => Ok(Some(
            serde_json::from_slice(&text).map_err(io::Error::other)?,
        )),
        // Somebody else was faster.
        Err(LoadError::Read(error)) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(LoadError::Read(error)) => Err(error),
        Err(_) => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// `None` where there is nothing to tell, or nothing can be done now.
fn settle(home: &Home, intent: &Intent) -> Option<Settled> {
    let top = intent.top();
    // A folder that is not there may come back: it is on a disk that is not mounted.
    let root = std::fs::File::open(&top).ok()?;
    if rustix::fs::flock(&root, FlockOperation::NonBlockingLockExclusive).is_err() {
        return None;
    }
    let told = |finished: bool, left: Vec<String>| Settled {
        run: intent.run,
        top: top.clone(),
        finished,
        left,
    };
    let stage = match Stage::open(root.as_fd(), intent.stage()) {
        Ok(stage) => stage,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            intent.forget(home);
            return (intent.state == State::Done).then(|| told(true, Vec::new()));
        }
        Err(_) => return None,
    };
    match intent.state {
        State::Staging => stage.clear(),
        State::Done => clear(root.as_fd(), stage, intent),
        State::Swapping => {
            let left = undo(root.as_fd(), &stage, intent);
            if left.is_empty() {
                stage.clear();
            } else {
                let kept = top.join(String::from_utf8_lossy(&intent.stage()).as_ref());
                let mut left = left;
                left.push(format!("what was there before is in `{}`", kept.display()));
                intent.forget(home);
                return Some(told(false, left));
            }
        }
    }
    intent.forget(home);
    Some(told(intent.state == State::Done, Vec::new()))
}

/// Removes what was replaced, and directories that are empty now.
pub(super) fn clear(root: BorrowedFd<'_>, stage: Stage<'_>, intent: &Intent) {
    stage.clear();
    for op in intent.ops.iter().rev().filter(|op| op.new.is_none()) {
        let mut directories: Vec<&[u8]> = above(op.path.as_bytes()).collect();
        while let Some(directory) = directories.pop() {
            if !remove_directory(root, directory) {
                break;
            }
        }
    }
}

fn remove_directory(root: BorrowedFd<'_>, path: &[u8]) -> bool {
    parent(root, path)
        .is_ok_and(|(dir, name)| rustix::fs::unlinkat(&dir, name, AtFlags::REMOVEDIR).is_ok())
}

/// Puts everything back, the last first; gives what somebody changed since, which is left alone.
pub(super) fn undo(root: BorrowedFd<'_>, stage: &Stage<'_>, intent: &Intent) -> Vec<String> {
    let mut left = Vec::new();
    let mut undo = |comes: bool| {
        let ops = intent.ops.iter().enumerate().rev();
        for (number, op) in ops.filter(|(_, op)| op.new.is_some() == comes) {
            if let Err(why) = undo_one(root, stage.dir.as_fd(), number, op) {
                let path: &ByteText = &op.path;
                left.push(format!("`{path}`: {why}"));
            }
        }
    };
    undo(true);
    // They may be where something was that goes back now.
    for directory in intent.directories.iter().rev() {
        remove_directory(root, directory.as_bytes());
    }
    undo(false);
    left
}

fn undo_one(
    root: BorrowedFd<'_>,
    stage: BorrowedFd<'_>,
    number: usize,
    op: &Planned,
) -> Result<(), String> {
    const CHANGED: &str = "it was changed since";
    let name = number.to_string().into_bytes();
    let aside = [&name[..], OLD].concat();
    let inode = |name: &[u8]| {
        let meta = handle::look(stage, name).ok().flatten();
        meta.map(|meta| meta.identity.inode)
    };
    // What was taken out, whatever it is, and under which name it is in the stage.
    let new = op.new.map(|new| new.inode);
    let out = match (inode(&aside), inode(&name)) {
        (Some(_), _) => Some(&aside),
        (None, staged) if staged.is_some() && staged != new => Some(&name),
        (None, Some(_)) => return Ok(()),
        (None, _) => None,
    };
    let (dir, last) = match parent(root, op.path.as_bytes()) {
        Ok(parent) => parent,
        Err(_) if out.is_none() => return Ok(()),
        Err(error) => return Err(error.to_string()),
    };
    let there = handle::look(dir.as_fd(), last).map_err(|error| error.to_string())?;
    let ours = |meta: &Meta| op.new.is_some_and(|new| new == Print::of(meta));
    let told = |errno: rustix::io::Errno| io::Error::from(errno).to_string();
    match (there, out) {
        (Some(there), Some(out)) if ours(&there) => {
            let swapped =
                rustix::fs::renameat_with(stage, &out[..], &dir, last, RenameFlags::EXCHANGE);
            match swapped {
                Ok(()) => Ok(()),
                // Without an exchange, what came goes first.
                Err(_) => rename_new(dir.as_fd(), last, stage, &[&name[..], b".new"].concat())
                    .and_then(|()| rename_new(stage, out, dir.as_fd(), last))
                    .map_err(told),
            }
        }
        (None, Some(out)) => rename_new(stage, out, dir.as_fd(), last).map_err(told),
        (Some(there), None) if ours(&there) => {
            rename_new(dir.as_fd(), last, stage, &name).map_err(told)
        }
        // Nothing was done, or it is gone by another hand.
        (_, None) if op.new.is_none() => Ok(()),
        (None, None) => Ok(()),
        (Some(_), _) => Err(CHANGED.to_owned()),
    }
}
