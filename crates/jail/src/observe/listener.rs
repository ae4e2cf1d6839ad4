//! Calls that a filter shows, and the answers to them.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

use super::asked::Asked;

const RECEIVE: libc::c_ulong = 0xc050_2100;
const SEND: libc::c_ulong = 0xc018_2101;
const IS_VALID: libc::c_ulong = 0x4008_2102;
const SET_FLAGS: libc::c_ulong = 0x4008_2104;
const WAKE_IN_STEP: u64 = 1;
const GO_ON: u32 = 1;

#[repr(C)]
#[derive(Default)]
struct Notification {
    id: u64,
    pid: u32,
    flags: u32,
    number: i32,
    architecture: u32,
    instruction: u64,
    arguments: [u64; 6],
}

#[repr(C)]
struct Response {
    id: u64,
    value: i64,
    error: i32,
    flags: u32,
}

/// A call that waits for its answer.
#[derive(Clone, Copy, Debug)]
pub struct Shown {
    pub id: u64,
    /// The thread that called.
    pub thread: i32,
    pub asked: Asked,
}

/// Where the calls of one command are shown.
#[derive(Debug)]
pub struct Listener(OwnedFd);

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Listener {
    /// The next call. To be asked when the descriptor is readable: it would wait otherwise.
    pub fn receive(&self) -> Option<Shown> {
        let mut seen = Notification::default();
        // SAFETY: the structure is the kernel's, zeroed as it must be, and ours to be written.
        let result = unsafe { libc::ioctl(self.0.as_raw_fd(), RECEIVE as _, &raw mut seen) };
        // Who called may have been killed meanwhile.
        (result == 0).then_some(Shown {
            id: seen.id,
            thread: seen.pid as i32,
            asked: Asked::of(seen.number.into(), seen.arguments),
        })
    }

    /// Whether the call still waits: what was read of the thread before was its own.
    pub fn still_waits(&self, call: &Shown) -> bool {
        // SAFETY: the number is read only.
        unsafe { libc::ioctl(self.0.as_raw_fd(), IS_VALID as _, &raw const call.id) == 0 }
    }

    /// Lets the kernel do what was asked.
    pub fn let_go_on(&self, call: &Shown) {
        self.answer(call, 0, GO_ON);
    }

    /// Has the call fail.
    pub fn refuse(&self, call: &Shown, errno: Errno) {
        self.answer(call, -errno.raw_os_error(), 0);
    }

    fn answer(&self, call: &Shown, error: i32, flags: u32) {
        let response = Response {
            id: call.id,
            value: 0,
            error,
            flags,
        };
        // Who called may have been killed meanwhile; there is nobody to tell then.
        // SAFETY: the structure is read only.
        unsafe { libc::ioctl(self.0.as_raw_fd(), SEND as _, &raw const response) };
    }
}

/// Two ends of which one goes to a warden.
pub(crate) fn pair() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )
}

/// Sends the listener to the guest.
pub(crate) fn send_listener(socket: BorrowedFd<'_>, listener: RawFd) -> rustix::io::Result<()> {
    // SAFETY: the descriptor is open, and is not closed while it is borrowed here.
    let fds = [unsafe { BorrowedFd::borrow_raw(listener) }];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&fds));
    rustix::net::sendmsg(
        socket,
        &[IoSlice::new(&[1])],
        &mut control,
        SendFlags::NOSIGNAL,
    )?;
    Ok(())
}

/// Takes the listener that a warden sends; waits for it, or for the warden's end.
pub fn receive_listener(socket: BorrowedFd<'_>) -> io::Result<Listener> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    loop {
        match rustix::net::recvmsg(
            socket,
            &mut [IoSliceMut::new(&mut byte)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        ) {
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
            Ok(_) => break,
        }
    }
    let sent = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    let listener = Listener(sent.ok_or(Errno::NOTSUP)?);
    let flags = WAKE_IN_STEP;
    // Only faster, and only newer kernels have it.
    // SAFETY: the flags are passed by value.
    unsafe { libc::ioctl(listener.0.as_raw_fd(), SET_FLAGS as _, flags) };
    Ok(listener)
}

/// Installs a filter with a listener on this process and all that it starts.
pub(crate) fn install(program: &[seccompiler::sock_filter]) -> rustix::io::Result<OwnedFd> {
    const NEW_LISTENER: libc::c_ulong = 1 << 3;
    /// Once a call is being looked at, only a deadly signal interrupts it.
    const WAIT_KILLABLE: libc::c_ulong = 1 << 5;
    let program = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_ptr().cast_mut().cast(),
    };
    // SAFETY: the program lives through the call and is only read.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            NEW_LISTENER | WAIT_KILLABLE,
            &raw const program,
        )
    };
    if fd < 0 {
        return Err(crate::sys::last_errno());
    }
    // SAFETY: the kernel gave a new descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}
