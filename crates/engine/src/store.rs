//! The store: what ran, what became of it, and what was being done when a process died.
//!
//! SQLite in WAL mode, one file in the home, any number of processes. Two kinds of commit:
//!
//! | kind            | `synchronous` | survives `kill -9` | survives a power cut              |
//! | --------------- | ------------- | ------------------ | --------------------------------- |
//! | intent          | NORMAL        | yes                | perhaps: `recover` reads the disk |
//! | acknowledgement | FULL          | yes                | yes, with all intents before it   |
//!
//! Opening a current store reads one number and does no schema work. Closing never writes: the log
//! stays and the next commit over the automatic bound folds it in.
//!
//! INVARIANT: a store that is damaged, foreign or newer is never written.

mod calls;
mod campaigns;
mod environments;
mod events;
mod evictions;
mod find;
mod images;
mod layers;
mod marks;
mod migrations;
mod programs;
mod pull_requests;
mod recover;
mod runs;
mod sandboxes;
mod sources;
mod steps;
mod verdicts;

use std::cell::Cell;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};
use rustix::fs::{CWD, FileType, Mode};
use rustix::io::Errno;

use crate::home::Home;
use crate::ids::{RunId, SandboxId};

pub use calls::CallRecord;
pub use campaigns::{CampaignRecord, NewTask, Settings, TaskRecord};
pub use environments::EnvironmentRecord;
pub use events::{EventFilter, EventRecord};
pub use evictions::EvictionRecord;
pub use images::{ImageLayerRecord, ImageRecord};
pub use layers::{CheckpointRecord, LayerRecord};
pub(crate) use marks::{ARCHIVED, ATTEMPT, CAMPAIGN, KEPT};
pub use pull_requests::{PullRequestRecord, PullRequestState};
pub(crate) use recover::is_known;
pub use recover::{Orphan, OrphanKind, RecoverError, Recovered, orphans, recover};
pub(crate) use runs::is_plain_name;
pub use runs::{
    Archived, Driver, FinishedRun, ListPosition, NewRun, RunFilter, RunRecord, bundle_path,
};
pub use sandboxes::{
    AutoCheckpoint, Ended, Intent, NewSandbox, Pin, SandboxDetail, SandboxRecord, SealHow,
};
pub use sources::{BaseKind, BaseRecord, FinishedBase, MirrorRecord, NewBase, SourceState};
pub use steps::{StepRecord, StepState};
pub use verdicts::{Decided, VerdictLine};

/// BOUND: a commit takes milliseconds, and a thousand runs of one campaign may end at once; who has
/// waited this long is behind something broken.
const BUSY_TIMEOUT: Duration = Duration::from_secs(60);

/// An open store. Cheap to open; one for each thread.
#[derive(Debug)]
pub struct Store {
    connection: Connection,
    path: PathBuf,
    commit: Cell<Option<Commit>>,
}

/// How firmly a commit is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Commit {
    Intent,
    Acknowledgement,
}

/// BOUND: whoever opens the store first reads the whole log, at some microseconds a page.
const LOG_PAGES: i64 = 200;

