//! What was decided about a bundle, by whom, and why a bundle is held until then.
//!
//! ```text
//! held ──▶ approved ◀──▶ rejected      each step is a verdict; the last one counts, all are kept
//! ```
//!
//! INVARIANT: a verdict is about bytes. It names the SHA-256 of `manifest.json`, which binds every
//! other file of the bundle, so that a bundle that changed has no verdict.

use serde::{Deserialize, Serialize};

/// BOUND: characters of a reason that a person gives.
pub const MAX_WHY: usize = 2000;
/// BOUND: characters of a name.
pub const MAX_NAME: usize = 100;

/// One decision about one bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Verdict {
    pub run: String,
    pub decision: Decision,
    pub by: By,
    /// Microseconds since the epoch, by the host's clock.
    pub at_us: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// SHA-256 (hex) of `manifest.json`, as it was when this was decided.
    pub bundle_sha256: String,
    /// What the one who decided overrode: a run that failed, a patch over the size limit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub despite: Vec<String>,
    /// How much of the patch was on the screen, where that is known and was not all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shown: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    Approved,
    Rejected,
}

impl Decision {
    /// The word in the store, in JSON and on the terminal.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Approved => "approved",
            Self::Rejected => "rejected",
        }
    }
}

/// Who decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum By {
    Person {
        name: String,
        /// The account and the host it was done with: `user@host`.
        account: String,
    },
    /// A rule of the host's own policy.
    Rule { text: String },
}

impl std::fmt::Display for By {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Person { name, account } if name == account => f.write_str(name),
            Self::Person { name, account } => write!(f, "{name} ({account})"),
            Self::Rule { text } => write!(f, "rule {text}"),
        }
    }
}

/// Why a bundle is held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hold {
    pub kind: HoldKind,
    pub detail: String,
}

/// Ordered as they are told: the gravest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HoldKind {
    /// A flag that says not to take the patch before it is understood.
    Risky,
    /// More than a person can be expected to read.
    TooLarge,
    /// The command failed, or met a bound.
    Failed,
    /// The folder moved under some changed paths: the patch lacks them.
    BaseMoved,
    /// A check broke, or does not pass.
    Checks,
    /// Nobody has looked at it.
    NotReviewed,
}

impl HoldKind {
    /// The word in JSON and on the terminal.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Risky => "risky",
            Self::TooLarge => "too_large",
            Self::Failed => "failed",
            Self::BaseMoved => "base_moved",
            Self::Checks => "checks",
            Self::NotReviewed => "not_reviewed",
        }
    }

    /// Whether an approval must name it: what a person may not have noticed.
    pub fn needs_anyway(self) -> bool {
        match self {
            Self::TooLarge | Self::Failed | Self::BaseMoved => true,
            Self::Risky | Self::Checks | Self::NotReviewed => false,
        }
    }
}

impl std::fmt::Display for Hold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let word = self.kind.as_str().replace('_', " ");
        if self.detail.is_empty() {
            f.write_str(&word)
        } else {
            write!(f, "{word}: {}", self.detail)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_json() {
        for kind in [
            HoldKind::Risky,
            HoldKind::TooLarge,
            HoldKind::Failed,
            HoldKind::BaseMoved,
            HoldKind::Checks,
            HoldKind::NotReviewed,
        ] {
            let json = serde_json::to_string(&kind).unwrap();
            assert_eq!(json, format!("{:?}", kind.as_str()));
        }
        for decision in [Decision::Approved, Decision::Rejected] {
            let json = serde_json::to_string(&decision).unwrap();
            assert_eq!(json, format!("{:?}", decision.as_str()));
        }
    }

    #[test]
    fn a_name_that_was_given_is_told_with_the_account() {
        let own = By::Person {
            name: "ada@desk".to_owned(),
            account: "ada@desk".to_owned(),
        };
        assert_eq!(own.to_string(), "ada@desk");
        let given = By::Person {
            name: "Ada L.".to_owned(),
            account: "bot@ci".to_owned(),
        };
        assert_eq!(given.to_string(), "Ada L. (bot@ci)");
    }
}
