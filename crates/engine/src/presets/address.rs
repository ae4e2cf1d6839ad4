//! An address of the web as a client's settings have it, without what must stay secret.

use http::Uri;
use ringfence_model::host::{Host, Reach};

/// Ends of names that only a network of one's own answers.
const PRIVATE_ENDS: &[&str] = &[
    "internal",
    "intranet",
    "local",
    "localdomain",
    "localhost",
    "lan",
    "home",
    "corp",
    "private",
    "home.arpa",
];

/// Where something is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub secure: bool,
    pub host: Host,
    pub port: u16,
    /// Begins with a slash.
    pub path: String,
    /// Whether credentials stood in it. They are in no field.
    pub had_credentials: bool,
}

/// What is no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoAddress {
    /// A file, a directory, a protocol that is not the web's.
    NotWeb,
    /// Nothing that has one reading.
    Unreadable,
}

impl Address {
    pub fn parse(text: &str) -> Result<Self, NoAddress> {
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(NoAddress::NotWeb);
        };
        let secure = match scheme.to_ascii_lowercase().as_str() {
            "http" => false,
            "https" => true,
            _ => return Err(NoAddress::NotWeb),
        };
        // A password may hold what no address may, so it goes before anything is read.
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (place, after) = rest.split_at(end);
        let (user, place) = match place.rsplit_once('@') {
            Some((user, place)) => (Some(user), place),
            None => (None, place),
        };
        let (path, query) = match after.find(['?', '#']) {
            Some(at) => after.split_at(at),
            None => (after, ""),
        };
        let plain = format!("{}://{place}{path}", if secure { "https" } else { "http" });
        let uri: Uri = plain.parse().map_err(|_| NoAddress::Unreadable)?;
        let authority = uri.authority().ok_or(NoAddress::Unreadable)?;
        let written = authority.as_str().get(authority.host().len()..);
        let port = match written.unwrap_or_default().strip_prefix(':') {
            Some(port) => port.parse().ok().filter(|port| *port != 0),
            None => Some(if secure { 443 } else { 80 }),
        };
        let host = Host::parse(authority.host()).map_err(|_| NoAddress::Unreadable)?;
        let port = port.ok_or(NoAddress::Unreadable)?;
        Ok(Self {
            secure,
            host,
            port,
            path: uri.path().to_owned(),
            // What follows a `?` is a token where there is anything.
            had_credentials: user.is_some_and(|user| !user.is_empty()) || query.len() > 1,
        })
    }

    /// The address, as far as it may be shown.
    pub fn url(&self) -> String {
        let (scheme, usual) = if self.secure {
            ("https", 443)
        } else {
            ("http", 80)
        };
        match self.port {
            port if port == usual => format!("{scheme}://{}{}", self.host, self.path),
            port => format!("{scheme}://{}:{port}{}", self.host, self.path),
        }
    }

    /// Whether it is this machine itself, which is another one inside.
    pub fn is_this_machine(&self) -> bool {
        match &self.host {
            Host::Name(name) => name == "localhost" || name.ends_with(".localhost"),
            Host::Address(address) => address.is_loopback() || address.is_unspecified(),
        }
    }

    /// Whether everybody may have what it offers, as far as its name tells.
    pub fn is_public(&self) -> bool {
        let open = match &self.host {
            Host::Address(address) => Reach::of(*address) == Reach::Public,
            Host::Name(name) => {
                let ends = |end: &str| {
                    let before = name.strip_suffix(end);
                    before.is_some_and(|before| before.is_empty() || before.ends_with('.'))
                };
                name.contains('.') && !PRIVATE_ENDS.iter().any(|end| ends(end))
            }
        };
        open && !self.had_credentials
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_without_their_credentials() {
        for (text, url, public) in [
            ("https://index.example", "https://index.example/", true),
            (
                "https://Index.Example/simple/",
                "https://index.example/simple/",
                true,
            ),
            (
                "http://index.example:8080/a",
                "http://index.example:8080/a",
                true,
            ),
            (
                "https://index.example:443/a",
                "https://index.example/a",
                true,
            ),
            (
                "https://user:pa:ss@index.example/a",
                "https://index.example/a",
                false,
            ),
            (
                "https://user:p@ss%zz@index.example/a",
                "https://index.example/a",
                false,
            ),
            (
                "https://token@index.example",
                "https://index.example/",
                false,
            ),
            (
                "https://index.example/a?token=hunter2",
                "https://index.example/a",
                false,
            ),
            ("https://@index.example/", "https://index.example/", true),
            ("http://10.1.2.3/simple", "http://10.1.2.3/simple", false),
            ("http://[fd00::1]:81/", "http://[fd00::1]:81/", false),
            ("https://mirror/x", "https://mirror/x", false),
            ("https://a.corp/x", "https://a.corp/x", false),
            ("https://acorp.example/x", "https://acorp.example/x", true),
        ] {
            let address = Address::parse(text).unwrap_or_else(|_| panic!("{text}"));
            assert_eq!(address.url(), url, "{text}");
            assert_eq!(address.is_public(), public, "{text}");
        }
    }

    #[test]
    fn what_is_no_address_of_the_web_is_none() {
        for (text, why) in [
            ("", NoAddress::NotWeb),
            ("/opt/wheels", NoAddress::NotWeb),
            ("file:///opt/wheels", NoAddress::NotWeb),
            ("git+ssh://host/x", NoAddress::NotWeb),
            ("https://", NoAddress::Unreadable),
            ("https://a b/", NoAddress::Unreadable),
            ("https://127.1/", NoAddress::Unreadable),
            ("https://host:0/", NoAddress::Unreadable),
            ("https://host:99999/", NoAddress::Unreadable),
            ("https://host\u{7f}/", NoAddress::Unreadable),
            ("https://${HOST}/", NoAddress::Unreadable),
        ] {
            assert_eq!(Address::parse(text), Err(why), "{text:?}");
        }
    }
}
