//! Frames between callers and the guest: the same words, with each side's own stream numbers.

use std::time::Instant;

use ringfence_model::journal::{Event, measured};
use ringfence_model::observed::Observed;
use ringfence_model::outcome::Outcome;
use ringfence_model::policy::network::Rules;
use ringfence_model::sandbox::Answer;
use ringfence_model::wire::{Bound, Exited, Flow, Kind, Notice, OutputMode, Reply, Request};

use super::peer::{HIGH_WATER, LOW_WATER};
use super::serve::Keeping;
use crate::client::{ClientError, Message, Stream};
use crate::clock::now_us;
use crate::evidence;
use crate::gate::{Gate, GateError};

/// Where what belongs to a stream of the guest goes.
pub(super) struct Route {
    peer: u32,
    stream: u32,
    pub what: Streamed,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Streamed {
    /// A command that its caller attends; it dies with its caller.
    Exec,
    /// A command that nobody needs to attend.
    Background,
    /// A command whose leader has ended, and what it left running.
    Leftovers,
    Other,
}

impl Keeping {
    /// Passes a request on to the guest, with the guest's numbers in it.
    pub(super) fn pass(
        &mut self,
        number: u32,
        stream: u32,
        request: Request,
    ) -> Result<(), ClientError> {
        let Some(peer) = self.peers.get_mut(&number) else {
            return Ok(());
        };
        let own = |stream: u32| peer.streams.get(&stream).copied().unwrap_or(u32::MAX);
        let mut what = Streamed::Other;
        let request = match request {
            Request::Exec(mut exec) => {
                // What was asked for by name wins over what leads to the gate.
                for given in self.gate.iter().flat_map(Gate::environment) {
                    if !exec.env.iter().any(|(name, _)| *name == given.0) {
                        exec.env.push(given.clone());
                    }
                }
                what = match exec.output {
                    OutputMode::Attached => Streamed::Exec,
                    OutputMode::Background => Streamed::Background,
                };
                // A journal that takes no more is no reason to lose the workspace; the command is
                // not run.
                let recorded = self.journal.append(Event::Command {
                    argv: exec.argv.clone(),
                });
                if recorded.and_then(|()| self.journal.flush()).is_err() {
                    self.leave(number)?;
                    return Ok(());
                }
                Request::Exec(exec)
            }
            Request::Signal {
                exec,
                signal,
                scope,
            } => Request::Signal {
                exec: own(exec),
                signal,
                scope,
            },
            Request::Resize { exec, size } => Request::Resize {
                exec: own(exec),
                size,
            },
            Request::Attach { exec, from } => Request::Attach {
                exec: own(exec),
                from,
            },
            Request::Detach { exec } => Request::Detach { exec: own(exec) },
            Request::Unwatch { watch } => Request::Unwatch { watch: own(watch) },
            // Ours to say.
            Request::Hello(_)
            | Request::Prove(_)
            | Request::Flow { .. }
            | Request::Freeze
            | Request::Thaw => {
                self.leave(number)?;
                return Ok(());
            }
            other => other,
        };
        let guest = self.sandbox.client().send(&request)?;
        self.routes.insert(
            guest,
            Route {
                peer: number,
                stream,
                what,
            },
        );
        if let Some(peer) = self.peers.get_mut(&number) {
            peer.streams.insert(stream, guest);
        }
        Ok(())
    }

    /// Passes on what the guest says.
    pub(super) fn route(&mut self, message: Message) -> Result<(), ClientError> {
        let message = match message {
            Message::Notice(_, Notice::Observed(observed)) => {
                self.witness(observed);
                return Ok(());
            }
            other => other,
        };
        let guest = match &message {
            Message::Reply(guest, _) | Message::Notice(guest, _) | Message::Data(guest, _, _) => {
                *guest
            }
            Message::Answer(_) => return Err(ClientError::OtherAnswer),
        };
        let Some(route) = self.routes.get_mut(&guest) else {
            return Ok(());
        };
        let mut over = false;
        let (kind, payload) = match &message {
            Message::Reply(_, reply) => {
                over = matches!(reply, Reply::Failed(_));
                (Kind::Reply, serde_json::to_vec(reply))
            }
            Message::Notice(_, notice) => {
                match notice {
                    Notice::Exited(exited) => {
                        route.what = Streamed::Leftovers;
                        if self.journal.append(exit_event(exited)).is_err() {
                            self.unrecorded = true;
                        }
                        self.uncommitted = true;
                        self.last_used = Instant::now();
                    }
                    Notice::Gone => over = true,
                    _ => {}
                }
                (Kind::Notice, serde_json::to_vec(notice))
            }
            Message::Data(_, Stream::Stdout, bytes) => (Kind::Output, Ok(bytes.clone())),
            Message::Data(_, Stream::Stderr, bytes) => (Kind::ErrorOutput, Ok(bytes.clone())),
            Message::Answer(_) => return Ok(()),
        };
        let payload = payload.expect("plain data always serialises");
        if let Some(peer) = self.peers.get_mut(&route.peer) {
            peer.send(kind, route.stream, &payload);
            if over {
                peer.streams.remove(&route.stream);
            }
        }
        if over {
            self.routes.remove(&guest);
        }
        Ok(())
    }

