//! What is known to have happened in a sandbox, put together from what was observed: as it comes
//! during a run, or from a journal afterwards.

use std::collections::BTreeMap;

use ringfence_model::gate::Traffic;
use ringfence_model::journal::{Event, Line};
use ringfence_model::observed::{
    Exec, ExecFailed, Exit, Observed, Program, Refused, Version, Write, Wrote,
};

/// Everything that was observed, in order.
///
/// BOUND: what the journal may hold, and what of versions the guest may send.
#[derive(Debug, Default)]
pub struct Evidence {
    pub programs: BTreeMap<u32, Program>,
    pub execs: BTreeMap<u64, Ran>,
    pub failed: Vec<(i64, ExecFailed)>,
    pub writes: Vec<(i64, Write)>,
    /// Each with how many writes had been seen before it.
    pub versions: Vec<(usize, Version)>,
    pub refused: Vec<(i64, Refused)>,
    /// What was asked of the gate, and what came of it.
    pub network: Vec<(i64, Traffic)>,
    /// Whether the gate was gone before the sandbox.
    pub gate_lost: bool,
}

/// How the journal says what was observed; versions of files are not in it.
pub fn event(observed: Observed) -> Result<Event, Version> {
    Ok(match observed {
        Observed::Program(program) => Event::Program(program),
        Observed::Exec(exec) => Event::Exec(exec),
        Observed::ExecFailed(failed) => Event::ExecFailed(failed),
        Observed::Exit(exit) => Event::Exit(exit),
        Observed::Write(write) => Event::Write(write),
        Observed::Refused(refused) => Event::Denial(refused),
        Observed::Version(version) => return Err(version),
    })
}

/// A program that ran.
#[derive(Clone, Debug)]
pub struct Ran {
    pub time_us: i64,
    pub exec: Exec,
    /// Absent where its process became another program, or lived until the end.
    pub exit: Option<Exit>,
    /// How many writes had been seen when it ended.
    pub writes_before_end: usize,
}

impl Evidence {
    /// Takes a fact, as `told` tells it; gives the event that says it in the journal, where one does.
    pub fn take(
        &mut self,
        time_us: i64,
        observed: Observed,
        told: impl FnOnce(Event) -> Event,
    ) -> Option<Event> {
        match event(observed).map(told) {
            Ok(event) => {
                self.keep(time_us, &event);
                Some(event)
            }
            Err(version) => {
                self.versions.push((self.writes.len(), version));
                None
            }
        }
    }

    /// The evidence that a journal holds.
    pub fn of_journal(lines: &[Line]) -> Self {
        let mut evidence = Self::default();
        for line in lines {
            evidence.keep(line.time_us, &line.event);
        }
        evidence
    }

    /// Takes what the journal says.
    pub fn keep(&mut self, time_us: i64, event: &Event) {
        match event {
            Event::Program(program) => {
                self.programs.insert(program.program, program.clone());
            }
            Event::Exec(exec) => {
                let ran = Ran {
                    time_us,
                    exec: exec.clone(),
                    exit: None,
                    writes_before_end: 0,
                };
                self.execs.insert(exec.exec, ran);
            }
            Event::Exit(exit) => {
                if let Some(ran) = self.execs.get_mut(&exit.exec) {
                    ran.exit = Some(exit.clone());
                    ran.writes_before_end = self.writes.len();
                }
            }
            Event::ExecFailed(failed) => self.failed.push((time_us, failed.clone())),
            Event::Write(write) => self.writes.push((time_us, write.clone())),
            Event::Denial(refused) => self.refused.push((time_us, refused.clone())),
            Event::Network(traffic) => self.network.push((time_us, traffic.clone())),
            Event::GateLost { .. } => self.gate_lost = true,
            _ => {}
        }
    }

    /// Writes of which cannot be told where they were.
    pub fn unplaced(&self) -> impl Iterator<Item = &Write> {
        let writes = self.writes.iter().map(|(_, write)| write);
        writes.filter(|write| write.what == Wrote::Unplaced)
    }

    /// An exec and those that led to it, nearest first.
    pub fn lineage(&self, exec: u64) -> impl Iterator<Item = &Ran> {
        let mut next = Some(exec);
        std::iter::from_fn(move || {
            let ran = self.execs.get(&next?)?;
            // HOSTILE: numbers only ever grow; a journal that says otherwise must not be followed
            // in circles.
            next = ran
                .exec
                .replaces
                .or(ran.exec.parent)
                .filter(|&before| before < ran.exec.exec);
            Some(ran)
        })
    }
}
