//! Checks on a bundle that is held: later, and beside it. The bundle itself does not change.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use ringfence_model::ByteText;
use ringfence_model::bundle::{Base, MANIFEST, Manifest, PATCH, most_bytes};
use ringfence_model::check::Checks;
use ringfence_model::policy::Line;
use ringfence_model::policy::network::Origin;
use serde::{Deserialize, Serialize};

use super::{Fresh, Round, Subject, Told, check};
use crate::archive;
use crate::attend::{Console, Inputs};
use crate::backend;
use crate::clock::now_us;
use crate::durable::{self, Existing};
use crate::environment::{self, Standing};
use crate::error::Error;
use crate::home::Home;
use crate::ids::RunId;
use crate::lock::RunLock;
use crate::run::{RunRequest, discard_layer};
use crate::sandbox::SandboxError;
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
    #[error("run `{run}` stood on a setup that is not the one that is asked for now")]
    OtherSetup { run: RunId },
}

impl LaterError {
    /// What to do.
    pub(crate) fn hint(&self) -> &'static str {
        match self {
            Self::NoCheck => "give one: ringfence check RUN --check 'COMMAND'",
            Self::OtherCommit { .. } => "check that commit out, or give `--repo` a worktree of it",
            Self::OtherSetup { .. } => {
                "give the same options as then: `--policy`, `--image`, `--setup-network`"
            }
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

/// The latest word on each of a run's checks: what was done later, else what its bundle says.
pub fn standing(home: &Home, run: RunId) -> Result<Option<Checks>, Error> {
    let packed = archive::result(home, run)?.map(|result| result.checks);
    Ok(match (packed, later(home, run)?) {
        (Some(packed), Some(later)) => Some(later.checks.over(packed)),
        (packed, later) => later.map(|later| later.checks).or(packed),
    })
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

/// Makes a request what the run was: what was hidden stays hidden, and the image and the place of the
/// folder are those of the run where nothing else was asked for. What cannot be had again is noted.
pub fn as_it_ran(home: &Home, run: RunId, request: &mut RunRequest) -> Result<(), Error> {
    let manifest = match read_manifest(&home.bundle(run).join(MANIFEST)) {
        // Without a bundle there is nothing to check, which is said later.
        Err(Error::ReadFile { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            return Ok(());
        }
        read => read?,
    };
    // Where it ran, unless somebody names another place.
    if request.backend.name() == backend::NATIVE && manifest.backend.name != backend::NATIVE {
        let own = backend::named(home, &manifest.backend.name);
        request.backend = own.map_err(SandboxError::Backend)?;
    }
    let was = manifest.policy;
    // In the order of the run, which a setup's key knows.
    let hidden = was.effective.map(|effective| effective.files.hide);
    let mut hide = hidden.unwrap_or_default();
    for line in std::mem::take(&mut request.policy.files.hide) {
        if !hide.iter().any(|old| old.text == line.text) {
            hide.push(line);
        }
    }
    request.policy.files.hide = hide;
    let inside = PathBuf::from(OsStr::from_bytes(was.inside.as_bytes()));
    request.view.inside.get_or_insert(inside);
    if let Some(digest) = manifest.environment.image {
        let image = &mut request.policy.environment.image;
        let asked = image.as_ref().is_some_and(|line| line.from.line == 0);
        if !asked {
            let file = format!("run {run}");
            let from = Origin { file, line: 0 };
            *image = Some(Line { text: digest, from });
        }
    }
    let given = |name: &&ByteText| request.env.iter().any(|(own, _)| own == *name);
    let missing: Vec<String> = was
        .variables
        .iter()
        .filter(|name| !given(name))
        .map(|name| name.to_text())
        .collect();
    if !missing.is_empty() {
        request.notes.push(format!(
            "the run had variables whose values are kept nowhere; give them with `--env`: {}",
            missing.join(", ")
        ));
    }
    Ok(())
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
    if let Some(key) = &manifest.environment.setup_key
        && standing.facts.setup_key.as_ref() != Some(key)
    {
        return Err(LaterError::OtherSetup { run: run.id }.into());
    }
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
        round: Round::Last,
    };
    let told = Told {
        journal: None,
        console,
        signals: inputs.signals,
        round: Round::Last,
    };
    let checks = check(subject, told)?;
    // A check that passes does not take away that another one failed.
    let all = match later(home, run.id)? {
        Some(before) => checks.clone().over(before.checks),
        None => checks.clone(),
    };
    let later = Later {
        time_us: now_us(),
        checks: all,
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
