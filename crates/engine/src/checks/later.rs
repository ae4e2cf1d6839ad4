//! Checks on a bundle that is held: later, and beside it. The bundle itself does not change.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ringfence_model::bundle::{Base, MANIFEST, Manifest, PATCH, most_bytes};
use ringfence_model::check::Checks;
use serde::{Deserialize, Serialize};

use super::{Fresh, Subject, Told, check};
use crate::archive;
use crate::attend::{Console, Inputs};
use crate::clock::now_us;
use crate::durable::{self, Existing};
use crate::environment::{self, Standing};
use crate::error::Error;
use crate::home::Home;
use crate::ids::RunId;
use crate::lock::RunLock;
use crate::run::{RunRequest, discard_layer};
use crate::store::{RunRecord, Store};
use crate::workspace::{Workspace, open_folder};

/// Why a bundle cannot be checked here and now.
#[derive(Debug, thiserror::Error)]
pub enum LaterError {
    #[error("there is nothing to check with: no `--check`, and none in the policy")]
    NoCheck,
    #[error("run `{run}` began at commit {was}, and the folder is at {is}")]
    OtherCommit { run: RunId, was: String, is: String },
    #[error("run `{run}` began in a folder without changes, and it has some now: {why}")]
    Dirty { run: RunId, why: String },
}

impl LaterError {
    /// What to do.
    pub(crate) fn hint(&self) -> &'static str {
        match self {
            Self::NoCheck => "give one: ringfence check RUN --check 'COMMAND'",
            Self::OtherCommit { .. } => "check that commit out, or give `--repo` a worktree of it",
            Self::Dirty { .. } => "commit or stash them, or give `--repo` a worktree of the commit",
        }
    }
}

/// Checks that were done later.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Later {
    pub time_us: i64,
    pub checks: Checks,
}

const FILE: &str = "checks.json";
/// BOUND: reports that are read back.
const BYTES: u64 = 16 << 20;

/// The latest word on a run's checks: what was done later, else what its bundle says.
pub fn standing(home: &Home, run: RunId) -> Result<Option<Checks>, Error> {
    match later(home, run)? {
        Some(later) => Ok(Some(later.checks)),
        None => Ok(archive::result(home, run)?.map(|result| result.checks)),
    }
}

/// What was done later, if anything was.
pub fn later(home: &Home, run: RunId) -> Result<Option<Later>, Error> {
    let path = home.log(run).join(FILE);
    let read = || -> io::Result<Option<Later>> {
        match fs::metadata(&path) {
            Ok(stat) if stat.len() <= BYTES => Ok(serde_json::from_slice(&fs::read(&path)?)?),
            Ok(_) => Err(io::ErrorKind::FileTooLarge.into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    };
    read().map_err(|source| Error::ReadFile {
        path: path.clone(),
        source,
    })
}

/// Checks a held bundle. `request` says how: its folder is the base, and must be what it was.
pub fn check_again(
    home: &Home,
    store: &Store,
    run: &RunRecord,
    request: &RunRequest,
    fresh: Fresh,
    inputs: &Inputs<'_>,
    console: &mut dyn Console,
) -> Result<Checks, Error> {
    if request.policy.review.checks.is_empty() {
        return Err(LaterError::NoCheck.into());
    }
    super::warm(request);
    let not_kept = || Error::NotKept {
        run: run.id.to_string(),
        what: "bundle",
    };
    let result = archive::result(home, run.id)?.ok_or_else(not_kept)?;
    let bundle = home.bundle(run.id);
    let manifest = read_manifest(&bundle.join(MANIFEST))?;
    let room = RunId::random()?;
    let folder = open_folder(home, &request.folder)?;
    let _lock = RunLock::create(home, room)?;
    let _gone = Scratch { home, room };
    let order = request.order(&folder)?;
    let standing = match environment::resolve(home, store, &order, console)? {
        Some(resolved) => environment::ensure(home, store, &order, &resolved, inputs, console)?,
        None => Standing::default(),
    };
    let mut workspace =
        Workspace::create(home, room, folder, &request.view, &request.policy.files)?;
    workspace.stand_on(standing.workspace());
    let (base, _) = workspace.seek_identity()?.finish(&result.changes);
    same_base(run.id, &manifest.base, &base)?;
    let sources = workspace.sources()?;
    let logs = home.log(run.id).join(format!("checks-{room}"));
    let subject = Subject {
        home,
        room,
        request,
        workspace: &workspace,
        standing: &standing,
        patch: &bundle.join(PATCH),
        changes: &result.changes,
        prefix: &sources.prefix,
        logs: &logs,
        fresh,
        stopped: false,
    };
    let told = Told {
        journal: None,
        console,
        signals: inputs.signals,
    };
    let checks = check(subject, told)?;
    let later = Later {
        time_us: now_us(),
        checks: checks.clone(),
    };
    let path = home.log(run.id).join(FILE);
    let json = serde_json::to_vec_pretty(&later).expect("plain data always serialises");
    durable::write_synced(&path, &json, Existing::Replace)?;
    Ok(checks)
}

/// Whether the folder is what the run began with, as far as that has a name. What the patch touches
/// is held against its ids when it is laid over it.
fn same_base(run: RunId, was: &Base, is: &Base) -> Result<(), LaterError> {
    let at = |base: &Base| match base {
        Base::Commit { commit, .. } | Base::DirtyFolder { commit, .. } => Some(commit.clone()),
        Base::Folder { .. } => None,
    };
    let (began, now) = (at(was), at(is));
    if began != now {
        let word = |commit: Option<String>| commit.unwrap_or_else(|| "none".to_owned());
        return Err(LaterError::OtherCommit {
            run,
            was: word(began),
            is: word(now),
        });
    }
    match (was, is) {
        (Base::Commit { .. }, Base::DirtyFolder { why, .. }) => Err(LaterError::Dirty {
            run,
            why: why.clone(),
        }),
        _ => Ok(()),
    }
}

fn read_manifest(path: &Path) -> Result<Manifest, Error> {
    let read = || -> io::Result<Manifest> {
        if fs::metadata(path)?.len() > most_bytes(MANIFEST) {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Ok(serde_json::from_slice(&fs::read(path)?)?)
    };
    read().map_err(|source| Error::ReadFile {
        path: PathBuf::from(path),
        source,
    })
}

/// The directory of rooms, which no run has.
struct Scratch<'a> {
    home: &'a Home,
    room: RunId,
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        discard_layer(self.home, self.room);
    }
}
