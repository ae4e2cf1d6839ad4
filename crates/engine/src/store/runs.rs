//! Runs in the store: one row each, from the moment that something is about to happen.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use ringfence_model::ByteText;
use ringfence_model::outcome::{Outcome, RunStatus};
use ringfence_model::verdict::Decision;
use rusqlite::types::Type;
use rusqlite::{ErrorCode, OptionalExtension, Row, params};
use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::StrDeserializer;
use serde_json::{Map, Value};

use super::{CAMPAIGN, Decided, Store, StoreError};
use crate::ids::{CampaignId, RunId};
use crate::lock::RunLock;
use crate::run::OfCampaign;

/// BOUND: a name is typed by a person and shown in a table.
const MAX_NAME_CHARACTERS: usize = 64;

/// The process that drives a run, for people; whether it lives is said by its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Driver {
    pub pid: u32,
    /// Clock ticks between boot and its start, 0 where it is not known: tells it from a later
    /// process with the same pid.
    pub start_ticks: u64,
}

impl Driver {
    /// This process.
    pub fn current() -> Self {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        Self {
            pid: std::process::id(),
            start_ticks: start_ticks(&stat).unwrap_or(0),
        }
    }
}

impl Driver {
    /// Whether that very process is there, and not a later one with its pid.
    pub fn is_alive(self) -> bool {
        std::fs::read_to_string(format!("/proc/{}/stat", self.pid))
            .ok()
            .filter(|stat| !is_dead(stat))
            .and_then(|stat| start_ticks(&stat))
            .is_some_and(|ticks| self.start_ticks == 0 || ticks == self.start_ticks)
    }
}

/// It does nothing any more; only nobody has asked for its exit code yet.
fn is_dead(stat: &str) -> bool {
    stat.rsplit_once(')')
        .is_some_and(|(_, fields)| fields.trim_start().starts_with(['Z', 'X']))
}

/// The 22nd field; the second is a name in brackets that may hold anything.
fn start_ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// What is known when a run begins.
#[derive(Clone, Debug, PartialEq)]
pub struct NewRun {
    pub name: Option<String>,
    pub folder: PathBuf,
    pub argv: Vec<ByteText>,
    pub created_us: i64,
    pub driver: Driver,
    /// What has no column of its own.
    pub detail: Map<String, Value>,
}

/// What is known when it is over.
#[derive(Clone, Debug, PartialEq)]
pub struct FinishedRun {
    pub status: RunStatus,
    pub outcome: Option<Outcome>,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub ended_us: i64,
    pub duration_ms: u64,
    pub changed_files: u64,
    pub insertions: u64,
    pub deletions: u64,
    /// Relative to the home.
    pub bundle: Option<PathBuf>,
    /// Laid over what is there: keys of the same name are replaced, `null` removes one.
    pub detail: Map<String, Value>,
}

impl FinishedRun {
    /// The end of a run whose command was never started.
    pub fn never_started(ended_us: i64) -> Self {
        Self {
            status: RunStatus::Failed,
            outcome: Some(Outcome::NotStarted),
            exit_code: None,
            signal: None,
            ended_us,
            duration_ms: 0,
            changed_files: 0,
            insertions: 0,
            deletions: 0,
            bundle: None,
            detail: Map::new(),
        }
    }
}

/// All that the store knows of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct RunRecord {
    pub id: RunId,
    pub name: Option<String>,
    pub status: RunStatus,
    pub outcome: Option<Outcome>,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub folder: PathBuf,
    pub argv: Vec<ByteText>,
    pub created_us: i64,
    pub started_us: Option<i64>,
    /// Absent for a lost run: nobody saw it end.
    pub ended_us: Option<i64>,
    pub duration_ms: Option<u64>,
    pub changed_files: Option<u64>,
    pub insertions: Option<u64>,
    pub deletions: Option<u64>,
    /// Relative to the home.
    pub bundle: Option<PathBuf>,
    pub driver: Driver,
    pub detail: Map<String, Value>,
}

