//! What a backend enforces on this host, found by starting a sandbox and trying: a claim that an attack
//! gets past is no guarantee.

use std::fs;
use std::io::IoSlice;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ringfence_jail::identity::Identity;
use ringfence_jail::launch::identity_for;
use ringfence_jail::plan::{Access, Area, GateSpec, Holds, Root, Runs, Spec, WorkspaceSpec};
use ringfence_model::ByteText;
use ringfence_model::gate::{GATE_ADDRESS, SocketKind, Want};
use ringfence_model::guarantees::{Guarantee, Guarantees};
use ringfence_model::journal::Event;
use ringfence_model::limits::{Grade, Limit, Limits};
use ringfence_model::observed::Observed;
use ringfence_model::outcome::Outcome;
use ringfence_model::wire::{Exec, Leftovers, OutputMode, Stdin, Wall};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, SocketFlags,
    SocketType,
};

use super::{Backend, BackendError, Start};
use crate::attend::{Console, Inputs, Records, Witness, attend};
use crate::client::Stream;
use crate::error::Error;
use crate::home::Home;
use crate::ids::RunId;
use crate::journal::JournalError;
use crate::lock::RunLock;
use crate::output::Spool;
use crate::run::{HOSTNAME, discard_layer, environment};
use crate::sandbox::{Sandbox, SandboxError};
use crate::watch::DiskWatch;

/// BOUND: what an attack on memory gets past where nothing holds it.
const MEMORY: u64 = 48 << 20;
/// BOUND: the same of processes.
const PROCESSES: u64 = 24;
/// BOUND: each attempt ends at once, or by its bound.
const SECONDS: u64 = 20;

/// What was seen.
#[derive(Clone, Debug)]
pub struct Seen {
    pub guarantees: Guarantees,
    /// From the wish for a sandbox until it had proven itself.
    pub start: Duration,
    /// How many things that must fail were tried from inside before.
    pub probes: usize,
}

/// Starts a sandbox and tries what must not work in it: on the host's own system, or on an image.
pub fn probe(home: &Home, backend: &dyn Backend, image: Option<&str>) -> Result<Seen, Error> {
    let root = match image.map(|name| (name, backend.image(name))) {
        None => Root::Host,
        Some((_, Some(found))) => Root::Foreign(found.map_err(SandboxError::Backend)?.id),
        Some((_, None)) => {
            return Err(Error::Sandbox(SandboxError::Backend(
                BackendError::DoesNotHold {
                    backend: backend.name(),
                    what: "an image of another engine",
                },
            )));
        }
    };
    let scene = Scene::make(home, root)?;
    let mut guarantees = Guarantees::none();
    // With all that can be asked for; what is refused is left out.
    let mut asked = Asked {
        areas: true,
        gate: true,
    };
    let (mut sandbox, gate, start, probes) = loop {
        let began = Instant::now();
        match scene.start(backend, asked) {
            Ok((sandbox, gate, probes)) => break (sandbox, gate, began.elapsed(), probes),
            Err(error) if is_not_held(&error) && asked != Asked::default() => {
                asked = asked.less();
            }
            Err(error) => return Err(error),
        }
    };
    guarantees.set(
        Guarantee::Files,
        if asked.areas { "areas" } else { "whole" },
    );
    if gate.is_some_and(|gate| gives_sockets(&gate)) {
        guarantees.set(Guarantee::Network, "gate");
    }
    let wall = match sandbox.wall() {
        Wall::Full => "full",
        Wall::Partial => "partial",
        Wall::Absent => "absent",
    };
    guarantees.set(Guarantee::Landlock, wall);
    let looked = scene.run(&mut sandbox, "exec cat /proc/version")?;
    let own = fs::read("/proc/version").unwrap_or_default();
    // Another machine's kernel is not its own: all sandboxes there have it.
    if backend.has_kernels() && looked.stdout != own && !looked.stdout.is_empty() {
        guarantees.set(Guarantee::Kernel, "separate");
    }
    if looked.execs >= 2 {
        guarantees.set(Guarantee::Observation, "verified");
    }
    let graded = |sandbox: &Sandbox, limit: Limit| {
        let graded = sandbox.grades().iter().find(|one| one.limit == limit);
        match graded.map(|one| one.grade) {
            Some(Grade::Hard) => "hard",
            Some(Grade::Watched) => "watched",
            _ => "absent",
        }
    };
    // What keeps the last so many bytes needs as much memory.
    let memory = graded(&sandbox, Limit::Memory);
    let storm = format!("for n in $(seq {}); do sleep 5 & done", 4 * PROCESSES);
    let storm = (storm, graded(&sandbox, Limit::Processes));
    let hog = format!(
        "head -c {0} /dev/zero | tail -c {0} > /dev/null",
        6 * MEMORY
    );
    if !scene.run(&mut sandbox, &storm.0)?.succeeded {
        guarantees.set(Guarantee::Processes, storm.1);
    }
    match scene.run(&mut sandbox, &hog) {
        Ok(ran) if ran.succeeded => {}
        // A sandbox that goes down with its memory is held as well.
        Ok(_) | Err(Error::Client(_)) => guarantees.set(Guarantee::Memory, memory),
        Err(error) => return Err(error),
    }
    sandbox.end().map_err(Error::Wait)?;
    Ok(Seen {
        guarantees,
        start,
        probes,
    })
}

