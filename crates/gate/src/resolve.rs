//! From a name to its addresses: by the host's own means, or by name servers that the setup names.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::{Instant, timeout};

use crate::dns::{self, Answered};

/// BOUND: how long a name may take to be found, and one name server to answer.
const RESOLVE_TIME: Duration = Duration::from_secs(10);
const SERVER_TIME: Duration = Duration::from_secs(3);
/// BOUND: different names below wildcards that are looked up in a minute: whoever has the zone sees
/// each of them, so they are a way out.
const MAX_NEW_NAMES: usize = 60;
/// BOUND: an answer of a name server over TCP.
const MAX_ANSWER: usize = 16 << 10;

pub(crate) struct Resolver {
    servers: Vec<SocketAddr>,
    minute: Cell<Instant>,
    /// Names below wildcards that were looked up in this minute.
    asked: RefCell<HashSet<String>>,
}

impl Resolver {
    pub(crate) fn new(servers: &[SocketAddr]) -> Self {
        Self {
            servers: servers.to_vec(),
            minute: Cell::new(Instant::now()),
            asked: RefCell::default(),
        }
    }

    /// Whether one more name below a wildcard may be looked up.
    pub(crate) fn may_ask(&self, name: &str) -> bool {
        let mut asked = self.asked.borrow_mut();
        if self.minute.get().elapsed() >= Duration::from_secs(60) {
            self.minute.set(Instant::now());
            asked.clear();
        }
        if asked.contains(name) {
            return true;
        }
        asked.len() < MAX_NEW_NAMES && asked.insert(name.to_owned())
    }

    /// All addresses of a canonical name.
    pub(crate) async fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        let looking = async {
            if self.servers.is_empty() {
                // As every program of the host would find it: files, caches, split zones.
                let found = tokio::net::lookup_host((name, 0)).await?;
                return Ok(found.map(|found| found.ip()).collect());
            }
            let (four, six) = tokio::join!(self.ask(name, dns::A), self.ask(name, dns::AAAA));
            match (four, six) {
                (Ok(four), six) => Ok([four, six.unwrap_or_default()].concat()),
                (Err(_), Ok(six)) if !six.is_empty() => Ok(six),
                (Err(error), _) => Err(error),
            }
        };
        let late = || Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in time"));
        let mut found = timeout(RESOLVE_TIME, looking)
            .await
            .unwrap_or_else(|_| late())?;
        let mut seen = HashSet::new();
        found.retain(|address| seen.insert(*address));
        Ok(found)
    }

    async fn ask(&self, name: &str, kind: u16) -> io::Result<Vec<IpAddr>> {
        let mut last = io::Error::other("there is no name server");
        for server in &self.servers {
            let answer = timeout(SERVER_TIME, ask_server(*server, name, kind)).await;
            match answer {
                Ok(Ok(Answered::Addresses(found))) => return Ok(found),
                Ok(Ok(Answered::NoSuchName)) => {
                    return Err(io::Error::new(
                        io::ErrorKind::NotFound,
                        "there is no such name",
                    ));
                }
                Ok(Ok(Answered::Failed | Answered::Cut)) => {
                    last = io::Error::other(format!("name server {server} failed"));
                }
                Ok(Err(error)) => last = error,
                Err(_) => {
                    let late = format!("name server {server} does not answer");
                    last = io::Error::new(io::ErrorKind::TimedOut, late);
                }
            }
        }
        Err(last)
    }
}

async fn ask_server(server: SocketAddr, name: &str, kind: u16) -> io::Result<Answered> {
    let mut id = [0; 2];
    rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty())?;
    let id = u16::from_be_bytes(id);
    let question = dns::ask(id, name, kind);
    let any: SocketAddr = match server {
        SocketAddr::V4(_) => ([0; 4], 0).into(),
        SocketAddr::V6(_) => ([0_u16; 8], 0).into(),
    };
    // A port of its own for each question: a stranger has to guess both numbers.
    let socket = UdpSocket::bind(any).await?;
    socket.connect(server).await?;
    socket.send(&question).await?;
    let mut message = vec![0; 4096];
    loop {
        let length = socket.recv(&mut message).await?;
        match dns::read_answer(&message[..length], id, name, kind) {
            // HOSTILE: not the answer to this; the real one may still come.
            None => {}
            Some(Answered::Cut) => return ask_stream(server, &question, id, name, kind).await,
            Some(answered) => return Ok(answered),
        }
    }
}

async fn ask_stream(
    server: SocketAddr,
    question: &[u8],
    id: u16,
    name: &str,
    kind: u16,
) -> io::Result<Answered> {
    let mut stream = TcpStream::connect(server).await?;
    let mut framed = (question.len() as u16).to_be_bytes().to_vec();
    framed.extend_from_slice(question);
    stream.write_all(&framed).await?;
    let length = usize::from(stream.read_u16().await?);
    if length > MAX_ANSWER {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let mut message = vec![0; length];
    stream.read_exact(&mut message).await?;
    dns::read_answer(&message, id, name, kind).ok_or_else(|| io::ErrorKind::InvalidData.into())
}
