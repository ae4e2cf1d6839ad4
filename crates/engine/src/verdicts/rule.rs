//! Why a run that has just ended is held, and whether a rule of the host's policy approves it.

use std::ffi::OsStr;
use std::path::Path;

use ringfence_model::ByteText;
use ringfence_model::changes::Change;
use ringfence_model::holding::{self, ChecksSeen, Ended, routine};
use ringfence_model::policy::Effective;
use ringfence_model::verdict::{By, Decision, Hold};

use super::{Anyway, Deciding, HELD, Verdict, record};
use crate::changes::{Sources, new_bytes, old_bytes};
use crate::error::Error;
use crate::home::Home;
use crate::policy::PROPOSAL;
use crate::run::RunResult;
use crate::store::{FinishedRun, Store};

/// BOUND: a file that is larger is looked at by a person.
const LOOKED_AT_BYTES: u64 = 1 << 20;

/// Changed files that are programs by their content, before or after, or cannot be looked at. Only what a
/// rule could approve is read.
pub(crate) fn programs(policy: &Effective, sources: &Sources, changes: &[Change]) -> Vec<ByteText> {
    let Some(rule) = &policy.holding.auto_approve else {
        return Vec::new();
    };
    if changes.len() as u64 > rule.max_files {
        return Vec::new();
    }
    // HOSTILE: what is not known may be a program.
    let is_program = |content: Option<Vec<u8>>| content.is_none_or(|all| routine::is_program(&all));
    let runs = |change: &&Change| {
        let (old, new) = (change.old.is_some(), change.new.is_some());
        (old && is_program(old_bytes(sources, change, LOOKED_AT_BYTES)))
            || (new && is_program(new_bytes(sources, change, LOOKED_AT_BYTES)))
    };
    let found = changes.iter().filter(runs);
    found.map(|change| change.path.clone()).collect()
}

/// Adds to the end of a run why it is held.
pub(crate) fn hold(
    end: &mut FinishedRun,
    policy: &Effective,
    result: &RunResult,
    programs: &[ByteText],
) {
    let holds: Vec<Hold> = holding::holds(&policy.holding, &ended(policy, result, programs));
    let holds = serde_json::to_value(holds).expect("plain data always serialises");
    end.detail.insert(HELD.to_owned(), holds);
}

/// Lets the host's rule decide, where there is one and it applies.
pub(crate) fn by_rule(
    home: &Home,
    store: &Store,
    policy: &Effective,
    result: &RunResult,
    programs: &[ByteText],
) -> Result<Option<Verdict>, Error> {
    // Nothing to take is nothing to approve.
    if result.changes.is_empty() {
        return Ok(None);
    }
    let ended = ended(policy, result, programs);
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

fn ended<'a>(policy: &Effective, result: &'a RunResult, programs: &'a [ByteText]) -> Ended<'a> {
    let bytes = std::fs::metadata(&result.patch).map(|metadata| metadata.len());
    Ended {
        status: result.status,
        lines: result.insertions + result.deletions,
        // A patch that cannot be looked at is not small.
        bytes: bytes.unwrap_or(u64::MAX),
        files: result.changed_files.len() as u64,
        changes: &result.changes,
        omitted: &result.omitted,
        programs,
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
