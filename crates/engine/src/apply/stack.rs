//! Several patches on top of one commit, one after the other, in a tree that is nowhere on the disk.
//!
//! ```text
//! base commit ─ fit ─▶ step ─ take ─▶ tip ─ fit ─▶ clashes        left out, and the next one goes on
//!                                       └─ fit ─▶ step ─ take ─▶ tip ─ write ─▶ commits, then refs
//! ```
//!
//! A patch that its base has moved on from is joined line by line, as in a folder. What does not fit
//! is named with whoever was there before.
//!
//! INVARIANT: every rule about paths and links is held against the tip, never against the commit
//! that a run began from: an earlier patch may have put a link where a later one wants a directory.
//! Nothing is written before [`Stack::write`], and then refs come last.

mod place;
mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use ringfence_model::ByteText;
use ringfence_model::bundle::{self, Blob};
use ringfence_model::changes::{FileMode, ObjectHash, Side};
use serde::Serialize;

use super::branch::{NAMED, check_links, parent};
use super::merge::{Apart, MERGED_BYTES, joined};
use super::objects::write_error;
use super::plan::HELD_BYTES;
use super::sound::{self, TreeEntry};
use super::target::Target;
use super::{ApplyError, Bundle, Conflict, OuterLinks, git_directories};
use crate::base::{ChangedError, grown_tree, object_id};
use crate::changes::git_directory::{After, WHY};
use crate::git::{Lookup, LookupError, Repository, Scratch};
use crate::patch::{Entry, Laid, LaidFile, Patch, above};

pub use write::Placed;
pub(crate) use write::Wording;

/// As very old versions of git wrote it.
const REGULAR_FOR_GROUP: u32 = 0o100664;

/// Where two patches want different things.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Clash {
    pub path: ByteText,
    pub why: String,
    /// Where they meet, in the file as the run found it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lines: Option<Lines>,
    /// Numbers of the tasks that changed this before; none: the commit below did.
    pub with: Vec<u32>,
}

/// Lines from 1, both included; the last may be one less than the first, for what both put between.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Lines {
    pub first: usize,
    pub last: usize,
}

/// What comes of a patch on the tip.
pub(crate) enum Fit {
    Step(Step),
    Clashes(Vec<Clash>),
}

/// A patch that fits the tip.
#[derive(Debug)]
pub(crate) struct Step {
    number: u32,
    pub tree: String,
    /// What the tip has afterwards, where it differs.
    changed: BTreeMap<Vec<u8>, Option<(FileMode, String)>>,
    /// Old and new path of each change.
    pub pairs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Joined with what was changed before.
    pub merged: Vec<ByteText>,
    blobs: BTreeMap<String, Arc<[u8]>>,
    trees: BTreeMap<String, Vec<u8>>,
}

impl Step {
    /// Whether the tip has all of it already.
    pub fn is_nothing(&self) -> bool {
        self.changed.is_empty()
    }
}

/// The commit that all stands on, and what was put on top.
pub(crate) struct Stack {
    target: Target,
    repository: Repository,
    lookup: Lookup,
    _scratch: Scratch,
    pub commit: String,
    base_tree: String,
    tip: String,
    links: OuterLinks,
    blobs: BTreeMap<String, Arc<[u8]>>,
    trees: BTreeMap<String, Vec<u8>>,
    held: u64,
    /// What differs from the base commit.
    differs: BTreeMap<Vec<u8>, Option<(FileMode, String)>>,
    /// Who changed a path, and what it was then.
    by: BTreeMap<Vec<u8>, Vec<(u32, Option<String>)>>,
}

impl Stack {
    /// Begins at a commit: what was typed, else the one that the first run began from.
    pub fn begin(
        first: &Bundle,
        into: Option<&Path>,
        base: Option<&str>,
        links: OuterLinks,
    ) -> Result<Self, ApplyError> {
        let target = Target::of_bundle(first, into)?;
        let Some(repository) = target.repository.clone() else {
            return Err(ApplyError::NoRepository(target.top));
        };
        if let Some(why) = &repository.unsupported {
            let (path, why) = (target.top.clone(), why.clone());
            return Err(ApplyError::Unsupported { path, why });
        }
        let commit = parent(first, &repository, base)?;
        let scratch = Scratch::make();
        let scratch = scratch.map_err(|source| write_error(&repository.common_dir, source))?;
        let mut lookup = Lookup::begin(&repository, scratch.path())?;
        let tree = lookup.tree_of(&commit);
        let tree = tree.map_err(|_| ApplyError::NoSuchCommit {
            name: commit.clone(),
            path: repository.top.clone(),
        })?;
        Ok(Self {
            target,
            repository,
            lookup,
            _scratch: scratch,
            commit,
            base_tree: tree.clone(),
            tip: tree,
            links,
            blobs: BTreeMap::new(),
            trees: BTreeMap::new(),
            held: 0,
            differs: BTreeMap::new(),
            by: BTreeMap::new(),
        })
    }

