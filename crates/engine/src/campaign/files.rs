//! The files of a folder as a run sees them, as far as tasks can have them.
//!
//! Tracked files and those that git does not ignore, as they are now; without git's own directory,
//! without what the policy hides, without links and special files.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::os::fd::OwnedFd;

use ringfence_model::ByteText;
use ringfence_model::policy::glob::Globs;
use ringfence_model::policy::{Files, Line};
use ringfence_model::split::When;
use ringfence_model::split::select::Selection;
use rustix::fs::FileType;
use serde::Serialize;

use super::CampaignError;
use crate::base::files::{list, open_file};
use crate::error::Error;
use crate::files::FileRules;
use crate::git::{IgnoreRules, Repository};
use crate::workspace::{Folder, is_hidden, scan};

/// BOUND: bytes of a file that are looked at for content and lines. What is larger is data.
const MAX_READ: usize = 16 << 20;
/// BOUND: paths that are named for each reason; the rest is counted.
const NAMED: usize = 100;

/// Why a file that a plan's patterns name is in no task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// The policy hides it.
    Hidden,
    /// Git ignores it.
    Ignored,
    /// A link, or no file at all.
    Special,
    /// It belongs to the plan itself.
    Plan,
    /// The expression is not in it.
    NoMatch,
    /// It is too large to be searched, or cannot be read.
    Unread,
    /// The split's command put it into no group.
    NoGroup,
}

impl Why {
    /// For a person.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Hidden => "hidden by the policy",
            Self::Ignored => "ignored by git",
            Self::Special => "a link or no regular file",
            Self::Plan => "part of the plan",
            Self::NoMatch => "without a match",
            Self::Unread => "too large or not readable",
            Self::NoGroup => "in no group of the command",
        }
    }
}

/// Files that are left out for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    pub why: Why,
    pub count: usize,
    /// Some of them.
    pub files: Vec<ByteText>,
}

/// What is in a folder.
#[derive(Debug)]
pub(super) struct Listing {
    root: OwnedFd,
    /// With their sizes.
    files: BTreeMap<ByteText, u64>,
    /// What could be named and cannot be had.
    others: BTreeMap<ByteText, Why>,
    left: RefCell<BTreeMap<Why, BTreeSet<ByteText>>>,
    ignored_directories: usize,
}

impl Listing {
    pub fn of(
        folder: &Folder,
        repository: Option<&Repository>,
        files: &Files,
    ) -> Result<Self, Error> {
        let rules = FileRules::of(files)?;
        let hidden = rules.hidden();
        // The folder is its own upper layer: nothing was written over it.
        let ignore = IgnoreRules::load(repository, folder.fd(), folder.fd())?;
        let ignore = RefCell::new(ignore);
        let is_ignored = |path: &[u8], is_dir| ignore.borrow_mut().is_ignored(path, is_dir);
        let closed = |path: &[u8]| is_hidden(hidden, path) || is_ignored(path, true);
        let found = list(folder.path(), closed)?;
        let aliases: BTreeSet<ByteText> =
            scan::aliases(folder.path(), hidden).into_iter().collect();
        let mut listing = Self {
            root: folder
                .fd()
                .try_clone_to_owned()
                .map_err(|source| Error::OpenFolder {
                    path: folder.path().to_owned(),
                    source,
                })?,
            files: BTreeMap::new(),
            others: BTreeMap::new(),
            left: RefCell::default(),
            ignored_directories: 0,
        };
        for entry in found {
            let path = ByteText::from(&entry.path[..]);
            let is_dir = entry.kind() == FileType::Directory;
            let why = if is_hidden(hidden, &entry.path) || aliases.contains(&path) {
                Some(Why::Hidden)
            } else if is_ignored(&entry.path, is_dir) {
                listing.ignored_directories += usize::from(is_dir);
                Some(Why::Ignored)
            } else if !matches!(entry.kind(), FileType::RegularFile | FileType::Directory) {
                Some(Why::Special)
            } else {
                None
            };
            match why {
                // What is below it was not looked at, and has no names.
                _ if is_dir => {}
                Some(why) => {
                    listing.others.insert(path, why);
                }
                None => {
                    listing.files.insert(path, entry.stat.st_size as u64);
                }
            }
        }
        Ok(listing)
    }

