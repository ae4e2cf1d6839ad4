//! What the host does with a patch before a person sees it: checks of its own.

use serde::{Deserialize, Serialize};

use super::Line;
use super::network::Rules;

/// Checks, and what they are held to. Checks have the files of the policy, no secret, and no network
/// but this.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Review {
    /// Lines of shell; see [`crate::check`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<Line>,
    /// Patterns of files that are looked at as the base has them, besides the usual ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub protected: Vec<Line>,
    /// What checks may reach.
    #[serde(default, skip_serializing_if = "is_empty")]
    pub network: Rules,
}

fn is_empty(rules: &Rules) -> bool {
    rules.0.is_empty()
}

impl Review {
    /// Whether it says nothing.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    /// One more check, unless it is there already.
    pub fn add(&mut self, check: Line) {
        if !self.checks.iter().any(|own| own.text == check.text) {
            self.checks.push(check);
        }
    }
}
