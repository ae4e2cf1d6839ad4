//! Connections to hosts: verified, and used again by the same client.

use std::cell::{OnceCell, RefCell};
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use ringfence_model::gate::{Happened, Setup};
use ringfence_model::host::Host;
use ringfence_model::policy::network::NetworkRule;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::task::spawn_local;
use tokio_rustls::TlsConnector;

use super::two::MAX_STREAMS;
use super::wire::{Link, Reader, Writer, split};
use crate::dial::DialError;
use crate::state::Flow;

/// BOUND: how long a handshake may take.
const HANDSHAKE_TIME: Duration = Duration::from_secs(15);
/// BOUND: idle connections that one client keeps.
const MAX_IDLE: usize = 8;
/// BOUND: what a host may send on a stream before it is passed on.
const STREAM_WINDOW: u32 = 256 << 10;
/// BOUND: the same for all streams of a connection: answers that nobody reads must not stop another one, in the middle
/// of a value, at a byte that the sandbox chooses.
const CONNECTION_WINDOW: u32 = STREAM_WINDOW * MAX_STREAMS;
/// BOUND: a frame of HTTP/2: a few records of TLS.
pub(crate) const FRAME: u32 = 64 << 10;

/// How a connection speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Speaks {
    /// HTTP in the clear.
    Plain,
    /// HTTP/1 inside TLS.
    Secure,
    /// HTTP/2 where the host has it, inside TLS.
    SecureTwo,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum UpstreamError {
    #[error(transparent)]
    Dial(#[from] DialError),
    #[error("`{0}` does not finish its handshake")]
    Slow(Host),
    #[error("`{host}` could not prove who it is: {source}")]
    Handshake { host: Host, source: io::Error },
    #[error("roots of trust cannot be read: {0}")]
    Roots(io::Error),
}

impl UpstreamError {
    pub(crate) fn happened(&self) -> Happened {
        match self {
            Self::Dial(error) => error.happened(),
            _ => Happened::Failed {
                detail: self.to_string(),
            },
        }
    }
}

/// Whom the gate trusts. Read when it is first needed: most sandboxes never do.
#[derive(Default)]
pub(crate) struct Trust {
    roots: OnceCell<Arc<RootCertStore>>,
    one: OnceCell<Arc<ClientConfig>>,
    two: OnceCell<Arc<ClientConfig>>,
}

impl Trust {
    /// Reads certificates that are not those of the whole host: perhaps only the caller may read them. What is wrong
    /// with them is said when they are needed.
    pub(crate) fn read_own(&mut self, setup: &Setup) {
        let named = ["SSL_CERT_FILE", "SSL_CERT_DIR"].map(std::env::var_os);
        if (setup.roots.is_some() || named.iter().any(Option::is_some))
            && let Ok(roots) = roots(setup.roots.as_deref())
        {
            self.roots = OnceCell::from(Arc::new(roots));
        }
    }

    fn config(&self, setup: &Setup, speaks: Speaks) -> io::Result<Arc<ClientConfig>> {
        let cell = if speaks == Speaks::SecureTwo {
            &self.two
        } else {
            &self.one
        };
        if let Some(config) = cell.get() {
            return Ok(config.clone());
        }
        let roots = match self.roots.get() {
            Some(roots) => roots.clone(),
            None => {
                let roots = Arc::new(roots(setup.roots.as_deref())?);
                self.roots.get_or_init(|| roots).clone()
            }
        };
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        if speaks == Speaks::SecureTwo {
            config.alpn_protocols.insert(0, b"h2".to_vec());
        }
        Ok(cell.get_or_init(|| Arc::new(config)).clone())
    }
}

fn roots(more: Option<&Path>) -> io::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let native = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(native.certs);
    if let Some(path) = more {
        let bad = |error| io::Error::other(format!("{}: {error}", path.display()));
        for certificate in CertificateDer::pem_file_iter(path).map_err(bad)? {
            let certificate = certificate.map_err(bad)?;
            roots.add(certificate).map_err(io::Error::other)?;
        }
    }
    if roots.is_empty() {
        // Nobody would ever be believed; say why, not that each host is a stranger.
        return Err(match native.errors.into_iter().next() {
            Some(error) => io::Error::other(error),
            None => io::Error::new(io::ErrorKind::NotFound, "the host has no certificates"),
        });
    }
    Ok(roots)
}

/// A connection of HTTP/1.
pub(crate) struct One {
    pub(crate) reader: Reader,
    pub(crate) writer: Writer,
    pub(crate) address: IpAddr,
    /// It served a request before; the host may have closed it since.
    pub(crate) used: bool,
}

