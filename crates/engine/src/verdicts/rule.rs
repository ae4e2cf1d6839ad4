//! Why a run that has just ended is held, and whether a rule of the host's policy approves it.

use ringfence_model::holding::{self, ChecksSeen, Ended, Holding};
use ringfence_model::verdict::{By, Decision, Hold};

use super::{Anyway, Deciding, HELD, Verdict, record};
use crate::error::Error;
use crate::home::Home;
use crate::run::RunResult;
use crate::store::{FinishedRun, Store};

/// Adds to the end of a run why it is held.
pub(crate) fn hold(end: &mut FinishedRun, holding: &Holding, result: &RunResult) {
    let holds: Vec<Hold> = holding::holds(holding, &ended(result));
    let holds = serde_json::to_value(holds).expect("plain data always serialises");
    end.detail.insert(HELD.to_owned(), holds);
}

/// Lets the host's rule decide, where there is one and it applies.
pub(crate) fn by_rule(
    home: &Home,
    store: &Store,
    holding: &Holding,
    result: &RunResult,
) -> Result<Option<Verdict>, Error> {
    // Nothing to take is nothing to approve.
    if result.changes.is_empty() {
        return Ok(None);
    }
    let Some(text) = holding::auto_approve(holding, &ended(result)) else {
        return Ok(None);
    };
    let run = store.run(result.run)?;
    let deciding = Deciding {
        decision: Decision::Approved,
        by: By::Rule { text },
        why: None,
        seen_sha256: None,
        shown: None,
        anyway: Anyway::No,
    };
    record(home, store, &run, deciding).map(Some)
}

fn ended(result: &RunResult) -> Ended<'_> {
    let bytes = std::fs::metadata(&result.patch).map(|metadata| metadata.len());
    Ended {
        status: result.status,
        lines: result.insertions + result.deletions,
        // A patch that cannot be looked at is not small.
        bytes: bytes.unwrap_or(u64::MAX),
        paths: &result.changed_files,
        flags: &result.flags,
        checks: match &result.checks {
            checks if checks.is_none() => ChecksSeen::Absent,
            checks if checks.hold() => ChecksSeen::Hold,
            _ => ChecksSeen::Fail,
        },
        evidence_complete: result.evidence.as_ref().is_some_and(|all| all.complete),
    }
}
