//! Joining what two sides made of one text, line by line.
//!
//! Edits that overlap or touch are a conflict, unless both sides made the same of them. There is no
//! text with marks in it: a conflict is told, and nothing is written.

use std::ops::Range;

use crate::changes::hunks::{Comparison, Edit, Effort};

/// BOUND: what is compared in a moment.
pub(super) const MERGED_BYTES: u64 = 16 << 20;

/// What both sides make of the base together; `None` where they are in each other's way.
pub(super) fn merge(base: &[u8], ours: &[u8], theirs: &[u8]) -> Option<Vec<u8>> {
    joined(base, ours, theirs).ok()
}

/// Why two sides cannot be joined.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Apart {
    /// One of them is not text, or too large.
    NotText,
    /// They meet in these lines of the base, from 0; empty where both put something before one.
    Lines(Range<usize>),
}

/// The same, with where they meet.
pub(super) fn joined(base: &[u8], ours: &[u8], theirs: &[u8]) -> Result<Vec<u8>, Apart> {
    let is_text = |bytes: &&[u8]| bytes.len() as u64 <= MERGED_BYTES && !bytes.contains(&0);
    if ![base, ours, theirs].iter().all(is_text) {
        return Err(Apart::NotText);
    }
    let (mut effort, lines) = (Effort::default(), lines(base));
    let left = Comparison::new(base, ours, &mut effort);
    let right = Comparison::new(base, theirs, &mut effort);
    let mut left = Side::new(ours, left.edits().cloned().collect());
    let mut right = Side::new(theirs, right.edits().cloned().collect());
    let mut out = Vec::with_capacity(ours.len().max(theirs.len()));
    let mut at = 0;
    loop {
        let edit = match (left.next(), right.next()) {
            (None, None) => break,
            (Some(_), None) => left.take(),
            (None, Some(_)) => right.take(),
            (Some(a), Some(b)) if a.before.end < b.before.start => left.take(),
            (Some(a), Some(b)) if b.before.end < a.before.start => right.take(),
            (Some(a), Some(b)) => {
                if a.before != b.before || left.text(a) != right.text(b) {
                    let start = a.before.start.min(b.before.start);
                    let end = a.before.end.max(b.before.end);
                    return Err(Apart::Lines(start..end));
                }
                left.take();
                right.take()
            }
        };
        let (before, text) = edit.ok_or(Apart::NotText)?;
        let between = lines.get(at..before.start).ok_or(Apart::NotText)?;
        out.extend(between.iter().copied());
        out.extend(text);
        at = before.end;
    }
    out.extend(lines.get(at..).ok_or(Apart::NotText)?.iter().copied());
    // What was the last line without an end is not the last one any more.
    let ends = |line: &&[u8]| line.ends_with(b"\n");
    let above = &out[..out.len().saturating_sub(1)];
    if above.iter().all(ends) {
        Ok(out.concat())
    } else {
        Err(Apart::Lines(lines.len().saturating_sub(1)..lines.len()))
    }
}

fn lines(text: &[u8]) -> Vec<&[u8]> {
    text.split_inclusive(|&byte| byte == b'\n').collect()
}

/// What one side did, from the first edit to the last.
struct Side<'a> {
    lines: Vec<&'a [u8]>,
    edits: Vec<Edit>,
    done: usize,
}

impl<'a> Side<'a> {
    fn new(text: &'a [u8], edits: Vec<Edit>) -> Self {
        Self {
            lines: lines(text),
            edits,
            done: 0,
        }
    }

    fn next(&self) -> Option<&Edit> {
        self.edits.get(self.done)
    }

    fn text(&self, edit: &Edit) -> Option<&[&'a [u8]]> {
        self.lines.get(edit.after.clone())
    }

