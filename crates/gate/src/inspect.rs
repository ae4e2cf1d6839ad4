//! What goes on inside web connections: TLS is opened, each request is read, decided and written
//! anew.
//!
//! INVARIANT: nothing that came from inside reaches a host as it came, but the bytes of bodies.

mod artefact;
mod body;
mod decide;
mod exchange;
mod frames;
mod pass;
mod passage;
mod release;
mod reply;
mod request;
mod socket;
mod two;
mod upstream;
mod wire;

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ringfence_model::gate::{SecretValue, Setup};
use ringfence_model::host::Host;
use ringfence_model::policy::network::{Effect, Reason};
use tokio::sync::Semaphore;
use tokio_rustls::LazyConfigAcceptor;

use crate::authority::Authority;
use crate::cache::Cache;
use crate::head::{HeadError, Place, RequestHead, Scheme, Target, Version, read_path};
use crate::index::HeldBytes;
use crate::open::{Doing, Held, Register};
use crate::prefixed::Prefixed;
use crate::secrets::Secrets;
use crate::state::{Denial, Flow};

use artefact::Sources;
use body::Incoming;
use exchange::{After, Visit, exchange, refuse};
pub(crate) use passage::Opener;
use reply::Reply;
use request::Asked;
pub(crate) use upstream::Trust;
use upstream::{Pool, Speaks};
use wire::{Left, Reader, Writer, split};

/// BOUND: how long a client may take for its handshake, and for a head that it began.
const HEAD_TIME: Duration = Duration::from_secs(30);
/// BOUND: how long a connection may be idle between requests.
const IDLE_TIME: Duration = Duration::from_secs(5 * 60);
/// What looking into requests needs, from the setup.
pub(crate) struct State {
    authority: Option<Authority>,
    pub(crate) secrets: Secrets,
    trust: Trust,
    cache: Option<Cache>,
    sources: Sources,
    held: HeldBytes,
    /// One for each stream of HTTP/2 from inside.
    streams: Arc<Semaphore>,
}

impl State {
    pub(crate) fn new(setup: &Setup, values: Vec<SecretValue>, trust: Trust) -> io::Result<Self> {
        Ok(Self {
            authority: looks(setup).then(Authority::new).transpose()?,
            secrets: Secrets::new(&setup.secrets, values).map_err(io::Error::other)?,
            trust,
            // A cache that cannot be used is no reason to have no network.
            cache: setup
                .cache
                .as_deref()
                .and_then(|path| Cache::open(path).ok()),
            sources: Sources::default(),
            held: HeldBytes::default(),
            streams: Arc::new(Semaphore::new(two::MAX_IN_ALL)),
        })
    }

    /// The certificate (PEM) that the inside must trust.
    pub(crate) fn authority(&self) -> Option<String> {
        self.authority.as_ref().map(Authority::pem)
    }
}

/// Whether something of this setup can only be done by looking into requests.
fn looks(setup: &Setup) -> bool {
    let by_rule = |rule: &ringfence_model::policy::network::NetworkRule| {
        rule.looks_inside() || rule.effect == Effect::Deny
    };
    !setup.secrets.is_empty()
        || !setup.mocks.is_empty()
        || !setup.indexes.is_empty()
        || setup.rules.0.iter().any(by_rule)
}

/// How a web connection begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A ClientHello, whose server name is the flow's host.
    Tls,
    /// A request in origin form.
    Plain,
    /// A request to the proxy, in absolute form; the flow has its host. Later requests on the same
    /// connection may name others.
    Forward,
}

/// Serves one connection from inside until it ends, and says what happened.
pub(crate) async fn web(flow: Flow, client: Prefixed, kind: Kind) {
    let held = Register::add(&flow.gate, &flow.host, flow.port, Doing::Requests);
    let held = Some(held);
    // A head and its body are two writes; the second must not wait for the first to be confirmed.
    client.stream.set_nodelay(true).ok();
    if kind != Kind::Tls {
        let (reader, writer) = split(Box::new(client));
        let visit = Visit {
            flow,
            speaks: Speaks::Plain,
            pool: Rc::new(Pool::default()),
        };
        // A proxy's client may name one host after another: its requests are held one by one.
        let held = held.filter(|_| kind != Kind::Forward);
        return serve_one(visit, reader, writer, kind, held).await;
    }
    let secure = match tokio::time::timeout(HEAD_TIME, open_tls(&flow, client)).await {
        Ok(Ok(secure)) => secure,
        Ok(Err(denial)) => return flow.gate.tell(denial.traffic(&flow)).await,
        Err(_) => {
            let denial =
                Denial::plain(Reason::Protocol, "the client does not finish its handshake");
            return flow.gate.tell(denial.traffic(&flow)).await;
        }
    };
    let two = secure.get_ref().1.alpn_protocol() == Some(b"h2");
    let visit = Visit {
        flow,
        speaks: if two {
            Speaks::SecureTwo
        } else {
            Speaks::Secure
        },
        pool: Rc::new(Pool::default()),
    };
    if two {
        return two::serve(visit, Box::new(secure), held).await;
    }
    let (reader, writer) = split(Box::new(secure));
    serve_one(visit, reader, writer, kind, held).await;
}

