//! A gate, the network of a sandbox, and the world outside, all on this machine.
//!
//! The gate is a thread in the network of the host. The inside is a network namespace of its own
//! with nothing but a loopback device; a thread in it plays the guest, and clients run in it.

#![allow(clippy::print_stdout, reason = "a test that is skipped says why")]

use std::cell::RefCell;
use std::fs::File;
use std::io::{BufRead, BufReader, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use ringfence_model::gate::{
    Happened, Order, SecretValue, Setup, SocketKind, Traffic, Want, Word, write_setup,
};
use ringfence_model::policy::network::{Effect, NetworkRule, Origin, Reason, Rules};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// BOUND: a test that waits for longer has failed.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The network of a sandbox. A process holds it open.
pub struct Inside {
    holder: Child,
    space: File,
}

impl Inside {
    fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!(
                "SKIPPED a gate with an inside of its own: needs root for a network namespace"
            );
            return None;
        }
        // An address beside 127.0.0.1: where there is none, glibc takes a network for one without
        // IPv4, and who asks for that only (`AI_ADDRCONFIG`) finds no name.
        let mut holder = Command::new("unshare")
            .args([
                "-n",
                "sh",
                "-c",
                "ip link set lo up && ip address add 127.64.0.1/32 dev lo && echo up && read end",
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare is there");
        let mut line = String::new();
        BufReader::new(holder.stdout.take().expect("it is piped"))
            .read_line(&mut line)
            .expect("it says something");
        assert_eq!(line, "up\n");
        let space = File::open(format!("/proc/{}/ns/net", holder.id())).expect("it lives");
        Some(Self { holder, space })
    }

    /// Runs something in a thread inside.
    pub fn spawn<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let space = self.space.try_clone().expect("it is open");
        std::thread::spawn(move || {
            move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network))
                .expect("root may");
            work()
        })
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        self.holder.wait().ok();
    }
}

/// A gate that runs, with its inside.
pub struct Gate {
    pub inside: Inside,
    /// What the inside is to trust, as the gate said it.
    pub authority: Option<String>,
    engine: UnixStream,
    words: Receiver<Word>,
    kept: RefCell<Vec<Word>>,
    resolv: tempfile::NamedTempFile,
}

impl Gate {
    /// Starts a gate and waits until it listens. `None`: not here.
    pub fn start(setup: &Setup) -> Option<Self> {
        Self::start_with(setup, &[])
    }

    pub fn start_with(setup: &Setup, values: &[SecretValue]) -> Option<Self> {
        let inside = Inside::new()?;
        // All sides of all connections of a test are in this one process.
        let mut files = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        files.current = files.maximum;
        rustix::process::setrlimit(rustix::process::Resource::Nofile, files).expect("it may");
        let (mut engine, gates_engine) = UnixStream::pair().expect("sockets");
        let (guest, gates_guest) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .expect("sockets");
        inside.spawn(move || play_guest(&guest));
        std::thread::spawn(move || ringfence_gate::serve(gates_engine, gates_guest));
        write_setup(&mut engine, setup, values).expect("the gate reads");
        let (sender, words) = channel();
        let from = engine.try_clone().expect("it is open");
        std::thread::spawn(move || {
            for line in BufReader::new(from).lines() {
                let Ok(line) = line else { return };
                let word: Word = serde_json::from_str(&line).expect("a word");
                if sender.send(word).is_err() {
                    return;
                }
            }
        });
        let mut resolv = tempfile::NamedTempFile::new().expect("a file");
        resolv
            .write_all(b"nameserver 127.64.0.1\noptions timeout:5 attempts:1\n")
            .expect("room");
        let mut gate = Self {
            inside,
            authority: None,
            engine,
            words,
            kept: RefCell::default(),
            resolv,
        };
        gate.authority = gate.word(|word| match word {
            Word::Ready { authority } => Some(authority.clone()),
            _ => None,
        });
        gate.word(|word| matches!(word, Word::Listening).then_some(()));
        Some(gate)
    }

