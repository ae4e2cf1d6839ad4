//! Which of several attempts is best, and why: from their bundles alone.
//!
//! INVARIANT: the order follows from what the host saw. What an agent claims counts for nothing.

mod hunks;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use ringfence_model::ByteText;
use ringfence_model::bundle::change_set_sha256;
use ringfence_model::changes::Change;
use ringfence_model::check::{CheckVerdict, Checks};
use ringfence_model::flag::Severity;
use ringfence_model::outcome::RunStatus;
use serde::Serialize;
use serde_json::json;

use crate::archive;
use crate::checks;
use crate::error::Error;
use crate::home::Home;
use crate::ids::RunId;
use crate::run::RunResult;
use crate::store::{ARCHIVED, KEPT, RunRecord, Store};

pub use hunks::{Hunks, Other};

/// BOUND: attempts that are compared at once; a table has that many rows.
pub const MAX_RUNS: usize = 64;

/// Why nothing is compared.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    #[error("two runs or more are compared, and at most {MAX_RUNS}")]
    Count,
    #[error("run `{0}` is named twice")]
    Twice(RunId),
    #[error("none of them left a bundle to compare")]
    NoBundle,
    #[error("none of them can be kept: no attempt has changes whose checks hold")]
    NoWinner,
}

/// One attempt.
#[derive(Clone, Debug, Serialize)]
pub struct Attempt {
    pub run: RunId,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub status: RunStatus,
    /// Hash of what it changed.
    pub tree: String,
    /// Better attempts that changed the same to the same.
    pub same_as: Option<RunId>,
    pub checks: usize,
    pub checks_held: usize,
    pub broke: usize,
    pub flaky: usize,
    pub own_exam: usize,
    pub serious: usize,
    pub warnings: usize,
    pub denials: u64,
    pub files: usize,
    pub insertions: u64,
    pub deletions: u64,
    pub duration_ms: u64,
    pub changes_nothing: bool,
}

/// An attempt that died before its changes were packed.
#[derive(Clone, Debug, Serialize)]
pub struct Lost {
    pub run: RunId,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub status: RunStatus,
}

/// A path at which attempts differ.
#[derive(Clone, Debug, Serialize)]
pub struct Differs {
    pub path: ByteText,
    /// Runs by what they left there, the best one's first; a run that is in none left it alone.
    pub sides: Vec<Vec<RunId>>,
}

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Compared {
    /// The best first.
    pub attempts: Vec<Attempt>,
    /// Those that left no bundle, and have no rank.
    pub lost: Vec<Lost>,
    /// In one sentence, without a byte that an agent chose.
    pub why: String,
    /// Whether the best may be taken without a doubt: it has changes, and all checks hold.
    pub sound: bool,
    pub differs: Vec<Differs>,
    /// Of each attempt but the best: hunks that the best does not have.
    pub hunks: Vec<Hunks>,
    pub notes: Vec<String>,
}

/// Compares the bundles of runs.
pub fn compare(home: &Home, runs: &[RunRecord]) -> Result<Compared, Error> {
    if runs.len() < 2 || runs.len() > MAX_RUNS {
        return Err(CompareError::Count.into());
    }
    let mut found: BTreeMap<RunId, RunResult> = BTreeMap::new();
    let mut attempts = Vec::new();
    let mut lost: Vec<Lost> = Vec::new();
    let mut notes = Vec::new();
    for (at, run) in runs.iter().enumerate() {
        if runs[..at].iter().any(|before| before.id == run.id) {
            return Err(CompareError::Twice(run.id).into());
        }
        if run.status == RunStatus::Running {
            return Err(Error::StillRunning(run.id.to_string()));
        }
        let Some(result) = archive::result(home, run.id)? else {
            lost.push(Lost {
                run: run.id,
                name: run.name.clone(),
                status: run.status,
            });
            continue;
        };
        let checks = checks::standing(home, run.id)?.unwrap_or_default();
        attempts.push(attempt(run, &result, &checks));
        found.insert(run.id, result);
        if attempts[0].checks != checks.reports.len() {
            notes.push(format!(
                "run {} was checked otherwise than the first",
                run.id
            ));
        }
    }
    if attempts.is_empty() {
        return Err(CompareError::NoBundle.into());
    }
    let folders: BTreeSet<&ByteText> = found.values().map(|result| &result.folder).collect();
    if folders.len() > 1 {
        notes.push("they are not of one folder".to_owned());
    }
    attempts.sort_by_key(rank);
    let mut first: BTreeMap<String, RunId> = BTreeMap::new();
    for attempt in &mut attempts {
        match first.get(&attempt.tree) {
            Some(better) => attempt.same_as = Some(*better),
            None => drop(first.insert(attempt.tree.clone(), attempt.run)),
        }
    }
    let order: Vec<RunId> = attempts.iter().map(|attempt| attempt.run).collect();
    let best = &attempts[0];
    Ok(Compared {
        why: why(&attempts),
        sound: best.checks > 0 && best.checks == best.checks_held && !best.changes_nothing,
        differs: differs(&order, &found),
        hunks: hunks::others(home, &order, &found)?,
        attempts,
        lost,
        notes,
    })
}

/// Keeps the best and puts the others out of the way. Bundles stay as they are.
pub fn keep(store: &Store, compared: &Compared) -> Result<RunId, Error> {
    let best = &compared.attempts[0];
    let holds = best.checks == best.checks_held && !best.changes_nothing;
    if !holds {
        return Err(CompareError::NoWinner.into());
    }
    let others = compared.attempts[1..].iter().map(|own| own.run);
    let others: Vec<RunId> = others
        .chain(compared.lost.iter().map(|own| own.run))
        .collect();
    let word = |key: &str, value| serde_json::Map::from_iter([(key.to_owned(), value)]);
    // Whatever was said of one before, this is the last word.
    let mut kept = word(KEPT, json!({ "of": others }));
    kept.insert(ARCHIVED.to_owned(), json!(null));
    let mut marks = vec![(best.run, kept)];
    for other in others {
        let mut mark = word(ARCHIVED, json!({ "for": best.run }));
        mark.insert(KEPT.to_owned(), json!(null));
        marks.push((other, mark));
    }
    store.mark_runs(&marks)?;
    Ok(best.run)
}