/// What the store could not do.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("cannot create the store `{path}`")]
    Create {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot open the store `{path}`")]
    Open {
        path: PathBuf,
        #[source]
        source: rusqlite::Error,
    },
    #[error("the store `{path}` is damaged; it was left as it is")]
    Damaged {
        path: PathBuf,
        #[source]
        source: rusqlite::Error,
    },
    #[error(
        "the store `{path}` is empty but its log `{path}-wal` is not; both were left as they are"
    )]
    MainFileLost { path: PathBuf },
    #[error("`{path}` is a database, but not a ringfence store")]
    Foreign { path: PathBuf },
    #[error(
        "the store `{path}` was made by a newer ringfence (schema {found}, this one knows {known})"
    )]
    Newer {
        path: PathBuf,
        found: i64,
        known: i64,
    },
    #[error("cannot bring the store `{path}` to schema {version}")]
    Migrate {
        path: PathBuf,
        version: i64,
        #[source]
        source: rusqlite::Error,
    },
    #[error("the store `{path}` was busy for too long")]
    Wait {
        path: PathBuf,
        #[source]
        source: rusqlite::Error,
    },
    #[error(
        "`{name}` cannot be a name: letters, digits, `-`, `_` and `.`, at most 64, and not an id"
    )]
    CheckName { name: String },
    #[error("there is one named `{name}` already")]
    NameTaken { name: String },
    #[error("cannot record run `{run}`")]
    InsertRun {
        run: RunId,
        #[source]
        source: rusqlite::Error,
    },
    #[error("cannot record the start of run `{run}`")]
    StartRun {
        run: RunId,
        #[source]
        source: rusqlite::Error,
    },
    #[error("cannot record the end of run `{run}`")]
    FinishRun {
        run: RunId,
        #[source]
        source: rusqlite::Error,
    },
    #[error("cannot record that run `{run}` is lost")]
    MarkLost {
        run: RunId,
        #[source]
        source: rusqlite::Error,
    },
    #[error("run `{run}` is not running")]
    NotRunning { run: RunId },
    #[error("cannot record step `{step}` of run `{run}`")]
    RecordStep {
        run: RunId,
        step: String,
        #[source]
        source: rusqlite::Error,
    },
    #[error("step `{step}` of run `{run}` was not begun or is over")]
    StepNotOpen { run: RunId, step: String },
    #[error("cannot read the steps of run `{run}`")]
    ReadSteps {
        run: RunId,
        #[source]
        source: rusqlite::Error,
    },
    #[error("cannot read run `{subject}`")]
    ReadRun {
        subject: String,
        #[source]
        source: rusqlite::Error,
    },
    #[error("cannot list the runs in `{path}`")]
    ListRuns {
        path: PathBuf,
        #[source]
        source: rusqlite::Error,
    },
    #[error("cannot look up or note the programs of runs on `{}`", folder.display())]
    Programs {
        folder: PathBuf,
        #[source]
        source: rusqlite::Error,
    },
    #[error("cannot {what} run `{run}` in the store")]
    Verdicts {
        what: &'static str,
        run: String,
        #[source]
        source: rusqlite::Error,
    },
    #[error("cannot mark run `{run}` in the store")]
    MarkRun {
        run: RunId,
        #[source]
        source: rusqlite::Error,
    },
    #[error("cannot remove run `{run}` from the store")]
    RemoveRun {
        run: RunId,
        #[source]
        source: rusqlite::Error,
    },
    #[error("cannot record {what} `{id}`")]
    RecordSource {
        what: &'static str,
        id: String,
        #[source]
        source: rusqlite::Error,
    },
    #[error("cannot read {what} `{id}`")]
    ReadSource {
        what: &'static str,
        id: String,
        #[source]
        source: rusqlite::Error,
    },
    #[error("{what} `{id}` is not in the store, or not as it should be")]
    SourceGone { what: &'static str, id: String },
    #[error("{what} `{id}` is in use")]
    SourceInUse { what: &'static str, id: String },
    #[error("there is no run `{subject}`")]
    NotFound { subject: String },
    #[error("cannot {what} sandbox `{sandbox}` in the store")]
    WriteSandbox {
        what: &'static str,
        sandbox: String,
        #[source]
        source: rusqlite::Error,
    },
    #[error("cannot read sandbox `{subject}` in the store")]
    ReadSandbox {
        subject: String,
        #[source]
        source: rusqlite::Error,
    },
    #[error("there is no sandbox `{subject}`")]
    NoSandbox { subject: String },
    #[error("`{text}` stands for several sandboxes: {}", join(candidates))]
    AmbiguousSandbox {
        text: String,
        candidates: Vec<SandboxId>,
    },
    #[error("sandbox `{sandbox}` has no checkpoint `{name}`")]
    NoCheckpoint { sandbox: String, name: String },
    #[error("the store does not know layer `{layer}`, though something lies on it")]
    NoLayer { layer: String },
    #[error("cannot {what} campaign `{name}` in the store")]
    Campaign {
        what: &'static str,
        name: String,
        #[source]
        source: rusqlite::Error,
    },
    #[error("there is no campaign `{name}`")]
    NoCampaign { name: String },
    #[error("there is a campaign `{name}` already")]
    CampaignTaken { name: String },
    #[error("the campaign has no task `{task}`")]
    NoTask { task: String },
    #[error("there is no run yet")]
    NoRuns,
    #[error("`{text}` stands for several runs: {}{}", join(candidates), if *more { ", …" } else { "" })]
    Ambiguous {
        text: String,
        candidates: Vec<RunId>,
        /// There are more than are listed.
        more: bool,
    },
}

impl Store {
    /// Opens the store of a home, and makes it where there is none.
    pub fn open(home: &Home) -> Result<Self, StoreError> {
        let path = home.store();
        make_file(&path)?;
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut connection =
            Connection::open_with_flags(&path, flags).map_err(|e| open_failed(&path, e))?;
        configure(&mut connection).map_err(|e| open_failed(&path, e))?;
        let store = Self {
            connection,
            path,
            commit: Cell::new(None),
        };
        migrations::bring_up(&store)?;
        Ok(store)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The connection, for a commit that may be lost with the power.
    fn intent(&self) -> Result<&Connection, rusqlite::Error> {
        self.for_commit(Commit::Intent)
    }

    /// The connection, for a commit that is on the disk when it returns.
    fn acknowledgement(&self) -> Result<&Connection, rusqlite::Error> {
        self.for_commit(Commit::Acknowledgement)
    }

    fn for_commit(&self, commit: Commit) -> Result<&Connection, rusqlite::Error> {
        if self.commit.get() != Some(commit) {
            self.connection.execute_batch(match commit {
                Commit::Intent => "PRAGMA synchronous = NORMAL",
                Commit::Acknowledgement => "PRAGMA synchronous = FULL",
            })?;
            self.commit.set(Some(commit));
        }
        Ok(&self.connection)
    }

    /// Some failures mean the same whatever was being done.
    fn failed(
        &self,
        source: rusqlite::Error,
        otherwise: impl FnOnce(rusqlite::Error) -> StoreError,
    ) -> StoreError {
        let path = self.path.clone();
        match source.sqlite_error_code() {
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                StoreError::Damaged { path, source }
            }
            Some(ErrorCode::DatabaseBusy) => StoreError::Wait { path, source },
            _ => otherwise(source),
        }
    }
}

/// Makes an empty private file for SQLite to fill; its log files take over the mode.
fn make_file(path: &Path) -> Result<(), StoreError> {
    let failed = |errno: Errno| StoreError::Create {
        path: path.to_owned(),
        source: errno.into(),
    };
    let size = |path: &Path| match rustix::fs::stat(path) {
        Ok(stat) => Ok(Some(stat.st_size)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(failed(errno)),
    };
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    // The log first: it gets content only after the main file has.
    let log_size = size(Path::new(&log))?.unwrap_or(0);
    let main_size = size(path)?;
    // SQLite would take the main file for a fresh one and delete the log, with runs in it.
    if log_size > 0 && main_size.unwrap_or(0) == 0 {
        return Err(StoreError::MainFileLost {
            path: path.to_owned(),
        });
    }
    if main_size.is_some() {
        return Ok(());
    }
    // Not opened here: closing the descriptor would drop the locks that SQLite holds on the same
    // file elsewhere in this process.
    let mode = Mode::RUSR | Mode::WUSR;
    match rustix::fs::mknodat(CWD, path, FileType::RegularFile, mode, 0) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(failed(errno)),
    }
}

fn configure(connection: &mut Connection) -> Result<(), rusqlite::Error> {
    connection.busy_handler(Some(wait_for_turn))?;
    connection.pragma_update(None, "wal_autocheckpoint", LOG_PAGES)?;
    for (setting, on) in [
        (DbConfig::SQLITE_DBCONFIG_ENABLE_FKEY, true),
        (DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true),
        (DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true),
        (DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false),
    ] {
        connection.set_db_config(setting, on)?;
    }
    Ok(())
}

/// Somebody else writes. Of this process one at a time looks again, and the others stand in line: a
/// thousand threads that all look on their own would keep each other from ever getting anywhere.
fn wait_for_turn(before: i32) -> bool {
    static LINE: Mutex<()> = Mutex::new(());
    thread_local! {
        static SINCE: Cell<Option<Instant>> = const { Cell::new(None) };
    }
    let since = SINCE.get().filter(|_| before > 0);
    let since = since.unwrap_or_else(Instant::now);
    SINCE.set(Some(since));
    // Nothing is guarded by it but the place in line.
    let _first = LINE.lock().unwrap_or_else(PoisonError::into_inner);
    std::thread::sleep(Duration::from_millis(1));
    since.elapsed() < BUSY_TIMEOUT
}

fn open_failed(path: &Path, source: rusqlite::Error) -> StoreError {
    StoreError::Open {
        path: path.to_owned(),
        source,
    }
}

fn join<T: ToString>(candidates: &[T]) -> String {
    let texts: Vec<String> = candidates.iter().map(T::to_string).collect();
    texts.join(", ")
}

#[cfg(test)]
mod tests;
