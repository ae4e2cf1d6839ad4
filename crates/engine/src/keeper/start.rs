//! How an execution begins and ends: the keeper as a process.

use std::fs::{self, File};
use std::io::{self, BufRead as _, Write};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ringfence_jail::identity::Identity;
use ringfence_jail::launch::identity_for;
use ringfence_jail::plan::{Holds, Runs, Spec, WorkspaceSpec};
use ringfence_jail::signals::Signals;
use ringfence_model::ByteText;
use ringfence_model::journal::Event;
use ringfence_model::sandbox::{EndReason, SandboxState};
use serde::{Deserialize, Serialize};

use super::Places;
use super::serve::{End, Keeping, Patience};
use crate::backend::{self, Start};
use crate::base::{self, Base};
use crate::changes::remove_tree;
use crate::clock::{ms_since, now_us};
use crate::environment::{self, Standing};
use crate::error::Error;
use crate::fail;
use crate::files::{check_mounts, mask};
use crate::gate::Gate;
use crate::guest;
use crate::home::Home;
use crate::ids::{LayerId, SandboxId};
use crate::journal::JournalFile;
use crate::lock::{FileLock, LockError};
use crate::sandbox::{self, Sandbox, SandboxError};
use crate::store::{Ended, LayerRecord, SandboxDetail, SandboxRecord, Store};
use crate::watch::DiskWatch;

/// Where the workspace is inside.
pub(crate) const INSIDE: &str = "/workspace";
/// BOUND: a word of the keeper that it is up, or why not.
const READY_BYTES: u64 = 64 << 10;

/// The first and only word of a keeper on its standard output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "keeper", rename_all = "snake_case")]
pub enum Ready {
    Up {
        incarnation: u64,
    },
    Failed {
        exit_code: u8,
        chain: Vec<String>,
        hint: Option<String>,
    },
}

/// Starts a keeper as a process of its own and waits until it is up. `program` is this program.
///
/// The keeper has `shaping` as its standard input and lets go of it when it can be talked to: a
/// caller that is killed meanwhile leaves no moment in which layers change under a new execution.
pub fn spawn(home: &Home, program: &Path, id: SandboxId, shaping: &FileLock) -> Result<u64, Error> {
    let places = Places::of(home, id);
    let fail = |source: io::Error| Error::StartKeeper {
        sandbox: id.to_string(),
        source,
    };
    let log = File::options()
        .create(true)
        .append(true)
        .open(places.log())
        .map_err(fail)?;
    let mut child = Command::new(program)
        .args(["keep", id.as_str()])
        .env("RINGFENCE_HOME", home.root())
        .current_dir("/")
        .stdin(shaping.share().map_err(fail)?)
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .map_err(fail)?;
    let mut line = String::new();
    if let Some(out) = child.stdout.take() {
        io::BufReader::new(io::Read::take(out, READY_BYTES))
            .read_line(&mut line)
            .map_err(fail)?;
    }
    match serde_json::from_str(&line) {
        Ok(Ready::Up { incarnation }) => Ok(incarnation),
        Ok(Ready::Failed {
            exit_code,
            chain,
            hint,
        }) => {
            // It has said all that it will.
            let _ = child.wait();
            Err(Error::KeeperFailed {
                sandbox: id.to_string(),
                exit_code,
                chain,
                hint,
            })
        }
        Err(_) => {
            let _ = child.wait();
            Err(fail(io::ErrorKind::UnexpectedEof.into()))
        }
    }
}

/// Keeps a sandbox until its execution is over. `up` is told when it can be talked to.
pub fn keep(
    home: &Home,
    store: &Store,
    id: SandboxId,
    up: &mut dyn FnMut(&Ready),
) -> Result<(), Error> {
    let began = Instant::now();
    let span = tracing::info_span!("keeper", sandbox = %id);
    let _inside = span.enter();
    let places = Places::of(home, id);
    let signals = Signals::hold().map_err(Error::Wait)?;
    // A session of its own: the terminal of whoever started it is not ours.
    let _ = rustix::process::setsid();
    let shaping = take_stdin().map_err(|source| Error::StartKeeper {
        sandbox: id.to_string(),
        source,
    })?;
    let Some(_lock) = FileLock::take(&places.lock())? else {
        return Err(LockError::HeldFile {
            path: places.lock(),
        }
        .into());
    };
    fail::point("keeper:locked");
    let record = store.sandbox(id)?;
    let incarnation = record.incarnation + 1;
    sandbox::sweep(home, id.as_str());
    let stack = store.stack(record.head)?;
    let mounted: Vec<LayerId> = stack.iter().map(|layer| layer.id).collect();
    // Before anything is there: what is left of a keeper that dies on the way is found by this.
    store.execution_started(id, incarnation, &mounted)?;
    fail::point("keeper:recorded");
    let begun = begin(home, store, &places, &record, &stack, signals);
    let mut keeping = begun.inspect_err(|_| {
        let before = match record.state {
            SandboxState::Running => SandboxState::Lost,
            state => state,
        };
        // The error above is the one to tell; what claims to run is found lost.
        let _ = store.execution_gone(id, incarnation, before);
    })?;
    drop(shaping);
    fail::point("keeper:begun");
    tracing::info!(incarnation, ms = ms_since(began), "keeper began");
    up(&Ready::Up { incarnation });
    let end = keeping.serve();
    fail::point("keeper:ending");
    // From here on nobody is let in, and what is inside ends.
    let _ = fs::remove_file(places.socket());
    keeping.sandbox.end().map_err(Error::Wait)?;
    keeping.end_gate();
    fail::point("keeper:ended");
    let state = match end.reason {
        EndReason::Sealed | EndReason::RolledBack | EndReason::Replaced => SandboxState::Ready,
        EndReason::Expired => SandboxState::Expired,
        EndReason::Died => SandboxState::Lost,
        _ => SandboxState::Stopped,
    };
    let ended = Ended {
        reason: end.reason,
        processes: end.processes,
        at_us: now_us(),
        journal_head: close(&mut keeping.journal, &end),
    };
    store.execution_ended(id, incarnation, state, ended)?;
    let (reason, processes) = (end.reason, end.processes);
    tracing::info!(?reason, processes, ms = ms_since(began), "keeper ended");
    fail::point("keeper:done");
    keeping.tell_end(end);
    Ok(())
}

