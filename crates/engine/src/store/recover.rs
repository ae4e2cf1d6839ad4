//! What a dead process left: rows that claim to run, and directories that no row knows.
//!
//! Recovery only says the truth and throws nothing away. It runs at every start, costs one look
//! into an index where there is nothing to do, and a second time does nothing.

use std::io;
use std::path::{Path, PathBuf};

use rusqlite::OptionalExtension;

use super::{Store, StoreError};
use crate::bundle;
use crate::home::{Home, PARTIAL};
use crate::ids::RunId;
use crate::lock::{LockError, RunLock};
use crate::run::discard_layer;

/// What recovery found.
#[derive(Debug, Default)]
pub struct Recovered {
    /// Runs that are now `lost`; their layers are kept.
    pub lost: Vec<RunId>,
    /// Runs of which it cannot be said whether they live; they were left as they are.
    pub unclear: Vec<(RunId, LockError)>,
}

/// A directory that no row of the store knows. A run that is being made this very moment can look
/// like one until its lock is there: whoever removes orphans takes the lock first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orphan {
    pub kind: OrphanKind,
    pub path: PathBuf,
    /// Absent where the name is not an id, so that it cannot be one of ours.
    pub run: Option<RunId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrphanKind {
    Workspace,
    Bundle,
    Log,
}

/// Why recovery got nowhere.
#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    #[error("cannot compare the store with what is running")]
    ReadStore {
        #[source]
        source: StoreError,
    },
    #[error("cannot list `{path}`")]
    ListDirectory {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot tell whether run `{run}` is being driven")]
    AskLock {
        run: RunId,
        #[source]
        source: LockError,
    },
}

pub(super) const RUNNING: &str = "SELECT id FROM runs WHERE status = 'running'";

/// Marks as `lost` what claims to run and is driven by nobody.
pub fn recover(store: &Store, home: &Home) -> Result<Recovered, RecoverError> {
    let mut recovered = Recovered::default();
    for run in running(store)? {
        match RunLock::is_held(home, run) {
            Ok(true) => {}
            // The row is looked at again in the same statement: the driver may have finished and
            // let go since it was read.
            Ok(false) => {
                if is_packed(store, home, run) {
                    continue;
                }
                if store.mark_lost(run).map_err(read_store)? {
                    recovered.lost.push(run);
                }
            }
            Err(error) => recovered.unclear.push((run, error)),
        }
    }
    Ok(recovered)
}

/// Whether a run had its bundle and only its end was not recorded; it is now.
fn is_packed(store: &Store, home: &Home, run: RunId) -> bool {
    // What cannot be read is lost, and says why when it is looked at.
    let Ok(Some(end)) = bundle::finished(home, run) else {
        return false;
    };
    let recorded = store.finish_run(run, &end).is_ok();
    if recorded {
        discard_layer(home, run);
    }
    recorded
}

/// Lists the directories that no row knows and no process drives. Nothing is removed.
pub fn orphans(store: &Store, home: &Home) -> Result<Vec<Orphan>, RecoverError> {
    let mut found = Vec::new();
    for (kind, directory) in [
        (OrphanKind::Workspace, home.workspaces()),
        (OrphanKind::Bundle, home.bundles()),
        (OrphanKind::Log, home.logs()),
    ] {
        for path in list(&directory)? {
            let name = path.file_name().and_then(|name| name.to_str());
            let name = name.map(|name| name.strip_suffix(PARTIAL).unwrap_or(name));
            let run: Option<RunId> = name.and_then(|name| name.parse().ok());
            if let Some(run) = run {
                // The lock before the row: a run that ends between the two has its row by then.
                let held = RunLock::is_held(home, run)
                    .map_err(|source| RecoverError::AskLock { run, source })?;
                if held || is_known(store, run)? {
                    continue;
                }
            }
            found.push(Orphan { kind, path, run });
        }
    }
    Ok(found)
}

fn running(store: &Store) -> Result<Vec<RunId>, RecoverError> {
    let read = || -> Result<Vec<RunId>, rusqlite::Error> {
        store
            .connection
            .prepare_cached(RUNNING)?
            .query_map([], |row| row.get(0))?
            .collect()
    };
    read().map_err(|e| read_store(store.list_failed(e)))
}

/// Whether there is a row of a run.
pub(crate) fn is_known(store: &Store, run: RunId) -> Result<bool, RecoverError> {
    let read = || -> Result<Option<i64>, rusqlite::Error> {
        store
            .connection
            .prepare_cached("SELECT 1 FROM runs WHERE id = ?1")?
            .query_row([run], |row| row.get(0))
            .optional()
    };
    let row = read().map_err(|e| read_store(store.list_failed(e)))?;
    Ok(row.is_some())
}

fn list(directory: &Path) -> Result<Vec<PathBuf>, RecoverError> {
    let read = || -> io::Result<Vec<PathBuf>> {
        std::fs::read_dir(directory)?
            .map(|entry| Ok(entry?.path()))
            .collect()
    };
    let mut paths = read().map_err(|source| RecoverError::ListDirectory {
        path: directory.to_owned(),
        source,
    })?;
    paths.sort();
    Ok(paths)
}

fn read_store(source: StoreError) -> RecoverError {
    RecoverError::ReadStore { source }
}
