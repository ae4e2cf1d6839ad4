//! Why a run that has just ended is held, and whether a rule of the host's policy approves it.

use std::ffi::OsStr;
use std::path::Path;

use ringfence_model::ByteText;
use ringfence_model::changes::{Change, ChangeKind};
use ringfence_model::holding::{self, ChecksSeen, Ended};
use ringfence_model::policy::Effective;
use ringfence_model::verdict::{By, Decision, Hold};

use super::{Anyway, Deciding, HELD, Verdict, record};
use crate::error::Error;
use crate::home::Home;
use crate::policy::PROPOSAL;
use crate::run::RunResult;
use crate::store::{FinishedRun, Store};

/// Adds to the end of a run why it is held.
pub(crate) fn hold(end: &mut FinishedRun, policy: &Effective, result: &RunResult) {
    let moved_from = moved_from(result);
    let holds: Vec<Hold> = holding::holds(&policy.holding, &ended(policy, result, &moved_from));
    let holds = serde_json::to_value(holds).expect("plain data always serialises");
    end.detail.insert(HELD.to_owned(), holds);
}

/// Lets the host's rule decide, where there is one and it applies.
pub(crate) fn by_rule(
    home: &Home,
    store: &Store,
    policy: &Effective,
    result: &RunResult,
) -> Result<Option<Verdict>, Error> {
    // Nothing to take is nothing to approve.
    if result.changes.is_empty() {
        return Ok(None);
    }
    let moved_from = moved_from(result);
    let ended = ended(policy, result, &moved_from);
    let Some(text) = holding::auto_approve(&policy.holding, &ended) else {
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

/// HOSTILE: a rename takes a file away that no rule may be about.
fn moved_from(result: &RunResult) -> Vec<ByteText> {
    let from = |change: &Change| match &change.kind {
        ChangeKind::Renamed { from } => Some(from.clone()),
        _ => None,
    };
    result.changes.iter().filter_map(from).collect()
}

fn ended<'a>(policy: &Effective, result: &'a RunResult, moved_from: &'a [ByteText]) -> Ended<'a> {
    let bytes = std::fs::metadata(&result.patch).map(|metadata| metadata.len());
    Ended {
        status: result.status,
        lines: result.insertions + result.deletions,
        // A patch that cannot be looked at is not small.
        bytes: bytes.unwrap_or(u64::MAX),
        paths: &result.changed_files,
        moved_from,
        flags: &result.flags,
        // HOSTILE: whoever writes to a folder can propose a check that always passes. It can fail a
        // run, and vouches for none.
        checks: match &result.checks {
            checks if !checks.hold() || checks.shrank() => ChecksSeen::Fail,
            checks if checks.is_none() || !of_host(policy) => ChecksSeen::Absent,
            _ => ChecksSeen::Hold,
        },
        evidence_complete: result.evidence.as_ref().is_some_and(|all| all.complete),
    }
}

/// Whether a check is one that the host asks for.
fn of_host(policy: &Effective) -> bool {
    let mut checks = policy.review.checks.iter();
    checks.any(|check| Path::new(&check.from.file).file_name() != Some(OsStr::new(PROPOSAL)))
}
