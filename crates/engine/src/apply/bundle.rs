//! The bundle of a run, read once: what was verified is what is applied.

use ringfence_model::bundle::{MANIFEST, Manifest, PATCH, RESULT};
use ringfence_model::strict;

use super::ApplyError;
use crate::error::Error;
use crate::home::Home;
use crate::ids::RunId;
use crate::keys;
use crate::patch::Patch;
use crate::run::RunResult;
use crate::verify;

/// A bundle that is whole and signed by a key that is trusted here.
#[derive(Debug)]
pub struct Bundle {
    run: RunId,
    contents: verify::Contents,
    pub manifest: Manifest,
    pub result: RunResult,
}

impl Bundle {
    /// Reads and verifies the bundle of a run. Whether it fits its base is for the caller to see.
    pub fn open(home: &Home, run: RunId) -> Result<Self, Error> {
        let path = home.bundle(run);
        if !path.is_dir() {
            let (run, what) = (run.to_string(), "bundle");
            return Err(Error::NotKept { run, what });
        }
        let refused = |why: String| -> Error {
            let run = run.to_string();
            ApplyError::NotVerified { run, why }.into()
        };
        let contents = verify::read(&path)?.map_err(refused)?;
        let request = verify::Request {
            bundle: path,
            keys: keys::all_trusted(home)?,
            base: None,
        };
        let report = verify::verify_packed(&contents, &request);
        if report.verdict != verify::Verdict::Ok {
            let failed = |check: &&verify::Check| check.state == verify::State::Failed;
            let first = report.checks.iter().find(failed);
            let why = first.map(|check| format!("{}: {}", check.check, check.detail));
            return Err(refused(why.unwrap_or_default()));
        }
        let manifest = strict::parse::<Manifest>(contents.of(MANIFEST));
        let result = strict::parse::<RunResult>(contents.of(RESULT));
        let (Ok(manifest), Ok(result)) = (manifest, result) else {
            return Err(refused("it cannot be read".to_owned()));
        };
        if result.run != run {
            return Err(refused("it is the bundle of another run".to_owned()));
        }
        Ok(Self {
            run,
            contents,
            manifest,
            result,
        })
    }

    pub fn run(&self) -> RunId {
        self.run
    }

    /// SHA-256 (hex) of the manifest, which binds everything else.
    pub fn sha256(&self) -> String {
        self.contents.manifest_sha256()
    }

    /// The text of the patch.
    pub fn patch_text(&self) -> &[u8] {
        self.contents.of(PATCH)
    }

    pub(super) fn patch(&self) -> Result<Patch<'_>, ApplyError> {
        Ok(Patch::read(self.patch_text(), &self.result.changes)?)
    }
}
