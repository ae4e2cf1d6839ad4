//! What can go wrong with a mirror.

use std::io;
use std::path::PathBuf;

use super::process::ProcessError;
use crate::git::GitError;
use crate::ids::{BaseId, MirrorId};
use crate::lock::LockError;
use crate::source::SourceError;
use crate::store::StoreError;

/// Why there is no mirror, or no such commit in it.
#[derive(Debug, thiserror::Error)]
pub enum MirrorError {
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    ReadRepository(#[from] GitError),
    #[error("`{rev}` cannot be the name of a branch, a tag or a commit")]
    Revision { rev: String },
    #[error("there is no git repository at `{}`", path.display())]
    NoRepository { path: PathBuf },
    #[error("cannot use the repository `{}`: {reason}", path.display())]
    Unsupported { path: PathBuf, reason: String },
    #[error("there is no commit in `{source_text}` yet")]
    Empty { source_text: String },
    #[error("there is no `{rev}` in `{source_text}`")]
    NoRevision { rev: String, source_text: String },
    #[error("cannot run the git program")]
    NoGit {
        #[source]
        source: io::Error,
    },
    #[error("cannot fetch `{source_text}`: {said}")]
    Fetch { source_text: String, said: String },
    #[error("cannot fetch `{source_text}`: nothing was heard of it for {minutes} minutes")]
    Stalled { source_text: String, minutes: u64 },
    #[error("mirror `{mirror}` is in use by base `{base}`")]
    InUse { mirror: MirrorId, base: BaseId },
    #[error("cannot {what} `{}`", path.display())]
    Make {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("git could not {what} in `{}`", path.display())]
    Local {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: ProcessError,
    },
}

impl MirrorError {
    /// A call of git that should have worked, on a directory of ours.
    pub(crate) fn local(what: &'static str, path: PathBuf, source: ProcessError) -> Self {
        match source {
            ProcessError::Start(source) => Self::NoGit { source },
            source => Self::Local { what, path, source },
        }
    }
}
