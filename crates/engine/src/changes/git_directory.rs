//! Directories that git takes for one of its own although they are not called `.git`: bare repositories
//! and linked worktrees. `git status` in one of them heeds its `config`, which names programs.
//!
//! ```text
//! HEAD + objects + refs      `is_git_directory()` of git's setup.c
//! HEAD + commondir           the same: the other two are looked for in another place
//! ```
//!
//! Names decide, contents do not. Git asks for a ref or an id in `HEAD`, libgit2 for any file, and a
//! content can change later. `objects` and `refs` may be links, or files that are executable.
//!
//! What counts is the tree after the patch: some of the names may be there already, and the patch may
//! complete them. Names are compared as a file system sees them that tells neither case nor forms of a
//! letter apart, because the patch goes to such machines, too.
//!
//! HOSTILE: an agent chose the paths of the patch, and patches before this one may have left any name.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};

use ringfence_model::ByteText;
use ringfence_model::changes::{Change, ChangeKind, WhyOmitted};

use super::handle::{self, Access, Kind};
use super::names::folded;
use super::omissions::{Omissions, Tally};
use super::{ChangesError, Sources, leave};

/// Why a patch with such a path is refused.
pub(crate) const WHY: &str = "it is part of what would be a git directory, which no patch changes";

/// What of a directory belongs to git where the patch would make it a git directory. Everything else in
/// it is harmless without these, and crosses.
const LAYOUT: [&[u8]; 16] = [
    b"head",
    b"objects",
    b"refs",
    b"commondir",
    b"gitdir",
    b"config",
    b"config.worktree",
    b"description",
    b"hooks",
    b"info",
    b"logs",
    b"branches",
    b"packed-refs",
    b"reftable",
    b"worktrees",
    b"index",
];

/// What a path holds after a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    Something,
    Nothing,
}

/// A path that a patch changes.
pub(crate) type Touched<'a> = (&'a [u8], After);

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    Directory,
    Other,
}

/// The tree that a patch goes to.
pub(crate) trait Tree {
    type Error;

    /// The entries of a directory whose names are wanted; none where there is no such directory.
    fn entries(
        &mut self,
        directory: &[u8],
        wanted: &dyn Fn(&[u8]) -> bool,
    ) -> Result<Vec<(Vec<u8>, Entry)>, Self::Error>;
}

/// A tree with nothing in it: what a patch makes by itself.
pub(crate) struct Empty;

impl Tree for Empty {
    type Error = std::convert::Infallible;

    fn entries(
        &mut self,
        _: &[u8],
        _: &dyn Fn(&[u8]) -> bool,
    ) -> Result<Vec<(Vec<u8>, Entry)>, Self::Error> {
        Ok(Vec::new())
    }
}

/// A folder, as it is on the disk.
pub(crate) struct Folder<'a>(pub BorrowedFd<'a>);

impl Tree for Folder<'_> {
    type Error = (ByteText, io::Error);

    fn entries(
        &mut self,
        directory: &[u8],
        wanted: &dyn Fn(&[u8]) -> bool,
    ) -> Result<Vec<(Vec<u8>, Entry)>, Self::Error> {
        let list = || -> io::Result<Vec<(Vec<u8>, Entry)>> {
            let held = handle::hold_directory(self.0, directory)?;
            let opened = handle::reopen_directory(held.as_fd(), Access::AsItIs)?;
            let mut entries = Vec::new();
            for name in handle::names(opened.fd.as_fd(), usize::MAX)? {
                if !wanted(&name) {
                    continue;
                }
                match handle::look(opened.fd.as_fd(), &name)?.map(|meta| meta.kind) {
                    None | Some(Kind::Whiteout) => {}
                    Some(Kind::Directory) => entries.push((name, Entry::Directory)),
                    Some(_) => entries.push((name, Entry::Other)),
                }
            }
            Ok(entries)
        };
        match list() {
            Ok(entries) => Ok(entries),
            // Nothing crosses into another file system.
            Err(error)
                if handle::is_gone(&error) || error.kind() == io::ErrorKind::CrossesDevices =>
            {
                Ok(Vec::new())
            }
            Err(error) => Err((ByteText::from(directory), error)),
        }
    }
}

