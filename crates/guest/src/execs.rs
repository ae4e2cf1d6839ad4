//! Commands: started under a warden, fed, read from, timed, and told about.
//!
//! ```text
//! started ──▶ leader ended ──▶ output drained or idle ──▶ Exited ──▶ nothing left ──▶ Gone
//!     ├── warden killed by the agent ──▶ its strays killed ──▶ Exited ──▶ Gone
//!     └── bound met or signal for all ──▶ every process of it killed, again and again, until gone
//! ```

mod last_pid;
mod look;
mod records;
mod ring;
mod start;
mod stillness;
mod storm;
mod strays;

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

use ringfence_jail::terminal;
use ringfence_model::ByteText;
use ringfence_model::wire::{
    Bound, Exec as Asked, Exited, Failure, Flow, Hello, Kind, Leftover, Leftovers, Notice, Reply,
    SignalScope, WindowSize,
};
use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::{Pid, Signal};

use crate::connection::{CHUNK, Connection};
use crate::disk::Disk;
use crate::freeze::World;
use crate::processes::{self, Watchdog};
use crate::{Ready, failure};
use records::Word;
use ring::Ring;
use stillness::Stillness;
use storm::Storm;
use strays::{Hunt, Identity};

/// BOUND: how long a command has to end by itself after SIGTERM.
const GRACE: Duration = Duration::from_millis(1000);
/// BOUND: a command that is being killed is looked at this often until nothing of it is left.
const KILL_EVERY: Duration = Duration::from_millis(5);
/// BOUND: after the leader's exit, output that never falls idle is waited for this many idle times.
const DRAIN_FACTOR: u32 = 10;
/// BOUND: after the leader's exit, programs that are still being read are waited for this long.
const READING: Duration = Duration::from_secs(2);
/// BOUND: leftovers listed by name; a fork bomb must not fill a frame.
const LEFTOVERS: usize = 64;

/// All commands of this sandbox that are not gone.
#[derive(Debug, Default)]
pub struct Execs {
    running: BTreeMap<u32, Exec>,
    watchdog: Watchdog,
    disk: Disk,
    hunt: Hunt,
    still: Stillness,
    storm: Storm,
    looked: Option<Instant>,
    /// The last time that everybody was, and the processor time that it took.
    looked_at_all: Option<Instant>,
    cost: Duration,
    /// What was read last.
    chunk: Vec<u8>,
}

#[derive(Debug)]
struct Exec {
    warden: Identity,
    records: Option<OwnedFd>,
    partial_record: Vec<u8>,
    program: ByteText,
    cwd: ByteText,
    leader: Option<i32>,
    stdin: Option<Input>,
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
    /// The terminal is standard input and output at once.
    terminal: bool,
    ring: Ring,
    attached: bool,
    flow: Flow,
    started: Instant,
    deadline: Option<Instant>,
    kill: Option<Kill>,
    bound: Option<Bound>,
    /// The bounds that the host was told of.
    told: Vec<Bound>,
    leftovers: Leftovers,
    /// What was left when it was ended for being too many.
    crowd: Vec<Leftover>,
    ended: Option<Ended>,
    /// The warden says that the leader left nothing running.
    alone: bool,
    last_output: Instant,
    reported: bool,
    word: Word,
}

#[derive(Debug)]
struct Input {
    fd: OwnedFd,
    pending: Vec<u8>,
    at_end: bool,
}

#[derive(Debug)]
struct Ended {
    at: Instant,
    code: Option<i32>,
    signal: Option<i32>,
    not_started: Option<Failure>,
    cpu_ms: u64,
    peak_bytes: u64,
}

#[derive(Debug, Clone, Copy)]
enum Kill {
    /// Asked to end; killed from then on.
    At(Instant),
    Now,
}

impl Execs {
    /// Starts a command; its stream is the request's.
    pub fn start(&mut self, stream: u32, asked: Asked, ready: &mut Ready) -> Reply {
        let program = asked.argv.first().cloned().unwrap_or_default();
        match start::start(stream, asked, ready) {
            Ok(exec) => {
                let pid = exec.warden.pid;
                self.still.disturb();
                self.running.insert(stream, exec);
                Reply::Started { pid }
            }
            Err(error) => {
                let errno = Errno::from_io_error(&error).unwrap_or(Errno::INVAL);
                Reply::Failed(failure("start", program.as_bytes(), errno))
            }
        }
    }

