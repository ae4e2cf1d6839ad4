//! What must be done to a folder so that it has what a patch makes of it, and what is in the way.
//!
//! ```text
//! for each change:  is it as in the base?  ─▶ the new content, exactly
//!                   is it new already?     ─▶ nothing
//!                   did it move on?        ─▶ joined line by line, with the base's own bytes
//!                   else                   ─▶ a conflict
//! ```
//!
//! Only looks. What it saw of each path is remembered, and must still be so when it is replaced.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};

use ringfence_model::ByteText;
use ringfence_model::bundle::Step;
use ringfence_model::changes::{FileMode, Side};
use rustix::fs::{Access, AtFlags};

use super::links;
use super::merge::{MERGED_BYTES, merge};
use super::target::Target;
use super::{Applied, ApplyError, Conflict, OuterLinks};
use crate::changes::BlobHasher;
use crate::changes::handle::{self, Meta};
use crate::git::{Index, Lookup, Scratch};
use crate::patch::{Entry, Found, Patch, above, find, hash_of};

/// BOUND: what all files of a patch hold together; they are in memory until they are staged.
pub(super) const HELD_BYTES: u64 = 1 << 30;

/// What was seen at a path that is replaced or removed.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub mode: FileMode,
    /// Git's id of what it holds.
    pub oid: String,
    pub meta: Meta,
}

/// What to do at one path.
#[derive(Debug)]
pub(super) enum What {
    Put {
        mode: FileMode,
        content: Vec<u8>,
        over: Option<Seen>,
    },
    Remove(Seen),
    /// A directory of which nothing is left, where a file comes.
    RemoveDirectory,
}

#[derive(Debug)]
pub(super) struct Op {
    pub path: Vec<u8>,
    pub what: What,
}

/// All that is to be done, in order: what goes, then what comes.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub ops: Vec<Op>,
    pub merged: Vec<ByteText>,
    pub already: Vec<ByteText>,
}

impl Plan {
    pub fn told(&self, target: &Target) -> Applied {
        let mut applied = Applied {
            top: target.top.clone(),
            merged: self.merged.clone(),
            already: self.already.clone(),
            ..Applied::default()
        };
        for op in &self.ops {
            let path = ByteText::from(&op.path[..]);
            match op.what {
                What::Put { .. } => applied.written.push(path),
                What::Remove(_) => applied.removed.push(path),
                What::RemoveDirectory => {}
            }
        }
        applied
    }
}

/// What a path is to hold.
struct Wanted {
    mode: FileMode,
    content: Vec<u8>,
    merged: bool,
}

pub(super) struct Planner<'a> {
    target: &'a Target,
    patch: &'a Patch<'a>,
    links: OuterLinks,
    steps: BTreeMap<&'a [u8], Step<'a>>,
    conflicts: Vec<Conflict>,
    wanted: BTreeMap<&'a [u8], Wanted>,
    /// Bytes of what is wanted, and how many there may be.
    held: u64,
    most: u64,
    seen: BTreeMap<&'a [u8], Seen>,
    already: BTreeSet<&'a [u8]>,
    /// Directories that were looked at, with why nothing can be done in them.
    directories: BTreeMap<Vec<u8>, Option<String>>,
    base: Option<Option<(Lookup, Scratch)>>,
    index: Option<Option<Index>>,
}

impl<'a> Planner<'a> {
    pub fn new(target: &'a Target, patch: &'a Patch<'a>, links: OuterLinks, most: u64) -> Self {
        Self {
            held: 0,
            most,
            target,
            patch,
            links,
            steps: patch.steps(),
            conflicts: Vec::new(),
            wanted: BTreeMap::new(),
            seen: BTreeMap::new(),
            already: BTreeSet::new(),
            directories: BTreeMap::new(),
            base: None,
            index: None,
        }
    }

    pub fn plan(mut self) -> Result<Plan, ApplyError> {
        for entry in &self.patch.entries {
            self.entry(entry)?;
        }
        let ops = self.ops();
        if !self.conflicts.is_empty() {
            self.conflicts.sort_by(|a, b| a.path.cmp(&b.path));
            self.conflicts.dedup_by(|a, b| a.path == b.path);
            return Err(ApplyError::Conflicts(self.conflicts));
        }
        let merged = ops.iter().filter(|(_, merged)| *merged);
        let merged = merged.map(|(op, _)| ByteText::from(&op.path[..])).collect();
        Ok(Plan {
            merged,
            ops: ops.into_iter().map(|(op, _)| op).collect(),
            already: self
                .already
                .iter()
                .map(|path| ByteText::from(*path))
                .collect(),
        })
    }

