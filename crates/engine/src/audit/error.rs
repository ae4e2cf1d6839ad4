//! Why there is nothing to tell.

use std::io;
use std::path::PathBuf;

use crate::error::ErrorKind;

/// What was asked for cannot be told.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    #[error("there is no run, sandbox or file `{text}`")]
    NothingFound { text: String },
    #[error("`{text}` stands for run `{run}` and for sandbox `{sandbox}`")]
    Ambiguous {
        text: String,
        run: String,
        sandbox: String,
    },
    #[error("there is no file or directory `{}`", .0.display())]
    NoFile(PathBuf),
    #[error("cannot look at `{}`", path.display())]
    Look {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the directory `{}` holds no journal", .0.display())]
    NoJournal(PathBuf),
    #[error("sandbox `{0}` has no journal yet: nothing ran in it")]
    NeverRan(String),
    #[error("`{pattern}` is not a regular expression")]
    ParsePattern {
        pattern: String,
        #[source]
        source: grep_regex::Error,
    },
}

impl AuditError {
    /// Whose move it is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NothingFound { .. }
            | Self::NoFile(_)
            | Self::NoJournal(_)
            | Self::NeverRan(_) => ErrorKind::NotFound,
            Self::Ambiguous { .. } | Self::ParsePattern { .. } => ErrorKind::Invalid,
            Self::Look { .. } => ErrorKind::Unavailable,
        }
    }

    /// What to do next.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NothingFound { .. } => Some(
                "`ringfence list` lists runs, `ringfence status` sandboxes; a path has a `/` in it",
            ),
            Self::NoJournal(_) => Some(
                "the bundle of a run holds `audit.jsonl`, the directory of a sandbox `audit-1.jsonl` and so on",
            ),
            Self::Ambiguous { .. } => Some("give the whole id"),
            Self::ParsePattern { .. } => {
                Some("a `\\` before `.`, `(`, `[`, `+`, `*` and the like takes them literally")
            }
            _ => None,
        }
    }
}
