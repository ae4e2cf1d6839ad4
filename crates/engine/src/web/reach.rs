//! Which addresses the client may connect to, checked on the very addresses that are dialled.
//!
//! The server that the user named may be anywhere, this machine and private networks included. All
//! others were chosen by a server: they must be on the open network, or where the named server is.
//!
//! INVARIANT: the addresses that are checked are the addresses that are dialled. The named server is
//! looked up once, so that its name cannot mean another machine later (DNS rebinding).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _, UdpSocket};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::Uri;
use ringfence_model::host::{Reach, plain_address};
use ureq::config::Config;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

use super::address::is_loopback;

/// BOUND: addresses of one server that are tried.
const MAX_TRIED: usize = 8;

/// An address that only a server which the user named may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the address {address} is not on the open network")]
pub(super) struct NotPublic {
    pub address: IpAddr,
}

/// The server that the user named.
#[derive(Debug)]
pub(super) struct Named {
    /// In lower case, as in a URL. `None`: nobody named one.
    host: Option<String>,
    /// Its addresses, once they are known.
    pinned: Mutex<Option<Vec<IpAddr>>>,
}

impl Named {
    pub fn new(host: Option<&str>) -> Self {
        Self {
            host: host.map(str::to_ascii_lowercase),
            pinned: Mutex::new(None),
        }
    }

    fn is(&self, uri: &Uri) -> bool {
        let host = uri.host().map(str::to_ascii_lowercase);
        host.is_some() && host == self.host
    }

    fn pinned(&self) -> MutexGuard<'_, Option<Vec<IpAddr>>> {
        self.pinned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is on the open network. One that only a proxy looks up is, unless it is an address.
    pub fn is_open(&self) -> bool {
        let host = self.host.as_deref().unwrap_or_default();
        match &*self.pinned() {
            Some(found) => found.iter().all(|address| is_open(*address)),
            None => !is_loopback(host) && without_brackets(host).parse().map_or(true, is_open),
        }
    }

    /// Checks a server that a proxy will connect to. A name that only the proxy can look up is left to
    /// it.
    pub fn check_proxied(&self, uri: &Uri) -> Result<(), NotPublic> {
        if self.is(uri) {
            return Ok(());
        }
        let found = (without_brackets(uri.host().unwrap_or_default()), 0).to_socket_addrs();
        // Which of several the proxy takes is not known here.
        for found in found.into_iter().flatten() {
            admitted(&[found.ip()], &[])?;
        }
        Ok(())
    }
}

fn without_brackets(host: &str) -> &str {
    host.trim_start_matches('[').trim_end_matches(']')
}

/// Looks names up, and leaves out addresses that may not be dialled.
#[derive(Debug)]
pub(super) struct CheckedResolver<R = DefaultResolver> {
    named: Arc<Named>,
    lookup: R,
}

impl<R> CheckedResolver<R> {
    pub fn new(named: Arc<Named>, lookup: R) -> Self {
        Self { named, lookup }
    }
}

impl<R: Resolver> Resolver for CheckedResolver<R> {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        // The user's own proxy may be anywhere.
        if config.proxy().is_some_and(|proxy| proxy.uri() == uri) {
            return self.lookup.resolve(uri, config, timeout);
        }
        let look = || -> Result<Vec<IpAddr>, ureq::Error> {
            let found = self.lookup.resolve(uri, config, timeout)?;
            Ok(found.iter().map(SocketAddr::ip).collect())
        };
        let taken = if self.named.is(uri) {
            // Whoever else wants it now waits for the one answer.
            let mut pinned = self.named.pinned();
            match &*pinned {
                Some(known) => known.clone(),
                None => {
                    let found = of_named(look()?);
                    *pinned = Some(found.clone());
                    found
                }
            }
        } else {
            let found = look()?;
            let named = self.named.pinned();
            admitted(&found, named.as_deref().unwrap_or_default())
                .map_err(|refused| ureq::Error::Other(Box::new(refused)))?
        };
        let secure = uri.scheme() == Some(&http::uri::Scheme::HTTPS);
        let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let mut addresses = self.empty();
        for address in taken.into_iter().take(MAX_TRIED) {
            addresses.push(SocketAddr::new(address, port));
        }
        Ok(addresses)
    }
}