    /// Waits for a word. Others stay for who waits for them.
    pub fn word<T>(&self, fits: impl Fn(&Word) -> Option<T>) -> T {
        let mut kept = self.kept.borrow_mut();
        let found = kept.iter().enumerate();
        let found = found
            .filter_map(|(at, word)| Some((at, fits(word)?)))
            .next();
        if let Some((at, found)) = found {
            kept.remove(at);
            return found;
        }
        loop {
            match self.words.recv_timeout(PATIENCE) {
                Ok(word) => match fits(&word) {
                    Some(found) => return found,
                    None => kept.push(word),
                },
                Err(error) => panic!("{error}; what was said: {kept:#?}"),
            }
        }
    }

    /// Waits for something that was seen.
    pub fn seen(&self, fits: impl Fn(&Traffic) -> bool) -> Traffic {
        self.word(|word| match word {
            Word::Seen(traffic) if fits(traffic) => Some(traffic.clone()),
            _ => None,
        })
    }

    /// Waits for a denial, and answers its detail and the line that would allow it.
    pub fn denied(&self, host: &str, reason: Reason) -> (String, Option<String>) {
        self.word(|word| match word {
            Word::Seen(traffic) if traffic.host.0 == host.as_bytes() => match &traffic.result {
                Happened::Denied {
                    reason: own,
                    detail,
                    allow,
                } if *own == reason => Some((detail.clone(), allow.clone())),
                _ => None,
            },
            _ => None,
        })
    }

    /// Ends the gate; answers what was seen and not waited for.
    pub fn end(mut self) -> Vec<Traffic> {
        self.order(&Order::End);
        self.word(|word| matches!(word, Word::Ended).then_some(()));
        let kept = self.kept.take().into_iter();
        kept.filter_map(|word| match word {
            Word::Seen(traffic) => Some(traffic),
            _ => None,
        })
        .collect()
    }

    /// The engine is gone.
    pub fn leave(&self) {
        self.engine
            .shutdown(std::net::Shutdown::Both)
            .expect("it is open");
    }

    pub fn order(&mut self, order: &Order) {
        let mut line = serde_json::to_vec(order).expect("it is data");
        line.push(b'\n');
        self.engine.write_all(&line).expect("the gate reads");
    }

    /// New rules; answers how many connections they closed.
    pub fn change(&mut self, rules: Rules) -> u64 {
        self.order(&Order::Rules { rules });
        self.word(|word| match word {
            Word::Changed { closed } => Some(*closed),
            _ => None,
        })
    }

    /// Runs a program inside, with the gate as its name service.
    pub fn run(&self, program: &str, arguments: &[&str]) -> Output {
        let script = "mount --bind \"$0\" /etc/resolv.conf && exec \"$@\"";
        let mut command = Command::new("unshare");
        command
            .args(["-m", "sh", "-c", script])
            .arg(self.resolv.path())
            .arg(program)
            .args(arguments)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .stdin(Stdio::null());
        let running = self.inside.spawn(move || command.output());
        running.join().expect("no panic").expect("it runs")
    }

    /// Runs curl inside: exit code and what it printed, with `-w` for what the test wants to know.
    pub fn curl(&self, arguments: &[&str]) -> (i32, String) {
        let all = [&["-q", "-s", "-S", "-m", "50"], arguments].concat();
        let output = self.run("curl", &all);
        let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.push_str(&String::from_utf8_lossy(&output.stderr));
        (output.status.code().unwrap_or(-1), text)
    }

    /// What a program prints inside, where the program is here.
    pub fn prints(&self, program: &str, arguments: &[&str]) -> Option<String> {
        if Command::new(program).arg("--version").output().is_err() {
            println!("SKIPPED what {program} sees: it is not installed");
            return None;
        }
        let output = self.run(program, arguments);
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// Does something in a thread inside and waits for it.
    pub fn inside<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        self.inside.spawn(work).join().expect("no panic")
    }

    /// Asks the gate for the address of a name, as a resolver would.
    pub fn lookup(&self, name: &str) -> Option<Ipv4Addr> {
        let question = question(name, 1);
        let answer = self.inside(move || ask(&question));
        let code = answer[3] & 15;
        (code == 0 && answer[7] == 1).then(|| {
            let last = &answer[answer.len() - 4..];
            Ipv4Addr::new(last[0], last[1], last[2], last[3])
        })
    }
}

