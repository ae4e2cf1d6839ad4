//! What was run in a sandbox, in order: its history.

use ringfence_model::ByteText;
use ringfence_model::outcome::Outcome;
use rusqlite::params;

use super::runs::{bad_column, from_json, json, parse_outcome};
use super::{Store, StoreError};
use crate::clock::now_us;
use crate::ids::SandboxId;

/// One command that was run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallRecord {
    pub sequence: u64,
    pub incarnation: u64,
    pub session: Option<String>,
    pub argv: Vec<ByteText>,
    pub began_us: i64,
    /// Absent while it runs, and where nobody saw it end.
    pub ended_us: Option<i64>,
    pub outcome: Option<Outcome>,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
}

impl Store {
    /// Before a command is run; gives its number.
    pub fn call_begins(
        &self,
        sandbox: SandboxId,
        incarnation: u64,
        session: Option<&str>,
        argv: &[ByteText],
    ) -> Result<u64, StoreError> {
        let insert = || -> Result<i64, rusqlite::Error> {
            self.intent()?
                .prepare_cached(
                    "INSERT INTO calls (sandbox, sequence, incarnation, session, argv, began_us)
                     SELECT ?1, coalesce(max(sequence) + 1, 1), ?2, ?3, ?4, ?5
                     FROM calls WHERE sandbox = ?1 RETURNING sequence",
                )?
                .query_row(
                    params![
                        sandbox,
                        incarnation.cast_signed(),
                        session,
                        json(argv),
                        now_us()
                    ],
                    |row| row.get(0),
                )
        };
        insert()
            .map(i64::cast_unsigned)
            .map_err(|e| self.write_failed("record a call in", Some(sandbox), e))
    }

    /// After it.
    pub fn call_ended(
        &self,
        sandbox: SandboxId,
        sequence: u64,
        outcome: Outcome,
        (code, signal): (Option<i32>, Option<i32>),
    ) -> Result<(), StoreError> {
        let update = || {
            self.intent()?
                .prepare_cached(
                    "UPDATE calls SET ended_us = ?3, outcome = ?4, exit_code = ?5, signal = ?6
                     WHERE sandbox = ?1 AND sequence = ?2",
                )?
                .execute(params![
                    sandbox,
                    sequence.cast_signed(),
                    now_us(),
                    outcome.as_str(),
                    code,
                    signal
                ])
        };
        update()
            .map(drop)
            .map_err(|e| self.write_failed("record a call in", Some(sandbox), e))
    }

    /// The last calls, the oldest of them first.
    pub fn calls(&self, sandbox: SandboxId, limit: usize) -> Result<Vec<CallRecord>, StoreError> {
        let read = || -> Result<Vec<CallRecord>, rusqlite::Error> {
            self.connection
                .prepare_cached(
                    "SELECT sequence, incarnation, session, argv, began_us, ended_us, outcome,
                         exit_code, signal
                     FROM calls WHERE sandbox = ?1 ORDER BY sequence DESC LIMIT ?2",
                )?
                .query_map(
                    params![sandbox, i64::try_from(limit).unwrap_or(i64::MAX)],
                    |row| {
                        let outcome: Option<String> = row.get(6)?;
                        Ok(CallRecord {
                            sequence: row.get::<_, i64>(0)?.cast_unsigned(),
                            incarnation: row.get::<_, i64>(1)?.cast_unsigned(),
                            session: row.get(2)?,
                            argv: from_json(row, 3)?,
                            began_us: row.get(4)?,
                            ended_us: row.get(5)?,
                            outcome: outcome
                                .map(|word| parse_outcome(&word).map_err(|e| bad_column(6, e)))
                                .transpose()?,
                            exit_code: row.get(7)?,
                            signal: row.get(8)?,
                        })
                    },
                )?
                .collect()
        };
        let mut calls = read().map_err(|e| self.read_failed(sandbox.as_str(), e))?;
        calls.reverse();
        Ok(calls)
    }
}
