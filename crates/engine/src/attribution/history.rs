//! What was done to a name, as a chain of entries, newest first.
//!
//! Entries never change once they are made, so a name that content moved to shares the history of
//! the name that it came from, and each keeps its own afterwards.

use std::collections::BinaryHeap;

/// An entry, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct At(u32);

/// A name in the workspace, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Name(pub u32);

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Did {
    Opened,
    Created,
    Truncated,
    /// A node was made; a regular file is one.
    Noded,
    Symlinked,
    /// Something came here from another name.
    Landed,
    /// The name was made as another one of a file.
    Linked,
    /// The file got another name.
    Shared,
    Mode,
    Removed,
    /// What was here went to another name.
    Away,
}

/// A set of things done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Deeds(u16);

impl Deeds {
    pub const fn of(list: &[Did]) -> Self {
        let mut bits = 0;
        let mut at = 0;
        while at < list.len() {
            bits |= 1 << list[at] as u16;
            at += 1;
        }
        Self(bits)
    }

    pub fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// What puts bytes into a file at its own name.
pub(super) const WRITES: Deeds = Deeds::of(&[
    Did::Opened,
    Did::Created,
    Did::Truncated,
    Did::Noded,
    Did::Symlinked,
]);
/// What brings a whole file to a name.
pub(super) const BRINGS: Deeds = Deeds::of(&[Did::Landed, Did::Linked]);

/// One thing done, and what came before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub did: Did,
    /// Zero where it is not known.
    pub exec: u64,
    /// The first and the last of the writes that this entry stands for: one exec that opens a file
    /// again and again is one entry.
    pub first: u32,
    pub last: u32,
    /// All that was done to the name so far.
    pub deeds: Deeds,
    pub before: Option<At>,
    /// Where what landed came from, or what went away went to.
    pub other: Option<Name>,
    /// What had been done there.
    pub source: Option<At>,
    /// The content may be in part what the base had, under whatever name.
    pub from_base: bool,
}

/// Who did something, and when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deed {
    pub did: Did,
    pub exec: u64,
    pub write: u32,
}

/// All entries.
#[derive(Debug, Default)]
pub(super) struct Histories {
    entries: Vec<Entry>,
}

impl Histories {
    pub fn entry(&self, at: At) -> &Entry {
        &self.entries[at.0 as usize]
    }

    /// The chain from its newest entry on, along its own name.
    pub fn chain(&self, latest: Option<At>) -> impl Iterator<Item = (At, &Entry)> {
        let mut next = latest;
        std::iter::from_fn(move || {
            let at = next?;
            let entry = self.entry(at);
            next = entry.before;
            Some((at, entry))
        })
    }

    /// The chain and those of the names that it came from, each entry once.
    pub fn newest_first(&self, latest: Option<At>) -> NewestFirst<'_> {
        NewestFirst {
            histories: self,
            next: latest.into_iter().collect(),
            stop_at: None,
        }
    }

    /// Adds to a chain; gives its newest entry.
    pub fn add(
        &mut self,
        latest: Option<At>,
        deed: Deed,
        other: Option<Name>,
        source: Option<At>,
    ) -> At {
        let top = latest.map(|at| *self.entry(at));
        let again = top.filter(|top| {
            top.exec == deed.exec
                && matches!(deed.did, Did::Opened | Did::Truncated)
                && matches!(top.did, Did::Opened | Did::Truncated | Did::Created)
        });
        let deeds = top.map_or(Deeds::default(), |top| top.deeds);
        let deeds = deeds.with(Deeds::of(&[deed.did]));
        let entry = match again {
            Some(top) => Entry {
                last: deed.write,
                deeds,
                ..top
            },
            None => Entry {
                did: deed.did,
                exec: deed.exec,
                first: deed.write,
                last: deed.write,
                deeds,
                before: latest,
                other,
                source,
                from_base: match deed.did {
                    Did::Created | Did::Symlinked | Did::Noded => false,
                    Did::Landed | Did::Linked => source.is_none_or(|at| self.entry(at).from_base),
                    _ => top.is_none_or(|top| top.from_base),
                },
            },
        };
        // BOUND: a journal of 64 MiB has far fewer writes than this, and what is carried with
        // directories is bounded apart.
        let number = u32::try_from(self.entries.len()).expect("entries are bounded");
        self.entries.push(entry);
        At(number)
    }
}

/// See [`Histories::newest_first`].
pub(super) struct NewestFirst<'a> {
    histories: &'a Histories,
    next: BinaryHeap<At>,
    /// What lies before the going away to this name is left out.
    pub stop_at: Option<Name>,
}

impl<'a> Iterator for NewestFirst<'a> {
    type Item = (At, &'a Entry);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let at = self.next.pop()?;
            // What came before an entry has a smaller number, so equal ones come together.
            while self.next.peek() == Some(&at) {
                self.next.pop();
            }
            let entry = self.histories.entry(at);
            if entry.did == Did::Away && entry.other.is_some() && entry.other == self.stop_at {
                continue;
            }
            self.next.extend(entry.before);
            self.next.extend(entry.source);
            return Some((at, entry));
        }
    }
}
