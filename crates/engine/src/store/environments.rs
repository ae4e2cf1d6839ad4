//! Environments as the store knows them.
//!
//! INVARIANT: a row is there only after its directory is whole and synced. It goes, in one
//! statement, only while no run or sandbox stands on it; its directory goes after it.

use rusqlite::{OptionalExtension, Row, params};
use serde_json::{Map, Value};

use super::runs::{bad_column, json};
use super::{Store, StoreError};
use crate::clock::now_us;

/// All that the store knows of an environment.
#[derive(Clone, Debug, PartialEq)]
pub struct EnvironmentRecord {
    pub key: String,
    /// Whose folder it was made for.
    pub scope: String,
    pub created_us: i64,
    pub used_us: i64,
    pub bytes: u64,
    pub detail: Map<String, Value>,
}

const SELECT: &str = "SELECT key, scope, created_us, used_us, bytes, detail FROM environments";
/// What stands on a layer: a run that is under way or lost, a sandbox that is there.
const USED: &str = "
    SELECT EXISTS (SELECT 1 FROM runs, json_each(runs.detail, '$.stands_on')
            WHERE runs.status IN ('running', 'lost') AND value = ?1)
        OR EXISTS (SELECT 1 FROM sandboxes, json_each(sandboxes.detail, '$.stands_on')
            WHERE value = ?1)";

impl Store {
    /// Records an environment that is whole.
    pub fn insert_environment(&self, new: &EnvironmentRecord) -> Result<(), StoreError> {
        let insert = || {
            self.acknowledgement()?
                .prepare_cached(
                    "INSERT OR REPLACE INTO environments
                     (key, scope, created_us, used_us, bytes, detail)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                )?
                .execute(params![
                    new.key,
                    new.scope,
                    new.created_us,
                    new.used_us,
                    new.bytes.cast_signed(),
                    json(&new.detail)
                ])
        };
        insert().map_err(|e| self.environment_failed(&new.key, e))?;
        Ok(())
    }

    /// Records that it was used just now.
    pub fn touch_environment(&self, key: &str) -> Result<(), StoreError> {
        let touch = || {
            self.intent()?
                .prepare_cached("UPDATE environments SET used_us = ?2 WHERE key = ?1")?
                .execute(params![key, now_us()])
        };
        touch().map_err(|e| self.environment_failed(key, e))?;
        Ok(())
    }

    pub fn environment(&self, key: &str) -> Result<Option<EnvironmentRecord>, StoreError> {
        let read = || {
            self.connection
                .prepare_cached(&format!("{SELECT} WHERE key = ?1"))?
                .query_row([key], decode)
                .optional()
        };
        read().map_err(|e| self.read_failed("environments", e))
    }

    /// All of them, the least recently used first.
    pub fn environments(&self) -> Result<Vec<EnvironmentRecord>, StoreError> {
        let read = || {
            self.connection
                .prepare_cached(&format!("{SELECT} ORDER BY used_us, key"))?
                .query_map([], decode)?
                .collect::<Result<Vec<_>, _>>()
        };
        read().map_err(|e| self.read_failed("environments", e))
    }

    /// Whether a run or a sandbox stands on this directory of the home: `environments/<key>`,
    /// `caches/…`.
    pub fn is_stood_on(&self, layer: &str) -> Result<bool, StoreError> {
        let read = || {
            self.connection
                .prepare_cached(USED)?
                .query_row([layer], |row| row.get(0))
        };
        read().map_err(|e| self.read_failed("environments", e))
    }

    fn environment_failed(&self, key: &str, source: rusqlite::Error) -> StoreError {
        self.failed(source, |source| StoreError::RecordSource {
            what: "environment",
            id: key.to_owned(),
            source,
        })
    }

    /// Forgets an environment that nobody stands on; false where somebody does.
    pub fn remove_environment(&self, key: &str) -> Result<bool, StoreError> {
        let layer = format!("environments/{key}");
        let delete = || {
            let sql = format!("DELETE FROM environments WHERE key = ?2 AND NOT ({USED})");
            self.acknowledgement()?
                .prepare_cached(&sql)?
                .execute(params![layer, key])
        };
        let rows = delete().map_err(|e| self.environment_failed(key, e))?;
        Ok(rows > 0 || self.environment(key)?.is_none())
    }
}

fn decode(row: &Row<'_>) -> Result<EnvironmentRecord, rusqlite::Error> {
    let detail: String = row.get(5)?;
    Ok(EnvironmentRecord {
        key: row.get(0)?,
        scope: row.get(1)?,
        created_us: row.get(2)?,
        used_us: row.get(3)?,
        bytes: row.get::<_, i64>(4)?.cast_unsigned(),
        detail: serde_json::from_str(&detail).map_err(|e| bad_column(5, e))?,
    })
}