/// A question as resolvers send it.
pub fn question(name: &str, kind: u16) -> Vec<u8> {
    let mut message = vec![7, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        message.push(label.len() as u8);
        message.extend_from_slice(label.as_bytes());
    }
    message.push(0);
    message.extend_from_slice(&kind.to_be_bytes());
    message.extend_from_slice(&[0, 1]);
    message
}

/// Sends a message to the name service; from inside.
pub fn ask(message: &[u8]) -> Vec<u8> {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    socket.set_read_timeout(Some(PATIENCE)).expect("a socket");
    socket
        .send_to(message, "127.64.0.1:53")
        .expect("it is there");
    let mut answer = vec![0; 4096];
    let length = socket.recv(&mut answer).expect("an answer");
    answer.truncate(length);
    answer
}

fn play_guest(socket: &OwnedFd) {
    let mut packet = [0; 64];
    while let Ok((length, _)) =
        rustix::net::recv(socket, &mut packet[..], rustix::net::RecvFlags::empty())
    {
        if length == 0 {
            return;
        }
        let want = Want::decode(&packet[..length]).expect("a want");
        let place = SocketAddr::from((want.address, want.port));
        let made: std::io::Result<OwnedFd> = match want.kind {
            SocketKind::Stream => TcpListener::bind(place).map(OwnedFd::from),
            SocketKind::Datagram => UdpSocket::bind(place).map(OwnedFd::from),
        };
        let number = match &made {
            Ok(_) => 0,
            Err(error) => error.raw_os_error().expect("of the kernel"),
        };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors: Vec<_> = made.iter().map(AsFd::as_fd).collect();
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&descriptors));
        }
        let answer: [u8; 4] = number.to_le_bytes();
        let sent = rustix::net::sendmsg(
            socket,
            &[IoSlice::new(&answer)],
            &mut control,
            SendFlags::NOSIGNAL,
        );
        if sent.is_err() {
            return;
        }
    }
}

/// Rules, each of which may reach the loopback of this machine: the world of a test is there.
pub fn rules(lines: &[&str]) -> Rules {
    Rules(lines.iter().map(|line| rule(line)).collect())
}

pub fn rule(line: &str) -> NetworkRule {
    let mut rule = plain_rule(line);
    rule.addresses = vec!["127.0.0.0/8".parse().expect("a range")];
    rule
}

/// A rule that reaches what rules reach: `deny …`, else it allows.
pub fn plain_rule(line: &str) -> NetworkRule {
    let (effect, line) = match line.strip_prefix("deny ") {
        Some(line) => (Effect::Deny, line),
        None => (Effect::Allow, line),
    };
    let from = Origin {
        file: "test.toml".to_owned(),
        line: 1,
    };
    NetworkRule::parse(effect, line, from).expect("a rule")
}

/// A setup whose names the world knows.
pub fn setup(rules: Rules, world: &World) -> Setup {
    Setup {
        rules,
        name_servers: vec![world.address],
        ..Setup::default()
    }
}

/// A name server outside that knows some names, and remembers what it was asked.
pub struct World {
    pub address: SocketAddr,
    asked: Receiver<String>,
}

impl World {
    /// Each name has these addresses, one answer after the other; the last one stays.
    pub fn new(names: &[(&str, &[&str])]) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let address = socket.local_addr().expect("it is bound");
        let mut names: Vec<(String, Vec<Ipv4Addr>)> = names
            .iter()
            .map(|(name, all)| {
                let all = all.iter().map(|text| text.parse().expect("an address"));
                ((*name).to_owned(), all.collect())
            })
            .collect();
        let (sender, asked) = channel();
        std::thread::spawn(move || {
            let mut message = [0; 1024];
            while let Ok((length, from)) = socket.recv_from(&mut message) {
                let (name, kind) = read_name(&message[..length]);
                let mut answer = message[..length].to_vec();
                answer[2] |= 0x80;
                let known = names.iter_mut().find(|(own, _)| {
                    *own == name || own.strip_prefix('*').is_some_and(|end| name.ends_with(end))
                });
                match known {
                    None => answer[3] = 3,
                    Some((_, all)) if kind == 1 => {
                        answer[7] = 1;
                        answer.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4]);
                        answer.extend_from_slice(&all[0].octets());
                        if all.len() > 1 {
                            all.remove(0);
                        }
                    }
                    Some(_) => {}
                }
                sender.send(name).ok();
                socket.send_to(&answer, from).ok();
            }
        });
        Self { address, asked }
    }

    /// What it was asked until now.
    pub fn asked(&self) -> Vec<String> {
        self.asked.try_iter().collect()
    }
}

