//! Which system calls exist inside: commented data, and the two filters made of it.
//!
//! The first filter goes by the number of a call. What is allowed passes; what programs know and
//! must not have answers `EPERM`; everything else answers `ENOSYS`, as on an older kernel, so that
//! programs fall back and what the kernel learns tomorrow is closed today. Numbers of the x32
//! interface are not named and therefore closed; another architecture kills. The second filter
//! answers `EPERM` to bad arguments of calls that are fine otherwise. A third one, on each command,
//! shows what it executes and changes.

mod allowlist;
#[cfg(test)]
mod walk;
mod watched;

use std::collections::BTreeMap;

use libc::c_long;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Length, SeccompCmpOp as Compare,
    SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

/// The filters could not be built or installed.
#[derive(Debug, thiserror::Error)]
pub enum SeccompError {
    #[error("this processor architecture has no system call filter")]
    Architecture,
    #[error("cannot build the system call filter")]
    Build(#[source] seccompiler::BackendError),
    #[error("cannot install the system call filter")]
    Install(#[source] seccompiler::Error),
}

/// Calls that stay. Grouped by what they are for.
#[rustfmt::skip]
const ALLOWED: &[c_long] = &[
    // Files by descriptor.
    libc::SYS_read, libc::SYS_write, libc::SYS_readv, libc::SYS_writev, libc::SYS_pread64,
    libc::SYS_pwrite64, libc::SYS_preadv, libc::SYS_pwritev, libc::SYS_preadv2,
    libc::SYS_pwritev2, libc::SYS_close, libc::SYS_close_range, libc::SYS_lseek, libc::SYS_dup,
    libc::SYS_dup3, libc::SYS_fcntl, libc::SYS_flock, libc::SYS_fsync, libc::SYS_fdatasync,
    libc::SYS_sync, libc::SYS_syncfs, libc::SYS_sync_file_range, libc::SYS_ftruncate,
    libc::SYS_fallocate, libc::SYS_fadvise64, libc::SYS_readahead, libc::SYS_sendfile,
    libc::SYS_splice, libc::SYS_tee, libc::SYS_vmsplice, libc::SYS_copy_file_range,
    libc::SYS_memfd_create, libc::SYS_pipe2, libc::SYS_ioctl,
    // Files by path.
    libc::SYS_openat, libc::SYS_openat2, libc::SYS_getdents64, libc::SYS_newfstatat,
    libc::SYS_fstat, libc::SYS_statx, libc::SYS_statfs, libc::SYS_fstatfs, libc::SYS_faccessat,
    libc::SYS_faccessat2, libc::SYS_readlinkat, libc::SYS_mkdirat, libc::SYS_mknodat,
    libc::SYS_unlinkat, libc::SYS_renameat2, libc::SYS_linkat, libc::SYS_symlinkat,
    libc::SYS_fchmod, libc::SYS_fchmodat, libc::SYS_fchmodat2, libc::SYS_fchown,
    libc::SYS_fchownat, libc::SYS_utimensat, libc::SYS_truncate, libc::SYS_chdir,
    libc::SYS_fchdir, libc::SYS_getcwd, libc::SYS_umask, libc::SYS_getxattr, libc::SYS_lgetxattr,
    libc::SYS_fgetxattr, libc::SYS_listxattr, libc::SYS_llistxattr, libc::SYS_flistxattr,
    libc::SYS_setxattr, libc::SYS_lsetxattr, libc::SYS_fsetxattr, libc::SYS_removexattr,
    libc::SYS_lremovexattr, libc::SYS_fremovexattr, libc::SYS_inotify_init1,
    libc::SYS_inotify_add_watch, libc::SYS_inotify_rm_watch,
    // Memory.
    libc::SYS_mmap, libc::SYS_munmap, libc::SYS_mprotect, libc::SYS_mremap, libc::SYS_brk,
    libc::SYS_madvise, libc::SYS_msync, libc::SYS_mincore, libc::SYS_mlock, libc::SYS_mlock2,
    libc::SYS_munlock, libc::SYS_mlockall, libc::SYS_munlockall, libc::SYS_membarrier,
    libc::SYS_pkey_alloc, libc::SYS_pkey_free, libc::SYS_pkey_mprotect, libc::SYS_get_mempolicy,
    libc::SYS_set_mempolicy, libc::SYS_mbind, libc::SYS_remap_file_pages, libc::SYS_mseal,
    // Processes and threads. `clone3` is absent: its flags are in memory, out of sight.
    libc::SYS_clone, libc::SYS_execve, libc::SYS_execveat, libc::SYS_exit, libc::SYS_exit_group,
    libc::SYS_wait4, libc::SYS_waitid, libc::SYS_kill, libc::SYS_tkill, libc::SYS_tgkill,
    libc::SYS_getpid, libc::SYS_getppid, libc::SYS_gettid, libc::SYS_getpgid, libc::SYS_setpgid,
    libc::SYS_getsid, libc::SYS_setsid, libc::SYS_set_tid_address, libc::SYS_set_robust_list,
    libc::SYS_get_robust_list, libc::SYS_rseq, libc::SYS_futex, libc::SYS_futex_waitv,
    libc::SYS_prctl, libc::SYS_personality, libc::SYS_pidfd_open, libc::SYS_pidfd_send_signal,
    libc::SYS_ptrace, libc::SYS_process_vm_readv,
    libc::SYS_restart_syscall, libc::SYS_getrusage, libc::SYS_times, libc::SYS_getcpu,
    libc::SYS_prlimit64, libc::SYS_getrlimit, libc::SYS_setrlimit, libc::SYS_getpriority,
    libc::SYS_setpriority, libc::SYS_ioprio_get, libc::SYS_ioprio_set, libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity, libc::SYS_sched_setaffinity, libc::SYS_sched_getparam,
    libc::SYS_sched_setparam, libc::SYS_sched_getscheduler, libc::SYS_sched_setscheduler,
    libc::SYS_sched_get_priority_max, libc::SYS_sched_get_priority_min,
    libc::SYS_sched_rr_get_interval, libc::SYS_sched_getattr, libc::SYS_sched_setattr,
    // Signals and timers.
    libc::SYS_rt_sigaction, libc::SYS_rt_sigprocmask, libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigpending, libc::SYS_rt_sigsuspend, libc::SYS_rt_sigtimedwait,
    libc::SYS_rt_sigqueueinfo, libc::SYS_rt_tgsigqueueinfo, libc::SYS_sigaltstack,
    libc::SYS_signalfd4, libc::SYS_nanosleep, libc::SYS_clock_nanosleep, libc::SYS_clock_gettime,
    libc::SYS_clock_getres, libc::SYS_gettimeofday, libc::SYS_timer_create,
    libc::SYS_timer_delete, libc::SYS_timer_getoverrun, libc::SYS_timer_gettime,
    libc::SYS_timer_settime, libc::SYS_timerfd_create, libc::SYS_timerfd_gettime,
    libc::SYS_timerfd_settime, libc::SYS_getitimer, libc::SYS_setitimer,
    // Waiting.
    libc::SYS_ppoll, libc::SYS_pselect6, libc::SYS_epoll_create1, libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2, libc::SYS_eventfd2,
    // Identity: looking, and the changes that mean nothing without capabilities.
    libc::SYS_getuid, libc::SYS_geteuid, libc::SYS_getgid, libc::SYS_getegid, libc::SYS_getresuid,
    libc::SYS_getresgid, libc::SYS_getgroups, libc::SYS_setuid, libc::SYS_setgid,
    libc::SYS_setreuid, libc::SYS_setregid, libc::SYS_setresuid, libc::SYS_setresgid,
    libc::SYS_setfsuid, libc::SYS_setfsgid, libc::SYS_setgroups, libc::SYS_capget,
    libc::SYS_capset, libc::SYS_seccomp, libc::SYS_landlock_create_ruleset,
    libc::SYS_landlock_add_rule, libc::SYS_landlock_restrict_self,
    // Sockets; which families is said below.
    libc::SYS_socket, libc::SYS_socketpair, libc::SYS_bind, libc::SYS_listen, libc::SYS_accept,
    libc::SYS_accept4, libc::SYS_connect, libc::SYS_getsockname, libc::SYS_getpeername,
    libc::SYS_sendto, libc::SYS_recvfrom, libc::SYS_sendmsg, libc::SYS_recvmsg,
    libc::SYS_sendmmsg, libc::SYS_recvmmsg, libc::SYS_setsockopt, libc::SYS_getsockopt,
    libc::SYS_shutdown,
    // System V and POSIX message passing, in the sandbox's own namespace.
    libc::SYS_shmget, libc::SYS_shmat, libc::SYS_shmdt, libc::SYS_shmctl, libc::SYS_semget,
    libc::SYS_semop, libc::SYS_semtimedop, libc::SYS_semctl, libc::SYS_msgget, libc::SYS_msgsnd,
    libc::SYS_msgrcv, libc::SYS_msgctl, libc::SYS_mq_open, libc::SYS_mq_unlink,
    libc::SYS_mq_timedsend, libc::SYS_mq_timedreceive, libc::SYS_mq_notify,
    libc::SYS_mq_getsetattr,
    // The system.
    libc::SYS_uname, libc::SYS_sysinfo, libc::SYS_getrandom,
];

/// Calls that only x86-64 has: the older forms of the above.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const ALLOWED_HERE: &[c_long] = &[
    libc::SYS_open, libc::SYS_creat, libc::SYS_stat, libc::SYS_lstat, libc::SYS_access,
    libc::SYS_readlink, libc::SYS_mkdir, libc::SYS_rmdir, libc::SYS_mknod, libc::SYS_unlink,
    libc::SYS_rename, libc::SYS_renameat, libc::SYS_link, libc::SYS_symlink, libc::SYS_chmod,
    libc::SYS_chown, libc::SYS_lchown, libc::SYS_utime, libc::SYS_utimes, libc::SYS_futimesat,
    libc::SYS_getdents, libc::SYS_pipe, libc::SYS_dup2, libc::SYS_poll, libc::SYS_select,
    libc::SYS_epoll_create, libc::SYS_epoll_wait, libc::SYS_eventfd, libc::SYS_signalfd,
    libc::SYS_inotify_init, libc::SYS_fork, libc::SYS_vfork, libc::SYS_getpgrp, libc::SYS_alarm,
    libc::SYS_pause, libc::SYS_time, libc::SYS_arch_prctl,
];
#[cfg(target_arch = "aarch64")]
const ALLOWED_HERE: &[c_long] = &[libc::SYS_renameat];

/// Calls that programs know and that answer `EPERM`: what they reach is the kernel's own surface,
/// other processes, or the ways around a sandbox.
#[rustfmt::skip]
const REFUSED: &[c_long] = &[
    // New namespaces, roots and mounts.
    libc::SYS_unshare, libc::SYS_setns, libc::SYS_mount, libc::SYS_umount2, libc::SYS_pivot_root,
    libc::SYS_chroot, libc::SYS_fsopen, libc::SYS_fsconfig, libc::SYS_fsmount, libc::SYS_fspick,
    libc::SYS_open_tree, libc::SYS_move_mount, libc::SYS_mount_setattr,
    // Large or old kernel surface.
    libc::SYS_bpf, libc::SYS_perf_event_open, libc::SYS_userfaultfd, libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter, libc::SYS_io_uring_register, libc::SYS_add_key,
    libc::SYS_request_key, libc::SYS_keyctl, libc::SYS_fanotify_init, libc::SYS_fanotify_mark,
    libc::SYS_name_to_handle_at, libc::SYS_open_by_handle_at, libc::SYS_quotactl, libc::SYS_acct,
    // Other processes. Who writes into one that stands at its exec changes what we read there.
    libc::SYS_process_vm_writev, libc::SYS_kcmp, libc::SYS_pidfd_getfd, libc::SYS_process_madvise, libc::SYS_move_pages,
    libc::SYS_migrate_pages,
    // The machine.
    libc::SYS_reboot, libc::SYS_swapon, libc::SYS_swapoff, libc::SYS_kexec_load,
    libc::SYS_init_module, libc::SYS_finit_module, libc::SYS_delete_module, libc::SYS_syslog,
    libc::SYS_settimeofday, libc::SYS_clock_settime, libc::SYS_clock_adjtime, libc::SYS_adjtimex,
    libc::SYS_sethostname, libc::SYS_setdomainname, libc::SYS_vhangup,
];
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const REFUSED_HERE: &[c_long] = &[
    libc::SYS_iopl, libc::SYS_ioperm, libc::SYS_modify_ldt, libc::SYS_kexec_file_load,
];
#[cfg(target_arch = "aarch64")]
const REFUSED_HERE: &[c_long] = &[];

/// Namespace flags of `clone`.
const NAMESPACE_FLAGS: u64 = 0x7e02_0000;
const NETLINK_ROUTE: u64 = 0;
const NETLINK_AUDIT: u64 = 9;
const TIOCSTI: u64 = 0x5412;
const TIOCLINUX: u64 = 0x541c;
const TIOCCONS: u64 = 0x541d;
const TIOCSETD: u64 = 0x5423;
const PR_SET_MM: u64 = 35;
const GUEST_PID: u64 = 1;

/// Calls that give a file its mode, and which argument that is.
const MODES: &[(c_long, u8)] = &[
    (libc::SYS_fchmod, 1),
    (libc::SYS_fchmodat, 2),
    (libc::SYS_fchmodat2, 2),
    (libc::SYS_mknodat, 2),
];
#[cfg(target_arch = "x86_64")]
const MODES_HERE: &[(c_long, u8)] = &[
    (libc::SYS_chmod, 1),
    (libc::SYS_mknod, 1),
    (libc::SYS_creat, 1),
];
#[cfg(target_arch = "aarch64")]
const MODES_HERE: &[(c_long, u8)] = &[];
/// Calls whose mode counts where their flags make a file: which arguments flags and mode are.
const OPENS: &[(c_long, u8, u8)] = &[
    (libc::SYS_openat, 2, 3),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_open, 1, 2),
];
/// The flags that make a file. Of `O_TMPFILE` the bit that is its own.
const MAKING: [u64; 2] = [
    libc::O_CREAT as u64,
    (libc::O_TMPFILE & !libc::O_DIRECTORY) as u64,
];
const SET_ID_BITS: [u64; 2] = [libc::S_ISUID as u64, libc::S_ISGID as u64];

