//! From an allowed host to a connection: resolve once, check, dial exactly that address.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ringfence_model::gate::Happened;
use ringfence_model::host::{Host, plain_address};
use ringfence_model::policy::network::{NetworkRule, Reason};
use tokio::net::TcpStream;

use crate::state::{Denial, Gate};

/// BOUND: how long a host may take to be found, and one address to answer.
const RESOLVE_TIME: Duration = Duration::from_secs(10);
const CONNECT_TIME: Duration = Duration::from_secs(10);
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
    #[error("{address} does not answer: {source}")]
    Connect {
        address: SocketAddr,
        source: io::Error,
    },
}

impl DialError {
    /// What is said of it: a denial where the address is the reason, else a failure.
    pub(crate) fn happened(&self) -> Happened {
        match self {
            Self::Address { .. } => Denial::plain(Reason::Address, self.to_string()).happened(),
            _ => Happened::Failed {
                detail: self.to_string(),
            },
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
        let found = self.resolve(host).await?;
        // INVARIANT: the addresses that are checked are the addresses that are dialled; nothing is
        // looked up a second time.
        let taken: Vec<IpAddr> = found
            .iter()
            .copied()
            .filter(|address| !is_own(*address) && rule.takes(*address))
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

    async fn resolve(&self, host: &Host) -> Result<Vec<IpAddr>, DialError> {
        let name = match host {
            Host::Address(address) => return Ok(vec![*address]),
            Host::Name(name) => name,
        };
        let found = tokio::time::timeout(RESOLVE_TIME, tokio::net::lookup_host((name.as_str(), 0)))
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            .map_err(|source| DialError::Resolve {
                host: host.clone(),
                source,
            })?;
        Ok(found.map(|found| found.ip()).collect())
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

async fn connect(address: SocketAddr) -> Result<(TcpStream, IpAddr), DialError> {
    let stream = tokio::time::timeout(CONNECT_TIME, TcpStream::connect(address))
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
        .map_err(|source| DialError::Connect { address, source })?;
    stream.set_nodelay(true).ok();
    Ok((stream, address.ip()))
}