    /// Before any command.
    pub fn begin(&mut self, hello: &Hello) {
        self.disk.begin(hello);
        self.watchdog.begin();
    }

    pub fn input(&mut self, stream: u32, bytes: &[u8]) {
        if let Some(input) = self
            .running
            .get_mut(&stream)
            .and_then(|exec| exec.stdin.as_mut())
        {
            input.pending.extend_from_slice(bytes);
        }
    }

    pub fn end_input(&mut self, stream: u32) {
        if let Some(input) = self
            .running
            .get_mut(&stream)
            .and_then(|exec| exec.stdin.as_mut())
        {
            input.at_end = true;
        }
    }

    pub fn signal(&mut self, stream: u32, signal: i32, scope: SignalScope) -> Reply {
        let Some(exec) = self.running.get_mut(&stream) else {
            return no_such_exec();
        };
        let Some(signal) = Signal::from_named_raw(signal) else {
            return Reply::Failed(failure("send", b"signal", Errno::INVAL));
        };
        match scope {
            SignalScope::All if signal == Signal::KILL => exec.kill = Some(Kill::Now),
            SignalScope::All => {
                for pid in exec.descendants() {
                    processes::send(pid, signal);
                }
            }
            SignalScope::Foreground => {
                if let Some(leader) = exec.leader.and_then(Pid::from_raw) {
                    let group = exec.foreground().unwrap_or(leader);
                    // The group may be gone already.
                    let _ = rustix::process::kill_process_group(group, signal);
                }
            }
        }
        Reply::Done
    }

    pub fn resize(&mut self, stream: u32, size: WindowSize) -> Reply {
        match self.running.get(&stream) {
            Some(Exec {
                stdout: Some(fd),
                terminal: true,
                ..
            }) => match terminal::resize(fd.as_fd(), size.columns, size.rows) {
                Ok(()) => Reply::Done,
                Err(_) => Reply::Failed(failure("resize", b"terminal", Errno::NOTTY)),
            },
            Some(_) => Reply::Failed(failure("resize", b"terminal", Errno::NOTTY)),
            None => no_such_exec(),
        }
    }

    /// From now on output is sent; what is still kept since `from` comes first.
    pub fn attach(&mut self, stream: u32, from: u64) -> (Reply, Vec<(Kind, Vec<u8>)>) {
        let Some(exec) = self.running.get_mut(&stream) else {
            return (no_such_exec(), Vec::new());
        };
        exec.attached = true;
        let (from, kept) = exec.ring.since(from);
        (Reply::Attached { from }, kept)
    }

    pub fn detach(&mut self, stream: u32) -> Reply {
        match self.running.get_mut(&stream) {
            Some(exec) => {
                exec.attached = false;
                Reply::Done
            }
            None => no_such_exec(),
        }
    }

    /// Whether output is read from a command, or waits in its pipes.
    pub fn flow(&mut self, stream: u32, flow: Flow) -> Reply {
        match self.running.get_mut(&stream) {
            Some(exec) => {
                exec.flow = flow;
                Reply::Done
            }
            None => no_such_exec(),
        }
    }

