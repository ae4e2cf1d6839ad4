//! Whether the patch makes of the base what the bundle says, where the base is at hand.
//!
//! Nothing is checked out and nothing is written but a git directory of our own that borrows the
//! objects of the repository; the patch is applied in memory, by our own code.

use std::ffi::OsStr;
use std::fs;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use ringfence_model::bundle::{Base, Manifest, TreeIdentity, steps};
use ringfence_model::changes::{Change, ChangeKind, FileMode, ObjectHash};
use rustix::fs::{AtFlags, FileType, OFlags};

use super::content;
use super::patch::FilePatch;
use crate::base::{ChangedError, changed_tree};
use crate::git::{self, Lookup, LookupError, open_beneath};
use crate::ids::RunId;

/// What came of it.
#[derive(Debug)]
pub(super) enum Answer {
    Holds(String),
    Fails(String),
    /// The base is not here, or not any more.
    Unknown(String),
}

/// A patch with the changes that it stands for.
pub(super) struct Patched<'a> {
    pub files: &'a [FilePatch<'a>],
    pub changes: &'a [Change],
}

/// Looks at a folder or repository.
pub(super) fn check(manifest: &Manifest, patched: &Patched<'_>, at: &Path) -> Answer {
    let unknown = |why: String| Answer::Unknown(why);
    let here = at.display();
    if !at.is_dir() {
        return unknown(format!("base not here: there is no folder `{here}`"));
    }
    let repository = match git::discover(at) {
        Ok(repository) => repository,
        Err(error) => return unknown(format!("base not readable: {error}")),
    };
    let Base::Commit { commit, tree, .. } = &manifest.base else {
        let top = repository.map_or_else(|| at.to_owned(), |repository| repository.top);
        return in_folder(patched, &top);
    };
    let TreeIdentity::GitTree { id } = &manifest.tree else {
        return Answer::Fails("a commit with changes is a tree, and none is named".to_owned());
    };
    let git_dir = match repository {
        Some(repository) if repository.unsupported.is_some() => {
            let why = repository.unsupported.unwrap_or_default();
            return unknown(format!("base not readable: {why}"));
        }
        Some(repository) => repository.common_dir,
        // It may be bare.
        None => at.to_owned(),
    };
    let hash = hash_of(commit);
    let scratch = match Scratch::make() {
        Ok(scratch) => scratch,
        Err(error) => return unknown(format!("no room to look at the base: {error}")),
    };
    let objects = git_dir.join("objects");
    let mut lookup = match Lookup::begin(&objects, hash, &scratch.0) {
        Ok(lookup) => lookup,
        Err(error) => return unknown(format!("base not here: {error}")),
    };
    match lookup.tree_of(commit) {
        Ok(found) if found == *tree => {}
        Ok(_) => return Answer::Fails("the commit has another tree".to_owned()),
        Err(_) => return unknown(format!("base not here: `{here}` has no commit {commit}")),
    }
    match in_commit(patched, tree, &mut lookup) {
        Ok(found) if found == *id => {
            Answer::Holds(format!("the patch makes of commit {commit} the tree {id}"))
        }
        Ok(found) => Answer::Fails(format!("the patch makes the tree {found} instead of {id}")),
        Err(Trouble::Fails(why)) => Answer::Fails(why),
        Err(Trouble::Lookup(error)) => unknown(format!("base not readable: {error}")),
    }
}

/// The hash of a repository, by the length of its ids.
pub(super) fn hash_of(oid: &str) -> ObjectHash {
    match oid.len() {
        64 => ObjectHash::Sha256,
        _ => ObjectHash::Sha1,
    }
}

enum Trouble {
    Fails(String),
    Lookup(LookupError),
}

