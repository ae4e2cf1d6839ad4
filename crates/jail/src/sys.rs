//! System calls that `rustix` does not wrap, each as a small function over plain values.
//!
//! INVARIANT: nothing here allocates, so that all of it may be called between clone and exec.

mod scheduler;

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::Errno;

pub use scheduler::{Descendants, be_prompt, processor_time};

pub(crate) const MOUNT_ATTR_RDONLY: u64 = 0x1;
pub(crate) const MOUNT_ATTR_NOSUID: u64 = 0x2;
pub(crate) const MOUNT_ATTR_NODEV: u64 = 0x4;
pub(crate) const MOUNT_ATTR_NOEXEC: u64 = 0x8;
pub(crate) const MOUNT_ATTR_IDMAP: u64 = 0x0010_0000;

#[repr(C)]
#[derive(Default)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    userns_fd: u64,
}

/// Why the last call failed.
pub(crate) fn last_errno() -> Errno {
    // SAFETY: errno is always there to be read.
    Errno::from_raw_os_error(unsafe { *libc::__errno_location() })
}

fn check(result: libc::c_long) -> rustix::io::Result<libc::c_long> {
    if result < 0 {
        Err(last_errno())
    } else {
        Ok(result)
    }
}

/// Sets attributes of a mount and, if `recursive`, of all below it.
pub(crate) fn mount_setattr(
    directory: RawFd,
    path: &CStr,
    recursive: Recursive,
    set: u64,
    idmap: Option<RawFd>,
) -> rustix::io::Result<()> {
    let mut flags = libc::AT_SYMLINK_NOFOLLOW;
    if recursive == Recursive::Yes {
        flags |= libc::AT_RECURSIVE;
    }
    if path.is_empty() {
        flags |= libc::AT_EMPTY_PATH;
    }
    let attr = MountAttr {
        set: set | if idmap.is_some() { MOUNT_ATTR_IDMAP } else { 0 },
        userns_fd: idmap.map_or(0, |fd| fd as u64),
        ..MountAttr::default()
    };
    // SAFETY: path is NUL-terminated and attr lives through the call; the kernel only reads them.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            directory,
            path.as_ptr(),
            flags,
            &raw const attr,
            size_of::<MountAttr>(),
        )
    })?;
    Ok(())
}

/// Whether a mount operation takes what is mounted below along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recursive {
    Yes,
    No,
}

/// A detached copy of the mount at a path.
pub(crate) fn open_tree(path: &CStr, recursive: Recursive) -> rustix::io::Result<OwnedFd> {
    open_tree_at(libc::AT_FDCWD, path, recursive)
}

/// The same, of what a descriptor has open.
pub(crate) fn open_tree_of(fd: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    open_tree_at(fd.as_raw_fd(), c"", Recursive::No)
}

fn open_tree_at(
    directory: RawFd,
    path: &CStr,
    recursive: Recursive,
) -> rustix::io::Result<OwnedFd> {
    const OPEN_TREE_CLONE: libc::c_uint = 1;
    const OPEN_TREE_CLOEXEC: libc::c_uint = libc::O_CLOEXEC as libc::c_uint;
    let mut flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC;
    if recursive == Recursive::Yes {
        flags |= libc::AT_RECURSIVE as libc::c_uint;
    }
    if path.is_empty() {
        flags |= libc::AT_EMPTY_PATH as libc::c_uint;
    }
    // SAFETY: path is NUL-terminated; the result is a new descriptor that nothing else owns.
    let fd = check(unsafe { libc::syscall(libc::SYS_open_tree, directory, path.as_ptr(), flags) })?;
    // SAFETY: as above.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Attaches a detached mount at a path relative to the working directory.
pub(crate) fn move_mount(from: RawFd, to: &CStr) -> rustix::io::Result<()> {
    move_mount_at(from, libc::AT_FDCWD, to)
}

/// The same, onto what a descriptor has open.
pub(crate) fn move_mount_onto(from: RawFd, to: BorrowedFd<'_>) -> rustix::io::Result<()> {
    move_mount_at(from, to.as_raw_fd(), c"")
}

fn move_mount_at(from: RawFd, directory: RawFd, to: &CStr) -> rustix::io::Result<()> {
    const MOVE_MOUNT_F_EMPTY_PATH: libc::c_uint = 4;
    const MOVE_MOUNT_T_EMPTY_PATH: libc::c_uint = 0x40;
    let flags = if to.is_empty() {
        MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH
    } else {
        MOVE_MOUNT_F_EMPTY_PATH
    };
    // SAFETY: both strings are NUL-terminated and only read.
    check(unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            from,
            c"".as_ptr(),
            directory,
            to.as_ptr(),
            flags,
        )
    })?;
    Ok(())
}

