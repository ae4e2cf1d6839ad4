//! Who wrote what: the writes that were observed, joined with what changed.
//!
//! ```text
//!   writes ──▶ names: each write done again ──▶ a history for each name ─┐
//!                                                                        ├─▶ last writer, writers,
//!   change set ──▶ path, old path ───────────────────────────────────────┤   explained or not
//!   patch ──▶ hunks ──┐                                                  │
//!   versions ─────────┴─▶ lines ◀── steps: who wrote one after another ◀─┘
//!                           └─▶ who made each hunk
//! ```
//!
//! INVARIANT (the accounting identity): a changed path that no observed write explains is listed as
//! unexplained, and the whole is not complete; nor is it where a write was seen of which cannot be
//! told where it was. What explains a path: something done to it, under
//! this name or an earlier one, or to another name of the same file, or the move of a directory
//! above it, of a kind that can have this effect.
//!
//! What changes a file without a write that names it, and how it is explained all the same:
//! descriptors that are inherited, passed on or mapped were opened once; a file written through
//! another of its names, or moved while it was open, has its history under both; what is opened
//! through `/proc/self/fd` or a linked directory is named by where it is. A file without a name
//! (`O_TMPFILE`) gets one by a link.
//!
//! What remains: calls that failed are taken for done, so a writer may be named that changed
//! nothing; who keeps a file open and writes to it later than others is not the last; a process
//! that races its own arguments can have another path named than the kernel used, and then the one
//! that changed is unexplained.

mod history;
mod lines;
mod names;
mod steps;
#[cfg(test)]
mod tests;
mod writers;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io::Write;

use ringfence_model::ByteText;
use ringfence_model::attribution::{Attribution, FileWriters, HunkWriters};
use ringfence_model::changes::{Change, ChangeKind, ChangeSet, FileMode, Side};

use crate::changes::hunks::{Effort, Hunk};
use crate::changes::{self, ChangesError, PatchStats, Sources, Texts};
use crate::evidence::Evidence;

use history::Name;
use lines::Lines;
use names::{Known, Names};
use steps::{Base, Step};
use writers::{ALL_ENTRIES, After};

/// BOUND: files listed with their writers.
const FILES: usize = 50_000;
/// BOUND: hunks listed, of all files together.
const HUNKS: usize = 100_000;
/// BOUND: unexplained paths listed; all are counted.
const UNEXPLAINED: usize = 1_000;

/// Writes the patch of a change set, as [`changes::render`] does, and tells who made it.
pub fn render(
    sources: &Sources,
    set: &ChangeSet,
    evidence: &Evidence,
    out: &mut dyn Write,
) -> Result<(PatchStats, Attribution), ChangesError> {
    let mut join = Join::new(&sources.prefix, set, evidence);
    let stats = changes::render_shown(sources, set, out, &mut join)?;
    Ok((stats, join.result))
}

/// The change set and the evidence, side by side.
struct Join<'a> {
    prefix: &'a [u8],
    set: &'a ChangeSet,
    names: Names,
    /// What names held, with how many writes had been seen before.
    versions: HashMap<Name, Vec<(usize, &'a [u8])>>,
    effort: Effort,
    left_hunks: usize,
    result: Attribution,
}

impl<'a> Join<'a> {
    fn new(prefix: &'a [u8], set: &'a ChangeSet, evidence: &'a Evidence) -> Self {
        let names = Names::of(evidence.writes.iter().map(|(_, write)| write));
        let mut versions: HashMap<Name, Vec<(usize, &[u8])>> = HashMap::new();
        for (seen, version) in &evidence.versions {
            if let Some(name) = names.find(version.path.as_bytes()) {
                let of_name = versions.entry(name).or_default();
                of_name.push((*seen, version.content.as_bytes()));
            }
        }
        let mut join = Self {
            prefix,
            set,
            names,
            versions,
            effort: Effort::default(),
            left_hunks: HUNKS,
            result: Attribution {
                prefix: ByteText::from(prefix),
                unplaced_count: evidence.unplaced().count() as u64,
                ..Attribution::default()
            },
        };
        join.files();
        join
    }

