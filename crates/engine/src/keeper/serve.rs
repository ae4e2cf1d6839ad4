//! The keeper's loop: one thread that waits for callers, for the guest and for time to pass.

use std::collections::BTreeMap;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ringfence_jail::signals::{Signal, Signals};
use ringfence_model::journal::Event;
use ringfence_model::sandbox::{Answer, Call, Described, EndReason, PROTOCOL, Purpose};
use ringfence_model::wire::{Flow, Reply, Request, SignalScope, Usage};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::peer::{Peer, Said};
use super::relay::{Route, Streamed};
use crate::attend::Channel as _;
use crate::client::ClientError;
use crate::clock::now_us;
use crate::gate::Gate;
use crate::journal::JournalFile;
use crate::sandbox::Sandbox;
use crate::watch::{DiskWatch, Seen};

/// BOUND: how often what nobody attends is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// BOUND: a keeper that nobody can reach any more is gone within this.
const REACHABLE_EVERY: Duration = Duration::from_secs(10);
/// BOUND: looks in a row at which a bound is met before the execution ends.
const OVER_LOOKS: u32 = 2;
/// BOUND: a process that has ended is gone within moments.
const LEAVING: Duration = Duration::from_millis(1);
const LEAVING_LOOKS: u32 = 20;
/// BOUND: words of one caller that wait while everything stands still; input is kept short by whoever
/// sends it.
const HELD_BACK: usize = 256;
/// BOUND: callers at once; each costs a descriptor and a buffer.
const PEERS: usize = 256;

/// How an execution ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    pub reason: EndReason,
    pub processes: u64,
    /// Who asked, and waits for the word that it is over.
    pub asked_by: Option<u32>,
}

/// When an execution ends by itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Patience {
    pub idle: Option<Duration>,
    pub expires_us: Option<i64>,
}

/// One execution and all who talk to it.
pub struct Keeping {
    pub incarnation: u64,
    pub sandbox: Sandbox,
    /// The way out, where there is one; `None` once it is gone.
    pub gate: Option<Gate>,
    pub journal: JournalFile,
    pub disk: DiskWatch,
    pub patience: Patience,
    signals: Signals,
    listener: UnixListener,
    pub(super) peers: BTreeMap<u32, Peer>,
    next_peer: u32,
    pub(super) routes: BTreeMap<u32, Route>,
    pub(super) last_used: Instant,
    looked: Instant,
    over: u32,
    directory: PathBuf,
    reached: Instant,
    /// Something happened that the journal did not take.
    pub(super) unrecorded: bool,
    /// Callers are about to be told of something that is not on the disk yet.
    pub(super) uncommitted: bool,
}

impl Keeping {
    pub fn new(
        incarnation: u64,
        (sandbox, gate): (Sandbox, Option<Gate>),
        journal: JournalFile,
        disk: DiskWatch,
        patience: Patience,
        listener: UnixListener,
        (signals, directory): (Signals, PathBuf),
    ) -> Self {
        let now = Instant::now();
        Self {
            incarnation,
            sandbox,
            gate,
            journal,
            disk,
            patience,
            signals,
            listener,
            peers: BTreeMap::new(),
            next_peer: 0,
            routes: BTreeMap::new(),
            last_used: now,
            looked: now,
            over: 0,
            directory,
            reached: now,
            unrecorded: false,
            uncommitted: false,
        }
    }

    /// Serves until the execution is over.
    pub fn serve(&mut self) -> End {
        loop {
            let turned = self.turn();
            if !self.commit() {
                return self.end(EndReason::JournalFull, None);
            }
            // What is on its way to callers goes out, whatever comes next.
            let gone: Vec<u32> = self
                .peers
                .iter_mut()
                .filter_map(|(&number, peer)| (!peer.flush()).then_some(number))
                .collect();
            let left = gone.into_iter().try_for_each(|number| self.leave(number));
            match turned.and_then(|end| left.map(|()| end)) {
                Ok(None) => {}
                Ok(Some(end)) => return end,
                Err(_) => {
                    return End {
                        reason: EndReason::Died,
                        processes: 0,
                        asked_by: None,
                    };
                }
            }
        }
    }

    /// Says that it is over to whoever asked.
    pub fn tell_end(&mut self, end: End) {
        if let Some(peer) = end.asked_by.and_then(|number| self.peers.get_mut(&number)) {
            peer.answer(&Answer::Ended {
                processes: end.processes,
            });
        }
        for peer in self.peers.values_mut() {
            peer.flush_last();
        }
    }

