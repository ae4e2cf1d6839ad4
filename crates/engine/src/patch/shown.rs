//! A patch for the eye: the same lines that are applied, by file and hunk.

use super::read::{Body, Sign};
use super::{Entry, content};

/// What there is to see of a change.
#[derive(Debug)]
pub enum Shown<'p> {
    /// A mode or a name, or an empty file.
    Nothing,
    Text(Vec<ShownHunk<'p>>),
    /// Bytes before and after, where they can be told.
    Binary {
        old: u64,
        new: u64,
    },
}

/// A hunk, with the numbers of its lines. Lines have their newline, if they have one.
#[derive(Clone, Copy, Debug)]
pub struct ShownHunk<'p> {
    /// Of its first line, from 1; 0 where there is none.
    pub old_start: u64,
    pub new_start: u64,
    lines: &'p [(Sign, &'p [u8])],
}

/// What becomes of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Stays,
    Goes,
    Comes,
}

impl<'p> ShownHunk<'p> {
    pub fn lines(&self) -> impl Iterator<Item = (Fate, &'p [u8])> + use<'p> {
        self.lines.iter().map(|(sign, text)| {
            let fate = match sign {
                Sign::Same => Fate::Stays,
                Sign::Out => Fate::Goes,
                Sign::In => Fate::Comes,
            };
            (fate, *text)
        })
    }

    /// Lines on the old side and on the new one.
    pub fn counts(&self) -> (u64, u64) {
        let mut counts = (0, 0);
        for (sign, _) in self.lines {
            counts.0 += u64::from(*sign != Sign::In);
            counts.1 += u64::from(*sign != Sign::Out);
        }
        counts
    }
}

impl Entry<'_> {
    /// What it shows.
    pub fn shown(&self) -> Shown<'_> {
        match &self.file.body {
            Body::None => Shown::Nothing,
            Body::Binary { new, old } => Shown::Binary {
                old: content::inflate(old).map_or(old.size, |bytes| bytes.len() as u64),
                new: content::inflate(new).map_or(new.size, |bytes| bytes.len() as u64),
            },
            Body::Text(hunks) => Shown::Text(
                hunks
                    .iter()
                    .map(|hunk| {
                        let mut shown = ShownHunk {
                            old_start: 0,
                            new_start: 0,
                            lines: &hunk.lines,
                        };
                        // The reader keeps how many lines stand before it.
                        let (old, new) = shown.counts();
                        shown.old_start = hunk.old_start + u64::from(old > 0);
                        shown.new_start = hunk.new_start + u64::from(new > 0);
                        shown
                    })
                    .collect(),
            ),
        }
    }
}