/// Addresses of the server that the user named.
///
/// HOSTILE: whoever has the zone of a public name can add an address of ours to its own.
fn of_named(found: Vec<IpAddr>) -> Vec<IpAddr> {
    if found.iter().any(|address| is_open(*address)) {
        found.into_iter().filter(|at| is_open(*at)).collect()
    } else {
        found
    }
}

/// Addresses that a server which nobody named may have, where the named one has these.
fn admitted(found: &[IpAddr], named: &[IpAddr]) -> Result<Vec<IpAddr>, NotPublic> {
    let private = |address: &IpAddr| Reach::of(*address) == Reach::Private;
    let beside = |address: &IpAddr| {
        let same = |own: &IpAddr| plain_address(*own) == plain_address(*address);
        // A registry of an intranet may keep its blobs on another machine of it.
        named.iter().any(same) || private(address) && named.iter().any(private)
    };
    let taken = found.iter().copied();
    let taken: Vec<IpAddr> = taken.filter(|at| is_open(*at) || beside(at)).collect();
    match (taken.is_empty(), found.first()) {
        (true, Some(address)) => Err(NotPublic { address: *address }),
        _ => Ok(taken),
    }
}

/// Whether an address is on the open network and not one of this machine's own.
pub(crate) fn is_open(address: IpAddr) -> bool {
    Reach::of(address) == Reach::Public && !is_this_machine(address)
}

