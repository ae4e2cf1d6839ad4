//! Starting a runtime of somebody else's that holds a sandbox: in a cgroup and a mount namespace of
//! its own, so that it is bounded from its first instant on and all of it can be ended.
//!
//! ```text
//! host process ── fork ──▶ enters the cgroup
//!                          own mount namespace; the place of the sandbox is shown at a path that
//!                          every id can reach, which the home's own is not
//!                          dies with the thread that started it
//!                          exec
//! ```

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command};

use rustix::mount::{MountFlags, MountPropagationFlags};

use crate::cgroup::Cgroup;
use crate::sys;

/// Where the runtime, and nobody else, sees the place: directories that systems have and that hold
/// nothing which a sandbox is shown.
const SEEN_AT: [&str; 3] = ["/mnt", "/media", "/tmp"];

/// Where the place of a sandbox is seen.
pub fn seen_at() -> io::Result<&'static Path> {
    let mut known = SEEN_AT.iter().map(Path::new);
    let is_directory =
        |path: &&Path| std::fs::symlink_metadata(path).is_ok_and(|found| found.is_dir());
    known
        .find(is_directory)
        .ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Starts a program apart. `socket` stays open in it, with the same number as here.
///
/// INVARIANT: the thread that calls this outlives what it started, which dies with it.
pub fn spawn(
    mut command: Command,
    place: &Path,
    cgroup: Option<&Cgroup>,
    socket: BorrowedFd<'_>,
) -> io::Result<Child> {
    let source = CString::new(place.as_os_str().as_bytes())?;
    let target = CString::new(seen_at()?.as_os_str().as_bytes())?;
    let doors = match cgroup {
        Some(cgroup) => cgroup.doors()?,
        None => Vec::new(),
    };
    let socket = socket.as_raw_fd();
    let prepare = move || prepare(&doors, &source, &target, socket);
    // SAFETY: `prepare` makes system calls on what was made before the fork, and allocates nothing.
    unsafe { command.pre_exec(prepare) };
    command.spawn()
}

/// INVARIANT: runs after fork in a copy of a possibly multi-threaded process; allocates nothing.
fn prepare(doors: &[File], source: &CString, target: &CString, socket: RawFd) -> io::Result<()> {
    sys::become_subject_of(libc::SIGKILL)?;
    for door in doors {
        // Zero is whoever writes it.
        rustix::io::write(door.as_fd(), b"0")?;
    }
    sys::unshare(libc::CLONE_NEWNS)?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change(c"/", private)?;
    let bind = MountFlags::BIND | MountFlags::REC;
    rustix::mount::mount(source.as_c_str(), target.as_c_str(), c"", bind, None)?;
    // SAFETY: the caller borrows it for longer than this.
    let socket = unsafe { BorrowedFd::borrow_raw(socket) };
    Ok(rustix::io::fcntl_setfd(
        socket,
        rustix::io::FdFlags::empty(),
    )?)
}
