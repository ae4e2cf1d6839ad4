//! One connection of a caller to a keeper: frames in, frames out, nothing blocks.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use ringfence_model::sandbox::{Answer, Call, Purpose};
use ringfence_model::wire::{self, Kind, Request};
use rustix::buffer::spare_capacity;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::RecvFlags;

/// BOUND: read at once.
const CHUNK: usize = 65536;
/// BOUND: what waits for a caller that does not read, before its commands wait as well.
pub const HIGH_WATER: usize = 1 << 20;
pub const LOW_WATER: usize = 1 << 18;

/// What a caller says.
#[derive(Debug)]
pub enum Said {
    Call(Call),
    Request(u32, Request),
    Input(u32, Vec<u8>),
    EndInput(u32),
}

/// A caller.
#[derive(Debug)]
pub struct Peer {
    socket: UnixStream,
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
    sent: usize,
    pub purpose: Option<Purpose>,
    /// The guest's number of each of its streams.
    pub streams: BTreeMap<u32, u32>,
    /// It has frozen the sandbox.
    pub froze: bool,
    /// Its commands wait until it has read.
    pub held: bool,
    /// What it said while everything stood still.
    pub held_back: VecDeque<Said>,
}

impl Peer {
    /// INVARIANT: whoever connects is the same user; the socket's directory says so as well.
    pub fn admit(socket: UnixStream) -> io::Result<Option<Self>> {
        let who = rustix::net::sockopt::socket_peercred(&socket)?;
        if who.uid != rustix::process::geteuid() {
            return Ok(None);
        }
        socket.set_nonblocking(true)?;
        Ok(Some(Self {
            socket,
            incoming: Vec::new(),
            outgoing: Vec::new(),
            sent: 0,
            purpose: None,
            streams: BTreeMap::new(),
            froze: false,
            held: false,
            held_back: VecDeque::new(),
        }))
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether it has hung up, though that was not read yet.
    pub fn is_gone(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        matches!(
            rustix::net::recv(&self.socket, &mut [0u8; 1], flags),
            Ok((_, 0)) | Err(Errno::CONNRESET)
        )
    }

    pub fn interest(&self) -> PollFlags {
        if self.waiting() > 0 {
            PollFlags::IN | PollFlags::OUT
        } else {
            PollFlags::IN
        }
    }

    /// Bytes that it has not taken yet.
    pub fn waiting(&self) -> usize {
        self.outgoing.len() - self.sent
    }

    /// Reads what is there; `None` when it is gone or does not keep to the protocol.
    pub fn receive(&mut self) -> Option<Vec<Said>> {
        self.incoming.reserve(CHUNK);
        match rustix::io::read(&self.socket, spare_capacity(&mut self.incoming)) {
            Ok(0) => return None,
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => return None,
        }
        let mut said = Vec::new();
        let mut used = 0;
        while let Some((frame, length)) = wire::decode(&self.incoming[used..]).ok()? {
            used += length;
            said.push(match (frame.kind, frame.stream) {
                (Kind::Request, 0) => Said::Call(serde_json::from_slice(frame.payload).ok()?),
                (Kind::Request, stream) => {
                    Said::Request(stream, serde_json::from_slice(frame.payload).ok()?)
                }
                (Kind::Input, stream) => Said::Input(stream, frame.payload.to_vec()),
                (Kind::EndInput, stream) => Said::EndInput(stream),
                _ => return None,
            });
        }
        self.incoming.drain(..used);
        Some(said)
    }

    pub fn send(&mut self, kind: Kind, stream: u32, payload: &[u8]) {
        for chunk in payload.chunks(wire::MAX_PAYLOAD) {
            wire::encode(&mut self.outgoing, kind, stream, chunk);
        }
        if payload.is_empty() {
            wire::encode(&mut self.outgoing, kind, stream, payload);
        }
    }

    pub fn answer(&mut self, answer: &Answer) {
        let json = serde_json::to_vec(answer).expect("plain data always serialises");
        self.send(Kind::Reply, 0, &json);
    }

    /// Sends what the socket takes; false when the caller is gone.
    pub fn flush(&mut self) -> bool {
        while self.sent < self.outgoing.len() {
            match rustix::io::write(&self.socket, &self.outgoing[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
        if self.sent == self.outgoing.len() {
            self.outgoing.clear();
            self.sent = 0;
        } else if self.sent > HIGH_WATER {
            self.outgoing.drain(..self.sent);
            self.sent = 0;
        }
        true
    }

    /// The last words of a keeper: waited for, within reason.
    pub fn flush_last(&mut self) {
        // A caller that does not read its answer loses it.
        let _ = self.socket.set_nonblocking(false);
        let _ = self
            .socket
            .set_write_timeout(Some(std::time::Duration::from_secs(1)));
        self.flush();
    }
}
