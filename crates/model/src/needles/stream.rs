//! Streams: a needle may be cut anywhere, and the sizes of what goes on do not tell where one almost was.

use std::ops::Deref;

use bytes::Bytes;
use zeroize::Zeroize as _;

use super::{Found, Needles, note};

/// BOUND: what goes on is a multiple of this, except where the source pauses or ends. Small, because the reader of
/// a slow stream waits for a whole piece; larger pieces are hardly faster.
pub const PIECE: usize = 1 << 10;

/// A stream whose needles are replaced.
///
/// It holds back as many bytes as the longest match has, less one, until the source pauses or ends. After
/// a [pause](Self::pause) it still remembers them: of a needle that began before the pause the rest is replaced.
pub struct Stream<N> {
    needles: N,
    /// Where a needle may still begin: bytes that a pause released, then those that are held back.
    text: Vec<u8>,
    /// How many bytes of `text` were released.
    released: usize,
    /// Searched, and not yet a whole piece.
    ready: Vec<u8>,
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
            text: Vec::new(),
            released: 0,
            ready: Vec::new(),
            seen: Vec::new(),
        }
    }

    pub fn needles(&self) -> N
    where
        N: Copy,
    {
        self.needles
    }

    /// Takes what the source sent, and gives what may go on: a multiple of [`PIECE`].
    pub fn piece(&mut self, piece: &[u8]) -> Bytes {
        self.text.extend_from_slice(piece);
        let undecided = self.needles.undecided_from(&self.text);
        let more = undecided.saturating_sub(self.released);
        if self.ready.len() + more < PIECE {
            return Bytes::new();
        }
        self.decide(undecided, undecided);
        let whole = self.ready.len() / PIECE * PIECE;
        let rest = self.ready.split_off(whole);
        std::mem::replace(&mut self.ready, rest).into()
    }

    /// Whether bytes are held back.
    pub fn holds_back(&self) -> bool {
        self.text.len() > self.released || !self.ready.is_empty()
    }

    /// The source has sent nothing for a while: releases everything, whatever it is. That may be the beginning of
    /// a needle, if the source pauses in the middle of one.
    pub fn pause(&mut self) -> Bytes {
        let undecided = self.needles.undecided_from(&self.text);
        self.decide(self.text.len(), undecided);
        std::mem::take(&mut self.ready).into()
    }

    /// The source has sent nothing for a while: releases whole lines. A line end is in no needle that is not broken
    /// into lines.
    pub fn pause_at_line(&mut self) -> Bytes {
        let undecided = self.needles.undecided_from(&self.text);
        let line_end = self.text.iter().rposition(|byte| *byte == b'\n');
        let lines = line_end.map_or(0, |at| at + 1);
        self.decide(lines.max(undecided), undecided);
        std::mem::take(&mut self.ready).into()
    }

    /// The stream ends: gives the rest.
    pub fn end(&mut self) -> Bytes {
        self.pause()
    }

    /// Moves what comes before `until` to `ready`, and with it needles that begin there. What comes behind
    /// `remembered` is searched again.
    fn decide(&mut self, until: usize, remembered: usize) {
        let mut at = 0;
        for found in self.needles.matches(&self.text) {
            if found.start >= until {
                break;
            }
            let between = at.max(self.released);
            let plain = self.text.get(between..found.start).unwrap_or_default();
            self.ready.extend_from_slice(plain);
            // Of a needle that began before a pause, as much was released as came before it.
            let begun = self.released.saturating_sub(found.start);
            self.needles
                .put_instead(&self.text, &found, begun, &mut self.ready);
            note(self.needles.found(&found), &mut self.seen);
            at = found.end;
        }
        let from = at.max(self.released);
        let to = until.max(from);
        self.ready.extend_from_slice(&self.text[from..to]);
        let first = remembered.max(at);
        self.text[..first].zeroize();
        self.text.drain(..first);
        self.released = to - first;
    }
}

impl<N> Drop for Stream<N> {
    fn drop(&mut self) {
        self.text.zeroize();
        self.ready.zeroize();
    }
}

/// Finds needles in a stream and holds nothing back: the piece in which one ends is known before it goes on.
pub struct Detector<N> {
    needles: N,
    text: Vec<u8>,
}

impl<N> std::fmt::Debug for Detector<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Detector(..)")
    }
}

impl<N: Deref<Target = Needles>> Detector<N> {
    pub fn new(needles: N) -> Self {
        Self {
            needles,
            text: Vec::new(),
        }
    }

    /// Takes a piece, and gives the needles that end in it.
    pub fn piece(&mut self, piece: &[u8]) -> Vec<Found> {
        self.text.extend_from_slice(piece);
        let matches = self.needles.matches(&self.text);
        let found = matches
            .iter()
            .map(|found| self.needles.found(found))
            .collect();
        let undecided = self.needles.undecided_from(&self.text);
        self.text[..undecided].zeroize();
        self.text.drain(..undecided);
        found
    }

    /// How many bytes at the end of what came may belong to a needle that is not complete.
    pub fn undecided(&self) -> usize {
        self.text.len()
    }
}

impl<N> Drop for Detector<N> {
    fn drop(&mut self) {
        self.text.zeroize();
    }
}
