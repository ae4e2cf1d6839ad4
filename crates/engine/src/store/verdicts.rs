//! Verdicts as the store knows them: what the log of the home says, to be looked up by run.

use ringfence_model::verdict::Verdict;
use rusqlite::{OptionalExtension as _, Row, params};

use super::runs::{from_json, json};
use super::{Store, StoreError};
use crate::ids::RunId;

/// A line of the log: which, the hash of it, and how long the log is with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerdictLine {
    pub sequence: u64,
    pub head: String,
    pub length: u64,
}

/// What was decided of runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decided {
    /// Something changed, and nobody has said anything.
    Held,
    Approved,
    Rejected,
}

impl Store {
    /// Records a line of the log. It is on the disk when this returns. A line that is there already
    /// stays as it is.
    pub(crate) fn insert_verdict(
        &self,
        line: &VerdictLine,
        verdict: &Verdict,
    ) -> Result<(), StoreError> {
        let insert = || {
            self.acknowledgement()?
                .prepare_cached(
                    "INSERT INTO verdicts (sequence, run, decision, head, length, verdict)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT DO NOTHING",
                )?
                .execute(params![
                    line.sequence.cast_signed(),
                    verdict.run,
                    verdict.decision.as_str(),
                    line.head,
                    line.length.cast_signed(),
                    json(verdict),
                ])
        };
        insert().map_err(|e| {
            self.failed(e, |source| StoreError::Verdicts {
                what: "record a verdict on",
                run: verdict.run.clone(),
                source,
            })
        })?;
        Ok(())
    }

    /// The newest line of the log that the store knows.
    pub(crate) fn last_verdict_line(&self) -> Result<Option<VerdictLine>, StoreError> {
        let decode = |row: &Row<'_>| {
            Ok(VerdictLine {
                sequence: row.get::<_, i64>(0)?.cast_unsigned(),
                head: row.get(1)?,
                length: row.get::<_, i64>(2)?.cast_unsigned(),
            })
        };
        let read = || {
            self.connection
                .prepare_cached(
                    "SELECT sequence, head, length FROM verdicts ORDER BY sequence DESC LIMIT 1",
                )?
                .query_row([], decode)
                .optional()
        };
        read().map_err(|e| self.verdicts_failed("any run", e))
    }

    /// The verdict that counts.
    pub(crate) fn last_verdict(&self, run: RunId) -> Result<Option<Verdict>, StoreError> {
        let read = || {
            self.connection
                .prepare_cached(
                    "SELECT verdict FROM verdicts WHERE run = ?1 ORDER BY sequence DESC LIMIT 1",
                )?
                .query_row([run.as_str()], |row| from_json(row, 0))
                .optional()
        };
        read().map_err(|e| self.verdicts_failed(run.as_str(), e))
    }

    fn verdicts_failed(&self, run: &str, source: rusqlite::Error) -> StoreError {
        self.failed(source, |source| StoreError::Verdicts {
            what: "read the verdicts on",
            run: run.to_owned(),
            source,
        })
    }
}
