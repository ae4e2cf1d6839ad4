//! How processes ended that are nobody's children here.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::process::{Pid, PidfdFlags};

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Code(i32),
    Signal(i32),
}

impl Ending {
    /// Reads the word that `wait` would have given.
    pub fn of_status(status: i32) -> Self {
        if libc::WIFEXITED(status) {
            Self::Code(libc::WEXITSTATUS(status))
        } else {
            Self::Signal(libc::WTERMSIG(status))
        }
    }
}

/// Processes whose end is waited for.
#[derive(Debug)]
pub struct Endings(OwnedFd);

impl AsFd for Endings {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Endings {
    pub fn new() -> io::Result<Self> {
        Ok(Self(epoll::create(CreateFlags::CLOEXEC)?))
    }

    /// Waits for a process, and calls it by this token.
    pub fn add(&self, process: i32, token: u64) -> io::Result<OwnedFd> {
        let pid = Pid::from_raw(process).ok_or(rustix::io::Errno::SRCH)?;
        let fd = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
        epoll::add(&self.0, &fd, EventData::new_u64(token), EventFlags::IN)?;
        Ok(fd)
    }

    /// Waits for a process no more.
    ///
    /// INVARIANT: closing the descriptor is not enough. A process that was forked meanwhile has a
    /// copy of it, and for as long as it does, the end would be told again and again.
    pub fn remove(&self, process: &OwnedFd) {
        let _ = epoll::delete(&self.0, process);
    }

    /// The tokens of those that have ended. Each is named until it is removed.
    pub fn ended(&self) -> Vec<u64> {
        let mut events = [epoll::Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(0),
        }; 64];
        let none = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        match epoll::wait(&self.0, events.as_mut_slice(), Some(&none)) {
            Ok(count) => events[..count].iter().map(|e| e.data.u64()).collect(),
            Err(_) => Vec::new(),
        }
    }
}

/// How a process ended that nobody needs to wait for any more. Kernels before 6.15 do not say.
pub fn ended_how(process: BorrowedFd<'_>) -> Option<Ending> {
    const GET_INFO: libc::c_ulong = 0xc040_ff0b;
    const EXIT: u64 = 1 << 3;
    #[repr(C)]
    #[derive(Default)]
    struct Info {
        mask: u64,
        cgroup: u64,
        ids: [u32; 11],
        status: i32,
    }
    const { assert!(size_of::<Info>() == 64) };
    let mut info = Info {
        mask: EXIT,
        ..Info::default()
    };
    // SAFETY: the structure is the kernel's first version, whose size is in the request.
    let result = unsafe { libc::ioctl(process.as_raw_fd(), GET_INFO as _, &raw mut info) };
    (result == 0 && info.mask & EXIT != 0).then(|| Ending::of_status(info.status))
}
