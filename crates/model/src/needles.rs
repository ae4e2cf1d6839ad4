//! Finds and replaces needles in a stream, however it is cut into pieces.

mod finder;
mod forms;
mod stream;

use std::ops::Deref;

use bytes::Bytes;

use finder::Finder;
use forms::{Form, forms};

pub use stream::Detector;

/// What is searched: forms of each needle, each with the number of its secret.
pub struct Needles {
    forms: Vec<(usize, Form)>,
    exact: Finder,
    longest: usize,
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
        Some(Self {
            exact: Finder::new(&all, &every)?,
            longest: all
                .iter()
                .map(|(_, form)| form.bytes.len())
                .max()
                .unwrap_or(0),
            forms: all,
        })
    }

    /// The first needle in a whole text.
    pub fn find(&self, text: &[u8]) -> Option<Found> {
        let matches = self.matches(text);
        matches.first().map(|first| self.found(first))
    }

    /// All needles in a text, from left to right. None overlaps another.
    fn matches(&self, text: &[u8]) -> Vec<Match> {
        let mut all = Vec::new();
        self.exact.find(&self.forms, text, &mut all);
        all
    }

    fn found(&self, found: &Match) -> Found {
        let (secret, form) = &self.forms[found.form];
        Found {
            secret: *secret,
            form: form.name,
        }
    }

    /// Replaces all needles of a whole text. `None`: there are none.
    pub fn replace(&self, text: &[u8], seen: &mut Vec<Found>) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        let at = self.replace_from(text, text.len(), &mut out, seen);
        (at > 0).then(|| {
            out.extend_from_slice(&text[at..]);
            out
        })
    }

    /// Replaces what begins before `until`. Answers where the last needle ended; what is behind is
    /// not in `out`.
    fn replace_from(
        &self,
        text: &[u8],
        until: usize,
        out: &mut Vec<u8>,
        seen: &mut Vec<Found>,
    ) -> usize {
        let mut at = 0;
        for found in self.matches(text) {
            if found.start >= until {
                break;
            }
            out.extend_from_slice(&text[at..found.start]);
            out.extend_from_slice(&self.forms[found.form].1.instead);
            let found_now = self.found(&found);
            if !seen.contains(&found_now) {
                seen.push(found_now);
            }
            at = found.end;
        }
        at
    }

    /// Where the end of a text begins in which a match may have begun that is not complete: always as many bytes as
    /// the longest match has, less one.
    fn undecided_from(&self, text: &[u8]) -> usize {
        text.len().saturating_sub(self.longest - 1)
    }

    /// Where the longest end of `text` begins that may be the beginning of a needle.
    fn open_end(&self, text: &[u8]) -> usize {
        let first = text.len().saturating_sub(self.longest.saturating_sub(1));
        (first..text.len())
            .find(|at| {
                let end = &text[*at..];
                self.forms
                    .iter()
                    .any(|(_, form)| form.bytes.len() > end.len() && form.bytes.starts_with(end))
            })
            .unwrap_or(text.len())
    }
}

impl std::fmt::Debug for Needles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Neither what is searched nor what finds it.
        f.write_str("Needles(..)")
    }
}

/// A stream that is searched. Only what may be the beginning of a needle is held back, so that what
/// is sent little by little also arrives so.
pub struct Stream<N> {
    needles: N,
    held: Vec<u8>,
    pub seen: Vec<Found>,
}

impl<N> std::fmt::Debug for Stream<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Stream(..)")
    }
}

impl<N: Deref<Target = Needles>> Stream<N> {
    pub fn new(needles: N) -> Self {
        Self {
            needles,
            held: Vec::new(),
            seen: Vec::new(),
        }
    }

    pub fn needles(&self) -> N
    where
        N: Copy,
    {
        self.needles
    }

    /// Takes a piece, and gives what may go on.
    pub fn piece(&mut self, piece: Bytes) -> Bytes {
        let text = if self.held.is_empty() {
            piece
        } else {
            let mut text = std::mem::take(&mut self.held);
            text.extend_from_slice(&piece);
            text.into()
        };
        let open = self.needles.open_end(&text);
        let mut out = Vec::new();
        // A needle that begins before the open end may be part of a longer one: both begin there.
        let at = self
            .needles
            .replace_from(&text, open, &mut out, &mut self.seen);
        let open = open.max(at);
        self.held = text[open..].to_vec();
        if at == 0 {
            return text.slice(..open);
        }
        out.extend_from_slice(&text[at..open]);
        out.into()
    }

    /// The stream ends: what was held back is no needle.
    pub fn end(&mut self) -> Bytes {
        let held = std::mem::take(&mut self.held);
        match self.needles.replace(&held, &mut self.seen) {
            Some(out) => out.into(),
            None => held.into(),
        }
    }
}

impl<N> Drop for Stream<N> {
    fn drop(&mut self) {
        zeroize::Zeroize::zeroize(&mut self.held);
    }
}

#[cfg(test)]
mod tests;