/// Whether files can be made that run as their owner or group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetIds {
    /// In layers of ours, where nobody runs them.
    Allowed,
    /// Something of the host can be written, and what is made there is its owner's.
    Refused,
}

/// The programs, ready to be installed.
#[derive(Debug)]
pub struct Filters {
    numbers: BpfProgram,
    arguments: BpfProgram,
}

impl Filters {
    /// Builds all.
    pub fn build(set_ids: SetIds) -> Result<Self, SeccompError> {
        let arch =
            TargetArch::try_from(std::env::consts::ARCH).map_err(|_| SeccompError::Architecture)?;
        Ok(Self {
            numbers: allowlist::program(&answers()),
            arguments: compile(
                refusals(set_ids)?,
                SeccompAction::Allow,
                SeccompAction::Errno(libc::EPERM as u32),
                arch,
            )?,
        })
    }

    /// Installs both on this process and everything that it starts.
    pub fn install(&self) -> Result<(), SeccompError> {
        for filter in [&self.numbers, &self.arguments] {
            seccompiler::apply_filter(filter).map_err(SeccompError::Install)?;
        }
        Ok(())
    }
}

/// For setups: the kernel's audit looks as if it was not built in. Programs that add users go on
/// without it then, and give up where it refuses.
///
/// INVARIANT: installed after [`Filters`]: of two refusals the kernel gives the later filter's.
pub(crate) fn hide_audit() -> Result<(), SeccompError> {
    let arch =
        TargetArch::try_from(std::env::consts::ARCH).map_err(|_| SeccompError::Architecture)?;
    let audit = rule(vec![
        when(0, Compare::Eq, libc::AF_NETLINK as u64)?,
        when(2, Compare::Eq, NETLINK_AUDIT)?,
    ])?;
    let program = compile(
        BTreeMap::from([(libc::SYS_socket, vec![audit])]),
        SeccompAction::Allow,
        SeccompAction::Errno(libc::EPROTONOSUPPORT as u32),
        arch,
    )?;
    seccompiler::apply_filter(&program).map_err(SeccompError::Install)
}

