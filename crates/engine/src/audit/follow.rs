//! Following a journal from its first line to its last, and what is wrong with it.

use ringfence_model::journal::{ChainError, Event, GENESIS, Line, Lines};

use super::{Kept, Life};
use crate::journal::{JournalError, load};

/// What came of it.
#[derive(Debug)]
pub struct Followed {
    /// Lines that belong, from the first on.
    pub lines: u64,
    pub bytes: u64,
    /// The hash of the last of them.
    pub head: String,
    /// Whether the last of them says that all is over.
    pub is_ended: bool,
    /// The last line is not whole, because it is being written.
    pub is_being_written: bool,
    pub fault: Option<Fault>,
}

/// What is wrong with a journal.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    #[error(transparent)]
    Chain(ChainError),
    #[error("it holds no line")]
    Empty,
    #[error(
        "line {line} is the last here and not the last that {kept_in} knows: it was changed, or lines after it were cut off"
    )]
    OtherHead { line: u64, kept_in: &'static str },
    #[error("line {line} is the last that {kept_in} knows: what follows was added")]
    Added { line: u64, kept_in: &'static str },
}

impl Fault {
    /// The line that shows it, from 1.
    pub fn line(&self) -> u64 {
        match self {
            Self::Chain(
                ChainError::ParseLine { line, .. }
                | ChainError::Respelled { line }
                | ChainError::OutOfOrder { line, .. }
                | ChainError::Broken { line }
                | ChainError::CutOff { line },
            )
            | Self::OtherHead { line, .. } => *line,
            Self::Added { line, .. } => line + 1,
            Self::Empty => 1,
        }
    }
}

/// Gives each line that belongs to `each`, and says how it went.
pub fn follow(kept: &Kept, mut each: impl FnMut(Line)) -> Result<Followed, JournalError> {
    let bytes = load(&kept.path)?;
    let mut lines = Lines::new(&bytes);
    let mut followed = Followed {
        lines: 0,
        bytes: bytes.len() as u64,
        head: GENESIS.to_owned(),
        is_ended: false,
        is_being_written: false,
        fault: None,
    };
    // Where each known head was met.
    let mut met: Vec<Option<u64>> = vec![None; kept.heads.len()];
    while let Some(line) = lines.next() {
        match line {
            Ok(line) => {
                followed.lines += 1;
                followed.is_ended =
                    matches!(line.event, Event::End { .. } | Event::ExecutionEnded { .. });
                for (head, met) in kept.heads.iter().zip(&mut met) {
                    if head.hash == lines.head() {
                        *met = Some(followed.lines);
                    }
                }
                each(line);
            }
            Err(ChainError::CutOff { .. }) if kept.life == Life::Running => {
                followed.is_being_written = true;
            }
            Err(error) => followed.fault = Some(Fault::Chain(error)),
        }
    }
    lines.head().clone_into(&mut followed.head);
    if followed.fault.is_none() {
        followed.fault = end_fault(kept, &followed, &met);
    }
    Ok(followed)
}

/// What only shows at the end.
fn end_fault(kept: &Kept, followed: &Followed, met: &[Option<u64>]) -> Option<Fault> {
    let line = followed.lines;
    if line == 0 && kept.life != Life::Running {
        return Some(Fault::Empty);
    }
    kept.heads.iter().zip(met).find_map(|(head, met)| {
        let kept_in = head.kept_in;
        match *met {
            Some(at) if at == line => None,
            Some(line) => Some(Fault::Added { line, kept_in }),
            None => Some(Fault::OtherHead { line, kept_in }),
        }
    })
}
