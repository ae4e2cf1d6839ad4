//! Signals to this process as something to wait for, instead of something that interrupts.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

/// The numbers that matter here.
#[derive(Debug)]
pub struct Signal;

impl Signal {
    pub const INTERRUPT: i32 = libc::SIGINT;
    pub const TERMINATE: i32 = libc::SIGTERM;
    pub const KILL: i32 = libc::SIGKILL;
    pub const WINDOW: i32 = libc::SIGWINCH;
    pub const FILE_SIZE: i32 = libc::SIGXFSZ;
    pub const SUSPEND: i32 = libc::SIGTSTP;
    pub const CONTINUE: i32 = libc::SIGCONT;
}

const HELD: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGWINCH];

/// Interrupt, terminate, hang-up and window size, held back and read here.
#[derive(Debug)]
pub struct Signals {
    fd: OwnedFd,
}

impl Signals {
    /// Holds them back for this thread and those it starts; call it before there are others.
    pub fn hold() -> io::Result<Self> {
        Self::hold_these(&HELD)
    }

    /// The same, and being suspended and continued: for who has the terminal in a mode of its own.
    pub fn hold_with_screen() -> io::Result<Self> {
        Self::hold_these(&[&HELD[..], &[Signal::SUSPEND, Signal::CONTINUE]].concat())
    }

    fn hold_these(signals: &[i32]) -> io::Result<Self> {
        // SAFETY: the set is initialised before it is used, and both calls only read it.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            for signal in signals {
                libc::sigaddset(&raw mut set, *signal);
            }
            if libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) != 0 {
                return Err(io::Error::last_os_error());
            }
            match libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
                -1 => Err(io::Error::last_os_error()),
                fd => Ok(Self {
                    fd: OwnedFd::from_raw_fd(fd),
                }),
            }
        }
    }

    /// Readable when there is one.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Forgets what has come, and lets what comes from now on end this process as usual.
    pub fn release(&self) {
        while self.take().is_some() {}
        // SAFETY: the set is initialised before it is used, and the call only reads it.
        unsafe {
            let mut none: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut none);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
        }
    }

    /// Lets this process be suspended as the terminal would. Returns when somebody continues it, or
    /// at once where nobody could: the kernel stops no group that has no shell.
    pub fn suspend(&self) -> io::Result<()> {
        // SAFETY: the set is initialised before it is used, and the calls only read it.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGTSTP);
            let mask = |how| libc::pthread_sigmask(how, &raw const set, std::ptr::null_mut());
            if mask(libc::SIG_UNBLOCK) != 0 || libc::raise(libc::SIGTSTP) != 0 {
                return Err(io::Error::last_os_error());
            }
            match mask(libc::SIG_BLOCK) {
                0 => Ok(()),
                error => Err(io::Error::from_raw_os_error(error)),
            }
        }
    }

    /// The next one, if there is one.
    pub fn take(&self) -> Option<i32> {
        let mut record = [0u8; size_of::<libc::signalfd_siginfo>()];
        match rustix::io::read(&self.fd, &mut record) {
            Ok(count) if count == record.len() => Some(i32::from_ne_bytes([
                record[0], record[1], record[2], record[3],
            ])),
            _ => None,
        }
    }
}