/// A connection to a host.
pub(crate) enum Upstream {
    One(Box<One>),
    Two(SendRequest<Bytes>, IpAddr),
}

impl Upstream {
    pub(crate) fn address(&self) -> IpAddr {
        match self {
            Self::One(one) => one.address,
            Self::Two(_, address) => *address,
        }
    }
}

struct Place {
    host: Host,
    port: u16,
    speaks: Speaks,
}

/// Connections that one client may use again. Nobody else does: what one client did to a connection
/// is its own affair.
#[derive(Default)]
pub(crate) struct Pool {
    idle: RefCell<Vec<(Place, Box<One>)>>,
    two: RefCell<Option<(SendRequest<Bytes>, IpAddr)>>,
}

impl Pool {
    /// A connection that `rule` allows, used before or not.
    pub(crate) async fn get(
        &self,
        flow: &Flow,
        rule: &NetworkRule,
        speaks: Speaks,
    ) -> Result<Upstream, UpstreamError> {
        let shared = self.two.borrow().clone();
        if let Some((send, address)) = shared
            && rule.takes(address)
        {
            match send.ready().await {
                Ok(send) => return Ok(Upstream::Two(send, address)),
                Err(_) => drop(self.two.take()),
            }
        }
        while let Some(mut one) = self.take(flow, speaks) {
            if rule.takes(one.address) && !one.reader.is_stale().await {
                return Ok(Upstream::One(one));
            }
        }
        self.fresh(flow, rule, speaks).await
    }

    fn take(&self, flow: &Flow, speaks: Speaks) -> Option<Box<One>> {
        let mut idle = self.idle.borrow_mut();
        let at = idle.iter().position(|(place, _)| {
            place.host == flow.host && place.port == flow.port && place.speaks == speaks
        })?;
        Some(idle.swap_remove(at).1)
    }

    /// A new connection.
    pub(crate) async fn fresh(
        &self,
        flow: &Flow,
        rule: &NetworkRule,
        speaks: Speaks,
    ) -> Result<Upstream, UpstreamError> {
        let gate = &flow.gate;
        let (stream, address) = gate.dial(&flow.host, flow.port, rule).await?;
        let one = |link: Link| {
            let (reader, writer) = split(link);
            Upstream::One(Box::new(One {
                reader,
                writer,
                address,
                used: false,
            }))
        };
        // A double is on this machine, and plain.
        if speaks == Speaks::Plain || gate.mock(&flow.host).is_some() {
            return Ok(one(Box::new(stream)));
        }
        let config = gate.inspect.trust.config(&gate.setup, speaks);
        let config = config.map_err(UpstreamError::Roots)?;
        let name = match &flow.host {
            Host::Address(address) => ServerName::from(*address),
            Host::Name(name) => ServerName::try_from(name.clone()).map_err(|error| {
                let (host, source) = (flow.host.clone(), io::Error::other(error));
                UpstreamError::Handshake { host, source }
            })?,
        };
        let failed = |source| UpstreamError::Handshake {
            host: flow.host.clone(),
            source,
        };
        let secure = TlsConnector::from(config).connect(name, stream);
        let secure = tokio::time::timeout(HANDSHAKE_TIME, secure)
            .await
            .map_err(|_| UpstreamError::Slow(flow.host.clone()))?
            .map_err(failed)?;
        if secure.get_ref().1.alpn_protocol() != Some(b"h2") {
            return Ok(one(Box::new(secure)));
        }
        let (send, connection) = h2::client::Builder::new()
            .enable_push(false)
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_frame_size(FRAME)
            .max_header_list_size(crate::head::MAX_HEAD as u32)
            .handshake(secure)
            .await
            .map_err(|error| failed(super::body::from_h2(error)))?;
        // It ends when nobody holds `send` any more.
        spawn_local(async move { connection.await.ok() });
        self.two.replace(Some((send.clone(), address)));
        Ok(Upstream::Two(send, address))
    }

    /// Gives back a connection that served a request to its end.
    pub(crate) fn keep(&self, flow: &Flow, speaks: Speaks, mut one: Box<One>) {
        one.used = true;
        let mut idle = self.idle.borrow_mut();
        if idle.len() >= MAX_IDLE {
            idle.remove(0);
        }
        let place = Place {
            host: flow.host.clone(),
            port: flow.port,
            speaks,
        };
        idle.push((place, one));
    }
}