fn attempt(run: &RunRecord, result: &RunResult, checks: &Checks) -> Attempt {
    let flags = |severity| {
        let own = result.flags.iter().filter(|flag| flag.severity == severity);
        own.count()
    };
    let verdicts = |verdict| {
        let own = checks.reports.iter();
        own.filter(|report| report.verdict == verdict || report.exam == Some(verdict))
            .count()
    };
    Attempt {
        run: run.id,
        name: run.name.clone(),
        status: result.status,
        tree: change_set_sha256(&result.changes).unwrap_or_default(),
        same_as: None,
        checks: checks.reports.len(),
        checks_held: checks
            .reports
            .iter()
            .filter(|report| report.holds())
            .count(),
        broke: verdicts(CheckVerdict::Broke),
        flaky: verdicts(CheckVerdict::Flaky),
        own_exam: checks
            .reports
            .iter()
            .filter(|own| own.passes_own_exam_only())
            .count(),
        serious: flags(Severity::Serious),
        warnings: flags(Severity::Warning),
        denials: result.observed.denials + result.observed.network.denied,
        files: result.changed_files.len(),
        insertions: result.insertions,
        deletions: result.deletions,
        duration_ms: result.duration_ms,
        changes_nothing: result.changes.is_empty(),
    }
}

type Rank = (
    u8,
    bool,
    Reverse<usize>,
    usize,
    usize,
    usize,
    usize,
    usize,
    u64,
    u64,
    u64,
    RunId,
);

/// The least is the best.
fn rank(own: &Attempt) -> Rank {
    let status = match own.status {
        RunStatus::Done => 0,
        RunStatus::BaseMoved => 1,
        _ => 2,
    };
    (
        status,
        own.changes_nothing,
        Reverse(own.checks_held),
        own.broke,
        own.own_exam,
        own.flaky,
        own.serious,
        own.warnings,
        own.denials,
        own.insertions + own.deletions,
        own.duration_ms,
        own.run,
    )
}

/// What sets the best apart from the next one that is not the same.
fn why(attempts: &[Attempt]) -> String {
    let best = &attempts[0];
    if attempts.len() == 1 {
        return format!("{} is the only one that left a bundle", best.run);
    }
    let Some(next) = attempts[1..].iter().find(|own| own.tree != best.tree) else {
        return format!(
            "all of them changed the same; {} was the quickest",
            best.run
        );
    };
    let (one, two) = (best.run, next.run);
    let both = |what: &str, own: u64, other: u64| {
        format!("{one} wins: {own} {what} against {other} of {two}")
    };
    let size = |own: &Attempt| own.insertions + own.deletions;
    let checks = |own: &Attempt| format!("{} of {} checks hold", own.checks_held, own.checks);
    if best.status != next.status {
        let (own, other) = (best.status.as_str(), next.status.as_str());
        return format!("{one} wins: its run is {own}, that of {two} is {other}");
    }
    if best.changes_nothing != next.changes_nothing {
        return format!("{one} wins: {two} changed nothing");
    }
    if best.checks_held != next.checks_held {
        return format!(
            "{one} wins: {} against {} of {two}",
            checks(best),
            checks(next)
        );
    }
    let numbers = [
        ("broken checks", best.broke as u64, next.broke as u64),
        (
            "checks that pass by its own exam only",
            best.own_exam as u64,
            next.own_exam as u64,
        ),
        ("flaky checks", best.flaky as u64, next.flaky as u64),
        ("serious flags", best.serious as u64, next.serious as u64),
        ("warnings", best.warnings as u64, next.warnings as u64),
        ("denials", best.denials, next.denials),
        ("changed lines", size(best), size(next)),
    ];
    match numbers.into_iter().find(|(_, own, other)| own != other) {
        Some((what, own, other)) => both(what, own, other),
        None => format!("{one} wins by nothing but its time, against {two}"),
    }
}

/// Paths that not all leave alike.
fn differs(order: &[RunId], found: &BTreeMap<RunId, RunResult>) -> Vec<Differs> {
    type Left<'a> = Vec<(Option<String>, &'a ringfence_model::changes::ChangeKind)>;
    let mut paths: BTreeMap<&ByteText, BTreeMap<RunId, Left<'_>>> = BTreeMap::new();
    for (run, result) in found {
        for change in &result.changes {
            let side = |change: &Change| {
                let new = change.new.as_ref();
                new.map(|side| format!("{} {}", side.mode.octal(), side.oid))
            };
            let left = paths.entry(&change.path).or_default();
            left.entry(*run)
                .or_default()
                .push((side(change), &change.kind));
        }
    }
    let mut differs = Vec::new();
    for (path, left) in paths {
        let mut sides: Vec<(&Left<'_>, Vec<RunId>)> = Vec::new();
        for run in order {
            let Some(own) = left.get(run) else {
                continue;
            };
            match sides.iter_mut().find(|(other, _)| *other == own) {
                Some((_, runs)) => runs.push(*run),
                None => sides.push((own, vec![*run])),
            }
        }
        if sides.len() > 1 || left.len() < order.len() {
            differs.push(Differs {
                path: path.clone(),
                sides: sides.into_iter().map(|(_, runs)| runs).collect(),
            });
        }
    }
    differs
}

#[cfg(test)]
mod tests;