    /// What to wait for.
    pub fn interests<'a>(&'a self, room: bool, waits: &mut Vec<PollFd<'a>>) {
        for exec in self.running.values() {
            if let Some(records) = &exec.records {
                waits.push(PollFd::new(records, PollFlags::IN));
            }
            if room && exec.flow == Flow::Free {
                for output in [&exec.stdout, &exec.stderr].into_iter().flatten() {
                    waits.push(PollFd::new(output, PollFlags::IN));
                }
            }
            if let Some(input) = &exec.stdin
                && (!input.pending.is_empty() || input.at_end)
            {
                waits.push(PollFd::new(&input.fd, PollFlags::OUT));
            }
        }
    }

    /// How long nothing happens by itself.
    pub fn next_wake(&self, now: Instant) -> Option<Duration> {
        let mut next: Option<Duration> = None;
        let mut by = |wait: Duration| next = Some(next.map_or(wait, |n: Duration| n.min(wait)));
        for exec in self.running.values() {
            if let Some(deadline) = exec.deadline {
                by(deadline.saturating_duration_since(now));
            }
            match exec.kill {
                Some(Kill::Now) => by(KILL_EVERY),
                Some(Kill::At(at)) => by(at.saturating_duration_since(now)),
                None => {}
            }
            if exec.ended.is_some() && !exec.reported {
                by(KILL_EVERY);
            }
        }
        if self.hunt.is_on() {
            by(KILL_EVERY);
        }
        if !self.running.is_empty() {
            let since = self
                .looked
                .map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
            by(self.look_every(now).saturating_sub(since));
        }
        next
    }

    /// Does all that can be done now.
    pub fn advance(
        &mut self,
        now: Instant,
        ready: &mut Ready,
        world: World,
        connection: &mut Connection,
    ) {
        let hello = &ready.hello;
        self.chunk.reserve(CHUNK);
        for (&stream, exec) in &mut self.running {
            let ended_before = exec.ended.is_some();
            if exec.read_records() == Word::Missing {
                self.hunt.begin();
            }
            // A command that could not fork any more fails at once, before the next look.
            if !ended_before
                && exec
                    .ended
                    .as_ref()
                    .is_some_and(|ended| ended.code != Some(0))
                && let Some((bound, detail)) = processes::is_crowded(hello)
            {
                exec.meet(stream, bound, &detail, connection);
            }
            exec.feed(stream, connection);
            exec.read_output(stream, now, &mut self.chunk, connection);
            exec.keep_time(stream, now, world, connection);
            let idle = Duration::from_millis(hello.drain_idle_ms);
            // Whose warden was killed is over when the strays are: one hunt is for all of them.
            let hunted = exec.word == Word::Missing && self.hunt.is_on();
            // What is known of it is said before its end is.
            let read = !ready.observer.has_work() || exec.ended_before(now, READING);
            if !hunted && read && exec.is_over(now, idle) {
                ready.observer.conclude(connection);
                exec.reported = true;
                connection.notice(stream, &Notice::Exited(exec.report()));
            }
            if exec.records.is_none() && exec.reported {
                connection.notice(stream, &Notice::Gone);
            }
        }
        self.running
            .retain(|_, exec| exec.records.is_some() || !exec.reported);
        if self.hunt.is_on() {
            self.hunt.go(now, &self.wardens(), world);
        }
        self.look(now, ready, world, connection);
    }

    /// The wardens that live: what they look after is where it belongs.
    fn wardens(&self) -> Vec<Identity> {
        let living = self.running.values().filter(|exec| exec.records.is_some());
        living.map(|exec| exec.warden).collect()
    }
}

fn no_such_exec() -> Reply {
    Reply::Failed(failure("find", b"exec", Errno::SRCH))
}

impl Exec {
    fn foreground(&self) -> Option<Pid> {
        if !self.terminal {
            return None;
        }
        rustix::termios::tcgetpgrp(self.stdout.as_ref()?).ok()
    }

    /// Everything of this exec, while there is a warden to look below.
    fn descendants(&self) -> Vec<i32> {
        match self.records {
            Some(_) => processes::descendants(self.warden.pid),
            None => Vec::new(),
        }
    }

    /// Gives the command what it was sent.
    fn feed(&mut self, stream: u32, connection: &mut Connection) {
        let Some(input) = &mut self.stdin else { return };
        if !input.pending.is_empty() {
            match rustix::io::write(&input.fd, &input.pending) {
                Ok(count) => {
                    input.pending.drain(..count);
                    connection.notice(
                        stream,
                        &Notice::InputTaken {
                            bytes: count as u64,
                        },
                    );
                }
                Err(Errno::AGAIN | Errno::INTR) => {}
                // Nobody reads any more: take it all and forget it.
                Err(_) => {
                    let bytes = input.pending.len() as u64;
                    input.pending.clear();
                    input.at_end = true;
                    connection.notice(stream, &Notice::InputTaken { bytes });
                }
            }
        }
        if input.pending.is_empty() && input.at_end {
            if self.terminal {
                // A terminal's end of input is a character, and the other side stays open.
                let _ = rustix::io::write(&input.fd, &[4]);
                input.at_end = false;
            } else {
                self.stdin = None;
            }
        }
    }

    /// Takes what the command wrote, one read of each stream at a time.
    fn read_output(
        &mut self,
        stream: u32,
        now: Instant,
        chunk: &mut Vec<u8>,
        connection: &mut Connection,
    ) {
        for kind in [Kind::Output, Kind::ErrorOutput] {
            let output = if kind == Kind::Output {
                &mut self.stdout
            } else {
                &mut self.stderr
            };
            let Some(fd) = output else { continue };
            if !connection.has_room() || self.flow == Flow::Held {
                return;
            }
            chunk.clear();
            match rustix::io::read(&*fd, spare_capacity(chunk)) {
                // A terminal says EIO when nobody holds its other side.
                Ok(0) | Err(Errno::IO) => *output = None,
                Ok(_) => {
                    self.last_output = now;
                    self.ring.push(kind, chunk);
                    if self.attached {
                        connection.data(kind, stream, chunk);
                    }
                }
                Err(_) => {}
            }
        }
    }