impl RunRecord {
    /// The task that it is for, where there is a campaign.
    pub fn campaign(&self) -> Option<OfCampaign> {
        OfCampaign::deserialize(self.detail.get(CAMPAIGN)?).ok()
    }

    /// Where a list goes on after this run.
    pub fn position(&self) -> ListPosition {
        ListPosition {
            created_us: self.created_us,
            id: self.id,
        }
    }
}

/// Which runs to list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunFilter {
    pub status: Option<RunStatus>,
    /// Only those of which this was decided.
    pub decided: Option<Decided>,
    /// Only what comes after this one in the list.
    pub after: Option<ListPosition>,
    pub archived: Archived,
    /// Only those of this one.
    pub campaign: Option<CampaignId>,
}

/// Whether runs that are out of the way are listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Archived {
    #[default]
    Shown,
    Hidden,
}

/// A place in the list of runs, newest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListPosition {
    pub created_us: i64,
    pub id: RunId,
}

/// The columns that [`decode`] reads, in its order.
macro_rules! select_runs {
    ($rest:literal) => {
        concat!(
            "SELECT id, name, status, outcome, exit_code, signal, folder, argv, created_us, ",
            "started_us, ended_us, duration_ms, changed_files, insertions, deletions, bundle, ",
            "pid, pid_start, detail FROM runs ",
            $rest
        )
    };
}
pub(super) use select_runs;

pub(super) const BY_ID: &str = select_runs!("WHERE id = ?1");
pub(super) const BY_NAME: &str = select_runs!("WHERE name = ?1");
pub(super) const NEWEST: &str = select_runs!("ORDER BY created_us DESC, id DESC LIMIT 1");
pub(super) const LIST: &str =
    select_runs!("WHERE (created_us, id) < (?1, ?2) ORDER BY created_us DESC, id DESC LIMIT ?3");
pub(super) const LIST_OPEN: &str = select_runs!(
    "WHERE json_extract(detail, '$.archived') IS NULL AND (created_us, id) < (?1, ?2)
     ORDER BY created_us DESC, id DESC LIMIT ?3"
);
pub(super) const LIST_STATUS: &str = select_runs!(
    "WHERE status = ?4 AND (created_us, id) < (?1, ?2)
     ORDER BY created_us DESC, id DESC LIMIT ?3"
);
pub(super) const LIST_HELD: &str = select_runs!(
    "WHERE bundle IS NOT NULL AND changed_files > 0
       AND json_extract(detail, '$.archived') IS NULL
       AND NOT EXISTS (SELECT 1 FROM verdicts WHERE verdicts.run = runs.id)
       AND (created_us, id) < (?1, ?2)
     ORDER BY created_us DESC, id DESC LIMIT ?3"
);
pub(super) const LIST_DECIDED: &str = select_runs!(
    "WHERE (SELECT decision FROM verdicts WHERE verdicts.run = runs.id
            ORDER BY sequence DESC LIMIT 1) = ?4
       AND (created_us, id) < (?1, ?2)
     ORDER BY created_us DESC, id DESC LIMIT ?3"
);

const INSERT: &str = "
    INSERT INTO runs (id, name, status, folder, argv, created_us, pid, pid_start, detail)
    VALUES (?1, ?2, 'running', ?3, ?4, ?5, ?6, ?7, ?8)";

const FINISH: &str = "
    UPDATE runs SET status = ?2, outcome = ?3, exit_code = ?4, signal = ?5, ended_us = ?6,
        duration_ms = ?7, changed_files = ?8, insertions = ?9, deletions = ?10, bundle = ?11,
        detail = json_patch(detail, ?12)
    WHERE id = ?1 AND status = 'running'";