/// The filter of a command, ready to be installed by its warden.
#[derive(Debug)]
pub struct Watched(Vec<seccompiler::sock_filter>);

impl Watched {
    pub fn build() -> Self {
        Self(watched::program())
    }

    /// Installs it on this process and everything that it starts; gives where calls are shown.
    pub(crate) fn install(&self) -> rustix::io::Result<std::os::fd::OwnedFd> {
        crate::observe::install(&self.0)
    }
}

/// The answer to each call that has one of its own.
fn answers() -> BTreeMap<u32, u32> {
    let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let with = |lists: [&'static [c_long]; 2], answer: u32| {
        lists
            .into_iter()
            .flatten()
            .map(move |&call| (call as u32, answer))
    };
    with([ALLOWED, ALLOWED_HERE], libc::SECCOMP_RET_ALLOW)
        .chain(with([REFUSED, REFUSED_HERE], refused))
        .collect()
}

/// Arguments that answer `EPERM`.
fn refusals(set_ids: SetIds) -> Result<BTreeMap<i64, Vec<SeccompRule>>, SeccompError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    let mut add = |call: c_long, conditions: Vec<SeccompCondition>| -> Result<(), SeccompError> {
        rules.entry(call).or_default().push(rule(conditions)?);
        Ok(())
    };
    // No process in a new namespace.
    for flag in (0..u64::BITS)
        .map(|bit| 1 << bit)
        .filter(|flag| NAMESPACE_FLAGS & flag != 0)
    {
        add(
            libc::SYS_clone,
            vec![when_long(0, Compare::MaskedEq(flag), flag)?],
        )?;
    }
    // A thread with descriptors of its own: no library makes one, and they would be out of sight.
    let thread = libc::CLONE_THREAD as u64;
    let mask = thread | libc::CLONE_FILES as u64;
    add(
        libc::SYS_clone,
        vec![when_long(0, Compare::MaskedEq(mask), thread)?],
    )?;
    // A sibling instead of a child: its parent would not be who made it. Threads need the flag not.
    let parent = libc::CLONE_PARENT as u64;
    add(
        libc::SYS_clone,
        vec![when_long(0, Compare::MaskedEq(parent | thread), parent)?],
    )?;
    // The kernel compares 32 bits of an ioctl request, and so must we.
    for request in [TIOCSTI, TIOCLINUX, TIOCCONS, TIOCSETD] {
        add(libc::SYS_ioctl, vec![when(1, Compare::Eq, request)?])?;
    }
    // Local, IPv4, IPv6; routing tables to look at. AF_VSOCK above all is not held by a network
    // namespace.
    let families = [
        libc::AF_UNIX,
        libc::AF_INET,
        libc::AF_INET6,
        libc::AF_NETLINK,
    ];
    for call in [libc::SYS_socket, libc::SYS_socketpair] {
        let others = families
            .iter()
            .map(|&family| when(0, Compare::Ne, family as u64));
        add(call, others.collect::<Result<_, _>>()?)?;
        add(
            call,
            vec![
                when(0, Compare::Eq, libc::AF_NETLINK as u64)?,
                when(2, Compare::Ne, NETLINK_ROUTE)?,
            ],
        )?;
    }
    // Of the internet protocols the usual ones: others are old code, some loaded on demand.
    for family in [libc::AF_INET, libc::AF_INET6] {
        let mut others = vec![when(0, Compare::Eq, family as u64)?];
        for protocol in [
            0,
            libc::IPPROTO_ICMP,
            libc::IPPROTO_TCP,
            libc::IPPROTO_UDP,
            libc::IPPROTO_ICMPV6,
        ] {
            others.push(when(2, Compare::Ne, protocol as u64)?);
        }
        add(libc::SYS_socket, others)?;
    }
    // Only the usual execution domain, and asking for it.
    add(
        libc::SYS_personality,
        vec![when(0, Compare::Ne, 0)?, when(0, Compare::Ne, 0xffff_ffff)?],
    )?;
    add(libc::SYS_prctl, vec![when(0, Compare::Eq, PR_SET_MM)?])?;
    // Limits of another process; with one uid inside, pid 1 would be open to them.
    add(
        libc::SYS_prlimit64,
        vec![when(0, Compare::Ne, 0)?, when_long(2, Compare::Ne, 0)?],
    )?;
    for call in [
        libc::SYS_sched_setaffinity,
        libc::SYS_sched_setscheduler,
        libc::SYS_sched_setparam,
        libc::SYS_sched_setattr,
    ] {
        add(call, vec![when(0, Compare::Eq, GUEST_PID)?])?;
    }
    // Priorities of pid 1, of its group, and of all processes of a user. The numbers that name
    // process, group and user differ: 0, 1, 2 for one call and 1, 2, 3 for the other.
    for (call, group, user) in [(libc::SYS_setpriority, 1, 2), (libc::SYS_ioprio_set, 2, 3)] {
        add(call, vec![when(1, Compare::Eq, GUEST_PID)?])?;
        add(call, vec![when(0, Compare::Eq, user)?])?;
        add(call, vec![when(0, Compare::Gt, user)?])?;
        debug_assert!(group < user);
    }
    // `mkdir` is not among them: the kernel itself takes these bits from it. `openat2`, whose mode
    // is in memory, does not exist for commands.
    for bit in SET_ID_BITS
        .into_iter()
        .filter(|_| set_ids == SetIds::Refused)
    {
        for &(call, mode) in MODES.iter().chain(MODES_HERE) {
            add(call, vec![when(mode, Compare::MaskedEq(bit), bit)?])?;
        }
        for &(call, flags, mode) in OPENS {
            for flag in MAKING {
                let makes = when(flags, Compare::MaskedEq(flag), flag)?;
                add(call, vec![makes, when(mode, Compare::MaskedEq(bit), bit)?])?;
            }
        }
    }
    Ok(rules)
}