    fn files(&mut self) {
        let lands: HashSet<&ByteText> = self
            .set
            .changes
            .iter()
            .filter(|change| change.new.is_some())
            .map(|change| &change.path)
            .collect();
        let after = |path: &ByteText| {
            if lands.contains(path) {
                After::Something
            } else {
                After::Nothing
            }
        };
        let mut directory = Directory::default();
        let mut left = ALL_ENTRIES;
        let set = self.set;
        for change in &set.changes {
            let known = directory.entry(self, &change.path);
            let made = match &change.kind {
                ChangeKind::Deleted => writers::unmakes(after(&change.path)),
                _ => writers::makes(change),
            };
            if !self.names.explains(&known, made) {
                self.unexplained(&change.path);
            }
            let mut from_removed_by = None;
            if let ChangeKind::Renamed { from } = &change.kind {
                let known = directory.entry(self, from);
                let gone = writers::unmakes(after(from));
                if !self.names.explains(&known, gone) {
                    self.unexplained(from);
                }
                from_removed_by = self.names.last(&known, gone);
            }
            if self.result.files.len() == FILES {
                self.result.files_truncated = true;
                continue;
            }
            let writers = self.names.writers(&known, change, &mut left);
            self.result.files.push(FileWriters {
                path: change.path.clone(),
                last_writer: writers.last,
                from_removed_by,
                writers: writers.all,
                writers_truncated: writers.truncated,
                ..FileWriters::default()
            });
        }
        self.result.complete =
            self.result.unexplained_count == 0 && self.result.unplaced_count == 0;
    }

    fn unexplained(&mut self, path: &ByteText) {
        self.result.unexplained_count += 1;
        if self.result.unexplained.len() < UNEXPLAINED {
            self.result.unexplained.push(path.clone());
        }
    }

    /// A path of the change set as writes name it. Changes are told from the top of the repository,
    /// writes from the folder.
    fn in_folder<'p>(&self, path: &'p ByteText) -> &'p [u8] {
        let path = path.as_bytes();
        match self.prefix {
            b"" => path,
            prefix => path
                .strip_prefix(prefix)
                .and_then(|rest| rest.strip_prefix(b"/"))
                .unwrap_or(path),
        }
    }

    fn steps(&self, change: &Change) -> Option<Vec<Step>> {
        let known = Directory::default().entry(self, &change.path);
        let base = match &change.kind {
            ChangeKind::Added | ChangeKind::Deleted => Base::Nothing,
            ChangeKind::Modified => Base::Of(known.name),
            ChangeKind::Renamed { from } => Base::Of(self.names.find(self.in_folder(from))),
        };
        match known.name {
            Some(name) => self.names.steps(known.latest, name, base),
            None => Some(Vec::new()),
        }
    }

    /// Who made each hunk of a file that several wrote.
    fn told(&mut self, steps: &[Step], old: &[u8], new: &[u8], hunks: &[Hunk]) -> Option<Vec<By>> {
        let mut versions = vec![old];
        let mut by = vec![steps.first()?.by.clone()];
        for pair in steps.windows(2) {
            match self.version_between(&pair[0], &pair[1]) {
                Some(version) => {
                    versions.push(version);
                    by.push(pair[1].by.clone());
                }
                None => by.last_mut()?.extend(&pair[1].by),
            }
        }
        if versions.len() == 1 {
            return None;
        }
        versions.push(new);
        let lines = Lines::follow(&versions, &mut self.effort)?;
        let of_hunk = |hunk| {
            let made = lines.of_hunk(hunk)?;
            let known = made.iter().all(|&step| is_one(&by[step]));
            let all: BTreeSet<u64> = made.iter().flat_map(|&step| by[step].clone()).collect();
            known.then_some(all)
        };
        Some(hunks.iter().map(of_hunk).collect())
    }

    /// What the file held after one step and before the next.
    fn version_between(&self, before: &Step, after: &Step) -> Option<&'a [u8]> {
        let versions = self.versions.get(&after.name)?;
        let later = versions.partition_point(|(seen, _)| *seen <= after.first as usize);
        let (seen, content) = versions.get(later.checked_sub(1)?)?;
        (*seen > before.last as usize).then_some(*content)
    }
}