    /// A bound is met: it is told once, and what it ends is ended.
    fn meet(&mut self, stream: u32, bound: Bound, detail: &str, connection: &mut Connection) {
        if self.told.contains(&bound) || self.reported {
            return;
        }
        self.told.push(bound);
        connection.notice(
            stream,
            &Notice::Bound {
                bound,
                detail: detail.to_owned(),
            },
        );
        // The kernel already refuses more processes, and who is out of time has a moment to end by itself; the
        // others are for us to enforce.
        match bound {
            Bound::Processes => {}
            Bound::Time => self.bound = self.bound.or(Some(bound)),
            _ => self.end_for(bound),
        }
    }

    /// Ends what is a part of a storm. Whose leader has ended by itself is told by what it left.
    fn end_storm(&mut self) {
        match self.ended {
            Some(_) => self.kill_crowd(),
            None => self.end_for(Bound::Processes),
        }
    }

    fn kill_crowd(&mut self) {
        if self.kill.is_none() && self.records.is_some() {
            self.crowd = processes::leftovers(self.warden.pid, LEFTOVERS);
            self.kill = Some(Kill::Now);
        }
    }

    fn end_for(&mut self, bound: Bound) {
        self.bound = self.bound.or(Some(bound));
        self.kill = Some(Kill::Now);
    }

    fn keep_time(&mut self, stream: u32, now: Instant, world: World, connection: &mut Connection) {
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            self.deadline = None;
            let seconds = now.saturating_duration_since(self.started).as_secs();
            self.meet(stream, Bound::Time, &format!("{seconds} s"), connection);
            for pid in self.descendants() {
                processes::send(pid, Signal::TERM);
            }
            self.kill = Some(Kill::At(now + GRACE));
        }
        // A crowd that a command leaves is to be killed anyway, and takes the processors of others as long
        // as its output is waited for.
        let is_crowd = self.told.contains(&Bound::Processes) && self.leftovers == Leftovers::Kill;
        if is_crowd && self.ended.is_some() {
            self.kill_crowd();
        }
        if let Some(Kill::At(at)) = self.kill
            && now >= at
        {
            self.kill = Some(Kill::Now);
        }
        if matches!(self.kill, Some(Kill::Now)) && self.records.is_some() {
            processes::kill_all(self.warden.pid, world);
        }
    }

    fn is_over(&self, now: Instant, idle: Duration) -> bool {
        let Some(ended) = &self.ended else {
            return false;
        };
        if self.reported {
            return false;
        }
        let drained = self.stdout.is_none() && self.stderr.is_none();
        // Being killed: wait until everything is.
        if self.kill.is_some() && self.records.is_some() {
            return false;
        }
        // Somebody will read the rest.
        if self.flow == Flow::Held && self.kill.is_none() && !drained {
            return false;
        }
        let quiet = now.saturating_duration_since(self.last_output.max(ended.at)) >= idle;
        let long = now.saturating_duration_since(ended.at) >= idle * DRAIN_FACTOR;
        drained || quiet || long
    }

    fn ended_before(&self, now: Instant, by: Duration) -> bool {
        let ended = self.ended.as_ref();
        ended.is_some_and(|ended| now.saturating_duration_since(ended.at) >= by)
    }

    fn report(&self) -> Exited {
        let ended = self
            .ended
            .as_ref()
            .expect("only what has ended is reported");
        let mut leftovers = self.crowd.clone();
        if leftovers.is_empty()
            && self.records.is_some()
            && !self.alone
            && ended.not_started.is_none()
        {
            leftovers = processes::leftovers(self.warden.pid, LEFTOVERS);
        }
        Exited {
            code: ended.code,
            signal: ended.signal,
            not_started: ended.not_started.clone(),
            bound: self.bound,
            duration_ms: ended.at.saturating_duration_since(self.started).as_millis() as u64,
            cpu_ms: ended.cpu_ms,
            peak_bytes: ended.peak_bytes,
            stdout_bytes: self.ring.total(Kind::Output),
            stderr_bytes: self.ring.total(Kind::ErrorOutput),
            leftovers,
        }
    }
}