/// Whether a backend said that it cannot hold what was asked for.
pub(super) fn is_not_held(error: &Error) -> bool {
    matches!(
        error,
        Error::Sandbox(SandboxError::Backend(BackendError::DoesNotHold { .. }))
    )
}

/// What a sandbox is started with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Asked {
    areas: bool,
    gate: bool,
}

impl Asked {
    /// The next that is worth trying.
    fn less(self) -> Self {
        match (self.areas, self.gate) {
            (true, true) => Self {
                areas: false,
                gate: true,
            },
            (false, true) => Self {
                areas: true,
                gate: false,
            },
            _ => Self::default(),
        }
    }
}

/// A folder of our own with layers, removed with it.
struct Scene<'a> {
    home: &'a Home,
    id: RunId,
    identity: Identity,
    limits: Limits,
    root: Root,
    _lock: RunLock,
}

impl<'a> Scene<'a> {
    fn make(home: &'a Home, root: Root) -> Result<Self, Error> {
        let id = RunId::random()?;
        let lock = RunLock::create(home, id)?;
        let place = home.workspace(id);
        let folder = place.join("folder");
        let failed = |path: &PathBuf| {
            let path = path.clone();
            move |source| Error::WriteFile { path, source }
        };
        let own = fs::create_dir_all(folder.join("w")).and_then(|()| fs::File::open(&folder));
        let own = own.map_err(failed(&folder))?;
        let identity = identity_for(own.as_fd()).map_err(failed(&folder))?;
        for path in [place, home.mask(id), home.upper(id), home.work(id)] {
            let made = fs::create_dir_all(&path)
                .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o755)))
                .and_then(|()| match identity {
                    Identity::Range { .. } => {
                        let (uid, gid) = identity.agent_on_host();
                        std::os::unix::fs::chown(&path, Some(uid), Some(gid))
                    }
                    _ => Ok(()),
                });
            made.map_err(failed(&path))?;
        }
        let limits = Limits {
            memory_bytes: Some(MEMORY),
            processes: PROCESSES,
            time_seconds: Some(SECONDS),
            ..Limits::for_host(ringfence_jail::total_memory_bytes())
        };
        Ok(Self {
            home,
            id,
            identity,
            limits,
            root,
            _lock: lock,
        })
    }

    fn start(
        &self,
        backend: &dyn Backend,
        asked: Asked,
    ) -> Result<(Sandbox, Option<OwnedFd>, usize), Error> {
        let area = |path: &str, access| Area {
            path: path.into(),
            access,
        };
        let areas = [area("", Access::ReadOnly), area("w", Access::Write)];
        let (asking, answering) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(|errno| Error::Wait(errno.into()))?;
        let spec = Spec {
            identity: self.identity.clone(),
            runs: Runs::Agent,
            hostname: HOSTNAME.to_owned(),
            root: self.root.clone(),
            workspace: WorkspaceSpec {
                lower: vec![self.home.mask(self.id), self.folder()],
                below: Vec::new(),
                layer: self.home.workspace(self.id),
                holds: Holds::Folder,
                inside: PathBuf::from(crate::keeper::INSIDE),
                objects: Vec::new(),
                tools: None,
                areas: areas.into_iter().filter(|_| asked.areas).collect(),
            },
            overlays: Vec::new(),
            mounts: Vec::new(),
            tmpfs: Vec::new(),
            tmpfs_bytes: MEMORY / 2,
            gate: asked.gate.then(|| GateSpec {
                name_server: GATE_ADDRESS,
                trust: None,
                staged: Vec::new(),
            }),
        };
        let start = Start {
            name: self.id.as_str(),
            spec: &spec,
            limits: &self.limits,
            gate: asked.gate.then(|| answering.as_fd()),
        };
        let mut sandbox = Sandbox::start(backend, &start)?;
        let probes = sandbox.prove(&self.home.canary())?.len();
        Ok((sandbox, asked.gate.then_some(asking), probes))
    }

    fn folder(&self) -> PathBuf {
        self.home.workspace(self.id).join("folder")
    }

    /// Runs a line of shell to its end.
    fn run(&self, sandbox: &mut Sandbox, line: &str) -> Result<Ran, Error> {
        let exec = Exec {
            argv: ["/bin/sh", "-ec", line].map(ByteText::from).to_vec(),
            env: environment(&[]),
            cwd: "/tmp".into(),
            stdin: Stdin::Empty,
            terminal: None,
            timeout_ms: Some(SECONDS * 1000),
            output: OutputMode::Attached,
            leftovers: Leftovers::Kill,
        };
        let mut ran = Ran::default();
        let mut execs = Execs(0);
        let records = Records {
            spool: &mut Spool::ends_only(),
            disk: &mut DiskWatch::new(&self.home.upper(self.id), &self.limits)?,
            witness: &mut execs,
            gate: &mut None,
        };
        let inputs = Inputs::default();
        let attended = attend(sandbox, exec, &self.limits, records, &inputs, &mut ran)?;
        ran.succeeded = attended.outcome == Outcome::Exited && attended.code == Some(0);
        ran.execs = execs.0;
        Ok(ran)
    }
}

