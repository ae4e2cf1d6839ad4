//! Agents by name: `run --agent claude`, `agent = "codex"` in a plan.
//!
//! ```text
//!   agents/NAME.toml of the home ──┐
//!   built in                       ├─▶ preset ─▶ prepare ─▶ join ─▶ RunRequest
//!   this host: programs, variables ┘              │          └ words, variables, rules, secrets
//!                                                 └ where the program is, what it must reach
//! ```
//!
//! A preset is data. An agent's settings are written into its empty home by the guest; nothing of the
//! user's own settings and credentials goes in. Keys are in the gate, the agent has placeholders.
//!
//! HOSTILE: the folder that is worked on chooses nothing here: neither the preset nor the program nor
//! what is staged.

mod error;
mod installed;
mod known;
mod prepare;
mod report;
mod stage;

use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use ringfence_model::ByteText;
use ringfence_model::agent::Report;
use ringfence_model::policy::network::{Effect, NetworkRule};
use ringfence_model::policy::{Effective, Mount};

use crate::home::Home;
use crate::presets::Surroundings;

pub use error::AgentError;
pub use installed::{Installed, NotInstalled};
pub use known::{Known, Place, load, names};
pub use prepare::{Prepared, prepare};
pub(crate) use report::usage;
pub use stage::HomeFile;
pub(crate) use stage::stage;

/// What a run has of its agent beside words and variables.
#[derive(Clone, Debug)]
pub struct Inside {
    /// The name of the preset.
    pub name: String,
    /// Files of its home.
    pub home: Vec<HomeFile>,
    /// Its program, for reading.
    pub mounts: Vec<Mount>,
    /// Directories before all others of `PATH`.
    pub path: Vec<PathBuf>,
    /// The words of a later round, where it can go on where it was.
    pub again: Option<Vec<ByteText>>,
    pub report: Option<Report>,
}

impl Inside {
    /// Puts its directories before those that `PATH` has.
    pub(crate) fn lead_to(&self, env: &mut [(ByteText, ByteText)]) {
        let path = env.iter_mut().find(|(name, _)| name.as_bytes() == b"PATH");
        if let Some((_, value)) = path.filter(|_| !self.path.is_empty()) {
            let own = self.path.iter().map(|path| path.as_os_str().as_bytes());
            let all: Vec<&[u8]> = own.chain([value.as_bytes()]).collect();
            *value = ByteText(all.join(&b':'));
        }
    }
}

/// What an agent comes to on this host, for a person.
#[derive(Debug)]
pub struct Seen {
    pub known: Known,
    pub installed: Result<Installed, NotInstalled>,
    /// What it would be let to, or why that cannot be told.
    pub grants: Result<Effective, AgentError>,
}

impl Seen {
    /// Rules that allow.
    pub fn rules(&self) -> impl Iterator<Item = &NetworkRule> {
        let rules = self.grants.iter();
        let rules = rules.flat_map(|grants| &grants.network.rules.0);
        rules.filter(|rule| rule.effect == Effect::Allow)
    }

    /// Keys of which one is needed, and whether each is there.
    pub fn keys(&self) -> Vec<(&str, bool)> {
        let bound = |key: &str| {
            let mut secrets = self.grants.iter().flat_map(|grants| &grants.secrets);
            secrets.any(|secret| secret.name == key && prepare::is_there(&secret.source))
        };
        let keys = self.known.preset.keys.iter();
        keys.map(|key| (key.as_str(), bound(key))).collect()
    }

    /// Whether a run could start it.
    pub fn is_ready(&self) -> bool {
        let keys = self.keys();
        self.installed.is_ok()
            && self.grants.is_ok()
            && (keys.is_empty() || keys.iter().any(|(_, is_set)| *is_set))
    }
}

/// Looks at one agent. Nothing is started.
pub fn look(home: &Home, name: &str) -> Result<Seen, AgentError> {
    let known = load(home, name)?;
    let around = Surroundings::of_process(None);
    Ok(Seen {
        installed: prepare::find(&around, &known.preset),
        grants: prepare::grants(home, &known.preset, None),
        known,
    })
}
