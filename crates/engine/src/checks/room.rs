//! A room: one sandbox for one execution of one check.
//!
//! ```text
//! this thread   asks ──▶ makes a room, proves it ──▶ given        ends what was given back
//! the driver             runs a check in the room before
//! ```
//!
//! A thread of its own makes rooms, one ahead, so that of all starts only the first is waited for.
//! The kernel ends a sandbox with the thread that started it: this one lives until all are done.

use std::collections::VecDeque;
use std::fs;
use std::io::{self, Read as _, Seek as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, SyncSender};

use ringfence_jail::plan::{Access, HostMount, Spec, WorkspaceSpec};
use ringfence_model::ByteText;
use ringfence_model::check::{Ran, Tree, runners};
use ringfence_model::journal::Event;
use ringfence_model::limits::Limits;
use ringfence_model::observed::Observed;
use ringfence_model::policy::{Effective, Network};
use ringfence_model::wire::{Exec, Leftovers, OutputMode, Stdin};
use sha2::{Digest as _, Sha256};

use super::Subject;
use super::kept::Kept;
use super::trees::Trees;
use crate::attend::{Console, Inputs, Records, Witness, attend};
use crate::backend::Start;
use crate::changes::remove_tree;
use crate::client::Stream;
use crate::clock::now_us;
use crate::error::Error;
use crate::gate::Gate;
use crate::journal::{JournalError, JournalFile};
use crate::output::Spool;
use crate::run::{environment, spec};
use crate::sandbox::Sandbox;
use crate::watch::DiskWatch;

/// BOUND: bytes of each stream's end that go into the result.
const TAIL_BYTES: usize = 2048;
/// BOUND: rooms that there are at once: the one in use, and the next.
pub(super) const AHEAD: usize = 2;

/// One execution that is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Job {
    pub check: usize,
    pub tree: Tree,
}

/// What the thread that makes rooms is told.
pub(super) enum Order {
    Make(Job),
    End(Box<Room>),
}

/// The driver's side.
pub(super) struct Rooms {
    asks: Option<Sender<Order>>,
    given: Receiver<Result<Room, Error>>,
    asked: VecDeque<Job>,
}

impl Rooms {
    pub fn new(asks: Sender<Order>, given: Receiver<Result<Room, Error>>) -> Self {
        Self {
            asks: Some(asks),
            given,
            asked: VecDeque::new(),
        }
    }

    /// What to run now; the room for what comes then is asked for as well.
    pub fn next(&mut self, jobs: &mut VecDeque<Job>) -> Option<Job> {
        while self.asked.len() < AHEAD
            && let Some(job) = jobs.pop_front()
        {
            self.order(Order::Make(job));
            self.asked.push_back(job);
        }
        self.asked.pop_front()
    }

    /// Whether something is to come of this check.
    pub fn has(&self, check: usize) -> bool {
        self.asked.iter().any(|job| job.check == check)
    }

    /// The room of what is to be run now.
    pub fn take(&mut self) -> Result<Room, Error> {
        let lost = || Error::Wait(io::Error::other("the thread that starts sandboxes is gone"));
        self.given.recv().map_err(|_| lost())?
    }

    /// It is ended and removed while the next check runs.
    pub fn give_back(&mut self, room: Room) {
        self.order(Order::End(Box::new(room)));
    }

    /// Nothing more is asked for; what was made ahead is ended.
    pub fn close(&mut self) {
        self.asks = None;
        while self.given.recv().is_ok() {}
    }

    fn order(&self, order: Order) {
        if let Some(asks) = &self.asks {
            // Where the other side is gone, `take` says so.
            let _ = asks.send(order);
        }
    }
}

/// The thread that makes rooms.
pub(super) fn serve(
    subject: &Subject<'_>,
    trees: &Trees,
    asked: &Receiver<Order>,
    gives: &SyncSender<Result<Room, Error>>,
) {
    let mut number = 0;
    for order in asked {
        match order {
            Order::Make(job) => {
                number += 1;
                if gives.send(Room::make(subject, trees, job, number)).is_err() {
                    return;
                }
            }
            // Nothing that it left goes on, and nothing that it wrote is looked at. What resists
            // goes with this thread, and with the run's directory.
            Order::End(room) => remove(&room.end()),
        }
    }
}

pub(super) fn remove(place: &Path) {
    let (Some(parent), Some(name)) = (place.parent(), place.file_name()) else {
        return;
    };
    if let Ok(parent) = fs::File::open(parent) {
        let name = std::os::unix::ffi::OsStrExt::as_bytes(name);
        let _ = remove_tree(parent.as_fd(), name);
    }
}