/// The paths of a patch that are part of what would be a git directory, by their places in the list, each
/// with the length of the entry of that directory that it is or is in.
///
/// Of a directory that the patch would make one, these are git's own names. Of one that is there already,
/// as a fixture may be, it is everything.
fn refused<T: Tree>(
    touched: &[Touched<'_>],
    tree: &mut T,
) -> Result<Vec<(usize, usize)>, T::Error> {
    let mut directories = Directories::of(touched);
    directories.judge(touched, tree)?;
    let mut refused = Vec::new();
    for (index, (path, _)) in touched.iter().enumerate() {
        refused.extend(directories.inside(path).map(|end| (index, end)));
    }
    Ok(refused)
}

/// The same, for who refuses the whole patch: the paths alone, each once.
pub(crate) fn refused_paths<'a, T: Tree>(
    touched: impl IntoIterator<Item = Touched<'a>>,
    tree: &mut T,
) -> Result<BTreeSet<&'a [u8]>, T::Error> {
    let touched: Vec<Touched<'a>> = touched.into_iter().collect();
    let found = refused(&touched, tree)?;
    Ok(found.iter().map(|(index, _)| touched[*index].0).collect())
}

/// The names of a directory that make it one of git's.
#[derive(Clone, Copy, Debug, Default)]
struct Parts {
    head: bool,
    objects: bool,
    refs: bool,
    commondir: bool,
}

impl Parts {
    fn add(&mut self, folded: &[u8], entry: Entry) {
        match folded {
            // Git reads it, so that a directory is none.
            b"head" => self.head |= entry == Entry::Other,
            b"objects" => self.objects = true,
            b"refs" => self.refs = true,
            b"commondir" => self.commondir = true,
            _ => {}
        }
    }

    fn is_one(folded: &[u8]) -> bool {
        matches!(folded, b"head" | b"objects" | b"refs" | b"commondir")
    }

    fn are_git(self) -> bool {
        self.head && (self.commondir || (self.objects && self.refs))
    }
}

/// What becomes of a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Becomes {
    #[default]
    Plain,
    /// The patch makes it a git directory.
    Git,
    /// It is one before and after.
    StaysGit,
}

/// A directory that a changed path is in.
#[derive(Debug, Default)]
struct Directory {
    /// By their names as a file system sees them that folds them.
    below: BTreeMap<Vec<u8>, usize>,
    /// What the patch puts there.
    made: Parts,
    becomes: Becomes,
}

/// All directories that changed paths are in; the first is the top.
struct Directories(Vec<Directory>);

