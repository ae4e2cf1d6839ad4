//! Starting a command inside: a warden process adopts everything that the command leaves behind.
//!
//! ```text
//! guest (pid 1) ── warden (child subreaper) ── leader ── … whatever it starts
//!                     ▲ orphans of this exec come here, not to pid 1
//! ```
//!
//! The warden writes to its pipe that the leader was started (or why not), how it ended, and as its
//! last word that nothing of the exec is left. An agent with the guest's uid can kill a warden: its
//! records then end without that word, and what comes to pid 1 is a stray, which the guest kills.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::io::Errno;

use crate::identity::Agent;
use crate::observe::{self, Listener};
use crate::seccomp::Watched;
use crate::sys;

/// What to start. Everything is prepared, so that the child only makes system calls.
#[derive(Debug)]
pub struct Command {
    /// Where the program may be, in order.
    pub candidates: Vec<CString>,
    pub argv: Vec<CString>,
    pub env: Vec<CString>,
    pub cwd: CString,
    pub stdin: OwnedFd,
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
    /// Standard input is a terminal that becomes the controlling one.
    pub terminal: Terminal,
    pub open_files: u64,
    /// `None`: something else bounds them.
    pub processes: Option<u64>,
    pub file_bytes: Option<u64>,
    /// The guest is somebody else than the agent, and must become the agent.
    pub become_agent: BecomeAgent,
    pub leads: Leads,
}

/// How the leader begins, which must be looked into at its exec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leads {
    /// In the warden's own memory: the guest can look into whoever it wants to.
    InPlace,
    /// In memory of its own, which it opens to its user when it has nothing left but its streams: the
    /// guest has no capability, and looks into what its user may look into.
    ///
    /// HOSTILE: so may the agent, for a moment. What it gets is a process that is about to be its own, with
    /// the streams of its own command: no pipe and no socket of ours.
    Apart,
    /// The same, and never opened: neither the guest nor the agent looks into it. For a program of ours, which is
    /// as closed from its first instant on.
    Closed,
}

