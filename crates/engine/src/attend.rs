//! Attending a command: its output to the files and the caller, the caller's input to it, its
//! bounds kept, and the user's wish to stop obeyed.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use ringfence_jail::cgroup::CgroupEvents;
use ringfence_jail::signals::{Signal, Signals};
use ringfence_model::check::{Ran, Tree};
use ringfence_model::journal::Event;
use ringfence_model::limits::{HumanBytes, Limit, Limits};
use ringfence_model::observed::Observed;
use ringfence_model::outcome::Outcome;
use ringfence_model::wire::{
    Bound, Exec, Exited, Leftover, Notice, Reply, Request, SignalScope, WindowSize,
};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use crate::client::{Client, ClientError, Message, Stream};
use crate::error::Error;
use crate::gate::Gate;
use crate::journal::{JournalError, MAX_JOURNAL_BYTES};
use crate::output::Spool;
use crate::watch::{DiskWatch, LOOK_EVERY, Seen};

/// BOUND: input under way that the command has not taken yet.
const INPUT_AHEAD: u64 = 256 * 1024;
/// BOUND: after a request to stop, the command has this long before the next, harder word.
const PATIENCE: Duration = Duration::from_secs(2);
/// BOUND: the guest ends a command at its deadline; a guest that does not within this is ended.
const GUEST_LATE: Duration = Duration::from_secs(5);

/// The caller's side of a running command.
pub trait Console {
    /// Output as it comes.
    fn output(&mut self, stream: Stream, bytes: &[u8]);
    /// Whether output can be passed on without waiting. While it cannot, the command is not read
    /// from, and everything else goes on.
    fn has_room(&self) -> bool {
        true
    }
    /// The size of the caller's terminal now.
    fn size(&self) -> Option<WindowSize> {
        None
    }
    /// A step of the run begins.
    fn step(&mut self, _step: &str) {}
    /// A check begins on a tree, or has ended there.
    fn check(&mut self, _command: &str, _tree: Tree, _ran: Option<&Ran>) {}
    /// Nothing happened for a moment.
    fn idle(&mut self) {}
}

/// A way to a guest: straight, or through the keeper of a sandbox.
pub trait Channel {
    fn client(&mut self) -> &mut Client;
    /// How often the kernel refused memory or processes since the command was sent.
    fn kernel_refusals(&mut self) -> CgroupEvents;
}

/// Takes what the kernel showed of the processes inside.
pub trait Witness {
    fn observed(&mut self, observed: Observed) -> Result<(), JournalError>;
    /// Takes what the gate said, or that it is gone.
    fn network(&mut self, event: Event) -> Result<(), JournalError>;
    /// Nothing happened for a moment: what was taken can be put where it outlives this process.
    fn idle(&mut self);
}

/// Where what a command does is kept.
pub struct Records<'a> {
    pub spool: &'a mut Spool,
    pub disk: &'a mut DiskWatch,
    pub witness: &'a mut dyn Witness,
    /// The way out, where there is one; `None` once it is gone.
    pub gate: &'a mut Option<Gate>,
}

impl std::fmt::Debug for Records<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Records").finish_non_exhaustive()
    }
}

/// Where input and signals come from.
#[derive(Debug, Default)]
pub struct Inputs<'a> {
    /// Forwarded to the command until its end.
    pub stdin: Option<BorrowedFd<'a>>,
    /// Signals to this process: stop, or the terminal's new size.
    pub signals: Option<&'a Signals>,
}

/// How a command ended, and what was seen meanwhile.
#[derive(Debug)]
pub struct Attended {
    pub outcome: Outcome,
    pub code: Option<i32>,
    pub signal: Option<i32>,
    /// Why nothing was started, where nothing was.
    pub not_started: Option<String>,
    pub duration_ms: u64,
    pub cpu_ms: u64,
    pub peak_bytes: u64,
    pub leftovers: Vec<Leftover>,
    pub hits: Vec<(Limit, String)>,
}

