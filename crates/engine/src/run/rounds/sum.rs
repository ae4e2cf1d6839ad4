//! All iterations of a run as one command: times add up, and it ended as the last one did.

use std::time::Instant;

use ringfence_model::limits::{HumanBytes, Limit, Limits};
use ringfence_model::outcome::Outcome;
use ringfence_model::rounds::AgentLife;

use super::{Ended, InLoop, Worked};
use crate::attend::{Attended, Running};
use crate::journal::MAX_JOURNAL_BYTES;

/// What was seen so far.
pub(super) struct Sum(Attended);

impl Default for Sum {
    fn default() -> Self {
        Self(Attended {
            outcome: Outcome::NotStarted,
            code: None,
            signal: None,
            not_started: None,
            duration_ms: 0,
            cpu_ms: 0,
            peak_bytes: 0,
            leftovers: Vec::new(),
            hits: Vec::new(),
        })
    }
}

impl Sum {
    /// The agent's process has ended.
    pub(super) fn ended(
        &mut self,
        number: u32,
        attended: Attended,
        life: AgentLife,
        turn: Instant,
    ) -> Ended {
        let duration_ms = match life {
            AgentLife::Restarts => attended.duration_ms,
            // Its process is older than this turn.
            AgentLife::Stays => turn.elapsed().as_millis() as u64,
        };
        let all = &mut self.0;
        all.outcome = attended.outcome;
        all.code = attended.code;
        all.signal = attended.signal;
        all.not_started = attended.not_started;
        all.duration_ms += duration_ms;
        all.cpu_ms += attended.cpu_ms;
        all.peak_bytes = all.peak_bytes.max(attended.peak_bytes);
        all.leftovers = attended.leftovers;
        all.hits.extend(attended.hits);
        self.last(number, duration_ms)
    }

    /// It stays, and waits.
    pub(super) fn turn_over(&mut self, number: u32, turn: Instant, command: &mut Running) -> Ended {
        let duration_ms = turn.elapsed().as_millis() as u64;
        let all = &mut self.0;
        all.outcome = Outcome::TurnEnded;
        (all.code, all.signal) = (None, None);
        all.duration_ms += duration_ms;
        all.leftovers.clear();
        all.hits.extend(command.take_hits());
        self.last(number, duration_ms)
    }

    fn last(&self, number: u32, duration_ms: u64) -> Ended {
        Ended {
            number,
            outcome: self.0.outcome,
            code: self.0.code,
            signal: self.0.signal,
            duration_ms,
        }
    }

    /// The user stopped it between two iterations.
    pub(super) fn stopped(&mut self) {
        self.0.outcome = Outcome::Cancelled;
    }

    /// The user stopped it before the first one.
    pub(super) fn cancelled(mut self, own: InLoop) -> Worked {
        self.stopped();
        self.worked(own)
    }

    /// No time is left for another one.
    pub(super) fn time_over(&mut self, limits: &Limits) {
        self.0.outcome = Outcome::TimedOut;
        let seconds = limits.time_seconds.unwrap_or_default();
        let detail = format!("{seconds} s for all iterations together");
        self.0.hits.push((Limit::Time, detail));
    }

    /// No room is left in the journal for another one.
    pub(super) fn journal_full(&mut self) {
        self.0.outcome = Outcome::JournalFull;
        let detail = format!("{} allowed", HumanBytes(MAX_JOURNAL_BYTES));
        self.0.hits.push((Limit::Journal, detail));
    }

    pub(super) fn worked(self, own: InLoop) -> Worked {
        Worked {
            attended: self.0,
            looped: Some(own),
        }
    }
}