/// Started, proven, and not used yet.
#[derive(Debug)]
pub(super) struct Room {
    place: PathBuf,
    logs: (PathBuf, PathBuf),
    /// What can be written besides the workspace, and counts as disk.
    overlays: Vec<PathBuf>,
    sandbox: Sandbox,
    gate: Option<Gate>,
    cwd: PathBuf,
}

/// Names of rooms in control groups: as many as there can be at once.
pub(crate) fn cgroup_names(room: &str) -> [String; AHEAD] {
    [0, 1].map(|slot| format!("{room}-{slot}"))
}

impl Room {
    pub fn make(
        subject: &Subject<'_>,
        trees: &Trees,
        job: Job,
        number: usize,
    ) -> Result<Self, Error> {
        let place = subject
            .home
            .workspace(subject.room)
            .join(format!("check-{}-{number}", subject.round.name()));
        let failed = |source| Error::MakeWorkspace {
            what: "make",
            path: place.clone(),
            source,
        };
        let folder = fs::metadata(subject.workspace.folder()).map_err(failed)?;
        let mode = folder.permissions().mode() & 0o777 | 0o700;
        for (path, mode) in [
            (place.clone(), 0o700),
            (place.join("upper"), mode),
            (place.join("work"), 0o700),
        ] {
            fs::create_dir(&path).map_err(failed)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).map_err(failed)?;
        }
        subject.workspace.give(&place).map_err(failed)?;
        let own = subject.workspace.spec();
        let layer = trees.layer(job.tree).map(Path::to_owned);
        let limits = &subject.request.limits;
        let policy = Effective {
            network: Network {
                rules: subject.review().network.clone(),
                ..Network::default()
            },
            ..Effective::default()
        };
        let opened = Gate::open(subject.home, &subject.request.program, &policy, &place)?;
        let (mut gate, handover) = opened.unzip();
        let as_in_run = spec(
            subject.workspace,
            subject.standing,
            limits,
            handover.as_ref(),
        );
        let identity = subject.workspace.identity();
        let spec = Spec {
            workspace: WorkspaceSpec {
                lower: layer.into_iter().chain(own.lower.iter().cloned()).collect(),
                layer: place.clone(),
                ..own.clone()
            },
            overlays: subject.standing.overlays(&place, identity)?,
            mounts: subject.workspace.mounts().iter().map(read_only).collect(),
            ..as_in_run
        };
        let name = &cgroup_names(subject.room.as_str())[number % AHEAD];
        let start = Start {
            name,
            spec: &spec,
            limits,
            gate: handover.as_ref().map(|handover| handover.socket.as_fd()),
        };
        let mut sandbox = Sandbox::start(&*subject.request.backend, &start)?;
        drop(handover);
        gate.as_mut().map(Gate::ready).transpose()?;
        sandbox.prove(&subject.home.canary())?;
        let log = |stream: &str| {
            let tree = job.tree.as_str();
            let name = format!("{}-{tree}-{number}.{stream}", job.check + 1);
            subject.logs.join(name)
        };
        let layers = spec.overlays.iter().map(|own| own.layer.join("upper"));
        Ok(Self {
            overlays: layers.collect(),
            logs: (log("stdout"), log("stderr")),
            place,
            sandbox,
            gate,
            cwd: own.inside.clone(),
        })
    }

    /// Ends all that is in it; gives where it was.
    pub fn end(mut self) -> PathBuf {
        let _ = self.sandbox.end();
        self.place.clone()
    }

    /// Runs the check to its end. What it left is ended when the room is given back.
    pub fn run(
        &mut self,
        subject: &Subject<'_>,
        command: &str,
        limits: &Limits,
        inputs: &Inputs<'_>,
        witness: &mut OfCheck<'_>,
    ) -> Result<Kept, Error> {
        let mut spool = Spool::create(&self.logs.0, &self.logs.1)?;
        let mut disk = DiskWatch::new(&self.place.join("upper"), limits)?;
        for overlay in &self.overlays {
            disk.also(overlay)?;
        }
        let given = self
            .gate
            .as_ref()
            .map(Gate::environment)
            .unwrap_or_default();
        let standing = subject.standing.env.iter();
        let own = standing.chain(given).chain(&subject.request.env);
        let own: Vec<_> = own.cloned().collect();
        let cwd = std::os::unix::ffi::OsStrExt::as_bytes(self.cwd.as_os_str());
        let exec = Exec {
            argv: ["/bin/sh", "-c", command].map(ByteText::from).to_vec(),
            env: environment(&own),
            cwd: ByteText::from(cwd),
            stdin: Stdin::Empty,
            terminal: None,
            timeout_ms: limits.time_seconds.map(|seconds| seconds * 1000),
            output: OutputMode::Attached,
            leftovers: Leftovers::Keep,
        };
        let records = Records {
            spool: &mut spool,
            disk: &mut disk,
            witness: &mut *witness,
            gate: &mut self.gate,
        };
        let attended = attend(
            &mut self.sandbox,
            exec,
            limits,
            records,
            inputs,
            &mut Silent,
        )?;
        if let Some(gate) = self.gate.take() {
            // What is left inside asks for nothing after the last word of the gate.
            self.sandbox.end().map_err(Error::Wait)?;
            last_words(gate, witness)?;
        }
        let _ = spool.end();
        let read = |source| Error::ReadFile {
            path: self.logs.0.clone(),
            source,
        };
        let mut hash = Sha256::new();
        let stdout = look(&self.logs.0, &mut hash).map_err(read)?;
        let stderr = look(&self.logs.1, &mut hash).map_err(read)?;
        let tail = |bytes: &[u8]| {
            let from = bytes.len().saturating_sub(TAIL_BYTES);
            String::from_utf8_lossy(&bytes[from..]).into_owned()
        };
        let ran = Ran {
            outcome: attended.outcome,
            exit_code: attended.code,
            signal: attended.signal,
            duration_ms: attended.duration_ms,
            output_bytes: spool.stream(Stream::Stdout).total()
                + spool.stream(Stream::Stderr).total(),
            log_sha256: ringfence_model::hex(&hash.finalize()),
            stdout_tail: tail(&stdout),
            stderr_tail: tail(&stderr),
            counts: runners::count(command, &stdout, &stderr),
            leftovers: attended.leftovers.len() as u64,
            cached: false,
        };
        let (stdout, stderr) = self.logs.clone();
        Ok(Kept {
            ran,
            stdout,
            stderr,
        })
    }
}

