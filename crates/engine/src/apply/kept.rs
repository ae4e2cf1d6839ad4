//! The commits that an agent made itself, checked before one byte of them is written.
//!
//! ```text
//! base ◀─ commit ◀─ commit ◀─ head        each is of this run, and goes back to the base
//!   │        │         │        │
//!  tree ──▶ tree ──▶ tree ──▶ tree        what differs from the first parent follows the rules of
//!                               ‖         patches
//!                       base + patch      to the byte
//! ```
//!
//! INVARIANT: by induction from the base, a commit that passes has no path, link or mode that a
//! patch could not have brought. What stands in the commits between is not in the patch, and
//! nobody has seen it at the review; so who wants them asks for them.

use std::collections::{BTreeMap, BTreeSet};

use ringfence_model::ByteText;

use super::objects::Objects;
use super::sound::{self, SoundCommit, TreeEntry};
use super::{ApplyError, OuterLinks, links};
use crate::base::ListedTree;
use crate::changes::git_directory::{After, WHY, refused_paths};
use crate::changes::names::is_dot_gitmodules;
use crate::commits::Stock;
use crate::git::{Lookup, LookupError};
use crate::patch::why_path_refused;

/// BOUND: commits of one run.
const COMMITS: usize = 1_000;
/// BOUND: paths that differ, in all commits together.
const PATHS: usize = 200_000;
/// BOUND: bytes of objects that are looked at, of the run's and of the repository's.
const READ_BYTES: u64 = 8 << 30;

/// Commits that may be taken over.
#[derive(Debug)]
pub(super) struct Chain {
    stock: Stock,
    /// What must be written, with its kind; what is needed comes first.
    objects: Vec<(&'static str, String)>,
    /// From the oldest on.
    pub commits: Vec<String>,
}

impl Chain {
    pub fn write(mut self, objects: &Objects) -> Result<(), ApplyError> {
        for (kind, oid) in &self.objects {
            let bytes = self.stock.object(kind, oid);
            let bytes = bytes.ok_or_else(|| bad(oid, "it is not there any more"))?;
            objects.write(kind, &bytes)?;
        }
        Ok(())
    }
}

/// What they are held against.
pub(super) struct Ground<'a> {
    /// The commit that the run began from, and its tree.
    pub base: (&'a str, &'a str),
    /// What the patch makes of it.
    pub tree: &'a str,
    pub links: OuterLinks,
}

/// Checks all commits from the base to `head`.
pub(super) fn check(
    stock: Stock,
    head: &str,
    lookup: &mut Lookup,
    ground: &Ground<'_>,
) -> Result<Chain, ApplyError> {
    let mut checking = Checking {
        stock,
        lookup,
        ground,
        objects: Vec::new(),
        taken: BTreeSet::new(),
        seen: BTreeSet::new(),
        blobs: BTreeSet::new(),
        root: String::new(),
        touched: Vec::new(),
        paths: 0,
        read: 0,
    };
    let found = checking.history(head)?;
    let order = order(&found, head, ground.base.0);
    for oid in &order {
        let commit = &found[oid];
        let parent = match &commit.parents[0] {
            first if first == ground.base.0 => ground.base.1,
            first => &found[first].tree,
        };
        checking.root.clone_from(&commit.tree);
        checking
            .tree(Some(parent), &commit.tree, Vec::new())
            .and_then(|()| checking.git_directories(&commit.tree))
            .map_err(|why| bad(oid, why))?;
    }
    if found.get(head).is_none_or(|last| last.tree != ground.tree) {
        return Err(bad(
            head,
            "what it holds is not what the patch makes: something was left uncommitted, is ignored, or stayed behind",
        ));
    }
    let mut objects = checking.objects;
    objects.extend(order.iter().map(|oid| ("commit", oid.clone())));
    Ok(Chain {
        stock: checking.stock,
        objects,
        commits: order,
    })
}