/// What clone gives to each side.
pub(crate) enum Cloned {
    Child,
    Parent { pid: i32, pidfd: OwnedFd },
}

/// `clone3` with the given namespace flags and no shared memory, like `fork`.
///
/// # Safety
/// The child runs in a copy of a possibly multi-threaded process without libc knowing: until exec
/// or exit it may only make system calls, and must not allocate or take locks.
pub(crate) unsafe fn clone_into(flags: u64, cgroup: Option<RawFd>) -> rustix::io::Result<Cloned> {
    const CLONE_PIDFD: u64 = 0x1000;
    const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
    #[repr(C)]
    #[derive(Default)]
    struct CloneArgs {
        flags: u64,
        pidfd: u64,
        child_tid: u64,
        parent_tid: u64,
        exit_signal: u64,
        stack: u64,
        stack_size: u64,
        tls: u64,
        set_tid: u64,
        set_tid_size: u64,
        cgroup: u64,
    }
    let mut pidfd: RawFd = -1;
    let args = CloneArgs {
        flags: flags
            | CLONE_PIDFD
            | if cgroup.is_some() {
                CLONE_INTO_CGROUP
            } else {
                0
            },
        pidfd: (&raw mut pidfd) as u64,
        exit_signal: libc::SIGCHLD as u64,
        cgroup: cgroup.map_or(0, |fd| fd as u64),
        ..CloneArgs::default()
    };
    // SAFETY: args is valid for the call; without CLONE_VM the child has its own copy of memory.
    let pid =
        check(unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of::<CloneArgs>()) })?;
    if pid == 0 {
        return Ok(Cloned::Child);
    }
    Ok(Cloned::Parent {
        pid: pid as i32,
        // SAFETY: the kernel stored a new descriptor here, and nothing else owns it.
        pidfd: unsafe { OwnedFd::from_raw_fd(pidfd) },
    })
}

/// `fork` for single-threaded programs (the guest and the wardens).
///
/// # Safety
/// The calling process must have one thread.
pub(crate) unsafe fn fork_single_threaded() -> io::Result<Option<i32>> {
    // SAFETY: the caller promises that there is one thread, so the child may run any code.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        pid => Ok(Some(pid)),
    }
}

/// Starts a process that runs `body` in this one's memory, on a stack of its own. This process
/// sleeps until the new one has executed a program or ended, so that nothing of it is copied.
///
/// # Safety
/// The calling process must have one thread, and `body` must not return or unwind: it ends in exec
/// or in an exit. `argument` is what `body` takes.
pub(crate) unsafe fn spawn_in_place(
    body: extern "C" fn(*mut libc::c_void) -> libc::c_int,
    argument: *mut libc::c_void,
) -> io::Result<i32> {
    // BOUND: what preparing a command needs, many times over.
    let mut stack = vec![0u128; 256 * 1024 / size_of::<u128>()];
    let top = stack.as_mut_ptr_range().end;
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the stack is aligned, grows down from its end and outlives the child's use of it,
    // because the call returns only when the child has left this memory.
    match unsafe { libc::clone(body, top.cast(), flags, argument) } {
        -1 => Err(io::Error::last_os_error()),
        pid => Ok(pid),
    }
}

/// Ends the process at once.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: _exit runs no handlers and does not return.
    unsafe { libc::_exit(code) }
}