/// Applies the patch to a commit; gives the id of the tree that comes of it.
fn in_commit(patched: &Patched<'_>, tree: &str, lookup: &mut Lookup) -> Result<String, Trouble> {
    let hash = lookup.hash();
    for (file, change) in patched.files.iter().zip(patched.changes) {
        if content::is_self_contained(file) {
            continue;
        }
        let old = match &change.old {
            Some(side) => Some(lookup.object("blob", &side.oid).map_err(Trouble::Lookup)?),
            None => None,
        };
        content::check(file, change, old.as_deref(), hash).map_err(Trouble::Fails)?;
    }
    let steps = steps(patched.changes);
    let steps = steps.ok_or_else(|| Trouble::Fails("a path changes twice".to_owned()))?;
    let grown = changed_tree(tree, &steps, hash, &mut |oid| lookup.object("tree", oid));
    grown.map_err(|error| match error {
        ChangedError::Lookup(error) => Trouble::Lookup(error),
        differs => Trouble::Fails(format!("the patch is of another base: {differs}")),
    })
}

/// Applies the patch to what lies in a folder, as far as that is still what it was.
fn in_folder(patched: &Patched<'_>, top: &Path) -> Answer {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let top = match rustix::fs::open(top, flags, rustix::fs::Mode::empty()) {
        Ok(top) => top,
        Err(error) => return Answer::Unknown(format!("base not readable: {error}")),
    };
    let moved = |path: &ringfence_model::ByteText| {
        Answer::Unknown(format!("the folder moved on: `{path}` is not as it was"))
    };
    let mut compared = 0;
    for (file, change) in patched.files.iter().zip(patched.changes) {
        let from = match &change.kind {
            ChangeKind::Renamed { from } => from,
            _ => &change.path,
        };
        let Some(side) = &change.old else {
            // Unless it takes the place of something that goes.
            let replaced = || {
                let goes = |other: &Change| other.old.is_some() && other.path == change.path;
                patched.changes.iter().any(goes)
            };
            if exists(&top, from.as_bytes()) && !replaced() {
                return moved(from);
            }
            continue;
        };
        let hash = hash_of(&side.oid);
        let old = match read(&top, from.as_bytes(), side.size) {
            Some((mode, bytes)) if mode == side.mode => bytes,
            _ => return moved(from),
        };
        if !content::is_content(&old, side, hash) {
            return moved(from);
        }
        if let Err(why) = content::check(file, change, Some(&old), hash) {
            return Answer::Fails(why);
        }
        compared += 1;
    }
    Answer::Holds(format!(
        "the patch fits the folder, and makes of it what the change set says ({compared} old contents)"
    ))
}

fn exists(top: &OwnedFd, path: &[u8]) -> bool {
    open_beneath(top, relative(path), OFlags::PATH).is_ok()
}

/// A plain file or link of a length, with its mode.
fn read(top: &OwnedFd, path: &[u8], size: u64) -> Option<(FileMode, Vec<u8>)> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let fd = match open_beneath(top, relative(path), flags) {
        Ok(fd) => fd,
        Err(rustix::io::Errno::LOOP) => {
            let link = open_beneath(top, relative(path), OFlags::PATH).ok()?;
            let stat = rustix::fs::fstat(&link).ok()?;
            if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
                return None;
            }
            let target = rustix::fs::readlinkat(&link, "", Vec::new()).ok()?;
            return Some((FileMode::Symlink, target.into_bytes()));
        }
        Err(_) => return None,
    };
    let stat = rustix::fs::statat(&fd, "", AtFlags::EMPTY_PATH).ok()?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return None;
    }
    let mode = match stat.st_mode & 0o100 {
        0 => FileMode::Regular,
        _ => FileMode::Executable,
    };
    let mut bytes = Vec::new();
    let file = fs::File::from(fd);
    file.take(size.checked_add(1)?)
        .read_to_end(&mut bytes)
        .ok()?;
    Some((mode, bytes))
}

fn relative(path: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(path))
}

/// A directory of our own that is gone afterwards.
struct Scratch(PathBuf);

impl Scratch {
    fn make() -> std::io::Result<Self> {
        let name = RunId::random().map_err(std::io::Error::other)?;
        let path = std::env::temp_dir().join(format!("ringfence-{name}"));
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What is left of it means nothing.
        let _ = fs::remove_dir_all(&self.0);
    }
}
