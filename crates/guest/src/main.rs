//! The program that is pid 1 inside every sandbox, on every backend.
//!
//! One thread, one loop: it waits for the host's requests, for output of commands and for time to
//! pass, and does what follows. When the host goes away it ends, and everything inside with it.
//!
//! INVARIANT: single-threaded. Wardens are forked from it, and a thread would have its own id that
//! the agent could act on.

mod connection;
mod disk;
mod execs;
mod files;
mod freeze;
mod handover;
mod observe;
mod processes;
mod proof;
mod sockets;
#[allow(dead_code, reason = "each program uses its own part")]
mod tree;
mod watch;

use std::io;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use connection::{Connection, Incoming};
use execs::Execs;
use files::Files;
use freeze::{Freezer, World};
use handover::{Handover, Starter};
use observe::Observer;
use ringfence_jail::Descendants;
use ringfence_jail::identity::Agent;
use ringfence_jail::lockdown::{self, RootWrites};
use ringfence_jail::reach::Reach;
use ringfence_jail::seccomp::{SetIds, Watched};
use ringfence_jail::warden::BecomeAgent;
use ringfence_model::ByteText;
use ringfence_model::wire::{Failure, Hello, Observation, Reply, Request, Wall};
use rustix::event::Timespec;
use rustix::io::Errno;
use sockets::Sockets;
use watch::Watches;

/// SIGKILL.
const KILL: i32 = 9;

/// What the kernel said, for the host.
pub(crate) fn failure(operation: &str, subject: &[u8], errno: Errno) -> Failure {
    Failure {
        operation: operation.to_owned(),
        subject: ByteText::from(subject),
        errno: errno.raw_os_error(),
        reason: io::Error::from(errno).to_string(),
    }
}