/// Commits after all of their parents.
fn order(found: &BTreeMap<String, SoundCommit>, head: &str, base: &str) -> Vec<String> {
    let mut order = Vec::new();
    let mut done = BTreeSet::from([base.to_owned()]);
    let mut pending = vec![head.to_owned()];
    while let Some(oid) = pending.last().cloned() {
        let waits = found.get(&oid).map_or(&[][..], |commit| &commit.parents);
        let before = pending.len();
        pending.extend(waits.iter().filter(|oid| !done.contains(*oid)).cloned());
        if pending.len() == before {
            pending.pop();
            if done.insert(oid.clone()) {
                order.push(oid);
            }
        }
    }
    order
}

struct Checking<'a> {
    stock: Stock,
    lookup: &'a mut Lookup,
    ground: &'a Ground<'a>,
    objects: Vec<(&'static str, String)>,
    /// What is in `objects`.
    taken: BTreeSet<String>,
    /// Trees that were looked at, with their parent's and where.
    seen: BTreeSet<(Option<String>, String, Vec<u8>)>,
    /// Files that were found to be there.
    blobs: BTreeSet<String>,
    /// The tree of the commit that is looked at.
    root: String,
    /// Files and links that the commit adds or changes.
    touched: Vec<Vec<u8>>,
    paths: usize,
    read: u64,
}

