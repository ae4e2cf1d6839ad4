//! From an approved run to a pull request: a branch is pushed by the host with the user's own
//! credentials, and a forge is asked to open a request for it.
//!
//! ```text
//! approved ─▶ default branch asked ─▶ row `pushing` ─▶ git push ─▶ row `pushed`
//!                                                                     │
//!                        row `open` ◀─ opened ◀─ none ◀─ is one open? ┘
//! ```
//!
//! INVARIANT: nothing is pushed but one commit to one branch that is not the default one and is new
//! or ours. Doing it again, at any point, doubles nothing: a branch that is there is found, and so
//! is a request. Where the forge fails, the branch stays.

mod body;
mod earlier;
mod error;
mod forge;
mod kinds;
mod push;

use std::path::PathBuf;

use ringfence_model::changes::ObjectHash;
use serde::Serialize;

use crate::error::Error;
use crate::home::Home;
use crate::mirror::Progress;
use crate::run::RunResult;
use crate::source::Typed;
use crate::store::{PullRequestRecord, PullRequestState, RunRecord, Store};
use crate::verdicts::{self, Standing};

pub use body::{body, title};
pub use earlier::{Wanted, earlier};
pub use error::PullRequestError;
pub use forge::Forge;
pub use push::{branch_name, remote};

/// What is to be published.
#[derive(Debug)]
pub struct Publishing<'a> {
    pub run: &'a RunRecord,
    /// The commit that has the changes of the run.
    pub commit: String,
    pub hash: ObjectHash,
    /// Directories of objects, in which the commit and all that it stands on are.
    pub objects: Vec<PathBuf>,
    pub remote: Typed,
    pub branch: String,
    pub title: String,
    pub body: String,
    pub draft: Draft,
}

/// Whether the request is marked as not ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Draft {
    No,
    Yes,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Published {
    /// The address without credentials.
    pub remote: String,
    pub branch: String,
    /// What it asks to be merged into.
    pub base: String,
    pub commit: String,
    pub number: u64,
    pub url: String,
    /// It was open already.
    pub found: bool,
}

/// Whether the forge of a remote is known, and a token for it. Nothing is made where it is not.
pub fn ready(home: &Home, remote: &Typed) -> Result<(), Error> {
    Forge::of(home, &remote.source)?.token()?;
    Ok(())
}

/// Pushes the branch and opens the request; or finds either.
pub fn publish(
    home: &Home,
    store: &Store,
    publishing: &Publishing<'_>,
    progress: &mut dyn Progress,
) -> Result<Published, Error> {
    let run = publishing.run;
    if !matches!(verdicts::proven(store, home, run)?, Standing::Approved(_)) {
        let run = run.id.to_string();
        return Err(PullRequestError::NotApproved { run }.into());
    }
    push::branch_name(&publishing.branch)?;
    let forge = Forge::of(home, &publishing.remote.source)?;
    let token = forge.token()?;
    let mut row = PullRequestRecord {
        run: run.id.to_string(),
        remote: publishing.remote.source.text(),
        branch: publishing.branch.clone(),
        state: PullRequestState::Pushing,
        commit: publishing.commit.clone(),
        previous: None,
        number: None,
        url: None,
    };
    let known = store.pull_request(&row.run, &row.remote, &row.branch)?;
    let ours = known.iter().flat_map(|known| {
        let before = known.previous.iter();
        before.chain([&known.commit]).cloned()
    });
    let pushing = push::Pushing {
        home,
        publishing,
        ours: ours.collect(),
    };
    let remote = pushing.ask()?;
    if let Some(known) = known {
        (row.number, row.url) = (known.number, known.url);
    }
    if remote.tip.as_deref() != Some(&publishing.commit) {
        row.previous.clone_from(&remote.tip);
        store.put_pull_request(&row)?;
        pushing.push(&remote, progress)?;
    }
    row.state = PullRequestState::Pushed;
    store.put_pull_request(&row)?;
    let base = remote.default;
    let asked = forge.open(&token, publishing, &base);
    let opened = asked.map_err(|source| PullRequestError::Forge {
        branch: publishing.branch.clone(),
        host: forge.host.clone(),
        source: Box::new(source),
    })?;
    row.state = PullRequestState::Open;
    row.number = Some(opened.number);
    row.url = Some(opened.url.clone());
    store.put_pull_request(&row)?;
    Ok(Published {
        remote: row.remote,
        branch: row.branch,
        base,
        commit: row.commit,
        number: opened.number,
        url: opened.url,
        found: opened.found,
    })
}

/// What is said of a run in a request that nobody wrote a text for.
pub fn words(result: &RunResult, bundle_sha256: &str) -> (String, String) {
    (title(result), body(result, bundle_sha256))
}

#[cfg(test)]
mod tests;
