//! One connection from inside to one host and port, whichever way it was asked for.
//!
//! ```text
//! rules say no ──────────────────────────────▶ refused
//! requests must be seen ─▶ first bytes ──────▶ inspect, or refused; never passed on unread
//! any bytes (`tcp`) ─────────────────────────▶ tunnel
//! a web rule ─▶ first bytes ─┬─ TLS, its name ▶ tunnel
//!                            ├─ a request ────▶ inspect
//!                            └─ else ─────────▶ refused
//! ```

use std::net::IpAddr;

use ringfence_model::gate::Via;
use ringfence_model::host::Host;
use ringfence_model::policy::network::{NetworkRule, Protocol, Reason};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::budget::{Meter, UsedUp};
use crate::dial::DialError;
use crate::first::{self, First, FirstError};
use crate::hello::Hello;
use crate::inspect::{self, Kind};
use crate::open::{Doing, Held, Register};
use crate::prefixed::Prefixed;
use crate::state::{Denial, Flow};
use crate::tunnel::{self, End};
use crate::{refusal, socks};

/// Fatal alerts of TLS: the client says them in its own words.
const ACCESS_DENIED: u8 = 49;
const INTERNAL_ERROR: u8 = 80;
const UNRECOGNIZED_NAME: u8 = 112;

/// Serves a connection until its end, and says what happened.
pub(crate) async fn serve(flow: Flow, client: Prefixed) {
    let rule = match flow.connection() {
        Ok(rule) => rule,
        Err(denial) => return refuse(&flow, client, &denial).await,
    };
    if flow.gate.looks_inside(&flow.host, flow.port) {
        return look_inside(flow, client, &rule).await;
    }
    let held = Register::add(
        &flow.gate,
        &flow.host,
        flow.port,
        Doing::Opaque(rule.protocol),
    );
    match (rule.protocol, flow.via) {
        (Protocol::Tcp, _) => any_bytes(flow, client, &rule, held).await,
        // Nothing is dialled before it is known that it is the rule's business.
        (Protocol::Web, Via::Direct) => web_direct(flow, client, &rule, held).await,
        (Protocol::Web, _) => web_proxied(flow, client, &rule, held).await,
    }
}

async fn look_inside(flow: Flow, mut client: Prefixed, rule: &NetworkRule) {
    if accept(&flow, &mut client).await.is_err() {
        return;
    }
    let kind = match first_bytes(&flow, &mut client, rule).await {
        Ok(First::Tls(_)) => Kind::Tls,
        Ok(First::Request) => Kind::Plain,
        Err(Refused) => return,
    };
    inspect::web(flow, client, kind).await;
}

async fn any_bytes(flow: Flow, mut client: Prefixed, rule: &NetworkRule, held: Held) {
    let Some((meter, host, address)) = reach(&flow, &mut client, rule, &held, Stage::Asked).await
    else {
        return;
    };
    if accept(&flow, &mut client).await.is_ok() {
        pass(&flow, client, host, address, rule, &meter, &held).await;
    }
}

async fn web_direct(flow: Flow, mut client: Prefixed, rule: &NetworkRule, held: Held) {
    match first_bytes(&flow, &mut client, rule).await {
        Err(Refused) => {}
        Ok(First::Request) => {
            drop(held);
            inspect::web(flow, client, Kind::Plain).await;
        }
        Ok(First::Tls(_)) => {
            let reached = reach(&flow, &mut client, rule, &held, Stage::Hello).await;
            if let Some((meter, host, address)) = reached {
                pass(&flow, client, host, address, rule, &meter, &held).await;
            }
        }
    }
}