/// The last line of a journal, and its hash where it is on the disk. An execution ends, whether that
/// can be written down or not.
fn close(journal: &mut JournalFile, end: &End) -> Option<String> {
    let ended = Event::ExecutionEnded {
        reason: end.reason,
        processes: end.processes,
    };
    journal.append(ended).ok()?;
    journal.sync().ok()?;
    Some(journal.head().to_owned())
}

/// What is on standard input becomes ours alone: nothing that is started from here may keep it.
fn take_stdin() -> io::Result<std::os::fd::OwnedFd> {
    let taken = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    Ok(taken)
}

fn begin(
    home: &Home,
    store: &Store,
    places: &Places,
    record: &SandboxRecord,
    stack: &[LayerRecord],
    signals: Signals,
) -> Result<Keeping, Error> {
    let id = record.id;
    let incarnation = record.incarnation + 1;
    let limits = &record.detail.limits;
    let base = base::open(home, store, record.base)?;
    let mounted: Vec<LayerId> = stack.iter().map(|layer| layer.id).collect();
    let (mut spec, identity) = spec((home, store), places, &base, &mounted, record)?;
    let program = std::env::current_exe().map_err(|source| Error::StartKeeper {
        sandbox: id.to_string(),
        source,
    })?;
    let opened = Gate::open(home, &program, &record.detail.policy, &places.directory)?;
    let (mut gate, handover) = opened.unzip();
    spec.gate = handover.as_ref().map(|handover| handover.spec.clone());
    let start = Start {
        name: id.as_str(),
        spec: &spec,
        limits,
        gate: handover.as_ref().map(|handover| handover.socket.as_fd()),
    };
    let backend = backend::named(home, &record.detail.backend);
    let backend = backend.map_err(SandboxError::Backend)?;
    let mut sandbox = Sandbox::start(&*backend, &start)?;
    drop(handover);
    gate.as_mut().map(Gate::ready).transpose()?;
    fail::point("keeper:started");
    let mut journal = JournalFile::create(&places.journal(incarnation))?;
    journal.append(Event::Task {
        run: id.to_string(),
        argv: Vec::new(),
        folder: ByteText::from(record.detail.source.as_str()),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    })?;
    journal.append(Event::Enforced {
        backend: sandbox.backend().to_owned(),
        identity: identity.as_str().to_owned(),
        limits: sandbox.grades().to_vec(),
        files: sandbox.files().clone(),
        image: environment::image_of(&record.detail.stands_on).map(str::to_owned),
    })?;
    let probes = sandbox.prove(&home.canary())?;
    journal.append(Event::Proof { probes })?;
    journal.flush()?;
    let mut disk = DiskWatch::new(&places.upper(), &LayerRecord::left(stack, limits))?;
    for overlay in &spec.overlays {
        disk.also(&overlay.layer.join("upper"))?;
    }
    let listener = listen(places)?;
    let patience = Patience {
        idle: record.detail.idle_seconds.map(Duration::from_secs),
        expires_us: record.expires_us,
    };
    Ok(Keeping::new(
        incarnation,
        (sandbox, gate),
        journal,
        disk,
        patience,
        listener,
        (signals, places.directory.clone()),
    ))
}

