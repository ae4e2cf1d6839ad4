//! Why there is no policy to go by.

use std::io;
use std::path::PathBuf;

use ringfence_model::policy::document::DocumentError;
use ringfence_model::policy::explain::QuestionError;
use ringfence_model::policy::network::RuleError;

use crate::error::ErrorKind;

/// A policy that cannot be used stops whatever was to run under it.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    #[error("cannot read the policy `{}`", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot read the policy `{}`: no such file", .0.display())]
    NoFile(PathBuf),
    #[error("the policy `{}` is not a regular file", .0.display())]
    NotAFile(PathBuf),
    #[error("the policy cannot be used:\n{0}")]
    Document(DocumentError),
    #[error("{question:?} is no question")]
    Question {
        question: String,
        #[source]
        source: QuestionError,
    },
    #[error("`--setup-network {rule}` is no rule")]
    SetupRule {
        rule: String,
        #[source]
        source: RuleError,
    },
    #[error("run `{0}` has no bundle, and only a bundle says what its policy was")]
    NoBundle(String),
}

impl PolicyError {
    /// Whose move it is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NoFile(_) | Self::NoBundle(_) => ErrorKind::NotFound,
            Self::Read { .. }
            | Self::NotAFile(_)
            | Self::Document(_)
            | Self::SetupRule { .. }
            | Self::Question { .. } => ErrorKind::Invalid,
        }
    }

    /// What to do next.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Document(_) => {
                Some("`ringfence policy check FILE` reads a file and starts nothing")
            }
            Self::NoFile(_) => Some(
                "give the path of a file, or the name of one that is built in: offline, standard, online",
            ),
            _ => None,
        }
    }
}