    /// All files that a task can have.
    pub fn paths(&self) -> impl Iterator<Item = &ByteText> {
        self.files.keys()
    }

    pub fn has(&self, path: &ByteText) -> bool {
        self.files.contains_key(path)
    }

    /// What the folder has, but nobody works on.
    pub fn leave(&self, paths: &[ByteText], why: Why) {
        let mut left = self.left.borrow_mut();
        let own = left.entry(why).or_default();
        own.extend(paths.iter().filter(|path| self.has(path)).cloned());
    }

    /// The files that a split is about.
    pub fn select(&self, selection: &Selection) -> Result<BTreeMap<ByteText, When>, CampaignError> {
        let plan = self
            .left
            .borrow_mut()
            .remove(&Why::Plan)
            .unwrap_or_default();
        let mut selected = BTreeMap::new();
        for path in self.files.keys() {
            let Some(when) = selection.when(path)? else {
                continue;
            };
            if plan.contains(path) {
                self.leave(std::slice::from_ref(path), Why::Plan);
                continue;
            }
            // Who names a file needs no match in it.
            if when == When::Between
                && let Some(pattern) = selection.pattern()
            {
                let why = match self.read(path, MAX_READ) {
                    Some(bytes) if bytes.len() <= MAX_READ => {
                        (!pattern.is_in(&bytes)).then_some(Why::NoMatch)
                    }
                    _ => Some(Why::Unread),
                };
                if let Some(why) = why {
                    self.leave(std::slice::from_ref(path), why);
                    continue;
                }
            }
            selected.insert(path.clone(), when);
        }
        for (path, why) in &self.others {
            if selection.when(path)?.is_some() {
                let mut left = self.left.borrow_mut();
                left.entry(*why).or_default().insert(path.clone());
            }
        }
        Ok(selected)
    }

    /// Files that patterns name.
    pub fn matching(&self, lines: &[Line]) -> Result<Vec<ByteText>, CampaignError> {
        use std::os::unix::ffi::OsStrExt as _;
        let texts: Vec<&str> = lines.iter().map(|line| line.text.as_str()).collect();
        let globs = Globs::exact(&texts).map_err(CampaignError::Pattern)?;
        let named = self.files.keys().filter(|path| {
            let path = std::ffi::OsStr::from_bytes(path.as_bytes());
            globs.matches(std::path::Path::new(path))
        });
        Ok(named.cloned().collect())
    }

    /// What a file holds, up to a bound and a byte; `None` where it cannot be read.
    ///
    /// HOSTILE: no link is followed and nothing but a regular file is opened, whatever became of it
    /// since it was listed.
    pub fn read(&self, path: &ByteText, most: usize) -> Option<Vec<u8>> {
        let file = open_file(&self.root, path.as_bytes()).ok()?;
        let mut bytes = Vec::new();
        file.take(most as u64 + 1).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    /// Lines and bytes of some files.
    pub fn measure(&self, files: &[ByteText]) -> (u64, u64) {
        let mut lines = 0;
        for path in files {
            let bytes = self.read(path, MAX_READ).unwrap_or_default();
            if bytes.len() <= MAX_READ && !bytes.contains(&0) {
                let whole = bytes.iter().filter(|byte| **byte == b'\n').count();
                let rest = bytes.last().is_some_and(|last| *last != b'\n');
                lines += (whole + usize::from(rest)) as u64;
            }
        }
        (
            lines,
            files.iter().filter_map(|path| self.files.get(path)).sum(),
        )
    }

    /// What was left out so far, by reason.
    pub fn left_out(&self) -> Vec<LeftOut> {
        let left = self.left.borrow();
        let told = |(why, files): (&Why, &BTreeSet<ByteText>)| LeftOut {
            why: *why,
            count: files.len(),
            files: files.iter().take(NAMED).cloned().collect(),
        };
        let some = left.iter().filter(|(_, files)| !files.is_empty());
        some.map(told).collect()
    }

    /// For a person.
    pub fn notes(&self) -> Vec<String> {
        match self.ignored_directories {
            0 => Vec::new(),
            1 => vec!["1 directory is ignored by git and was not looked into".to_owned()],
            count => vec![format!(
                "{count} directories are ignored by git and were not looked into"
            )],
        }
    }
}
