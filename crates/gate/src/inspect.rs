//! What goes on inside web connections.

use std::io;

use ringfence_model::gate::{SecretValue, Setup};
use ringfence_model::policy::network::Reason;
use tokio::io::AsyncWriteExt;

use crate::prefixed::Prefixed;
use crate::state::{Denial, Flow};

/// What looking into requests needs, from the setup.
pub(crate) struct State;

impl State {
    pub(crate) fn new(_setup: &Setup, _values: Vec<SecretValue>) -> io::Result<Self> {
        Ok(Self)
    }

    /// The certificate (PEM) that the inside must trust.
    pub(crate) fn authority(&self) -> Option<String> {
        None
    }
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
pub(crate) async fn web(flow: Flow, mut client: Prefixed, kind: Kind) {
    let denial = Denial::plain(Reason::Protocol, "requests cannot be looked into");
    flow.gate.tell(denial.traffic(&flow)).await;
    let answer: &[u8] = match kind {
        // Fatal alert, access denied.
        Kind::Tls => &[21, 3, 3, 0, 2, 2, 49],
        Kind::Plain | Kind::Forward => b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n",
    };
    client.write_all(answer).await.ok();
}
