//! Processes that are stopped for a moment, at their exec or right after it failed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd as _, OwnedFd};

use rustix::io::Errno;

/// From now on the thread stops when it has executed a program. Fails where somebody else traces it.
pub fn seize(thread: i32) -> rustix::io::Result<()> {
    // SAFETY: no pointer is given that the kernel would follow.
    trace(unsafe {
        libc::ptrace(
            libc::PTRACE_SEIZE,
            thread,
            std::ptr::null_mut::<libc::c_void>(),
            libc::PTRACE_O_TRACEEXEC as libc::c_ulong as *mut libc::c_void,
        )
    })
}

/// Has a seized thread stop as soon as it leaves the kernel.
pub fn interrupt(thread: i32) {
    // One that is gone needs no stop.
    // SAFETY: as above.
    unsafe {
        libc::ptrace(
            libc::PTRACE_INTERRUPT,
            thread,
            std::ptr::null_mut::<libc::c_void>(),
            std::ptr::null_mut::<libc::c_void>(),
        )
    };
}

/// Lets a stopped thread go on, untraced, with the signal that it was stopped for.
pub fn detach(thread: i32, signal: i32) {
    // One that was killed meanwhile is gone.
    // SAFETY: as above.
    unsafe {
        libc::ptrace(
            libc::PTRACE_DETACH,
            thread,
            std::ptr::null_mut::<libc::c_void>(),
            signal as libc::c_ulong as *mut libc::c_void,
        )
    };
}

fn trace(result: libc::c_long) -> rustix::io::Result<()> {
    if result < 0 {
        Err(crate::sys::last_errno())
    } else {
        Ok(())
    }
}

/// What became of a process that we trace or have started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It runs another program from here on. The thread had another number before where it was not
    /// the first of its process.
    Executed { process: i32, former: i32 },
    /// It came back from the kernel without having executed anything; what the call gave back, and
    /// the signal that it is to get.
    Returned {
        thread: i32,
        result: i64,
        signal: i32,
    },
    /// It is gone.
    Ended { process: i32 },
}

/// News of children and traced processes.
#[derive(Debug)]
pub struct Children(OwnedFd);

impl AsFd for Children {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Children {
    /// From now on children are waited for here, and must be.
    ///
    /// INVARIANT: called by a process with one thread.
    pub fn watch() -> io::Result<Self> {
        // SAFETY: the set is initialised before it is used, and the calls only read it.
        unsafe {
            libc::signal(libc::SIGCHLD, libc::SIG_DFL);
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGCHLD);
            if libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) != 0 {
                return Err(io::Error::last_os_error());
            }
            match libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
                -1 => Err(io::Error::last_os_error()),
                fd => Ok(Self(OwnedFd::from_raw_fd(fd))),
            }
        }
    }

    /// Forgets that there was news; to be called before [`Self::next`] is asked until it has none.
    pub fn clear(&self) {
        let mut record = [0u8; size_of::<libc::signalfd_siginfo>()];
        while rustix::io::read(&self.0, &mut record).is_ok_and(|count| count > 0) {}
    }

    /// The next news, if there is any.
    pub fn next(&self) -> Option<Stop> {
        let mut status = 0;
        // SAFETY: the status is ours to be written.
        let id = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL | libc::WNOHANG) };
        if id <= 0 {
            return None;
        }
        if !libc::WIFSTOPPED(status) {
            return Some(Stop::Ended { process: id });
        }
        let event = status >> 16;
        if event == libc::PTRACE_EVENT_EXEC {
            return Some(Stop::Executed {
                process: id,
                former: former(id).unwrap_or(id),
            });
        }
        let signal = if event == 0 {
            libc::WSTOPSIG(status)
        } else {
            0
        };
        Some(Stop::Returned {
            thread: id,
            result: result(id).unwrap_or(0),
            signal,
        })
    }
}

/// The number that a thread had before its exec.
fn former(process: i32) -> Option<i32> {
    let mut message: libc::c_ulong = 0;
    // SAFETY: the number is ours to be written.
    let result = unsafe {
        libc::ptrace(
            libc::PTRACE_GETEVENTMSG,
            process,
            std::ptr::null_mut::<libc::c_void>(),
            (&raw mut message).cast::<libc::c_void>(),
        )
    };
    (result == 0).then_some(message as i32)
}

/// What the call that a stopped thread comes from gave back.
fn result(thread: i32) -> Option<i64> {
    const GENERAL: usize = 1;
    // SAFETY: registers are plain numbers.
    let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    let mut into = libc::iovec {
        iov_base: (&raw mut registers).cast(),
        iov_len: size_of::<libc::user_regs_struct>(),
    };
    // SAFETY: the structure is the kernel's for this architecture, and its size is said.
    let done = unsafe {
        libc::ptrace(
            libc::PTRACE_GETREGSET,
            thread,
            GENERAL as *mut libc::c_void,
            (&raw mut into).cast::<libc::c_void>(),
        )
    };
    if done != 0 {
        return None;
    }
    #[cfg(target_arch = "x86_64")]
    return Some(registers.rax as i64);
    #[cfg(target_arch = "aarch64")]
    return Some(registers.regs[0] as i64);
}

/// The error that a call gave back, where it did. The kernel's own words for "once more" are none.
impl Stop {
    pub fn errno(result: i64) -> Option<Errno> {
        let number = i32::try_from(-result).ok()?;
        (1..512)
            .contains(&number)
            .then(|| Errno::from_raw_os_error(number))
    }
}