fn last_words(gate: Gate, witness: &mut OfCheck<'_>) -> Result<(), Error> {
    for event in gate.end() {
        match witness.network(event) {
            // The check was ended for it, or has ended by now.
            Err(JournalError::Full { .. }) => break,
            taken => taken?,
        }
    }
    Ok(())
}

/// A check reads what the policy shows of the host, and writes none of it.
fn read_only(mount: &HostMount) -> HostMount {
    HostMount {
        access: Access::ReadOnly,
        ..mount.clone()
    }
}

/// Adds a log to a hash; gives its end, as far as it is looked at.
fn look(path: &Path, hash: &mut Sha256) -> io::Result<Vec<u8>> {
    let mut file = fs::File::open(path)?;
    let mut chunk = vec![0; 128 << 10];
    loop {
        match file.read(&mut chunk)? {
            0 => break,
            count => hash.update(&chunk[..count]),
        }
    }
    let length = file.metadata()?.len();
    let most = runners::READ_BYTES as u64;
    file.seek(io::SeekFrom::Start(length.saturating_sub(most)))?;
    let mut end = Vec::new();
    file.take(most).read_to_end(&mut end)?;
    Ok(end)
}

/// What a check does inside is not recorded call by call: it is code that was looked at when it was
/// written, and what it prints is kept. What leaves its sandbox is: it is the patch that runs there.
pub(super) struct OfCheck<'a> {
    pub job: Job,
    /// None where a bundle is checked later: it is sealed.
    pub journal: Option<&'a mut JournalFile>,
}

impl Witness for OfCheck<'_> {
    fn observed(&mut self, _: Observed) -> Result<(), JournalError> {
        Ok(())
    }

    /// INVARIANT: an event of its own kind. What a check asks for is nothing that the agent did.
    fn network(&mut self, event: Event) -> Result<(), JournalError> {
        let (check, tree) = (self.job.check as u64, self.job.tree);
        let event = match event {
            Event::Network(traffic) => Event::CheckNetwork {
                check,
                tree,
                traffic,
            },
            Event::GateLost { detail } => Event::CheckGateLost {
                check,
                tree,
                detail,
            },
            _ => return Ok(()),
        };
        match &mut self.journal {
            // HOSTILE: room is left for how it ended, however often it asks.
            Some(journal) => journal.append_observed(now_us(), event),
            None => Ok(()),
        }
    }

    fn idle(&mut self) {}
}

struct Silent;

impl Console for Silent {
    fn output(&mut self, _: Stream, _: &[u8]) {}
}