impl Store {
    /// Records that a run is about to happen.
    ///
    /// INVARIANT: the lock is taken before the row is there, so that a row that is `running`
    /// without a held lock can only be one whose driver died.
    pub fn insert_run(&self, lock: &RunLock, new: &NewRun) -> Result<(), StoreError> {
        let id = lock.run();
        if let Some(name) = &new.name {
            check_name(name)?;
        }
        let insert = || {
            self.intent()?.prepare_cached(INSERT)?.execute(params![
                id,
                new.name,
                new.folder.as_os_str().as_bytes(),
                json(&new.argv),
                new.created_us,
                new.driver.pid,
                new.driver.start_ticks.cast_signed(),
                json(&new.detail),
            ])
        };
        insert().map_err(|e| match (&new.name, is_unique_violation(&e)) {
            (Some(name), true) => StoreError::NameTaken { name: name.clone() },
            _ => self.failed(e, |source| StoreError::InsertRun { run: id, source }),
        })?;
        Ok(())
    }

    /// Records that the command was started.
    pub fn start_run(&self, run: RunId, started_us: i64) -> Result<(), StoreError> {
        let update = || {
            self.intent()?
                .prepare_cached(
                    "UPDATE runs SET started_us = ?2 WHERE id = ?1 AND status = 'running'",
                )?
                .execute(params![run, started_us])
        };
        let rows =
            update().map_err(|e| self.failed(e, |source| StoreError::StartRun { run, source }))?;
        only_running(run, rows)
    }

    /// Records how a run ended. It is on the disk when this returns, and so is everything that was
    /// recorded before it.
    pub fn finish_run(&self, run: RunId, end: &FinishedRun) -> Result<(), StoreError> {
        let update = || {
            self.acknowledgement()?
                .prepare_cached(FINISH)?
                .execute(params![
                    run,
                    end.status.as_str(),
                    end.outcome.map(Outcome::as_str),
                    end.exit_code,
                    end.signal,
                    end.ended_us,
                    end.duration_ms.cast_signed(),
                    end.changed_files.cast_signed(),
                    end.insertions.cast_signed(),
                    end.deletions.cast_signed(),
                    end.bundle.as_ref().map(|path| path.as_os_str().as_bytes()),
                    json(&end.detail),
                ])
        };
        let rows =
            update().map_err(|e| self.failed(e, |source| StoreError::FinishRun { run, source }))?;
        only_running(run, rows)
    }

    /// Records that the driver of a run died; false where the run is over already.
    pub fn mark_lost(&self, run: RunId) -> Result<bool, StoreError> {
        let update = || {
            self.intent()?
                .prepare_cached(
                    "UPDATE runs SET status = 'lost', outcome = 'runtime_lost'
                     WHERE id = ?1 AND status = 'running'",
                )?
                .execute([run])
        };
        let rows =
            update().map_err(|e| self.failed(e, |source| StoreError::MarkLost { run, source }))?;
        Ok(rows == 1)
    }

    /// One run; `NotFound` where there is none.
    pub fn run(&self, id: RunId) -> Result<RunRecord, StoreError> {
        self.read_one(BY_ID, params![id], id.as_str())?
            .ok_or_else(|| StoreError::NotFound {
                subject: id.to_string(),
            })
    }