    /// Puts what callers are about to be told of on the disk, with one sync for all that ended
    /// since the last; false where that cannot be.
    ///
    /// INVARIANT: nothing is acknowledged before: callers whose news cannot be kept lose the line.
    pub(super) fn commit(&mut self) -> bool {
        if !std::mem::take(&mut self.uncommitted) {
            return true;
        }
        let kept = self.journal.sync().is_ok() && !self.unrecorded;
        if !kept {
            self.peers.clear();
        }
        kept
    }

    /// Puts what was observed into the journal.
    ///
    /// INVARIANT: nothing goes on unrecorded: a journal that takes no more ends the execution.
    fn witness(&mut self, observed: Observed) {
        if let Ok(event) = evidence::event(observed) {
            self.record(event);
        }
    }

    fn record(&mut self, event: Event) {
        if self.journal.append_observed(now_us(), event).is_err() {
            self.unrecorded = true;
        }
    }

    /// What the gate has said goes into the journal. A gate that is gone takes the network with it.
    pub(super) fn hear_gate(&mut self) {
        let seen = match self.gate.as_mut().map(Gate::receive) {
            None => return,
            Some(Ok(seen)) => seen,
            Some(Err(error)) => return self.lose_gate(&error),
        };
        for traffic in seen {
            self.record(Event::Network(traffic));
        }
    }

    /// Takes the last words of the gate.
    pub(super) fn end_gate(&mut self) {
        for event in self.gate.take().map(Gate::end).unwrap_or_default() {
            self.record(event);
        }
    }

    fn lose_gate(&mut self, error: &GateError) {
        self.gate = None;
        let detail = error.to_string();
        self.record(Event::GateLost { detail });
    }

    pub(super) fn change_network(&mut self, rules: Rules) -> Answer {
        let Some(gate) = &mut self.gate else {
            return Answer::Failed {
                reason: "this execution has no gate: it began offline, or its gate is gone"
                    .to_owned(),
            };
        };
        match gate.change(rules) {
            Ok((closed, seen)) => {
                for traffic in seen {
                    self.record(Event::Network(traffic));
                }
                Answer::Changed { closed }
            }
            Err(error) => {
                self.lose_gate(&error);
                Answer::Failed {
                    reason: error.to_string(),
                }
            }
        }
    }

    /// Commands whose caller does not read wait; everybody else goes on.
    pub(super) fn flow(&mut self) -> Result<(), ClientError> {
        let mut turns = Vec::new();
        for peer in self.peers.values_mut() {
            let flow = if !peer.held && peer.waiting() > HIGH_WATER {
                Flow::Held
            } else if peer.held && peer.waiting() < LOW_WATER {
                Flow::Free
            } else {
                continue;
            };
            peer.held = flow == Flow::Held;
            turns.extend(peer.streams.values().map(|&guest| (guest, flow)));
        }
        for (guest, flow) in turns {
            self.flow_of(guest, flow)?;
        }
        Ok(())
    }

    pub(super) fn flow_of(&mut self, guest: u32, flow: Flow) -> Result<(), ClientError> {
        let is_exec = self
            .routes
            .get(&guest)
            .is_some_and(|route| route.what != Streamed::Other);
        if is_exec {
            self.sandbox
                .client()
                .send(&Request::Flow { exec: guest, flow })?;
        }
        Ok(())
    }
}

fn exit_event(exited: &Exited) -> Event {
    let outcome = if exited.not_started.is_some() {
        Outcome::NotStarted
    } else if let Some(bound) = exited.bound {
        match bound {
            Bound::Time => Outcome::TimedOut,
            Bound::Memory => Outcome::OutOfMemory,
            Bound::Processes => Outcome::TooManyProcesses,
            Bound::Cpu => Outcome::CpuLimit,
            Bound::Disk => Outcome::DiskFull,
        }
    } else if exited.signal.is_some() {
        Outcome::Signaled
    } else {
        Outcome::Exited
    };
    let (cpu_ms, peak_bytes) = measured(exited.cpu_ms, exited.peak_bytes);
    Event::CommandEnded {
        outcome,
        code: exited.code,
        signal: exited.signal,
        duration_ms: exited.duration_ms,
        leftovers: exited.leftovers.len() as u64,
        cpu_ms,
        peak_bytes,
    }
}
