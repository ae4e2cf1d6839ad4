//! Everything that commands execute and change, as the kernel shows it.
//!
//! ```text
//! warden's filter ──▶ listener ──▶ exec:  refused at once where nothing is there
//!                                         else seized, let go on, and met at its exec or its failure
//!                              ├─▶ write: who, what, where; let go on
//!                              └─▶ begin: let go on; in a crowd, in its turn
//! process table ──▶ end of each process that executed something
//! ```
//!
//! INVARIANT: one loop, and nothing in it waits for a process: each call is answered in the turn in
//! which it is seen, but for execs that wait for another one of their process, and new processes of a crowd. What takes long (reading a program to name it by its hash) is done in slices
//! between turns. Where the host does not keep up, calls are left waiting.

mod argv;
mod attempts;
mod begins;
mod calls;
mod paths;
mod programs;
mod table;
mod writes;

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use ringfence_jail::observe::{self, Asked, Children, Listener, Shown, Stop};
use ringfence_model::ByteText;
use ringfence_model::observed::{Exec, ExecFailed, Observed, Refused};
use ringfence_model::tools::PROGRAM;
use ringfence_model::wire::Notice;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use crate::connection::Connection;
use argv::Argv;
use attempts::{Attempt, Attempts};
use begins::{Begins, is_crowd};
use calls::ExecCall;
use programs::Programs;
use table::Table;
use writes::Writes;

/// BOUND: calls answered in one turn, so that output and requests have theirs.
const CALLS_IN_A_TURN: usize = 64;
/// BOUND: and how long that may take.
const TURN: Duration = Duration::from_millis(50);

/// All that is observed in this sandbox.
#[derive(Debug)]
pub struct Observer {
    children: Children,
    table: Table,
    listeners: Vec<Watched>,
    /// Threads that are executing something.
    pending: BTreeMap<i32, Pending>,
    waiting: Vec<Waiting>,
    begins: Begins,
    attempts: Attempts,
    programs: Programs,
    writes: Writes,
    last_exec: u64,
}

/// A command whose calls are shown.
#[derive(Debug)]
struct Watched {
    stream: u32,
    listener: Listener,
    runs: Runs,
    /// The process that is a program of ours which nobody looks into.
    unseen: Option<i32>,
}

/// Whose program a command is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runs {
    /// One of the direct tools.
    Ours,
    Theirs,
}

/// An exec that was let go on.
#[derive(Debug)]
struct Pending {
    stream: u32,
    process: i32,
    /// The exec that it was, or was forked from, when it asked.
    by: Option<u64>,
    call: ExecCall,
}

/// An exec that takes place, with what is known of it.
struct Executed<'a> {
    stream: u32,
    process: i32,
    by: Option<u64>,
    call: &'a ExecCall,
    exe: Vec<u8>,
    argv: Argv,
    verified: bool,
}

/// An exec that waits until another one of its process is decided.
#[derive(Debug)]
struct Waiting {
    stream: u32,
    shown: Shown,
}

impl Observer {
    /// INVARIANT: called before anything is started.
    pub fn new(workspace: &str) -> io::Result<Self> {
        Ok(Self {
            children: Children::watch()?,
            table: Table::new()?,
            listeners: Vec::new(),
            pending: BTreeMap::new(),
            waiting: Vec::new(),
            begins: Begins::new(),
            attempts: Attempts::default(),
            programs: Programs::default(),
            writes: Writes::below(workspace),
            last_exec: 0,
        })
    }

    /// Watches a command that was just started.
    pub fn watch(&mut self, stream: u32, listener: Listener, runs: Runs) {
        self.listeners.push(Watched {
            stream,
            listener,
            runs,
            unseen: None,
        });
    }

