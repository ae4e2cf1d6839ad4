//! A running sandbox of any backend: started, locked down, proven, and talked to.

use std::io;
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use ringfence_jail::cgroup::CgroupEvents;
use ringfence_jail::launch::LaunchError;
use ringfence_jail::plan::{Access, Area, Root, Runs, Spec};
use ringfence_model::ByteText;
use ringfence_model::journal::{FilesHeld, ProbeResult};
use ringfence_model::limits::{Grade, Graded, Limit, Limits};
use ringfence_model::wire::{
    DiskWatch, Hello, Ids, MemoryWatch, Observation, Prove, Reply, Request, Setup, Wall,
};

use crate::attend::Channel;
use crate::backend::{self, Backend, BackendError, Files, Holds, Processes, Start, Started};
use crate::client::{Client, ClientError};
use crate::clock::ms_since;
use crate::files::held;
use crate::home::Home;

/// BOUND: how long output may be idle after the leader's exit before an exec ends. Long enough for
/// a pipe to be drained, short enough not to be felt.
const DRAIN_IDLE: Duration = Duration::from_millis(50);

/// Why a sandbox could not be had.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    #[error("cannot copy the guest into sealed memory")]
    SealGuest(#[source] io::Error),
    #[error(transparent)]
    Launch(#[from] LaunchError),
    #[error(transparent)]
    Backend(#[from] BackendError),
    #[error("the sandbox's pid 1 did not come up")]
    Greet(#[source] ClientError),
    #[error("cannot make the canary `{path}`")]
    MakeCanary {
        path: String,
        #[source]
        source: io::Error,
    },
    #[error("the sandbox does not hold: {}", failed.join(", "))]
    NotProven { failed: Vec<String> },
}

/// A sandbox. Dropping it ends everything inside.
#[derive(Debug)]
pub struct Sandbox {
    started: Box<dyn Started>,
    client: Client,
    backend: &'static str,
    grades: Vec<Graded>,
    wall: Wall,
    observation: Observation,
    reach: Reach,
    /// Attempts that are known to work here.
    shown: &'static [&'static str],
    files: FilesHeld,
    is_elsewhere: bool,
}

impl Sandbox {
    /// Starts one and waits until it has locked itself down. What happens in it is observed, as far as
    /// the backend can.
    pub fn start(backend: &dyn Backend, start: &Start<'_>) -> Result<Self, SandboxError> {
        Self::start_observed(backend, start, backend.observation())
    }

    /// As [`Self::start`], for measurements also without observation.
    pub fn start_observed(
        backend: &dyn Backend,
        start: &Start<'_>,
        observation: Observation,
    ) -> Result<Self, SandboxError> {
        let began = Instant::now();
        let mut started = backend.start(start)?;
        let socket = started
            .control()
            .ok_or_else(|| io::ErrorKind::NotConnected.into())
            .and_then(UnixStream::try_clone)
            .map_err(|e| SandboxError::Greet(ClientError::Talk(e)))?;
        let mut client = Client::new(socket);
        let Start { spec, limits, .. } = start;
        let holds = started.holds();
        let inside = spec.workspace.inside.to_string_lossy().into_owned();
        let reach = Reach::of(spec);
        let (agent_uid, agent_gid) = started.agent();
        let hello = Hello {
            agent_uid,
            agent_gid,
            workspace: inside,
            observation,
            gate: start.gate.is_some(),
            writable: reach.writable.clone(),
            writes_host: spec.mounts.iter().any(|m| m.access == Access::Write),
            drain_idle_ms: DRAIN_IDLE.as_millis() as u64,
            open_files: limits.open_files,
            processes: limits.processes,
            ids: match holds.processes {
                Processes::Namespace | Processes::NamespaceAndCgroup => Ids::Own,
                Processes::Cgroup => Ids::Shared,
            },
            file_bytes: limits.file_bytes,
            memory: limits
                .memory_bytes
                .filter(|_| holds.memory.is_none())
                .map(|limit_bytes| MemoryWatch { limit_bytes }),
            cpu_seconds: limits.cpu_seconds,
            disk: (holds.files == Files::Elsewhere).then_some(DiskWatch {
                bytes: limits.disk_bytes,
                inodes: limits.disk_inodes,
            }),
            setup: (spec.runs == Runs::Setup).then(|| Setup {
                capabilities: spec.runs.capabilities(),
                writes_root: writes_root(spec),
            }),
        };
        let greeted = client.call(&Request::Hello(hello));
        let wall = match greeted.map_err(|error| match started.why_ended() {
            Some(why) => SandboxError::Backend(why),
            None => SandboxError::Greet(error),
        })? {
            Reply::Ready { wall } => wall,
            _ => return Err(SandboxError::Greet(ClientError::OtherAnswer)),
        };
        let shown = backend.shown();
        let (name, backend) = (start.name, backend.name());
        tracing::debug!(
            name,
            backend,
            ?wall,
            ms = ms_since(began),
            "sandbox started"
        );
        Ok(Self {
            started,
            client,
            backend,
            grades: grades(limits, holds),
            wall,
            observation,
            reach,
            shown,
            files: held(&spec.workspace.areas, &spec.mounts),
            is_elsewhere: holds.files == Files::Elsewhere,
        })
    }

    /// Has the sandbox try, from inside and as the agent, what must fail. Anything that works is an
    /// error: nothing runs in a sandbox that does not hold.
    pub fn prove(&mut self, canary: &Path) -> Result<Vec<ProbeResult>, SandboxError> {
        if !canary.exists() {
            make_canary(canary).map_err(|source| SandboxError::MakeCanary {
                path: canary.display().to_string(),
                source,
            })?;
        }
        self.prove_unread(canary)
    }

    /// As `prove`, with a canary that is there already.
    pub fn prove_unread(&mut self, canary: &Path) -> Result<Vec<ProbeResult>, SandboxError> {
        let began = Instant::now();
        // A host without loopback has no port that could be reached.
        let listener = TcpListener::bind(("127.0.0.1", 0)).ok();
        let host_port = listener
            .as_ref()
            .and_then(|l| l.local_addr().ok())
            .map(|address| address.port());
        let prove = Prove {
            canary: ByteText::from(canary.as_os_str().as_bytes()),
            host_port,
            unwritable: self.reach.never.iter().map(|&path| path.into()).collect(),
            held: self.reach.held.clone(),
            writable: self.reach.tried.clone(),
            shown: self.shown.iter().map(|&probe| probe.into()).collect(),
        };
        let probes = match self
            .client
            .call(&Request::Prove(prove))
            .map_err(SandboxError::Greet)?
        {
            Reply::Proof { probes } => probes,
            _ => return Err(SandboxError::Greet(ClientError::OtherAnswer)),
        };
        let failed: Vec<String> = probes
            .iter()
            .filter(|p| !p.held && !p.is_left_out())
            .map(|p| format!("{} ({})", p.probe, p.detail))
            .collect();
        let (count, ms) = (probes.len(), ms_since(began));
        if failed.is_empty() && !probes.is_empty() {
            tracing::debug!(probes = count, ms, "sandbox proven");
            Ok(probes)
        } else {
            tracing::warn!(probes = count, ?failed, ms, "sandbox does not hold");
            Err(SandboxError::NotProven { failed })
        }
    }

    /// What is recorded of the processes inside, whether they want it or not.
    pub fn observation(&self) -> Observation {
        self.observation
    }

    /// How firmly each limit holds here.
    pub fn grades(&self) -> &[Graded] {
        &self.grades
    }

    /// What came of the second wall.
    pub fn wall(&self) -> Wall {
        self.wall
    }

    /// What is held of the files, besides the usual.
    pub fn files(&self) -> &FilesHeld {
        &self.files
    }

    pub fn client(&mut self) -> &mut Client {
        &mut self.client
    }

    /// What holds it.
    pub fn backend(&self) -> &'static str {
        self.backend
    }

    /// The host's number of pid 1, where it has one.
    pub fn pid(&self) -> Option<i32> {
        self.started.pid()
    }

    /// Whether what is written is on another machine until it is brought.
    pub fn is_elsewhere(&self) -> bool {
        self.is_elsewhere
    }

    /// Brings what was written until now into the layer. Nothing may run inside meanwhile.
    pub fn bring(&mut self) -> Result<(), SandboxError> {
        Ok(self.started.bring()?)
    }

    /// Ends everything inside.
    pub fn end(&mut self) -> io::Result<()> {
        let began = Instant::now();
        let ended = self.started.end();
        tracing::debug!(ok = ended.is_ok(), ms = ms_since(began), "sandbox ended");
        ended
    }
}

/// Where the agent can write, and where it cannot.
#[derive(Debug)]
struct Reach {
    writable: Vec<String>,
    held: Vec<String>,
    /// Directories of the system.
    never: &'static [&'static str],
    /// One of the directories that can be written.
    tried: String,
}

