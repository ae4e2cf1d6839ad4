//! The gate of a sandbox, seen from the host: started with its rules, heard, told, and ended.
//!
//! A sandbox without anything to reach has none. Where a gate dies, its sandbox loses the network
//! and nothing else.

mod name_servers;

use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ringfence_jail::facts::HostFacts;
use ringfence_jail::plan::{self, GateSpec};
use ringfence_model::ByteText;
use ringfence_model::gate::{
    GATE_ADDRESS, MAX_LINE, Order, PROXY_PORT, SecretValue, Setup, Traffic, Word, write_setup,
};
use ringfence_model::journal::Event;
use ringfence_model::policy::Effective;
use ringfence_model::policy::network::Rules;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::clock::ms_since;
use crate::guard::Guard;
use crate::home::Home;
use crate::presets::{self, PresetError};
use crate::secrets::{self, SecretError};

/// BOUND: a gate answers at once or is not there.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);
/// BOUND: what a gate has still to say when its sandbox is over. It waits for connections itself.
const END_WITHIN: Duration = Duration::from_secs(20);
/// BOUND: read at once.
const CHUNK: usize = 65536;

/// What of the caller's environment a gate gets: where the certificates are that it trusts.
const KEPT: [&str; 2] = ["SSL_CERT_FILE", "SSL_CERT_DIR"];