/// Who made a hunk, where that can be told.
type By = Option<BTreeSet<u64>>;

/// Exactly one, and known.
fn is_one(by: &BTreeSet<u64>) -> bool {
    by.len() == 1 && !by.contains(&0)
}

impl Texts for Join<'_> {
    fn compared(&mut self, index: usize, old: &[u8], new: &[u8], hunks: &[Hunk]) {
        let set = self.set;
        let (Some(change), Some(file)) = (set.changes.get(index), self.result.files.get(index))
        else {
            return;
        };
        let (last, all) = (file.last_writer, file.writers.clone());
        let is_link = |new: &Side| new.mode == FileMode::Symlink;
        // What is taken away or made at once, its last writer took away or made.
        let at_once = change.new.as_ref().is_none_or(is_link);
        let steps = if at_once {
            Some(Vec::new())
        } else {
            self.steps(change)
        };
        let one = match &steps {
            // Or nothing is known of the file itself, only of a directory above it.
            Some(steps) if steps.is_empty() => last.map(|exec| BTreeSet::from([exec])),
            Some(steps) => Some(steps.iter().flat_map(|step| step.by.clone()).collect()),
            None => None,
        };
        let one = one.filter(is_one);
        let told = match (&one, &steps) {
            (None, Some(steps)) if !steps.is_empty() => self.told(steps, old, new, hunks),
            _ => None,
        };
        let shown = hunks.len().min(self.left_hunks);
        self.left_hunks -= shown;
        let listed = hunks.iter().take(shown).enumerate().map(|(at, hunk)| {
            let by = one
                .clone()
                .or_else(|| told.as_ref().and_then(|told| told[at].clone()));
            HunkWriters {
                told: by.is_some(),
                by: by.map_or_else(|| all.clone(), |by| by.into_iter().collect()),
                ..head(hunk)
            }
        });
        let listed: Vec<HunkWriters> = listed.collect();
        let file = &mut self.result.files[index];
        file.hunks_truncated = listed.len() < hunks.len();
        file.hunks = listed;
    }
}

/// The numbers in the head of a hunk.
fn head(hunk: &Hunk) -> HunkWriters {
    let start = |lines: &std::ops::Range<usize>| match lines.len() {
        0 => lines.start as u64,
        _ => lines.start as u64 + 1,
    };
    HunkWriters {
        old_start: start(&hunk.before),
        old_lines: hunk.before.len() as u64,
        new_start: start(&hunk.after),
        new_lines: hunk.after.len() as u64,
        by: Vec::new(),
        told: false,
    }
}

/// The directory that was looked up last: paths come sorted, and so mostly from the same one.
#[derive(Default)]
struct Directory {
    path: Vec<u8>,
    known: Option<Known>,
}

impl Directory {
    fn entry(&mut self, join: &Join<'_>, path: &ByteText) -> Known {
        let path = join.in_folder(path);
        let slash = path.iter().rposition(|&byte| byte == b'/');
        let (directory, name) = match slash {
            Some(at) => (&path[..at], &path[at + 1..]),
            None => (&b""[..], path),
        };
        let known = match self.known.filter(|_| self.path == directory) {
            Some(known) => known,
            None => join.names.above(directory),
        };
        self.path = directory.to_vec();
        self.known = Some(known);
        join.names.below(&known, name)
    }
}