    /// The top of the repository's working tree.
    pub fn top(&self) -> &Path {
        &self.target.top
    }

    pub fn hash(&self) -> ObjectHash {
        self.repository.hash
    }

    /// Looks whether a patch fits the tip.
    pub fn fit(&mut self, number: u32, bundle: &Bundle) -> Result<Fit, ApplyError> {
        let patch = bundle.patch()?;
        let mut place = place::Place::new(self, number, &patch);
        for entry in &patch.entries {
            place.entry(entry)?;
        }
        let (mut step, mut clashes) = place.end();
        let hash = self.hash();
        let mut read =
            |kind: &str, oid: &str| read(&mut self.lookup, &self.blobs, &self.trees, kind, oid);
        match check_links(&patch, (&mut read, hash), &self.tip, self.links) {
            Ok(()) => {}
            Err(ApplyError::Conflicts(found)) => {
                let known = |clash: &Conflict| clashes.iter().any(|own| own.path == clash.path);
                let found: Vec<Conflict> = found.into_iter().filter(|own| !known(own)).collect();
                clashes.extend(found.into_iter().map(|Conflict { path, why }| Clash {
                    with: self.who(path.as_bytes()),
                    path,
                    why,
                    lines: None,
                }));
            }
            Err(error) => return Err(error),
        }
        self.refuse_git_directories(&step, &mut clashes)?;
        self.grow(&mut step, &mut clashes)?;
        if clashes.is_empty() {
            Ok(Fit::Step(step))
        } else {
            clashes.sort_by(|a, b| a.path.cmp(&b.path));
            Ok(Fit::Clashes(clashes))
        }
    }

    /// Adds what of a step is part of what would be a git directory on the tip, which another patch may
    /// have begun.
    fn refuse_git_directories(
        &mut self,
        step: &Step,
        clashes: &mut Vec<Clash>,
    ) -> Result<(), ApplyError> {
        let after = |new: &Option<_>| match new {
            Some(_) => After::Something,
            None => After::Nothing,
        };
        let touched = step.changed.iter();
        let touched = touched.map(|(path, new)| (&path[..], after(new)));
        let hash = self.hash();
        let mut tree = |oid: &str| read(&mut self.lookup, &self.blobs, &self.trees, "tree", oid);
        let found = git_directories::refused_in(touched, &self.tip, hash, &mut tree)?;
        clashes.extend(found.into_iter().take(NAMED).map(|path| Clash {
            path: ByteText::from(path),
            why: WHY.to_owned(),
            lines: None,
            with: self.who(path),
        }));
        Ok(())
    }

