//! From a name to its addresses: by the host's own means, or by name servers that the setup names.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ringfence_model::gate::Word;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use crate::dns::{self, Answered};
use crate::words::Words;

/// BOUND: how long a name may take to be found, and one name server to answer.
const RESOLVE_TIME: Duration = Duration::from_secs(10);
const SERVER_TIME: Duration = Duration::from_secs(3);
/// BOUND: different names below wildcards that are looked up in a minute: whoever has the zone sees
/// each of them, so they are a way out.
const MAX_NEW_NAMES: usize = 60;
/// BOUND: an answer of a name server over TCP.
const MAX_ANSWER: usize = 16 << 10;

/// BOUND: how long the engine may take to say which name servers the host has now.
const ENGINE_TIME: Duration = Duration::from_secs(2);
/// Where the C library finds name servers.
const HOST_LIST: &str = "/etc/resolv.conf";

pub(crate) struct Resolver {
    /// Empty: the host's own means are used.
    servers: RefCell<Vec<SocketAddr>>,
    /// The host's list of name servers; `None` where the setup names some.
    list: Option<PathBuf>,
    /// Which list that could not be read the engine was asked about: device and inode.
    asked_about: Cell<Option<(u64, u64)>>,
    answered: Notify,
    minute: Cell<Instant>,
    /// Names below wildcards that were looked up in this minute.
    asked: RefCell<HashSet<String>>,
}

impl Resolver {
    pub(crate) fn new(servers: &[SocketAddr]) -> Self {
        Self {
            servers: RefCell::new(servers.to_vec()),
            list: servers.is_empty().then(|| PathBuf::from(HOST_LIST)),
            asked_about: Cell::default(),
            answered: Notify::new(),
            minute: Cell::new(Instant::now()),
            asked: RefCell::default(),
        }
    }

    /// Asks the engine for name servers where the host's list was replaced.
    ///
    /// Landlock allows files and not their names. A list that another takes the place of, as network managers do with
    /// each new network, cannot be read any more, and the C library would take it for an empty one.
    pub(crate) async fn follow_host(&self, words: &Words) {
        let Some(replaced) = self.list.as_deref().and_then(identity_if_closed) else {
            return;
        };
        if self.asked_about.get() == Some(replaced) {
            return;
        }
        let answered = self.answered.notified();
        tokio::pin!(answered);
        answered.as_mut().enable();
        words.say(Word::NameServersWanted).await;
        if timeout(ENGINE_TIME, answered).await.is_ok() {
            self.asked_about.set(Some(replaced));
        }
    }

    pub(crate) fn use_servers(&self, servers: Vec<SocketAddr>) {
        self.servers.replace(servers);
        self.answered.notify_waiters();
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
            let servers = self.servers.borrow().clone();
            if servers.is_empty() {
                // As every program of the host would find it: files, caches, split zones.
                let found = tokio::net::lookup_host((name, 0)).await?;
                return Ok(found.map(|found| found.ip()).collect());
            }
            let (four, six) =
                tokio::join!(ask(&servers, name, dns::A), ask(&servers, name, dns::AAAA));
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
}

/// Device and inode of a file that is there and must not be read.
fn identity_if_closed(file: &Path) -> Option<(u64, u64)> {
    let error = File::open(file).err()?;
    let metadata = file.metadata().ok()?;
    (error.kind() == io::ErrorKind::PermissionDenied).then(|| (metadata.dev(), metadata.ino()))
}

async fn ask(servers: &[SocketAddr], name: &str, kind: u16) -> io::Result<Vec<IpAddr>> {
    let mut last = io::Error::other("there is no name server");
    for server in servers {
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use tokio::io::AsyncBufReadExt as _;

    use super::*;

    /// A name server that answers by this function: what it gets, what it sends.
    async fn server(answer: fn(&[u8]) -> Vec<Vec<u8>>) -> SocketAddr {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        tokio::spawn(async move {
            let mut message = [0; 512];
            while let Ok((length, from)) = socket.recv_from(&mut message).await {
                for answer in answer(&message[..length]) {
                    socket.send_to(&answer, from).await.unwrap();
                }
            }
        });
        address
    }

    fn with_address(question: &[u8], last: u8) -> Vec<u8> {
        let mut answer = question.to_vec();
        answer[2] |= 0x80;
        if answer[answer.len() - 3] == dns::A as u8 {
            answer[7] = 1;
            answer.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4, 10, 0, 0, last]);
        }
        answer
    }

    #[tokio::test]
    async fn only_the_answer_to_the_question_is_taken() {
        // HOSTILE: another number, another name, no answer at all; and then the real one.
        let address = server(|question| {
            let mut number = with_address(question, 66);
            number[0] ^= 1;
            let mut name = with_address(question, 66);
            name[13] ^= 1;
            vec![number, name, vec![0; 3], with_address(question, 1)]
        });
        let resolver = Resolver::new(&[address.await]);
        let found = resolver.resolve("a.test").await.unwrap();
        assert_eq!(found, [IpAddr::from([10, 0, 0, 1])]);
    }