/// Whether `/` itself can be written.
fn writes_root(spec: &Spec) -> bool {
    match &spec.root {
        Root::Host | Root::Foreign(_) => false,
        Root::Image(image) => image.writable.is_some(),
    }
}

impl Reach {
    fn of(spec: &Spec) -> Self {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let inside = |area: &Area| {
            let path = spec.workspace.inside.join(&area.path);
            path.to_string_lossy().trim_end_matches('/').to_owned()
        };
        let areas = |access: Access| {
            let areas = spec.workspace.areas.iter();
            areas.filter(move |area| area.access == access).map(inside)
        };
        let mounts = |access: Access| {
            let mounts = spec
                .mounts
                .iter()
                .filter(move |mount| mount.access == access);
            mounts.map(|mount| text(&mount.inside))
        };
        let root = inside(&Area {
            path: "".into(),
            access: Access::Write,
        });
        let held: Vec<String> = areas(Access::ReadOnly)
            .chain(mounts(Access::ReadOnly))
            .collect();
        let parts: Vec<String> = if held.contains(&root) {
            areas(Access::Write).collect()
        } else {
            vec![root]
        };
        let plain = ["/tmp", "/home/agent", "/dev/shm"].map(str::to_owned);
        let tried = parts.first().unwrap_or(&plain[0]).clone();
        Self {
            writable: plain
                .into_iter()
                .chain(parts)
                .chain(mounts(Access::Write))
                .chain(spec.overlays.iter().map(|o| text(&o.inside)))
                .chain(spec.tmpfs.iter().map(|area| text(&area.inside)))
                .collect(),
            held,
            never: match &spec.root {
                Root::Host => &["", "/usr", "/etc", "/usr/bin", "/proc/sys", "/.ringfence"],
                Root::Image(image) if image.writable.is_none() => IMAGE_DIRECTORIES,
                Root::Foreign(_) => IMAGE_DIRECTORIES,
                Root::Image(_) => &["/dev", "/proc/sys", "/.ringfence"],
            },
            tried,
        }
    }
}