    /// The next edit: what it replaces, and by what.
    fn take(&mut self) -> Option<(Range<usize>, Vec<&'a [u8]>)> {
        let edit = self.next()?;
        let taken = (edit.before.clone(), self.text(edit)?.to_vec());
        self.done += 1;
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_apart_is_joined_and_what_is_not_is_refused() {
        for (base, ours, theirs, joined) in [
            (
                "1\n2\n3\n4\n5\n",
                "x\n2\n3\n4\n5\n",
                "1\n2\n3\n4\ny\n",
                Some("x\n2\n3\n4\ny\n"),
            ),
            ("1\n2\n3\n", "1\nx\n3\n", "1\ny\n3\n", None),
            ("1\n2\n3\n", "1\nx\n3\n", "1\nx\n3\n", Some("1\nx\n3\n")),
            // They touch.
            ("1\n2\n3\n", "x\n2\n3\n", "1\ny\n3\n", None),
            ("1\n2\n3\n", "x\n2\n3\n", "1\n2\ny\n", Some("x\n2\ny\n")),
            (
                "1\n2\n3\n",
                "0\n1\n2\n3\n",
                "1\n2\n3\n4\n",
                Some("0\n1\n2\n3\n4\n"),
            ),
            ("1\n2\n", "1\n2\na\n", "1\n2\nb\n", None),
            ("1\n2\n", "1\n2\na\n", "1\n2\na\n", Some("1\n2\na\n")),
            ("1\n2\n3\n", "1\n", "1\n2\n3\nx\n", None),
            (
                "1\n2\n3\n4\n5\n",
                "1\n4\n5\n",
                "1\n2\n3\n4\n5\nx\n",
                Some("1\n4\n5\nx\n"),
            ),
            ("1\n2\n3", "x\n2\n3", "1\n2\n3\n", Some("x\n2\n3\n")),
            ("", "a\n", "b\n", None),
            ("a\0\n", "a\0\nb\n", "c\na\0\n", None),
            (
                "1\r\n2\r\n3\r\n",
                "x\r\n2\r\n3\r\n",
                "1\r\n2\r\ny\r\n",
                Some("x\r\n2\r\ny\r\n"),
            ),
        ] {
            let merged = merge(base.as_bytes(), ours.as_bytes(), theirs.as_bytes());
            let merged = merged.map(|bytes| String::from_utf8(bytes).unwrap());
            assert_eq!(merged.as_deref(), joined, "{base:?} {ours:?} {theirs:?}");
        }
    }

    #[test]
    fn where_two_sides_meet_is_told() {
        for (base, ours, theirs, lines) in [
            ("1\n2\n3\n", "1\nx\n3\n", "1\ny\n3\n", 1..2),
            ("1\n2\n3\n", "x\n2\n3\n", "1\ny\n3\n", 0..2),
            ("1\n2\n", "1\n2\na\n", "1\n2\nb\n", 2..2),
        ] {
            let met = joined(base.as_bytes(), ours.as_bytes(), theirs.as_bytes());
            assert_eq!(
                met,
                Err(Apart::Lines(lines)),
                "{base:?} {ours:?} {theirs:?}"
            );
        }
        assert_eq!(joined(b"a\0", b"b", b"c"), Err(Apart::NotText));
    }

    proptest::proptest! {
        /// One side alone decides, and which side is which does not matter.
        #[test]
        fn sides_are_alike(base in "[ab\n]{0,40}", ours in "[ab\n]{0,40}", theirs in "[ab\n]{0,40}") {
            let (base, ours, theirs) = (base.as_bytes(), ours.as_bytes(), theirs.as_bytes());
            proptest::prop_assert_eq!(merge(base, base, theirs), Some(theirs.to_vec()));
            proptest::prop_assert_eq!(merge(base, ours, base), Some(ours.to_vec()));
            proptest::prop_assert_eq!(merge(base, ours, ours), Some(ours.to_vec()));
            proptest::prop_assert_eq!(merge(base, ours, theirs), merge(base, theirs, ours));
        }
    }
}
