//! What the host itself may fetch though somebody else names it, by the user's own word.

use serde::{Deserialize, Serialize};

use super::Line;
use crate::host::Host;
use crate::image::registry_name;

/// Servers that the user's own policy names. A repository cannot add to them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sources {
    /// Registries, `host` or `host:port`, from which images that a repository names are pulled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub registries: Vec<Line>,
    /// Hosts, `host` or `host:port`, from which repositories that a repository names are fetched.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub repositories: Vec<Line>,
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

impl Sources {
    /// Whether the user names this host for repositories. Without a port it is named for the usual
    /// one.
    pub fn names_repositories_of(&self, host: &Host, port: u16, usual_port: u16) -> bool {
        self.repositories.iter().any(|line| {
            let named = repository_host(&line.text);
            named.is_some_and(|(own, own_port)| {
                own == *host && own_port.unwrap_or(usual_port) == port
            })
        })
    }
}

/// A host from which repositories are fetched: `host` or `host:port`.
pub fn repository_host(text: &str) -> Option<(Host, Option<u16>)> {
    if let Ok(host) = Host::parse(text) {
        return Some((host, None));
    }
    let (host, port) = text.rsplit_once(':')?;
    let digits = port.bytes().all(|byte| byte.is_ascii_digit());
    let port = port.parse().ok().filter(|port| digits && *port != 0)?;
    Some((Host::parse(host).ok()?, Some(port)))
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
                ..Sources::default()
            };
            assert_eq!(sources.names_registry(asked), is, "{named} {asked}");
        }
        assert!(!Sources::default().names_registry("registry.example"));
    }

    #[test]
    fn a_host_of_repositories_is_named_with_or_without_a_port() {
        for (named, host, port, is) in [
            ("git.example", "git.example", 443, true),
            ("Git.Example.", "git.example", 443, true),
            ("git.example", "git.example", 8443, false),
            ("git.example:8443", "git.example", 8443, true),
            ("git.example:8443", "git.example", 443, false),
            ("git.example", "a.git.example", 443, false),
            ("[::1]:3000", "[::1]", 3000, true),
            ("10.0.0.1", "::ffff:10.0.0.1", 443, true),
            ("*", "git.example", 443, false),
        ] {
            let from = Origin::default();
            let text = named.to_owned();
            let sources = Sources {
                repositories: vec![Line { text, from }],
                ..Sources::default()
            };
            let host = Host::parse(host).expect(host);
            assert_eq!(
                sources.names_repositories_of(&host, port, 443),
                is,
                "{named} {port}"
            );
        }
    }
}
