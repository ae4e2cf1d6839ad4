//! What is kept of runs: results, patches, logs, and their removal.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use ringfence_model::bundle::{JOURNAL, PATCH, RESULT, most_bytes, sha256_hex};
use ringfence_model::outcome::RunStatus;
use ringfence_model::rounds::MAX_KEPT_BYTES;

use crate::changes::{self, remove_tree};
use crate::client::Stream;
use crate::error::Error;
use crate::home::Home;
use crate::ids::RunId;
use crate::lock::{LockError, RunLock};
use crate::ownership;
use crate::run::RunResult;
use crate::sandbox;
use crate::store::{self, RunRecord, Store};
use crate::workspace::Workspace;

/// The result of a run that was packed.
pub fn result(home: &Home, run: RunId) -> Result<Option<RunResult>, Error> {
    read_result(&home.bundle(run).join(RESULT))
}

/// The result in a file; `None` where there is no such file.
pub(crate) fn read_result(path: &Path) -> Result<Option<RunResult>, Error> {
    let fail = |source| Error::ReadFile {
        path: path.to_owned(),
        source,
    };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            return Ok(None);
        }
        Err(source) => return Err(fail(source)),
    };
    let mut text = Vec::new();
    let read = file.take(most_bytes(RESULT)).read_to_end(&mut text);
    read.map_err(fail)?;
    let parsed = serde_json::from_slice(&text);
    Ok(Some(parsed.map_err(|error| fail(error.into()))?))
}

/// Where the journal of a run is: in its bundle, or in what there is of one where the run is still
/// going on, was lost, or never began.
pub fn journal_path(home: &Home, run: RunId) -> PathBuf {
    let whole = home.bundle(run);
    if whole.exists() {
        whole.join(JOURNAL)
    } else {
        home.partial_bundle(run).join(JOURNAL)
    }
}

/// Writes the patch of a run: the packed one, or for a lost run one made now from its layer.
pub fn write_patch(home: &Home, run: &RunRecord, out: &mut dyn Write) -> Result<(), Error> {
    if run.status == RunStatus::Lost {
        if !home.upper(run.id).exists() {
            return Err(not_kept(run, "layer"));
        }
        let (sources, set) = Workspace::reopen(home, run)?.changes()?;
        changes::render(&sources, &set, out)?;
        return Ok(());
    }
    if run.status == RunStatus::Running {
        return Err(Error::StillRunning(run.id.to_string()));
    }
    let path = home.bundle(run.id).join(PATCH);
    let mut file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(not_kept(run, "patch"));
        }
        Err(source) => return Err(Error::ReadFile { path, source }),
    };
    io::copy(&mut file, out).map_err(Error::Print)?;
    Ok(())
}

/// Writes the patch that an iteration of a run left. What is kept of it must be what the result says.
pub fn write_iteration(
    home: &Home,
    run: &RunRecord,
    number: u32,
    out: &mut dyn Write,
) -> Result<(), Error> {
    let result = result(home, run.id)?.ok_or_else(|| not_kept(run, "result"))?;
    let mut iterations = result.rounds.iter().flat_map(|own| &own.iterations);
    let iteration = iterations
        .find(|own| own.number == number)
        .ok_or_else(|| not_kept(run, "iteration of that number"))?;
    if iteration.patch_sha256 == result.patch_sha256 {
        return write_patch(home, run, out);
    }
    let directory = home.log(run.id).join(crate::run::ITERATIONS);
    let path = directory.join(format!("{number}.patch"));
    let read = || -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        File::open(&path)?
            .take(MAX_KEPT_BYTES)
            .read_to_end(&mut text)?;
        Ok(text)
    };
    let text = match read() {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(not_kept(run, "patch of that iteration"));
        }
        Err(source) => return Err(Error::ReadFile { path, source }),
    };
    if sha256_hex(&text) != iteration.patch_sha256 {
        return Err(Error::ReadFile {
            path,
            source: io::Error::other("it is not the patch that the result names"),
        });
    }
    out.write_all(&text).map_err(Error::Print)
}

fn not_kept(run: &RunRecord, what: &'static str) -> Error {
    Error::NotKept {
        run: run.id.to_string(),
        what,
    }
}

/// What the command wrote to one of its streams.
pub fn log(home: &Home, run: &RunRecord, stream: Stream) -> Result<File, Error> {
    let path = match stream {
        Stream::Stdout => home.stdout_log(run.id),
        Stream::Stderr => home.stderr_log(run.id),
    };
    match File::open(&path) {
        Ok(file) => Ok(file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(not_kept(run, "log")),
        Err(source) => Err(Error::ReadFile { path, source }),
    }
}

/// Removes the place of somebody who is gone and whom no row knows: of a setup, or of a check.
/// `program` is this program.
pub fn remove_abandoned(
    program: &Path,
    home: &Home,
    store: &Store,
    place: RunId,
) -> Result<(), Error> {
    let used = || Error::UsedAgain(place.to_string());
    let _lock = RunLock::claim(home, place)?.ok_or_else(used)?;
    if store::is_known(store, place)? {
        return Err(used());
    }
    sandbox::sweep(home, place.as_str());
    ownership::remove(program, &home.workspaces(), place.as_str())?;
    Ok(())
}

/// Removes a run with everything that is kept of it. What is half gone goes as well.
pub fn remove(home: &Home, store: &Store, run: &RunRecord) -> Result<(), Error> {
    match RunLock::is_held(home, run.id) {
        Ok(true) => return Err(Error::StillRunning(run.id.to_string())),
        Ok(false) | Err(LockError::Open { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    // First: a backend may have the layer mounted.
    sandbox::sweep(home, run.id.as_str());
    // A bundle is whole or has another name. There may be none.
    let _ = std::fs::rename(home.bundle(run.id), home.partial_bundle(run.id));
    for path in [
        home.workspace(run.id),
        home.log(run.id),
        home.partial_bundle(run.id),
    ] {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            continue;
        };
        let directory = File::open(parent).map_err(|source| Error::ReadFile {
            path: parent.to_owned(),
            source,
        })?;
        if path.symlink_metadata().is_ok() {
            remove_tree(directory.as_fd(), name.as_bytes())?;
        }
    }
    store.remove_run(run.id)?;
    Ok(())
}
