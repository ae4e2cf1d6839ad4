//! Changing what a sandbox may reach, while it runs.

use ringfence_model::policy::network::{Effect, NetworkRule, Origin, RuleError, Rules};
use ringfence_model::sandbox::Purpose;

use super::Host;
use crate::error::Error;
use crate::ids::SandboxId;
use crate::keeper::Line;
use crate::lock::FileLock;

/// What to change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkChange {
    /// Rules that are added.
    pub allow: Vec<String>,
    pub deny: Vec<String>,
    /// Rules that are taken away: as they are shown, or all of a host.
    pub revoke: Vec<String>,
    /// All rules are taken away first.
    pub offline: bool,
}

impl NetworkChange {
    fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// The rules that are left, and those that are added.
    fn apply(&self, rules: &Rules) -> Result<Rules, NetworkError> {
        let mut kept = if self.offline {
            Vec::new()
        } else {
            rules.0.clone()
        };
        for text in &self.revoke {
            let before = kept.len();
            kept.retain(|rule| rule.to_string() != *text && rule.host.to_string() != *text);
            if kept.len() == before {
                return Err(NetworkError::NotThere(text.clone()));
            }
        }
        let parse = |effect, texts: &[String]| -> Result<Vec<NetworkRule>, NetworkError> {
            let from = Origin {
                file: "sandbox network".to_owned(),
                line: 0,
            };
            let rule = |text: &String| NetworkRule::parse(effect, text, from.clone());
            texts
                .iter()
                .map(|text| {
                    rule(text).map_err(|source| NetworkError::Rule {
                        text: text.clone(),
                        source,
                    })
                })
                .collect()
        };
        kept.extend(parse(Effect::Allow, &self.allow)?);
        kept.extend(parse(Effect::Deny, &self.deny)?);
        Ok(Rules(kept))
    }
}

/// What cannot be changed.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    #[error("`{text}` is no rule")]
    Rule {
        text: String,
        #[source]
        source: RuleError,
    },
    #[error("no rule is `{0}` or has that host")]
    NotThere(String),
}

/// What holds now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkNow {
    pub rules: Rules,
    /// Connections that were closed.
    pub closed: u64,
    /// What runs was not told: it has no gate. The next execution has.
    pub later: bool,
}

/// Changes the rules of a sandbox, or only tells them.
pub fn network(host: &Host, id: SandboxId, change: &NetworkChange) -> Result<NetworkNow, Error> {
    let _shaping = host.shape(id)?;
    let record = host.store.sandbox(id)?;
    let before = &record.detail.policy.network;
    let mut now = NetworkNow {
        rules: before.rules.clone(),
        closed: 0,
        later: false,
    };
    if change.is_none() {
        return Ok(now);
    }
    now.rules = change.apply(&before.rules)?;
    // On the disk first: whatever starts from here on has them.
    host.store.set_network(id, &now.rules)?;
    let places = host.places(id);
    if FileLock::is_held(&places.lock())? {
        if before.is_offline() {
            now.later = true;
        } else {
            let mut line = Line::connect(&places, Purpose::Rule, None)?;
            now.closed = line.change_network(now.rules.clone())?;
        }
    }
    Ok(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_come_and_go() {
        let change = |allow: &[&str], revoke: &[&str]| NetworkChange {
            allow: allow.iter().map(|&text| text.to_owned()).collect(),
            revoke: revoke.iter().map(|&text| text.to_owned()).collect(),
            ..NetworkChange::default()
        };
        let texts = |rules: &Rules| {
            let text = |rule: &NetworkRule| rule.to_string();
            rules.0.iter().map(text).collect::<Vec<_>>()
        };
        let rules = change(&["a.b", "GET c.d/x/**", "tcp c.d:22"], &[])
            .apply(&Rules::default())
            .expect("rules");
        assert_eq!(texts(&rules), ["a.b", "GET c.d/x/**", "tcp c.d:22"]);
        let fewer = change(&[], &["GET c.d/x/**"]).apply(&rules).expect("fewer");
        assert_eq!(texts(&fewer), ["a.b", "tcp c.d:22"]);
        let fewer = change(&[], &["c.d"]).apply(&rules).expect("fewer");
        assert_eq!(texts(&fewer), ["a.b"]);
        assert!(change(&[], &["x.y"]).apply(&rules).is_err());
        assert!(change(&["no rule at all"], &[]).apply(&rules).is_err());
        let none = NetworkChange {
            offline: true,
            ..NetworkChange::default()
        };
        assert_eq!(texts(&none.apply(&rules).expect("none")), [""; 0]);
    }
}
