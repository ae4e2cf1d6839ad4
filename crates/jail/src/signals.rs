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
    source: Source,
}

/// Who says that it is time to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Kernel,
    /// A part of this process, which has taken a signal for all of them.
    Relay,
}

/// Says to one part of this process that it is to stop.
#[derive(Debug)]
pub struct Relay(OwnedFd);

impl Relay {
    /// Says it; once more means harder.
    pub fn interrupt(&self) {
        // It cannot be full: nobody interrupts that often.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

impl Signals {
    /// Holds them back for this thread and those it starts; call it before there are others.
    pub fn hold() -> io::Result<Self> {
        Self::hold_these(&HELD)
    }

    /// Signals that somebody else in this process takes and passes on. Nothing is held back.
    pub fn relayed() -> io::Result<(Self, Relay)> {
        use rustix::event::EventfdFlags;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK | EventfdFlags::SEMAPHORE;
        let fd = rustix::event::eventfd(0, flags)?;
        let relay = Relay(fd.try_clone()?);
        let source = Source::Relay;
        Ok((Self { fd, source }, relay))
    }

    /// The same as `hold`, and being suspended and continued: for who has the terminal in a mode of its own.
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
                    source: Source::Kernel,
                }),
            }
        }
    }

    /// Readable when there is one.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Forgets what has come, and lets what comes from now on end this process as usual, where
    /// nobody else takes it.
    pub fn release(&self) {
        while self.take().is_some() {}
        if self.source == Source::Relay {
            return;
        }
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
        if self.source == Source::Relay {
            let mut count = [0u8; 8];
            let read = rustix::io::read(&self.fd, &mut count);
            return read.is_ok().then_some(Signal::INTERRUPT);
        }
        let mut record = [0u8; size_of::<libc::signalfd_siginfo>()];
        match rustix::io::read(&self.fd, &mut record) {
            Ok(count) if count == record.len() => Some(i32::from_ne_bytes([
                record[0], record[1], record[2], record[3],
            ])),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relayed_interrupt_is_taken_once_each_time() {
        let (signals, relay) = Signals::relayed().unwrap();
        assert_eq!(signals.take(), None);
        relay.interrupt();
        relay.interrupt();
        assert_eq!(signals.take(), Some(Signal::INTERRUPT));
        assert_eq!(signals.take(), Some(Signal::INTERRUPT));
        assert_eq!(signals.take(), None);
        relay.interrupt();
        signals.release();
        assert_eq!(signals.take(), None);
    }
}
