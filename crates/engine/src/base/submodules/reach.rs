//! Which servers a submodule may be fetched from, and at which addresses.
//!
//! HOSTILE: the repository chose the address, and whoever has its zone chooses what a name means. The
//! host connects only to the site of the repository that the user named, and to hosts of
//! `[repositories]` in the user's own policy.
//!
//! INVARIANT: addresses on this machine or a private network are for the very server that the user
//! named. Others are looked up and checked here, and git is told to use these and no others.

use std::net::{IpAddr, ToSocketAddrs as _};
use std::path::Path;

use ringfence_model::host::Host;
use ringfence_model::policy::sources::Sources;
use ringfence_model::site::is_same_site;

use crate::mirror::Git;
use crate::source::{Dial, Server, Source, Typed};
use crate::web::reach::is_open;

/// BOUND: addresses that git may try.
const MAX_PINNED: usize = 8;

/// What a server is to the repository that the user named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    /// The user's own policy names it.
    Named,
    /// The same scheme, host and port.
    Same,
    /// Another server of the same owner: it must be on the open network.
    SameSite,
    /// Somebody else's.
    Other,
}

fn relation(top: Option<&Server>, wanted: &Server, sources: &Sources) -> Relation {
    let usual = wanted.scheme.usual_port();
    if sources.names_repositories_of(&wanted.host, wanted.port, usual) {
        return Relation::Named;
    }
    let Some(top) = top else {
        return Relation::Other;
    };
    if top == wanted {
        return Relation::Same;
    }
    let web = top.scheme.is_web() && wanted.scheme.is_web();
    // Another port is another service.
    if wanted.port != usual && !(web && wanted.port == top.port) {
        return Relation::Other;
    }
    let same = match wanted.scheme {
        scheme if scheme.is_web() => is_same_site(&top.host, &wanted.host),
        // Nobody can tell ssh and git which address was checked: ssh knows its hosts by their keys.
        crate::source::Scheme::Ssh => top.host == wanted.host,
        _ => false,
    };
    if same {
        Relation::SameSite
    } else {
        Relation::Other
    }
}

/// What git may connect to for a submodule of what the user named; the reason in words where it may
/// not.
pub(in crate::base) fn checked(
    top: &Source,
    sources: &Sources,
    typed: Typed,
) -> Result<Typed, String> {
    if typed.source.is_local() {
        return Ok(typed);
    }
    let Some(wanted) = typed.source.server() else {
        return Err("its address names no plain host".to_owned());
    };
    let named = |why: &str| allowing(&wanted, why);
    let host = &wanted.host;
    let dial = match relation(top.server().as_ref(), &wanted, sources) {
        Relation::Named => Dial::Submodule { pin: None },
        Relation::Other => {
            return Err(named(&format!(
                "`{}` is not of the site of the repository",
                entry(&wanted)
            )));
        }
        relation => {
            let found = look_up(host);
            if found.is_empty() && !has_proxy(&typed.source) {
                return Err(format!("`{host}` was not found"));
            }
            let open: Vec<IpAddr> = found.iter().copied().filter(|at| is_open(*at)).collect();
            match (open.is_empty(), found.first()) {
                // The user named a server there.
                (true, Some(_)) if relation == Relation::Same => Dial::Submodule { pin: None },
                (true, Some(address)) => {
                    return Err(named(&format!(
                        "`{host}` has the address {address}, which is not on the open network"
                    )));
                }
                _ => Dial::Submodule {
                    pin: pin(&wanted, &open),
                },
            }
        }
    };
    Ok(Typed { dial, ..typed })
}

