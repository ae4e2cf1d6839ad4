//! What the host itself may fetch though somebody else names it, by the user's own word.

use serde::{Deserialize, Serialize};

use super::Line;
use crate::image::registry_name;

/// Servers that the user's own policy names. A repository cannot add to them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sources {
    /// Registries, `host` or `host:port`, from which images that a repository names are pulled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub registries: Vec<Line>,
}

impl Sources {
    /// Whether it says nothing.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    /// Whether the user names this registry: the same host and the same port.
    pub fn names_registry(&self, host: &str) -> bool {
        let wanted = registry_name(host);
        let named = |line: &Line| registry_name(&line.text);
        wanted.is_some() && self.registries.iter().any(|line| named(line) == wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::network::Origin;

    #[test]
    fn a_registry_is_named_by_host_and_port() {
        for (named, asked, is) in [
            ("registry.example", "registry.example", true),
            ("Registry.Example", "registry.example", true),
            ("registry.example:5000", "registry.example:5000", true),
            ("docker.io", "index.docker.io", true),
            ("registry.example", "registry.example:5000", false),
            ("registry.example:5000", "registry.example", false),
            ("registry.example", "a.registry.example", false),
            ("registry.example", "registry.example.evil.org", false),
            ("localhost:5000", "127.0.0.1:5000", false),
            ("", "", false),
        ] {
            let from = Origin::default();
            let text = named.to_owned();
            let sources = Sources {
                registries: vec![Line { text, from }],
            };
            assert_eq!(sources.names_registry(asked), is, "{named} {asked}");
        }
        assert!(!Sources::default().names_registry("registry.example"));
    }
}