fn main() -> ExitCode {
    let done = match handover::clear(std::env::args()) {
        Some(cleared) => cleared,
        None => Handover::take(std::env::args()).and_then(serve),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Serves until the host goes away.
fn serve(handover: Handover) -> io::Result<()> {
    lockdown::make_undumpable().map_err(io::Error::other)?;
    let (starter, line, gate) = handover.into_parts();
    ringfence_jail::ignore_signals();
    ringfence_jail::allow_many_files();
    // Whoever is to end a storm must not wait for its end.
    ringfence_jail::be_prompt(Descendants::No);
    // Two ways to go with the host process: the end of the socket, and this.
    if starter == Starter::Launcher {
        ringfence_jail::become_subject_of(KILL)?;
    }
    let mut guest = Guest {
        starter,
        handed_gate: gate,
        connection: Connection::new(line)?,
        execs: Execs::default(),
        files: Files::default(),
        watches: Watches::default(),
        freezer: Freezer::default(),
        sockets: Sockets::absent(),
        ready: None,
    };
    loop {
        guest.wait()?;
        if !guest.take_requests()? {
            return Ok(());
        }
        let now = Instant::now();
        if let Some(ready) = &mut guest.ready {
            let world = guest.freezer.world();
            ready.observer.advance(&mut guest.connection);
            guest
                .execs
                .advance(now, ready, world, &mut guest.connection);
        }
        guest.files.advance(&mut guest.connection);
        guest.watches.advance(&mut guest.connection);
        guest.sockets.advance();
        guest.connection.flush()?;
    }
}

struct Guest {
    starter: Starter,
    /// Until it is known whether there is a gate.
    handed_gate: Option<OwnedFd>,
    connection: Connection,
    execs: Execs,
    files: Files,
    watches: Watches,
    freezer: Freezer,
    sockets: Sockets,
    /// Set once the guest is locked down; nothing is done before.
    ready: Option<Ready>,
}

/// What a guest has that is locked down.
pub(crate) struct Ready {
    pub hello: Hello,
    pub observer: Observer,
    /// What every command is watched by.
    pub watched: Option<Watched>,
    /// How files are reached as the agent.
    pub reach: Reach,
}

impl Guest {
    /// Sleeps until something can be done.
    fn wait(&self) -> io::Result<()> {
        let mut waits = Vec::new();
        self.connection.interests(&mut waits);
        let room = self.connection.has_room();
        self.execs.interests(room, &mut waits);
        self.watches.interests(&mut waits);
        self.sockets.interests(&mut waits);
        let observer = self.ready.as_ref().map(|ready| &ready.observer);
        if let Some(observer) = observer {
            observer.interests(room, &mut waits);
        }
        let work = self.files.has_work() || observer.is_some_and(Observer::has_work);
        let timeout = if work && room {
            Some(Duration::ZERO)
        } else {
            let now = Instant::now();
            let held = observer.and_then(|observer| observer.next_wake(now));
            self.execs.next_wake(now).into_iter().chain(held).min()
        };
        let timeout = timeout.map(|wait| Timespec {
            tv_sec: wait.as_secs() as i64,
            tv_nsec: i64::from(wait.subsec_nanos()),
        });
        match rustix::event::poll(&mut waits, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Answers what has come; false when the host is gone.
    fn take_requests(&mut self) -> io::Result<bool> {
        let Some(messages) = self.connection.receive()? else {
            return Ok(false);
        };
        for message in messages {
            match message {
                Incoming::Request(stream, request) => self.answer(stream, request)?,
                Incoming::Input(stream, bytes) => {
                    if !self.files.input(stream, &bytes) {
                        self.execs.input(stream, &bytes);
                    }
                }
                Incoming::EndInput(stream) => {
                    if !self.files.end_input(stream, &mut self.connection) {
                        self.execs.end_input(stream);
                    }
                }
            }
        }
        Ok(true)
    }

    fn answer(&mut self, stream: u32, request: Request) -> io::Result<()> {
        let reply = match (request, &mut self.ready) {
            (Request::Hello(hello), None) => {
                if hello.gate {
                    let gate = Handover::gate(self.starter, self.handed_gate.take())?;
                    self.sockets = Sockets::asked_by(gate);
                }
                let (wall, reach) = lock_down(&hello)?;
                self.files.reach = reach;
                reach.as_agent(|| self.execs.begin(&hello));
                let observer = Observer::new(&hello.workspace)?;
                let watched = match hello.observation {
                    Observation::Verified => Some(Watched::build()),
                    Observation::Off => None,
                };
                self.ready = Some(Ready {
                    hello,
                    observer,
                    watched,
                    reach,
                });
                Some(Reply::Ready { wall })
            }
            (Request::Hello(_), Some(_)) | (_, None) => {
                return Err(io::Error::other("the host spoke out of turn"));
            }
            (Request::Prove(prove), Some(ready)) => Some(proof::prove(&prove, &ready.hello)),
            (Request::Exec(exec), Some(ready)) => Some(match self.freezer.world() {
                World::Moves => self.execs.start(stream, exec, ready),
                World::StandsStill => freeze::refuse(&exec),
            }),
            (
                Request::Signal {
                    exec,
                    signal,
                    scope,
                },
                _,
            ) => Some(self.execs.signal(exec, signal, scope)),
            (Request::Resize { exec, size }, _) => Some(self.execs.resize(exec, size)),
            (Request::Attach { exec, from }, _) => {
                let (reply, kept) = self.execs.attach(exec, from);
                self.connection.reply(stream, &reply);
                for (kind, bytes) in kept {
                    self.connection.data(kind, exec, &bytes);
                }
                None
            }
            (Request::Detach { exec }, _) => Some(self.execs.detach(exec)),
            (Request::Watch { path }, Some(ready)) => {
                let watches = &mut self.watches;
                Some(ready.reach.as_agent(|| watches.add(stream, &path)))
            }
            (Request::Unwatch { watch }, _) => Some(self.watches.remove(watch)),
            (Request::Flow { exec, flow }, _) => Some(self.execs.flow(exec, flow)),
            (Request::Freeze, Some(ready)) => Some(
                self.freezer
                    .freeze(&mut ready.observer, &mut self.connection),
            ),
            (Request::Thaw, _) => Some(self.freezer.thaw()),
            (Request::Ping { nonce }, _) => Some(Reply::Pong { nonce }),
            (Request::Usage, _) => Some(Reply::Usage(processes::usage())),
            (request, _) => self.files.answer(stream, request),
        };
        if let Some(reply) = reply {
            self.connection.reply(stream, &reply);
        }
        Ok(())
    }
}

/// INVARIANT: after this, neither the guest nor anything it starts can widen what it may do.
fn lock_down(hello: &Hello) -> io::Result<(Wall, Reach)> {
    let become_agent = become_agent(hello);
    lockdown::keep_capabilities_from_others(become_agent).map_err(io::Error::other)?;
    let mut reach = Reach::Always;
    if let BecomeAgent::Switch(agent) = become_agent {
        reach = Reach::files_as(agent)?;
        // Changing who reaches files makes a process readable again, and nobody's subject.
        lockdown::make_undumpable().map_err(io::Error::other)?;
        ringfence_jail::become_subject_of(KILL)?;
    }
    let root = match &hello.setup {
        Some(setup) if setup.writes_root => RootWrites::Yes,
        _ => RootWrites::No,
    };
    let wall = lockdown::raise_wall(&hello.writable, root).map_err(io::Error::other)?;
    let set_ids = if hello.writes_host {
        SetIds::Refused
    } else {
        SetIds::Allowed
    };
    lockdown::filter_calls(set_ids).map_err(io::Error::other)?;
    if hello.setup.is_some() {
        lockdown::filter_calls_of_setup().map_err(io::Error::other)?;
    }
    let wall = match wall {
        lockdown::Wall::Full => Wall::Full,
        lockdown::Wall::Partial => Wall::Partial,
        lockdown::Wall::Absent => Wall::Absent,
    };
    Ok((wall, reach))
}

/// Whether the guest is somebody else than the agent.
pub(crate) fn become_agent(hello: &Hello) -> BecomeAgent {
    if let Some(setup) = &hello.setup {
        return BecomeAgent::Setup {
            keep: setup.capabilities,
        };
    }
    if rustix::process::getuid().as_raw() == hello.agent_uid {
        BecomeAgent::Already
    } else {
        BecomeAgent::Switch(Agent {
            uid: hello.agent_uid,
            gid: hello.agent_gid,
        })
    }
}

/// A pipe whose ends are not inherited.
pub(crate) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = io::pipe()?;
    Ok((read.into(), write.into()))
}