    fn turn(&mut self) -> Result<Option<End>, ClientError> {
        while let Some(message) = self.sandbox.client().take() {
            self.route(message)?;
        }
        self.catch_up()?;
        let (from_guest, from_listener, ready) = self.wait()?;
        if from_guest {
            self.sandbox.client().receive()?;
        } else {
            // So that a killed keeper loses little; what does not fit now is tried again.
            let _ = self.journal.flush();
        }
        self.hear_gate();
        if from_listener {
            self.admit();
        }
        for number in ready {
            let said = self.peers.get_mut(&number).and_then(Peer::receive);
            let Some(said) = said else {
                self.leave(number)?;
                continue;
            };
            for word in said {
                if let Some(end) = self.hear(number, word)? {
                    return Ok(Some(end));
                }
            }
        }
        self.flow()?;
        self.watch()
    }

    fn wait(&mut self) -> Result<(bool, bool, Vec<u32>), ClientError> {
        let wait = self.next_wake();
        let timeout = Timespec {
            tv_sec: wait.as_secs() as i64,
            tv_nsec: i64::from(wait.subsec_nanos()),
        };
        let guest = self
            .sandbox
            .client()
            .fd()
            .try_clone_to_owned()
            .map_err(ClientError::Talk)?;
        let mut waits = vec![
            PollFd::new(&guest, PollFlags::IN),
            PollFd::new(&self.listener, PollFlags::IN),
        ];
        let numbers: Vec<u32> = self.peers.keys().copied().collect();
        for peer in self.peers.values() {
            waits.push(PollFd::from_borrowed_fd(peer.fd(), peer.interest()));
        }
        // Only to wake up: `watch` takes them.
        waits.push(PollFd::from_borrowed_fd(self.signals.fd(), PollFlags::IN));
        if let Some(gate) = &self.gate {
            waits.push(PollFd::from_borrowed_fd(gate.fd(), PollFlags::IN));
        }
        match rustix::event::poll(&mut waits, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(ClientError::Talk(errno.into())),
        }
        let readable = PollFlags::IN | PollFlags::HUP | PollFlags::ERR;
        let ready = numbers
            .into_iter()
            .zip(&waits[2..])
            .filter(|(_, wait)| wait.revents().intersects(readable))
            .map(|(number, _)| number)
            .collect();
        Ok((
            !waits[0].revents().is_empty(),
            !waits[1].revents().is_empty(),
            ready,
        ))
    }

    fn next_wake(&self) -> Duration {
        let mut next = REACHABLE_EVERY.saturating_sub(self.reached.elapsed());
        let mut by = |wait: Duration| next = next.min(wait);
        if !self.routes.is_empty() {
            by(LOOK_EVERY);
        }
        if let Some(idle) = self.patience.idle {
            by(idle.saturating_sub(self.last_used.elapsed()));
        }
        if let Some(at) = self.patience.expires_us {
            by(Duration::from_micros(
                u64::try_from(at - now_us()).unwrap_or(0),
            ));
        }
        // Never so often that waiting for one's own end costs anything.
        next.max(Duration::from_millis(1))
    }

    fn admit(&mut self) {
        let Ok((socket, _)) = self.listener.accept() else {
            return;
        };
        if self.peers.len() >= PEERS {
            return;
        }
        if let Ok(Some(peer)) = Peer::admit(socket) {
            self.peers.insert(self.next_peer, peer);
            self.next_peer += 1;
        }
    }

    /// A caller is gone: what it attended ends, what it froze goes on.
    pub(super) fn leave(&mut self, number: u32) -> Result<(), ClientError> {
        let Some(peer) = self.peers.remove(&number) else {
            return Ok(());
        };
        if peer.froze {
            self.thaw()?;
        }
        for &guest in peer.streams.values() {
            match self.routes.get(&guest).map(|route| route.what) {
                Some(Streamed::Exec) => {
                    self.sandbox.client().send(&Request::Signal {
                        exec: guest,
                        signal: Signal::KILL,
                        scope: SignalScope::All,
                    })?;
                }
                Some(Streamed::Other) => {
                    self.routes.remove(&guest);
                }
                _ => {}
            }
            if peer.held {
                self.flow_of(guest, Flow::Free)?;
            }
        }
        if peer.purpose == Some(Purpose::Work) {
            self.last_used = Instant::now();
        }
        Ok(())
    }