/// What git may connect to for a repository that somebody else than the user names by itself: a host
/// of the user's policy, or by the web an address on the open network.
pub(crate) fn checked_alone(sources: &Sources, typed: Typed) -> Result<Typed, String> {
    if typed.source.is_local() {
        return Ok(typed);
    }
    let Some(wanted) = typed.source.server() else {
        return Err("its address names no plain host".to_owned());
    };
    if relation(None, &wanted, sources) == Relation::Named {
        return Ok(typed);
    }
    let host = &wanted.host;
    if !wanted.scheme.is_web() {
        return Err(allowing(
            &wanted,
            &format!("`{host}` is not reached by `https`"),
        ));
    }
    let found = look_up(host);
    if found.is_empty() && !has_proxy(&typed.source) {
        return Err(format!("`{host}` was not found"));
    }
    let open: Vec<IpAddr> = found.iter().copied().filter(|at| is_open(*at)).collect();
    if let (true, Some(address)) = (open.is_empty(), found.first()) {
        let why = format!("`{host}` has the address {address}, which is not on the open network");
        return Err(allowing(&wanted, &why));
    }
    let pin = pin(&wanted, &open);
    let dial = Dial::Submodule { pin };
    Ok(Typed { dial, ..typed })
}

fn allowing(server: &Server, why: &str) -> String {
    let host = entry(server);
    format!("{why}; your own policy can allow it: `[repositories]` with `hosts = [\"{host}\"]`")
}

/// As it would be written in a policy.
fn entry(server: &Server) -> String {
    if server.port == server.scheme.usual_port() {
        server.host.to_string()
    } else {
        format!("{}:{}", server.host, server.port)
    }
}

fn look_up(host: &Host) -> Vec<IpAddr> {
    let name = match host {
        Host::Address(address) => return vec![*address],
        Host::Name(name) => name,
    };
    let found = (name.as_str(), 0).to_socket_addrs();
    found.into_iter().flatten().map(|at| at.ip()).collect()
}

/// `host:port:address,address`, as git and curl have it.
fn pin(server: &Server, addresses: &[IpAddr]) -> Option<String> {
    let Host::Name(name) = &server.host else {
        return None;
    };
    if !server.scheme.is_web() || addresses.is_empty() {
        return None;
    }
    let addresses: Vec<String> = addresses
        .iter()
        .take(MAX_PINNED)
        .map(|address| match address {
            IpAddr::V4(address) => address.to_string(),
            IpAddr::V6(address) => format!("[{address}]"),
        })
        .collect();
    Some(format!("{name}:{}:{}", server.port, addresses.join(",")))
}