impl Leads {
    /// By what this process may do.
    pub fn of_this_process() -> Self {
        if crate::lockdown::may_look_into_all() {
            Self::InPlace
        } else {
            Self::Apart
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Terminal {
    No,
    Controlling,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BecomeAgent {
    Already,
    Switch(Agent),
    /// Not the agent: root of its own image, with these capabilities and never another.
    Setup {
        keep: u64,
    },
}

/// What a warden says on its pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// The leader runs.
    Started { pid: i32 },
    /// The program could not be executed, or its directory not entered.
    NotStarted { errno: i32, at: NotStartedAt },
    /// The leader ended.
    Ended {
        code: Option<i32>,
        signal: Option<i32>,
        cpu_us: u64,
        peak_kib: u64,
        /// Nothing else of the exec was left at that moment.
        alone: bool,
    },
    /// The last word: nothing of the exec is left.
    NothingLeft,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotStartedAt {
    Directory,
    Program,
    Limits,
}

impl NotStartedAt {
    /// By its number on a pipe or a page.
    fn of(number: i32) -> Option<Self> {
        [Self::Directory, Self::Program, Self::Limits]
            .into_iter()
            .find(|at| *at as i32 == number)
    }
}

/// Bytes of one record on the pipe.
pub const RECORD: usize = 32;

impl Record {
    fn encode(self) -> [u8; RECORD] {
        let (kind, a, b, c, d): (u8, i32, i32, u64, u64) = match self {
            Self::Started { pid } => (1, pid, 0, 0, 0),
            Self::NotStarted { errno, at } => (2, errno, at as i32, 0, 0),
            Self::Ended {
                code: Some(code),
                cpu_us,
                peak_kib,
                alone,
                ..
            } => (3, code, i32::from(alone), cpu_us, peak_kib),
            Self::Ended {
                signal,
                cpu_us,
                peak_kib,
                alone,
                ..
            } => (4, signal.unwrap_or(0), i32::from(alone), cpu_us, peak_kib),
            Self::NothingLeft => (5, 0, 0, 0, 0),
        };
        let mut out = [0; RECORD];
        out[0] = kind;
        out[4..8].copy_from_slice(&a.to_le_bytes());
        out[8..12].copy_from_slice(&b.to_le_bytes());
        out[16..24].copy_from_slice(&c.to_le_bytes());
        out[24..32].copy_from_slice(&d.to_le_bytes());
        out
    }

    /// Reads a record back.
    pub fn decode(bytes: &[u8; RECORD]) -> Option<Self> {
        let number = |at: usize| {
            i32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let long = |at: usize| {
            let mut eight = [0; 8];
            eight.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(eight)
        };
        Some(match bytes[0] {
            1 => Self::Started { pid: number(4) },
            2 => Self::NotStarted {
                errno: number(4),
                at: NotStartedAt::of(number(8))?,
            },
            3 => Self::Ended {
                code: Some(number(4)),
                signal: None,
                cpu_us: long(16),
                peak_kib: long(24),
                alone: number(8) == 1,
            },
            4 => Self::Ended {
                code: None,
                signal: Some(number(4)),
                cpu_us: long(16),
                peak_kib: long(24),
                alone: number(8) == 1,
            },
            5 => Self::NothingLeft,
            _ => return None,
        })
    }
}

/// A started warden: its pid, the pipe with its records, and where its calls are shown.
#[derive(Debug)]
pub struct Warden {
    pub pid: i32,
    pub records: OwnedFd,
    pub listener: Option<Listener>,
}

/// Starts a command under a warden.
///
/// INVARIANT: called by the guest, which has one thread. Nothing of a command that is watched runs
/// before the guest has the listener.
#[allow(
    clippy::needless_pass_by_value,
    reason = "the guest must not hold the streams of a command that has started"
)]
pub fn start(command: Command, watched: Option<&Watched>) -> io::Result<Warden> {
    let (read, write) = io::pipe()?;
    let (ours, theirs) = observe::pair()?;
    // SAFETY: the guest has one thread (asserted by its own main function).
    match unsafe { sys::fork_single_threaded() }? {
        None => be_warden(&command, write.as_raw_fd(), watched, theirs.as_fd()),
        Some(pid) => {
            drop(theirs);
            Ok(Warden {
                pid,
                records: read.into(),
                listener: match watched {
                    Some(_) => Some(observe::receive_listener(ours.as_fd())?),
                    None => None,
                },
            })
        }
    }
}

fn be_warden(
    command: &Command,
    records: RawFd,
    watched: Option<&Watched>,
    guest: BorrowedFd<'_>,
) -> ! {
    let _ = sys::prctl(libc::PR_SET_CHILD_SUBREAPER, 1);
    reset_signals();
    // INVARIANT: no filter, no command. Where the guest gets no listener, it says so.
    if let Some(watched) = watched {
        let watching = watched
            .install()
            .and_then(|listener| observe::send_listener(guest, listener.as_raw_fd()));
        if watching.is_err() {
            sys::exit_now(1);
        }
    }
    let mut leader = Leader { command, records };
    let failure = match command.leads {
        Leads::InPlace => None,
        Leads::Apart | Leads::Closed => Failure::shared(),
    };
    let begun = match command.leads {
        // SAFETY: this process has one thread, and `lead` takes a `Leader` and does not return.
        Leads::InPlace => unsafe { sys::spawn_in_place(lead, (&raw mut leader).cast()) },
        // SAFETY: this process has one thread.
        Leads::Apart | Leads::Closed => match unsafe { sys::fork_single_threaded() } {
            Ok(None) => be_leader(command, Some(records), failure),
            Ok(Some(pid)) => Ok(pid),
            Err(error) => Err(error),
        },
    };
    let leader = match begun {
        Ok(pid) => pid,
        Err(error) => {
            let errno = error.raw_os_error().unwrap_or(libc::EAGAIN);
            say(
                records,
                Record::NotStarted {
                    errno,
                    at: NotStartedAt::Limits,
                },
            );
            say(records, Record::NothingLeft);
            sys::exit_now(1)
        }
    };
    // The guest's socket, the command's streams and the pipes of other execs must not be held open
    // by a warden.
    close_all_but(&[records]);
    // It only waits from now on.
    let _ = sys::set_capabilities(0);
    reap(leader, records, failure)
}

fn say(records: RawFd, record: Record) {
    let bytes = record.encode();
    // SAFETY: the buffer is ours. A pipe write of 32 bytes is whole or not at all; a guest that is
    // gone takes this process with it.
    unsafe { libc::write(records, bytes.as_ptr().cast(), bytes.len()) };
}

/// Waits for everything that comes here, tells of the leader, and ends when nothing is left.
fn reap(leader: i32, records: RawFd, failure: Option<Failure>) -> ! {
    loop {
        let mut status = 0;
        // SAFETY: rusage is plain numbers.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: both are ours to be written.
        let pid = unsafe { libc::wait4(-1, &raw mut status, libc::__WALL, &raw mut usage) };
        if pid == leader {
            if let Some((errno, at)) = failure.and_then(Failure::read) {
                say(records, Record::NotStarted { errno, at });
            }
            let cpu = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
            let exited = libc::WIFEXITED(status);
            say(
                records,
                Record::Ended {
                    code: exited.then(|| libc::WEXITSTATUS(status)),
                    signal: (!exited).then(|| libc::WTERMSIG(status)),
                    cpu_us: cpu(usage.ru_utime) + cpu(usage.ru_stime),
                    peak_kib: usage.ru_maxrss as u64,
                    alone: is_childless(),
                },
            );
        }
        if pid < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ECHILD) {
            say(records, Record::NothingLeft);
            sys::exit_now(0);
        }
    }
}

/// Whether nothing is left to be waited for, not even what has ended already.
fn is_childless() -> bool {
    let looking = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
    // SAFETY: the kernel takes a null pointer for "tell me nothing"; nothing is reaped.
    let result = unsafe { libc::waitid(libc::P_ALL, 0, std::ptr::null_mut(), looking) };
    result < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ECHILD)
}

fn reset_signals() {
    sys::heed_signals();
    // SAFETY: an empty set is made and installed.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
}

/// What the leader is told.
struct Leader<'a> {
    command: &'a Command,
    records: RawFd,
}

