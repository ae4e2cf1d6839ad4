//! A running sandbox of the native backend: started, locked down, proven, and talked to.

use std::io;
use std::net::TcpListener;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Duration;

use ringfence_jail::cgroup::{Cgroup, CgroupEvents, CgroupLimits};
use ringfence_jail::launch::{LaunchError, Launched, launch};
use ringfence_jail::plan::{Access, Area, Root, Runs, Spec};
use ringfence_model::ByteText;
use ringfence_model::journal::{FilesHeld, ProbeResult};
use ringfence_model::limits::{Grade, Graded, Limit, Limits};
use ringfence_model::wire::{Hello, MemoryWatch, Observation, Prove, Reply, Request, Setup, Wall};

use crate::attend::Channel;
use crate::client::{Client, ClientError};
use crate::files::held;
use crate::guest;

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
    launched: Launched,
    client: Client,
    cgroup: Option<Cgroup>,
    grades: Vec<Graded>,
    wall: Wall,
    observation: Observation,
    reach: Reach,
    files: FilesHeld,
}

impl Sandbox {
    /// Starts one and waits until it has locked itself down. What happens in it is observed.
    /// `gate`: where a gate asks the guest for sockets.
    pub fn start(
        name: &str,
        spec: &Spec,
        limits: &Limits,
        gate: Option<BorrowedFd<'_>>,
    ) -> Result<Self, SandboxError> {
        Self::start_observed(name, spec, limits, gate, Observation::Verified)
    }

    /// As [`Self::start`], for measurements also without observation.
    pub fn start_observed(
        name: &str,
        spec: &Spec,
        limits: &Limits,
        gate: Option<BorrowedFd<'_>>,
        observation: Observation,
    ) -> Result<Self, SandboxError> {
        let sealed = guest::sealed().map_err(SandboxError::SealGuest)?;
        let cgroup = Cgroup::create(
            &cgroup_name(name),
            &CgroupLimits {
                memory_bytes: limits.memory_bytes,
                // The guest and the warden count as well, so that this bound is met first and its
                // refusals are counted.
                processes: Some(limits.processes),
            },
        );
        let launched = launch(spec, sealed, cgroup.as_ref(), gate)?;
        let socket = launched
            .control()
            .try_clone()
            .map_err(|e| SandboxError::Greet(ClientError::Talk(e)))?;
        let mut client = Client::new(socket);
        let memory_held = cgroup.as_ref().is_some_and(Cgroup::holds_memory);
        let inside = spec.workspace.inside.to_string_lossy().into_owned();
        let reach = Reach::of(spec);
        let hello = Hello {
            agent_uid: spec.runs.id(),
            agent_gid: spec.runs.id(),
            workspace: inside,
            observation,
            gate: gate.is_some(),
            writable: reach.writable.clone(),
            writes_host: spec.mounts.iter().any(|m| m.access == Access::Write),
            drain_idle_ms: DRAIN_IDLE.as_millis() as u64,
            open_files: limits.open_files,
            processes: limits.processes,
            file_bytes: limits.file_bytes,
            memory: limits
                .memory_bytes
                .filter(|_| !memory_held)
                .map(|limit_bytes| MemoryWatch { limit_bytes }),
            cpu_seconds: limits.cpu_seconds,
            setup: (spec.runs == Runs::Setup).then(|| Setup {
                capabilities: spec.runs.capabilities(),
                writes_root: writes_root(spec),
            }),
        };
        let wall = match client
            .call(&Request::Hello(hello))
            .map_err(SandboxError::Greet)?
        {
            Reply::Ready { wall } => wall,
            _ => return Err(SandboxError::Greet(ClientError::OtherAnswer)),
        };
        let grades = grades(limits, cgroup.as_ref());
        Ok(Self {
            launched,
            client,
            cgroup,
            grades,
            wall,
            observation,
            reach,
            files: held(&spec.workspace.areas, &spec.mounts),
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
            .filter(|p| !p.held)
            .map(|p| format!("{} ({})", p.probe, p.detail))
            .collect();
        if failed.is_empty() && !probes.is_empty() {
            Ok(probes)
        } else {
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

    /// The host's number of pid 1.
    pub fn pid(&self) -> i32 {
        self.launched.pid()
    }

    /// Ends everything inside.
    pub fn end(&mut self) -> io::Result<()> {
        self.launched.end()
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
        Root::Host => false,
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
        let parts: Vec<String> = match held.contains(&root) {
            true => areas(Access::Write).collect(),
            false => vec![root],
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
                // What is a directory for certain: an image may have links elsewhere.
                Root::Image(image) if image.writable.is_none() => &[
                    "",
                    "/etc",
                    "/home",
                    "/var",
                    "/dev",
                    "/proc/sys",
                    "/.ringfence",
                ],
                Root::Image(_) => &["/dev", "/proc/sys", "/.ringfence"],
            },
            tried,
        }
    }
}

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
        self.cgroup.as_ref().map(Cgroup::events).unwrap_or_default()
    }
}

fn cgroup_name(name: &str) -> String {
    format!("ringfence-{name}")
}

/// Removes what a sandbox leaves whose driver was killed; its processes are gone with it.
pub fn sweep(name: &str) {
    let rooms = crate::checks::cgroup_names(name);
    for name in rooms.iter().map(String::as_str).chain([name]) {
        ringfence_jail::cgroup::sweep(&cgroup_name(name));
    }
}

/// What holds each limit on this host.
pub fn grades(limits: &Limits, cgroup: Option<&Cgroup>) -> Vec<Graded> {
    let memory_held = cgroup.is_some_and(Cgroup::holds_memory);
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
            if memory_held {
                graded(Limit::Memory, Grade::Hard, "memory cgroup")
            } else {
                graded(
                    Limit::Memory,
                    Grade::Watched,
                    "looked at every 100 ms; can overshoot by what is allocated in between, and kernel buffers of sockets and pipes are not counted",
                )
            },
        ),
        graded(
            Limit::Processes,
            Grade::Hard,
            if cgroup.is_some_and(Cgroup::holds_processes) {
                "RLIMIT_NPROC in the user namespace, pids cgroup"
            } else {
                "RLIMIT_NPROC in the user namespace"
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
            graded(
                Limit::Disk,
                Grade::Watched,
                "looked at every 50 ms; can overshoot by what is written in between, and by 8 GiB in files that are deleted, closed and still held",
            ),
        ),
        unless_off(
            limits.disk_inodes.is_some(),
            graded(Limit::Inodes, Grade::Watched, "looked at every 50 ms"),
        ),
        unless_off(
            limits.output_bytes.is_some(),
            graded(Limit::Output, Grade::Hard, "counted as it is read"),
        ),
        graded(Limit::Journal, Grade::Hard, "counted as it is written"),
    ]
}