impl Checking<'_> {
    /// All commits back to the base, each by itself.
    fn history(&mut self, head: &str) -> Result<BTreeMap<String, SoundCommit>, ApplyError> {
        let hash = self.lookup.hash();
        let mut found = BTreeMap::new();
        let mut pending = vec![head.to_owned()];
        while let Some(oid) = pending.pop() {
            if oid == self.ground.base.0 || found.contains_key(&oid) {
                continue;
            }
            if found.len() == COMMITS {
                return Err(bad(head, format!("it has more than {COMMITS} before it")));
            }
            let bytes = self.stock.object("commit", &oid);
            let bytes = bytes.ok_or_else(|| {
                bad(
                    &oid,
                    "it was not made in this run, and is not what it began from",
                )
            })?;
            let commit = sound::commit(&bytes, hash).map_err(|why| bad(&oid, why))?;
            if commit.parents.is_empty() {
                return Err(bad(&oid, "it does not go back to what the run began from"));
            }
            pending.extend(commit.parents.iter().cloned());
            found.insert(oid, commit);
        }
        Ok(found)
    }

    /// Holds what differs between two trees against the rules.
    fn tree(&mut self, old: Option<&str>, new: &str, at: Vec<u8>) -> Result<(), String> {
        let mut pending = vec![(old.map(str::to_owned), new.to_owned(), at)];
        while let Some((old, new, at)) = pending.pop() {
            if old.as_ref() == Some(&new) {
                continue;
            }
            if !self.seen.insert((old.clone(), new.clone(), at.clone())) {
                continue;
            }
            let known: BTreeMap<Vec<u8>, TreeEntry> = match &old {
                Some(old) => self.entries(old)?,
                None => Vec::new(),
            }
            .into_iter()
            .map(|entry| (entry.name.clone(), entry))
            .collect();
            let entries = self.entries(&new)?;
            let shown = ByteText::from(&at[..]);
            if !sound::is_in_order(&entries) {
                return Err(format!("the tree of `{shown}` is not in order"));
            }
            if entries.is_empty() && !at.is_empty() {
                return Err(format!("`{shown}` is a directory with nothing in it"));
            }
            self.take("tree", &new);
            for entry in entries {
                let before = known.get(&entry.name);
                if before == Some(&entry) {
                    continue;
                }
                self.paths += 1;
                if self.paths > PATHS {
                    return Err(format!("more than {PATHS} paths change"));
                }
                let mut path = at.clone();
                if !path.is_empty() {
                    path.push(b'/');
                }
                path.extend_from_slice(&entry.name);
                self.entry(&entry, &path)
                    .map_err(|why| format!("`{}`: {why}", ByteText::from(&path[..])))?;
                if entry.mode != sound::DIRECTORY {
                    self.touched.push(path);
                } else {
                    let before = before.filter(|before| before.mode == sound::DIRECTORY);
                    pending.push((before.map(|before| before.oid.clone()), entry.oid, path));
                }
            }
        }
        Ok(())
    }

    /// Holds what a commit adds or changes against the tree that it has then.
    fn git_directories(&mut self, tree: &str) -> Result<(), String> {
        let touched = std::mem::take(&mut self.touched);
        let paths = touched.iter().map(|path| (&path[..], After::Something));
        let hash = self.lookup.hash();
        let mut read = |oid: &str| {
            let oid = oid.to_owned();
            self.object("tree", &oid)
                .ok_or(LookupError::Missing { oid })
        };
        let found = refused_paths(paths, &mut ListedTree::new(tree, hash, &mut read));
        match found.map_err(|error| error.to_string())?.first() {
            Some(path) => Err(format!("`{}`: {WHY}", ByteText::from(*path))),
            None => Ok(()),
        }
    }

    /// One path that is not as in the parent.
    fn entry(&mut self, entry: &TreeEntry, path: &[u8]) -> Result<(), &'static str> {
        if entry.name.contains(&b'/') {
            return Err("a name with a `/` in it");
        }
        if let Some(why) = why_path_refused(path) {
            return Err(why);
        }
        if is_dot_gitmodules(&entry.name) {
            return Err("git reads its submodules there, and nobody has seen what it would read");
        }
        match entry.mode {
            sound::DIRECTORY => Ok(()),
            sound::REGULAR | sound::EXECUTABLE if self.blobs.contains(&entry.oid) => Ok(()),
            sound::REGULAR | sound::EXECUTABLE => {
                self.blob(&entry.oid)?;
                self.blobs.insert(entry.oid.clone());
                Ok(())
            }
            sound::SYMLINK => {
                let target = self.blob(&entry.oid)?;
                if let Some(why) = links::why_no_target(&target) {
                    return Err(why);
                }
                match self.ground.links {
                    OuterLinks::Allowed => Ok(()),
                    OuterLinks::Refused => {
                        let mut link = |at: &[u8]| self.link(at);
                        match links::why_refused_in(path, &target, &mut link) {
                            Some(why) => Err(why),
                            None => Ok(()),
                        }
                    }
                }
            }
            sound::GITLINK => Err("it is a submodule, which no patch changes"),
            _ => Err("it has a mode that git does not write"),
        }
    }

    /// The target of a path of the commit, where it is a link.
    fn link(&mut self, path: &[u8]) -> Option<Vec<u8>> {
        let root = self.root.clone();
        let entry = sound::find(&root, path, &mut |tree| self.entries(tree).ok())?;
        if entry.mode == sound::SYMLINK {
            self.object("blob", &entry.oid)
        } else {
            None
        }
    }

    fn blob(&mut self, oid: &str) -> Result<Vec<u8>, &'static str> {
        self.take("blob", oid);
        self.object("blob", oid)
            .ok_or("its content is not there, or not what its id says")
    }

    fn entries(&mut self, tree: &str) -> Result<Vec<TreeEntry>, String> {
        let hash = self.lookup.hash();
        let body = self.object("tree", tree);
        let entries = body.and_then(|body| sound::entries(&body, hash));
        entries.ok_or_else(|| format!("the tree {tree} is not there, or is none"))
    }

    /// What the run made, else what the repository has.
    fn object(&mut self, kind: &str, oid: &str) -> Option<Vec<u8>> {
        if self.read > READ_BYTES {
            return None;
        }
        let found = if self.stock.has(oid) {
            self.stock.object(kind, oid)
        } else {
            self.lookup.object(kind, oid).ok()
        };
        self.read += found.as_ref().map_or(0, |bytes| bytes.len() as u64);
        found
    }

    /// It will be written, if it is the run's.
    fn take(&mut self, kind: &'static str, oid: &str) {
        if self.stock.has(oid) && self.taken.insert(oid.to_owned()) {
            self.objects.push((kind, oid.to_owned()));
        }
    }
}

fn bad(commit: &str, why: impl Into<String>) -> ApplyError {
    let (commit, why) = (commit.to_owned(), why.into());
    ApplyError::BadCommit { commit, why }
}