impl Attended {
    /// The journal took no more when the command was over already.
    pub fn journal_full(&mut self) {
        if self.outcome != Outcome::JournalFull {
            self.outcome = Outcome::JournalFull;
            let allowed = format!("{} allowed", HumanBytes(MAX_JOURNAL_BYTES));
            self.hits.push((Limit::Journal, allowed));
        }
    }
}

/// Runs a command to its end.
pub fn attend(
    sandbox: &mut dyn Channel,
    exec: Exec,
    limits: &Limits,
    records: Records<'_>,
    inputs: &Inputs<'_>,
    console: &mut dyn Console,
) -> Result<Attended, Error> {
    let began = Instant::now();
    let stream = sandbox.client().send(&Request::Exec(exec))?;
    let mut attending = Attending {
        stream,
        limits,
        spool: records.spool,
        disk: records.disk,
        witness: records.witness,
        gate: records.gate,
        console,
        stdin: inputs.stdin,
        signals: inputs.signals,
        ahead: 0,
        stop: None,
        hits: Vec::new(),
        over: None,
        looked: began,
        asked: false,
        killed: None,
        deadline: limits
            .time_seconds
            .map(|s| began + Duration::from_secs(s) + GUEST_LATE),
    };
    let exited = loop {
        match attending.turn(sandbox) {
            Ok(Some(exited)) => break exited,
            Ok(None) => {}
            Err(Error::Client(ClientError::Gone)) => return Ok(attending.lost(sandbox, began)),
            Err(error) => return Err(error),
        }
    };
    attending.last_words(sandbox)?;
    Ok(attending.judge(sandbox, exited))
}

struct Attending<'a> {
    stream: u32,
    limits: &'a Limits,
    spool: &'a mut Spool,
    disk: &'a mut DiskWatch,
    witness: &'a mut dyn Witness,
    gate: &'a mut Option<Gate>,
    console: &'a mut dyn Console,
    stdin: Option<BorrowedFd<'a>>,
    signals: Option<&'a Signals>,
    ahead: u64,
    stop: Option<Stop>,
    hits: Vec<(Limit, String)>,
    /// The bound for which we ended the command.
    over: Option<Outcome>,
    looked: Instant,
    deadline: Option<Instant>,
    /// A question about files without a name is under way.
    asked: bool,
    /// When everything was told to die; a sandbox that does not obey is ended.
    killed: Option<Instant>,
}

/// A wish to stop, said ever harder.
#[derive(Clone, Copy)]
struct Stop {
    hardness: usize,
    again: Instant,
}

/// What is sent, in order.
const STOPPING: [(i32, SignalScope); 3] = [
    (Signal::INTERRUPT, SignalScope::Foreground),
    (Signal::TERMINATE, SignalScope::All),
    (Signal::KILL, SignalScope::All),
];

