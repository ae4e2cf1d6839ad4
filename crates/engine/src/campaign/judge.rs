//! What a run says of its task. One place: whatever else comes to decide on tasks decides here.

use ringfence_model::ByteText;
use ringfence_model::campaign::{Figures, Spent, TaskState};
use ringfence_model::check::{CheckReport, Tree};
use ringfence_model::outcome::{Outcome, RunStatus};

use super::CampaignError;
use crate::error::{Error, ErrorKind};
use crate::run::RunResult;

/// What came of one run of a task.
#[derive(Clone, Debug)]
pub(super) struct Judged {
    pub state: TaskState,
    pub why: Option<String>,
    pub figures: Figures,
    /// What it changed.
    pub changed: Vec<ByteText>,
}

/// Of a run that was packed. What the agent claims counts for nothing.
pub(super) fn judge(result: &RunResult) -> Judged {
    let reports = &result.checks.reports;
    let lost = reports.iter().filter(|report| !report.holds());
    let lost: Vec<&CheckReport> = lost.collect();
    let succeeded = result.status == RunStatus::Done;
    let (state, why) = match result.outcome {
        Outcome::Cancelled => (TaskState::Cancelled, Some("it was stopped".to_owned())),
        Outcome::RuntimeLost => (
            TaskState::Infrastructure,
            Some(format!("the agent {}", result.ending())),
        ),
        _ if result.status == RunStatus::BaseMoved => (
            TaskState::BaseMoved,
            Some("the folder changed during the run where the agent changed it".to_owned()),
        ),
        _ if !succeeded => {
            let why = match &lost[..] {
                [first, more @ ..] if result.out_of_time().is_some() => {
                    let lost = not_held(first, more.len());
                    format!("{lost}; no time was left to send the agent back")
                }
                _ => format!("the agent {}{}", result.ending(), left(result)),
            };
            (TaskState::Failed, Some(why))
        }
        _ if result.changed_files.is_empty() => (
            TaskState::NoChange,
            Some("the agent succeeded and changed nothing".to_owned()),
        ),
        _ if !lost.is_empty() && result.checks.was_cancelled() => {
            let why = "it was stopped while it was checked";
            (TaskState::Cancelled, Some(why.to_owned()))
        }
        _ if !lost.is_empty() => {
            let looped = result.rounds.as_ref();
            let after = match looped.map_or(1, |looped| looped.iterations.len()) {
                0 | 1 => String::new(),
                count => format!("after {count} iterations "),
            };
            let why = format!("{after}{}", not_held(lost[0], lost.len() - 1));
            (TaskState::Exhausted, Some(why))
        }
        _ => (TaskState::Passed, None),
    };
    Judged {
        state,
        why,
        figures: Figures {
            changed_files: result.changed_files.len() as u64,
            insertions: result.insertions,
            deletions: result.deletions,
            checks: reports.len() as u64,
            checks_held: (reports.len() - lost.len()) as u64,
            duration_ms: result.total_ms,
            spent: spent(result),
            ..Figures::default()
        },
        changed: result.changed_files.clone(),
    }
}

/// A check that does not hold, and how many more do not. One that hangs is told apart: what it would
/// have said nobody knows.
fn not_held(report: &CheckReport, others: usize) -> String {
    let mut trees = [Tree::Patched, Tree::Exam].into_iter();
    let hung = trees.any(|tree| {
        let last = report.last(tree);
        last.is_some_and(|ran| ran.outcome == Outcome::TimedOut)
    });
    let what = if hung {
        "a check was stopped at its time limit"
    } else {
        "a check does not hold"
    };
    let more = match others {
        0 => String::new(),
        others => format!(", and {others} more"),
    };
    format!("{what}: {}{more}", report.command)
}

/// What it leaves all the same.
fn left(result: &RunResult) -> String {
    match result.changed_files.len() {
        0 => String::new(),
        1 => "; it changed 1 file before that".to_owned(),
        count => format!("; it changed {count} files before that"),
    }
}

/// What an agent says that it used.
fn spent(result: &RunResult) -> Spent {
    let Some(usage) = &result.usage else {
        return Spent::default();
    };
    let tokens = [usage.input_tokens, usage.output_tokens];
    let tokens = tokens.into_iter().flatten();
    Spent {
        tokens: tokens.fold(0, u64::saturating_add),
        cost_micros: usage.cost_usd_micros.unwrap_or_default(),
    }
}

/// Of a run that could not be made. `None`: it is worth another try.
pub(super) fn refused(error: &Error) -> Option<TaskState> {
    let moved = matches!(
        error,
        Error::Campaign(
            CampaignError::OtherCommit { .. }
                | CampaignError::OtherPlace { .. }
                | CampaignError::FileGone(_)
                | CampaignError::FilesMoved { .. }
        )
    );
    if moved {
        return Some(TaskState::BaseMoved);
    }
    // Its program or its key does not come by itself.
    if matches!(error, Error::Agent(_)) {
        return Some(TaskState::Failed);
    }
    match error.kind() {
        ErrorKind::Invalid | ErrorKind::NotFound | ErrorKind::Denied => Some(TaskState::Failed),
        ErrorKind::Conflict | ErrorKind::Unavailable | ErrorKind::Internal => None,
    }
}

/// An error and all that lies below it, in one line.
pub(super) fn told(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut below = error.source();
    while let Some(cause) = below {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        below = cause.source();
    }
    text
}
