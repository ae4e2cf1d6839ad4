//! Needles across line breaks: programs break base64 and hexadecimal text into lines or groups.

use std::ops::Range;

use super::forms::Form;

/// BOUND: fewer bytes than this are found by chance where blanks do not count.
const MIN_WRAPPED: usize = 8;
/// BOUND: backslashes before the letter of an escaped line break: JSON in JSON has two, once more four.
const MAX_BACKSLASHES: usize = 4;

/// Whether a form is also found with line breaks in it.
pub(super) fn may_be_wrapped(form: &Form) -> bool {
    let coded = ["base64", "hex", "plain"].contains(&form.name);
    coded && form.bytes.len() >= MIN_WRAPPED && Unwrapped::of(&form.bytes).is_none()
}

/// A text without its line breaks and blanks.
pub(super) struct Unwrapped {
    pub(super) text: Vec<u8>,
    /// Where each byte was, in the text with line breaks.
    at: Vec<usize>,
}

impl Unwrapped {
    /// `None`: the text has no line break.
    pub(super) fn of(text: &[u8]) -> Option<Self> {
        let first = (0..text.len()).find(|at| break_length(&text[*at..]) > 0)?;
        let mut own = Self {
            text: text[..first].to_vec(),
            at: (0..first).collect(),
        };
        let mut at = first;
        while at < text.len() {
            match break_length(&text[at..]) {
                0 => {
                    own.text.push(text[at]);
                    own.at.push(at);
                    at += 1;
                }
                length => at += length,
            }
        }
        Some(own)
    }

    /// Where a part is in the text with line breaks.
    pub(super) fn place(&self, part: Range<usize>) -> (usize, usize) {
        // A form is never empty.
        (self.at[part.start], self.at[part.end - 1] + 1)
    }
}

impl Drop for Unwrapped {
    fn drop(&mut self) {
        zeroize::Zeroize::zeroize(&mut self.text);
    }
}

/// Line breaks and blanks in URLs, also coded twice; in pages; and behind the backslash of JSON.
const PERCENT: [&[u8]; 8] = [
    b"%0a", b"%0d", b"%20", b"%09", b"%250a", b"%250d", b"%2520", b"%2509",
];
const ENTITIES: [&[u8]; 4] = [b"&#10;", b"&#13;", b"&#xa;", b"&#xd;"];
const UNICODE: [&[u8]; 4] = [b"u000a", b"u000d", b"u0020", b"u0009"];

/// The length of the escape that a text begins with, in upper or lower case; 0 if there is none.
fn escape_length(text: &[u8], escapes: &[&[u8]]) -> usize {
    let begins = |escape: &&&[u8]| {
        text.get(..escape.len())
            .is_some_and(|begin| begin.eq_ignore_ascii_case(escape))
    };
    escapes.iter().find(begins).map_or(0, |escape| escape.len())
}

/// How many bytes of a line break, blank or escape of these a text begins with.
fn break_length(text: &[u8]) -> usize {
    match text {
        [b'\r' | b'\n' | b' ' | b'\t', ..] => 1,
        [b'\\', ..] => {
            let marks = text.iter().take(MAX_BACKSLASHES);
            let marks = marks.take_while(|byte| **byte == b'\\').count();
            match text.get(marks) {
                Some(b'n' | b'r' | b't') => marks + 1,
                // A line that is continued, in a shell.
                Some(b'\r' | b'\n') => marks,
                Some(b'u') => match escape_length(&text[marks..], &UNICODE) {
                    0 => 0,
                    length => marks + length,
                },
                _ => 0,
            }
        }
        [b'%', ..] => escape_length(text, &PERCENT),
        [b'&', ..] => escape_length(text, &ENTITIES),
        // Quoted-printable.
        [b'=', b'\r', b'\n', ..] => 3,
        [b'=', b'\n', ..] => 2,
        _ => 0,
    }
}

/// `instead`, with line breaks where `matched` has them.
pub(super) fn with_breaks_of(matched: &[u8], instead: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(matched.len());
    let mut rest = instead.iter();
    let mut at = 0;
    while at < matched.len() {
        match break_length(&matched[at..]) {
            0 => {
                out.extend(rest.next());
                at += 1;
            }
            length => {
                out.extend_from_slice(&matched[at..at + length]);
                at += length;
            }
        }
    }
    out.extend(rest);
    out
}
