//! Sockets of the inside: the guest makes them in the sandbox's network and hands them over.
//!
//! One want is answered by one packet, in order. Whoever stops waiting does not disturb that: one
//! task speaks with the guest.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, SocketAddrV4};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use ringfence_model::gate::{ANSWER_BYTES, SocketKind, Want};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendFlags,
    SocketType, recvmsg, sendmsg, sockopt,
};
use tokio::io::Interest;
use tokio::net::UnixDatagram;
use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_local;

/// BOUND: wants that wait for their turn.
const MAX_WAITING: usize = 64;
/// BOUND: how long a guest may take once it has answered at all.
const ANSWER_TIME: Duration = Duration::from_secs(10);

type Wanted = (Want, oneshot::Sender<io::Result<OwnedFd>>);

/// The guest, to whom sockets are asked for.
#[derive(Clone)]
pub(crate) struct Guest(mpsc::Sender<Wanted>);

impl Guest {
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Self> {
        // There is no type for sequenced packets; of this one only the waiting is used.
        let socket = std::os::unix::net::UnixDatagram::from(socket);
        socket.set_nonblocking(true)?;
        let socket = UnixDatagram::from_std(socket)?;
        let (sender, receiver) = mpsc::channel(MAX_WAITING);
        spawn_local(speak(socket, receiver));
        Ok(Self(sender))
    }

    /// A socket at an address of the inside.
    pub(crate) async fn want(&self, want: Want) -> io::Result<OwnedFd> {
        let (sender, answer) = oneshot::channel();
        let gone = || io::Error::other("the guest is gone");
        self.0.send((want, sender)).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }
}

async fn speak(socket: UnixDatagram, mut wants: mpsc::Receiver<Wanted>) {
    let mut answered = false;
    while let Some((want, to)) = wants.recv().await {
        let exchange = exchange(&socket, want);
        // The guest begins after its gate: the first answer takes as long as that does.
        let got = if !answered {
            exchange.await
        } else {
            tokio::time::timeout(ANSWER_TIME, exchange)
                .await
                .unwrap_or_else(|_| Err(Broken(io::ErrorKind::TimedOut.into())))
        };
        answered = true;
        match got {
            Ok(got) => {
                to.send(got).ok();
            }
            // Answers can no longer be told apart.
            Err(Broken(why)) => {
                to.send(Err(why)).ok();
                return;
            }
        }
    }
}

/// The guest cannot be spoken with any more.
struct Broken(io::Error);

async fn exchange(socket: &UnixDatagram, want: Want) -> Result<io::Result<OwnedFd>, Broken> {
    let packet = want.encode();
    socket
        .async_io(Interest::WRITABLE, || {
            let parts = [IoSlice::new(&packet)];
            let mut none = SendAncillaryBuffer::default();
            Ok(sendmsg(socket, &parts, &mut none, SendFlags::NOSIGNAL)?)
        })
        .await
        .map_err(Broken)?;
    let (number, descriptor) = socket
        .async_io(Interest::READABLE, || receive(socket.as_fd()))
        .await
        .map_err(Broken)?;
    Ok(match (number, descriptor) {
        (0, Some(descriptor)) => check(want, descriptor),
        (0, None) => Err(io::Error::other("the guest answered without a socket")),
        (number, _) => Err(io::Error::from_raw_os_error(number)),
    })
}

fn receive(socket: std::os::fd::BorrowedFd<'_>) -> io::Result<(i32, Option<OwnedFd>)> {
    let mut answer = [0; ANSWER_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut answer)];
    let got = recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptor = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            descriptor = descriptors.last();
        }
    }
    match got.bytes {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        ANSWER_BYTES => Ok((i32::from_le_bytes(answer), descriptor)),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Takes a socket only where it is the one that was wanted.
fn check(want: Want, descriptor: OwnedFd) -> io::Result<OwnedFd> {
    let address = SocketAddr::V4(SocketAddrV4::new(want.address, want.port));
    let there = SocketAddr::try_from(rustix::net::getsockname(&descriptor)?)?;
    let kind = sockopt::socket_type(&descriptor)?;
    let fits = match want.kind {
        SocketKind::Stream => {
            kind == SocketType::STREAM && sockopt::socket_acceptconn(&descriptor)?
        }
        SocketKind::Datagram => kind == SocketType::DGRAM,
    };
    if there != address || !fits {
        return Err(io::Error::other(format!(
            "the guest answered with another socket than that at {address}"
        )));
    }
    rustix::io::ioctl_fionbio(&descriptor, true)?;
    Ok(descriptor)
}
