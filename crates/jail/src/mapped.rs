//! A program of the host within the ids of a setup: to take over what those ids own on the disk.
//!
//! It is in a user namespace and in nothing else that is new: what it is allowed beyond its caller
//! is what the caller's subordinate ids allow.

use std::ffi::{CStr, CString};
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::process::{WaitId, WaitIdOptions};

use crate::identity::Identity;
use crate::sys::{self, Cloned};

/// Runs a program with one word as root of a fresh user namespace with the ids of `identity`, with
/// `stdin` as its standard input and an empty environment. Gives its exit code.
pub fn run_mapped(
    identity: &Identity,
    program: &Path,
    word: &CStr,
    stdin: BorrowedFd<'_>,
) -> io::Result<Option<i32>> {
    let program = CString::new(program.as_os_str().as_bytes())?;
    let (go_read, mut go_write) = io::pipe()?;
    let flags = libc::CLONE_NEWUSER as u64;
    let fds = (go_read.as_raw_fd(), go_write.as_raw_fd(), stdin.as_raw_fd());
    // SAFETY: the child calls `child`, which makes system calls only and never returns.
    let (pid, pidfd) = match unsafe { sys::clone_into(flags, None) }? {
        Cloned::Child => child(&program, word, fds),
        Cloned::Parent { pid, pidfd } => (pid, pidfd),
    };
    drop(go_read);
    let mapped = identity.write_maps(pid);
    let went = mapped.and_then(|()| go_write.write_all(&[1]));
    // Without a word the child reads the end of the pipe, and ends.
    drop(go_write);
    let ended = rustix::io::retry_on_intr(|| {
        rustix::process::waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED)
    })?;
    went?;
    Ok(ended.and_then(|status| status.exit_status()))
}

/// INVARIANT: runs after clone in a copy of a possibly multi-threaded process; allocates nothing.
fn child(program: &CStr, word: &CStr, (go, go_write, stdin): (RawFd, RawFd, RawFd)) -> ! {
    let mut byte = [0_u8];
    // SAFETY: this process's own copy of the other end, which nothing here uses again; the buffer
    // has one byte.
    let told = unsafe {
        libc::close(go_write);
        libc::read(go, byte.as_mut_ptr().cast(), 1)
    };
    if told == 1 && sys::dup_to(stdin, 0).is_ok() {
        let argv = [program.as_ptr(), word.as_ptr(), std::ptr::null()];
        let _ = sys::execve(program, &argv, &[std::ptr::null()]);
    }
    sys::exit_now(1)
}
