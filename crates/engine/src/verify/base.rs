//! Whether the patch makes of the base what the bundle says, where the base is at hand.
//!
//! Nothing is checked out and nothing is written but a git directory of our own that borrows the
//! objects of the repository; the patch is applied in memory, by our own code.

use std::os::fd::AsFd as _;
use std::path::Path;

use ringfence_model::ByteText;
use ringfence_model::bundle::{Base, Manifest, TreeIdentity};
use rustix::fs::OFlags;

use crate::base::{ChangedError, ListedTree, changed_tree};
use crate::changes::git_directory::{Folder, WHY, refused_paths};
use crate::git::{self, Found as Repo, Lookup, LookupError, Scratch};
use crate::patch::{Found, Patch, find, hash_of};

/// What came of it.
#[derive(Debug)]
pub(super) enum Answer {
    Holds(String),
    Fails(String),
    /// The base is not here, or not any more.
    Unknown(String),
}

/// Looks at a folder or repository.
pub(super) fn check(manifest: &Manifest, patch: &Patch<'_>, at: &Path) -> Answer {
    let unknown = |why: String| Answer::Unknown(why);
    let here = at.display();
    if !at.is_dir() {
        return unknown(format!("base not here: there is no folder `{here}`"));
    }
    // A repository may be bare.
    let found = git::find(at).and_then(|found| match found {
        Repo::Nothing => git::find_bare(at),
        found => Ok(found),
    });
    let found = match found {
        Ok(found) => found,
        Err(error) => return unknown(format!("base not readable: {error}")),
    };
    let Base::Commit { commit, tree, .. } = &manifest.base else {
        let top = found.usable().map(|repository| repository.top);
        return in_folder(patch, &top.unwrap_or_else(|| at.to_owned()));
    };
    let TreeIdentity::GitTree { id } = &manifest.tree else {
        return Answer::Fails("a commit with changes is a tree, and none is named".to_owned());
    };
    let repository = match found {
        Repo::Repository(repository) => repository,
        Repo::Refused(refusal) => return unknown(format!("base not readable: {refusal}")),
        Repo::Nothing => return unknown(format!("base not here: `{here}` is no repository")),
    };
    if let Some(why) = &repository.unsupported {
        return unknown(format!("base not readable: {why}"));
    }
    if repository.hash != hash_of(commit) {
        return unknown(format!("base not here: `{here}` has no commit {commit}"));
    }
    let scratch = match Scratch::make() {
        Ok(scratch) => scratch,
        Err(error) => return unknown(format!("no room to look at the base: {error}")),
    };
    let mut lookup = match Lookup::begin(&repository, scratch.path()) {
        Ok(lookup) => lookup,
        Err(error) => return unknown(format!("base not here: {error}")),
    };
    match lookup.tree_of(commit) {
        Ok(found) if found == *tree => {}
        Ok(_) => return Answer::Fails("the commit has another tree".to_owned()),
        Err(_) => return unknown(format!("base not here: `{here}` has no commit {commit}")),
    }
    match in_commit(patch, tree, &mut lookup) {
        Ok(found) if found == *id => {
            Answer::Holds(format!("the patch makes of commit {commit} the tree {id}"))
        }
        Ok(found) => Answer::Fails(format!("the patch makes the tree {found} instead of {id}")),
        Err(Trouble::Fails(why)) => Answer::Fails(why),
        Err(Trouble::Lookup(error)) => unknown(format!("base not readable: {error}")),
    }
}

enum Trouble {
    Fails(String),
    Lookup(LookupError),
}

/// Applies the patch to a commit; gives the id of the tree that comes of it.
fn in_commit(patch: &Patch<'_>, tree: &str, lookup: &mut Lookup) -> Result<String, Trouble> {
    let hash = lookup.hash();
    for entry in patch
        .entries
        .iter()
        .filter(|entry| !entry.is_self_contained())
    {
        let old = match &entry.change.old {
            Some(side) => Some(lookup.object("blob", &side.oid).map_err(Trouble::Lookup)?),
            None => None,
        };
        let made = entry.content(old.as_deref());
        made.map_err(|error| Trouble::Fails(error.to_string()))?;
    }
    let mut trees = |oid: &str| lookup.object("tree", oid);
    let git = refused_paths(
        patch.touched(),
        &mut ListedTree::new(tree, hash, &mut trees),
    );
    if let Some(path) = git.map_err(Trouble::Lookup)?.first() {
        return Err(Trouble::Fails(git_directory_at(path)));
    }
    let grown = changed_tree(tree, &patch.steps(), hash, &mut |oid| {
        lookup.object("tree", oid)
    });
    grown.map_err(|error| match error {
        ChangedError::Lookup(error) => Trouble::Lookup(error),
        differs => Trouble::Fails(format!("the patch is of another base: {differs}")),
    })
}

fn git_directory_at(path: &[u8]) -> String {
    format!("`{}`: {WHY}", ByteText::from(path))
}

/// Applies the patch to what lies in a folder, as far as that is still what it was.
fn in_folder(patch: &Patch<'_>, top: &Path) -> Answer {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let top = match rustix::fs::open(top, flags, rustix::fs::Mode::empty()) {
        Ok(top) => top,
        Err(error) => return Answer::Unknown(format!("base not readable: {error}")),
    };
    let moved = |path: &[u8]| {
        let path = ByteText::from(path);
        Answer::Unknown(format!("the folder moved on: `{path}` is not as it was"))
    };
    match refused_paths(patch.touched(), &mut Folder(top.as_fd())) {
        Ok(paths) => {
            if let Some(path) = paths.first() {
                return Answer::Fails(git_directory_at(path));
            }
        }
        Err((path, error)) => {
            return Answer::Unknown(format!("base not readable: `{path}`: {error}"));
        }
    }
    let steps = patch.steps();
    let mut compared = 0;
    for entry in &patch.entries {
        let from = entry.old_path();
        let Some(side) = &entry.change.old else {
            // Unless it takes the place of something that goes.
            let replaced = steps.get(from).is_some_and(|step| step.old.is_some());
            let there = find(top.as_fd(), from, 0);
            if !replaced && !matches!(there, Ok(Found::Nothing)) {
                return moved(from);
            }
            continue;
        };
        let old = match find(top.as_fd(), from, side.size) {
            Ok(found) if found.is(side) => found,
            _ => return moved(from),
        };
        let Found::Content { bytes, .. } = old else {
            return moved(from);
        };
        if let Err(why) = entry.content(Some(&bytes)) {
            return Answer::Fails(why.to_string());
        }
        compared += 1;
    }
    Answer::Holds(format!(
        "the patch fits the folder, and makes of it what the change set says ({compared} old contents)"
    ))
}
