//! What a named preset stands for: the hosts of a package manager or an agent, as data.
//!
//! A policy names it (`preset:npm` in `network.allow`); whoever resolves the policy asks the host
//! what it is there, once, before anything starts.

use std::collections::BTreeMap;

use super::SecretRule;
use super::network::NetworkRule;
use crate::gate::Index;

/// How a preset is told from a rule: `preset:npm`.
pub const PREFIX: &str = "preset:";

/// A preset, resolved on this host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preset {
    /// Each says in its origin where the host was found.
    pub rules: Vec<NetworkRule>,
    pub indexes: Vec<Index>,
    /// Variables that its client needs inside.
    pub env: BTreeMap<String, String>,
    pub secrets: Vec<SecretRule>,
}