    #[test]
    fn replaced_list_of_name_servers_is_asked_for_once() {
        if !rustix::process::geteuid().is_root() {
            println!(
                "SKIPPED a list that the gate may not read: needs root to become another user"
            );
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let list = folder.path().join("resolv.conf");
        let replace = |mode| {
            std::fs::write(folder.path().join("next"), "nameserver 127.0.0.1\n").unwrap();
            let mode = PermissionsExt::from_mode(mode);
            std::fs::set_permissions(folder.path().join("next"), mode).unwrap();
            std::fs::rename(folder.path().join("next"), &list).unwrap();
        };
        replace(0o644);
        let (go_on, wait) = std::sync::mpsc::channel();
        let (seen, next) = std::sync::mpsc::channel();
        let path = list.clone();
        let gate = std::thread::spawn(move || {
            crate::privileges::give_up().unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let mut resolver = Resolver::new(&[]);
                resolver.list = Some(path);
                let (words, queue) = crate::words::queue();
                let (engine, gate) = tokio::io::duplex(1 << 16);
                let mut said = tokio::io::BufReader::new(engine).lines();
                let engine = async {
                    while let Ok(Some(line)) = said.next_line().await {
                        assert!(line.contains("name_servers_wanted"), "{line}");
                        resolver.use_servers(vec!["127.0.0.9:53".parse().unwrap()]);
                        seen.send(()).unwrap();
                    }
                };
                let asking = async {
                    for () in wait {
                        resolver.follow_host(&words).await;
                        resolver.follow_host(&words).await;
                        seen.send(()).unwrap();
                    }
                    drop(words);
                };
                tokio::join!(engine, asking, queue.write_to(gate))
                    .2
                    .unwrap();
            });
        });
        let signs = |expected: usize| {
            go_on.send(()).unwrap();
            for _ in 0..expected {
                next.recv_timeout(Duration::from_secs(30)).unwrap();
            }
            assert!(next.try_recv().is_err());
        };
        // It can be read; twice it cannot.
        signs(1);
        replace(0o600);
        signs(2);
        replace(0o600);
        signs(2);
        drop(go_on);
        gate.join().unwrap();
    }

    #[tokio::test]
    async fn what_does_not_fit_is_asked_for_over_tcp() {
        let address = server(|question| {
            let mut cut = with_address(question, 66);
            cut[2] |= 2;
            vec![cut]
        })
        .await;
        let listener = tokio::net::TcpListener::bind(address).await.unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let length = stream.read_u16().await.unwrap();
                let mut question = vec![0; usize::from(length)];
                stream.read_exact(&mut question).await.unwrap();
                let answer = with_address(&question, 2);
                stream.write_u16(answer.len() as u16).await.unwrap();
                stream.write_all(&answer).await.unwrap();
            }
        });
        let found = Resolver::new(&[address]).resolve("a.test").await.unwrap();
        assert_eq!(found, [IpAddr::from([10, 0, 0, 2])]);
    }

    #[tokio::test]
    async fn a_name_that_is_not_there_is_not_asked_for_twice() {
        let nobody = server(|question| {
            let mut answer = question.to_vec();
            answer[2] |= 0x80;
            answer[3] = 3;
            vec![answer]
        });
        let other = server(|question| vec![with_address(question, 3)]);
        let failing = server(|question| {
            let mut answer = question.to_vec();
            answer[2] |= 0x80;
            answer[3] = 2;
            vec![answer]
        });
        let (nobody, other, failing) = (nobody.await, other.await, failing.await);
        let resolver = Resolver::new(&[nobody, other]);
        let error = resolver.resolve("a.test").await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        // A server that fails has another after it.
        let found = Resolver::new(&[failing, other]).resolve("a.test").await;
        assert_eq!(found.unwrap(), [IpAddr::from([10, 0, 0, 3])]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_dead_name_server_is_not_waited_for() {
        let dead = server(|_| Vec::new()).await;
        let began = Instant::now();
        let error = Resolver::new(&[dead, dead])
            .resolve("a.test")
            .await
            .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(began.elapsed() <= RESOLVE_TIME + Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn names_below_wildcards_have_a_minute() {
        let resolver = Resolver::new(&[]);
        for number in 0..MAX_NEW_NAMES {
            assert!(resolver.may_ask(&format!("{number}.test")));
        }
        assert!(!resolver.may_ask("one-more.test"));
        assert!(resolver.may_ask("0.test"));
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(resolver.may_ask("one-more.test"));
    }
}
