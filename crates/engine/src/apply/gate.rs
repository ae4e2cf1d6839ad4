//! Nothing is applied without a verdict about exactly these bytes.

use ringfence_model::verdict::{Hold, Verdict};

use super::{ApplyError, Bundle};
use crate::error::Error;
use crate::home::Home;
use crate::store::{RunRecord, Store};
use crate::verdicts::{self, Standing};

/// Whether a bundle may be applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gate {
    Open(Verdict),
    /// Nobody has decided; for these reasons it is held.
    Undecided(Vec<Hold>),
    /// Somebody said no.
    Rejected(Verdict),
    /// It is not what was approved.
    Changed(Verdict),
}

impl Gate {
    /// Asks what was decided about a bundle that was read.
    pub fn of(home: &Home, store: &Store, run: &RunRecord, bundle: &Bundle) -> Result<Self, Error> {
        // The log decides: a row of the store alone is no verdict.
        Ok(match verdicts::proven(store, home, run)? {
            // INVARIANT: what is applied is what was read, not what is on the disk by now.
            Standing::Approved(verdict) if verdict.bundle_sha256 == bundle.sha256() => {
                Self::Open(verdict)
            }
            Standing::Approved(verdict) | Standing::Changed(verdict) => Self::Changed(verdict),
            Standing::Rejected(verdict) => Self::Rejected(verdict),
            Standing::Held(holds) => Self::Undecided(holds),
        })
    }

    /// The verdict, or why there is none that lets it pass.
    pub fn pass(self, bundle: &Bundle) -> Result<Verdict, ApplyError> {
        let run = bundle.run().to_string();
        match self {
            Self::Open(verdict) => Ok(verdict),
            Self::Undecided(holds) => {
                let why: Vec<String> = holds.iter().map(Hold::to_string).collect();
                let why = why.join("; ");
                Err(ApplyError::Held { run, why })
            }
            Self::Rejected(verdict) => Err(ApplyError::Rejected {
                run,
                by: verdict.by.to_string(),
                why: verdict.why.unwrap_or_default(),
            }),
            Self::Changed(_) => Err(ApplyError::Changed { run }),
        }
    }
}