type Secured = tokio_rustls::server::TlsStream<Prefixed>;

/// Opens TLS as the host that the flow is to.
async fn open_tls(flow: &Flow, client: Prefixed) -> Result<Secured, Denial> {
    let refused = |detail: String| Denial::plain(Reason::Protocol, detail);
    let hello = LazyConfigAcceptor::new(rustls::server::Acceptor::default(), client)
        .await
        .map_err(|error| refused(format!("the client speaks no TLS: {error}")))?;
    let named = hello.client_hello().server_name().map(str::to_owned);
    if let Some(name) = named
        && Host::parse(&name).as_ref() != Ok(&flow.host)
    {
        let detail = format!("TLS names another host than `{}`", flow.host);
        return Err(refused(detail));
    }
    let authority = flow.gate.inspect.authority.as_ref();
    let authority = authority.ok_or_else(|| refused("nothing here opens TLS".to_owned()))?;
    let config = authority
        .server(&flow.host)
        .map_err(|error| refused(format!("no certificate can be made: {error}")))?;
    hello
        .into_stream(config)
        .await
        .map_err(|error| refused(format!("the client breaks off the handshake: {error}")))
}

/// Waits until the rules allow a connection no more.
async fn revoked(held: Option<&Held>) {
    match held {
        Some(held) => held.revoked().await,
        None => std::future::pending().await,
    }
}

/// Serves requests of HTTP/1, one after the other.
async fn serve_one(
    mut visit: Visit,
    mut reader: Reader,
    mut writer: Writer,
    kind: Kind,
    held: Option<Held>,
) {
    loop {
        // A request that is on its way is held by itself, and says what became of it.
        tokio::select! {
            () = revoked(held.as_ref()) => return,
            begins = tokio::time::timeout(IDLE_TIME, reader.begins()) => match begins {
                Ok(Ok(true)) => {}
                _ => return,
            }
        }
        let head = match tokio::time::timeout(HEAD_TIME, reader.head()).await {
            Ok(Ok(head)) => head.and_then(|head| RequestHead::parse(&head)),
            Ok(Err(_)) => return,
            Err(_) => Err(HeadError::Late),
        };
        let read = head.and_then(|head| read_request(&mut visit.flow, head, kind, visit.speaks));
        let after = match read {
            Ok((asked, version, keep)) => {
                let left = Left::from(asked.framing);
                let mut from = Incoming::One {
                    reader: &mut reader,
                    left,
                };
                let reply = Reply::One {
                    writer: &mut writer,
                    version,
                    keep,
                };
                exchange(&visit, asked, &mut from, reply).await
            }
            Err(error) => {
                let denial = Denial::plain(Reason::Malformed, error.to_string());
                let reply = Reply::One {
                    writer: &mut writer,
                    version: Version::Http11,
                    keep: false,
                };
                // Nobody knows where what comes next begins.
                let from = Incoming::Nothing;
                refuse(&visit, None, &denial, reply, &from).await
            }
        };
        if after == After::Close {
            break;
        }
    }
    // A connection that is closed with unread bytes is reset, and the client never sees the answer.
    writer.shutdown().await.ok();
    let mut rest = Incoming::One {
        reader: &mut reader,
        left: Left::UntilClose,
    };
    rest.drain().await;
}

/// HOSTILE: a request, and whether it is to the host that the connection is to.
fn read_request(
    flow: &mut Flow,
    head: RequestHead,
    kind: Kind,
    speaks: Speaks,
) -> Result<(Asked, Version, bool), HeadError> {
    let scheme = match speaks {
        Speaks::Plain => Scheme::Http,
        Speaks::Secure | Speaks::SecureTwo => Scheme::Https,
    };
    let port = |place: &Place| place.port.unwrap_or(scheme.port());
    let target = match &head.target {
        Target::Path(path) if kind != Kind::Forward => path.clone(),
        Target::Url {
            scheme: own,
            place,
            path,
        } if *own == scheme => {
            if kind == Kind::Forward {
                flow.host = place.host.clone();
                flow.port = port(place);
            } else if place.host != flow.host || port(place) != flow.port {
                return Err(HeadError::Host);
            }
            path.clone()
        }
        _ => return Err(HeadError::Target),
    };
    if let Some(place) = head.host()? {
        // Some clients leave out a port that is not the usual one.
        let same_port = place.port.is_none_or(|own| own == flow.port);
        if place.host != flow.host || !same_port {
            return Err(HeadError::Host);
        }
    }
    let socket = head.asks_for_socket();
    let expects = head.version == Version::Http11 && head.fields.has("expect");
    let keep = head.keeps_alive();
    let mut fields = head.fields;
    fields.strip_hop_by_hop();
    fields.remove("host");
    fields.remove("expect");
    let asked = Asked {
        method: head.method,
        path: read_path(&target)?,
        target,
        fields,
        framing: head.framing,
        socket,
        expects,
        trailers: false,
    };
    Ok((asked, head.version, keep))
}
