//! From an allowed host to a connection: resolve once, check, dial exactly that address.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use ringfence_model::gate::Happened;
use ringfence_model::host::{Host, HostPattern, plain_address};
use ringfence_model::policy::network::{NetworkRule, Reason};
use rustix::net::sockopt;
use tokio::net::TcpStream;

use crate::state::{Denial, Gate};

/// BOUND: how long one address may take to answer.
const CONNECT_TIME: Duration = Duration::from_secs(10);
/// How long nothing is said before the other side is asked whether it is there.
const KEEP_ALIVE_AFTER: Duration = Duration::from_secs(60);
/// BOUND: addresses of a host that are tried.
const MAX_TRIED: usize = 4;

#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    #[error("`{host}` has the address {address}, which the rule does not take")]
    Address { host: Host, address: IpAddr },
    #[error("`{0}` has no address")]
    Nowhere(Host),
    #[error("`{host}` was not found: {source}")]
    Resolve { host: Host, source: io::Error },
    #[error("`{0}` is one name too many below a wildcard in this minute")]
    TooManyNames(Host),
    #[error("{address} does not answer: {source}")]
    Connect {
        address: SocketAddr,
        source: io::Error,
    },
}

impl DialError {
    /// What is said of it: a denial where the address is the reason, else a failure.
    pub(crate) fn happened(&self) -> Happened {
        match self.denial() {
            Some(denial) => denial.happened(),
            None => Happened::Failed {
                detail: self.to_string(),
            },
        }
    }

    /// The refusal, where it is one and not a failure of the other side.
    pub(crate) fn denial(&self) -> Option<Denial> {
        match self {
            Self::Address { .. } => Some(Denial::plain(Reason::Address, self.to_string())),
            Self::TooManyNames(_) => Some(Denial::plain(Reason::Budget, self.to_string())),
            _ => None,
        }
    }

    /// The address that it is about.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        match self {
            Self::Address { address, .. } => Some(*address),
            Self::Connect { address, .. } => Some(address.ip()),
            _ => None,
        }
    }
}

impl Gate {
    /// A connection to a host that `rule` allows, and the address that it really has.
    ///
    /// Where a double answers for the host, the connection is to that double: plain HTTP.
    pub(crate) async fn dial(
        &self,
        host: &Host,
        port: u16,
        rule: &NetworkRule,
    ) -> Result<(TcpStream, IpAddr), DialError> {
        if let Some(double) = self.mock(host) {
            return connect(double).await;
        }
        let found = match host {
            Host::Address(address) => vec![*address],
            Host::Name(name) => {
                if !matches!(rule.host, HostPattern::Exact(_)) && !self.resolver.may_ask(name) {
                    return Err(DialError::TooManyNames(host.clone()));
                }
                self.resolver.follow_host(&self.words).await;
                let found = self.resolver.resolve(name).await;
                found.map_err(|source| DialError::Resolve {
                    host: host.clone(),
                    source,
                })?
            }
        };
        // INVARIANT: the addresses that are checked are the addresses that are dialled; nothing is
        // looked up a second time.
        let taken: Vec<IpAddr> = found
            .iter()
            .copied()
            .filter(|address| !is_own(*address) && rule.takes(*address))
            .filter(|address| rule.names(*address) || !is_this_machine(*address))
            .collect();
        let mut last = match (taken.first(), found.first()) {
            (None, Some(address)) => Err(DialError::Address {
                host: host.clone(),
                address: *address,
            }),
            _ => Err(DialError::Nowhere(host.clone())),
        };
        for address in taken.into_iter().take(MAX_TRIED) {
            last = connect(SocketAddr::new(address, port)).await;
            if last.is_ok() {
                break;
            }
        }
        last
    }
}

/// Whether this is an address of gates: one that dials another would go round for ever.
fn is_own(address: IpAddr) -> bool {
    match plain_address(address) {
        IpAddr::V4(address) => {
            address.octets()[0] == 127 && (64..128).contains(&address.octets()[1])
        }
        IpAddr::V6(_) => false,
    }
}

/// Whether an address is one of this machine's, whatever range it is in: the kernel would send from
/// that very address to it.
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
    // All of `127.0.0.0/8` is here, whatever address is sent from.
    address.is_loopback() || source().is_ok_and(|own: SocketAddr| own.ip() == address)
}

async fn connect(address: SocketAddr) -> Result<(TcpStream, IpAddr), DialError> {
    let stream = tokio::time::timeout(CONNECT_TIME, TcpStream::connect(address))
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
        .map_err(|source| DialError::Connect { address, source })?;
    stream.set_nodelay(true).ok();
    // A host that went away without a word is noticed, however long nothing is said.
    sockopt::set_socket_keepalive(&stream, true).ok();
    sockopt::set_tcp_keepidle(&stream, KEEP_ALIVE_AFTER).ok();
    Ok((stream, address.ip()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_known_by_its_addresses() {
        for (text, is) in [
            ("127.0.0.1", true),
            ("127.9.8.7", true),
            ("192.0.2.77", false),
            ("203.0.113.9", false),
        ] {
            let address = text.parse().expect("an address");
            assert_eq!(is_this_machine(address), is, "{text}");
        }
    }
}