    /// Lets everything go on, unless somebody else still needs it to stand; gives how many threads
    /// had run meanwhile.
    fn thaw(&mut self) -> Result<u64, ClientError> {
        // What runs from now on cannot be told from what ran before: that is not standing still.
        if self.is_frozen() {
            return Ok(1);
        }
        match self.sandbox.client().call(&Request::Thaw)? {
            Reply::Thawed { ran } => Ok(ran),
            _ => Err(ClientError::OtherAnswer),
        }
    }

    fn is_frozen(&self) -> bool {
        self.peers.values().any(|peer| peer.froze)
    }

    /// Does what was held back while everything stood still.
    fn catch_up(&mut self) -> Result<(), ClientError> {
        let waiting: Vec<u32> = self.peers.keys().copied().collect();
        for number in waiting {
            while !self.is_frozen()
                && let Some(said) = self
                    .peers
                    .get_mut(&number)
                    .and_then(|peer| peer.held_back.pop_front())
            {
                self.hear(number, said)?;
            }
        }
        Ok(())
    }

    fn hear(&mut self, number: u32, said: Said) -> Result<Option<End>, ClientError> {
        let frozen = self.is_frozen();
        let Some(peer) = self.peers.get_mut(&number) else {
            return Ok(None);
        };
        // Nothing begins while everything stands still, and nobody's words change their order.
        let begins = matches!(said, Said::Request(..));
        if frozen && (begins || !peer.held_back.is_empty()) && !matches!(said, Said::Call(_)) {
            peer.held_back.push_back(said);
            if peer.held_back.len() > HELD_BACK {
                self.leave(number)?;
            }
            return Ok(None);
        }
        match said {
            Said::Call(call) => return self.answer(number, call),
            // Nothing goes through before it has said what it is for.
            _ if peer.purpose.is_none() => self.leave(number)?,
            Said::Request(stream, request) => {
                self.last_used = Instant::now();
                self.pass(number, stream, request)?;
            }
            Said::Input(stream, bytes) => {
                if let Some(&guest) = peer.streams.get(&stream) {
                    self.sandbox.client().input(guest, &bytes)?;
                }
            }
            Said::EndInput(stream) => {
                if let Some(&guest) = peer.streams.get(&stream) {
                    self.sandbox.client().end_input(guest)?;
                }
            }
        }
        Ok(None)
    }

    fn answer(&mut self, number: u32, call: Call) -> Result<Option<End>, ClientError> {
        let answer = match call {
            Call::Hello { protocol, .. } if protocol != PROTOCOL => {
                Answer::OtherProtocol { protocol: PROTOCOL }
            }
            Call::Hello {
                purpose,
                incarnation,
                ..
            } => {
                let held_up = match purpose {
                    Purpose::Work => self.sandbox.held_up(),
                    _ => None,
                };
                if let Some(reason) = held_up {
                    Answer::Failed { reason }
                } else if incarnation.is_some_and(|asked| asked != self.incarnation) {
                    Answer::Other {
                        incarnation: self.incarnation,
                    }
                } else {
                    if let Some(peer) = self.peers.get_mut(&number) {
                        peer.purpose = Some(purpose);
                    }
                    Answer::Welcome {
                        incarnation: self.incarnation,
                    }
                }
            }
            Call::Describe => Answer::Described(self.describe()?),
            Call::Freeze => match self.sandbox.client().call(&Request::Freeze) {
                Ok(_) => {
                    if let Some(peer) = self.peers.get_mut(&number) {
                        peer.froze = true;
                    }
                    Answer::Done
                }
                Err(ClientError::Failed(failure)) => Answer::Failed {
                    reason: failure.to_string(),
                },
                Err(error) => return Err(error),
            },
            Call::Thaw => {
                if let Some(peer) = self.peers.get_mut(&number) {
                    peer.froze = false;
                }
                Answer::Thawed { ran: self.thaw()? }
            }
            Call::EndIfIdle if self.is_idle(number)? => {
                return Ok(Some(End {
                    reason: EndReason::Sealed,
                    processes: 0,
                    asked_by: Some(number),
                }));
            }
            Call::EndIfIdle => Answer::Busy,
            Call::Network { rules } => self.change_network(rules),
            Call::End { reason } => return Ok(Some(self.end(reason, Some(number)))),
        };
        if let Some(peer) = self.peers.get_mut(&number) {
            peer.answer(&answer);
        }
        Ok(None)
    }