    /// Runs, newest first. The cost follows the limit, not the number of runs.
    pub fn runs(&self, filter: RunFilter, limit: usize) -> Result<Vec<RunRecord>, StoreError> {
        let (created_us, id) = match filter.after {
            Some(position) => (position.created_us, position.id.to_string()),
            // Beyond every id.
            None => (i64::MAX, "~".to_owned()),
        };
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let read = || -> Result<Vec<RunRecord>, rusqlite::Error> {
            let (sql, word) = match (filter.decided, filter.status) {
                (Some(Decided::Held), _) => (LIST_HELD, None),
                (Some(Decided::Approved), _) => (LIST_DECIDED, Some(Decision::Approved.as_str())),
                (Some(Decided::Rejected), _) => (LIST_DECIDED, Some(Decision::Rejected.as_str())),
                (None, None) if filter.archived == Archived::Hidden => (LIST_OPEN, None),
                (None, None) => (LIST, None),
                (None, Some(status)) => (LIST_STATUS, Some(status.as_str())),
            };
            let own = filter.campaign.map(|_| {
                sql.replacen(
                    "WHERE ",
                    "WHERE json_extract(detail, '$.campaign.id') = ?5 AND ",
                    1,
                )
            });
            let mut select = self
                .connection
                .prepare_cached(own.as_deref().unwrap_or(sql))?;
            match (word, filter.campaign) {
                (None, None) => select
                    .query_map(params![created_us, id, limit], decode)?
                    .collect(),
                (Some(word), None) => select
                    .query_map(params![created_us, id, limit, word], decode)?
                    .collect(),
                (word, Some(own)) => select
                    .query_map(params![created_us, id, limit, word, own], decode)?
                    .collect(),
            }
        };
        read().map_err(|e| self.list_failed(e))
    }

    /// Forgets a run and its steps, for good when it returns; false where there is none.
    pub fn remove_run(&self, run: RunId) -> Result<bool, StoreError> {
        let delete = || {
            self.acknowledgement()?
                .prepare_cached("DELETE FROM runs WHERE id = ?1")?
                .execute([run])
        };
        let rows =
            delete().map_err(|e| self.failed(e, |source| StoreError::RemoveRun { run, source }))?;
        Ok(rows == 1)
    }

    pub(super) fn read_one(
        &self,
        sql: &str,
        parameters: impl rusqlite::Params,
        subject: &str,
    ) -> Result<Option<RunRecord>, StoreError> {
        let read = || {
            self.connection
                .prepare_cached(sql)?
                .query_row(parameters, decode)
                .optional()
        };
        read().map_err(|e| {
            self.failed(e, |source| StoreError::ReadRun {
                subject: subject.to_owned(),
                source,
            })
        })
    }

    pub(super) fn list_failed(&self, source: rusqlite::Error) -> StoreError {
        self.failed(source, |source| StoreError::ListRuns {
            path: self.path.clone(),
            source,
        })
    }
}

/// A word that is easy to type.
pub(crate) fn is_plain_name(name: &str) -> bool {
    let plain = |c: char| c.is_alphanumeric() || "-_.".contains(c);
    name.starts_with(char::is_alphanumeric)
        && name.chars().all(plain)
        && name.chars().count() <= MAX_NAME_CHARACTERS
}

/// A name is a word that is easy to type and can be neither an id nor one of our own words.
pub(super) fn check_name(name: &str) -> Result<(), StoreError> {
    if is_plain_name(name) && name != "last" && name.parse::<RunId>().is_err() {
        return Ok(());
    }
    Err(StoreError::CheckName {
        name: name.chars().take(MAX_NAME_CHARACTERS).collect(),
    })
}

fn only_running(run: RunId, rows: usize) -> Result<(), StoreError> {
    match rows {
        0 => Err(StoreError::NotRunning { run }),
        _ => Ok(()),
    }
}

pub(super) fn is_unique_violation(error: &rusqlite::Error) -> bool {
    error.sqlite_error().is_some_and(|e| {
        e.code == ErrorCode::ConstraintViolation
            && e.extended_code == rusqlite::ffi::SQLITE_CONSTRAINT_UNIQUE
    })
}

