//! What can go wrong with a base.

use std::io;
use std::path::PathBuf;

use crate::changes::ChangesError;
use crate::git::{GitError, IndexError};
use crate::ids::{BaseId, IdError};
use crate::lock::LockError;
use crate::mirror::MirrorError;
use crate::store::StoreError;

/// Why there is no base.
#[derive(Debug, thiserror::Error)]
pub enum BaseError {
    #[error(transparent)]
    Mirror(#[from] MirrorError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    Remove(#[from] ChangesError),
    #[error(transparent)]
    ReadRepository(#[from] GitError),
    #[error(transparent)]
    Draw(#[from] IdError),
    #[error("there is no base `{base}`")]
    NoBase { base: BaseId },
    #[error("base `{base}` is not complete, or its directory `{}` is gone", path.display())]
    Gone { base: BaseId, path: PathBuf },
    #[error("there is no folder `{}`", path.display())]
    NoFolder { path: PathBuf },
    #[error("the folder `{}` holds Ringfence's own state `{}`", folder.display(), home.display())]
    HoldsHome { folder: PathBuf, home: PathBuf },
    #[error("cannot {what} `{}`", path.display())]
    Access {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot read the index of `{}`", path.display())]
    ParseIndex {
        path: PathBuf,
        #[source]
        source: IndexError,
    },
    #[error("`{}` is not what commit `{commit}` says: the tree is `{found}`, not `{expected}`", path.display())]
    Verify {
        path: PathBuf,
        commit: String,
        expected: String,
        found: String,
    },
    #[error("there are more than {limit} entries in `{}`", path.display())]
    TooMany { path: PathBuf, limit: usize },
    #[error("`{pattern}` is not a pattern")]
    ParsePattern {
        pattern: String,
        #[source]
        source: globset::Error,
    },
    #[error("no file is selected by {}", quoted(patterns))]
    MatchNothing { patterns: Vec<String> },
}

/// Adds what was being done to which path.
pub(super) fn access(
    what: &'static str,
    path: impl Into<PathBuf>,
) -> impl FnOnce(io::Error) -> BaseError {
    let path = path.into();
    move |source| BaseError::Access { what, path, source }
}

fn quoted(patterns: &[String]) -> String {
    let texts: Vec<String> = patterns.iter().map(|text| format!("`{text}`")).collect();
    texts.join(", ")
}
