//! The loop: agent, checks, feedback, agent again, until the checks hold or the bound is met.
//!
//! ```text
//! baseline ─▶ agent ─▶ what it left ─▶ checks ─▶ hold? ─▶ end
//!               ▲                                  │ no, and iterations are left
//!               └──────────── feedback ◀───────────┘
//! ```
//!
//! INVARIANT: what ends the loop is how the agent's process ended and what the host's own checks say.
//! Nothing that the agent claims does.

pub mod feedback;

use serde::{Deserialize, Serialize};

use crate::check::{CheckVerdict, Checks, Counts, Tree};
use crate::outcome::Outcome;

/// How often an agent is sent back, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rounds {
    /// At least 1, at most [`crate::plan::MAX_ROUNDS`].
    pub iterations: u32,
    pub agent: AgentLife,
}

/// Whether an agent is one process for all iterations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentLife {
    /// It is started for each iteration.
    #[default]
    Restarts,
    /// It stays, and says when its turn is over.
    Stays,
}

impl AgentLife {
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// What came of a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoopOutcome {
    /// The agent ended well, left a change, and every check holds.
    Passed,
    /// The agent ended well and left a change. Nobody asked for a check.
    Unchecked,
    /// All iterations were used, and a check does not hold.
    Exhausted,
    /// The agent ended well, and left no change at all.
    NoChange,
    /// The agent could not be started, crashed, or met a bound that ends the run.
    Failed,
    /// The time of the run is over.
    TimedOut,
    /// Stopped by the user.
    Cancelled,
    /// The folder moved under what changed: there is nothing to check it on.
    BaseMoved,
}

impl LoopOutcome {
    /// The word in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Unchecked => "unchecked",
            Self::Exhausted => "exhausted",
            Self::NoChange => "no_change",
            Self::Failed => "failed",
            Self::TimedOut => "timed_out",
            Self::Cancelled => "cancelled",
            Self::BaseMoved => "base_moved",
        }
    }

    /// Of how the last iteration ended.
    pub fn of(last: &Last<'_>) -> Self {
        match last.outcome {
            Outcome::Cancelled => Self::Cancelled,
            Outcome::TimedOut => Self::TimedOut,
            _ if last.moved => Self::BaseMoved,
            _ if !ended_well(last.outcome, last.code) => Self::Failed,
            _ if !last.changed => Self::NoChange,
            _ if last.checks.is_none() => Self::Unchecked,
            _ if last.checks.was_cancelled() => Self::Cancelled,
            _ if last.checks.hold() => Self::Passed,
            _ => Self::Exhausted,
        }
    }
}

/// How the last iteration ended, and what there is of it.
#[derive(Clone, Copy, Debug)]
pub struct Last<'a> {
    pub outcome: Outcome,
    pub code: Option<i32>,
    pub changed: bool,
    pub moved: bool,
    pub checks: &'a Checks,
}

/// Whether an agent did what it should, by its own process.
pub fn ended_well(outcome: Outcome, code: Option<i32>) -> bool {
    outcome == Outcome::TurnEnded || (outcome == Outcome::Exited && code == Some(0))
}

/// Whether an agent that ended like this can be sent back. Bounds of the whole run cannot be met twice,
/// and what could not be started once cannot be started then.
pub fn may_go_on(outcome: Outcome) -> bool {
    matches!(
        outcome,
        Outcome::Exited
            | Outcome::Signaled
            | Outcome::TurnEnded
            | Outcome::OutOfMemory
            | Outcome::TooManyProcesses
            | Outcome::FileTooLarge
    )
}

/// A loop that is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Looped {
    pub outcome: LoopOutcome,
    /// How many iterations there could have been.
    pub most: u32,
    #[serde(default, skip_serializing_if = "AgentLife::is_default")]
    pub agent: AgentLife,
    /// Each check on the files before the agent began.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub baseline: Vec<Baseline>,
    /// In order of time.
    pub iterations: Vec<Iteration>,
    /// For a person: what did not go as one might think.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// A check before the agent began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Baseline {
    pub command: String,
    pub outcome: Outcome,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// What the runner printed, where it is known. A hint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counts: Option<Counts>,
}

impl Baseline {
    /// Of each check that ran.
    pub fn of(checks: &Checks) -> Vec<Self> {
        let reports = checks.reports.iter();
        let one = reports.filter_map(|report| {
            let ran = report.last(Tree::Base)?;
            Some(Self {
                command: report.command.clone(),
                outcome: ran.outcome,
                exit_code: ran.exit_code,
                signal: ran.signal,
                counts: ran.counts.clone(),
            })
        });
        one.collect()
    }
}

/// One time that the agent was started, or told to go on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Iteration {
    /// From 1.
    pub number: u32,
    pub outcome: Outcome,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// The agent's own time.
    pub duration_ms: u64,
    /// What differs from the base when it ended; not from the iteration before.
    pub changed_files: u64,
    pub insertions: u64,
    pub deletions: u64,
    /// SHA-256 (hex) of the patch from the base.
    pub patch_sha256: String,
    /// Whether that patch is kept with the run; see [`MAX_KEPT_BYTES`].
    pub kept: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<Found>,
}

/// BOUND: bytes of patches of iterations that are kept with a run. The last one is in the bundle.
pub const MAX_KEPT_BYTES: u64 = 64 << 20;

/// What a check said of an iteration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    pub command: String,
    pub verdict: CheckVerdict,
    /// With protected files as they were. Absent where the patch touches none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exam: Option<CheckVerdict>,
}

impl Found {
    pub fn of(checks: &Checks) -> Vec<Self> {
        let one = checks.reports.iter().map(|report| Self {
            command: report.command.clone(),
            verdict: report.verdict,
            exam: report.exam,
        });
        one.collect()
    }

    pub fn holds(&self) -> bool {
        self.verdict.holds() && self.exam.is_none_or(CheckVerdict::holds)
    }
}

impl Iteration {
    /// How the agent ended, in a few words.
    pub fn ending(&self) -> String {
        match (self.outcome, self.exit_code, self.signal) {
            (Outcome::Exited, Some(code), _) => format!("exit {code}"),
            (Outcome::Signaled, _, Some(signal)) => format!("signal {signal}"),
            (outcome, ..) => outcome.as_str().replace('_', " "),
        }
    }

    /// How many checks hold, in a few words.
    pub fn standing(&self) -> String {
        let hold = self.checks.iter().filter(|found| found.holds()).count();
        match self.checks.len() {
            0 => "no check".to_owned(),
            all => format!("{hold} of {all} checks hold"),
        }
    }
}

#[cfg(test)]
mod tests;
