//! What is told of a campaign while it runs: to a table, to lines, or to a program.

use ringfence_model::campaign::TaskState;
use serde::Serialize;

use tracing::{debug, info, warn};

use super::report::Counts;
use crate::store::TaskRecord;

/// Something that happened.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Told<'a> {
    /// Work begins.
    Begun {
        campaign: &'a str,
        tasks: &'a [TaskRecord],
        parallel: usize,
    },
    /// A run of a task begins.
    Task {
        task: &'a str,
        number: u32,
        attempt: u32,
        of: u32,
    },
    /// A step of that run begins.
    Step {
        task: &'a str,
        number: u32,
        attempt: u32,
        step: &'a str,
    },
    /// It could not be run, which was not its fault; it is tried again.
    Retry {
        task: &'a str,
        number: u32,
        after_seconds: u64,
        why: &'a str,
    },
    /// A task is over.
    Over { task: &'a TaskRecord },
    /// Nothing more is begun.
    Stopping { why: &'a str },
    /// For a person.
    Note { note: &'a str },
    /// Nothing runs any more.
    Ended { counts: &'a Counts },
}

/// Who is told. From several threads at once.
pub trait Watcher: Sync {
    fn told(&self, told: &Told<'_>);
    /// Some time has passed.
    fn tick(&self) {}
}

/// One who is told, and the trace beside it.
pub(super) struct Traced<'a>(pub &'a dyn Watcher);

impl Watcher for Traced<'_> {
    fn told(&self, told: &Told<'_>) {
        told.trace();
        self.0.told(told);
    }

    fn tick(&self) {
        self.0.tick();
    }
}

impl Told<'_> {
    /// HOSTILE: reasons and notes may have an agent's words in them: they are escaped. What lies below
    /// their first line is what a program printed, and is not told.
    fn trace(&self) {
        match self {
            Self::Begun {
                tasks, parallel, ..
            } => info!(tasks = tasks.len(), parallel, "campaign began"),
            Self::Task {
                task,
                number,
                attempt,
                of,
            } => info!(task, number, attempt, of, "task began"),
            Self::Step {
                number,
                attempt,
                step,
                ..
            } => debug!(number, attempt, ?step, "task step"),
            Self::Retry {
                task,
                number,
                after_seconds,
                why,
            } => {
                let why = first_line(why);
                warn!(
                    task,
                    number,
                    after_seconds,
                    ?why,
                    "task waits to be tried again"
                );
            }
            Self::Over { task: own } => info!(
                task = own.task,
                number = own.number,
                state = own.state.as_str(),
                run = own.run.map(tracing::field::display),
                why = own
                    .why
                    .as_deref()
                    .map(first_line)
                    .map(tracing::field::debug),
                tries = own.tries,
                ms = own.figures.duration_ms,
                "task ended"
            ),
            Self::Stopping { why } => warn!(?why, "nothing more is begun"),
            Self::Note { note } => warn!(note = ?first_line(note), "note"),
            Self::Ended { counts } => {
                info!(tasks = counts.tasks, over = counts.over(), "campaign ended");
            }
        }
    }

    /// Whether somebody may want to know it who looks only now and then.
    pub fn matters(&self) -> bool {
        match self {
            Self::Step { .. } => false,
            Self::Over { task } => task.state != TaskState::Waiting,
            _ => true,
        }
    }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}