pub(super) fn decode(row: &Row<'_>) -> Result<RunRecord, rusqlite::Error> {
    let status: String = row.get(2)?;
    let outcome: Option<String> = row.get(3)?;
    let path = |bytes: Vec<u8>| PathBuf::from(OsString::from_vec(bytes));
    let count = |index| -> Result<Option<u64>, rusqlite::Error> {
        Ok(row.get::<_, Option<i64>>(index)?.map(i64::cast_unsigned))
    };
    Ok(RunRecord {
        id: row.get(0)?,
        name: row.get(1)?,
        status: RunStatus::parse(&status)
            .ok_or_else(|| bad_column(2, format!("unknown status `{status}`")))?,
        outcome: outcome
            .map(|word| parse_outcome(&word).map_err(|e| bad_column(3, e)))
            .transpose()?,
        exit_code: row.get(4)?,
        signal: row.get(5)?,
        folder: path(row.get(6)?),
        argv: from_json(row, 7)?,
        created_us: row.get(8)?,
        started_us: row.get(9)?,
        ended_us: row.get(10)?,
        duration_ms: count(11)?,
        changed_files: count(12)?,
        insertions: count(13)?,
        deletions: count(14)?,
        bundle: row.get::<_, Option<Vec<u8>>>(15)?.map(path),
        driver: Driver {
            pid: row.get(16)?,
            start_ticks: row.get::<_, i64>(17)?.cast_unsigned(),
        },
        detail: from_json(row, 18)?,
    })
}

pub(super) fn parse_outcome(word: &str) -> Result<Outcome, serde::de::value::Error> {
    let deserializer: StrDeserializer<'_, _> = word.into_deserializer();
    Outcome::deserialize(deserializer)
}

pub(super) fn from_json<T: serde::de::DeserializeOwned>(
    row: &Row<'_>,
    index: usize,
) -> Result<T, rusqlite::Error> {
    let text: String = row.get(index)?;
    serde_json::from_str(&text).map_err(|e| bad_column(index, e))
}

/// JSON text of what has text keys only.
pub(super) fn json<T: serde::Serialize>(value: T) -> String {
    serde_json::to_string(&value).expect("lists, objects and byte strings always encode")
}

pub(super) fn bad_column(
    index: usize,
    cause: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(index, Type::Text, cause.into())
}

/// The path of a run's bundle as the store holds it.
pub fn bundle_path(run: RunId) -> PathBuf {
    Path::new("bundles").join(run.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_words() {
        for (name, good) in [
            ("fix", true),
            ("fix-the_flaky.test2", true),
            ("Grüße", true),
            ("abc", true),
            ("", false),
            ("last", false),
            ("@", false),
            ("-x", false),
            (".x", false),
            ("a b", false),
            ("a/b", false),
            ("a\nb", false),
            ("a\u{1b}[31m", false),
            ("0123456789ab", false),
        ] {
            assert_eq!(check_name(name).is_ok(), good, "{name:?}");
        }
        assert!(check_name(&"x".repeat(MAX_NAME_CHARACTERS)).is_ok());
        assert!(check_name(&"x".repeat(MAX_NAME_CHARACTERS + 1)).is_err());
    }

    #[test]
    fn the_start_of_a_process_is_read_whatever_its_name() {
        let fields = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 0 0";
        for name in ["cat", "a b", ") S 1", "(((", "x) R 9 9 9"] {
            assert_eq!(
                start_ticks(&format!("77 ({name}) {fields}")),
                Some(4242),
                "{name}"
            );
        }
        for stat in ["", "77 (cat", "77 (cat) S 1 2", "77 (cat) S"] {
            assert_eq!(start_ticks(stat), None, "{stat}");
        }
        let current = Driver::current();
        assert!(current.start_ticks > 0);
        assert_eq!(current, Driver::current());
    }

    #[test]
    fn every_outcome_is_read_back() {
        for outcome in [
            Outcome::Exited,
            Outcome::Signaled,
            Outcome::NotStarted,
            Outcome::TimedOut,
            Outcome::OutOfMemory,
            Outcome::TooManyProcesses,
            Outcome::CpuLimit,
            Outcome::FileTooLarge,
            Outcome::DiskFull,
            Outcome::OutputLimit,
            Outcome::JournalFull,
            Outcome::TurnEnded,
            Outcome::Cancelled,
            Outcome::RuntimeLost,
        ] {
            assert_eq!(parse_outcome(outcome.as_str()).unwrap(), outcome);
        }
        assert!(parse_outcome("eaten").is_err());
    }
}