impl Attending<'_> {
    /// Waits for one thing and does what follows.
    fn turn(&mut self, sandbox: &mut dyn Channel) -> Result<Option<Exited>, Error> {
        // After a wish to stop, nobody waits for a reader; the log has everything.
        let room = self.console.has_room() || self.stop.is_some();
        if room && let Some(message) = sandbox.client().take() {
            return self.take(message);
        }
        let (from_guest, from_stdin, from_signals) = self.wait(sandbox, room)?;
        self.hear_gate()?;
        if !from_guest {
            self.console.idle();
            self.witness.idle();
        }
        if from_guest {
            sandbox.client().receive()?;
        }
        if from_stdin {
            self.forward_input(sandbox)?;
        }
        if from_signals {
            self.take_signals(sandbox)?;
        }
        let now = Instant::now();
        if let Some(stop) = self.stop
            && now >= stop.again
        {
            self.stop_harder(sandbox)?;
        }
        if now.saturating_duration_since(self.looked) >= LOOK_EVERY {
            self.looked = now;
            match self.disk.look() {
                Seen::Fine => {}
                Seen::Over(limit, detail) => self.end(sandbox, limit, detail)?,
                Seen::Unaccounted if !self.asked => {
                    self.asked = true;
                    sandbox.client().send(&Request::Usage)?;
                }
                Seen::Unaccounted => {}
            }
        }
        let late = self.deadline.is_some_and(|deadline| now >= deadline);
        if late {
            self.over.get_or_insert(Outcome::TimedOut);
        }
        if late || self.killed.is_some_and(|at| now >= at + GUEST_LATE) {
            return Err(ClientError::Gone.into());
        }
        if let Some(limit) = self.limits.output_bytes
            && self.spool.total() > limit
            && self.over.is_none()
        {
            self.end(sandbox, Limit::Output, format!("{limit} bytes allowed"))?;
        }
        Ok(None)
    }

    fn wait(&self, sandbox: &mut dyn Channel, room: bool) -> Result<(bool, bool, bool), Error> {
        let client = sandbox.client();
        let interest = if room {
            PollFlags::IN
        } else {
            PollFlags::empty()
        };
        let mut waits = vec![PollFd::from_borrowed_fd(client.fd(), interest)];
        let mut stdin_at = None;
        if let Some(stdin) = self.stdin
            && self.ahead < INPUT_AHEAD
        {
            stdin_at = Some(waits.len());
            waits.push(PollFd::from_borrowed_fd(stdin, PollFlags::IN));
        }
        let mut signals_at = None;
        if let Some(signals) = self.signals {
            signals_at = Some(waits.len());
            waits.push(PollFd::from_borrowed_fd(signals.fd(), PollFlags::IN));
        }
        if let Some(gate) = &*self.gate {
            // Only to wake up: it is heard at each turn.
            waits.push(PollFd::from_borrowed_fd(gate.fd(), PollFlags::IN));
        }
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: LOOK_EVERY.as_nanos() as i64,
        };
        match rustix::event::poll(&mut waits, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(Error::Wait(errno.into())),
        }
        let ready = |at: Option<usize>| at.is_some_and(|at| !waits[at].revents().is_empty());
        Ok((ready(Some(0)), ready(stdin_at), ready(signals_at)))
    }

    fn take(&mut self, message: Message) -> Result<Option<Exited>, Error> {
        match message {
            Message::Data(stream, which, bytes) if stream == self.stream => {
                if self.console.has_room() {
                    self.console.output(which, &bytes);
                }
                if let Err(error) = self.spool.write(which, &bytes)
                    && self.over.is_none()
                {
                    // The disk under our own state is full: no further output can be kept.
                    self.hits
                        .push((Limit::Disk, format!("cannot keep the output: {error}")));
                    self.over = Some(Outcome::DiskFull);
                    self.stop = Some(Stop {
                        hardness: STOPPING.len() - 1,
                        again: Instant::now(),
                    });
                }
            }
            Message::Notice(stream, notice) if stream == self.stream => match notice {
                Notice::Exited(exited) => return Ok(Some(exited)),
                Notice::InputTaken { bytes } => self.ahead = self.ahead.saturating_sub(bytes),
                Notice::Bound { bound, detail } => self.hits.push((limit_of(bound), detail)),
                Notice::Observed(observed) => self.witness(observed)?,
                Notice::Gone | Notice::Changed { .. } => {}
            },
            Message::Reply(stream, Reply::Failed(failure)) if stream == self.stream => {
                return Err(ClientError::Failed(failure).into());
            }
            Message::Reply(_, Reply::Usage(usage)) => {
                self.asked = false;
                if let Seen::Over(limit, detail) = self.disk.judge_unlinked(&usage)
                    && self.over.is_none()
                {
                    self.hits.push((limit, detail));
                    self.over = Some(Outcome::DiskFull);
                    self.stop = Some(Stop {
                        hardness: STOPPING.len() - 1,
                        again: Instant::now(),
                    });
                }
            }
            _ => {}
        }
        Ok(None)
    }

    /// INVARIANT: nothing goes on unrecorded: a journal that takes no more ends the command.
    fn witness(&mut self, observed: Observed) -> Result<(), Error> {
        let taken = self.witness.observed(observed);
        self.recorded(taken)
    }

    /// What the gate has said goes into the journal. A gate that is gone takes the network with it.
    fn hear_gate(&mut self) -> Result<(), Error> {
        let Some(gate) = self.gate else {
            return Ok(());
        };
        let events = match gate.receive() {
            Ok(seen) => seen.into_iter().map(Event::Network).collect(),
            Err(error) => {
                *self.gate = None;
                let detail = error.to_string();
                vec![Event::GateLost { detail }]
            }
        };
        for event in events {
            let taken = self.witness.network(event);
            self.recorded(taken)?;
        }
        Ok(())
    }

    fn recorded(&mut self, taken: Result<(), JournalError>) -> Result<(), Error> {
        match taken {
            Ok(()) => Ok(()),
            Err(JournalError::Full { .. }) if self.over.is_some() => Ok(()),
            Err(JournalError::Full { .. }) => {
                let allowed = format!("{} allowed", HumanBytes(MAX_JOURNAL_BYTES));
                self.hits.push((Limit::Journal, allowed));
                self.over = Some(Outcome::JournalFull);
                self.stop = Some(Stop {
                    hardness: STOPPING.len() - 1,
                    again: Instant::now(),
                });
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    fn forward_input(&mut self, sandbox: &mut dyn Channel) -> Result<(), Error> {
        let Some(stdin) = self.stdin else {
            return Ok(());
        };
        let mut chunk = [0u8; 16384];
        match rustix::io::read(stdin, &mut chunk) {
            Ok(count) if count > 0 => {
                self.ahead += count as u64;
                Ok(sandbox.client().input(self.stream, &chunk[..count])?)
            }
            Err(Errno::INTR | Errno::AGAIN) => Ok(()),
            // Its end, or a terminal that went away.
            _ => {
                self.stdin = None;
                Ok(sandbox.client().end_input(self.stream)?)
            }
        }
    }

    fn take_signals(&mut self, sandbox: &mut dyn Channel) -> Result<(), Error> {
        let Some(signals) = self.signals else {
            return Ok(());
        };
        while let Some(signal) = signals.take() {
            if signal == Signal::WINDOW {
                if let Some(size) = self.console.size() {
                    sandbox.client().send(&Request::Resize {
                        exec: self.stream,
                        size,
                    })?;
                }
            } else {
                self.over.get_or_insert(Outcome::Cancelled);
                self.stop_harder(sandbox)?;
            }
        }
        Ok(())
    }

    fn stop_harder(&mut self, sandbox: &mut dyn Channel) -> Result<(), Error> {
        let hardness = self.stop.map_or(0, |stop| stop.hardness);
        let (signal, scope) = STOPPING[hardness];
        if signal == Signal::KILL {
            self.killed.get_or_insert_with(Instant::now);
        }
        sandbox.client().send(&Request::Signal {
            exec: self.stream,
            signal,
            scope,
        })?;
        self.stop = Some(Stop {
            hardness: (hardness + 1).min(STOPPING.len() - 1),
            again: Instant::now() + PATIENCE,
        });
        Ok(())
    }

    /// Ends the command for a bound that is ours to keep.
    fn end(
        &mut self,
        sandbox: &mut dyn Channel,
        limit: Limit,
        detail: String,
    ) -> Result<(), Error> {
        if self.over.is_some() {
            return Ok(());
        }
        self.hits.push((limit, detail));
        self.over = Some(if limit == Limit::Output {
            Outcome::OutputLimit
        } else {
            Outcome::DiskFull
        });
        self.stop = Some(Stop {
            hardness: STOPPING.len() - 1,
            again: Instant::now(),
        });
        self.stop_harder(sandbox)
    }

    /// What was said before the end and is still on its way.
    fn last_words(&mut self, sandbox: &mut dyn Channel) -> Result<(), Error> {
        while let Some(message) = sandbox.client().take() {
            self.take(message)?;
        }
        Ok(())
    }

    fn judge(mut self, sandbox: &mut dyn Channel, exited: Exited) -> Attended {
        let refusals = self.memory_kills(sandbox);
        // A command can be faster than the watch.
        if self.over.is_none()
            && let Seen::Over(limit, detail) = self.disk.count()
        {
            self.hits.push((limit, detail));
            self.over = Some(Outcome::DiskFull);
        }
        let failed = exited.code != Some(0);
        if refusals.process_refusals > 0 {
            self.hits.push((
                Limit::Processes,
                format!("the kernel refused {}", refusals.process_refusals),
            ));
        }
        let file_size = exited.signal == Some(Signal::FILE_SIZE)
            // As a shell tells of a child's signal.
            || exited.code == Some(128 + Signal::FILE_SIZE);
        if file_size {
            let allowed = self.limits.file_bytes.unwrap_or_default();
            self.hits
                .push((Limit::FileSize, format!("{} allowed", HumanBytes(allowed))));
        }
        let hit = |limit: Limit| self.hits.iter().any(|(hit, _)| *hit == limit);
        // A fork bomb's first process may well end with success.
        let storm = exited.leftovers.len() >= 32;
        let outcome = if exited.not_started.is_some() {
            Outcome::NotStarted
        } else if exited.bound == Some(Bound::Time) {
            Outcome::TimedOut
        } else if let Some(over) = self.over {
            over
        } else if failed && hit(Limit::Memory) {
            Outcome::OutOfMemory
        } else if failed && hit(Limit::Cpu) {
            Outcome::CpuLimit
        } else if hit(Limit::Processes) && (failed || storm) {
            Outcome::TooManyProcesses
        } else if file_size {
            Outcome::FileTooLarge
        } else if failed && self.disk.is_file_system_full() {
            Outcome::DiskFull
        } else if exited.signal.is_some() {
            Outcome::Signaled
        } else {
            Outcome::Exited
        };
        Attended {
            outcome,
            code: exited.code,
            signal: exited.signal,
            not_started: exited.not_started.map(|failure| failure.to_string()),
            duration_ms: exited.duration_ms,
            cpu_ms: exited.cpu_ms,
            peak_bytes: exited.peak_bytes,
            leftovers: exited.leftovers,
            hits: self.hits,
        }
    }

    /// What the kernel refused; for memory it kills.
    fn memory_kills(&mut self, sandbox: &mut dyn Channel) -> CgroupEvents {
        let refusals = sandbox.kernel_refusals();
        if refusals.memory_kills > 0 {
            self.hits.push((
                Limit::Memory,
                format!("the kernel killed {} processes", refusals.memory_kills),
            ));
        }
        refusals
    }

    /// Pid 1 is gone. Where everything inside is small, the kernel may have taken it for the memory
    /// that files hold.
    fn lost(mut self, sandbox: &mut dyn Channel, began: Instant) -> Attended {
        let lost = if self.memory_kills(sandbox).memory_kills > 0 {
            Outcome::OutOfMemory
        } else {
            Outcome::RuntimeLost
        };
        Attended {
            outcome: self.over.unwrap_or(lost),
            code: None,
            signal: None,
            not_started: None,
            duration_ms: began.elapsed().as_millis() as u64,
            cpu_ms: 0,
            peak_bytes: 0,
            leftovers: Vec::new(),
            hits: self.hits,
        }
    }
}

fn limit_of(bound: Bound) -> Limit {
    match bound {
        Bound::Time => Limit::Time,
        Bound::Memory => Limit::Memory,
        Bound::Processes => Limit::Processes,
        Bound::Cpu => Limit::Cpu,
    }
}
