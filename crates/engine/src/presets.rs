//! Named presets: what `preset:npm` or `preset:claude-code` in a policy stands for on this host.
//!
//! ```text
//!   environment ──┐
//!   configuration ├─▶ settings, each with its origin ─▶ rules, indexes, variables, notes
//!   client's word ┘
//! ```
//!
//! The hosts of a package manager are those that its own client on this host would ask, so a mirror
//! of a company works as it is, and no host of a registry stands in this source. What the client
//! does not have configured, it is asked itself.
//!
//! HOSTILE: the folder that a run works on holds what an agent wrote before. No configuration is
//! read there and no program is started there ([`Surroundings`]).
//!
//! INVARIANT: credentials that stand in an address are in no rule, variable, note or error.

mod address;
mod agents;
mod answers;
mod apt;
mod cargo;
mod client;
mod draft;
mod error;
mod go;
mod ini;
mod npm;
mod python;
mod surroundings;
mod toml_lines;

use std::path::Path;

use ringfence_model::gate::{Index, IndexKind};
use ringfence_model::policy::preset::Preset;

pub use error::PresetError;
pub use surroundings::Surroundings;

use crate::home::Home;
use draft::Draft;

/// What a preset came to on this host.
#[derive(Debug, Default)]
pub struct Resolution {
    pub preset: Preset,
    /// What was left out or could not be known, for a person.
    pub notes: Vec<String>,
}

/// A preset that there is.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    pub name: &'static str,
    /// What it is for.
    pub about: &'static str,
    fill: fn(&Surroundings, &mut Draft) -> Result<(), PresetError>,
}

/// All presets, in the order in which they are listed.
pub const ALL: &[Known] = &[
    Known {
        name: "pypi",
        about: "Python packages: pip and uv",
        fill: python::fill,
    },
    Known {
        name: "npm",
        about: "JavaScript packages: npm, yarn and pnpm",
        fill: npm::fill,
    },
    Known {
        name: "cargo",
        about: "Rust crates",
        fill: cargo::fill,
    },
    Known {
        name: "apt",
        about: "packages of Debian and Ubuntu",
        fill: apt::fill,
    },
    Known {
        name: "go",
        about: "Go modules",
        fill: go::fill,
    },
    Known {
        name: "git-https",
        about: "clone and fetch over https; no push",
        fill: agents::git_https,
    },
    Known {
        name: "anthropic-api",
        about: "models of Anthropic, by a key",
        fill: agents::anthropic_api,
    },
    Known {
        name: "openai-api",
        about: "models of OpenAI, by a key",
        fill: agents::openai_api,
    },
    Known {
        name: "gemini-api",
        about: "models of Google, by a key",
        fill: agents::gemini_api,
    },
    Known {
        name: "claude-code",
        about: "the agent Claude Code",
        fill: agents::claude_code,
    },
    Known {
        name: "codex",
        about: "the agent Codex",
        fill: agents::codex,
    },
    Known {
        name: "gemini-cli",
        about: "the agent Gemini CLI",
        fill: agents::gemini_cli,
    },
    Known {
        name: "opencode",
        about: "the agent opencode",
        fill: agents::opencode,
    },
    Known {
        name: "aider",
        about: "the agent aider",
        fill: agents::aider,
    },
];

/// Settings of a client below `/.ringfence`: its name there, and its content unless it is a directory.
pub type Staged = (String, Option<Vec<u8>>);

/// What clients inside need to find the indexes of a policy, beyond variables that the policy has.
#[derive(Clone, Debug, Default)]
pub struct Clients {
    pub staged: Vec<Staged>,
    pub env: Vec<(&'static str, String)>,
}

/// The settings that go with the indexes of a policy.
pub fn clients(indexes: &[Index]) -> Result<Clients, PresetError> {
    if !indexes.iter().any(|index| index.kind == IndexKind::Apt) {
        return Ok(Clients::default());
    }
    Ok(Clients {
        staged: apt::staged(&Surroundings::of_process(None))?,
        env: vec![apt::variable()],
    })
}

/// What a preset stands for on this host, for a run on `folder`. What clients say of themselves is
/// kept in the home for a while.
pub fn resolve(home: &Home, name: &str, folder: Option<&Path>) -> Result<Preset, PresetError> {
    let surroundings = Surroundings::of_process(folder).remembering(home);
    look(name, &surroundings).map(|resolution| resolution.preset)
}

/// The same, with what a person should know of it.
pub fn look(name: &str, surroundings: &Surroundings) -> Result<Resolution, PresetError> {
    let known = ALL
        .iter()
        .find(|known| known.name == name)
        .ok_or_else(|| PresetError::Unknown(name.chars().take(64).collect()))?;
    let mut draft = Draft::of(known.name);
    (known.fill)(surroundings, &mut draft)?;
    draft.finish()
}

#[cfg(test)]
mod tests;