/// Executes an open file.
pub(crate) fn execveat(
    fd: RawFd,
    argv: &[*const libc::c_char],
    envp: &[*const libc::c_char],
) -> Errno {
    debug_assert!(argv.last().is_some_and(|p| p.is_null()));
    debug_assert!(envp.last().is_some_and(|p| p.is_null()));
    // SAFETY: both vectors end in NULL and hold NUL-terminated strings; on success this does not
    // return.
    let result = unsafe {
        libc::syscall(
            libc::SYS_execveat,
            fd,
            c"".as_ptr(),
            argv.as_ptr(),
            envp.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    };
    check(result).err().unwrap_or(Errno::IO)
}

/// Executes a path; returns only on failure.
pub(crate) fn execve(
    path: &CStr,
    argv: &[*const libc::c_char],
    envp: &[*const libc::c_char],
) -> Errno {
    // SAFETY: as in `execveat`.
    unsafe { libc::execve(path.as_ptr(), argv.as_ptr(), envp.as_ptr()) };
    Errno::from_raw_os_error(
        io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or(libc::EIO),
    )
}

pub(crate) fn prctl(option: libc::c_int, value: libc::c_ulong) -> rustix::io::Result<()> {
    // SAFETY: the options used here take one plain number.
    check(libc::c_long::from(unsafe {
        libc::prctl(option, value, 0, 0, 0)
    }))?;
    Ok(())
}

/// Sets effective and permitted capabilities to `keep` and clears the inheritable ones, and with
/// them the ambient ones.
pub(crate) fn set_capabilities(keep: u64) -> rustix::io::Result<()> {
    set_inheritable_capabilities(keep, 0)
}

/// Capabilities that are permitted and inheritable already are kept through exec.
pub(crate) fn raise_ambient(capabilities: u64) -> rustix::io::Result<()> {
    for capability in (0..u64::BITS).filter(|bit| capabilities >> bit & 1 == 1) {
        // SAFETY: plain numbers.
        check(libc::c_long::from(unsafe {
            libc::prctl(
                libc::PR_CAP_AMBIENT,
                libc::PR_CAP_AMBIENT_RAISE,
                libc::c_ulong::from(capability),
                0,
                0,
            )
        }))?;
    }
    Ok(())
}

/// Sets effective and permitted capabilities to `keep`, and the inheritable ones.
pub(crate) fn set_inheritable_capabilities(keep: u64, inheritable: u64) -> rustix::io::Result<()> {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Data {
        effective: u32,
        permitted: u32,
        inheritable: u32,
    }
    let header = Header {
        version: 0x2008_0522,
        pid: 0,
    };
    let low = keep as u32;
    let high = (keep >> 32) as u32;
    let data = [
        Data {
            effective: low,
            permitted: low,
            inheritable: inheritable as u32,
        },
        Data {
            effective: high,
            permitted: high,
            inheritable: (inheritable >> 32) as u32,
        },
    ];
    // SAFETY: header and data have the layout of version 3 and live through the call.
    check(unsafe { libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()) })?;
    Ok(())
}

/// Drops every capability but those in `keep` from the bounding set.
pub(crate) fn bound_capabilities(keep: u64) -> rustix::io::Result<()> {
    for capability in 0..64 {
        if keep >> capability & 1 == 1 {
            continue;
        }
        match prctl(libc::PR_CAPBSET_DROP, capability) {
            Ok(()) => {}
            // The kernel knows no more capabilities.
            Err(Errno::INVAL) => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Sets all user and group ids of this thread and leaves no supplementary group.
pub(crate) fn set_ids(uid: u32, gid: u32) -> rustix::io::Result<()> {
    // SAFETY: plain numbers; the raw calls change this thread only, which is the only one.
    unsafe {
        check(libc::syscall(
            libc::SYS_setgroups,
            0,
            std::ptr::null::<u32>(),
        ))?;
        check(libc::syscall(libc::SYS_setresgid, gid, gid, gid))?;
        check(libc::syscall(libc::SYS_setresuid, uid, uid, uid))?;
    }
    Ok(())
}

pub(crate) fn set_hostname(name: &[u8]) -> rustix::io::Result<()> {
    // SAFETY: pointer and length describe `name`.
    check(unsafe { libc::syscall(libc::SYS_sethostname, name.as_ptr(), name.len()) })?;
    Ok(())
}

/// Brings the loopback interface of this network namespace up.
pub(crate) fn loopback_up() -> rustix::io::Result<()> {
    let mut request = interface(b"lo");
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    set_interface(libc::SIOCSIFFLAGS, &request)
}

/// Gives the loopback interface one more address.
pub(crate) fn loopback_address(address: std::net::Ipv4Addr) -> rustix::io::Result<()> {
    for (call, value) in [
        (libc::SIOCSIFADDR, address),
        (libc::SIOCSIFNETMASK, std::net::Ipv4Addr::BROADCAST),
    ] {
        let mut request = interface(b"lo:gate");
        let inet = libc::sockaddr_in {
            sin_family: libc::AF_INET as libc::sa_family_t,
            sin_port: 0,
            sin_addr: libc::in_addr {
                s_addr: u32::from_ne_bytes(value.octets()),
            },
            sin_zero: [0; 8],
        };
        // SAFETY: both are the kernel's forms of one address, of the same size.
        request.ifr_ifru.ifru_addr =
            unsafe { std::mem::transmute::<libc::sockaddr_in, libc::sockaddr>(inet) };
        set_interface(call, &request)?;
    }
    Ok(())
}

fn interface(name: &[u8]) -> libc::ifreq {
    // SAFETY: all zero is a valid request.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name) {
        *to = *from as libc::c_char;
    }
    request
}

fn set_interface(call: libc::Ioctl, request: &libc::ifreq) -> rustix::io::Result<()> {
    // SAFETY: the request is as large as these calls expect; the socket is closed.
    unsafe {
        let socket = check(libc::c_long::from(libc::socket(
            libc::AF_INET,
            libc::SOCK_DGRAM | libc::SOCK_CLOEXEC,
            0,
        )))?;
        let socket = OwnedFd::from_raw_fd(socket as RawFd);
        let done = libc::ioctl(socket.as_raw_fd(), call, &raw const *request);
        check(libc::c_long::from(done)).map(drop)
    }
}

pub(crate) fn unshare(flags: libc::c_int) -> rustix::io::Result<()> {
    // SAFETY: plain numbers.
    check(libc::c_long::from(unsafe { libc::unshare(flags) }))?;
    Ok(())
}

/// Closes every descriptor from `first` on.
pub(crate) fn close_from(first: u32) -> rustix::io::Result<()> {
    // SAFETY: callers own no descriptor at or above `first` that they use again.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) })?;
    Ok(())
}

/// Closes what a caller left open beyond the standard streams.
///
/// INVARIANT: called first thing in a process, before it opens anything of its own.
pub fn close_inherited() {
    // A kernel without the call leaves them open, as they were.
    let _ = close_from(3);
}

pub(crate) fn dup_to(from: RawFd, to: RawFd) -> rustix::io::Result<()> {
    // SAFETY: plain numbers; dup2 leaves `to` without close-on-exec.
    check(libc::c_long::from(unsafe { libc::dup2(from, to) }))?;
    Ok(())
}

pub(crate) fn set_rlimit(resource: u32, value: u64) -> rustix::io::Result<()> {
    let limit = libc::rlimit64 {
        rlim_cur: value,
        rlim_max: value,
    };
    // SAFETY: limit lives through the call.
    check(libc::c_long::from(unsafe {
        libc::setrlimit64(resource, &raw const limit)
    }))?;
    Ok(())
}

pub(crate) fn get_rlimit_hard(resource: u32) -> u64 {
    let mut limit = libc::rlimit64 {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: limit is ours to be written.
    let result = unsafe { libc::getrlimit64(resource, &raw mut limit) };
    if result == 0 {
        limit.rlim_max
    } else {
        u64::MAX
    }
}

/// Sends a signal through a pidfd.
pub(crate) fn pidfd_signal(pidfd: BorrowedFd<'_>, signal: i32) -> rustix::io::Result<()> {
    // SAFETY: the descriptor is open and no siginfo is given.
    check(unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            signal,
            std::ptr::null::<libc::siginfo_t>(),
            0,
        )
    })?;
    Ok(())
}

/// The whole machine's memory.
pub fn total_memory_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram as u64 * u64::from(info.mem_unit)
}

