//! What `gc` did, in order, and why: kept when the thing itself is gone.

use rusqlite::params;

use super::{Store, StoreError};
use crate::clock::now_us;

/// One thing that was stopped or removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvictionRecord {
    pub sequence: u64,
    pub time_us: i64,
    pub action: String,
    pub subject: String,
    pub why: String,
}

/// BOUND: as many as a person may want to look back on.
const KEPT: i64 = 10_000;

impl Store {
    /// After it was done.
    pub fn record_eviction(
        &self,
        action: &str,
        subject: &str,
        why: &str,
    ) -> Result<(), StoreError> {
        let insert = || -> Result<(), rusqlite::Error> {
            let connection = self.intent()?;
            connection
                .prepare_cached(
                    "INSERT INTO evictions (time_us, action, subject, why)
                     VALUES (?1, ?2, ?3, ?4)",
                )?
                .execute(params![now_us(), action, subject, why])?;
            connection
                .prepare_cached(
                    "DELETE FROM evictions
                     WHERE sequence <= (SELECT max(sequence) FROM evictions) - ?1",
                )?
                .execute([KEPT])?;
            Ok(())
        };
        insert().map_err(|e| self.write_failed("record the removal of", None, e))
    }

    /// All that is kept, in order.
    pub fn evictions(&self) -> Result<Vec<EvictionRecord>, StoreError> {
        let read = || -> Result<Vec<EvictionRecord>, rusqlite::Error> {
            self.connection
                .prepare_cached(
                    "SELECT sequence, time_us, action, subject, why FROM evictions
                     ORDER BY sequence",
                )?
                .query_map([], |row| {
                    Ok(EvictionRecord {
                        sequence: row.get::<_, i64>(0)?.cast_unsigned(),
                        time_us: row.get(1)?,
                        action: row.get(2)?,
                        subject: row.get(3)?,
                        why: row.get(4)?,
                    })
                })?
                .collect()
        };
        read().map_err(|e| self.read_failed("evictions", e))
    }
}
