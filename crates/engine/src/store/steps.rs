//! The steps of a run: what was about to be done, and what was.
//!
//! ```text
//! (nothing) ──▶ intent ──▶ done
//!                  └─────▶ undone      and from either of them to intent again
//! ```
//!
//! Records are only added. A step whose last record is an intent was cut.

use rusqlite::{Connection, Row, Transaction, TransactionBehavior, params};
use serde_json::Value;

use super::runs::{bad_column, json};
use super::{Store, StoreError};
use crate::clock::now_us;
use crate::ids::RunId;

/// What a record says of its step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepState {
    /// About to be done.
    Intent,
    Done,
    /// Rolled back.
    Undone,
}

impl StepState {
    /// The word used in the store.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Intent => "intent",
            Self::Done => "done",
            Self::Undone => "undone",
        }
    }

    /// Reads the stored word back.
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Intent, Self::Done, Self::Undone]
            .into_iter()
            .find(|state| state.as_str() == word)
    }
}

/// One record.
#[derive(Clone, Debug, PartialEq)]
pub struct StepRecord {
    pub sequence: u64,
    pub step: String,
    pub state: StepState,
    pub time_us: i64,
    pub detail: Option<Value>,
}

// The sequence is per run and found in the statement itself, so no two writers get the same.
const INTENT: &str = "
    INSERT INTO steps (run, sequence, step, state, time_us, detail)
    SELECT ?1, coalesce(max(sequence) + 1, 0), ?2, 'intent', ?3, ?4
    FROM steps WHERE run = ?1";

const RESULT: &str = "
    INSERT INTO steps (run, sequence, step, state, time_us)
    SELECT ?1, (SELECT max(sequence) + 1 FROM steps WHERE run = ?1), ?2, ?4, ?3
    WHERE (SELECT state FROM steps WHERE run = ?1 AND step = ?2
           ORDER BY sequence DESC LIMIT 1) = 'intent'";

impl Store {
    /// Before an effect: it is about to be made.
    pub fn step_intent(&self, run: RunId, step: &str) -> Result<(), StoreError> {
        self.step_intent_with(run, step, None)
    }

    /// As [`Self::step_intent`], with what is needed to undo it.
    pub fn step_intent_with(
        &self,
        run: RunId,
        step: &str,
        detail: Option<&Value>,
    ) -> Result<(), StoreError> {
        let write = || insert_intent(self.intent()?, run, step, detail);
        write().map_err(|e| self.step_failed(run, step, e))
    }

    /// After an effect: it was made.
    pub fn step_done(&self, run: RunId, step: &str) -> Result<(), StoreError> {
        self.step_result(run, step, StepState::Done)
    }

    /// After an effect was taken back.
    pub fn step_undone(&self, run: RunId, step: &str) -> Result<(), StoreError> {
        self.step_result(run, step, StepState::Undone)
    }

    /// Between two effects: one was made, the next is about to be. One commit for both.
    pub fn step_next(&self, run: RunId, done: &str, next: &str) -> Result<(), StoreError> {
        let write = || -> Result<usize, rusqlite::Error> {
            let connection = self.intent()?;
            let transaction =
                Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
            let rows = insert_result(&transaction, run, done, StepState::Done)?;
            if rows > 0 {
                insert_intent(&transaction, run, next, None)?;
            }
            transaction.commit()?;
            Ok(rows)
        };
        let rows = write().map_err(|e| self.step_failed(run, next, e))?;
        only_open(run, done, rows)
    }

    fn step_result(&self, run: RunId, step: &str, state: StepState) -> Result<(), StoreError> {
        let write = || insert_result(self.intent()?, run, step, state);
        let rows = write().map_err(|e| self.step_failed(run, step, e))?;
        only_open(run, step, rows)
    }

    /// All records of a run, in the order in which they were made.
    pub fn steps(&self, run: RunId) -> Result<Vec<StepRecord>, StoreError> {
        let read = || -> Result<Vec<StepRecord>, rusqlite::Error> {
            self.connection
                .prepare_cached(
                    "SELECT sequence, step, state, time_us, detail FROM steps
                     WHERE run = ?1 ORDER BY sequence",
                )?
                .query_map([run], decode)?
                .collect()
        };
        read().map_err(|e| self.failed(e, |source| StoreError::ReadSteps { run, source }))
    }

    /// The steps that were begun and neither done nor undone: the last one first, as they are to
    /// be undone.
    pub fn open_steps(&self, run: RunId) -> Result<Vec<StepRecord>, StoreError> {
        let mut open: Vec<StepRecord> = Vec::new();
        for record in self.steps(run)? {
            open.retain(|other| other.step != record.step);
            if record.state == StepState::Intent {
                open.push(record);
            }
        }
        open.reverse();
        Ok(open)
    }

    fn step_failed(&self, run: RunId, step: &str, source: rusqlite::Error) -> StoreError {
        self.failed(source, |source| StoreError::RecordStep {
            run,
            step: step.to_owned(),
            source,
        })
    }
}

fn insert_intent(
    connection: &Connection,
    run: RunId,
    step: &str,
    detail: Option<&Value>,
) -> Result<(), rusqlite::Error> {
    connection
        .prepare_cached(INTENT)?
        .execute(params![run, step, now_us(), detail.map(json)])?;
    Ok(())
}

/// Gives the number of rows: none where the step is not open.
fn insert_result(
    connection: &Connection,
    run: RunId,
    step: &str,
    state: StepState,
) -> Result<usize, rusqlite::Error> {
    connection
        .prepare_cached(RESULT)?
        .execute(params![run, step, now_us(), state.as_str()])
}

fn only_open(run: RunId, step: &str, rows: usize) -> Result<(), StoreError> {
    match rows {
        0 => Err(StoreError::StepNotOpen {
            run,
            step: step.to_owned(),
        }),
        _ => Ok(()),
    }
}

fn decode(row: &Row<'_>) -> Result<StepRecord, rusqlite::Error> {
    let state: String = row.get(2)?;
    let detail: Option<String> = row.get(4)?;
    Ok(StepRecord {
        sequence: row.get::<_, i64>(0)?.cast_unsigned(),
        step: row.get(1)?,
        state: StepState::parse(&state)
            .ok_or_else(|| bad_column(2, format!("unknown state `{state}`")))?,
        time_us: row.get(3)?,
        detail: detail
            .map(|text| serde_json::from_str(&text).map_err(|e| bad_column(4, e)))
            .transpose()?,
    })
}
