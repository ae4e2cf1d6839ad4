//! Which server an address leads to.

use ringfence_model::host::Host;

use super::Source;

/// What git connects to for an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    pub scheme: Scheme,
    pub host: Host,
    pub port: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    Https,
    Http,
    Ssh,
    Git,
}

impl Scheme {
    pub fn usual_port(self) -> u16 {
        match self {
            Self::Https => 443,
            Self::Http => 80,
            Self::Ssh => 22,
            Self::Git => 9418,
        }
    }

    /// Whether addresses that were checked can be given to git.
    pub fn is_web(self) -> bool {
        matches!(self, Self::Https | Self::Http)
    }
}

impl Source {
    /// The server; absent for what is on this host, and for a host that can be read in two ways.
    pub fn server(&self) -> Option<Server> {
        let Self::Url(url) = self else { return None };
        let (scheme, authority) = match url.split_once("://") {
            Some((scheme, rest)) => (
                match scheme {
                    "https" => Scheme::Https,
                    "http" => Scheme::Http,
                    "ssh" => Scheme::Ssh,
                    "git" => Scheme::Git,
                    _ => return None,
                },
                rest.split('/').next().unwrap_or_default(),
            ),
            None => (Scheme::Ssh, url.split_once(':')?.0),
        };
        let place = authority.rsplit('@').next().unwrap_or_default();
        let (host, port) = match place.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, Some(port)),
            _ => (place, None),
        };
        Some(Server {
            scheme,
            host: Host::parse(host).ok()?,
            port: match port {
                None | Some("") => scheme.usual_port(),
                Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
                    port.parse().ok()?
                }
                Some(_) => return None,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::parse_address;

    #[test]
    fn a_server_has_a_scheme_a_host_and_a_port() {
        for (address, server) in [
            ("https://Example.org/a", Some("Https example.org 443")),
            (
                "https://u:p@example.org:8443/a",
                Some("Https example.org 8443"),
            ),
            ("http://[::1]:80/a", Some("Http [::1] 80")),
            ("http://[::ffff:10.0.0.1]/a", Some("Http 10.0.0.1 80")),
            ("ssh://git@example.org:2222/a", Some("Ssh example.org 2222")),
            ("git@example.org:team/a", Some("Ssh example.org 22")),
            ("example.org:a", Some("Ssh example.org 22")),
            ("git://example.org./a", Some("Git example.org 9418")),
            ("http://127.1/a", None),
            ("http://2130706433/a", None),
            ("http://0x7f.1/a", None),
            ("http://example.org%2eevil/a", None),
            ("http://a.example\\@b.example/a", Some("Http b.example 80")),
            ("http://a.example:80:80/a", None),
            ("http://a.example:+80/a", None),
            ("http://a.example:99999/a", None),
            ("file:///srv/a", None),
        ] {
            let found = parse_address(address).expect(address).source.server();
            let found = found.map(|it| format!("{:?} {} {}", it.scheme, it.host, it.port));
            assert_eq!(found.as_deref(), server, "{address}");
        }
        assert_eq!(Source::Path("/srv/a".into()).server(), None);
    }
}
