//! The writers of one changed path, from its history.

use std::collections::{BTreeMap, BTreeSet};

use ringfence_model::changes::{Change, ChangeKind, FileMode, Side};

use super::history::{At, BRINGS, Deeds, Did, Entry, Histories, Name, WRITES};
use super::names::{Known, Names};

/// BOUND: entries looked at for one path; whoever moves a file a thousand times is known by then.
const ENTRIES: usize = 1_000;
/// BOUND: the same when all paths together have used up what they may cost.
const FEW_ENTRIES: usize = 8;
/// BOUND: entries looked at for all paths together.
pub(super) const ALL_ENTRIES: usize = 3_000_000;
/// BOUND: writers listed for one path.
const WRITERS: usize = 64;

const LEAVES: Deeds = Deeds::of(&[Did::Removed, Did::Away]);
const MODE: Deeds = Deeds::of(&[Did::Mode]);
const SHARED: Deeds = Deeds::of(&[Did::Shared]);
const LINKS: Deeds = Deeds::of(&[Did::Symlinked]);
const FILES: Deeds = Deeds::of(&[Did::Opened, Did::Created, Did::Truncated, Did::Noded]);

/// What can have made a changed path what it is now.
pub(super) fn makes(change: &Change) -> Deeds {
    let Some(new) = &change.new else {
        return LEAVES;
    };
    if new.mode == FileMode::Symlink {
        return LINKS.with(BRINGS);
    }
    let same = |old: &Side| old.oid == new.oid && change.kind == ChangeKind::Modified;
    if change.old.as_ref().is_some_and(same) {
        FILES.with(BRINGS).with(MODE)
    } else {
        FILES.with(BRINGS)
    }
}

/// The same, and what only had a part in it.
fn takes_part(change: &Change) -> Deeds {
    let regular = FileMode::Regular;
    let old = change.old.as_ref().map_or(regular, |old| old.mode);
    match &change.new {
        Some(new) if new.mode != old => makes(change).with(MODE),
        _ => makes(change),
    }
}

/// What can have made the old path of a change disappear.
pub(super) fn unmakes(now: After) -> Deeds {
    match now {
        After::Nothing => LEAVES,
        After::Something => LEAVES.with(BRINGS),
    }
}

/// What is at a path from which something of the base has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    Nothing,
    Something,
}

/// Who had a hand in a path.
#[derive(Debug, Default)]
pub(super) struct Writers {
    pub last: Option<u64>,
    pub all: Vec<u64>,
    pub truncated: bool,
}

impl Names {
    /// Whether one of these was done to the path, or to a directory above it.
    pub fn explains(&self, known: &Known, wanted: Deeds) -> bool {
        let deeds = known.latest.map(|at| self.histories.entry(at).deeds);
        // A file that got another name may have been written through it; which one is in the
        // history unless a call that failed hides it.
        let wanted_here = if wanted.meets(FILES) {
            wanted.with(SHARED)
        } else {
            wanted
        };
        deeds.is_some_and(|deeds| deeds.meets(wanted_here)) || self.moved(known, wanted).is_some()
    }

    /// The last time that a directory above made such a difference.
    fn moved(&self, known: &Known, wanted: Deeds) -> Option<At> {
        let landed = known.landed_above.filter(|_| wanted.meets(BRINGS));
        let away = known.away_above.filter(|_| wanted.meets(LEAVES));
        landed.max(away)
    }

    /// The last thing of these that was done to a path, or to a directory above it.
    fn last_entry(&self, known: &Known, wanted: Deeds, bound: usize) -> Option<At> {
        let mut chain = self.histories.chain(known.latest).take(bound);
        let fits = |(_, entry): &(At, &Entry)| Deeds::of(&[entry.did]).meets(wanted);
        let fitting = chain.find(fits).map(|(at, _)| at);
        let above = match fitting {
            // It went for itself, before a directory above did; otherwise it went with it.
            Some(_) if wanted == LEAVES && !self.is_cut() => None,
            _ => self.moved(known, wanted),
        };
        // Where neither fits, whoever was there last: a call that failed may hide who it was.
        fitting.max(above).or(known.latest)
    }

    /// Who did the last thing of these.
    pub fn last(&self, known: &Known, wanted: Deeds) -> Option<u64> {
        let last = self.last_entry(known, wanted, FEW_ENTRIES)?;
        Some(self.histories.entry(last).exec).filter(|&exec| exec != 0)
    }

    /// Who wrote the path of a change. `left` is what all paths together may still cost.
    pub fn writers(&self, known: &Known, change: &Change, left: &mut usize) -> Writers {
        let bound = ENTRIES.min((*left).max(FEW_ENTRIES));
        let last = self.last_entry(known, takes_part(change), bound);
        let mut seen = self.histories.all(known.latest, bound);
        *left = left.saturating_sub(seen.entries);
        let last = last.map(|at| self.histories.entry(at));
        seen.firsts
            .extend(last.map(|entry| (entry.first, entry.exec)));
        let mut writers = Writers {
            last: last.map(|entry| entry.exec).filter(|&exec| exec != 0),
            truncated: seen.truncated || self.is_cut(),
            ..Writers::default()
        };
        let mut listed = BTreeSet::new();
        for exec in seen.firsts.into_values() {
            if exec == 0 || (listed.len() == WRITERS && !listed.contains(&exec)) {
                writers.truncated = true;
            } else if listed.insert(exec) {
                writers.all.push(exec);
            }
        }
        if let Some(last) = writers.last.filter(|last| !listed.contains(last)) {
            writers.all.push(last);
        }
        writers
    }
}

/// What a history names.
struct Seen {
    /// Who, by the number of the write.
    firsts: BTreeMap<u32, u64>,
    entries: usize,
    truncated: bool,
}

impl Histories {
    /// Everybody in a history and in those of the names that it came from.
    fn all(&self, latest: Option<At>, bound: usize) -> Seen {
        let mut firsts = BTreeMap::new();
        let mut entries = 0;
        for (_, entry) in self.newest_first(latest).take(bound) {
            entries += 1;
            firsts.insert(entry.first, entry.exec);
        }
        Seen {
            firsts,
            entries,
            truncated: entries == bound,
        }
    }

    /// Who wrote into what came from another name. What had gone from there to where this is
    /// looked for is in the history of that place.
    pub(super) fn authors(&self, source: Option<At>, target: Name) -> Option<BTreeSet<u64>> {
        let mut authors = BTreeSet::new();
        let mut history = self.newest_first(source);
        history.stop_at = Some(target);
        for (index, (_, entry)) in history.enumerate() {
            if index == ENTRIES {
                return None;
            }
            let deed = Deeds::of(&[entry.did]);
            if deed.meets(WRITES) || (deed.meets(BRINGS) && entry.from_base) {
                authors.insert(entry.exec);
            }
        }
        Some(authors)
    }
}
