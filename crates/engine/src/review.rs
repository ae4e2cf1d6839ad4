//! A bundle opened to be looked at and decided on: read once, verified, and then only from memory.
//!
//! INVARIANT: what is shown, what is verified and what a verdict names are the same bytes. Nothing
//! of the bundle is opened a second time.

use ringfence_model::bundle::{JOURNAL, PATCH, RESULT};
use ringfence_model::journal::Lines;
use ringfence_model::outcome::RunStatus;
use ringfence_model::strict;

use crate::blame::Blame;
use crate::error::Error;
use crate::home::Home;
use crate::patch::{Patch, PatchError};
use crate::run::RunResult;
use crate::store::RunRecord;
use crate::verdicts::{VerdictError, check_bundle};
use crate::verify::{self, Contents};

/// A bundle that is what was packed.
#[derive(Debug)]
pub struct Opened {
    contents: Contents,
    pub result: RunResult,
    /// Who made what; absent from bundles of earlier versions.
    pub blame: Option<Blame>,
}

impl Opened {
    /// Reads and verifies the bundle of a run.
    pub fn open(home: &Home, run: &RunRecord) -> Result<Self, Error> {
        if run.status == RunStatus::Running {
            return Err(Error::StillRunning(run.id.to_string()));
        }
        let bundle = home.bundle(run.id);
        if !bundle.is_dir() {
            let (run, what) = (run.id.to_string(), "bundle");
            return Err(Error::NotKept { run, what });
        }
        let refused = |why: String| VerdictError::NotVerified {
            run: run.id.to_string(),
            why,
        };
        let contents = verify::read(&bundle)?.map_err(refused)?;
        check_bundle(home, run.id, &bundle, &contents)?;
        let result = strict::parse::<RunResult>(contents.of(RESULT))
            .map_err(|error| refused(error.to_string()))?;
        let lines = Lines::new(contents.of(JOURNAL)).collect::<Result<Vec<_>, _>>();
        let lines = lines.map_err(|error| refused(error.to_string()))?;
        let blame = Blame::of(bundle, result.clone(), &lines).ok();
        Ok(Self {
            contents,
            result,
            blame,
        })
    }

    /// The patch, as it would be applied.
    pub fn patch(&self) -> Result<Patch<'_>, PatchError> {
        Patch::read(self.contents.of(PATCH), &self.result.changes)
    }

    /// SHA-256 (hex) of the manifest: what a verdict on this names.
    pub fn sha256(&self) -> String {
        self.contents.manifest_sha256()
    }
}
