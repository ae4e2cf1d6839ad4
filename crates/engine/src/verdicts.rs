//! Verdicts: nothing of a run is applied before somebody, or a rule of the host, has said yes.
//!
//! ```text
//! read the bundle once ─▶ verify ─▶ verdicts.jsonl, synced ─▶ row in the store, synced ─▶ effect
//! ```
//!
//! INVARIANT: a verdict is about the bytes that were read. [`standing`] compares them with those
//! that are there now. The journal comes first: what is in the store alone is no verdict, and what
//! was cut off between the two is rolled forward by whoever comes next.

mod error;
mod log;
mod person;
mod rule;

use std::path::Path;

use ringfence_model::bundle::{MANIFEST, most_bytes, sha256_hex};
use ringfence_model::outcome::RunStatus;
use ringfence_model::text::misleads;
use ringfence_model::verdict::{By, Decision, Hold, HoldKind, MAX_NAME, MAX_WHY, Verdict};

use crate::clock::now_us;
use crate::error::Error;
use crate::home::Home;
use crate::ids::RunId;
use crate::journal::{LoadError, load_file};
use crate::keys;
use crate::lock::FileLock;
use crate::store::{RunRecord, Store};
use crate::verify;

pub use error::VerdictError;
pub use log::history;
pub use person::{account, person};
pub(crate) use rule::{by_rule, hold, programs};

/// Where the row of a run has why it is held.
pub(crate) const HELD: &str = "held";

/// Where a bundle stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nobody has decided.
    Held(Vec<Hold>),
    Approved(Verdict),
    Rejected(Verdict),
    /// The bundle is not the one that was approved.
    Changed(Verdict),
}

impl Standing {
    /// For lists, in a word.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Held(_) => "held",
            Self::Approved(_) => "approved",
            Self::Rejected(_) => "rejected",
            Self::Changed(_) => "changed",
        }
    }
}

/// A decision that is to be recorded.
#[derive(Clone, Debug)]
pub struct Deciding {
    pub decision: Decision,
    pub by: By,
    pub why: Option<String>,
    /// The manifest's hash of what the one who decides has looked at, where they looked at it here.
    pub seen_sha256: Option<String>,
    /// How much of it was on the screen, where that was not all.
    pub shown: Option<String>,
    pub anyway: Anyway,
}

/// Whether what an approval must name was named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anyway {
    /// A run that failed, whose base moved, or whose patch is too large is not approved.
    No,
    Yes,
}

/// Records a decision. It is on the disk when this returns.
pub fn record(
    home: &Home,
    store: &Store,
    run: &RunRecord,
    deciding: Deciding,
) -> Result<Verdict, Error> {
    if run.status == RunStatus::Running {
        return Err(Error::StillRunning(run.id.to_string()));
    }
    let why = deciding.why.map(|why| why.trim().to_owned());
    let why = why.filter(|why| !why.is_empty());
    check_words(why.as_deref(), &deciding.by)?;
    if why.is_none() && deciding.decision == Decision::Rejected {
        return Err(VerdictError::NoReason.into());
    }
    let (bundle_sha256, despite) = match deciding.decision {
        Decision::Rejected => (manifest_sha256(home, run.id)?, Vec::new()),
        Decision::Approved => {
            let sha256 = verified(home, run.id)?;
            (sha256, overridden(run, deciding.anyway)?)
        }
    };
    if let Some(seen) = &deciding.seen_sha256
        && *seen != bundle_sha256
    {
        let run = run.id.to_string();
        return Err(VerdictError::Exchanged { run }.into());
    }
    let verdict = Verdict {
        run: run.id.to_string(),
        decision: deciding.decision,
        by: deciding.by,
        at_us: now_us(),
        why,
        bundle_sha256,
        despite,
        shown: deciding.shown,
    };
    let _lock = FileLock::wait(&log::lock_path(home), || {})?;
    let mut log = log::Log::open(home, store)?;
    let line = log.append(&verdict)?;
    store.insert_verdict(&line, &verdict)?;
    Ok(verdict)
}

/// Where the bundle of a run stands, as it is now, by the store: for lists and pages. Nothing is
/// done by it; see [`proven`].
pub fn standing(store: &Store, home: &Home, run: &RunRecord) -> Result<Standing, Error> {
    log::settle(home, store)?;
    stands(home, run, store.last_verdict(run.id)?)
}

/// Where the bundle of a run stands, by the log itself.
///
/// HOSTILE: whoever writes to the store writes any row. One that the log does not have, or has
/// otherwise, is refused, and not passed over.
pub fn proven(store: &Store, home: &Home, run: &RunRecord) -> Result<Standing, Error> {
    // In this order: what is added meanwhile is in the log, and counts.
    let known = store.last_verdict(run.id)?;
    let mut all = history(home, store, run.id.as_str())?;
    if known.is_some_and(|known| !all.contains(&known)) {
        let path = log::path(home);
        return Err(VerdictError::Disagree { path }.into());
    }
    stands(home, run, all.pop())
}