/// As in the gate: the kernel would send from that very address to it.
fn is_this_machine(address: IpAddr) -> bool {
    let from: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // Nothing is sent: a datagram socket that is connected only has a route.
    let source = || {
        let socket = UdpSocket::bind((from, 0))?;
        socket.connect((address, 9))?;
        socket.local_addr()
    };
    source().is_ok_and(|own: SocketAddr| own.ip() == address)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use ureq::Timeout;
    use ureq::unversioned::transport::time::Duration as Until;

    use super::*;

    /// A zone whose owner gives another answer each time.
    #[derive(Debug)]
    struct Zone {
        answers: Vec<Vec<IpAddr>>,
        asked: AtomicUsize,
    }

    impl Resolver for Zone {
        fn resolve(
            &self,
            _: &Uri,
            _: &Config,
            _: NextTimeout,
        ) -> Result<ResolvedSocketAddrs, ureq::Error> {
            let number = self.asked.fetch_add(1, Ordering::Relaxed);
            let mut addresses = self.empty();
            for address in &self.answers[number.min(self.answers.len() - 1)] {
                addresses.push(SocketAddr::new(*address, 1));
            }
            Ok(addresses)
        }
    }

    fn addresses(texts: &[&str]) -> Vec<IpAddr> {
        let read = |text: &&str| text.parse().expect("an address");
        texts.iter().map(read).collect()
    }

    fn resolver(named: Option<&str>, answers: &[&[&str]]) -> CheckedResolver<Zone> {
        let answers = answers.iter().map(|answer| addresses(answer)).collect();
        let asked = AtomicUsize::new(0);
        CheckedResolver::new(Arc::new(Named::new(named)), Zone { answers, asked })
    }

    fn dialled(resolver: &impl Resolver, url: &str) -> Option<Vec<String>> {
        let timeout = NextTimeout {
            after: Until::NotHappening,
            reason: Timeout::Resolve,
            ..NextTimeout::default()
        };
        let found = resolver.resolve(&url.parse().unwrap(), &Config::default(), timeout);
        let found = found.ok()?;
        Some(found.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn addresses_that_nobody_named_must_be_public() {
        for text in [
            "127.0.0.1",
            "127.9.9.9",
            "0.0.0.0",
            "10.0.0.1",
            "172.16.0.1",
            "192.168.1.1",
            "100.64.0.1",
            "169.254.169.254",
            "100.100.100.200",
            "168.63.129.16",
            "192.0.0.192",
            "198.18.0.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::7f00:1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::ffff:0:10.0.0.1",
            "64:ff9b::a00:1",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::1",
            "2002:7f00:1::",
            "2002:a00:1::1",
            "2001:0:1::1",
            "fe80::1",
            "fc00::1",
            "fd00:ec2::254",
            "fec0::1",
            "ff02::1",
        ] {
            let found = addresses(&[text]);
            assert!(admitted(&found, &[]).is_err(), "{text}");
            let public = resolver(Some("public.test"), &[&["192.0.2.7"], &[text]]);
            assert!(dialled(&public, "https://public.test/").is_some());
            assert_eq!(dialled(&public, "https://blobs.test/"), None, "{text}");
        }
        let both = addresses(&["10.0.0.1", "192.0.2.8"]);
        assert_eq!(admitted(&both, &[]), Ok(addresses(&["192.0.2.8"])));
    }

    #[test]
    fn private_addresses_are_for_the_named_server_and_its_neighbours() {
        for (named, other, admits) in [
            ("10.0.0.1", "10.0.0.1", true),
            ("10.0.0.1", "::ffff:10.0.0.1", true),
            ("10.0.0.1", "192.168.0.9", true),
            ("10.0.0.1", "192.0.2.8", true),
            ("10.0.0.1", "127.0.0.1", false),
            ("10.0.0.1", "169.254.169.254", false),
            ("127.0.0.1", "127.0.0.1", true),
            ("127.0.0.1", "127.0.0.2", false),
            ("127.0.0.1", "10.0.0.1", false),
            ("127.0.0.1", "169.254.169.254", false),
        ] {
            let resolver = resolver(Some("registry.test"), &[&[named], &[other]]);
            let own = dialled(&resolver, "http://Registry.test:5000/");
            assert_eq!(own, Some(vec![format!("{named}:5000")]));
            let found = dialled(&resolver, "https://blobs.test/");
            assert_eq!(found.is_some(), admits, "{named} {other}");
        }
    }

    #[test]
    fn a_named_server_keeps_its_first_addresses() {
        let rebound = resolver(Some("evil.test"), &[&["192.0.2.7"], &["127.0.0.1"]]);
        for _ in 0..2 {
            let found = dialled(&rebound, "https://evil.test/");
            assert_eq!(found, Some(vec!["192.0.2.7:443".to_owned()]));
        }
        // An address of ours among public ones is not a place for a registry.
        let mixed = resolver(Some("evil.test"), &[&["127.0.0.1", "192.0.2.7"]]);
        let found = dialled(&mixed, "http://evil.test/");
        assert_eq!(found, Some(vec!["192.0.2.7:80".to_owned()]));
    }

    #[test]
    fn a_proxy_is_not_asked_for_private_servers() {
        for (url, admits) in [
            ("https://127.0.0.1/", false),
            ("https://[::1]/", false),
            ("https://[::ffff:10.0.0.1]/", false),
            ("https://169.254.169.254/", false),
            ("https://localhost/", false),
            ("https://192.0.2.8/", true),
            ("https://only-the-proxy-knows.invalid/", true),
        ] {
            let uri: Uri = url.parse().unwrap();
            let nobody = Named::new(None);
            assert_eq!(nobody.check_proxied(&uri).is_ok(), admits, "{url}");
            let own = uri.host().map(str::to_uppercase);
            let own = Named::new(own.as_deref());
            assert!(own.check_proxied(&uri).is_ok(), "{url}");
            assert_eq!(own.is_open(), admits, "{url}");
        }
    }
}