    fn end(&mut self, reason: EndReason, asked_by: Option<u32>) -> End {
        let processes = self.usage().map_or(0, |usage| agents(&usage));
        End {
            reason,
            processes,
            asked_by,
        }
    }

    /// Whether nobody works with it and nothing runs in it.
    fn is_idle(&mut self, asking: u32) -> Result<bool, ClientError> {
        let used = self.peers.iter().any(|(&other, peer)| {
            other != asking && peer.purpose == Some(Purpose::Work) && !peer.is_gone()
        });
        if used {
            return Ok(false);
        }
        // A warden goes a moment after what it watched over. What stays is somebody, whatever it
        // looks like.
        for _ in 0..LEAVING_LOOKS {
            let usage = self.usage()?;
            if usage.processes <= 1 {
                return Ok(true);
            }
            if agents(&usage) > 0 {
                return Ok(false);
            }
            std::thread::sleep(LEAVING);
        }
        Ok(false)
    }

    fn usage(&mut self) -> Result<Usage, ClientError> {
        match self.sandbox.client().call(&Request::Usage)? {
            Reply::Usage(usage) => Ok(usage),
            _ => Err(ClientError::OtherAnswer),
        }
    }

    fn describe(&mut self) -> Result<Described, ClientError> {
        let usage = self.usage()?;
        let refusals = self.sandbox.kernel_refusals();
        let execs = self
            .routes
            .values()
            .filter(|route| matches!(route.what, Streamed::Exec | Streamed::Background))
            .count();
        Ok(Described {
            incarnation: self.incarnation,
            execs: execs as u64,
            processes: agents(&usage),
            memory_bytes: usage.memory_bytes,
            memory_kills: refusals.memory_kills,
            process_refusals: refusals.process_refusals,
            idle_ms: self.last_used.elapsed().as_millis() as u64,
        })
    }

    /// Ends what is idle or past its time, and what wrote too much while nobody attended it.
    fn watch(&mut self) -> Result<Option<End>, ClientError> {
        // The machine goes down, or a person wants it gone: the same as being asked.
        if self.signals.take().is_some() {
            return Ok(Some(self.end(EndReason::Asked, None)));
        }
        if self.unrecorded {
            return Ok(Some(self.end(EndReason::JournalFull, None)));
        }
        let used = self
            .peers
            .values()
            .any(|peer| peer.purpose == Some(Purpose::Work));
        if used {
            self.last_used = Instant::now();
        }
        if self
            .patience
            .idle
            .is_some_and(|idle| self.last_used.elapsed() >= idle)
        {
            return Ok(Some(self.end(EndReason::Idle, None)));
        }
        if self.patience.expires_us.is_some_and(|at| now_us() >= at) {
            return Ok(Some(self.end(EndReason::Expired, None)));
        }
        if self.reached.elapsed() >= REACHABLE_EVERY {
            self.reached = Instant::now();
            // Removed behind our back: nobody finds the socket, and nobody waits for the lock.
            if !self.directory.is_dir() {
                return Ok(Some(self.end(EndReason::Removed, None)));
            }
        }
        if !self.routes.is_empty() && self.looked.elapsed() >= LOOK_EVERY {
            self.looked = Instant::now();
            let seen = match self.disk.look() {
                Seen::Unaccounted => {
                    let usage = self.usage()?;
                    self.disk.judge_unlinked(&usage)
                }
                seen => seen,
            };
            let Seen::Over(limit, detail) = seen else {
                self.over = 0;
                return Ok(None);
            };
            // Whoever attends a command ends it at once; what is still over now, nobody ends.
            self.over += 1;
            if self.over >= OVER_LOOKS {
                // It ends, whether that can be written down or not.
                let _ = self.journal.append(Event::Limit { limit, detail });
                return Ok(Some(self.end(EndReason::DiskFull, None)));
            }
        }
        Ok(None)
    }
}

/// What runs inside beside pid 1 and its wardens.
fn agents(usage: &Usage) -> u64 {
    usage.processes.saturating_sub(1 + usage.wardens)
}