fn stands(home: &Home, run: &RunRecord, verdict: Option<Verdict>) -> Result<Standing, Error> {
    let Some(verdict) = verdict else {
        return Ok(Standing::Held(holds(run)));
    };
    match verdict.decision {
        Decision::Rejected => Ok(Standing::Rejected(verdict)),
        Decision::Approved if manifest_sha256(home, run.id)? == verdict.bundle_sha256 => {
            Ok(Standing::Approved(verdict))
        }
        Decision::Approved => Ok(Standing::Changed(verdict)),
    }
}

/// Why a run without a verdict is held, as it was found when it ended.
pub fn holds(run: &RunRecord) -> Vec<Hold> {
    let recorded = run.detail.get(HELD).cloned();
    let recorded = recorded.and_then(|value| serde_json::from_value::<Vec<Hold>>(value).ok());
    recorded
        .filter(|holds| !holds.is_empty())
        .unwrap_or_else(|| {
            // A run of an earlier version.
            let kind = match run.status {
                RunStatus::Failed => HoldKind::Failed,
                RunStatus::BaseMoved => HoldKind::BaseMoved,
                _ => HoldKind::NotReviewed,
            };
            let detail = String::new();
            vec![Hold { kind, detail }]
        })
}

/// SHA-256 (hex) of the manifest of a run's bundle.
pub fn manifest_sha256(home: &Home, run: RunId) -> Result<String, Error> {
    let path = home.bundle(run).join(MANIFEST);
    match load_file(&path, most_bytes(MANIFEST)) {
        Ok(bytes) => Ok(sha256_hex(&bytes)),
        Err(LoadError::Read(source)) if source.kind() == std::io::ErrorKind::NotFound => {
            let (run, what) = (run.to_string(), "bundle");
            Err(Error::NotKept { run, what })
        }
        Err(LoadError::Read(source)) => Err(Error::ReadFile { path, source }),
        Err(LoadError::NotAFile | LoadError::TooLarge { .. }) => {
            let run = run.to_string();
            let why = format!("`{MANIFEST}` is not a plain file of a bundle");
            Err(VerdictError::NotVerified { run, why }.into())
        }
    }
}

/// Reads and verifies the bundle of a run; the hash of its manifest.
fn verified(home: &Home, run: RunId) -> Result<String, Error> {
    let bundle = home.bundle(run);
    if !bundle.is_dir() {
        let (run, what) = (run.to_string(), "bundle");
        return Err(Error::NotKept { run, what });
    }
    let refused = |why: String| -> Error {
        let run = run.to_string();
        VerdictError::NotVerified { run, why }.into()
    };
    let contents = verify::read(&bundle)?.map_err(refused)?;
    check_bundle(home, run, &bundle, &contents)?;
    Ok(contents.manifest_sha256())
}

/// Refuses a bundle that is not whole, of another run, or not signed by a key that is trusted.
pub fn check_bundle(
    home: &Home,
    run: RunId,
    bundle: &Path,
    contents: &verify::Contents,
) -> Result<(), Error> {
    let report = verify::verify_packed(
        contents,
        &verify::Request {
            bundle: bundle.to_owned(),
            keys: keys::all_trusted(home)?,
            base: None,
        },
    );
    let run = run.to_string();
    if report.verdict != verify::Verdict::Ok {
        let failed = |check: &&verify::Check| check.state == verify::State::Failed;
        let first = report.checks.iter().find(failed);
        let why = first.map(|check| format!("{}: {}", check.check, check.detail));
        let why = why.unwrap_or_default();
        return Err(VerdictError::NotVerified { run, why }.into());
    }
    if report.run.as_deref() != Some(&run) {
        let why = "it is the bundle of another run".to_owned();
        return Err(VerdictError::NotVerified { run, why }.into());
    }
    Ok(())
}

/// What an approval of this run overrides; refused where that was not said.
fn overridden(run: &RunRecord, anyway: Anyway) -> Result<Vec<String>, Error> {
    let holds = holds(run);
    let named = holds.iter().filter(|hold| hold.kind.needs_anyway());
    let named: Vec<String> = named.map(Hold::to_string).collect();
    if anyway == Anyway::No && !named.is_empty() {
        let run = run.id.to_string();
        let why = named.join("; ");
        return Err(VerdictError::NeedsAnyway { run, why }.into());
    }
    Ok(named)
}

fn check_words(why: Option<&str>, by: &By) -> Result<(), Error> {
    let bad = |text: &str, most: usize| {
        let hidden = |c: char| misleads(c) && !matches!(c, '\n' | '\t');
        text.chars().count() > most || text.chars().any(hidden)
    };
    if why.is_some_and(|why| bad(why, MAX_WHY)) {
        return Err(VerdictError::BadReason.into());
    }
    match by {
        By::Person { name, .. } if bad(name, MAX_NAME) || name.trim().is_empty() => {
            Err(VerdictError::BadName.into())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
pub(crate) mod tests;
