//! Why nobody can be named.

use std::path::PathBuf;

use crate::error::ErrorKind;

#[derive(Debug, thiserror::Error)]
pub enum BlameError {
    #[error("`{path}` is no run and no bundle: there is no `result.json` in it")]
    NotABundle { path: PathBuf },
    #[error("the result of run {run} does not say who wrote what")]
    NoEvidence { run: String },
    #[error("the patch `{path}` is not the one of its result")]
    OtherPatch { path: PathBuf },
    #[error("`{path}` was not changed in run {run}")]
    NotChanged {
        path: String,
        run: String,
        near: Vec<String>,
    },
    #[error("`{path}` was changed in run {run} and stayed behind: {why}")]
    LeftBehind {
        path: String,
        run: String,
        why: &'static str,
    },
}

impl BlameError {
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NotChanged { .. } | Self::LeftBehind { .. } => ErrorKind::NotFound,
            Self::NotABundle { .. } | Self::NoEvidence { .. } | Self::OtherPatch { .. } => {
                ErrorKind::Invalid
            }
        }
    }

    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NotABundle { .. } => {
                "the run comes first, then the path: `ringfence blame last PATH`".to_owned()
            }
            Self::NoEvidence { .. } => {
                "it was made by a version that did not observe writes; run it again".to_owned()
            }
            Self::OtherPatch { .. } => {
                "`ringfence verify` says what of a bundle was changed".to_owned()
            }
            Self::NotChanged { near, .. } if near.is_empty() => {
                "without a path, all changed files are listed".to_owned()
            }
            Self::NotChanged { near, .. } => format!("changed were: {}", near.join(", ")),
            Self::LeftBehind { .. } => {
                "`ringfence audit --writes` lists who wrote it all the same".to_owned()
            }
        })
    }
}