/// How many processors this process may use.
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Raises this process's own bound of open files to what it may be.
pub fn allow_many_files() {
    let hard = get_rlimit_hard(libc::RLIMIT_NOFILE);
    // Where that fails, the bound is what it was.
    let _ = set_rlimit(libc::RLIMIT_NOFILE, hard);
}

/// This process gets a signal when the thread that started it dies.
pub fn become_subject_of(signal: i32) -> io::Result<()> {
    Ok(prctl(libc::PR_SET_PDEATHSIG, signal as libc::c_ulong)?)
}

/// What the guest ignores.
const IGNORED: [libc::c_int; 5] = [
    libc::SIGPIPE,
    libc::SIGTTIN,
    libc::SIGTTOU,
    libc::SIGHUP,
    libc::SIGCHLD,
];

/// Ignores broken pipes and terminal stops, and lets the kernel reap every child. All other
/// signals are as if nobody had ever changed them, whatever the host's process ignored.
pub fn ignore_signals() {
    for signal in 1..65 {
        // SAFETY: the default disposition is valid for every signal; the few that refuse it do.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    for signal in IGNORED {
        // SAFETY: SIG_IGN is a valid disposition for these signals.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// Takes back what `ignore_signals` did, in a process that was forked from the guest.
pub(crate) fn heed_signals() {
    for signal in IGNORED {
        // SAFETY: the default disposition is valid for these signals.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// The protocol socket that the launcher left for the guest.
///
/// INVARIANT: called once, first thing, by the guest.
pub fn inherited_socket() -> std::os::unix::net::UnixStream {
    inherited(crate::execute::CONTROL_FD).into()
}

/// The socket of the gate that the launcher left for the guest, where there is one.
///
/// INVARIANT: called at most once, before the guest opens anything, and only in a sandbox that was
/// launched with a gate.
pub fn inherited_gate() -> OwnedFd {
    inherited(crate::execute::GATE_FD)
}

fn inherited(fd: RawFd) -> OwnedFd {
    // SAFETY: the launcher leaves exactly these descriptors open above the standard streams, and
    // nothing else in the guest has touched them.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // Commands must not inherit it; a descriptor that is not open fails at the first read.
    let _ = rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC);
    socket
}
