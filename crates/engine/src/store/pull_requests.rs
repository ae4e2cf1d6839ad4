//! Pull requests: what was about to be pushed or asked for, and what came of it.

use rusqlite::{OptionalExtension as _, params};
use serde_json::{Value, json};

use super::runs::{bad_column, from_json};
use super::{Store, StoreError};
use crate::clock::now_us;

/// How far it got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullRequestState {
    /// The branch may be there, or not.
    Pushing,
    /// The branch is there.
    Pushed,
    /// The request is open.
    Open,
}

impl PullRequestState {
    const ALL: [Self; 3] = [Self::Pushing, Self::Pushed, Self::Open];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pushing => "pushing",
            Self::Pushed => "pushed",
            Self::Open => "open",
        }
    }
}

/// A branch of a remote that a run made, and the request for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullRequestRecord {
    pub run: String,
    /// An address without credentials.
    pub remote: String,
    pub branch: String,
    pub state: PullRequestState,
    /// Where the branch was put last.
    pub commit: String,
    /// Where it was before that: a push that was cut off may have left it there.
    pub previous: Option<String>,
    pub number: Option<u64>,
    pub url: Option<String>,
}

impl Store {
    /// Records it in the place of what was known. It is on the disk when this returns.
    pub fn put_pull_request(&self, row: &PullRequestRecord) -> Result<(), StoreError> {
        let detail =
            json!({"number": row.number, "url": row.url, "previous": row.previous}).to_string();
        let put = || {
            self.acknowledgement()?
                .prepare_cached(
                    "INSERT OR REPLACE INTO pull_requests
                     (run, remote, branch, state, commit_id, updated_us, detail)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
                )?
                .execute(params![
                    row.run,
                    row.remote,
                    row.branch,
                    row.state.as_str(),
                    row.commit,
                    now_us(),
                    detail,
                ])
        };
        put().map_err(|e| {
            self.failed(e, |source| failed("record a pull request of", row, source))
        })?;
        Ok(())
    }

    /// What is known of a branch.
    pub fn pull_request(
        &self,
        run: &str,
        remote: &str,
        branch: &str,
    ) -> Result<Option<PullRequestRecord>, StoreError> {
        let decode = |row: &rusqlite::Row<'_>| {
            let word: String = row.get(0)?;
            let state = PullRequestState::ALL
                .into_iter()
                .find(|state| state.as_str() == word);
            let detail: Value = from_json(row, 2)?;
            Ok(PullRequestRecord {
                run: run.to_owned(),
                remote: remote.to_owned(),
                branch: branch.to_owned(),
                state: state.ok_or_else(|| bad_column(0, format!("unknown state `{word}`")))?,
                commit: row.get(1)?,
                previous: detail["previous"].as_str().map(str::to_owned),
                number: detail["number"].as_u64(),
                url: detail["url"].as_str().map(str::to_owned),
            })
        };
        let read = || {
            self.connection
                .prepare_cached(
                    "SELECT state, commit_id, detail FROM pull_requests
                     WHERE run = ?1 AND remote = ?2 AND branch = ?3",
                )?
                .query_row(params![run, remote, branch], decode)
                .optional()
        };
        read().map_err(|e| {
            self.failed(e, |source| StoreError::Verdicts {
                what: "read a pull request of",
                run: run.to_owned(),
                source,
            })
        })
    }
}

fn failed(what: &'static str, row: &PullRequestRecord, source: rusqlite::Error) -> StoreError {
    StoreError::Verdicts {
        what,
        run: row.run.clone(),
        source,
    }
}