    /// The tree of a step; paths for which there is no room are added to the clashes.
    fn grow(&mut self, step: &mut Step, clashes: &mut Vec<Clash>) -> Result<(), ApplyError> {
        let hash = self.hash();
        let mut sides = BTreeMap::new();
        for (path, new) in &step.changed {
            sides.insert(path.clone(), (self.blob_at(path), new.clone()));
        }
        let mut steps: BTreeMap<&[u8], bundle::Step<'_>> = BTreeMap::new();
        for (path, (old, new)) in &sides {
            let (old, new) = (as_blob(old), as_blob(new));
            steps.insert(path, bundle::Step { old, new });
        }
        loop {
            let mut trees = BTreeMap::new();
            let (lookup, blobs, own) = (&mut self.lookup, &self.blobs, &self.trees);
            let mut get = |oid: &str| read(lookup, blobs, own, "tree", oid);
            let mut emit = |id: &[u8], body: &[u8]| {
                trees.insert(ringfence_model::hex(id), body.to_vec());
            };
            match grown_tree(&self.tip, &steps, hash, &mut get, &mut emit) {
                Ok(tree) => {
                    step.tree = tree;
                    step.trees = trees;
                    return Ok(());
                }
                Err(ChangedError::Lookup(error)) => return Err(error.into()),
                Err(ChangedError::Differs(path)) => {
                    let known = steps.remove(path.as_bytes());
                    if !clashes.iter().any(|own| own.path == path) {
                        clashes.push(Clash {
                            with: self.who(path.as_bytes()),
                            path,
                            why: "something else is in its place, or above it".to_owned(),
                            lines: None,
                        });
                    }
                    if known.is_none() || clashes.len() >= NAMED {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Puts a step on top.
    pub fn take(&mut self, step: Step) -> Result<(), ApplyError> {
        let Step {
            number,
            tree,
            changed,
            blobs,
            trees,
            ..
        } = step;
        self.held += blobs.values().map(|blob| blob.len() as u64).sum::<u64>();
        if self.held > HELD_BYTES {
            return Err(ApplyError::TooLarge { most: HELD_BYTES });
        }
        self.blobs.extend(blobs);
        self.trees.extend(trees);
        self.tip = tree;
        for (path, new) in changed {
            let oid = new.as_ref().map(|(_, oid)| oid.clone());
            let (base, hash) = (self.base_tree.clone(), self.hash());
            let was = find(
                &mut self.lookup,
                &self.blobs,
                &self.trees,
                (&base, hash),
                &path,
            );
            if was.as_ref().and_then(blob_of) == new {
                self.differs.remove(&path)
            } else {
                self.differs.insert(path.clone(), new)
            };
            self.by.entry(path).or_default().push((number, oid));
        }
        Ok(())
    }

    /// What differs from the base commit, with all that it holds; with a step on top where there is
    /// one.
    pub fn laid(&mut self, step: Option<&Step>) -> Result<Laid, ApplyError> {
        let mut sides = self.differs.clone();
        for (path, new) in step.iter().flat_map(|step| &step.changed) {
            let (base, hash) = (self.base_tree.clone(), self.hash());
            let was = find(
                &mut self.lookup,
                &self.blobs,
                &self.trees,
                (&base, hash),
                path,
            );
            if was.as_ref().and_then(blob_of) == *new {
                sides.remove(path)
            } else {
                sides.insert(path.clone(), new.clone())
            };
        }
        let mut laid = Laid::default();
        for (path, side) in sides {
            let file = match side {
                None => None,
                Some((mode, oid)) => {
                    let own = step.and_then(|step| step.blobs.get(&oid)).cloned();
                    let content = match own {
                        Some(content) => content,
                        None => self.blob(&oid)?,
                    };
                    Some(LaidFile { mode, oid, content })
                }
            };
            laid.0.insert(path, file);
        }
        Ok(laid)
    }

    fn blob(&mut self, oid: &str) -> Result<Arc<[u8]>, LookupError> {
        match self.blobs.get(oid) {
            Some(blob) => Ok(blob.clone()),
            None => Ok(Arc::from(self.lookup.object("blob", oid)?)),
        }
    }

    /// What the tip has at a path.
    fn at(&mut self, path: &[u8]) -> Option<TreeEntry> {
        let tip = (&self.tip[..], self.repository.hash);
        find(&mut self.lookup, &self.blobs, &self.trees, tip, path)
    }

    fn blob_at(&mut self, path: &[u8]) -> Option<(FileMode, String)> {
        self.at(path).as_ref().and_then(blob_of)
    }

    /// Who changed a path before, or something above or below it.
    fn who(&self, path: &[u8]) -> Vec<u32> {
        let mut who: BTreeSet<u32> = BTreeSet::new();
        let own = [path].into_iter().chain(above(path));
        let own = own.filter_map(|path| self.by.get(path)).flatten();
        who.extend(own.map(|(number, _)| number));
        let inside = [path, b"/"].concat();
        let below = self.by.range(inside.clone()..);
        let below = below.take_while(|(path, _)| path.starts_with(&inside));
        who.extend(below.flat_map(|(_, who)| who).map(|(number, _)| number));
        who.into_iter().collect()
    }

    /// Who was the first to change the lines that a patch changes as well.
    fn who_met(&mut self, path: &[u8], base: &[u8], theirs: &[u8]) -> Option<u32> {
        for (number, oid) in self.by.get(path).cloned().unwrap_or_default() {
            let then = oid.and_then(|oid| self.blob(&oid).ok());
            if then.is_some_and(|then| joined(base, &then, theirs).is_err()) {
                return Some(number);
            }
        }
        None
    }
}

/// An object that is ours, or the repository's.
fn read(
    lookup: &mut Lookup,
    blobs: &BTreeMap<String, Arc<[u8]>>,
    trees: &BTreeMap<String, Vec<u8>>,
    kind: &str,
    oid: &str,
) -> Result<Vec<u8>, LookupError> {
    let own = match kind {
        "tree" => trees.get(oid).cloned(),
        "blob" => blobs.get(oid).map(|blob| blob.to_vec()),
        _ => None,
    };
    own.map_or_else(|| lookup.object(kind, oid), Ok)
}

fn find(
    lookup: &mut Lookup,
    blobs: &BTreeMap<String, Arc<[u8]>>,
    trees: &BTreeMap<String, Vec<u8>>,
    (tree, hash): (&str, ObjectHash),
    path: &[u8],
) -> Option<TreeEntry> {
    sound::find(tree, path, &mut |tree| {
        let body = read(lookup, blobs, trees, "tree", tree).ok()?;
        sound::entries(&body, hash)
    })
}

/// A file or a link; `None` for what is neither.
fn blob_of(entry: &TreeEntry) -> Option<(FileMode, String)> {
    let mode = match entry.mode {
        sound::REGULAR | REGULAR_FOR_GROUP => FileMode::Regular,
        sound::EXECUTABLE => FileMode::Executable,
        sound::SYMLINK => FileMode::Symlink,
        _ => return None,
    };
    Some((mode, entry.oid.clone()))
}

fn as_blob(side: &Option<(FileMode, String)>) -> Option<Blob<'_>> {
    side.as_ref().map(|(mode, oid)| (*mode, &oid[..]))
}
