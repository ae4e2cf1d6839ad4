//! How the guest gets its sockets: left open by our own launcher, or, where somebody else's engine
//! starts it, handed over by the host at a socket in our own directory. Where the host has no directory
//! there, or no socket leads into it, the guest's own streams are the way.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

/// The word before the path of the socket.
const AT: &str = "--at";
/// The word for the streams.
const HERE: &str = "--here";
/// The word before a directory that is to be emptied, and nothing else.
const CLEAR: &str = "--clear";

/// Who started this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Starter {
    /// Our own launcher, whose process this one must not outlive.
    Launcher,
    /// An engine that goes on without us. The end of the socket is the end.
    Engine,
}

/// In a container of its own: removes what an engine left in a directory that is shown there.
pub fn clear(mut words: impl Iterator<Item = String>) -> Option<io::Result<()>> {
    words.nth(1).filter(|word| word == CLEAR)?;
    let empty = |directory: String| {
        let own = std::fs::symlink_metadata(&directory)?.dev();
        for entry in std::fs::read_dir(directory)? {
            let entry = entry?;
            // What is mounted there is somebody's. No link is followed.
            if entry.metadata()?.dev() != own {
                return Err(io::ErrorKind::CrossesDevices.into());
            }
            if entry.file_type()?.is_dir() {
                std::fs::remove_dir_all(entry.path())?
            } else {
                std::fs::remove_file(entry.path())?
            }
        }
        Ok(())
    };
    words.next().map(empty)
}

/// The way to the host.
#[derive(Debug)]
pub enum Line {
    Socket(UnixStream),
    Streams { from: OwnedFd, to: OwnedFd },
}

/// What the host left for the guest.
#[derive(Debug)]
pub struct Handover {
    starter: Starter,
    line: Line,
    /// Where a gate asks. By the launcher it is left at a number of its own.
    gate: Option<OwnedFd>,
}

impl Handover {
    /// By the words that this program was started with.
    pub fn take(mut words: impl Iterator<Item = String>) -> io::Result<Self> {
        let _program = words.next();
        match (words.next().as_deref(), words.next()) {
            (Some(AT), Some(path)) => Self::at(&path),
            (Some(HERE), _) => Ok(Self {
                starter: Starter::Engine,
                line: streams()?,
                gate: None,
            }),
            _ => Ok(Self {
                starter: Starter::Launcher,
                // The socket is inherited as descriptor 3; nothing else is open.
                line: Line::Socket(ringfence_jail::inherited_socket()),
                gate: None,
            }),
        }
    }

    /// One message with one or two sockets; then the way that they came by is of no use any more.
    fn at(path: &str) -> io::Result<Self> {
        let way = UnixStream::connect(path)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut rights = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0_u8];
        let flags = RecvFlags::CMSG_CLOEXEC;
        rustix::net::recvmsg(&way, &mut [IoSliceMut::new(&mut byte)], &mut rights, flags)?;
        let mut sockets: Vec<OwnedFd> = Vec::new();
        for message in rights.drain() {
            if let RecvAncillaryMessage::ScmRights(handed) = message {
                sockets.extend(handed);
            }
        }
        let mut sockets = sockets.into_iter();
        let control = sockets.next().ok_or(io::ErrorKind::UnexpectedEof)?;
        Ok(Self {
            starter: Starter::Engine,
            line: Line::Socket(control.into()),
            gate: sockets.next(),
        })
    }

    /// The socket of the gate. Called once, and only where there is a gate.
    pub fn gate(starter: Starter, handed: Option<OwnedFd>) -> io::Result<OwnedFd> {
        match starter {
            Starter::Launcher => Ok(ringfence_jail::inherited_gate()),
            Starter::Engine => handed.ok_or(io::ErrorKind::NotConnected.into()),
        }
    }

    pub fn into_parts(self) -> (Starter, Line, Option<OwnedFd>) {
        (self.starter, self.line, self.gate)
    }
}

/// Standard input and output, at numbers that no command gets by chance; nothing stays where they were.
fn streams() -> io::Result<Line> {
    let from = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    let to = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?;
    let nothing = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    rustix::stdio::dup2_stdin(&nothing)?;
    rustix::stdio::dup2_stdout(&nothing)?;
    rustix::stdio::dup2_stderr(&nothing)?;
    Ok(Line::Streams { from, to })
}