impl Drop for Scene<'_> {
    fn drop(&mut self) {
        super::sweep(self.home, self.id.as_str());
        discard_layer(self.home, self.id);
    }
}

/// What came of an attempt.
#[derive(Default)]
struct Ran {
    stdout: Vec<u8>,
    succeeded: bool,
    execs: usize,
}

impl Console for Ran {
    fn output(&mut self, stream: Stream, bytes: &[u8]) {
        // BOUND: one line is looked at.
        if stream == Stream::Stdout && self.stdout.len() < 4096 {
            self.stdout.extend_from_slice(bytes);
        }
    }
}

/// Counts what was seen to be executed.
struct Execs(usize);

impl Witness for Execs {
    fn observed(&mut self, observed: Observed) -> Result<(), JournalError> {
        if let Observed::Exec(_) = observed {
            self.0 += 1;
        }
        Ok(())
    }

    fn network(&mut self, _: Event) -> Result<(), JournalError> {
        Ok(())
    }

    fn idle(&mut self) {}
}

/// Asks the guest for a socket, as a gate would.
fn gives_sockets(gate: &OwnedFd) -> bool {
    // BOUND: the guest answers at once.
    let wait = Timespec {
        tv_sec: 5,
        tv_nsec: 0,
    };
    let want = Want {
        kind: SocketKind::Stream,
        address: Ipv4Addr::new(127, 99, 0, 1),
        port: 443,
    };
    let mut nothing = SendAncillaryBuffer::default();
    let asked = [IoSlice::new(&want.encode())]
        .iter()
        .map(|slice| rustix::net::sendmsg(gate, &[*slice], &mut nothing, SendFlags::NOSIGNAL))
        .all(|sent| sent.is_ok());
    let mut waits = [PollFd::new(gate, PollFlags::IN)];
    if !asked || rustix::event::poll(&mut waits, Some(&wait)) != Ok(1) {
        return false;
    }
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut rights = RecvAncillaryBuffer::new(&mut space);
    let mut answer = [0_u8; 4];
    let received = rustix::net::recvmsg(
        gate,
        &mut [std::io::IoSliceMut::new(&mut answer)],
        &mut rights,
        RecvFlags::CMSG_CLOEXEC,
    );
    received.is_ok() && rights.drain().next().is_some()
}
