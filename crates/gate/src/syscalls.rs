//! Which system calls a gate has: those that sockets, its cache and the look-up of hosts take.
//!
//! Everything else answers `ENOSYS`, as on an older kernel: the C library falls back, and what the kernel learns
//! tomorrow is closed today. A gate starts no program and no process, signals nobody, listens nowhere, and reaches no
//! socket of the host's own services: whoever can talk to a session bus can start programs.

use std::collections::BTreeMap;

use libc::c_long;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Length, SeccompCmpOp as Compare,
    SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

/// The filter could not be built or installed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FilterError {
    #[error("this processor architecture has no system call filter")]
    Architecture(#[source] seccompiler::BackendError),
    #[error("cannot build the system call filter")]
    Build(#[source] seccompiler::BackendError),
    #[error("cannot install the system call filter")]
    Install(#[source] seccompiler::Error),
}

/// Allowed whatever their arguments are.
#[rustfmt::skip]
const ALLOWED: &[c_long] = &[
    // Connections.
    libc::SYS_bind, libc::SYS_connect, libc::SYS_accept, libc::SYS_accept4, libc::SYS_shutdown,
    libc::SYS_sendto, libc::SYS_recvfrom, libc::SYS_sendmsg, libc::SYS_recvmsg, libc::SYS_sendmmsg,
    libc::SYS_recvmmsg, libc::SYS_setsockopt, libc::SYS_getsockopt, libc::SYS_getsockname,
    libc::SYS_getpeername,
    // Waiting.
    libc::SYS_epoll_create1, libc::SYS_epoll_ctl, libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2, libc::SYS_ppoll, libc::SYS_futex, libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep, libc::SYS_restart_syscall,
    // Files: certificates, what finding hosts takes, the cache. Landlock says which.
    libc::SYS_openat, libc::SYS_close, libc::SYS_read, libc::SYS_write, libc::SYS_readv,
    libc::SYS_writev, libc::SYS_pread64, libc::SYS_pwrite64, libc::SYS_lseek, libc::SYS_fstat,
    libc::SYS_newfstatat, libc::SYS_statx, libc::SYS_fstatfs, libc::SYS_getdents64,
    libc::SYS_readlinkat, libc::SYS_faccessat, libc::SYS_faccessat2, libc::SYS_getcwd,
    libc::SYS_mkdirat, libc::SYS_unlinkat, libc::SYS_renameat2, libc::SYS_ftruncate,
    libc::SYS_fsync, libc::SYS_fdatasync, libc::SYS_utimensat, libc::SYS_fadvise64, libc::SYS_flock,
    libc::SYS_fcntl, libc::SYS_dup,
    // Memory and threads.
    libc::SYS_munmap, libc::SYS_mremap, libc::SYS_brk, libc::SYS_madvise, libc::SYS_rseq,
    libc::SYS_set_robust_list, libc::SYS_sched_yield, libc::SYS_sched_getaffinity,
    libc::SYS_getcpu, libc::SYS_rt_sigaction, libc::SYS_rt_sigprocmask, libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack, libc::SYS_exit, libc::SYS_exit_group,
    // What a program asks about itself and the machine.
    libc::SYS_getpid, libc::SYS_gettid, libc::SYS_getuid, libc::SYS_geteuid, libc::SYS_getgid,
    libc::SYS_getegid, libc::SYS_getrandom, libc::SYS_clock_gettime, libc::SYS_clock_getres,
    libc::SYS_gettimeofday, libc::SYS_uname, libc::SYS_sysinfo, libc::SYS_getrusage,
];

/// The older forms of the above.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const ALLOWED_HERE: &[c_long] = &[
    libc::SYS_open, libc::SYS_stat, libc::SYS_lstat, libc::SYS_access, libc::SYS_readlink,
    libc::SYS_mkdir, libc::SYS_unlink, libc::SYS_rename, libc::SYS_renameat, libc::SYS_poll,
    libc::SYS_epoll_wait, libc::SYS_time,
];
#[cfg(target_arch = "aarch64")]
const ALLOWED_HERE: &[c_long] = &[libc::SYS_renameat];

const NETLINK_ROUTE: u64 = 0;
/// The kind of a socket is in the lower bits of its argument, flags are above.
const SOCKET_KIND: u64 = 0xf;

/// Installs the filter on this thread, and with it on all that it starts.
pub(crate) fn restrict() -> Result<(), FilterError> {
    seccompiler::apply_filter(&program()?).map_err(FilterError::Install)
}

fn program() -> Result<BpfProgram, FilterError> {
    let architecture =
        TargetArch::try_from(std::env::consts::ARCH).map_err(FilterError::Architecture)?;
    let mut rules: BTreeMap<c_long, Vec<SeccompRule>> = ALLOWED
        .iter()
        .chain(ALLOWED_HERE)
        .map(|call| (*call, Vec::new()))
        .collect();
    rules.extend(by_arguments().map_err(FilterError::Build)?);
    let filter = SeccompFilter::new(
        rules,
        SeccompAction::Errno(libc::ENOSYS as u32),
        SeccompAction::Allow,
        architecture,
    );
    filter
        .and_then(BpfProgram::try_from)
        .map_err(FilterError::Build)
}

/// Calls that are allowed with some arguments: any of the rules.
fn by_arguments() -> Result<Vec<(c_long, Vec<SeccompRule>)>, seccompiler::BackendError> {
    let (four, six) = (libc::AF_INET as u64, libc::AF_INET6 as u64);
    let (stream, datagram) = (libc::SOCK_STREAM as u64, libc::SOCK_DGRAM as u64);
    let socket = |family, kind| rule([is(0, family)?, has(1, SOCKET_KIND, kind)?]);
    let executable = libc::PROT_EXEC as u64;
    let anonymous = libc::MAP_ANONYMOUS as u64;
    let thread = libc::CLONE_THREAD as u64;
    Ok(vec![
        (
            libc::SYS_socket,
            vec![
                socket(four, stream)?,
                socket(four, datagram)?,
                socket(six, stream)?,
                socket(six, datagram)?,
                // The C library asks which kinds of addresses the host has.
                rule([is(0, libc::AF_NETLINK as u64)?, is(2, NETLINK_ROUTE)?])?,
            ],
        ),
        // Threads, no processes. `clone3` is absent: its flags are in memory, out of sight.
        (libc::SYS_clone, vec![rule([has(0, thread, thread)?])?]),
        // Programs come from files, which Landlock chooses: nobody writes one in memory.
        (
            libc::SYS_mmap,
            vec![
                rule([has(2, executable, 0)?])?,
                rule([has(3, anonymous, 0)?])?,
            ],
        ),
        (libc::SYS_mprotect, vec![rule([has(2, executable, 0)?])?]),
        (
            libc::SYS_ioctl,
            vec![
                rule([is(1, libc::FIONBIO)?])?,
                rule([is(1, libc::FIONREAD)?])?,
            ],
        ),
        // The name of a thread.
        (
            libc::SYS_prctl,
            vec![rule([is(0, libc::PR_SET_NAME as u64)?])?],
        ),
        // How large the stack of a thread is to be; never of another process, never a new limit.
        (libc::SYS_prlimit64, vec![rule([is(0, 0)?, whole(2, 0)?])?]),
    ])
}

fn rule<const N: usize>(
    conditions: [SeccompCondition; N],
) -> Result<SeccompRule, seccompiler::BackendError> {
    SeccompRule::new(conditions.into())
}

fn is(argument: u8, value: u64) -> Result<SeccompCondition, seccompiler::BackendError> {
    // As the kernel reads an `int`: the upper half does not count.
    SeccompCondition::new(argument, Length::Dword, Compare::Eq, value)
}

fn whole(argument: u8, value: u64) -> Result<SeccompCondition, seccompiler::BackendError> {
    SeccompCondition::new(argument, Length::Qword, Compare::Eq, value)
}

fn has(argument: u8, mask: u64, value: u64) -> Result<SeccompCondition, seccompiler::BackendError> {
    SeccompCondition::new(argument, Length::Qword, Compare::MaskedEq(mask), value)
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::net::{TcpListener, TcpStream, ToSocketAddrs as _, UdpSocket};
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::process::Command;

    use rustix::net::{AddressFamily, SocketType, socket};

    use super::*;

    #[test]
    fn filtered_thread_reaches_hosts_and_starts_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let service = folder.path().join("service");
        let _service = UnixListener::bind(&service).expect("a socket");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("it is bound");
        let (engine, _gate) = UnixStream::pair().expect("sockets");
        let filtered = std::thread::spawn(move || {
            restrict().expect("it is installed");
            assert!(("localhost", 1).to_socket_addrs().is_ok());
            TcpStream::connect(address).expect("a host is dialled");
            UdpSocket::bind("127.0.0.1:0").expect("a name server is asked");
            std::thread::spawn(|| ()).join().expect("a thread");
            std::fs::write(folder.path().join("kept"), "x").expect("the cache is written");
            engine
                .set_nonblocking(true)
                .expect("the engine is waited for");
            let refused = |what: &str, result: io::Result<()>| {
                let error = result.expect_err(what);
                assert_eq!(error.raw_os_error(), Some(libc::ENOSYS), "{what}: {error}");
            };
            refused(
                "a service of the host",
                UnixStream::connect(&service).map(drop),
            );
            refused("a program", Command::new("/bin/true").status().map(drop));
            refused("a listener", TcpListener::bind("127.0.0.1:0").map(drop));
            for (family, kind) in [
                (AddressFamily::INET, SocketType::RAW),
                (AddressFamily::PACKET, SocketType::DGRAM),
                (AddressFamily::VSOCK, SocketType::STREAM),
            ] {
                let made = socket(family, kind, None);
                refused("a socket", made.map(drop).map_err(io::Error::from));
            }
            let me = rustix::process::getpid();
            let signal = rustix::process::kill_process(me, rustix::process::Signal::CONT);
            refused("a signal", signal.map_err(io::Error::from));
        });
        filtered.join().expect("no panic");
    }
}
