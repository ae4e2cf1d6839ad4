//! Why a patch was not applied. Nothing is changed then.

use std::io;
use std::path::PathBuf;

use ringfence_model::ByteText;
use serde::Serialize;
use thiserror::Error;

use crate::durable::DurableError;
use crate::error::ErrorKind;
use crate::git::{GitError, LookupError};
use crate::ids::IdError;
use crate::lock::LockError;
use crate::patch::PatchError;

/// BOUND: conflicts that a message lists; all of them are in the JSON.
const LISTED: usize = 30;

/// A path that does not fit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Conflict {
    pub path: ByteText,
    pub why: String,
}

#[derive(Debug, Error)]
pub enum ApplyError {
    #[error(transparent)]
    Verdict(Box<crate::error::Error>),
    #[error("the bundle of run `{run}` is not what was packed: {why}")]
    NotVerified { run: String, why: String },
    #[error("nobody has approved run `{run}`: {why}")]
    Held { run: String, why: String },
    #[error("run `{run}` was rejected by {by}: {why}")]
    Rejected {
        run: String,
        by: String,
        why: String,
    },
    #[error("the bundle of run `{run}` is not the one that was approved")]
    Changed { run: String },
    #[error("it was not approved, and nothing was applied")]
    NotApproved,
    #[error("the patch cannot be used")]
    Patch(#[from] PatchError),
    #[error("{}", listed(.0))]
    Conflicts(Vec<Conflict>),
    #[error("the files of the patch hold more than {most} bytes; nothing was changed")]
    TooLarge { most: u64 },
    #[error("there is no folder `{}`", .0.display())]
    NoFolder(PathBuf),
    #[error("cannot open `{}`", path.display())]
    Open {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("`{}` holds the home of ringfence", .0.display())]
    HoldsHome(PathBuf),
    #[error("somebody else applies something to `{}`", .0.display())]
    Busy(PathBuf),
    #[error("cannot prepare `{path}`")]
    Stage {
        path: ByteText,
        #[source]
        source: io::Error,
    },
    #[error("cannot put `{path}` in its place; all else was put back")]
    Swap {
        path: ByteText,
        #[source]
        source: io::Error,
    },
    #[error("cannot put everything back: {}", .0.join("; "))]
    NotUndone(Vec<String>),
    #[error("the intent `{}` cannot be read", path.display())]
    Intent {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("`{}` is not in a git repository, so that there is nothing to make a branch in", .0.display())]
    NoRepository(PathBuf),
    #[error("`{}` cannot be written by us: {why}", path.display())]
    Unsupported { path: PathBuf, why: String },
    #[error("`{name}` cannot be a new branch: {why}")]
    Branch { name: String, why: String },
    #[error("the run did not start from a commit: {why}")]
    NoCommit { why: String },
    #[error("there is no commit `{name}` in `{}`", path.display())]
    NoSuchCommit { name: String, path: PathBuf },
    #[error("the patch makes the tree {found} of commit {commit}, and the bundle says {expected}")]
    OtherTree {
        commit: String,
        found: String,
        expected: String,
    },
    #[error("the agent's commits cannot be kept: {0}")]
    NoCommits(String),
    #[error("the agent's commit {commit} cannot be kept: {why}")]
    BadCommit { commit: String, why: String },
    #[error("it is not known who you are")]
    NoAuthor,
    #[error("`{0}` is not a name and an address: `Name <address>`")]
    BadPerson(String),
    #[error("a message has no NUL in it, and is not empty")]
    BadMessage,
    #[error("cannot write `{}`", path.display())]
    WriteGit {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Lookup(#[from] LookupError),
    #[error(transparent)]
    Git(#[from] GitError),
    #[error(transparent)]
    Durable(#[from] DurableError),
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    Id(#[from] IdError),
}

fn listed(conflicts: &[Conflict]) -> String {
    let mut text = match conflicts {
        [_] => "the patch does not fit; nothing was changed".to_owned(),
        all => format!(
            "the patch does not fit at {} paths; nothing was changed",
            all.len()
        ),
    };
    for conflict in conflicts.iter().take(LISTED) {
        text.push_str(&format!("\n`{}`: {}", conflict.path, conflict.why));
    }
    if conflicts.len() > LISTED {
        text.push_str(&format!("\n… and {} more", conflicts.len() - LISTED));
    }
    text
}

impl ApplyError {
    /// Whose move it is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Verdict(error) => error.kind(),
            Self::NotVerified { .. }
            | Self::Held { .. }
            | Self::Rejected { .. }
            | Self::Changed { .. }
            | Self::NotApproved => ErrorKind::Denied,
            Self::Patch(_)
            | Self::HoldsHome(_)
            | Self::NoRepository(_)
            | Self::Branch { .. }
            | Self::NoCommit { .. }
            | Self::NoCommits(_)
            | Self::TooLarge { .. }
            | Self::NoAuthor
            | Self::BadPerson(_)
            | Self::BadMessage => ErrorKind::Invalid,
            Self::Conflicts(_) | Self::Busy(_) => ErrorKind::Conflict,
            Self::NoFolder(_) | Self::NoSuchCommit { .. } => ErrorKind::NotFound,
            Self::OtherTree { .. } | Self::BadCommit { .. } => ErrorKind::Denied,
            Self::Open { .. }
            | Self::Stage { .. }
            | Self::Swap { .. }
            | Self::NotUndone(_)
            | Self::Intent { .. }
            | Self::Unsupported { .. }
            | Self::WriteGit { .. }
            | Self::Lookup(_)
            | Self::Git(_)
            | Self::Durable(_)
            | Self::Lock(_)
            | Self::Id(_) => ErrorKind::Unavailable,
        }
    }

    /// What to do next.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Verdict(error) => return error.hint(),
            Self::NotVerified { run, .. } => {
                return Some(format!(
                    "nothing was applied; `ringfence verify {run}` shows all that does not hold"
                ));
            }
            Self::Held { run, .. } => {
                return Some(format!(
                    "`ringfence review {run}` shows it; `ringfence apply {run} --approve` approves and applies it"
                ));
            }
            Self::Rejected { run, .. } => {
                return Some(format!(
                    "`--approve --why \"…\"`, or `ringfence approve {run} --why \"…\"`, says otherwise, with a reason"
                ));
            }
            Self::Changed { run } => {
                return Some(format!(
                    "nothing was applied; look at it again: `ringfence verify {run}`, `ringfence review {run}`"
                ));
            }
            Self::Conflicts(_) => {
                "put these paths back, or commit them and apply with `--branch NAME`, then merge"
            }
            Self::TooLarge { .. } => "`--branch NAME` takes one file after the other",
            Self::NoFolder(_) => "`--into FOLDER` says where",
            Self::NoRepository(_) => {
                "`ringfence apply RUN` without `--branch` puts it into the files of the folder"
            }
            Self::Unsupported { .. } => {
                "`ringfence apply RUN` without `--branch` puts it into the files; git can commit them then"
            }
            Self::Branch { .. } => "give a name that no branch has, such as `fix/parser`",
            Self::NoCommit { .. } => "`--base COMMIT` says which commit it goes on top of",
            Self::NoCommits(_) | Self::BadCommit { .. } => {
                "nothing was made; without `--keep-commits` the patch is one commit"
            }
            Self::NoAuthor => {
                "`--author 'Name <address>'` says it, or `git config --global user.name` and `user.email`"
            }
            Self::Busy(_) => "wait for the other `ringfence apply`",
            Self::NotUndone(_) => "what is named is as somebody left it; the rest was put back",
            _ => return None,
        };
        Some(hint.to_owned())
    }
}
