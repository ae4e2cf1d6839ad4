//! What a sandbox may read, write, reach, spend and use.
//!
//! [`Effective`] is the whole answer for one sandbox: every file was read, every preset resolved,
//! every conflict decided. Nothing is looked up later.

pub mod area;
pub mod export;
pub mod network;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::gate::{Index, Mock};
use crate::host::HostPattern;
use network::{Origin, PathPattern, Rules};

/// The policy of one sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Effective {
    pub files: Files,
    pub network: Network,
    pub secrets: Vec<SecretRule>,
    pub env: Variables,
    pub limits: Bounds,
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
        self.rules.0.is_empty() && self.mocks.is_empty()
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
    /// How long the answer of a command is used again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifetime_seconds: Option<u64>,
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
    pub pass: Vec<String>,
    pub set: BTreeMap<String, String>,
}

/// Bounds that the policy sets; `None` leaves the default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bounds {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_seconds: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_seconds: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_files: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_inodes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_bytes: Option<u64>,
}