impl Directories {
    fn of(touched: &[Touched<'_>]) -> Self {
        let mut all = vec![Directory::default()];
        for (path, after) in touched {
            let mut at = 0;
            for (name, end) in components(path) {
                let folded = folded(name);
                let entry = if end == path.len() {
                    Entry::Other
                } else {
                    Entry::Directory
                };
                if *after == After::Something {
                    all[at].made.add(&folded, entry);
                }
                if entry == Entry::Directory {
                    let next = all.len();
                    at = *all[at].below.entry(folded).or_insert(next);
                    if at == next {
                        all.push(Directory::default());
                    }
                }
            }
        }
        Self(all)
    }

    /// Finds out what becomes of each of them, from the top down.
    fn judge<T: Tree>(&mut self, touched: &[Touched<'_>], tree: &mut T) -> Result<(), T::Error> {
        let paths = |after: After| touched.iter().filter(move |(_, is)| *is == after);
        let stays: HashSet<&[u8]> = paths(After::Something).map(|(path, _)| *path).collect();
        // A path that changes its type goes and comes.
        let goes: HashSet<&[u8]> = paths(After::Nothing)
            .map(|(path, _)| *path)
            .filter(|path| !stays.contains(path))
            .collect();
        // Each with the directories of the tree that have its name on some machine.
        let mut pending = vec![(0, vec![Vec::new()])];
        while let Some((at, same)) = pending.pop() {
            let below = &self.0[at].below;
            let mut before = Parts::default();
            let mut after = self.0[at].made;
            let mut next: BTreeMap<usize, Vec<Vec<u8>>> = BTreeMap::new();
            next.extend(below.values().map(|at| (*at, Vec::new())));
            for directory in same {
                let wanted = |name: &[u8]| {
                    let name = folded(name);
                    Parts::is_one(&name) || below.contains_key(&name)
                };
                for (name, entry) in tree.entries(&directory, &wanted)? {
                    let path = joined(&directory, &name);
                    let name = folded(&name);
                    before.add(&name, entry);
                    // Of a directory something may always be left that no patch names.
                    if entry == Entry::Directory || !goes.contains(&path[..]) {
                        after.add(&name, entry);
                    }
                    if let (Entry::Directory, Some(at)) = (entry, below.get(&name)) {
                        next.entry(*at).or_default().push(path);
                    }
                }
            }
            self.0[at].becomes = match (before.are_git(), after.are_git()) {
                (_, false) => Becomes::Plain,
                (false, true) => Becomes::Git,
                (true, true) => Becomes::StaysGit,
            };
            pending.extend(next);
        }
        Ok(())
    }

    /// Where in a path the entry of a git directory ends that it is or is in.
    fn inside(&self, path: &[u8]) -> Option<usize> {
        let mut at = 0;
        for (name, end) in components(path) {
            let folded = folded(name);
            let directory = &self.0[at];
            match directory.becomes {
                Becomes::StaysGit => return Some(end),
                Becomes::Git if LAYOUT.contains(&&folded[..]) => return Some(end),
                Becomes::Git | Becomes::Plain => {}
            }
            at = *directory.below.get(&folded)?;
        }
        None
    }
}

/// The names of a path, each with where it ends.
fn components(path: &[u8]) -> impl Iterator<Item = (&[u8], usize)> {
    let mut start = 0;
    path.split(|&byte| byte == b'/').map(move |name| {
        let end = start + name.len();
        start = end + 1;
        (name, end)
    })
}

fn joined(directory: &[u8], name: &[u8]) -> Vec<u8> {
    match directory {
        b"" => name.to_vec(),
        _ => [directory, b"/", name].concat(),
    }
}

/// The paths that a change touches.
pub(crate) fn touched_by(change: &Change) -> impl Iterator<Item = Touched<'_>> {
    let from = match &change.kind {
        ChangeKind::Renamed { from } => Some((from.as_bytes(), After::Nothing)),
        _ => None,
    };
    let after = match change.new {
        Some(_) => After::Something,
        None => After::Nothing,
    };
    from.into_iter().chain([(change.path.as_bytes(), after)])
}

/// Leaves behind the changes that are part of what would be a git directory in the folder. True where
/// there were some.
///
/// Of the files in one entry of it, one line tells: there can be very many objects.
pub(super) fn drop_from(
    sources: &Sources,
    changes: &mut Vec<Change>,
    omissions: &mut Omissions,
) -> Result<bool, ChangesError> {
    let each = changes.iter().enumerate();
    let each = each.flat_map(|(at, change)| touched_by(change).map(move |path| (at, path)));
    let (of, paths): (Vec<usize>, Vec<Touched<'_>>) = each.unzip();
    let found = refused(&paths, &mut Folder(sources.base.as_fd()));
    let found = found.map_err(|(path, source)| ChangesError::List { path, source })?;
    let ends: BTreeMap<usize, usize> = found.iter().map(|(at, end)| (of[*at], *end)).collect();
    if ends.is_empty() {
        return Ok(false);
    }
    let mut lines: BTreeMap<Vec<u8>, Tally> = BTreeMap::new();
    let mut index = 0;
    changes.retain(|change| {
        let end = ends.get(&index);
        index += 1;
        let Some(end) = end else {
            return true;
        };
        let why = WhyOmitted::GitDirectory;
        if let ChangeKind::Renamed { .. } = change.kind {
            // Its two paths have not one beginning.
            leave(omissions, change, why);
            return false;
        }
        let path = change.path.as_bytes();
        let side = change.new.as_ref().or(change.old.as_ref());
        let line = lines.entry(path[..*end].to_vec()).or_default();
        line.add(Tally::file(side.map_or(0, |side| side.size)));
        if change.kind == ChangeKind::Deleted {
            omissions.keep(path, why);
        }
        false
    });
    for (path, tally) in lines {
        omissions.add(&path, WhyOmitted::GitDirectory, tally);
    }
    Ok(true)
}

#[cfg(test)]
mod tests;
