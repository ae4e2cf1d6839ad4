//! Attending a command: its output to the files and the caller, the caller's input to it, its
//! bounds kept, and the user's wish to stop obeyed.

mod console;
mod ending;
mod told;
mod witness;

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use ringfence_jail::cgroup::CgroupEvents;
use ringfence_jail::signals::{Signal, Signals};
use ringfence_model::journal::Event;
use ringfence_model::limits::{HumanBytes, Limit, Limits};
use ringfence_model::observed::Observed;
use ringfence_model::outcome::Outcome;
use ringfence_model::wire::{Bound, Exec, Exited, Leftover, Notice, Reply, Request, SignalScope};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use crate::client::{Client, ClientError, Message, Stream};
use crate::error::Error;
use crate::gate::Gate;
use crate::journal::{JournalError, MAX_JOURNAL_BYTES};
use crate::output::Spool;
use crate::watch::{DiskWatch, LOOK_EVERY, Seen};

pub use console::Console;
use told::Next;
pub(crate) use told::Told;
pub use witness::{Unwatched, Witness};

/// BOUND: input under way that the command has not taken yet.
const INPUT_AHEAD: u64 = 256 * 1024;
/// BOUND: after a request to stop, the command has this long before the next, harder word.
const PATIENCE: Duration = Duration::from_secs(2);
/// BOUND: the guest ends a command at its deadline; a guest that does not within this is ended.
const GUEST_LATE: Duration = Duration::from_secs(5);

/// A way to a guest: straight, or through the keeper of a sandbox.
pub trait Channel {
    fn client(&mut self) -> &mut Client;
    /// How often the kernel refused memory or processes since the command was sent.
    fn kernel_refusals(&mut self) -> CgroupEvents;
    /// Why nothing moves, and what to do, where somebody else holds it up.
    fn held_up(&self) -> Option<String> {
        None
    }
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
    mut records: Records<'_>,
    inputs: &Inputs<'_>,
    console: &mut dyn Console,
) -> Result<Attended, Error> {
    let mut running = Running::start(sandbox, exec, limits, None)?;
    loop {
        match running.go_on(sandbox, limits, &mut records, inputs, console)? {
            Came::Ended(attended) => return Ok(attended),
            // Only who is told by us has turns.
            Came::TurnOver => {}
        }
    }
}

/// A command under way.
#[derive(Debug)]
pub(crate) struct Running {
    stream: u32,
    began: Instant,
    /// What it reads instead of the caller's input.
    told: Option<Told>,
    /// The caller's input has ended.
    input_ended: bool,
    ahead: u64,
    stop: Option<Stop>,
    hits: Vec<(Limit, String)>,
    /// The bound for which we ended the command.
    over: Option<Outcome>,
    looked: Instant,
    deadline: Option<Instant>,
    /// A question about files without a name is under way.
    asked: bool,
    /// What was said of who holds it up.
    held_up: Option<String>,
    /// When everything was told to die; a sandbox that does not obey is ended.
    killed: Option<Instant>,
}

/// What came of going on with a command.
#[derive(Debug)]
pub(crate) enum Came {
    Ended(Attended),
    /// It said that its turn is over, and waits.
    TurnOver,
}

impl Running {
    /// Starts a command; `told` is what it reads where that is not the caller's input.
    pub(crate) fn start(
        sandbox: &mut dyn Channel,
        exec: Exec,
        limits: &Limits,
        told: Option<Told>,
    ) -> Result<Self, Error> {
        let began = Instant::now();
        let stream = sandbox.client().send(&Request::Exec(exec))?;
        Ok(Self {
            stream,
            began,
            told,
            input_ended: false,
            ahead: 0,
            stop: None,
            hits: Vec::new(),
            over: None,
            looked: began,
            asked: false,
            held_up: None,
            killed: None,
            deadline: limits
                .time_seconds
                .map(|s| began + Duration::from_secs(s) + GUEST_LATE),
        })
    }

