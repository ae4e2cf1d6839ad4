//! Writes a plan, or puts everything back.
//!
//! All new content is on the disk under temporary names before the first name changes, so a full
//! disk changes nothing. Only a kill in the middle of the renames leaves a part of a patch.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use ringfence_model::ByteText;
use rustix::fs::AtFlags;

use super::plan::{After, Before, Plan};
use crate::content::{self, Executable, Existing, Staged};
use crate::failure::{Hint as _, Outcome, refused};
use crate::place::{Last, Parents, Place, Root};

pub fn commit(root: &Root, plan: &Plan<'_>) -> Outcome<()> {
    let made = missing_directories(root, plan);
    let Err(failure) = write(root, plan) else {
        prune(root, plan);
        return Ok(());
    };
    match put_back(root, plan, &made) {
        Ok(()) => Err(failure),
        Err(second) => Err(failure.hint(format!("and not all was put back: {}", second.message))),
    }
}

fn write(root: &Root, plan: &Plan<'_>) -> Outcome<()> {
    let written = || {
        let after = plan.after.iter();
        after.filter_map(|(path, after)| Some((path, after.as_ref()?)))
    };
    let place = |path: &[u8]| root.find(&ByteText::from(path), Last::Keep, Parents::Make);
    let mut places: Vec<(Place, &After)> = Vec::new();
    for (path, after) in written().filter(|(path, _)| !plan.is_below_leaving(path)) {
        places.push((place(path)?, after));
    }
    let mut staged = Vec::with_capacity(places.len());
    for (place, after) in &places {
        staged.push(stage(place, after)?);
    }
    for (path, _) in plan.after.iter().filter(|(_, after)| after.is_none()) {
        unlink(root, path)?;
    }
    for staged in staged {
        staged.publish(Existing::Replace)?;
    }
    // These had a file in their way until now.
    for (path, after) in written().filter(|(path, _)| plan.is_below_leaving(path)) {
        let place = place(path)?;
        stage(&place, after)?.publish(Existing::Replace)?;
    }
    Ok(())
}

fn stage<'a>(place: &'a Place, after: &After) -> Outcome<Staged<'a>> {
    Staged::new(place, &after.content, after.mode, after.executable)
}

fn unlink(root: &Root, path: &[u8]) -> Outcome<()> {
    let place = root.find(&ByteText::from(path), Last::Keep, Parents::Existing)?;
    rustix::fs::unlinkat(place.directory(), place.name(), AtFlags::empty())
        .map_err(|errno| refused("remove", &place.path, errno))
}

/// Everything as it was found: first what is new goes, then what was there comes back.
fn put_back(root: &Root, plan: &Plan<'_>, made: &[PathBuf]) -> Outcome<()> {
    let touched = || plan.after.keys().map(|path| (path, plan.before.get(path)));
    for (path, before) in touched() {
        if !matches!(before, Some(Some(_))) {
            // Most often it was not there yet.
            let _ = unlink(root, path);
        }
    }
    for directory in made.iter().rev() {
        remove_empty(root, directory);
    }
    let mut result = Ok(());
    for (path, before) in touched() {
        if let Some(Some(before)) = before {
            result = result.and(restore(root, path, before));
        }
    }
    result
}

fn restore(root: &Root, path: &[u8], before: &Before) -> Outcome<()> {
    let place = root.find(&ByteText::from(path), Last::Keep, Parents::Make)?;
    let same = content::replaceable(&place)? == Some(before.mode)
        && content::read_whole(&place)? == before.content;
    if same {
        return Ok(());
    }
    let staged = Staged::new(&place, &before.content, Some(before.mode), Executable::Keep)?;
    staged.publish(Existing::Replace)
}

/// Directories that the plan needs and that are not there, outer ones first.
fn missing_directories(root: &Root, plan: &Plan<'_>) -> Vec<PathBuf> {
    let mut missing = std::collections::BTreeSet::new();
    for path in plan.after.keys() {
        for directory in parents(path) {
            let name = ByteText::from(directory.as_os_str().as_bytes());
            let found = root.find(&name, Last::Keep, Parents::Existing);
            let is_there = found
                .and_then(|place| place.must_stat())
                .is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir());
            if is_there {
                break;
            }
            missing.insert(directory.to_owned());
        }
    }
    missing.into_iter().collect()
}

/// Takes away directories that a deleted file has left empty, as git does.
fn prune(root: &Root, plan: &Plan<'_>) {
    for (path, _) in plan.after.iter().filter(|(_, after)| after.is_none()) {
        for directory in parents(path) {
            remove_empty(root, directory);
        }
    }
}

/// The directories above a path, the nearest first, without the root.
fn parents(path: &[u8]) -> impl Iterator<Item = &Path> {
    let path = Path::new(OsStr::from_bytes(path));
    path.ancestors()
        .skip(1)
        .filter(|directory| !directory.as_os_str().is_empty())
}

/// A directory with something in it stays.
fn remove_empty(root: &Root, directory: &Path) {
    let name = ByteText::from(directory.as_os_str().as_bytes());
    if let Ok(place) = root.find(&name, Last::Keep, Parents::Existing) {
        let _ = rustix::fs::unlinkat(place.directory(), place.name(), AtFlags::REMOVEDIR);
    }
}
