//! The guest's end of the protocol: frames in, frames out, nothing blocks.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use ringfence_model::wire::{self, Kind, Notice, Reply, Request};
use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use crate::handover::Line;

/// BOUND: beyond this much unsent output, commands are not read from until the host has caught up.
const HIGH_WATER: usize = 1 << 20;

/// BOUND: read at once, from the socket or from a command. Never zeroed and never on the stack:
/// after a fork, each page written is one that the kernel must copy first.
pub const CHUNK: usize = 65536;

/// One request as it came.
#[derive(Debug)]
pub enum Incoming {
    Request(u32, Request),
    Input(u32, Vec<u8>),
    EndInput(u32),
}

/// The way to the host with its buffers.
#[derive(Debug)]
pub struct Connection {
    from: OwnedFd,
    /// `None`: the same as where everything comes from.
    to: Option<OwnedFd>,
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
    sent: usize,
}

impl Connection {
    pub fn new(line: Line) -> io::Result<Self> {
        let (from, to) = match line {
            Line::Socket(socket) => (OwnedFd::from(socket), None),
            Line::Streams { from, to } => (from, Some(to)),
        };
        for end in std::iter::once(&from).chain(&to) {
            rustix::io::ioctl_fionbio(end, true)?;
        }
        Ok(Self {
            from,
            to,
            incoming: Vec::new(),
            outgoing: Vec::new(),
            sent: 0,
        })
    }

    /// What is waited for.
    pub fn interests<'a>(&'a self, waits: &mut Vec<PollFd<'a>>) {
        let wants_to_send = self.sent < self.outgoing.len();
        let sends = if wants_to_send {
            PollFlags::OUT
        } else {
            PollFlags::empty()
        };
        match &self.to {
            None => waits.push(PollFd::new(&self.from, PollFlags::IN | sends)),
            Some(to) => {
                waits.push(PollFd::new(&self.from, PollFlags::IN));
                // Its end is one as well, whatever is waited for.
                waits.push(PollFd::new(to, sends));
            }
        }
    }

    /// Whether commands may produce more.
    pub fn has_room(&self) -> bool {
        self.outgoing.len() - self.sent < HIGH_WATER
    }

    /// Reads what is there; `None` when the host is gone.
    pub fn receive(&mut self) -> io::Result<Option<Vec<Incoming>>> {
        self.incoming.reserve(CHUNK);
        match rustix::io::read(&self.from, spare_capacity(&mut self.incoming)) {
            Ok(0) => return Ok(None),
            Ok(_) => {}
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let mut messages = Vec::new();
        let mut used = 0;
        while let Some((frame, length)) =
            wire::decode(&self.incoming[used..]).map_err(io::Error::other)?
        {
            used += length;
            messages.push(match frame.kind {
                Kind::Request => Incoming::Request(
                    frame.stream,
                    serde_json::from_slice(frame.payload).map_err(io::Error::other)?,
                ),
                Kind::Input => Incoming::Input(frame.stream, frame.payload.to_vec()),
                Kind::EndInput => Incoming::EndInput(frame.stream),
                _ => return Err(io::Error::other("the host sent what only a guest sends")),
            });
        }
        self.incoming.drain(..used);
        Ok(Some(messages))
    }

    /// Sends as much as the socket takes.
    pub fn flush(&mut self) -> io::Result<()> {
        let to = self.to.as_ref().unwrap_or(&self.from).as_fd();
        while self.sent < self.outgoing.len() {
            match rustix::io::write(to, &self.outgoing[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        if self.sent == self.outgoing.len() {
            self.outgoing.clear();
            self.sent = 0;
        } else if self.sent > HIGH_WATER {
            self.outgoing.drain(..self.sent);
            self.sent = 0;
        }
        Ok(())
    }

    pub fn data(&mut self, kind: Kind, stream: u32, bytes: &[u8]) {
        for chunk in bytes.chunks(wire::MAX_PAYLOAD) {
            wire::encode(&mut self.outgoing, kind, stream, chunk);
        }
    }

    /// An empty data frame: the end of a file that was read.
    pub fn end_of_data(&mut self, stream: u32) {
        wire::encode(&mut self.outgoing, Kind::Output, stream, &[]);
    }

    pub fn reply(&mut self, stream: u32, reply: &Reply) {
        self.control(Kind::Reply, stream, serde_json::to_vec(reply));
    }

    pub fn notice(&mut self, stream: u32, notice: &Notice) {
        self.control(Kind::Notice, stream, serde_json::to_vec(notice));
    }

    fn control(&mut self, kind: Kind, stream: u32, json: serde_json::Result<Vec<u8>>) {
        let json = json.expect("plain data always serialises");
        // INVARIANT: lists are cut by their makers; this is the last fence.
        if json.len() <= wire::MAX_PAYLOAD {
            wire::encode(&mut self.outgoing, kind, stream, &json);
        } else {
            let failure = crate::failure("answer", b"request", Errno::MSGSIZE);
            let json =
                serde_json::to_vec(&Reply::Failed(failure)).expect("plain data always serialises");
            wire::encode(&mut self.outgoing, kind, stream, &json);
        }
    }
}
