//! What a sandbox may read, write, reach, spend and use.
//!
//! [`Effective`] is the whole answer for one sandbox: every file was read, every preset resolved,
//! every conflict decided. Nothing is looked up later.

pub mod area;
pub mod built_in;
pub mod document;
mod environment;
pub mod explain;
pub mod export;
pub mod glob;
mod merge;
pub mod narrow;
pub mod network;
pub mod preset;
pub mod review;
pub mod sources;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::environment::Environment;
use crate::gate::{Index, Mock};
use crate::holding::Holding;
use crate::host::HostPattern;
use crate::limits::{Limit, Limits};
use network::{Effect, Origin, PathPattern, Rules};
use review::Review;
use sources::Sources;

/// The policy of one sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Effective {
    pub files: Files,
    pub network: Network,
    pub secrets: Vec<SecretRule>,
    pub env: Variables,
    pub limits: Bounds,
    #[serde(default, skip_serializing_if = "Environment::is_empty")]
    pub environment: Environment,
    /// Absent in policies of earlier versions.
    #[serde(default, skip_serializing_if = "Review::is_nothing")]
    pub review: Review,
    #[serde(default, skip_serializing_if = "Holding::is_nothing")]
    pub holding: Holding,
    #[serde(default, skip_serializing_if = "Sources::is_nothing")]
    pub sources: Sources,
}

/// A line of a list, and where it was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    pub text: String,
    pub from: Origin,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Files {
    /// Patterns of what is absent inside and never crosses back.
    pub hide: Vec<Line>,
    /// What may be written: paths and `dir/**`, held by the kernel. `None`: the whole workspace.
    pub write: Option<Vec<Line>>,
    /// What may not be written, inside what may: paths and `dir/**`, held by the kernel.
    pub read_only: Vec<Line>,
    /// Patterns of what may cross back. `None`: everything.
    pub export: Option<Vec<Line>>,
    pub mounts: Vec<Mount>,
}

/// A path of the host that is visible inside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    pub host: PathBuf,
    /// Absolute, and none of the sandbox's own places.
    pub inside: PathBuf,
    pub writable: bool,
    pub from: Origin,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    pub rules: Rules,
    pub mocks: Vec<Mock>,
    /// What presets of package managers resolved to.
    pub indexes: Vec<Index>,
    /// Artefacts of public indexes are kept for other sandboxes.
    pub cache: bool,
}

impl Network {
    /// Whether there is nothing to reach. Then there is no gate either.
    pub fn is_offline(&self) -> bool {
        !self.rules.0.iter().any(|rule| rule.effect == Effect::Allow)
    }
}

/// A secret that the agent uses and never has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretRule {
    /// The variable that holds the placeholder inside.
    pub name: String,
    pub source: SecretSource,
    pub hosts: Vec<HostPattern>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathPattern>,
    pub header: String,
    pub from: Origin,
}

/// Where the value is. The value itself is in no policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SecretSource {
    Env(String),
    File(PathBuf),
    /// A command line for the user's shell.
    Command(String),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Variables {
    /// Names of variables of the caller that are passed on.
    pub pass: Vec<Line>,
    pub set: BTreeMap<String, Variable>,
}

/// A variable that the policy sets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Variable {
    /// Absent in what leaves the host: it may be secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    pub from: Origin,
}

/// Bounds that the policy sets; the others are as usual.
pub type Bounds = BTreeMap<Limit, Bound>;

/// One bound.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bound {
    /// Seconds, bytes or a count. `None`: switched off by name.
    pub most: Option<u64>,
    pub from: Origin,
}

impl Effective {
    /// The policy as it may leave the host: without values of variables.
    pub fn published(&self) -> Self {
        let mut own = self.clone();
        let environment = &mut own.environment;
        let variables = own.env.set.values_mut();
        let variables = variables.chain(environment.env.values_mut());
        for variable in variables.chain(environment.setup_env.values_mut()) {
            variable.value = None;
        }
        own
    }
}

/// Puts the bounds of a policy over others.
pub fn bound(limits: &mut Limits, bounds: &Bounds) {
    for (limit, Bound { most, .. }) in bounds {
        match (limit, most) {
            (Limit::Time, most) => limits.time_seconds = *most,
            (Limit::Memory, most) => limits.memory_bytes = *most,
            (Limit::Cpu, most) => limits.cpu_seconds = *most,
            (Limit::FileSize, most) => limits.file_bytes = *most,
            (Limit::Disk, most) => limits.disk_bytes = *most,
            (Limit::Inodes, most) => limits.disk_inodes = *most,
            (Limit::Output, most) => limits.output_bytes = *most,
            (Limit::Processes, Some(most)) => limits.processes = *most,
            (Limit::OpenFiles, Some(most)) => limits.open_files = *most,
            // No policy can say these.
            (Limit::Processes | Limit::OpenFiles, None) | (Limit::Journal, _) => {}
        }
    }
}