    /// Attends it to its end, or to the end of its turn.
    pub(crate) fn go_on(
        &mut self,
        sandbox: &mut dyn Channel,
        limits: &Limits,
        records: &mut Records<'_>,
        inputs: &Inputs<'_>,
        console: &mut dyn Console,
    ) -> Result<Came, Error> {
        let own = self.told.is_some() || self.input_ended;
        let mut attending = Attending {
            run: self,
            limits,
            spool: records.spool,
            disk: records.disk,
            witness: records.witness,
            gate: records.gate,
            console,
            stdin: inputs.stdin.filter(|_| !own),
            signals: inputs.signals,
        };
        let exited = loop {
            match attending.turn(sandbox) {
                Ok(Some(exited)) => break exited,
                Ok(None) if attending.is_turn_over() => return Ok(Came::TurnOver),
                Ok(None) => {}
                Err(Error::Client(ClientError::Gone)) => {
                    return Ok(Came::Ended(attending.lost(sandbox)));
                }
                Err(error) => return Err(error),
            }
        };
        attending.last_words(sandbox)?;
        Ok(Came::Ended(attending.judge(sandbox, exited)))
    }

    /// Bounds that were met since this was asked before.
    pub(crate) fn take_hits(&mut self) -> Vec<(Limit, String)> {
        std::mem::take(&mut self.hits)
    }

    /// Begins the next turn of a command that waits.
    pub(crate) fn tell(&mut self, line: &[u8]) {
        if let Some(told) = &mut self.told {
            told.tell(line);
        }
    }
}

struct Attending<'a> {
    run: &'a mut Running,
    limits: &'a Limits,
    spool: &'a mut Spool,
    disk: &'a mut DiskWatch,
    witness: &'a mut dyn Witness,
    gate: &'a mut Option<Gate>,
    console: &'a mut dyn Console,
    stdin: Option<BorrowedFd<'a>>,
    signals: Option<&'a Signals>,
}

