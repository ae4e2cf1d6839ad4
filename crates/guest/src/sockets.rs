//! Sockets for the gate: made here, in the sandbox's own network, and handed over.
//!
//! The gate is on the host and cannot enter this network. It names an address; the guest makes the
//! socket and passes the descriptor. From then on it is the gate that accepts and reads.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ringfence_model::gate::{SocketKind, Want};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags,
    SocketType,
};

/// BOUND: connections that wait to be accepted at one address.
const BACKLOG: i32 = 512;

/// Where the gate asks.
#[derive(Debug)]
pub struct Sockets {
    /// `None` once the gate is gone: then nothing can be reached, and everything else goes on.
    gate: Option<OwnedFd>,
}

impl Sockets {
    pub fn absent() -> Self {
        Self { gate: None }
    }

    pub fn asked_by(gate: OwnedFd) -> Self {
        Self { gate: Some(gate) }
    }

    pub fn interests<'a>(&'a self, waits: &mut Vec<PollFd<'a>>) {
        if let Some(gate) = &self.gate {
            waits.push(PollFd::new(gate, PollFlags::IN));
        }
    }

    /// Answers what the gate has asked.
    pub fn advance(&mut self) {
        while let Some(gate) = &self.gate {
            match take(gate.as_fd()) {
                Ok(Some(want)) => {
                    if answer(gate.as_fd(), want.and_then(make)).is_err() {
                        self.gate = None;
                    }
                }
                Ok(None) => return,
                Err(_) => self.gate = None,
            }
        }
    }
}

/// One question, if there is one.
fn take(gate: BorrowedFd<'_>) -> rustix::io::Result<Option<Result<Want, Errno>>> {
    let mut packet = [0u8; Want::BYTES + 1];
    match rustix::net::recv(gate, packet.as_mut_slice(), RecvFlags::DONTWAIT) {
        Ok((0, _)) => Err(Errno::PIPE),
        Ok((count, _)) => Ok(Some(Want::decode(&packet[..count]).ok_or(Errno::INVAL))),
        Err(Errno::AGAIN) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Only addresses of the loopback can be asked for.
fn make(want: Want) -> rustix::io::Result<OwnedFd> {
    if !Ipv4Addr::is_loopback(&want.address) {
        return Err(Errno::ADDRNOTAVAIL);
    }
    let kind = match want.kind {
        SocketKind::Stream => SocketType::STREAM,
        SocketKind::Datagram => SocketType::DGRAM,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::INET, kind, flags, None)?;
    // What an earlier listener left in its last states does not count.
    rustix::net::sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &SocketAddrV4::new(want.address, want.port))?;
    if want.kind == SocketKind::Stream {
        rustix::net::listen(&socket, BACKLOG)?;
    }
    Ok(socket)
}

#[allow(
    clippy::needless_pass_by_value,
    reason = "our copy of the socket is closed once it was sent"
)]
fn answer(gate: BorrowedFd<'_>, made: rustix::io::Result<OwnedFd>) -> rustix::io::Result<()> {
    let number = match &made {
        Ok(_) => 0,
        Err(errno) => errno.raw_os_error(),
    };
    let bytes = number.to_le_bytes();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    let passed: Vec<BorrowedFd<'_>> = made.iter().map(AsFd::as_fd).collect();
    if !passed.is_empty() {
        rights.push(SendAncillaryMessage::ScmRights(&passed));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(gate, &[IoSlice::new(&bytes)], &mut rights, flags).map(drop)
}
