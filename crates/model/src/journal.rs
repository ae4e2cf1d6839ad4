//! The journal: one closed enum of facts about a run, one JSON line each, chained by hash.
//!
//! Line `n` carries the SHA-256 of line `n - 1` as it stands in the file, so that a byte that was
//! flipped and a line that was dropped, added or swapped all break the chain. JSON escapes every
//! control character, so nothing an agent chooses can end a line early.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::ByteText;
use crate::limits::{Graded, Limit};
use crate::observed::{Exec, ExecFailed, Exit, Program, Refused, Write};
use crate::outcome::{Outcome, RunStatus};

/// The hash that the first line names as its predecessor.
pub const GENESIS: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// One line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    pub sequence: u64,
    /// Microseconds since the epoch, by the host's clock.
    pub time_us: i64,
    /// SHA-256 (hex) of the line before, without its newline.
    pub previous: String,
    pub event: Event,
}

/// What can happen. Later versions add to it and never change what is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Event {
    /// What was asked.
    Task {
        run: String,
        argv: Vec<ByteText>,
        folder: ByteText,
        version: String,
    },
    /// What the backend holds the sandbox to.
    Enforced {
        backend: String,
        identity: String,
        limits: Vec<Graded>,
    },
    /// What the sandbox showed from inside before the agent started.
    Proof { probes: Vec<ProbeResult> },
    /// A command was given to the sandbox.
    Command { argv: Vec<ByteText> },
    /// A file that was executed for the first time.
    Program(Program),
    /// A program began to run.
    Exec(Exec),
    /// A program was asked for and not run.
    ExecFailed(ExecFailed),
    /// The process of an exec ended.
    Exit(Exit),
    /// A process opened something for writing, or changed an entry.
    Write(Write),
    /// Something was not let through.
    Denial(Refused),
    /// A bound was met.
    Limit { limit: Limit, detail: String },
    /// The command ended.
    CommandEnded {
        outcome: Outcome,
        code: Option<i32>,
        signal: Option<i32>,
        duration_ms: u64,
        leftovers: u64,
    },
    /// What changed was read from the layer.
    Seal {
        changed: u64,
        omitted: u64,
        patch_sha256: String,
    },
    /// The run is over.
    End { status: RunStatus },
}

/// One thing that was tried from inside, and whether the sandbox stood.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeResult {
    pub probe: String,
    pub held: bool,
    pub detail: String,
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
    pub fn append(&mut self, time_us: i64, event: Event) -> Result<String, serde_json::Error> {
        let line = Line {
            sequence: self.sequence,
            time_us,
            previous: self.head.clone(),
            event,
        };
        let mut text = serde_json::to_string(&line)?;
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

/// Where a chain breaks.
#[derive(Debug, thiserror::Error)]
pub enum ChainError {
    #[error("line {line} is not a journal line")]
    ParseLine {
        line: u64,
        #[source]
        source: serde_json::Error,
    },
    #[error("line {line} does not follow from the line before it")]
    Broken { line: u64 },
    #[error("the last line is cut off")]
    CutOff,
}

/// Reads a whole journal and checks its chain; gives the lines and the head.
pub fn verify(text: &str) -> Result<(Vec<Line>, String), ChainError> {
    let mut lines = Vec::new();
    let mut head = GENESIS.to_owned();
    if !text.is_empty() && !text.ends_with('\n') {
        return Err(ChainError::CutOff);
    }
    for (index, raw) in text.lines().enumerate() {
        let number = index as u64;
        let line: Line = serde_json::from_str(raw).map_err(|source| ChainError::ParseLine {
            line: number + 1,
            source,
        })?;
        if line.previous != head || line.sequence != number {
            return Err(ChainError::Broken { line: number + 1 });
        }
        head = hash_line(raw.as_bytes());
        lines.push(line);
    }
    Ok((lines, head))
}

fn hash_line(line: &[u8]) -> String {
    crate::hex(&Sha256::digest(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn journal() -> String {
        let mut chain = Chain::default();
        let mut text = String::new();
        for argv in [b"a\nb".to_vec(), b"\xff{\"kind\":\"end\"}".to_vec()] {
            let event = Event::Command {
                argv: vec![ByteText(argv)],
            };
            text.push_str(&chain.append(7, event).unwrap());
        }
        let end = Event::End {
            status: RunStatus::Done,
        };
        text.push_str(&chain.append(9, end).unwrap());
        text
    }

    #[test]
    fn a_line_is_a_line_whatever_the_agent_writes() {
        let text = journal();
        assert_eq!(text.lines().count(), 3);
        assert_eq!(verify(&text).unwrap().0.len(), 3);
    }

    #[test]
    fn any_flipped_byte_of_an_earlier_line_is_found() {
        let text = journal();
        let last = text.trim_end().rfind('\n').unwrap();
        for at in 0..last {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            let broken = String::from_utf8(bytes).map_or(true, |t| verify(&t).is_err());
            assert!(broken, "byte {at}");
        }
    }

    #[test]
    fn dropped_added_and_swapped_lines_are_found() {
        let text = journal();
        let lines: Vec<&str> = text.lines().collect();
        for order in [vec![1, 2], vec![0, 2], vec![0, 0, 1, 2], vec![1, 0, 2]] {
            let mixed: String = order.iter().map(|&i| format!("{}\n", lines[i])).collect();
            assert!(verify(&mixed).is_err(), "{order:?}");
        }
        assert!(verify(text.trim_end()).is_err());
    }
}
