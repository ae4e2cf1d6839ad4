//! The name service of the inside.
//!
//! Names that a rule allows have an address of their own, which is made up here: nothing is asked
//! outside until something connects, so a question carries nothing out, not even below a wildcard.
//! Other names do not exist, at once: `NXDOMAIN` is what every resolver takes as final.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ringfence_model::gate::{GATE_ADDRESS, Happened, NAME_PORT, SocketKind, Via, Want};
use ringfence_model::host::Host;
use ringfence_model::policy::network::Reason;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::task::spawn_local;

use crate::dns::{self, BadQuestion, Code, Question, Record};
use crate::names::Names;
use crate::state::{Denial, Flow, Gate};

/// BOUND: a question; the longest name has 255 bytes.
const MAX_QUESTION: usize = 1024;
/// BOUND: questions over UDP that are answered at a time. More wait in the kernel, or are lost there.
const MAX_AT_ONCE: usize = 64;
/// BOUND: how long a client over TCP may think.
const THINK_TIME: Duration = Duration::from_secs(30);

/// How long to wait when the socket has an error.
const RETRY_TIME: Duration = Duration::from_millis(50);

/// Where the service answers over UDP.
pub(crate) async fn datagrams(gate: &Gate) -> io::Result<UdpSocket> {
    let want = Want {
        kind: SocketKind::Datagram,
        address: GATE_ADDRESS,
        port: NAME_PORT,
    };
    UdpSocket::from_std(gate.guest.want(want).await?.into())
}

/// Answers questions over UDP.
pub(crate) async fn serve_datagrams(gate: Rc<Gate>, socket: UdpSocket) {
    let socket = Rc::new(socket);
    let turns = Arc::new(Semaphore::new(MAX_AT_ONCE));
    loop {
        let mut message = vec![0; MAX_QUESTION];
        let Ok((length, from)) = socket.recv_from(&mut message).await else {
            tokio::time::sleep(RETRY_TIME).await;
            continue;
        };
        let Ok(turn) = turns.clone().acquire_owned().await else {
            return;
        };
        message.truncate(length);
        spawn_local(answer_datagram(
            gate.clone(),
            socket.clone(),
            message,
            from,
            turn,
        ));
    }
}

async fn answer_datagram(
    gate: Rc<Gate>,
    socket: Rc<UdpSocket>,
    message: Vec<u8>,
    from: SocketAddr,
    _turn: tokio::sync::OwnedSemaphorePermit,
) {
    if let Some(answer) = answer(&gate, &message).await {
        socket.send_to(&answer, from).await.ok();
    }
}

/// Answers questions over TCP, one after the other.
pub(crate) async fn serve_stream(gate: Rc<Gate>, mut stream: TcpStream) {
    let mut message = Vec::new();
    loop {
        let reading = async {
            let length = usize::from(stream.read_u16().await?);
            if length > MAX_QUESTION {
                return Err(io::ErrorKind::InvalidData.into());
            }
            message.resize(length, 0);
            stream.read_exact(&mut message).await
        };
        match tokio::time::timeout(THINK_TIME, reading).await {
            Ok(Ok(_)) => {}
            Ok(Err(_)) | Err(_) => return,
        }
        let Some(answer) = answer(&gate, &message).await else {
            return;
        };
        let mut framed = (answer.len() as u16).to_be_bytes().to_vec();
        framed.extend_from_slice(&answer);
        let writing = tokio::time::timeout(THINK_TIME, stream.write_all(&framed));
        if !matches!(writing.await, Ok(Ok(()))) {
            return;
        }
    }
}

/// The answer to one message, where there is one.
async fn answer(gate: &Rc<Gate>, message: &[u8]) -> Option<Vec<u8>> {
    let question = match Question::read(message) {
        Ok(question) => question,
        Err(bad) => {
            malformed(gate, Vec::new(), "what was asked is no question").await;
            return BadQuestion::answer(bad);
        }
    };
    let name = question.name.as_deref().unwrap_or_default();
    let Ok(host @ Host::Name(_)) = Host::parse(name) else {
        let why = "what was asked for is no host name";
        malformed(gate, question.shown(), why).await;
        return Some(question.refusal(Code::NoSuchName, why));
    };
    if is_this_machine(&host) {
        let own = (question.kind == dns::A).then_some(Record::Address(Ipv4Addr::LOCALHOST.into()));
        return Some(question.answer(own));
    }
    if question.kind == dns::PTR
        && let Some(name) = name_behind(gate, &host)
    {
        return Some(question.answer(Some(Record::Name(name))));
    }
    if gate.rules().ports(&host).is_empty() {
        let denial = deny(gate, host).await;
        let line = denial
            .allow
            .map_or_else(String::new, |line| format!("; rule needed: {line}"));
        let why = format!("ringfence: {}{line}", denial.detail);
        return Some(question.refusal(Code::NoSuchName, &why));
    }
    if question.kind != dns::A {
        return Some(question.answer(None));
    }
    Some(match Names::address_of(gate, &host).await {
        Ok(address) => question.answer(Some(Record::Address(address.into()))),
        Err(error) => {
            let detail = format!("`{host}` got no address inside: {error}");
            let failed = Happened::Failed {
                detail: detail.clone(),
            };
            gate.tell(flow_of(gate, host).traffic(None, failed)).await;
            question.refusal(Code::Failed, &detail)
        }
    })
}

/// `localhost` and what is below it: RFC 6761 has them never leave a machine.
fn is_this_machine(host: &Host) -> bool {
    let Host::Name(name) = host else {
        return false;
    };
    name == "localhost" || name.ends_with(".localhost")
}

/// The name whose address `d.c.b.a.in-addr.arpa` asks for.
fn name_behind(gate: &Gate, host: &Host) -> Option<String> {
    let Host::Name(name) = host else {
        return None;
    };
    let reversed: Ipv4Addr = name.strip_suffix(".in-addr.arpa")?.parse().ok()?;
    let [a, b, c, d] = reversed.octets();
    let address = Host::Address(Ipv4Addr::new(d, c, b, a).into());
    match gate.names.meant(address) {
        Host::Name(name) => Some(name),
        Host::Address(_) => None,
    }
}

/// Says that a name is not allowed, and answers what is said.
async fn deny(gate: &Rc<Gate>, host: Host) -> Denial {
    // A name has no port; what would allow the web is what is told.
    let flow = Flow {
        port: 443,
        ..flow_of(gate, host)
    };
    let denial = match flow.connection() {
        Err(denial) => denial,
        // Rules changed since.
        Ok(_) => Denial::plain(Reason::Host, "no rule allowed it when it was asked for"),
    };
    let mut traffic = denial.traffic(&flow);
    traffic.port = 0;
    gate.tell(traffic).await;
    denial
}

fn flow_of(gate: &Rc<Gate>, host: Host) -> Flow {
    Flow {
        gate: gate.clone(),
        via: Via::Name,
        host,
        port: 0,
    }
}

async fn malformed(gate: &Gate, name: Vec<u8>, why: &str) {
    let denial = Denial::plain(Reason::Malformed, why);
    gate.tell(denial.of_unread(Via::Name, &name)).await;
}