fn rule(conditions: Vec<SeccompCondition>) -> Result<SeccompRule, SeccompError> {
    SeccompRule::new(conditions).map_err(SeccompError::Build)
}

fn when(argument: u8, compare: Compare, value: u64) -> Result<SeccompCondition, SeccompError> {
    SeccompCondition::new(argument, Length::Dword, compare, value).map_err(SeccompError::Build)
}

fn when_long(argument: u8, compare: Compare, value: u64) -> Result<SeccompCondition, SeccompError> {
    SeccompCondition::new(argument, Length::Qword, compare, value).map_err(SeccompError::Build)
}

fn compile(
    rules: BTreeMap<i64, Vec<SeccompRule>>,
    otherwise: SeccompAction,
    matched: SeccompAction,
    arch: TargetArch,
) -> Result<BpfProgram, SeccompError> {
    SeccompFilter::new(rules, otherwise, matched, arch)
        .and_then(BpfProgram::try_from)
        .map_err(SeccompError::Build)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_call_is_named_twice() {
        let mut seen = std::collections::BTreeSet::new();
        for call in ALLOWED
            .iter()
            .chain(ALLOWED_HERE)
            .chain(REFUSED)
            .chain(REFUSED_HERE)
        {
            assert!(seen.insert(*call), "system call {call} is named twice");
        }
    }

    #[test]
    fn the_dangerous_calls_are_not_allowed() {
        for call in [
            libc::SYS_clone3,
            libc::SYS_bpf,
            libc::SYS_mount,
            libc::SYS_setns,
            libc::SYS_io_uring_setup,
        ] {
            assert!(!ALLOWED.contains(&call), "{call}");
        }
    }

    #[test]
    fn the_filters_fit_the_kernel() {
        let filters = Filters::build(SetIds::Refused).unwrap();
        assert!(filters.numbers.len() + filters.arguments.len() < 1024);
    }
}
