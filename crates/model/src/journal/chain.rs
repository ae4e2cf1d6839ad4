//! The chain: lines written one after another, and followed again with distrust.
//!
//! INVARIANT: a line has one spelling. What is read is written once more and must come out the
//! same, so an added field, a space, another order or another escape is found even in the last
//! line, which no later hash covers. What the last line *says* is protected by the head only.

use std::io;
use std::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use super::{Event, GENESIS, Line};
use crate::text::misleads;

impl<E: Serialize> Line<E> {
    /// The line as it stands in a journal, without its newline.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        let mut bytes = Vec::new();
        self.write(&mut bytes)?;
        Ok(String::from_utf8(bytes).expect("JSON is written as text"))
    }

    fn write(&self, out: &mut Vec<u8>) -> Result<(), serde_json::Error> {
        self.serialize(&mut serde_json::Serializer::with_formatter(out, Inert))
    }
}

/// Compact JSON that is text and nothing else to a reader of lines and to a terminal.
///
/// HOSTILE: `serde_json` escapes the control characters of ASCII only. NEL, U+2028 and U+2029 end a
/// line for some readers, and what reorders text shows another line than the one that is there.
struct Inert;

impl serde_json::ser::Formatter for Inert {
    fn write_string_fragment<W>(&mut self, out: &mut W, fragment: &str) -> io::Result<()>
    where
        W: ?Sized + io::Write,
    {
        if fragment.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
            return out.write_all(fragment.as_bytes());
        }
        let mut rest = fragment;
        while let Some(at) = rest.find(misleads) {
            let (plain, from) = rest.split_at(at);
            out.write_all(plain.as_bytes())?;
            let mut after = from.chars();
            for c in after.by_ref().take(1) {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    write!(out, "\\u{unit:04x}")?;
                }
            }
            rest = after.as_str();
        }
        out.write_all(rest.as_bytes())
    }
}

/// Appends lines to a chain without doing any IO.
#[derive(Debug, Clone)]
pub struct Chain {
    sequence: u64,
    head: String,
}

impl Default for Chain {
    fn default() -> Self {
        Self {
            sequence: 0,
            head: GENESIS.to_owned(),
        }
    }
}

impl Chain {
    /// The next line, newline included.
    pub fn append<E: Serialize>(
        &mut self,
        time_us: i64,
        event: E,
    ) -> Result<String, serde_json::Error> {
        let line = Line {
            sequence: self.sequence,
            time_us,
            previous: self.head.clone(),
            event,
        };
        let mut text = line.to_json()?;
        self.head = hash_line(text.as_bytes());
        self.sequence += 1;
        text.push('\n');
        Ok(text)
    }

    /// The hash of the last line.
    pub fn head(&self) -> &str {
        &self.head
    }

    /// How many lines there are.
    pub fn lines(&self) -> u64 {
        self.sequence
    }
}

/// Where a chain breaks. Lines are counted from 1.
#[derive(Debug, thiserror::Error)]
pub enum ChainError {
    #[error("line {line} is not a line of a journal")]
    ParseLine {
        line: u64,
        #[source]
        source: serde_json::Error,
    },
    #[error(
        "line {line} is not spelled as a journal spells it: something was added to it or rewritten"
    )]
    Respelled { line: u64 },
    #[error(
        "line {line} says that it is line {says}: lines are missing, were added, or changed places"
    )]
    OutOfOrder { line: u64, says: u64 },
    #[error("line {line} does not follow from the line before it: one of the two was changed")]
    Broken { line: u64 },
    #[error("line {line} is cut off")]
    CutOff { line: u64 },
}

/// The lines of a journal, each checked against those before it. Ends after the first that does not
/// belong.
#[derive(Debug)]
pub struct Lines<'a, E = Event> {
    rest: &'a [u8],
    taken: u64,
    head: String,
    spelled: Vec<u8>,
    events: PhantomData<E>,
}

impl<'a> Lines<'a> {
    /// Those of the journal of a run.
    pub fn new(journal: &'a [u8]) -> Self {
        Self::of(journal)
    }
}

impl<'a, E: Serialize + DeserializeOwned> Lines<'a, E> {
    /// Those of any chain.
    pub fn of(journal: &'a [u8]) -> Self {
        Self {
            rest: journal,
            taken: 0,
            head: GENESIS.to_owned(),
            spelled: Vec::new(),
            events: PhantomData,
        }
    }

    /// The hash of the last line that was given.
    pub fn head(&self) -> &str {
        &self.head
    }

    /// The chain that goes on after the last line that was given.
    pub fn go_on(&self) -> Chain {
        Chain {
            sequence: self.taken,
            head: self.head.clone(),
        }
    }

    fn check(&mut self, raw: &[u8]) -> Result<Line<E>, ChainError> {
        let number = self.taken + 1;
        let line: Line<E> =
            serde_json::from_slice(raw).map_err(|source| ChainError::ParseLine {
                line: number,
                source,
            })?;
        self.spelled.clear();
        let written = line.write(&mut self.spelled);
        if written.is_err() || self.spelled != raw {
            return Err(ChainError::Respelled { line: number });
        }
        if line.sequence != self.taken {
            return Err(ChainError::OutOfOrder {
                line: number,
                says: line.sequence.saturating_add(1),
            });
        }
        if line.previous != self.head {
            return Err(ChainError::Broken { line: number });
        }
        self.head = hash_line(raw);
        self.taken = number;
        Ok(line)
    }
}

impl<E: Serialize + DeserializeOwned> Iterator for Lines<'_, E> {
    type Item = Result<Line<E>, ChainError>;

    fn next(&mut self) -> Option<Self::Item> {
        // Only this byte ends a line: a carriage return before it belongs to the line.
        let rest = std::mem::take(&mut self.rest);
        let Some(end) = rest.iter().position(|&byte| byte == b'\n') else {
            let line = self.taken + 1;
            return (!rest.is_empty()).then_some(Err(ChainError::CutOff { line }));
        };
        let checked = self.check(&rest[..end]);
        if checked.is_ok() {
            self.rest = &rest[end + 1..];
        }
        Some(checked)
    }
}

fn hash_line(line: &[u8]) -> String {
    crate::hex(&Sha256::digest(line))
}

#[cfg(test)]
mod tests;