async fn web_proxied(flow: Flow, mut client: Prefixed, rule: &NetworkRule, held: Held) {
    // Dialled first, so that a host that is not there is told in the words of the proxy. Requests
    // in the clear are dialled for one by one, later.
    let mut reached = None;
    if flow.port != 80 {
        reached = reach(&flow, &mut client, rule, &held, Stage::Asked).await;
        if reached.is_none() {
            return;
        }
    }
    if accept(&flow, &mut client).await.is_err() {
        return;
    }
    match first_bytes(&flow, &mut client, rule).await {
        Err(Refused) => {}
        Ok(First::Request) => {
            drop((reached, held));
            inspect::web(flow, client, Kind::Plain).await;
        }
        Ok(First::Tls(_)) => {
            if reached.is_none() {
                reached = reach(&flow, &mut client, rule, &held, Stage::Hello).await;
            }
            if let Some((meter, host, address)) = reached {
                pass(&flow, client, host, address, rule, &meter, &held).await;
            }
        }
    }
}

/// It was refused, and that was said.
struct Refused;

/// What the connection begins with, where that fits the rule and the host.
async fn first_bytes(
    flow: &Flow,
    client: &mut Prefixed,
    rule: &NetworkRule,
) -> Result<First, Refused> {
    let (detail, alert) = match first::read(client).await {
        Ok(First::Request) => return Ok(First::Request),
        Ok(First::Tls(hello)) => match fits(&hello, &flow.host) {
            Ok(()) => return Ok(First::Tls(hello)),
            Err(detail) => (detail, Some(UNRECOGNIZED_NAME)),
        },
        Err(FirstError::Nothing) => return Err(Refused),
        Err(error @ FirstError::Hello(_)) => (error.to_string(), Some(ACCESS_DENIED)),
        Err(error) => (error.to_string(), None),
    };
    let mut denial = Denial::plain(Reason::Protocol, detail);
    denial.rule = Some(Box::new(rule.clone()));
    if alert.is_none() {
        denial.allow = Some(flow.line(Protocol::Tcp));
    }
    flow.gate.tell(denial.traffic(flow)).await;
    match alert {
        Some(alert) => say_alert(client, alert).await,
        None => tunnel::reset(&client.stream),
    }
    Err(Refused)
}

/// INVARIANT: the name in the hello is the name that was asked for, which is the one that the rule
/// allows and that is dialled.
fn fits(hello: &Hello, host: &Host) -> Result<(), String> {
    match (&hello.server, host) {
        (Some(server), host) if server == host => Ok(()),
        (Some(server), host) => Err(format!(
            "the TLS hello asks for `{server}` on a connection to `{host}`"
        )),
        // Addresses have no place in a hello.
        (None, Host::Address(_)) => Ok(()),
        (None, host) => Err(format!(
            "the TLS hello names no server on a connection to `{host}`"
        )),
    }
}

/// How far a connection has come, and so in which words its failure is told.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It was asked for and not accepted yet.
    Asked,
    /// The client has sent a hello.
    Hello,
}

/// Dials. Where that fails it is said, to the client too.
async fn reach(
    flow: &Flow,
    client: &mut Prefixed,
    rule: &NetworkRule,
    held: &Held,
    stage: Stage,
) -> Option<(Meter, TcpStream, IpAddr)> {
    let meter = match flow.gate.budgets.begin(rule) {
        Ok(meter) => meter,
        Err(up) => {
            let denial = used_up(rule, up);
            flow.gate.tell(denial.traffic(flow)).await;
            say_no(flow, client, &denial, stage).await;
            return None;
        }
    };
    let dialled = tokio::select! {
        dialled = flow.gate.dial(&flow.host, flow.port, rule) => dialled,
        () = held.revoked() => {
            let denial = revoked(flow);
            flow.gate.tell(denial.traffic(flow)).await;
            say_no(flow, client, &denial, stage).await;
            return None;
        }
    };
    match dialled {
        Ok((host, address)) => Some((meter, host, address)),
        Err(error) => {
            let mut traffic = flow.traffic(Some(rule), error.happened());
            traffic.address = error.address();
            flow.gate.tell(traffic).await;
            match error.denial() {
                Some(denial) => say_no(flow, client, &denial, stage).await,
                None => say_failed(flow, client, &error, stage).await,
            }
            None
        }
    }
}

