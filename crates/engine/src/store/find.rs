//! From what a person types to a run: an id, the beginning of one, a name, or `last`.

use rusqlite::params;

use super::runs::{BY_NAME, NEWEST};
use super::{RunRecord, Store, StoreError};
use crate::ids::{RunId, may_begin_id};

/// BOUND: shorter beginnings would be ambiguous as soon as there are a few dozen runs.
pub(super) const MIN_PREFIX: usize = 3;
/// BOUND: as many candidates as fit a line or two.
const MAX_CANDIDATES: usize = 8;

// `{` follows `z`, the last letter of an id.
pub(super) const BY_PREFIX: &str =
    "SELECT id FROM runs WHERE id >= ?1 AND id < ?1 || '{' ORDER BY id LIMIT ?2";

impl Store {
    /// The run that is meant by a full id, a name, the beginning of an id (three characters or
    /// more), `last` or `@` (the newest).
    pub fn find(&self, text: &str) -> Result<RunRecord, StoreError> {
        if text == "last" || text == "@" {
            return self
                .read_one(NEWEST, params![], text)?
                .ok_or(StoreError::NoRuns);
        }
        if let Ok(id) = text.parse() {
            return self.run(id);
        }
        if let Some(run) = self.read_one(BY_NAME, params![text], text)? {
            return Ok(run);
        }
        let mut candidates = self.candidates(text)?;
        match candidates[..] {
            [] => Err(StoreError::NotFound {
                subject: text.chars().take(64).collect(),
            }),
            [id] => self.run(id),
            _ => {
                let more = candidates.len() > MAX_CANDIDATES;
                candidates.truncate(MAX_CANDIDATES);
                Err(StoreError::Ambiguous {
                    text: text.to_owned(),
                    candidates,
                    more,
                })
            }
        }
    }

    fn candidates(&self, prefix: &str) -> Result<Vec<RunId>, StoreError> {
        if prefix.len() < MIN_PREFIX || !may_begin_id(prefix) {
            return Ok(Vec::new());
        }
        let read = || -> Result<Vec<RunId>, rusqlite::Error> {
            self.connection
                .prepare_cached(BY_PREFIX)?
                .query_map(params![prefix, MAX_CANDIDATES as i64 + 1], |row| row.get(0))?
                .collect()
        };
        read().map_err(|e| self.list_failed(e))
    }
}