extern "C" fn lead(told: *mut libc::c_void) -> libc::c_int {
    // SAFETY: the warden gives a `Leader`, and sleeps for as long as it is used.
    let told = unsafe { &*told.cast::<Leader<'_>>() };
    be_leader(told.command, Some(told.records), None)
}

/// What a leader that begins apart could not do: a page that it shares with its warden. It has no pipe any
/// more when that may be known.
#[derive(Clone, Copy)]
struct Failure(*mut i32);

impl Failure {
    fn shared() -> Option<Self> {
        // SAFETY: a fresh mapping of one page, which nothing else uses.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        (page != libc::MAP_FAILED).then_some(Self(page.cast()))
    }

    fn write(self, errno: i32, at: NotStartedAt) {
        // SAFETY: the page has room for two numbers, and its reader waits for the end of this process.
        unsafe {
            self.0.add(1).write_volatile(at as i32);
            self.0.write_volatile(errno);
        }
    }

    fn read(self) -> Option<(i32, NotStartedAt)> {
        // SAFETY: as above.
        let (errno, at) = unsafe { (self.0.read_volatile(), self.0.add(1).read_volatile()) };
        NotStartedAt::of(at)
            .filter(|_| errno != 0)
            .map(|at| (errno, at))
    }
}

/// The leader: its own session, streams, limits and identity, and then the program.
fn be_leader(command: &Command, records: Option<RawFd>, failure: Option<Failure>) -> ! {
    let fail = |errno: Errno, at: NotStartedAt| -> ! {
        let errno = errno.raw_os_error();
        match (failure, records) {
            (Some(failure), _) => failure.write(errno, at),
            (None, Some(records)) => say(records, Record::NotStarted { errno, at }),
            (None, None) => {}
        }
        sys::exit_now(127)
    };
    let _ = rustix::process::setsid();
    if let Err(errno) = streams(command) {
        fail(errno, NotStartedAt::Limits);
    }
    if let Err(errno) = limits(command) {
        fail(errno, NotStartedAt::Limits);
    }
    if let Err(errno) = become_agent(command.become_agent) {
        fail(errno, NotStartedAt::Limits);
    }
    if let Err(errno) = rustix::process::chdir(command.cwd.as_c_str()) {
        fail(errno, NotStartedAt::Directory);
    }
    let pointers = |strings: &[CString]| -> Vec<*const libc::c_char> {
        strings
            .iter()
            .map(|s| s.as_ptr())
            .chain([std::ptr::null()])
            .collect()
    };
    let argv = pointers(&command.argv);
    let env = pointers(&command.env);
    // Everything above the streams goes, but the pipe: exec closes that one, on success only.
    close_all_but(&[0, 1, 2, records.unwrap_or(2)]);
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    if let Some(records) = records {
        say(records, Record::Started { pid });
    }
    if command.leads != Leads::InPlace {
        // INVARIANT: nothing of ours is open when others may look.
        close_all_but(&[0, 1, 2]);
    }
    if command.leads == Leads::Apart {
        // Where that fails, its exec is refused.
        let _ = sys::prctl(libc::PR_SET_DUMPABLE, 1);
    }
    let mut worst = Errno::NOENT;
    for candidate in &command.candidates {
        let errno = execute(candidate, &argv, &env);
        // As a shell does: go on looking, but remember that something was there.
        if errno != Errno::NOENT && errno != Errno::NOTDIR {
            worst = errno;
        }
        if errno != Errno::NOENT && errno != Errno::NOTDIR && errno != Errno::ACCESS {
            break;
        }
    }
    fail(worst, NotStartedAt::Program)
}

/// Executes a file; one without an interpreter line goes to the shell, as everywhere.
fn execute(path: &CStr, argv: &[*const libc::c_char], env: &[*const libc::c_char]) -> Errno {
    let errno = sys::execve(path, argv, env);
    if errno != Errno::NOEXEC {
        return errno;
    }
    let mut by_shell = vec![c"/bin/sh".as_ptr(), path.as_ptr()];
    by_shell.extend_from_slice(&argv[1..]);
    sys::execve(c"/bin/sh", &by_shell, env)
}

fn streams(command: &Command) -> rustix::io::Result<()> {
    let wanted = [
        command.stdin.as_raw_fd(),
        command.stdout.as_raw_fd(),
        command.stderr.as_raw_fd(),
    ];
    // The guest opens them above 2, so no one is overwritten before it is used.
    for (target, source) in wanted.into_iter().enumerate() {
        sys::dup_to(source, target as RawFd)?;
    }
    if command.terminal == Terminal::Controlling {
        // SAFETY: descriptor 0 is open.
        rustix::process::ioctl_tiocsctty(unsafe { BorrowedFd::borrow_raw(0) })?;
    }
    Ok(())
}

fn limits(command: &Command) -> rustix::io::Result<()> {
    let files = command
        .open_files
        .min(sys::get_rlimit_hard(libc::RLIMIT_NOFILE));
    sys::set_rlimit(libc::RLIMIT_NOFILE, files)?;
    if let Some(processes) = command.processes {
        sys::set_rlimit(
            libc::RLIMIT_NPROC,
            processes.min(sys::get_rlimit_hard(libc::RLIMIT_NPROC)),
        )?;
    }
    if let Some(bytes) = command.file_bytes {
        sys::set_rlimit(
            libc::RLIMIT_FSIZE,
            bytes.min(sys::get_rlimit_hard(libc::RLIMIT_FSIZE)),
        )?;
    }
    sys::set_rlimit(libc::RLIMIT_CORE, 0)
}

fn become_agent(how: BecomeAgent) -> rustix::io::Result<()> {
    match how {
        BecomeAgent::Already => {}
        BecomeAgent::Switch(agent) => {
            sys::bound_capabilities(0)?;
            sys::set_ids(agent.uid, agent.gid)?;
        }
        BecomeAgent::Setup { keep } => {
            sys::bound_capabilities(keep)?;
            return sys::set_capabilities(keep);
        }
    }
    sys::set_capabilities(0)
}

/// Runs a function in a child process as the agent, and gives what it writes.
///
/// INVARIANT: called by the guest, which has one thread. The function must end by itself.
pub fn call_as_agent(
    become_agent_first: BecomeAgent,
    function: impl FnOnce(&mut dyn io::Write),
) -> io::Result<Vec<u8>> {
    let (mut read, mut write) = io::pipe()?;
    // SAFETY: the guest has one thread.
    if unsafe { sys::fork_single_threaded() }?.is_none() {
        if become_agent(become_agent_first).is_err() {
            sys::exit_now(1);
        }
        function(&mut write);
        sys::exit_now(0)
    }
    drop(write);
    let mut said = Vec::new();
    io::Read::read_to_end(&mut read, &mut said)?;
    Ok(said)
}

/// Closes every descriptor but the given ones.
fn close_all_but(keep: &[RawFd]) {
    // One more than is ever kept, so that the last is the end of all.
    let mut sorted = [RawFd::MAX; 5];
    sorted[..keep.len()].copy_from_slice(keep);
    sorted.sort_unstable();
    let mut from: u32 = 0;
    for fd in sorted {
        let end = fd as u32;
        if end > from {
            // SAFETY: callers of this function own none of these any more.
            unsafe { libc::syscall(libc::SYS_close_range, from, end - 1, 0) };
        }
        from = end.saturating_add(1);
    }
}