/// Why there is no gate.
#[derive(Debug, thiserror::Error)]
pub enum GateError {
    #[error("cannot start the gate `{program}`")]
    Start {
        program: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the gate did not answer")]
    Silent,
    #[error("cannot talk to the gate")]
    Talk(#[source] io::Error),
    #[error("the gate does not keep to the protocol")]
    Protocol(#[source] serde_json::Error),
    #[error("cannot write the certificates that the sandbox trusts to `{path}`")]
    Trust {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error(transparent)]
    Preset(#[from] PresetError),
}

/// A running gate. Dropping it ends it.
#[derive(Debug)]
pub struct Gate {
    child: Child,
    socket: UnixStream,
    incoming: Vec<u8>,
    /// Where the certificates go that the inside trusts.
    trust: Option<PathBuf>,
    /// What the inside needs to know of it.
    env: Vec<(ByteText, ByteText)>,
    guard: Guard,
}

/// What the launch of the sandbox needs of its gate.
#[derive(Debug)]
pub struct Handover {
    /// Goes to the guest.
    pub socket: OwnedFd,
    pub spec: GateSpec,
}

impl Gate {
    /// Starts the gate that a policy asks for; none where there is nothing to reach. `program` is
    /// this program, `place` a directory of the sandbox's own.
    pub fn open(
        home: &Home,
        program: &Path,
        policy: &Effective,
        place: &Path,
    ) -> Result<Option<(Self, Handover)>, GateError> {
        if policy.network.is_offline() {
            return Ok(None);
        }
        let began = Instant::now();
        let secrets = secrets::load(&policy.secrets)?;
        let guard = Guard::of(&secrets);
        let (bound, values): (Vec<_>, Vec<_>) = secrets.into_iter().unzip();
        let setup = Setup {
            rules: policy.network.rules.clone(),
            mocks: policy.network.mocks.clone(),
            secrets: bound,
            indexes: policy.network.indexes.clone(),
            cache: policy.network.cache.then(|| home.artefacts()),
            ..Setup::default()
        };
        let clients = presets::clients(&setup.indexes)?;
        let (mut gate, mut handover) = Self::start(program, &setup, &values, guard, place)?;
        let variable = |(name, value): &(&str, String)| ((*name).into(), value.as_str().into());
        gate.env.extend(clients.env.iter().map(variable));
        handover.spec.staged = clients.staged;
        // Counts only: neither names nor values of secrets are for a log.
        tracing::debug!(
            pid = gate.child.id(),
            secrets = values.len(),
            ms = ms_since(began),
            "gate opened"
        );
        Ok(Some((gate, handover)))
    }

    fn start(
        program: &Path,
        setup: &Setup,
        values: &[SecretValue],
        guard: Guard,
        place: &Path,
    ) -> Result<(Self, Handover), GateError> {
        let fail = |source: io::Error| GateError::Start {
            program: program.to_owned(),
            source,
        };
        let (socket, theirs) = UnixStream::pair().map_err(fail)?;
        let (asking, asked) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(|errno| fail(errno.into()))?;
        let kept = KEPT
            .iter()
            .filter_map(|name| std::env::var_os(name).map(|value| (name, value)));
        let child = Command::new(program)
            .arg("gate")
            .env_clear()
            .envs(kept)
            .current_dir("/")
            .stdin(OwnedFd::from(theirs))
            .stdout(asking)
            .stderr(Stdio::null())
            // What interrupts the run in a terminal is not meant for it.
            .process_group(0)
            .spawn()
            .map_err(fail)?;
        let mut gate = Self {
            child,
            socket,
            incoming: Vec::new(),
            trust: setup.looks_inside().then(|| place.join("ca.pem")),
            env: environment(setup),
            guard,
        };
        let mut begin = Vec::new();
        write_setup(&mut begin, setup, values).map_err(GateError::Talk)?;
        let sent = gate.socket.write_all(&begin);
        zeroize::Zeroize::zeroize(&mut begin);
        sent.map_err(GateError::Talk)?;
        if let Some(path) = &gate.trust {
            // Shown inside as soon as there is an inside, filled before anything runs there.
            std::fs::File::create(path).map_err(|source| trust_error(path, source))?;
        }
        let spec = GateSpec {
            name_server: GATE_ADDRESS,
            trust: gate.trust.clone(),
            staged: Vec::new(),
        };
        let handover = Handover {
            socket: asked,
            spec,
        };
        Ok((gate, handover))
    }

    /// Waits until it answers.
    pub fn ready(&mut self) -> Result<(), GateError> {
        let deadline = Instant::now() + ANSWER_WITHIN;
        let Some(Word::Ready { authority }) = self.next(deadline)? else {
            return Err(GateError::Silent);
        };
        let Some(Word::Listening) = self.next(deadline)? else {
            return Err(GateError::Silent);
        };
        let (Some(path), Some(authority)) = (&self.trust, authority) else {
            return Ok(());
        };
        let fail = |source| trust_error(path, source);
        let facts = HostFacts::gather().map_err(fail)?;
        let mut trusted = facts.trusted().map_err(fail)?;
        trusted.extend_from_slice(b"\n");
        trusted.extend_from_slice(authority.as_bytes());
        std::fs::write(path, trusted).map_err(fail)
    }

    /// Variables that lead the inside to it, and placeholders of secrets.
    pub fn environment(&self) -> &[(ByteText, ByteText)] {
        &self.env
    }

    /// Finds the values that must be nowhere else.
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    /// To be waited on; readable when there may be a word.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// New rules from now on; gives how many connections they closed, and what was said meanwhile.
    pub fn change(&mut self, rules: Rules) -> Result<(u64, Vec<Traffic>), GateError> {
        self.order(&Order::Rules { rules })?;
        let deadline = Instant::now() + ANSWER_WITHIN;
        let mut seen = Vec::new();
        loop {
            match self.next(deadline)? {
                Some(Word::Changed { closed }) => return Ok((closed, seen)),
                Some(Word::Seen(traffic)) => seen.push(traffic),
                Some(_) => {}
                None => return Err(GateError::Silent),
            }
        }
    }

    fn order(&mut self, order: &Order) -> Result<(), GateError> {
        let mut line = serde_json::to_vec(order).map_err(GateError::Protocol)?;
        line.push(b'\n');
        self.socket.write_all(&line).map_err(GateError::Talk)
    }

    /// What has been said, without waiting; an error when the gate is gone.
    pub fn receive(&mut self) -> Result<Vec<Traffic>, GateError> {
        let now = Instant::now();
        let mut seen = Vec::new();
        while let Some(word) = self.next(now)? {
            match word {
                Word::Seen(traffic) => seen.push(traffic),
                Word::NameServersWanted => {
                    let servers = name_servers::of_host();
                    self.order(&Order::NameServers { servers })?;
                }
                _ => {}
            }
        }
        Ok(seen)
    }

    /// Has it say what it has not said yet, and ends it. What it could not say is told as well.
    pub fn end(mut self) -> Vec<Event> {
        let began = Instant::now();
        let mut events = Vec::new();
        if let Err(error) = self.last_words(&mut events) {
            tracing::warn!(%error, "gate did not say all");
            let detail = format!("at the end, not all was said: {error}");
            events.push(Event::GateLost { detail });
        }
        let pid = self.child.id();
        tracing::debug!(
            pid,
            unsaid = events.len(),
            ms = ms_since(began),
            "gate ended"
        );
        events
    }

    fn last_words(&mut self, events: &mut Vec<Event>) -> Result<(), GateError> {
        let deadline = Instant::now() + END_WITHIN;
        self.order(&Order::End)?;
        loop {
            match self.next(deadline)? {
                Some(Word::Seen(traffic)) => events.push(Event::Network(traffic)),
                Some(Word::Ended) => return Ok(()),
                Some(_) => {}
                None => return Err(GateError::Silent),
            }
        }
    }

    /// The next word; `None` when none came in time.
    fn next(&mut self, deadline: Instant) -> Result<Option<Word>, GateError> {
        loop {
            if let Some(end) = memchr::memchr(b'\n', &self.incoming) {
                let word = serde_json::from_slice(&self.incoming[..end]);
                self.incoming.drain(..=end);
                return word.map(Some).map_err(GateError::Protocol);
            }
            if self.incoming.len() > MAX_LINE {
                return Err(GateError::Talk(io::ErrorKind::FileTooLarge.into()));
            }
            let wait = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec {
                tv_sec: wait.as_secs() as i64,
                tv_nsec: i64::from(wait.subsec_nanos()),
            };
            let mut waits = [PollFd::new(&self.socket, PollFlags::IN)];
            match rustix::event::poll(&mut waits, Some(&timeout)) {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(GateError::Talk(errno.into())),
            }
            let mut chunk = vec![0; CHUNK];
            match io::Read::read(&mut self.socket, &mut chunk) {
                Ok(0) => return Err(GateError::Talk(io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => self.incoming.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(GateError::Talk(error)),
            }
        }
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn trust_error(path: &Path, source: io::Error) -> GateError {
    GateError::Trust {
        path: path.to_owned(),
        source,
    }
}

/// Clients find hosts without any of this. Through the proxy they can say why one is refused.
const PROXIES: [&str; 6] = [
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
];
const NO_PROXIES: [&str; 2] = ["NO_PROXY", "no_proxy"];

/// Where clients look for certificates that do not ask the system.
const TRUSTS: [&str; 10] = [
    "SSL_CERT_FILE",
    "NODE_EXTRA_CA_CERTS",
    "REQUESTS_CA_BUNDLE",
    "PIP_CERT",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "CARGO_HTTP_CAINFO",
    "AWS_CA_BUNDLE",
    "DENO_CERT",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
];

fn environment(setup: &Setup) -> Vec<(ByteText, ByteText)> {
    let proxy = format!("http://{GATE_ADDRESS}:{PROXY_PORT}");
    let trust = format!("/{}", plan::TRUST);
    let none = "localhost,127.0.0.1,::1";
    let mut env: Vec<(&str, &str)> = Vec::new();
    env.extend(PROXIES.map(|name| (name, proxy.as_str())));
    env.extend(NO_PROXIES.map(|name| (name, none)));
    if setup.looks_inside() {
        env.extend(TRUSTS.map(|name| (name, trust.as_str())));
    }
    let placeholders = setup
        .secrets
        .iter()
        .map(|secret| (secret.name.as_str(), secret.placeholder.as_str()));
    env.into_iter()
        .chain(placeholders)
        .map(|(name, value)| (ByteText::from(name), ByteText::from(value)))
        .collect()
}
