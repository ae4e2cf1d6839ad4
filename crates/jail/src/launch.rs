//! Starting a sandbox: clone, cgroup, id maps, and the guest as pid 1.

mod inherit;

use std::io::{self, Read as _};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::process::{WaitIdOptions, WaitIdStatus};

use crate::cgroup::Cgroup;
use crate::execute::{self, Handed};
use crate::facts::HostFacts;
use crate::identity::Identity;
use crate::plan::{Op, PlanError, Root, Spec, plan};
use crate::sealed::Sealed;
use crate::sys::{self, Cloned};

/// Why a sandbox could not be started.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error("cannot look at the host's system directories")]
    GatherFacts(#[source] io::Error),
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(
        "the sandbox needs {count} host mounts, over the bound of {}",
        execute::SLOTS
    )]
    TooManyMounts { count: usize },
    #[error("cannot make the sandbox's channels")]
    MakeChannels(#[source] io::Error),
    #[error("cannot make user and other namespaces")]
    MakeNamespaces(#[source] io::Error),
    #[error("cannot map the sandbox's user and group ids")]
    MapIds(#[source] io::Error),
    #[error("cannot map the owner of `{path}` to the sandbox's user")]
    IdmapMount {
        path: String,
        #[source]
        source: io::Error,
    },
    #[error("cannot put the sandbox into its cgroup")]
    EnterCgroup(#[source] io::Error),
    #[error("cannot set the sandbox up: {operation}")]
    SetUp {
        operation: String,
        #[source]
        source: io::Error,
    },
    #[error("cannot show a mount of the policy at `{inside}`")]
    ShowMount {
        /// Where inside.
        inside: String,
        #[source]
        source: io::Error,
    },
    #[error("the launcher died before the guest started")]
    LauncherDied,
}

/// A running sandbox: its pid 1 and the socket to it. Dropping it ends everything inside.
///
/// INVARIANT: the thread that launched it outlives it, because the guest dies with that thread.
#[derive(Debug)]
pub struct Launched {
    pidfd: OwnedFd,
    pid: i32,
    control: UnixStream,
    reaped: bool,
}

const NAMESPACES: i32 = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS;

/// Starts a sandbox with the guest as its pid 1. `gate`: a socket on which a gate asks the guest.
pub fn launch(
    spec: &Spec,
    guest: &Sealed,
    cgroup: Option<&Cgroup>,
    gate: Option<BorrowedFd<'_>>,
) -> Result<Launched, LaunchError> {
    let facts = match &spec.root {
        Root::Host | Root::Foreign(_) => HostFacts::gather(),
        Root::Image(image) => {
            let lower = image.setup.iter().chain(&image.lower);
            HostFacts::gather_for_image(lower.map(PathBuf::as_path)).map(Arc::new)
        }
    };
    let mut ops = plan(spec, &*facts.map_err(LaunchError::GatherFacts)?)?;
    let count = ops
        .iter()
        .filter(|op| {
            matches!(
                op,
                Op::Open { .. } | Op::OpenLayer { .. } | Op::OpenExact { .. }
            )
        })
        .count();
    if count > execute::SLOTS {
        return Err(LaunchError::TooManyMounts { count });
    }
    let held = inherit::inherit_mounts(spec, &mut ops)?;
    let (ours, theirs) = UnixStream::pair().map_err(LaunchError::MakeChannels)?;
    let (mut errors, low_end) = io::pipe().map_err(LaunchError::MakeChannels)?;
    let error_end = rustix::io::fcntl_dupfd_cloexec(&low_end, 10)
        .map_err(|errno| LaunchError::MakeChannels(errno.into()))?;
    drop(low_end);
    let (go_read, go_write) = io::pipe().map_err(LaunchError::MakeChannels)?;
    let handed = Handed {
        control: theirs.as_raw_fd(),
        guest: guest.as_fd().as_raw_fd(),
        error: error_end.as_raw_fd(),
        gate: gate.map(|gate| gate.as_raw_fd()),
    };
    // SAFETY: the child calls `child`, which makes system calls only and never returns.
    let cloned = unsafe { sys::clone_into(NAMESPACES as u64, cgroup.and_then(Cgroup::clone_fd)) };
    let (pid, pidfd) = match cloned.map_err(|errno| LaunchError::MakeNamespaces(errno.into()))? {
        Cloned::Child => child(&ops, handed, go_read.as_raw_fd(), go_write.as_raw_fd()),
        Cloned::Parent { pid, pidfd } => (pid, pidfd),
    };
    drop((theirs, error_end, go_read, held));
    let launched = Launched {
        pidfd,
        pid,
        control: ours,
        reaped: false,
    };
    if let Some(cgroup) = cgroup {
        cgroup.enter(pid).map_err(LaunchError::EnterCgroup)?;
    }
    spec.identity.write_maps(pid).map_err(LaunchError::MapIds)?;
    rustix::io::write(&go_write, &[1]).map_err(|_| LaunchError::LauncherDied)?;
    drop(go_write);
    let mut report = Vec::new();
    errors
        .read_to_end(&mut report)
        .map_err(LaunchError::MakeChannels)?;
    if let Some((operation, errno)) = report.first_chunk::<8>().map(parse_report) {
        let source = io::Error::from_raw_os_error(errno);
        return Err(match ops.get(operation) {
            Some(Op::Reveal { parts, .. }) => LaunchError::ShowMount {
                inside: parts
                    .iter()
                    .map(|part| format!("/{}", part.to_string_lossy()))
                    .collect(),
                source,
            },
            _ => LaunchError::SetUp {
                operation: describe(&ops, operation),
                source,
            },
        });
    }
    Ok(launched)
}

fn parse_report(bytes: &[u8; 8]) -> (usize, i32) {
    let [a, b, c, d, e, f, g, h] = *bytes;
    (
        u32::from_le_bytes([a, b, c, d]) as usize,
        i32::from_le_bytes([e, f, g, h]),
    )
}

/// The launcher child: waits for its id maps, executes the plan, becomes the guest.
fn child(ops: &[Op], handed: Handed, go: RawFd, go_write: RawFd) -> ! {
    // SAFETY: both descriptors are this process's copies; closing the write end lets the read end
    // see that the host process died.
    unsafe { libc::close(go_write) };
    let mut byte = [0u8];
    // SAFETY: the buffer has one byte.
    let got = unsafe { libc::read(go, byte.as_mut_ptr().cast(), 1) };
    if got != 1 {
        sys::exit_now(1);
    }
    let failed = match execute::execute(ops, handed) {
        Ok(()) => {
            let argv = [c"ringfence-guest".as_ptr(), std::ptr::null()];
            let envp = [std::ptr::null()];
            let errno = sys::execveat(execute::GUEST_FD, &argv, &envp);
            execute::Failed {
                operation: ops.len() as u32,
                errno,
            }
        }
        Err(failed) => failed,
    };
    let mut report = [0u8; 8];
    report[..4].copy_from_slice(&failed.operation.to_le_bytes());
    report[4..].copy_from_slice(&failed.errno.raw_os_error().to_le_bytes());
    for fd in [handed.error, execute::ERROR_FD] {
        // SAFETY: the buffer is ours; a closed descriptor is an error that is ignored.
        if unsafe { libc::write(fd, report.as_ptr().cast(), report.len()) } == 8 {
            break;
        }
    }
    sys::exit_now(1);
}

fn describe(ops: &[Op], number: usize) -> String {
    match ops.get(number) {
        None => "start the guest".to_owned(),
        Some(Op::Open { path, .. }) => format!("open {path:?}"),
        Some(Op::OpenLayer { path, .. }) => format!("open the layer {path:?}"),
        Some(Op::OpenExact { path, .. }) => format!("open {path:?} as it was looked at"),
        Some(Op::Area { path, .. }) => format!("hold {path:?} of the workspace"),
        Some(Op::Attach { path, .. }) => format!("attach a mount at {path:?}"),
        Some(Op::Overlay { path, .. }) => format!("mount the copy-on-write view at {path:?}"),
        Some(Op::Proc { .. }) => "mount a fresh /proc".to_owned(),
        Some(op) => format!("{op:?}").chars().take(120).collect(),
    }
}

/// A user namespace with these maps, held by a descriptor only.
pub(crate) fn user_namespace(uid_map: &str, gid_map: &str) -> io::Result<OwnedFd> {
    // SAFETY: the child only sleeps until it is killed.
    let (pid, pidfd) = match unsafe { sys::clone_into(libc::CLONE_NEWUSER as u64, None) }? {
        // Not by the end of a pipe: a child that another thread makes at this moment has a copy of
        // every descriptor, and would hold the pipe open.
        Cloned::Child => {
            let _ = sys::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong);
            loop {
                // SAFETY: waiting for a signal touches nothing.
                unsafe { libc::pause() };
            }
        }
        Cloned::Parent { pid, pidfd } => (pid, pidfd),
    };
    let result = std::fs::write(format!("/proc/{pid}/gid_map"), gid_map)
        .and_then(|()| std::fs::write(format!("/proc/{pid}/uid_map"), uid_map))
        .and_then(|()| std::fs::File::open(format!("/proc/{pid}/ns/user")));
    sys::pidfd_signal(pidfd.as_fd(), libc::SIGKILL)?;
    wait(pidfd.as_fd())?;
    Ok(result?.into())
}

fn wait(pidfd: BorrowedFd<'_>) -> io::Result<Option<WaitIdStatus>> {
    loop {
        match rustix::process::waitid(rustix::process::WaitId::PidFd(pidfd), WaitIdOptions::EXITED)
        {
            Err(Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
}

impl Launched {
    /// The socket to the guest.
    pub fn control(&self) -> &UnixStream {
        &self.control
    }

    /// The host's number of pid 1.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Readable when the sandbox is gone.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Ends everything inside and waits until nothing is left of it.
    pub fn end(&mut self) -> io::Result<()> {
        if self.reaped {
            return Ok(());
        }
        // Gone already is as good.
        let _ = sys::pidfd_signal(self.pidfd.as_fd(), libc::SIGKILL);
        wait(self.pidfd.as_fd())?;
        self.reaped = true;
        Ok(())
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        // A drop cannot report; the kernel takes the sandbox down with its pid 1 in any case.
        let _ = self.end();
    }
}

/// The identity of a sandbox on a folder, by the caller and the folder's owner.
pub fn identity_for(folder: BorrowedFd<'_>) -> io::Result<Identity> {
    let stat = rustix::fs::fstat(folder)?;
    Ok(Identity::of_caller(stat.st_uid, stat.st_gid))
}
