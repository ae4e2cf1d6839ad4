//! The commit of a branch that an earlier try made: nothing is made twice.

use std::path::Path;

use super::PullRequestError;
use crate::error::Error;
use crate::git::{self, Lookup, Repository, Scratch};
use crate::store::{PullRequestRecord, PullRequestState, Store};

/// Which branch, of which run, for which remote.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    pub run: &'a str,
    /// An address without credentials.
    pub remote: &'a str,
    pub branch: &'a str,
    /// The tree that the commit must have, where it has a name.
    pub tree: Option<&'a str>,
    /// Of the manifest of the bundle, in hex.
    pub bundle: &'a str,
}

/// The commit that is on the branch of the folder's repository already. Where there is none, it is
/// noted that one is about to be made.
pub fn earlier(store: &Store, folder: &Path, wanted: Wanted<'_>) -> Result<Option<String>, Error> {
    let known = store.pull_request(wanted.run, wanted.remote, wanted.branch)?;
    if known.is_none() {
        store.put_pull_request(&PullRequestRecord {
            run: wanted.run.to_owned(),
            remote: wanted.remote.to_owned(),
            branch: wanted.branch.to_owned(),
            state: PullRequestState::Pushing,
            commit: String::new(),
            previous: None,
            number: None,
            url: None,
        })?;
    }
    let pushed = known.map(|known| known.commit).unwrap_or_default();
    let failed = PullRequestError::Repository;
    let Some(repository) = git::discover(folder).map_err(failed)? else {
        return Ok(None);
    };
    let tip = git::branch_commit(&repository, wanted.branch).map_err(failed)?;
    Ok(tip.filter(|tip| {
        if pushed.is_empty() {
            // Made by `apply --branch`, for another remote, or killed between the branch and the
            // push.
            is_wanted(&repository, tip, wanted)
        } else {
            *tip == pushed
        }
    }))
}

/// Whether a commit is what would be made: this run's, with one parent, and the tree. A branch of
/// somebody's own is not pushed because it ends in the same files.
fn is_wanted(repository: &Repository, commit: &str, wanted: Wanted<'_>) -> bool {
    let read = || {
        let scratch = Scratch::make().ok()?;
        let mut lookup = Lookup::begin(repository, scratch.path()).ok()?;
        lookup.object("commit", commit).ok()
    };
    let Some(body) = read() else {
        return false;
    };
    let text = String::from_utf8_lossy(&body);
    let Some((header, message)) = text.split_once("\n\n") else {
        return false;
    };
    let of = |name: &str| {
        let lines = header
            .lines()
            .filter_map(move |line| line.strip_prefix(name));
        lines.collect::<Vec<_>>()
    };
    let trailers = format!(
        "Ringfence-Run: {}\nRingfence-Bundle: sha256:{}\n",
        wanted.run, wanted.bundle
    );
    let tree: Vec<&str> = wanted.tree.into_iter().collect();
    !tree.is_empty()
        && of("tree ") == tree
        && of("parent ").len() == 1
        && message.contains(&trailers)
}