fn read_name(message: &[u8]) -> (String, u16) {
    let mut labels = Vec::new();
    let mut at = 12;
    while message[at] != 0 {
        let length = usize::from(message[at]);
        labels.push(String::from_utf8_lossy(&message[at + 1..=at + length]).into_owned());
        at += length + 1;
    }
    let kind = u16::from_be_bytes([message[at + 1], message[at + 2]]);
    (labels.join("."), kind)
}

/// A server outside, on the loopback of the host: each connection is served in a thread.
pub fn server(serve: impl Fn(std::net::TcpStream) + Send + Sync + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("it is bound").port();
    let serve = std::sync::Arc::new(serve);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = serve.clone();
            std::thread::spawn(move || serve(stream));
        }
    });
    port
}

/// A server that sends back what comes, until the end.
pub fn echo_server() -> u16 {
    server(|mut stream| {
        let mut reader = stream.try_clone().expect("it is open");
        std::io::copy(&mut reader, &mut stream).ok();
        stream.shutdown(std::net::Shutdown::Write).ok();
    })
}

/// Connects from inside and does something with the connection.
pub fn connect(address: IpAddr, port: u16) -> std::io::Result<std::net::TcpStream> {
    let stream = std::net::TcpStream::connect((address, port))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Reads to the end, also where the other side breaks off.
pub fn read_all(stream: &mut std::net::TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    let mut part = [0; 4096];
    while let Ok(length @ 1..) = stream.read(&mut part) {
        all.extend_from_slice(&part[..length]);
    }
    all
}

/// Whether curl is here.
pub fn has_curl() -> bool {
    let there = Command::new("curl").arg("-V").output().is_ok();
    if !there {
        println!("SKIPPED what curl sees: curl is not installed");
    }
    there
}

/// A server that keeps what each connection sent, until its end.
pub fn recorder() -> (u16, Receiver<Vec<u8>>) {
    let (sender, received) = channel();
    let sender = std::sync::Mutex::new(sender);
    let port = server(move |mut stream| {
        let all = read_all(&mut stream);
        sender.lock().expect("no panic").send(all).ok();
    });
    (port, received)
}

/// A web server with TLS for one name, and the certificate that clients trust for it.
pub fn tls_server(name: &str) -> (u16, tempfile::NamedTempFile) {
    let own = rcgen::generate_simple_self_signed(vec![name.to_owned()]).expect("a certificate");
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(own.cert.pem().as_bytes()).expect("room");
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(own.signing_key.serialize_der());
    let config = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![own.cert.der().clone()], key.into())
        .expect("they fit");
    let config = std::sync::Arc::new(config);
    let port = server(move |stream| {
        let connection = rustls::ServerConnection::new(config.clone()).expect("it fits");
        let mut stream = rustls::StreamOwned::new(connection, stream);
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") {
            if stream.read_exact(&mut byte).is_err() {
                return;
            }
            head.push(byte[0]);
        }
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nhello\n";
        stream.write_all(answer).ok();
        stream.conn.send_close_notify();
        stream.flush().ok();
    });
    (port, file)
}

/// The hello of a real client, with or without a name in it.
pub fn hello(name: Option<&str>) -> Vec<u8> {
    let config = rustls::ClientConfig::builder()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let name = match name {
        Some(name) => name.to_owned().try_into().expect("a name"),
        None => rustls::pki_types::ServerName::from(IpAddr::V4(Ipv4Addr::LOCALHOST)),
    };
    let mut client = rustls::ClientConnection::new(config.into(), name).expect("it fits");
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).expect("room");
    bytes
}
