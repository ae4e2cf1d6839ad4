//! Why there is no verdict.

use std::path::PathBuf;

use crate::durable::DurableError;
use crate::error::ErrorKind;
use crate::journal::JournalError;

/// What stands between a run and a verdict.
#[derive(Debug, thiserror::Error)]
pub enum VerdictError {
    #[error("a rejection needs a reason")]
    NoReason,
    #[error("a reason has at most 2000 characters, all of which are shown as they are")]
    BadReason,
    #[error("a name has 1 to 100 characters, all of which are shown as they are")]
    BadName,
    #[error("the bundle of run `{run}` is not what was packed: {why}")]
    NotVerified { run: String, why: String },
    #[error("the bundle of run `{run}` is not the one that was shown: it was changed meanwhile")]
    Exchanged { run: String },
    #[error("run `{run}` is held: {why}")]
    NeedsAnyway { run: String, why: String },
    #[error("the verdicts in `{}` are not those that the store knows", path.display())]
    Disagree { path: PathBuf },
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Durable(#[from] DurableError),
}

impl VerdictError {
    /// Whose move it is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NoReason | Self::BadReason | Self::BadName => ErrorKind::Invalid,
            Self::NotVerified { .. } | Self::NeedsAnyway { .. } => ErrorKind::Denied,
            Self::Exchanged { .. } => ErrorKind::Conflict,
            Self::Disagree { .. } | Self::Journal(_) | Self::Durable(_) => ErrorKind::Unavailable,
        }
    }

    /// What to do next.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::NoReason => "say it with `--why \"…\"`",
            Self::NotVerified { run, .. } => {
                return Some(format!(
                    "nothing was decided; `ringfence verify {run}` shows all that does not hold"
                ));
            }
            Self::Exchanged { run } => {
                return Some(format!("look at it again: `ringfence review {run}`"));
            }
            Self::NeedsAnyway { run, .. } => {
                return Some(format!(
                    "look at it with `ringfence review {run}`; `ringfence approve {run} --anyway` approves it all the same, and the verdict says so"
                ));
            }
            Self::Disagree { .. } => {
                "one of the two was changed, or restored without the other: restore both from one copy; until then nothing is approved or applied"
            }
            Self::Journal(_) => {
                "verdicts are appended to this file and never rewritten; until it is whole again nothing is approved or applied"
            }
            Self::BadReason | Self::BadName | Self::Durable(_) => return None,
        };
        Some(hint.to_owned())
    }
}