/// Whether a proxy of the user looks names up, which may be why they are not found here.
fn has_proxy(source: &Source) -> bool {
    const NAMES: [&str; 5] = [
        "http_proxy",
        "https_proxy",
        "HTTPS_PROXY",
        "all_proxy",
        "ALL_PROXY",
    ];
    let set = |name: &&str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    NAMES.iter().any(set)
        || Git::users()
            .nowhere(Path::new("/"))
            .args(["config", "--get-urlmatch", "http.proxy", &source.text()])
            .quiet()
            .is_ok_and(|proxy| !proxy.trim_ascii().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::parse_address;
    use ringfence_model::policy::Line;
    use ringfence_model::policy::network::Origin;

    fn sources(hosts: &[&str]) -> Sources {
        let line = |text: &&str| Line {
            text: (*text).to_owned(),
            from: Origin::default(),
        };
        Sources {
            repositories: hosts.iter().map(line).collect(),
            ..Sources::default()
        }
    }

    fn server(text: &str) -> Server {
        parse_address(text)
            .expect(text)
            .source
            .server()
            .expect(text)
    }

    #[test]
    fn a_submodule_is_of_the_site_of_its_repository() {
        use Relation::{Named, Other, Same, SameSite};
        for (top, wanted, is) in [
            (
                "https://git.example.com/a",
                "https://git.example.com/b",
                Same,
            ),
            (
                "https://git.example.com/a",
                "https://GIT.example.com:443/b",
                Same,
            ),
            (
                "https://git.example.com/a",
                "https://code.example.com/b",
                SameSite,
            ),
            (
                "https://git.example.com/a",
                "http://git.example.com/b",
                SameSite,
            ),
            (
                "https://git.example.com:8443/a",
                "https://code.example.com:8443/b",
                SameSite,
            ),
            (
                "https://git.example.com/a",
                "git@git.example.com:b",
                SameSite,
            ),
            ("git@git.example.com:a", "ssh://git@git.example.com/b", Same),
            (
                "git@git.example.com:a",
                "https://git.example.com/b",
                SameSite,
            ),
            ("git@git.example.com:a", "git@code.example.com:b", Other),
            (
                "https://git.example.com/a",
                "https://git.example.com:9200/b",
                Other,
            ),
            (
                "https://git.example.com/a",
                "ssh://git@git.example.com:2222/b",
                Other,
            ),
            (
                "ssh://git@git.example.com:2222/a",
                "https://git.example.com:2222/b",
                Other,
            ),
            (
                "https://git.example.com/a",
                "git://git.example.com/b",
                Other,
            ),
            ("git://git.example.com/a", "git://git.example.com/b", Same),
            (
                "https://git.example.com/a",
                "https://git.example.com.evil.org/b",
                Other,
            ),
            ("https://git.example.com/a", "https://evil.org/b", Other),
            ("https://a.github.io/a", "https://b.github.io/b", Other),
            ("http://127.0.0.1:80/a", "http://127.0.0.1:81/b", Other),
            ("http://127.0.0.1:8000/a", "http://127.0.0.2:8000/b", Other),
            ("http://127.0.0.1:8000/a", "http://localhost:8000/b", Other),
            (
                "http://127.0.0.1:8000/a",
                "http://[::ffff:127.0.0.1]:8000/b",
                Same,
            ),
            (
                "https://git.example.com/a",
                "https://named.example.org/b",
                Named,
            ),
            (
                "https://git.example.com/a",
                "git@named.example.org:b",
                Named,
            ),
            (
                "https://git.example.com/a",
                "https://named.example.org:8443/b",
                Other,
            ),
            (
                "https://git.example.com/a",
                "https://a.named.example.org/b",
                Other,
            ),
            ("https://git.example.com/a", "http://10.0.0.1:3000/b", Named),
            ("https://git.example.com/a", "http://10.0.0.1/b", Other),
        ] {
            let own = sources(&["named.example.org", "10.0.0.1:3000"]);
            let found = relation(Some(&server(top)), &server(wanted), &own);
            assert_eq!(found, is, "{top} {wanted}");
            let none = relation(None, &server(wanted), &own);
            let only_named = if is == Named { Named } else { Other };
            assert_eq!(none, only_named, "{wanted}");
        }
    }

    #[test]
    fn private_addresses_are_for_the_server_that_the_user_named() {
        let check = |top: &str, wanted: &str, hosts: &[&str]| {
            let top = parse_address(top).expect(top).source;
            checked(&top, &sources(hosts), parse_address(wanted).expect(wanted))
        };
        for wanted in [
            "http://127.0.0.1:9/b",
            "http://localhost/b",
            "https://localhost/b",
            "http://[::1]/b",
            "http://169.254.169.254/b",
            "http://127.1/b",
            "ssh://root@127.0.0.1/b",
            "root@localhost:b",
            "git://127.0.0.1/b",
        ] {
            let refused = check("https://git.example.com/a", wanted, &[]);
            let why = refused.expect_err(wanted);
            let fix = why.contains("[repositories]") || why.contains("no plain host");
            assert!(fix, "{wanted}: {why}");
        }
        // The same host by another scheme is not the server that was named.
        assert!(check("http://127.0.0.1/a", "https://127.0.0.1/b", &[]).is_err());
        assert!(check("http://localhost/a", "root@localhost:b", &[]).is_err());
        assert!(check("http://127.0.0.1:9/a", "http://127.0.0.1:9/b", &[]).is_ok());
        let named = check(
            "https://git.example.com/a",
            "http://localhost:9/b",
            &["localhost:9"],
        );
        assert!(named.is_ok());
    }

    #[test]
    fn git_is_given_the_addresses_that_were_checked() {
        let addresses = ["192.0.2.7", "2001:db8::7"].map(|text| text.parse().expect(text));
        for (url, expected) in [
            (
                "https://a.example/b",
                Some("a.example:443:192.0.2.7,[2001:db8::7]"),
            ),
            (
                "http://a.example:81/b",
                Some("a.example:81:192.0.2.7,[2001:db8::7]"),
            ),
            ("https://192.0.2.7/b", None),
            ("git@a.example:b", None),
        ] {
            assert_eq!(pin(&server(url), &addresses).as_deref(), expected, "{url}");
        }
        assert_eq!(pin(&server("https://a.example/b"), &[]), None);
    }
}
