//! A journal as a story: its lines, and what they say of each other.

use std::collections::BTreeMap;

use ringfence_model::ByteText;
use ringfence_model::journal::{Event, Line};
use ringfence_model::observed::Exec;

use super::{Followed, Kept, Life, follow};
use crate::evidence::{Evidence, Ran};
use crate::journal::JournalError;

/// The lines of one journal that its chain holds, and the evidence in them.
#[derive(Debug)]
pub struct Story {
    pub lines: Vec<Line>,
    pub evidence: Evidence,
    life: Life,
    /// The exec that followed in the same process.
    became: BTreeMap<u64, u64>,
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Exited(i32),
    Signal(i32),
    /// It ended, and how is not known.
    Unknown,
    /// Its process went on as this exec.
    Became(u64),
    /// It runs, as far as the journal knows.
    Running,
    /// Nobody saw it end: it lived until everything was ended, or until the journal was.
    Unseen,
}

impl Ending {
    pub fn is_failure(self) -> bool {
        match self {
            Self::Exited(code) => code != 0,
            Self::Signal(_) => true,
            Self::Unknown | Self::Became(_) | Self::Running | Self::Unseen => false,
        }
    }
}

/// A file that was executed, and how often.
#[derive(Debug)]
pub struct Used<'a> {
    pub program: u32,
    pub path: &'a ByteText,
    pub size: Option<u64>,
    pub sha256: Option<&'a str>,
    pub runs: u64,
}

impl Story {
    /// Reads a journal as far as its chain holds.
    pub fn read(kept: &Kept) -> Result<(Self, Followed), JournalError> {
        let mut lines = Vec::new();
        let followed = follow(kept, |line| lines.push(line))?;
        Ok((Self::of(lines, kept.life), followed))
    }

    pub fn of(lines: Vec<Line>, life: Life) -> Self {
        let evidence = Evidence::of_journal(&lines);
        let became = evidence
            .execs
            .values()
            .filter_map(|ran| Some((ran.exec.replaces?, ran.exec.exec)))
            // HOSTILE: numbers only ever grow.
            .filter(|(before, after)| before < after)
            .collect();
        Self {
            lines,
            evidence,
            life,
            became,
        }
    }

    /// When the journal begins.
    pub fn began_us(&self) -> i64 {
        self.lines.first().map_or(0, |line| line.time_us)
    }

    pub fn exec(&self, exec: u64) -> Option<&Ran> {
        self.evidence.execs.get(&exec)
    }

    /// Who started it: the exec that its process was, or was a fork of, before.
    pub fn starter(&self, exec: &Exec) -> Option<&Ran> {
        self.evidence.lineage(exec.exec).nth(1)
    }

    /// How a program ended, and how long it ran.
    pub fn ending(&self, ran: &Ran) -> (Ending, Option<u64>) {
        if let Some(exit) = &ran.exit {
            let ending = match (exit.code, exit.signal) {
                (_, Some(signal)) => Ending::Signal(signal),
                (Some(code), None) => Ending::Exited(code),
                (None, None) => Ending::Unknown,
            };
            return (ending, Some(exit.duration_us));
        }
        let next = self.became.get(&ran.exec.exec);
        match next.and_then(|next| self.exec(*next)) {
            Some(next) => {
                let until = next.time_us.saturating_sub(ran.time_us);
                (
                    Ending::Became(next.exec.exec),
                    Some(until.max(0).cast_unsigned()),
                )
            }
            None if self.life == Life::Running => (Ending::Running, None),
            None => (Ending::Unseen, None),
        }
    }

    /// How the exec of this number ended.
    pub fn ending_of(&self, exec: u64) -> Option<Ending> {
        Some(self.ending(self.exec(exec)?).0)
    }

    /// Every file that was executed, in the order of their numbers.
    pub fn programs(&self) -> Vec<Used<'_>> {
        let mut used: BTreeMap<u32, Used<'_>> = BTreeMap::new();
        for ran in self.evidence.execs.values() {
            let program = ran.exec.program;
            let entry = used.entry(program).or_insert_with(|| Used {
                program,
                path: &ran.exec.exe,
                size: None,
                sha256: None,
                runs: 0,
            });
            entry.runs += 1;
        }
        for program in self.evidence.programs.values() {
            let entry = used.entry(program.program).or_insert(Used {
                program: program.program,
                path: &program.path,
                size: None,
                sha256: None,
                runs: 0,
            });
            entry.path = &program.path;
            entry.size = Some(program.size);
            entry.sha256 = program.sha256.as_deref();
        }
        used.into_values().collect()
    }

    /// Whether an event is told with another one: an exit with its exec.
    pub fn is_told_elsewhere(&self, event: &Event) -> bool {
        matches!(event, Event::Exit(exit) if self.exec(exit.exec).is_some())
    }
}
