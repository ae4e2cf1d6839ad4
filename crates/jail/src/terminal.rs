//! Pseudo-terminals inside and the raw mode of the user's own terminal outside.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pty::OpenptFlags;
use rustix::termios::{OptionalActions, Termios, Winsize};

/// A fresh pseudo-terminal: our end, and the one that the command gets.
pub fn open_pair(columns: u16, rows: u16) -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = rustix::pty::openpt(flags)?;
    rustix::pty::unlockpt(&master)?;
    // By descriptor, not by name: what is at /dev/pts/N does not matter.
    let slave = match rustix::pty::ioctl_tiocgptpeer(&master, flags) {
        // This kernel has no such call, and nobody else's mounts: what is there is its own.
        Err(Errno::NOTTY) => by_name(&master)?,
        slave => slave?,
    };
    resize(master.as_fd(), columns, rows)?;
    Ok((master, slave))
}

/// The other side by the name that the kernel gives it.
fn by_name(master: &OwnedFd) -> io::Result<OwnedFd> {
    let name = rustix::pty::ptsname(master, Vec::new())?;
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    Ok(rustix::fs::open(name, flags, Mode::empty())?)
}

/// Tells a terminal its size; the foreground process group gets SIGWINCH.
pub fn resize(terminal: BorrowedFd<'_>, columns: u16, rows: u16) -> io::Result<()> {
    let size = Winsize {
        ws_col: columns,
        ws_row: rows,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    Ok(rustix::termios::tcsetwinsize(terminal, size)?)
}

/// The size of a terminal in columns and rows.
pub fn size(terminal: BorrowedFd<'_>) -> Option<(u16, u16)> {
    let size = rustix::termios::tcgetwinsize(terminal).ok()?;
    (size.ws_col > 0 && size.ws_row > 0).then_some((size.ws_col, size.ws_row))
}

/// The user's terminal in raw mode; dropping it puts the old mode back.
#[derive(Debug)]
pub struct RawMode<'a> {
    terminal: BorrowedFd<'a>,
    before: Termios,
}

impl<'a> RawMode<'a> {
    /// Switches the terminal to raw mode.
    pub fn enter(terminal: BorrowedFd<'a>) -> io::Result<Self> {
        let before = rustix::termios::tcgetattr(terminal)?;
        let mut raw = before.clone();
        raw.make_raw();
        rustix::termios::tcsetattr(terminal, OptionalActions::Drain, &raw)?;
        Ok(Self { terminal, before })
    }

    /// Switches it once more, after somebody else had the terminal.
    pub fn again(&self) -> io::Result<()> {
        let mut raw = self.before.clone();
        raw.make_raw();
        let set = rustix::termios::tcsetattr(self.terminal, OptionalActions::Now, &raw);
        Ok(set?)
    }
}

impl Drop for RawMode<'_> {
    fn drop(&mut self) {
        // A terminal that went away needs no mode.
        // Answers of the terminal that nobody waits for any more must not reach the shell.
        let _ = rustix::termios::tcsetattr(self.terminal, OptionalActions::Flush, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_side_is_the_same_by_its_name() {
        let (master, slave) = open_pair(91, 37).unwrap();
        let named = by_name(&master).unwrap();
        assert_eq!(size(named.as_fd()), Some((91, 37)));
        let inode = |fd: &OwnedFd| rustix::fs::fstat(fd).unwrap().st_rdev;
        assert_eq!(inode(&named), inode(&slave));
    }
}
