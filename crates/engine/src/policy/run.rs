//! The policy that a run had, as its bundle has it.

use std::fs::File;
use std::io::{self, Read as _};

use ringfence_model::bundle::{MANIFEST, Manifest, Policy, most_bytes};
use serde::Serialize;

use super::PolicyError;
use crate::error::Error;
use crate::home::Home;
use crate::ids::RunId;

/// What a run was held to.
#[derive(Clone, Debug, Serialize)]
pub struct PolicyOfRun {
    pub run: RunId,
    /// The one hash over all of it.
    pub sha256: String,
    pub policy: Policy,
}

/// Reads the policy of a run.
pub fn of_run(home: &Home, run: RunId) -> Result<PolicyOfRun, Error> {
    let path = home.bundle(run).join(MANIFEST);
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => PolicyError::NoBundle(run.to_string()).into(),
        _ => Error::ReadFile {
            path: path.clone(),
            source,
        },
    };
    let mut text = Vec::new();
    File::open(&path)
        .and_then(|file| file.take(most_bytes(MANIFEST)).read_to_end(&mut text))
        .map_err(failed)?;
    let manifest: Manifest = serde_json::from_slice(&text).map_err(|error| failed(error.into()))?;
    Ok(PolicyOfRun {
        run,
        sha256: manifest.policy_sha256,
        policy: manifest.policy,
    })
}
