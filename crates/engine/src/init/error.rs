//! Why nothing can be proposed, or not written down.

use std::io;
use std::path::PathBuf;

use crate::error::ErrorKind;

/// What failed.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    #[error("cannot look at the folder `{}`", path.display())]
    OpenFolder {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("there is a `{}` already", .0.display())]
    Taken(PathBuf),
    #[error("cannot read your policy `{}`", path.display())]
    ReadPolicy {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot add to your policy `{}`: {why}", path.display())]
    Merge { path: PathBuf, why: String },
}

impl InitError {
    /// Whose move it is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::OpenFolder { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                ErrorKind::NotFound
            }
            Self::OpenFolder { .. } | Self::Merge { .. } => ErrorKind::Invalid,
            Self::Taken(_) => ErrorKind::Conflict,
            Self::ReadPolicy { .. } => ErrorKind::Unavailable,
        }
    }

    /// What to do next.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Taken(_) => {
                Some("`--print` shows the proposal, `--force` writes over what is there")
            }
            Self::Merge { .. } => {
                Some("without `--user` the lines are printed; put them in by hand")
            }
            Self::OpenFolder { .. } | Self::ReadPolicy { .. } => None,
        }
    }
}