    /// What to wait for.
    pub fn interests<'a>(&'a self, room: bool, waits: &mut Vec<PollFd<'a>>) {
        waits.push(PollFd::new(&self.children, PollFlags::IN));
        waits.push(PollFd::new(&self.table, PollFlags::IN));
        if room {
            for watched in &self.listeners {
                waits.push(PollFd::new(&watched.listener, PollFlags::IN));
            }
        }
    }

    /// Whether there is something to be read between turns.
    pub fn has_work(&self) -> bool {
        self.programs.has_work() || !self.waiting.is_empty()
    }

    /// How long nothing happens by itself.
    pub fn next_wake(&self, now: Instant) -> Option<Duration> {
        self.begins.next_wake(now)
    }

    /// Holds none back that began until now.
    pub fn let_all_begin(&mut self) {
        for (stream, shown) in self.begins.all() {
            let_begin(&self.listeners, stream, &shown);
        }
    }

    /// Whether a thread is between its call and our look at what became of it.
    pub fn is_amid_exec(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Does all that can be done now.
    pub fn advance(&mut self, connection: &mut Connection) {
        self.take_stops(connection);
        // Who waited for a process to end acts only then: its end is told first.
        self.take_endings(connection);
        self.take_begins();
        self.take_calls(connection);
        self.take_stops(connection);
        self.take_waiting(connection);
        self.programs
            .advance(|stream, program| tell(connection, stream, Observed::Program(program)));
    }

    fn take_calls(&mut self, connection: &mut Connection) {
        let began = Instant::now();
        for _ in 0..CALLS_IN_A_TURN {
            if !connection.has_room() || began.elapsed() > TURN {
                return;
            }
            let (ready, gone) = self.ready();
            for &at in &ready {
                let watched = &self.listeners[at];
                if let Some(shown) = watched.listener.receive() {
                    self.answer(at, &shown, connection);
                }
            }
            // From the last one on, so that the numbers of the others stay.
            for at in gone.into_iter().rev() {
                self.listeners.swap_remove(at);
            }
            if ready.is_empty() {
                return;
            }
        }
    }

    /// The listeners with a call, and those of commands of which nothing is left.
    fn ready(&self) -> (Vec<usize>, Vec<usize>) {
        let mut waits: Vec<PollFd<'_>> = self
            .listeners
            .iter()
            .map(|watched| PollFd::new(&watched.listener, PollFlags::IN))
            .collect();
        let now = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        if waits.is_empty() || rustix::event::poll(&mut waits, Some(&now)).is_err() {
            return (Vec::new(), Vec::new());
        }
        let with = |wanted: PollFlags, but: PollFlags| -> Vec<usize> {
            let met = |wait: &PollFd<'_>| {
                let events = wait.revents();
                events.intersects(wanted) && !events.intersects(but)
            };
            (0..waits.len()).filter(|&at| met(&waits[at])).collect()
        };
        (
            with(PollFlags::IN, PollFlags::empty()),
            with(PollFlags::HUP | PollFlags::ERR, PollFlags::IN),
        )
    }

    fn answer(&mut self, at: usize, shown: &Shown, connection: &mut Connection) {
        let stream = self.listeners[at].stream;
        let listener = &self.listeners[at].listener;
        if let Asked::Exec { at: name, argv } = shown.asked {
            let call = ExecCall::read(shown.thread, name, argv);
            // HOSTILE: the number may have been another thread's meanwhile.
            if listener.still_waits(shown) {
                self.exec(at, shown, call, connection);
            }
            return;
        }
        if shown.asked == Asked::Begin {
            if self.begins.may_pass(Instant::now(), is_crowd) {
                listener.let_go_on(shown)
            } else {
                self.begins.hold(stream, *shown)
            }
            return;
        }
        let seen = self.writes.look(shown.thread, shown.asked, &self.table);
        if !listener.still_waits(shown) {
            return;
        }
        match seen {
            Ok(facts) => {
                for fact in facts {
                    tell(connection, stream, fact);
                }
                listener.let_go_on(shown);
            }
            // A tool lets nobody look into it, and a guest may have no right to. It is told that it writes,
            // and that nobody knows where.
            Err(Errno::PERM)
                if self.listeners[at].unseen == Some(table::who(shown.thread).process) =>
            {
                for fact in self.writes.unplaced(shown.thread, Vec::new(), &self.table) {
                    tell(connection, stream, fact);
                }
                listener.let_go_on(shown);
            }
            // HOSTILE: what we cannot read, the kernel cannot, unless it is made readable
            // meanwhile.
            Err(errno) => listener.refuse(shown, errno),
        }
    }

    /// Lets those begin that were held back and need not be any longer.
    fn take_begins(&mut self) {
        let listeners = &self.listeners;
        let still_waits = |stream: u32, shown: &Shown| {
            of(listeners, stream).is_some_and(|listener| listener.still_waits(shown))
        };
        for (stream, shown) in self.begins.next(Instant::now(), is_crowd, still_waits) {
            let_begin(listeners, stream, &shown);
        }
    }

    fn exec(&mut self, at: usize, shown: &Shown, call: ExecCall, connection: &mut Connection) {
        let is_first = self.listeners[at].runs == Runs::Ours && self.listeners[at].unseen.is_none();
        if is_first && !call.is_readable() {
            self.begin_unseen(at, shown, &call, connection);
            return;
        }
        let watched = &self.listeners[at];
        let stream = watched.stream;
        // Most calls look a name up in `PATH` and find nothing. What is not there is not executed,
        // whatever appears there meanwhile.
        if let Some(errno) = call.is_missing() {
            let by = self.table.exec_of(shown.thread);
            let attempt = Attempt::new(stream, by, &call, errno);
            for failed in self.attempts.missed(shown.thread, attempt) {
                tell_failed(connection, failed);
            }
            watched.listener.refuse(shown, errno);
            return;
        }
        let who = table::who(shown.thread);
        // HOSTILE: the kernel has one lock for the execs and the tracing of a process, and an exec
        // holds it until all other threads are gone. Whoever traces one of them must not wait for
        // that lock: one exec of a process at a time is traced, and none beside a debugger.
        if who.threads > 1 {
            if self.pending.values().any(|p| p.process == who.process) {
                let shown = *shown;
                self.waiting.push(Waiting { stream, shown });
                return;
            }
            if table::is_debugged(who.process) {
                self.unverified(at, shown, &call, connection);
                return;
            }
        }
        match observe::seize(shown.thread) {
            Ok(()) => {
                let thread = shown.thread;
                let process = who.process;
                let pending = Pending {
                    stream,
                    process,
                    by: self.table.exec_of(thread),
                    call,
                };
                self.pending.insert(thread, pending);
                // Whether it succeeds or fails, it stops before it runs another instruction.
                observe::interrupt(thread);
                watched.listener.let_go_on(shown);
            }
            // It was killed meanwhile.
            Err(_) if !watched.listener.still_waits(shown) => {}
            Err(_) if !call.is_readable() => {
                watched.listener.refuse(shown, Errno::PERM);
                let refused = Refused {
                    pid: shown.thread,
                    operation: "execute".to_owned(),
                    reason: "the process cannot be looked into".to_owned(),
                };
                tell(connection, stream, Observed::Refused(refused));
            }
            Err(_) => self.unverified(at, shown, &call, connection),
        }
    }

    /// A program of ours begins, which neither we nor the agent can look into, before or after: what was asked of
    /// us is what is executed.
    fn begin_unseen(
        &mut self,
        at: usize,
        shown: &Shown,
        call: &ExecCall,
        connection: &mut Connection,
    ) {
        let process = table::who(shown.thread).process;
        self.listeners[at].unseen = Some(process);
        let executed = Executed {
            stream: self.listeners[at].stream,
            process,
            by: None,
            call,
            exe: PROGRAM.as_bytes().to_vec(),
            argv: call.argv(),
            verified: false,
        };
        self.executed(executed, connection);
        self.listeners[at].listener.let_go_on(shown);
    }

    /// A debugger has it. What it asks for is all that can be known.
    fn unverified(
        &mut self,
        at: usize,
        shown: &Shown,
        call: &ExecCall,
        connection: &mut Connection,
    ) {
        let executed = Executed {
            stream: self.listeners[at].stream,
            process: table::who(shown.thread).process,
            by: self.table.exec_of(shown.thread),
            call,
            exe: call.file(),
            argv: call.argv(),
            verified: false,
        };
        self.executed(executed, connection);
        self.listeners[at].listener.let_go_on(shown);
    }

    /// Looks again at execs that had to wait for another one of their process.
    fn take_waiting(&mut self, connection: &mut Connection) {
        for Waiting { stream, shown } in std::mem::take(&mut self.waiting) {
            let at = self.listeners.iter().position(|w| w.stream == stream);
            if let Some(at) = at
                && self.listeners[at].listener.still_waits(&shown)
            {
                self.answer(at, &shown, connection);
            }
        }
    }

    /// Takes news of processes that have executed something, or failed to, and of children.
    fn take_stops(&mut self, connection: &mut Connection) {
        self.children.clear();
        while let Some(stop) = self.children.next() {
            match stop {
                Stop::Executed { process, former } => {
                    let pending = self.pending.remove(&former);
                    let other = self.pending.remove(&process);
                    if let Some(Pending {
                        stream, by, call, ..
                    }) = pending.or(other)
                    {
                        let argv = Argv::of_process(process);
                        let exe = paths::link(process, "exe");
                        // What cannot be read (it was killed where it stands) is not verified.
                        let verified = !exe.is_empty() && !argv.unread;
                        for failed in self.attempts.executed(former, call.name()) {
                            tell_failed(connection, failed);
                        }
                        let executed = Executed {
                            stream,
                            process,
                            by,
                            call: &call,
                            exe,
                            argv,
                            verified,
                        };
                        self.executed(executed, connection);
                    }
                    observe::detach(process, 0);
                }
                Stop::Returned {
                    thread,
                    result,
                    signal,
                } => {
                    if let Some(Pending { stream, call, .. }) = self.pending.remove(&thread)
                        && let Some(errno) = Stop::errno(result)
                    {
                        let by = self.table.exec_of(thread);
                        let attempt = Attempt::new(stream, by, &call, errno);
                        for failed in self.attempts.failed(thread, attempt) {
                            tell_failed(connection, failed);
                        }
                    }
                    observe::detach(thread, signal);
                }
                Stop::Ended { process } => {
                    self.pending.remove(&process);
                    self.pending.retain(|_, p| p.process != process);
                }
            }
        }
    }

    fn executed(&mut self, executed: Executed<'_>, connection: &mut Connection) {
        let Executed {
            stream,
            process,
            by,
            call,
            exe,
            argv,
            verified,
        } = executed;
        self.last_exec += 1;
        let place = self
            .table
            .executed(process, self.last_exec, stream, &exe, by);
        let program = self.programs.number(stream, process, &exe, verified);
        let exec = Exec {
            exec: self.last_exec,
            pid: process,
            started: place.started,
            parent: place.parent,
            parent_pid: place.parent_pid,
            replaces: place.replaces,
            program,
            asked: (call.asked() != exe).then(|| ByteText::from(call.asked())),
            exe: ByteText(exe),
            argv: argv.kept,
            argv_cut: argv.cut,
            cwd: ByteText(call.cwd.clone()),
            verified,
        };
        tell(connection, stream, Observed::Exec(exec));
    }

    fn take_endings(&mut self, connection: &mut Connection) {
        for (stream, process, exit) in self.table.ended(Instant::now()) {
            for failed in self.attempts.ended(process) {
                tell_failed(connection, failed);
            }
            tell(connection, stream, Observed::Exit(exit));
        }
        for failed in self.attempts.old(Instant::now()) {
            tell_failed(connection, failed);
        }
    }

    /// Says everything about a command that is over: nothing of it is left to be awaited.
    pub fn conclude(&mut self, connection: &mut Connection) {
        self.take_endings(connection);
        for failed in self.attempts.all() {
            tell_failed(connection, failed);
        }
    }
}

fn of(listeners: &[Watched], stream: u32) -> Option<&Listener> {
    let watched = listeners.iter().find(|watched| watched.stream == stream);
    watched.map(|watched| &watched.listener)
}

fn let_begin(listeners: &[Watched], stream: u32, shown: &Shown) {
    // Where there is no listener any more, nobody waits.
    if let Some(listener) = of(listeners, stream) {
        listener.let_go_on(shown);
    }
}

fn tell(connection: &mut Connection, stream: u32, fact: Observed) {
    connection.notice(stream, &Notice::Observed(fact));
}

fn tell_failed(connection: &mut Connection, (stream, failed): (u32, ExecFailed)) {
    tell(connection, stream, Observed::ExecFailed(failed));
}
