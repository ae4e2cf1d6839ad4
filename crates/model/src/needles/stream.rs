//! Streams: a needle may be cut anywhere.

use std::ops::Deref;

use zeroize::Zeroize as _;

use super::{Found, Needles};

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
