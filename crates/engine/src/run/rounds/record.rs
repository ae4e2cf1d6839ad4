//! What is said of a loop when its run is sealed: in the result, and in the journal.

use std::fs;
use std::path::Path;

use ringfence_model::changes::ChangeSet;
use ringfence_model::check::Checks;
use ringfence_model::journal::Event;
use ringfence_model::rounds::{Found, Iteration, Last, LoopOutcome, Looped};

use super::InLoop;
use crate::attend::Attended;
use crate::bundle::Patch;
use crate::checks;
use crate::error::Error;
use crate::journal::JournalFile;

/// What came of it.
pub(crate) struct Worked {
    /// All iterations together; it ended as the last one did.
    pub attended: Attended,
    pub(super) looped: Option<InLoop>,
}

impl Worked {
    /// The checks of the run, where the last iteration was checked and its patch is the one that was
    /// sealed. They are told as every run tells them.
    pub fn checked(
        &self,
        patch_sha256: &str,
        logs: &Path,
        journal: &mut JournalFile,
    ) -> Result<Option<Checks>, Error> {
        let own = self.looped.as_ref().filter(|own| own.open.is_none());
        let checked = own.and_then(|own| own.checked.as_ref());
        let Some(checked) = checked.filter(|checked| checked.patch_sha256 == patch_sha256) else {
            return Ok(None);
        };
        for (number, report) in checked.checks.reports.iter().enumerate() {
            for own in &report.executions {
                journal.append(checks::ended(number, own.tree, &own.ran))?;
            }
        }
        // Where it does not go there, the logs are found by what the results kept say.
        let _ = fs::rename(&checked.logs, logs);
        Ok(Some(checked.checks.clone()))
    }

    /// The whole loop, now that the run is sealed and validated.
    pub fn looped(
        &self,
        set: &ChangeSet,
        patch: &Patch,
        checks: &Checks,
        journal: &mut JournalFile,
    ) -> Result<Option<Looped>, Error> {
        let Some((own, rounds)) = self
            .looped
            .as_ref()
            .and_then(|own| Some((own, own.rounds?)))
        else {
            return Ok(None);
        };
        let mut iterations = own.iterations.clone();
        if let Some(ended) = own.open {
            let iteration = Iteration {
                number: ended.number,
                outcome: ended.outcome,
                exit_code: ended.code,
                signal: ended.signal,
                duration_ms: ended.duration_ms,
                changed_files: super::super::changed_files(set).len() as u64,
                insertions: patch.stats.insertions,
                deletions: patch.stats.deletions,
                patch_sha256: patch.sha256.clone(),
                kept: true,
                checks: Found::of(checks),
            };
            journal.append(iteration_ended(&iteration))?;
            iterations.push(iteration);
        }
        let last = Last {
            outcome: self.attended.outcome,
            code: self.attended.code,
            changed: !set.changes.is_empty(),
            moved: set.moved().next().is_some(),
            checks,
        };
        Ok(Some(Looped {
            outcome: LoopOutcome::of(&last),
            most: rounds.iterations,
            agent: rounds.agent,
            baseline: own.baseline.clone(),
            iterations,
            notes: own.notes.clone(),
        }))
    }
}

/// What the journal says of an iteration.
pub(crate) fn iteration_ended(iteration: &Iteration) -> Event {
    Event::IterationEnded {
        iteration: iteration.number,
        outcome: iteration.outcome,
        code: iteration.exit_code,
        signal: iteration.signal,
        duration_ms: iteration.duration_ms,
        changed: iteration.changed_files,
        patch_sha256: iteration.patch_sha256.clone(),
    }
}