fn spec(
    (home, store): (&Home, &Store),
    places: &Places,
    base: &Base,
    layers: &[LayerId],
    record: &SandboxRecord,
) -> Result<(Spec, Identity), Error> {
    let SandboxDetail { limits, policy, .. } = &record.detail;
    let files = &policy.files;
    let folder = base.path.join("workspace");
    let open = |path: &Path| {
        File::open(path).map_err(|source| Error::OpenFolder {
            path: path.to_owned(),
            source,
        })
    };
    let identity = identity_for(open(&folder)?.as_fd()).map_err(|source| Error::OpenFolder {
        path: folder.clone(),
        source,
    })?;
    let mut lower: Vec<PathBuf> = layers.iter().map(|&layer| home.layer(layer)).collect();
    for layer in &lower {
        if !layer.is_dir() {
            return Err(Error::LayerGone(layer.clone()));
        }
    }
    let mask = mask::ensure(&places.directory, base, files, &record.detail.aliases)?;
    lower.extend(mask.layer);
    lower.push(base.path.clone());
    make_top(places, &identity)?;
    let standing = Standing::again(home, store, &policy.environment, &record.detail.stands_on)?;
    if let Some(setup) = standing.setup.as_ref().filter(|setup| !setup.is_dir()) {
        return Err(Error::LayerGone(setup.clone()));
    }
    let tools = guest::install_tools(home).map_err(|source| Error::WriteFile {
        path: home.root().join("tools"),
        source,
    })?;
    let spec = Spec {
        identity: identity.clone(),
        runs: Runs::Agent,
        hostname: crate::run::HOSTNAME.to_owned(),
        root: standing.root(),
        workspace: WorkspaceSpec {
            lower,
            below: standing.setup.iter().cloned().collect(),
            layer: places.top(),
            holds: Holds::Everything,
            inside: PathBuf::from(INSIDE),
            objects: if mask.hides_git {
                Vec::new()
            } else {
                crate::workspace::known(&base.objects)?
            },
            tools: Some(tools),
            areas: mask.areas,
        },
        // BOUND: `/dev/shm` may hold half of the memory that the sandbox has.
        // The folder that it may have started from was looked at when it was made.
        overlays: standing.cache_overlays(&places.directory, &identity)?,
        mounts: check_mounts(&files.mounts, home, &[], Path::new(INSIDE))?,
        tmpfs: standing.tmpfs.clone(),
        tmpfs_bytes: limits.memory_bytes.unwrap_or(8 << 30) / 2,
        gate: None,
    };
    Ok((spec, identity))
}

/// An empty top in place of one that was moved away. Before its first execution there is none, and
/// a sandbox that has lost more than its top stays broken.
pub(crate) fn renew_top(home: &Home, record: &SandboxRecord) -> Result<(), Error> {
    let folder = home.base(record.base).join("workspace");
    if record.incarnation == 0 || !folder.is_dir() || !home.sandbox(record.id).is_dir() {
        return Ok(());
    }
    let identity = File::open(&folder)
        .and_then(|opened| identity_for(opened.as_fd()))
        .map_err(|source| Error::OpenFolder {
            path: folder,
            source,
        })?;
    make_top(&Places::of(home, record.id), &identity)
}

/// The layer that is written, where there is none yet, and a fresh `work` for overlayfs: the old
/// one says that its mount was volatile and may not be trusted after a power cut. What that means
/// for the workspace is said by the checkpoints that are durable.
fn make_top(places: &Places, identity: &Identity) -> Result<(), Error> {
    let fail = |path: PathBuf| {
        move |source: io::Error| Error::MakeWorkspace {
            what: "make",
            path,
            source,
        }
    };
    let top = places.top();
    let make = |path: &Path, mode: u32| match fs::DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => fs::set_permissions(path, fs::Permissions::from_mode(mode)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    };
    make(&top, 0o700).map_err(fail(top.clone()))?;
    make(&places.upper(), 0o755).map_err(fail(places.upper()))?;
    let work = top.join("work");
    if work.symlink_metadata().is_ok() {
        let parent = File::open(&top).map_err(fail(top.clone()))?;
        remove_tree(parent.as_fd(), b"work")?;
    }
    make(&work, 0o700).map_err(fail(work.clone()))?;
    if let Identity::Range { .. } = identity {
        let (uid, gid) = identity.agent_on_host();
        for path in [top.clone(), places.upper(), work] {
            std::os::unix::fs::chown(&path, Some(uid), Some(gid)).map_err(fail(path.clone()))?;
        }
    }
    Ok(())
}

/// By way of a descriptor: a socket's path may have 107 bytes only, a home's any number.
fn listen(places: &Places) -> Result<UnixListener, Error> {
    let fail = |source: io::Error| Error::WriteFile {
        path: places.socket(),
        source,
    };
    match fs::remove_file(places.socket()) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(fail(error)),
        _ => {}
    }
    let directory = File::open(&places.directory).map_err(fail)?;
    let path = format!("/proc/self/fd/{}/socket", directory.as_raw_fd());
    let listener = UnixListener::bind(path).map_err(fail)?;
    fs::set_permissions(places.socket(), fs::Permissions::from_mode(0o600)).map_err(fail)?;
    listener.set_nonblocking(true).map_err(fail)?;
    Ok(listener)
}

/// Says the word on standard output, for whoever started this process.
pub fn say(ready: &Ready, out: &mut dyn Write) -> io::Result<()> {
    let json = serde_json::to_string(ready).expect("plain data always serialises");
    writeln!(out, "{json}")?;
    out.flush()
}