fn used_up(rule: &NetworkRule, up: UsedUp) -> Denial {
    Denial {
        rule: Some(Box::new(rule.clone())),
        ..Denial::plain(
            Reason::Budget,
            format!("the budget of `{rule}` is used up: {up}"),
        )
    }
}

/// Why rules that changed closed it.
fn revoked(flow: &Flow) -> Denial {
    match flow.connection() {
        Err(denial) => denial,
        Ok(_) => Denial::plain(Reason::Rule, "the rules changed while it was open"),
    }
}

async fn pass(
    flow: &Flow,
    client: Prefixed,
    host: TcpStream,
    address: IpAddr,
    rule: &NetworkRule,
    meter: &Meter,
    held: &Held,
) {
    held.leads_to(address);
    let passed = tunnel::pass(client, host, meter, held).await;
    let mut traffic = flow.traffic(Some(rule), passed.happened());
    traffic.address = Some(address);
    flow.gate.tell(traffic).await;
    let denial = match passed.end {
        End::Done | End::Broken | End::Idle => return,
        End::UsedUp(up) => used_up(rule, up),
        End::Revoked => revoked(flow),
    };
    flow.gate.tell(denial.traffic(flow)).await;
}

/// Refuses what was asked for, in the words of how it was asked.
pub(crate) async fn refuse(flow: &Flow, mut client: Prefixed, denial: &Denial) {
    flow.gate.tell(denial.traffic(flow)).await;
    say_no(flow, &mut client, denial, Stage::Asked).await;
}

async fn accept(flow: &Flow, client: &mut Prefixed) -> std::io::Result<()> {
    let answer: &[u8] = match flow.via {
        Via::Proxy => b"HTTP/1.1 200 Connection established\r\n\r\n",
        Via::Socks => &socks::reply(socks::Reply::Fine),
        Via::Direct | Via::Name => &[],
    };
    client.stream.write_all(answer).await
}

async fn say_no(flow: &Flow, client: &mut Prefixed, denial: &Denial, stage: Stage) {
    match (stage, flow.via) {
        (Stage::Hello, _) => say_alert(client, ACCESS_DENIED).await,
        (_, Via::Proxy) => say(client, &refusal::denied(flow, denial)).await,
        (_, Via::Socks) => say(client, &socks::reply(socks::Reply::Denied)).await,
        (_, Via::Direct | Via::Name) => tunnel::reset(&client.stream),
    }
}

async fn say_failed(flow: &Flow, client: &mut Prefixed, error: &DialError, stage: Stage) {
    match (stage, flow.via) {
        (Stage::Hello, _) => say_alert(client, INTERNAL_ERROR).await,
        (_, Via::Proxy) => say(client, &refusal::failed(flow, &error.to_string())).await,
        (_, Via::Socks) => say(client, &socks::reply(socks::Reply::Failed)).await,
        (_, Via::Direct | Via::Name) => tunnel::reset(&client.stream),
    }
}

async fn say_alert(client: &mut Prefixed, alert: u8) {
    say(client, &[21, 3, 3, 0, 2, 2, alert]).await;
}

/// Says the last thing on a connection. What the client still sends is read for a moment: closing
/// with unread bytes would take the answer back.
pub(crate) async fn say(client: &mut Prefixed, answer: &[u8]) {
    let saying = async {
        client.stream.write_all(answer).await?;
        client.stream.shutdown().await?;
        let mut rest = [0; 4096];
        while tokio::io::AsyncReadExt::read(&mut client.stream, &mut rest).await? > 0 {}
        std::io::Result::Ok(())
    };
    tokio::time::timeout(LAST_TIME, saying).await.ok();
}

/// BOUND: how long the last words may take.
const LAST_TIME: std::time::Duration = std::time::Duration::from_secs(2);
