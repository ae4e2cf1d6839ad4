//! Finds and replaces needles in a stream, however it is cut into pieces.
//!
//! A needle is the value of a secret, and the reader of a stream may choose a part of the stream: a page that
//! repeats the path of a request. If anything that the reader can measure depended on how much of a needle the
//! stream contains, the reader could guess the value byte by byte.
//!
//! INVARIANT: how many bytes [`Stream`] holds back, and when it releases them, depends on the lengths of the needles
//! and of what came, never on its content. Only a whole needle makes a difference: it is replaced.

mod finder;
mod forms;
mod stream;
mod wrapped;

use finder::Finder;
use forms::{Form, forms};
use wrapped::Unwrapped;

pub use stream::{Detector, PIECE, Stream};

/// BOUND: a form may contain twice as many bytes of line breaks as it has of its own, such as a CR LF behind each byte.
const WRAPPED: usize = 3;
/// BOUND: how much of a whole text is searched at a time.
const BLOCK: usize = 64 << 10;

/// What is searched: forms of each needle, each with the number of its secret.
pub struct Needles {
    forms: Vec<(usize, Form)>,
    /// Finds forms as they are.
    exact: Finder,
    /// Finds forms that programs break into lines, in a text without line breaks.
    wrapped: Option<Finder>,
    /// The bytes that the longest match has, or may have with line breaks.
    window: usize,
}

/// One thing that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Found {
    pub secret: usize,
    pub form: &'static str,
}

/// Where a needle is in a text.
struct Match {
    start: usize,
    end: usize,
    form: usize,
}

impl Needles {
    /// `pairs`: each needle, and what stands there instead. `None`: there is nothing to search.
    pub fn new<'a>(pairs: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> Option<Self> {
        let mut all: Vec<(usize, Form)> = Vec::new();
        for (number, (needle, instead)) in pairs.enumerate() {
            all.extend(
                forms(needle, instead)
                    .into_iter()
                    .map(|form| (number, form)),
            );
        }
        let every: Vec<usize> = (0..all.len()).collect();
        let may_be_wrapped = |form: &usize| wrapped::may_be_wrapped(&all[*form].1);
        let wrappable: Vec<usize> = every.iter().copied().filter(may_be_wrapped).collect();
        let length = |form: &usize| all[*form].1.bytes.len();
        let longest = every.iter().map(length);
        let longest_wrapped = wrappable.iter().map(|form| length(form) * WRAPPED);
        let window = longest.chain(longest_wrapped).max()?;
        Some(Self {
            exact: Finder::new(&all, &every)?,
            wrapped: Finder::new(&all, &wrappable),
            window,
            forms: all,
        })
    }

    /// The first needle in a whole text.
    pub fn find(&self, text: &[u8]) -> Option<Found> {
        if text.len() <= BLOCK {
            return self.matches(text).first().map(|first| self.found(first));
        }
        let mut detector = Detector::new(self);
        text.chunks(BLOCK)
            .find_map(|block| detector.piece(block).into_iter().next())
    }

    /// Replaces all needles of a whole text. `None`: there are none.
    pub fn replace(&self, text: &[u8], seen: &mut Vec<Found>) -> Option<Vec<u8>> {
        self.find(text)?;
        let mut stream = Stream::new(self);
        let mut out = Vec::with_capacity(text.len());
        for block in text.chunks(BLOCK) {
            out.extend_from_slice(&stream.piece(block));
        }
        out.extend_from_slice(&stream.end());
        for found in &stream.seen {
            note(*found, seen);
        }
        Some(out)
    }

    /// All needles in a text, from left to right. None overlaps another.
    fn matches(&self, text: &[u8]) -> Vec<Match> {
        let mut all = Vec::new();
        self.exact.find(&self.forms, text, &mut all);
        let Some((wrapped, unwrapped)) = self.wrapped.as_ref().zip(Unwrapped::of(text)) else {
            return all;
        };
        let mut across = Vec::new();
        wrapped.find(&self.forms, &unwrapped.text, &mut across);
        all.extend(across.into_iter().map(|found| {
            let (start, end) = unwrapped.place(found.start..found.end);
            Match {
                start,
                end,
                ..found
            }
        }));
        all.sort_by_key(|found| (found.start, usize::MAX - found.end));
        let mut end = 0;
        all.retain(|found| {
            let apart = found.start >= end;
            if apart {
                end = found.end;
            }
            apart
        });
        all
    }

    /// Appends what stands in the place of a match; of that, what comes behind the first `begun` bytes.
    fn put_instead(&self, text: &[u8], found: &Match, begun: usize, out: &mut Vec<u8>) {
        let instead = &self.forms[found.form].1.instead;
        let matched = &text[found.start..found.end];
        if matched.len() == self.forms[found.form].1.bytes.len() {
            out.extend_from_slice(instead.get(begun..).unwrap_or_default());
        } else {
            let wrapped = wrapped::with_breaks_of(matched, instead);
            out.extend_from_slice(wrapped.get(begun..).unwrap_or_default());
        }
    }

    fn found(&self, found: &Match) -> Found {
        let (secret, form) = &self.forms[found.form];
        Found {
            secret: *secret,
            form: form.name,
        }
    }

    /// Where the end of a text begins in which a match may have begun that is not complete: always as many bytes as
    /// the longest match has, less one.
    fn undecided_from(&self, text: &[u8]) -> usize {
        text.len().saturating_sub(self.window - 1)
    }
}

fn note(found: Found, seen: &mut Vec<Found>) {
    if !seen.contains(&found) {
        seen.push(found);
    }
}

impl std::fmt::Debug for Needles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Neither what is searched nor what finds it.
        f.write_str("Needles(..)")
    }
}

#[cfg(test)]
mod tests;
