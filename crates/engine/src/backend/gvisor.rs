//! gVisor, directly by its `runsc`: a kernel of its own for each sandbox, as a program of the host. As
//! root only.
//!
//! ```text
//! attached/<name>/       before anything else, and gone after it; the runtime sees it elsewhere
//! ├── config.json        what is shown and held
//! ├── root/              / inside: mount points, links, files of /etc, the guest
//! ├── state/, log        the runtime's own
//! └── tree, m0, …        what is shown, mounted by us (jail/attach.rs)
//! ```
//!
//! The guest is root of a user namespace whose ids nobody on the host has, and switches to the agent.
//! Its kernel, which is `runsc` itself, has no seccomp listener: nothing is observed, and what a task
//! requires of observation is not here. It hands no descriptor to the host: there is no gate.
//!
//! INVARIANT: all processes of a runtime are in a cgroup of ours from their first instant on, where
//! this machine has cgroups. That is what bounds them, and what is emptied at the end.

mod bundle;

pub(super) use bundle::CAPABILITIES;

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ringfence_jail::apart;
use ringfence_jail::cgroup::{self, Cgroup, CgroupEvents, CgroupLimits};
use ringfence_jail::plan::{Root, Runs};
use ringfence_model::limits::Limits;
use ringfence_model::wire::Observation;

use super::docker::IN_HOME;
use super::docker::place::{claim, failed, places, remove};
use super::{Backend, BackendError, Files, Holds, Processes, Start, Started, with_readable_tools};
use crate::home::Home;
use crate::lock::FileLock;
use crate::sandbox::SandboxError;

/// What it is called.
pub const NAME: &str = "gvisor";
pub(super) const PROGRAM: &str = "runsc";

/// BOUND: what the runtime itself takes besides what runs in it: its kernel, its way to files and its
/// watcher have some 30 MiB of their own each.
const OWN_BYTES: u64 = 96 << 20;
/// BOUND: a process inside is up to three threads on the host, and the runtime has some of its own.
const THREADS_EACH: u64 = 3;
const OWN_THREADS: u64 = 256;
/// BOUND: the runtime ends within milliseconds of its guest. One that does not is killed.
const ENDS_WITHIN: Duration = Duration::from_secs(2);
/// BOUND: of what a runtime says, the end is kept.
const SAID_BYTES: u64 = 4096;

/// Sandboxes by `runsc`.
#[derive(Clone, Debug)]
pub struct Gvisor {
    program: PathBuf,
    home: Home,
    places: PathBuf,
}

impl Gvisor {
    /// The `runsc` that is found as any other program is.
    pub fn open(home: &Home) -> Result<Self, BackendError> {
        if !rustix::process::geteuid().is_root() {
            return Err(BackendError::NeedsRoot { backend: NAME });
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        let program = std::env::split_paths(&path)
            .filter(|directory| directory.is_absolute())
            .map(|directory| directory.join(PROGRAM))
            .find(|program| {
                fs::metadata(program)
                    .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
            });
        Ok(Self {
            program: program.ok_or(BackendError::NoRuntime { program: PROGRAM })?,
            home: home.clone(),
            places: places(home)?,
        })
    }

    fn check(start: &Start<'_>) -> Result<(), BackendError> {
        let what = match &start.spec.root {
            _ if start.gate.is_some() || start.spec.gate.is_some() => {
                "a network, not even one with rules"
            }
            _ if start.spec.runs == Runs::Setup => "a setup that is root",
            _ if start.spec.shows_in_kept_home() => IN_HOME,
            Root::Image(_) => "an image that was pulled by `ringfence image`",
            Root::Foreign(_) => "an image of another engine",
            Root::Host => return Ok(()),
        };
        Err(BackendError::DoesNotHold {
            backend: NAME,
            what,
        })
    }

    fn begin(&self, start: &Start<'_>) -> Result<Running, BackendError> {
        Self::check(start)?;
        self.clear(start.name);
        // INVARIANT: the directory is there before anything that has to be removed with it.
        let place = self.places.join(start.name);
        bundle::make_directory(&place)?;
        let lock = claim(&place, NAME)?;
        let mut running = Running {
            _lock: lock,
            backend: self.clone(),
            name: start.name.to_owned(),
            cgroup: None,
            child: None,
            control: None,
            agent: (start.spec.runs.id(), start.spec.runs.id()),
        };
        let (memory_bytes, processes) = around(start.limits);
        running.cgroup = Cgroup::create(
            &full_name(start.name),
            &CgroupLimits {
                memory_bytes,
                processes: Some(processes),
            },
        );
        let seen = apart::seen_at().map_err(failed("look for", Path::new("/mnt")))?;
        bundle::write(&self.places, &place, seen, start)?;
        let (ours, theirs) = UnixStream::pair().map_err(failed("make a socket for", &place))?;
        let log = place.join("log");
        let said = File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&log)
            .map_err(failed("make", &log))?;
        let mut command = Command::new(&self.program);
        command
            .args(FLAGS)
            .arg("--root")
            .arg(seen.join("state"))
            .args(["run", "--bundle"])
            .arg(seen)
            .arg(format!("--pass-fd={}:3", theirs.as_raw_fd()))
            .arg(full_name(start.name))
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(said)
            .current_dir("/");
        let child = apart::spawn(command, &place, running.cgroup.as_ref(), theirs.as_fd());
        running.child = Some(child.map_err(failed("start", &self.program))?);
        running.control = Some(ours);
        Ok(running)
    }