/// A wish to stop, said ever harder.
#[derive(Clone, Copy, Debug)]
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
        let room = self.console.has_room() || self.run.stop.is_some();
        if room && let Some(message) = sandbox.client().take() {
            return self.take(message);
        }
        self.forward_told(sandbox)?;
        let (from_guest, from_stdin, from_signals) = self.wait(sandbox, room)?;
        self.hear_gate()?;
        if !from_guest {
            let held_up = sandbox.held_up();
            if let Some(why) = held_up.as_ref().filter(|_| held_up != self.run.held_up) {
                self.console.note(why);
            }
            self.run.held_up = held_up;
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
        if let Some(stop) = self.run.stop
            && now >= stop.again
        {
            self.stop_harder(sandbox)?;
        }
        if now.saturating_duration_since(self.run.looked) >= LOOK_EVERY {
            self.run.looked = now;
            match self.disk.look() {
                Seen::Fine => {}
                Seen::Over(limit, detail) => self.end(sandbox, limit, detail)?,
                Seen::Unaccounted if !self.run.asked => {
                    self.run.asked = true;
                    sandbox.client().send(&Request::Usage)?;
                }
                Seen::Unaccounted => {}
            }
        }
        let late = self.run.deadline.is_some_and(|deadline| now >= deadline);
        if late {
            self.run.over.get_or_insert(Outcome::TimedOut);
        }
        if late || self.run.killed.is_some_and(|at| now >= at + GUEST_LATE) {
            return Err(ClientError::Gone.into());
        }
        if let Some(limit) = self.limits.output_bytes
            && self.spool.total() > limit
            && self.run.over.is_none()
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
            && self.run.ahead < INPUT_AHEAD
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
            Message::Data(stream, which, bytes) if stream == self.run.stream => {
                if self.console.has_room() {
                    self.console.output(which, &bytes);
                }
                if let (Stream::Stdout, Some(told)) = (which, &mut self.run.told) {
                    told.hear(&bytes);
                }
                if let Err(error) = self.spool.write(which, &bytes)
                    && self.run.over.is_none()
                {
                    // The disk under our own state is full: no further output can be kept.
                    self.run
                        .hits
                        .push((Limit::Disk, format!("cannot keep the output: {error}")));
                    self.run.over = Some(Outcome::DiskFull);
                    self.run.stop = Some(Stop {
                        hardness: STOPPING.len() - 1,
                        again: Instant::now(),
                    });
                }
            }
            Message::Notice(stream, notice) if stream == self.run.stream => match notice {
                Notice::Exited(exited) => return Ok(Some(exited)),
                Notice::InputTaken { bytes } => {
                    self.run.ahead = self.run.ahead.saturating_sub(bytes)
                }
                Notice::Bound { bound, detail } => self.run.hits.push((limit_of(bound), detail)),
                Notice::Observed(observed) => self.witness(observed)?,
                Notice::Gone | Notice::Changed { .. } => {}
            },
            Message::Reply(stream, Reply::Failed(failure)) if stream == self.run.stream => {
                return Err(ClientError::Failed(failure).into());
            }
            Message::Reply(_, Reply::Usage(usage)) => {
                self.run.asked = false;
                if let Seen::Over(limit, detail) = self.disk.judge_unlinked(&usage)
                    && self.run.over.is_none()
                {
                    self.run.hits.push((limit, detail));
                    self.run.over = Some(Outcome::DiskFull);
                    self.run.stop = Some(Stop {
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
            Err(JournalError::Full { .. }) if self.run.over.is_some() => Ok(()),
            Err(JournalError::Full { .. }) => {
                let allowed = format!("{} allowed", HumanBytes(MAX_JOURNAL_BYTES));
                self.run.hits.push((Limit::Journal, allowed));
                self.run.over = Some(Outcome::JournalFull);
                self.run.stop = Some(Stop {
                    hardness: STOPPING.len() - 1,
                    again: Instant::now(),
                });
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Whether the command has said that its turn is over. One that is being stopped says nothing.
    fn is_turn_over(&mut self) -> bool {
        let ends = self.run.over.is_some() || self.run.stop.is_some();
        let told = self.run.told.as_mut().filter(|_| !ends);
        told.is_some_and(Told::take_turn_over)
    }

    fn forward_told(&mut self, sandbox: &mut dyn Channel) -> Result<(), Error> {
        let Some(told) = &mut self.run.told else {
            return Ok(());
        };
        while self.run.ahead < INPUT_AHEAD
            && let Some(next) = told.next()
        {
            match next {
                Next::Bytes(bytes) => {
                    self.run.ahead += bytes.len() as u64;
                    sandbox.client().input(self.run.stream, &bytes)?;
                }
                Next::End => sandbox.client().end_input(self.run.stream)?,
            }
        }
        Ok(())
    }

    fn forward_input(&mut self, sandbox: &mut dyn Channel) -> Result<(), Error> {
        let Some(stdin) = self.stdin else {
            return Ok(());
        };
        let mut chunk = [0u8; 16384];
        match rustix::io::read(stdin, &mut chunk) {
            Ok(count) if count > 0 => {
                self.run.ahead += count as u64;
                Ok(sandbox.client().input(self.run.stream, &chunk[..count])?)
            }
            Err(Errno::INTR | Errno::AGAIN) => Ok(()),
            // Its end, or a terminal that went away.
            _ => {
                self.stdin = None;
                self.run.input_ended = true;
                Ok(sandbox.client().end_input(self.run.stream)?)
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
                        exec: self.run.stream,
                        size,
                    })?;
                }
            } else {
                self.run.over.get_or_insert(Outcome::Cancelled);
                self.stop_harder(sandbox)?;
            }
        }
        Ok(())
    }

    fn stop_harder(&mut self, sandbox: &mut dyn Channel) -> Result<(), Error> {
        let hardness = self.run.stop.map_or(0, |stop| stop.hardness);
        let (signal, scope) = STOPPING[hardness];
        if signal == Signal::KILL {
            self.run.killed.get_or_insert_with(Instant::now);
        }
        sandbox.client().send(&Request::Signal {
            exec: self.run.stream,
            signal,
            scope,
        })?;
        self.run.stop = Some(Stop {
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
        if self.run.over.is_some() {
            return Ok(());
        }
        self.run.hits.push((limit, detail));
        self.run.over = Some(if limit == Limit::Output {
            Outcome::OutputLimit
        } else {
            Outcome::DiskFull
        });
        self.run.stop = Some(Stop {
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
}

fn limit_of(bound: Bound) -> Limit {
    match bound {
        Bound::Time => Limit::Time,
        Bound::Memory => Limit::Memory,
        Bound::Processes => Limit::Processes,
        Bound::Cpu => Limit::Cpu,
        Bound::Disk => Limit::Disk,
    }
}
