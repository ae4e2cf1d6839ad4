//! The policy of a sandbox, from files to data, before anything starts.
//!
//! ```text
//!   --policy FILE, else policy.toml of the home      decides
//!        └─ extends: standard, preset:NAME, files
//!   ringfence.toml in the folder                     can only narrow
//!   options of the command line                      count more than either
//! ```

mod error;
mod load;
mod run;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use ringfence_model::ByteText;
use ringfence_model::limits::Limits;
use ringfence_model::policy::document::Grant;
use ringfence_model::policy::narrow::{Refused, narrow};
use ringfence_model::policy::network::{Effect, NetworkRule, Origin};
use ringfence_model::policy::{Bounds, Effective, Line, bound, built_in, preset};

use crate::home::Home;

pub use error::PolicyError;
pub use run::{PolicyOfRun, of_run};

/// The file of a repository. It can only narrow.
pub const PROPOSAL: &str = "ringfence.toml";
/// The file of the home.
pub const HOST_FILE: &str = "policy.toml";

/// What is asked of a policy: the host's own, and what was typed.
#[derive(Clone, Debug)]
pub struct Asked {
    pub host: Effective,
    /// The bounds where nobody says one.
    pub usual: Limits,
    /// Bounds of the command line.
    pub limits: Bounds,
    /// Patterns of the command line.
    pub hide: Vec<Line>,
    /// What the variables that the host's policy passes hold where the caller is.
    pub caller: BTreeMap<String, ByteText>,
}

/// The policy of one sandbox, and what it comes to.
#[derive(Clone, Debug)]
pub struct Settled {
    pub effective: Effective,
    pub limits: Limits,
    /// Variables that the policy passes or sets.
    pub env: Vec<(ByteText, ByteText)>,
    /// What the folder's own file asked for and does not get.
    pub refused: Vec<Refused>,
}

/// A small file of the user's own, up to the bound of a policy and a byte; `None` where there is none.
pub(crate) fn read_own(path: &Path) -> Result<Option<Vec<u8>>, PolicyError> {
    load::read(path, load::Links::Follow)
}

/// The host's own policy: of a file or a name, else of the home's file, else none at all. Presets
/// look nowhere below `folder`.
pub fn of_host(
    home: &Home,
    typed: Option<&Path>,
    folder: Option<&Path>,
) -> Result<Effective, PolicyError> {
    let mut loader = load::Loader::new(home, folder);
    match typed {
        Some(typed) => loader.host(typed),
        None => {
            let own = home.root().join(HOST_FILE);
            match std::fs::symlink_metadata(&own) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Effective::default()),
                // A link to nothing was meant to be a policy.
                _ => loader.host(&own),
            }
        }
    }
}

/// Lets setups reach what was typed, beside what the policy lets them.
pub fn allow_setup(
    home: &Home,
    host: &mut Effective,
    typed: &[String],
    folder: Option<&Path>,
) -> Result<(), PolicyError> {
    let from = Origin {
        file: "--setup-network".to_owned(),
        line: 0,
    };
    let mut grants = Vec::new();
    for rule in typed {
        let from = from.clone();
        grants.push(match rule.strip_prefix(preset::PREFIX) {
            Some(name) => Grant::Preset(Line {
                text: name.to_owned(),
                from,
            }),
            None => {
                let parsed = NetworkRule::parse(Effect::Allow, rule, from);
                Grant::Rule(parsed.map_err(|source| PolicyError::SetupRule {
                    rule: rule.clone(),
                    source,
                })?)
            }
        });
    }
    let loader = load::Loader::new(home, folder);
    host.environment
        .allow(grants, &mut |line| loader.preset(line))
}

/// The host's own policy from a text that came along with something; `name` is for its problems.
pub fn of_text(
    home: &Home,
    text: &str,
    name: &Path,
    folder: Option<&Path>,
) -> Result<Effective, PolicyError> {
    load::Loader::new(home, folder).text(text.as_bytes(), name)
}

/// Reads a file as the host's own, whatever it allows, to see whether it can be used.
pub fn check(home: &Home, file: &Path) -> Result<Effective, PolicyError> {
    let mut loader = load::Loader::new(home, None);
    let policy = loader.host(file)?;
    loader.check_mounts(&policy.files.mounts)?;
    Ok(policy)
}

/// The same of a text that is in no file yet.
pub fn check_text(home: &Home, text: &str) -> Result<Effective, PolicyError> {
    load::Loader::new(home, None).text(text.as_bytes(), Path::new("proposal"))
}

/// The same of a text that is to be in this file.
pub fn check_as(home: &Home, text: &str, file: &Path) -> Result<Effective, PolicyError> {
    let mut loader = load::Loader::new(home, None);
    let policy = loader.text(text.as_bytes(), file)?;
    loader.check_mounts(&policy.files.mounts)?;
    Ok(policy)
}

impl Asked {
    /// A policy with nothing in it, within these bounds.
    pub fn nothing(usual: Limits) -> Self {
        Self {
            host: Effective::default(),
            usual,
            limits: Bounds::new(),
            hide: Vec::new(),
            caller: BTreeMap::new(),
        }
    }

    /// The bounds, before a folder narrows them.
    pub fn limits(&self) -> Limits {
        let mut limits = self.usual.clone();
        bound(&mut limits, &self.host.limits);
        bound(&mut limits, &self.limits);
        limits
    }

    /// The policy for a folder, which may propose one.
    pub fn settle(&self, home: &Home, folder: &Path) -> Result<Settled, PolicyError> {
        let mut effective = self.host.clone();
        let loader = load::Loader::new(home, Some(folder));
        let refused = match loader.proposal(folder)? {
            None => Vec::new(),
            Some(proposal) => {
                let mut refused = narrow(&mut effective, proposal, &self.usual);
                // What a name brings along nobody asked for by itself.
                refused.retain(|item| built_in::document(&item.from.file).is_none());
                refused
            }
        };
        effective.limits.extend(self.limits.clone());
        effective.files.hide.extend(self.hide.iter().cloned());
        let mut limits = self.usual.clone();
        bound(&mut limits, &effective.limits);
        let passed = effective.env.pass.iter().filter_map(|line| {
            let value = self.caller.get(&line.text)?;
            Some((line.text.as_str().into(), value.clone()))
        });
        let set = effective.env.set.iter().filter_map(|(name, variable)| {
            let value = variable.value.as_deref()?;
            Some((name.as_str().into(), value.into()))
        });
        Ok(Settled {
            env: passed.chain(set).collect(),
            limits,
            refused,
            effective,
        })
    }
}

impl Settled {
    /// For a person: what is not as the folder's own file asks.
    pub fn notes(&self) -> Vec<String> {
        /// BOUND: as many as are read.
        const SHOWN: usize = 8;
        let mut notes: Vec<String> = self
            .refused
            .iter()
            .take(SHOWN)
            .map(|refused| format!("policy: {refused}"))
            .collect();
        if self.refused.len() > SHOWN {
            let more = self.refused.len() - SHOWN;
            notes.push(format!("policy: {more} more of `{PROPOSAL}` are ignored"));
        }
        notes
    }
}

#[cfg(test)]
mod tests;