    /// Ends and removes what is left of a sandbox, as far as that can be done.
    fn clear(&self, name: &str) {
        let place = self.places.join(name);
        if place.symlink_metadata().is_err() {
            return;
        }
        cgroup::sweep_with_all(&full_name(name));
        let state = place.join("state");
        let has_state =
            |state| fs::read_dir(state).is_ok_and(|mut entries| entries.next().is_some());
        if has_state(&state) {
            // Where there was no cgroup, the runtime alone knows its processes. It ends all of them,
            // or they are gone.
            let _ = Command::new(&self.program)
                .arg("--root")
                .arg(&state)
                .args(["delete", "--force"])
                .arg(full_name(name))
                .env_clear()
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status();
        }
        remove(&place);
    }
}

/// Everything that is not the default and must not change with it: no network but a loopback of its
/// own, nothing kept in files of its own, the host's files through a process apart from the kernel, no
/// socket of the host. Cgroups are ours.
const FLAGS: [&str; 8] = [
    "--platform=systrap",
    "--network=none",
    "--overlay2=none",
    "--file-access=exclusive",
    "--file-access-mounts=shared",
    "--directfs=false",
    "--host-uds=none",
    "--ignore-cgroups",
];

/// Memory, and processes and threads of the host, of a runtime with a sandbox of these limits.
pub(super) fn around(limits: &Limits) -> (Option<u64>, u64) {
    let memory = limits.memory_bytes.map(|bytes| bytes + OWN_BYTES);
    (memory, limits.processes * THREADS_EACH + OWN_THREADS)
}

/// What a cgroup around its kernel tells of the sandbox.
pub(super) fn events(events: CgroupEvents) -> CgroupEvents {
    CgroupEvents {
        // Threads of the host: the bound of processes is one of the kernel inside.
        process_refusals: 0,
        ..events
    }
}

/// By what memory is held.
pub(super) const MEMORY: &str = "memory cgroup around its kernel";

/// Its kernel lets everybody read these of every process. The guest has no environment.
pub(super) const SHOWN: &[&str] = &["read_pid1_environ", "read_pid1_maps"];

fn full_name(name: &str) -> String {
    format!("ringfence-{name}")
}

impl Backend for Gvisor {
    fn name(&self) -> &'static str {
        NAME
    }

    fn start(&self, start: &Start<'_>) -> Result<Box<dyn Started>, SandboxError> {
        let spec = with_readable_tools(&self.home, start.spec)?;
        let start = Start {
            spec: &spec,
            ..*start
        };
        Ok(Box::new(self.begin(&start)?))
    }

    fn observation(&self) -> Observation {
        Observation::Off
    }

    fn has_kernels(&self) -> bool {
        true
    }

    fn shown(&self) -> &'static [&'static str] {
        SHOWN
    }

    fn destroy(&self, name: &str) {
        self.clear(name);
    }
}

/// A `runsc run` with our guest in it.
#[derive(Debug)]
struct Running {
    _lock: FileLock,
    backend: Gvisor,
    name: String,
    cgroup: Option<Cgroup>,
    child: Option<Child>,
    control: Option<UnixStream>,
    agent: (u32, u32),
}

impl Running {
    fn place(&self) -> PathBuf {
        self.backend.places.join(&self.name)
    }
}

impl Started for Running {
    fn control(&self) -> Option<&UnixStream> {
        self.control.as_ref()
    }

    /// The runtime's: pid 1 has a number inside only.
    fn pid(&self) -> Option<i32> {
        self.child.as_ref().map(|child| child.id() as i32)
    }

    fn holds(&self) -> Holds {
        let memory = self.cgroup.as_ref().is_some_and(Cgroup::holds_memory);
        Holds {
            memory: memory.then_some(MEMORY),
            processes: Processes::Namespace,
            files: Files::Here,
        }
    }

    fn agent(&self) -> (u32, u32) {
        self.agent
    }

    fn events(&self) -> CgroupEvents {
        let own = self.cgroup.as_ref().map(Cgroup::events);
        events(own.unwrap_or_default())
    }

    fn why_ended(&mut self) -> Option<BackendError> {
        let mut child = self.child.take()?;
        let ended = ends_within(&mut child, ENDS_WITHIN);
        self.child = Some(child);
        ended.then(|| BackendError::RuntimeEnded {
            program: PROGRAM,
            said: last_words(&self.place().join("log")),
        })
    }

    fn end(&mut self) -> io::Result<()> {
        // The guest ends with its socket, its kernel with the guest.
        if let Some(control) = self.control.take() {
            let _ = control.shutdown(std::net::Shutdown::Both);
        }
        let Some(mut child) = self.child.take() else {
            return Ok(());
        };
        if !ends_within(&mut child, ENDS_WITHIN) {
            child.kill()?;
        }
        child.wait()?;
        if let Some(cgroup) = &self.cgroup {
            cgroup.empty();
        }
        remove(&self.place());
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A drop cannot report; what is left is found by its place.
        let _ = self.end();
        remove(&self.place());
    }
}

fn ends_within(child: &mut Child, bound: Duration) -> bool {
    let deadline = Instant::now() + bound;
    loop {
        match child.try_wait() {
            Ok(None) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1));
            }
            waited => return matches!(waited, Ok(Some(_))),
        }
    }
}

/// HOSTILE: what runs inside has a say in what its kernel complains of.
fn last_words(log: &Path) -> String {
    let mut said = Vec::new();
    // Nothing said is as good.
    let _ = File::open(log).and_then(|file| file.take(SAID_BYTES).read_to_end(&mut said));
    let said = String::from_utf8_lossy(&said);
    let last = said.lines().rev().find(|line| !line.trim().is_empty());
    let plain = |c: char| !c.is_control();
    last.unwrap_or("nothing")
        .chars()
        .filter(|c| plain(*c))
        .collect()
}