    fn root(&self) -> BorrowedFd<'a> {
        self.target.root.as_fd()
    }

    fn conflict(&mut self, path: &[u8], why: impl Into<String>) {
        self.conflicts.push(Conflict {
            path: ByteText::from(path),
            why: why.into(),
        });
    }

    /// One change: what its paths hold now, and what they are to hold.
    fn entry(&mut self, entry: &'a Entry<'a>) -> Result<(), ApplyError> {
        let (from, to) = (entry.old_path(), entry.path());
        let old = match &entry.change.old {
            Some(side) => {
                let Some(found) = self.look(from, entry, Part::Old) else {
                    return Ok(());
                };
                if self.is_done(entry, &found) {
                    self.already.insert(to);
                    self.already.insert(from);
                    return Ok(());
                }
                match self.old(from, side, entry, found)? {
                    Some(old) => Some(old),
                    None => return Ok(()),
                }
            }
            None => None,
        };
        let Some(side) = &entry.change.new else {
            return Ok(());
        };
        let made = match old {
            Some(Old::Exact(bytes)) => {
                let content = entry
                    .content(Some(&bytes))?
                    .unwrap_or_default()
                    .into_owned();
                Wanted {
                    mode: side.mode,
                    content,
                    merged: false,
                }
            }
            Some(Old::Merged(wanted)) => wanted,
            None => {
                let content = entry.content(None)?.unwrap_or_default().into_owned();
                Wanted {
                    mode: side.mode,
                    content,
                    merged: false,
                }
            }
        };
        let takes_place = self.steps.get(to).is_some_and(|step| step.old.is_some());
        if !takes_place {
            match self.look(to, entry, Part::New) {
                None => return Ok(()),
                Some(Found::Nothing) => {}
                Some(found) if found.is(side) => {
                    self.already.insert(to);
                    return Ok(());
                }
                Some(Found::Directory) => self.cleared(to),
                Some(_) => self.conflict(to, "something else is there already"),
            }
        }
        self.place(to, &made);
        self.held += made.content.len() as u64;
        if self.held > self.most {
            return Err(ApplyError::TooLarge { most: self.most });
        }
        self.wanted.insert(to, made);
        Ok(())
    }

    /// Whether a change was made here already.
    fn is_done(&self, entry: &Entry<'_>, found: &Found) -> bool {
        let step = self.steps.get(entry.old_path());
        let becomes = step.and_then(|step| step.new);
        let is_new = |found: &Found, (mode, oid): (FileMode, &str)| match found {
            Found::Content {
                mode: is, bytes, ..
            } => *is == mode && id_of(bytes, oid) == oid,
            _ => false,
        };
        // Other files may be below it by now.
        let is_gone = matches!(found, Found::Nothing | Found::Directory);
        match (becomes, &entry.change.new) {
            // It stays at its path, with another content.
            (Some(new), _) => is_new(found, new),
            (None, None) => is_gone,
            // It was moved.
            (None, Some(side)) => {
                is_gone
                    && find(self.root(), entry.path(), side.size).is_ok_and(|found| found.is(side))
            }
        }
    }

    /// What is at the old path of a change; `None` where that does not fit.
    fn old(
        &mut self,
        path: &'a [u8],
        side: &Side,
        entry: &'a Entry<'a>,
        found: Found,
    ) -> Result<Option<Old>, ApplyError> {
        let exact = found.is(side);
        let (mode, bytes, meta) = match found {
            Found::Content { mode, bytes, meta } => (mode, bytes, meta),
            Found::Nothing => {
                let why = self.why_absent(path);
                self.conflict(path, why);
                return Ok(None);
            }
            Found::Directory => {
                self.conflict(path, "it is a directory here");
                return Ok(None);
            }
            Found::Special => {
                self.conflict(path, "it is a special file here");
                return Ok(None);
            }
        };
        if mode != FileMode::Symlink && meta.mode & 0o200 == 0 {
            self.conflict(
                path,
                "it is read-only here: `chmod u+w` lets it be replaced",
            );
            return Ok(None);
        }
        let seen = Seen {
            mode,
            oid: id_of(&bytes, &side.oid),
            meta,
        };
        self.seen.insert(path, seen);
        if exact {
            return Ok(Some(Old::Exact(bytes)));
        }
        let Some(new) = &entry.change.new else {
            self.conflict(path, "it changed here, and the patch removes it");
            return Ok(None);
        };
        match self.merged((side, new), (mode, &bytes), entry) {
            Ok(wanted) => Ok(Some(Old::Merged(wanted))),
            Err(why) => {
                self.conflict(path, why);
                Ok(None)
            }
        }
    }

    /// Joins what was changed here with what the patch changes.
    fn merged(
        &mut self,
        (old, new): (&Side, &Side),
        (mode, ours): (FileMode, &[u8]),
        entry: &Entry<'_>,
    ) -> Result<Wanted, &'static str> {
        if [old.mode, new.mode, mode].contains(&FileMode::Symlink) {
            return Err("it changed here, and the patch changes it too");
        }
        let mode = if old.mode == new.mode { mode } else { new.mode };
        // Only its mode.
        if id_of(ours, &old.oid) == old.oid {
            let content = entry.content(Some(ours)).ok().flatten();
            let content = content.ok_or("the patch does not fit it")?.into_owned();
            return Ok(Wanted {
                mode,
                content,
                merged: true,
            });
        }
        if ours.len() as u64 > MERGED_BYTES || old.size > MERGED_BYTES {
            return Err("it changed here, and is too large to be merged");
        }
        let base = self.base_content(&old.oid);
        let base = base.ok_or(
            "it changed here, and what it was is not in git, so that nothing can be merged",
        )?;
        let theirs = entry.content(Some(&base)).ok().flatten();
        let theirs = theirs.ok_or("the patch does not fit its base")?;
        let content = merge(&base, ours, &theirs);
        let content = content.ok_or("it changed here in the same place, or is not text")?;
        Ok(Wanted {
            mode,
            content,
            merged: true,
        })
    }

    /// What the base held, from the objects of the repository.
    fn base_content(&mut self, oid: &str) -> Option<Vec<u8>> {
        let repository = self.target.repository.as_ref()?;
        let begun = self.base.get_or_insert_with(|| {
            let scratch = Scratch::make().ok()?;
            let lookup = Lookup::begin(repository, scratch.path()).ok()?;
            Some((lookup, scratch))
        });
        let (lookup, _) = begun.as_mut()?;
        lookup.object("blob", oid).ok()
    }

    /// Why a file of the base is not here.
    fn why_absent(&mut self, path: &[u8]) -> &'static str {
        let config = self.target.repository.as_ref().map(|found| &found.config);
        let sparse = config.and_then(|config| config.get_bool("core", "sparsecheckout"));
        let tracked = |index: &Index| {
            let listed = |above: &[u8]| index.get(&[above, b"/"].concat()).is_some();
            index.is_tracked(path) || above(path).any(listed)
        };
        if sparse == Some(true) && self.index().is_some_and(tracked) {
            "it is not checked out here (sparse checkout): apply with `--branch`, or add it to the checkout"
        } else {
            "it was removed here"
        }
    }

    /// Looks at a path; `None` where something on the way to it is a conflict.
    fn look(&mut self, path: &'a [u8], entry: &Entry<'_>, part: Part) -> Option<Found> {
        // What is in the way of what comes goes with this patch.
        let goes = |above: &[u8]| self.steps.get(above).is_some_and(goes);
        let directory = &path[..path.iter().rposition(|&byte| byte == b'/').unwrap_or(0)];
        if let Err(error) = handle::hold_directory(self.root(), directory)
            && handle::is_gone(&error)
            && (part == Part::Old || above(path).any(goes))
        {
            return Some(Found::Nothing);
        }
        if let Some(why) = self.why_closed(path) {
            self.conflict(path, why);
            return None;
        }
        let size = |side: &Option<Side>| side.as_ref().map_or(0, |side| side.size);
        let most = size(&entry.change.old)
            .max(size(&entry.change.new))
            .max(MERGED_BYTES);
        match find(self.root(), path, most) {
            Ok(found) => Some(found),
            Err(error) => {
                self.conflict(path, why_unreadable(&error));
                None
            }
        }
    }

    /// Why nothing can be done in the directory of a path, or in one above it.
    fn why_closed(&mut self, path: &[u8]) -> Option<String> {
        let at = path.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
        let directory = &path[..at];
        if let Some(known) = self.directories.get(directory) {
            return known.clone();
        }
        let above = match directory {
            b"" => None,
            _ => self.why_closed(directory),
        };
        let why = above.or_else(|| self.why_closed_itself(directory));
        self.directories.insert(directory.to_vec(), why.clone());
        why
    }

    fn why_closed_itself(&mut self, directory: &[u8]) -> Option<String> {
        let shown = ByteText::from(directory);
        let opened = handle::hold_directory(self.root(), directory);
        let fd = match opened {
            Ok(fd) => fd,
            // It will be made.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => return Some(format!("`{shown}`: {}", why_unreadable(&error))),
        };
        let writable = rustix::fs::accessat(
            &fd,
            ".",
            Access::WRITE_OK | Access::EXEC_OK,
            AtFlags::EACCESS,
        );
        if let Err(errno) = writable {
            let shown = if directory.is_empty() {
                ByteText::from(&b"."[..])
            } else {
                shown
            };
            return Some(format!(
                "the directory `{shown}` cannot be written: {}",
                io::Error::from(errno)
            ));
        }
        // Its files are another repository's.
        let is_top = !matches!(handle::look(fd.as_fd(), b".git"), Ok(None));
        (is_top && self.is_submodule(directory))
            .then(|| format!("it is in the submodule at `{shown}`"))
    }

    fn is_submodule(&mut self, directory: &[u8]) -> bool {
        let is = |index: &Index| {
            let entry = index.get(directory);
            entry.is_some_and(|entry| entry.is_gitlink())
        };
        !directory.is_empty() && self.index().is_some_and(is)
    }

    /// The user's own index, as it was read once.
    fn index(&mut self) -> Option<&Index> {
        let repository = self.target.repository.as_ref()?;
        let read = || Some(Index::of(repository).ok()??.0);
        self.index.get_or_insert_with(read).as_ref()
    }

    /// A directory where a file comes: all of it must go with this patch.
    fn cleared(&mut self, path: &'a [u8]) {
        let mut pending = vec![path.to_vec()];
        while let Some(directory) = pending.pop() {
            let names = handle::hold_parent(self.root(), &directory, handle::Access::AsItIs)
                .and_then(|(dir, name)| {
                    handle::open_directory(dir.as_fd(), name, handle::Access::AsItIs)
                })
                .and_then(|opened| Ok((handle::names(opened.fd.as_fd(), usize::MAX)?, opened)));
            let (names, opened) = match names {
                Ok(names) => names,
                Err(error) => return self.conflict(path, why_unreadable(&error)),
            };
            for name in names {
                let below = [&directory[..], b"/", &name].concat();
                let is_directory = handle::look(opened.fd.as_fd(), &name)
                    .ok()
                    .flatten()
                    .is_some_and(|meta| meta.kind == handle::Kind::Directory);
                let goes = self.steps.get(&below[..]).is_some_and(goes);
                match (is_directory, goes) {
                    (true, _) => pending.push(below),
                    (false, true) => {}
                    (false, false) => {
                        let below = ByteText::from(&below[..]);
                        return self.conflict(
                            path,
                            format!("it is a directory here, with `{below}` in it"),
                        );
                    }
                }
            }
        }
    }

    /// Whether what is wanted may be at a path.
    fn place(&mut self, path: &[u8], wanted: &Wanted) {
        if wanted.mode != FileMode::Symlink {
            return;
        }
        if let Some(why) = links::why_no_target(&wanted.content) {
            return self.conflict(path, why);
        }
        if self.links == OuterLinks::Refused
            && let Some(why) = links::why_refused(self.root(), path, &wanted.content)
        {
            self.conflict(path, format!("{why}; `--allow-links` lets it be made"));
        }
    }

    /// What goes, the deepest first, then what comes; each with whether it was merged.
    fn ops(&mut self) -> Vec<(Op, bool)> {
        let mut removed = Vec::new();
        let mut cleared = Vec::new();
        let mut put = Vec::new();
        for (&path, step) in &self.steps {
            let op = |what| Op {
                path: path.to_vec(),
                what,
            };
            if self.already.contains(path) {
                continue;
            }
            if let Some(wanted) = self.wanted.remove(path) {
                let over = self.seen.remove(path);
                if over.is_none()
                    && find(self.root(), path, 0)
                        .is_ok_and(|found| matches!(found, Found::Directory))
                {
                    cleared.push((op(What::RemoveDirectory), false));
                }
                let what = What::Put {
                    mode: wanted.mode,
                    content: wanted.content,
                    over,
                };
                put.push((op(what), wanted.merged));
            } else if step.new.is_none()
                && let Some(seen) = self.seen.remove(path)
            {
                removed.push((op(What::Remove(seen)), false));
            }
        }
        removed.reverse();
        removed.into_iter().chain(cleared).chain(put).collect()
    }
}

/// Whether a path is no file afterwards.
fn goes(step: &Step<'_>) -> bool {
    step.old.is_some() && step.new.is_none()
}

/// Which end of a change a path is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Old,
    New,
}

/// What a change is made of.
enum Old {
    Exact(Vec<u8>),
    Merged(Wanted),
}

/// The id of a content, by the same hash as another id.
fn id_of(bytes: &[u8], like: &str) -> String {
    let mut hasher = BlobHasher::new(hash_of(like), bytes.len() as u64);
    hasher.update(bytes);
    hasher.finish()
}

fn why_unreadable(error: &io::Error) -> String {
    match error
        .raw_os_error()
        .map(rustix::io::Errno::from_raw_os_error)
    {
        Some(rustix::io::Errno::LOOP) => {
            "there is a link on the way to it, and nothing is written through one".to_owned()
        }
        Some(rustix::io::Errno::NOTDIR) => {
            "there is a file where a directory of it must be".to_owned()
        }
        Some(rustix::io::Errno::XDEV) => "it is on another file system".to_owned(),
        _ => format!("it cannot be read: {error}"),
    }
}
