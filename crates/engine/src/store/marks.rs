//! Marks on runs that are over: which attempt was kept, and which are out of the way.

use rusqlite::params;
use serde_json::{Map, Value};

use super::{Store, StoreError};
use crate::ids::RunId;

/// Where the row of a run says that it is out of the way.
pub(crate) const ARCHIVED: &str = "archived";
/// Where it says that it is the one that was kept, and of which others.
pub(crate) const KEPT: &str = "kept";
/// Where it says which attempt of which group it is.
pub(crate) const ATTEMPT: &str = "attempt";
/// Where it says which task of which campaign it is for.
pub(crate) const CAMPAIGN: &str = "campaign";

impl Store {
    /// Lays words over the details of runs, all or none. They are on the disk when this returns.
    pub fn mark_runs(&self, marks: &[(RunId, Map<String, Value>)]) -> Result<(), StoreError> {
        let run = marks.first().map(|(run, _)| *run);
        let write = || -> Result<(), rusqlite::Error> {
            let connection = self.acknowledgement()?;
            let transaction = connection.unchecked_transaction()?;
            for (run, detail) in marks {
                let json = Value::Object(detail.clone()).to_string();
                transaction.execute(
                    "UPDATE runs SET detail = json_patch(detail, ?2) WHERE id = ?1",
                    params![run, json],
                )?;
            }
            transaction.commit()
        };
        match run {
            None => Ok(()),
            Some(run) => {
                write().map_err(|e| self.failed(e, |source| StoreError::MarkRun { run, source }))
            }
        }
    }
}