/// What is a directory for certain in every image, or not there: an image may have links elsewhere.
const IMAGE_DIRECTORIES: &[&str] = &[
    "",
    "/etc",
    "/home",
    "/var",
    "/dev",
    "/proc/sys",
    "/.ringfence",
];

/// How the text of a canary begins.
const CANARY: &str = "ringfence-canary-";

/// A text that nobody else has, so that it is known wherever it turns up.
fn make_canary(path: &Path) -> io::Result<()> {
    let word = || crate::ids::RunId::random().map_err(io::Error::other);
    std::fs::write(path, format!("{CANARY}{}{}\n", word()?, word()?))
}

/// The text of a canary, without its newline; `None` for one that could be anybody's.
pub fn canary_text(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let text = text.trim_end();
    text.starts_with(CANARY).then(|| text.to_owned())
}

impl Channel for Sandbox {
    fn client(&mut self) -> &mut Client {
        &mut self.client
    }

    fn kernel_refusals(&mut self) -> CgroupEvents {
        self.started.events()
    }

    fn held_up(&self) -> Option<String> {
        self.started.held_up()
    }
}

/// Removes what a sandbox leaves whose driver was killed; its processes are gone with it.
pub fn sweep(home: &Home, name: &str) {
    let rooms = crate::checks::cgroup_names(name);
    for name in rooms.iter().map(String::as_str).chain([name]) {
        backend::sweep(home, name);
    }
}

/// What is said of bounds of files that are on another machine.
const ELSEWHERE: &str = "looked at inside every 100 ms, less often where there are many files; can overshoot by what is written in between";

/// What holds each limit on this host.
pub fn grades(limits: &Limits, holds: Holds) -> Vec<Graded> {
    let graded = |limit, grade, by: &str| Graded {
        limit,
        grade,
        by: by.to_owned(),
    };
    let unless_off = |set: bool, graded: Graded| {
        if set {
            graded
        } else {
            Graded {
                grade: Grade::Absent,
                by: "switched off".to_owned(),
                ..graded
            }
        }
    };
    vec![
        unless_off(
            limits.time_seconds.is_some(),
            graded(Limit::Time, Grade::Hard, "timer of pid 1, then SIGKILL"),
        ),
        unless_off(
            limits.memory_bytes.is_some(),
            match holds.memory {
                Some(by) => graded(Limit::Memory, Grade::Hard, by),
                None => graded(
                    Limit::Memory,
                    Grade::Watched,
                    "looked at every 100 ms; can overshoot by what is allocated in between, and kernel buffers of sockets and pipes are not counted",
                ),
            },
        ),
        graded(
            Limit::Processes,
            Grade::Hard,
            match holds.processes {
                Processes::Namespace => "RLIMIT_NPROC in the user namespace",
                Processes::NamespaceAndCgroup => "RLIMIT_NPROC in the user namespace, pids cgroup",
                Processes::Cgroup => "pids cgroup",
            },
        ),
        unless_off(
            limits.cpu_seconds.is_some(),
            graded(Limit::Cpu, Grade::Watched, "looked at every 100 ms"),
        ),
        graded(
            Limit::OpenFiles,
            Grade::Hard,
            "RLIMIT_NOFILE of each process",
        ),
        unless_off(
            limits.file_bytes.is_some(),
            graded(Limit::FileSize, Grade::Hard, "RLIMIT_FSIZE"),
        ),
        unless_off(
            limits.disk_bytes.is_some(),
            match holds.files {
                Files::Here => graded(
                    Limit::Disk,
                    Grade::Watched,
                    "looked at every 50 ms; can overshoot by what is written in between, and by 8 GiB in files that are deleted, closed and still held",
                ),
                Files::Elsewhere => graded(Limit::Disk, Grade::Watched, ELSEWHERE),
            },
        ),
        unless_off(
            limits.disk_inodes.is_some(),
            match holds.files {
                Files::Here => graded(Limit::Inodes, Grade::Watched, "looked at every 50 ms"),
                Files::Elsewhere => graded(Limit::Inodes, Grade::Watched, ELSEWHERE),
            },
        ),
        unless_off(
            limits.output_bytes.is_some(),
            graded(Limit::Output, Grade::Hard, "counted as it is read"),
        ),
        graded(Limit::Journal, Grade::Hard, "counted as it is written"),
    ]
}
