//! A setup: one command in a sandbox of its own, on a copy of the folder, and what it left.
//!
//! The sandbox is started, proven, observed and bounded exactly as an agent's. It sees what the
//! policy shows of the folder and nothing that can be written on the host, and it reaches what the
//! user's `[environment] network` allows.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use ringfence_jail::plan::{PrivateOverlay, Runs, Spec};
use ringfence_model::ByteText;
use ringfence_model::environment::{CacheKind, HOME};
use ringfence_model::hex;
use ringfence_model::journal::Event;
use ringfence_model::limits::Limits;
use ringfence_model::outcome::{Outcome, RunStatus};
use ringfence_model::policy::{Effective, Files};
use ringfence_model::wire::{Exec, Leftovers, OutputMode, Stdin};
use serde_json::{Map, Value, json};

use super::rooted::Rooted;
use super::stand::{self, HOME_LAYER, LAYERS, ROOT_LAYER, WORKSPACE, overlay};
use super::{EnvironmentError, Inputs, Order, Resolved, caches, manage, prune};
use crate::attend::{Attended, Console, Inputs as Attending, Records, attend};
use crate::backend::Start;
use crate::client::Stream;
use crate::clock::now_us;
use crate::error::Error;
use crate::evidence::Evidence;
use crate::fail;
use crate::gate::Gate;
use crate::home::Home;
use crate::ids::RunId;
use crate::journal::JournalFile;
use crate::layers;
use crate::lock::RunLock;
use crate::output::Spool;
use crate::run::{self, HOSTNAME, Recorder, discard_layer};
use crate::sandbox::Sandbox;
use crate::store::EnvironmentRecord;
use crate::watch::DiskWatch;
use crate::workspace::{View, Workspace, open_folder};

/// Files beside the layers: what it printed, and what was seen of it.
const STDOUT: &str = "stdout";
const STDERR: &str = "stderr";
const JOURNAL: &str = "audit.jsonl";
/// BOUND: of its output, shown when it fails.
const TAIL_BYTES: usize = 4096;
/// BOUND: each program says its version in a line.
const VERSION_CHARS: usize = 80;
const VERSIONS_SECONDS: u64 = 20;
/// Each program that is there says what it is; one that does not is left out.
const VERSIONS: &str = "for program in python3 pip node npm cargo rustc go uv; do \
     command -v $program >/dev/null 2>&1 || continue; flag=--version; \
     [ $program = go ] && flag=version; \
     printf '%s\\t%s\\n' $program \"$($program $flag 2>/dev/null </dev/null | head -n 1)\"; done";

/// What a setup left.
#[derive(Debug)]
pub(super) struct Built {
    pub notes: Vec<String>,
    /// What it wrote into caches.
    pub caches: Vec<(CacheKind, PathBuf)>,
    detail: Map<String, Value>,
    bytes: u64,
    /// Holds what it wrote into caches; goes when they are promoted.
    _scene: Scene,
}

impl Built {
    /// The row of what was built.
    pub fn record(&self, key: &str, inputs: &Inputs, folder: &Path) -> EnvironmentRecord {
        let mut detail = self.detail.clone();
        detail.insert("inputs".to_owned(), json!(inputs));
        detail.insert(
            "folder".to_owned(),
            json!(ByteText::from(path_bytes(folder))),
        );
        let now = now_us();
        EnvironmentRecord {
            key: key.to_owned(),
            scope: inputs.scope.clone(),
            created_us: now,
            used_us: now,
            bytes: self.bytes,
            detail,
        }
    }
}

/// The place where a setup works. It goes, whatever becomes of the setup.
#[derive(Debug)]
struct Scene {
    home: Home,
    id: RunId,
    /// Until all of it is gone: what nobody holds is `gc`'s to remove.
    _lock: RunLock,
}

impl Scene {
    fn make(home: &Home) -> Result<Self, Error> {
        let id = RunId::random()?;
        Ok(Self {
            _lock: RunLock::create(home, id)?,
            home: home.clone(),
            id,
        })
    }

    fn place(&self) -> PathBuf {
        self.home.workspace(self.id)
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        discard_layer(&self.home, self.id);
    }
}

/// Runs the setup and puts what it made into `partial`, which is not there yet.
pub(super) fn build(
    home: &Home,
    order: &Order<'_>,
    resolved: &Resolved,
    inputs: &Inputs,
    partial: &Path,
    attending: &Attending<'_>,
    console: &mut dyn Console,
) -> Result<Built, Error> {
    console.step("setup");
    let began = Instant::now();
    let scene = Scene::make(home)?;
    let policy = own_policy(order.policy);
    let folder = open_folder(home, &order.folder)?;
    let view = View {
        inside: Some(order.inside.clone()),
        ..View::default()
    };
    let workspace = Workspace::create(home, scene.id, folder, &view, &policy.files)?;
    let identity = workspace.identity();
    stand::make_directory(partial, identity)?;
    let place = scene.place();
    let own = overlay(&place, HOME_LAYER, Path::new(HOME), None, identity)?;
    let mut overlays = vec![own];
    for kind in &resolved.caches {
        let row = kind.row();
        let shared = caches::latest(home, *kind, &resolved.cache_scope)?;
        let shared = shared.as_ref().map(|(_, path)| path.as_path());
        let name = format!("cache-{}", row.name);
        overlays.push(overlay(&place, &name, &row.inside(), shared, identity)?);
    }
    let mut journal = JournalFile::create(&partial.join(JOURNAL))?;
    let rooted = Rooted::prepare(order, resolved, &place, identity)?;
    let setting = Setting {
        home,
        order,
        resolved,
        rooted: rooted.as_ref(),
        policy: &policy,
        workspace: &workspace,
        overlays: &overlays,
        scene: &scene,
        partial,
    };
    let ran = setting.run(inputs, &mut journal, attending, console);
    fail::point("environment:ran");
    let settled = match &rooted {
        None => Ok(()),
        Some(rooted) => {
            let uppers = overlays.iter().map(|overlay| overlay.layer.join("upper"));
            let agents: Vec<PathBuf> = uppers.chain([workspace.upper()]).collect();
            rooted.settle(order.program, &place, &agents)
        }
    };
    let tools = ran?;
    settled?;
    let mut notes = workspace_notes(&workspace);
    notes.extend(rooted.as_ref().and_then(Rooted::note));
    let base = fs::File::open(&order.folder).map_err(make_error("open", &order.folder))?;
    let upper = workspace.upper();
    let dropped = prune::prune(open(&upper)?.as_fd(), Some(base.as_fd()), &[".git"])?;
    notes.extend(dropped.notes());
    let own = place.join(HOME_LAYER).join("upper");
    notes.extend(prune::prune(open(&own)?.as_fd(), None, &[])?.notes());
    let mut detail = Map::new();
    let mut bytes = 0;
    let mut seen = layers::Inodes::default();
    let system = rooted.as_ref().map(Rooted::upper);
    if let Some(system) = &system {
        notes.extend(prune::prune_root(open(system)?.as_fd())?.notes());
    }
    let system = system.as_ref().map(|upper| (upper, ROOT_LAYER));
    let made = [(&upper, WORKSPACE), (&own, HOME_LAYER)];
    for (from, name) in made.into_iter().chain(system) {
        let to = partial.join(name);
        fs::rename(from, &to).map_err(make_error("move", &to))?;
        let opened = open(&to)?;
        let digest = layers::digest(opened.as_fd()).map_err(EnvironmentError::Layers)?;
        detail.insert(format!("{name}_sha256"), json!(hex(&digest)));
        let usage = layers::usage(opened.as_fd(), &mut seen).map_err(EnvironmentError::Layers)?;
        bytes += usage.bytes;
    }
    detail.insert("tools".to_owned(), json!(tools));
    detail.insert("notes".to_owned(), json!(notes));
    let milliseconds = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    detail.insert("setup_ms".to_owned(), json!(milliseconds));
    detail.insert("journal_head".to_owned(), json!(journal.head()));
    journal.sync()?;
    let caches = resolved.caches.iter().map(|kind| {
        let name = format!("cache-{}", kind.row().name);
        (*kind, place.join(name).join("upper"))
    });
    Ok(Built {
        notes,
        caches: caches.collect(),
        detail,
        bytes,
        _scene: scene,
    })
}

/// Makes what was built appear, all of it at once.
pub(super) fn keep(home: &Home, key: &str) -> Result<(), Error> {
    let partial = home.environments().join(format!("{key}.partial"));
    let whole = home.environment(key);
    layers::sync(open(&partial)?.as_fd()).map_err(EnvironmentError::Layers)?;
    fail::point("environment:synced");
    fs::rename(&partial, &whole).map_err(make_error("keep", &whole))?;
    fail::point("environment:kept");
    open(&home.environments())?
        .sync_all()
        .map_err(make_error("sync", &home.environments()))?;
    Ok(())
}

/// Of a setup that failed only what it printed and what was seen of it stays.
pub(super) fn keep_output(home: &Home, key: &str) -> Result<(), Error> {
    let partial = home.environments().join(format!("{key}.partial"));
    for layer in LAYERS {
        manage::remove_directory(&partial, layer)?;
    }
    let failed = failed_log(home, key);
    match fs::rename(&partial, &failed) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(make_error("keep", &failed)(error).into())
        }
        _ => Ok(()),
    }
}

fn failed_log(home: &Home, key: &str) -> PathBuf {
    home.environments().join(format!("{key}.failed"))
}

/// What the agent may see, without what only the agent may do.
fn own_policy(policy: &Effective) -> Effective {
    let mut mounts = policy.files.mounts.clone();
    for mount in &mut mounts {
        mount.writable = false;
    }
    Effective {
        files: Files {
            hide: policy.files.hide.clone(),
            mounts,
            ..Files::default()
        },
        network: policy.environment.network.clone(),
        secrets: policy.environment.secrets.clone(),
        ..Effective::default()
    }
}

/// One setup that is about to run.
struct Setting<'a> {
    home: &'a Home,
    order: &'a Order<'a>,
    resolved: &'a Resolved,
    rooted: Option<&'a Rooted>,
    policy: &'a Effective,
    workspace: &'a Workspace,
    overlays: &'a [PrivateOverlay],
    scene: &'a Scene,
    partial: &'a Path,
}

impl Setting<'_> {
    fn spec(&self) -> Spec {
        let mut spec = Spec {
            identity: self.workspace.identity().clone(),
            runs: Runs::Agent,
            hostname: HOSTNAME.to_owned(),
            root: self.resolved.root(),
            workspace: self.workspace.spec().clone(),
            overlays: self.overlays.to_vec(),
            mounts: self.workspace.mounts().to_vec(),
            tmpfs: Vec::new(),
            tmpfs_bytes: self.order.limits.memory_bytes.unwrap_or(8 << 30) / 2,
            gate: None,
        };
        if let Some(rooted) = self.rooted {
            rooted.change(&mut spec);
        }
        spec
    }

    /// Runs it. Gives the versions of the programs that it has left.
    fn run(
        &self,
        inputs: &Inputs,
        journal: &mut JournalFile,
        attending: &Attending<'_>,
        console: &mut dyn Console,
    ) -> Result<BTreeMap<String, String>, Error> {
        let (limits, id) = (self.order.limits, self.scene.id);
        let argv: Vec<ByteText> = ["/bin/sh", "-ec", inputs.setup.as_str()]
            .map(ByteText::from)
            .to_vec();
        journal.append(Event::Task {
            run: id.to_string(),
            argv: argv.clone(),
            folder: ByteText::from(path_bytes(&self.order.folder)),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        })?;
        let opened = Gate::open(
            self.home,
            self.order.program,
            self.policy,
            &self.scene.place(),
        )?;
        let (mut gate, handover) = opened.unzip();
        let mut spec = self.spec();
        spec.gate = handover.as_ref().map(|handover| handover.spec.clone());
        let start = Start {
            name: id.as_str(),
            spec: &spec,
            limits,
            gate: handover.as_ref().map(|handover| handover.socket.as_fd()),
        };
        let mut sandbox = Sandbox::start(self.order.backend, &start)?;
        drop(handover);
        gate.as_mut().map(Gate::ready).transpose()?;
        journal.append(Event::Enforced {
            backend: sandbox.backend().to_owned(),
            identity: spec.identity.as_str().to_owned(),
            limits: sandbox.grades().to_vec(),
            files: sandbox.files().clone(),
            image: inputs.image.clone(),
        })?;
        let probes = sandbox.prove(&self.home.canary())?;
        journal.append(Event::Proof { probes })?;
        journal.append(Event::Command { argv: argv.clone() })?;
        journal.flush()?;
        let guard = gate.as_ref().map(Gate::guard).cloned().unwrap_or_default();
        let env = self.environment(gate.as_ref());
        let logs = (self.partial.join(STDOUT), self.partial.join(STDERR));
        let mut spool = Spool::create(&logs.0, &logs.1)?.guarded(&guard);
        let mut disk = DiskWatch::new(&self.workspace.upper(), limits)?;
        for overlay in self.overlays {
            disk.also(&overlay.layer.join("upper"))?;
        }
        if let Some(rooted) = self.rooted {
            disk.also(&rooted.upper())?;
        }
        let mut recorder = Recorder {
            journal,
            evidence: Evidence::default(),
            guard: &guard,
        };
        let mut shown = Shown {
            console,
            tail: VecDeque::new(),
            line: Vec::new(),
        };
        let quiet = Attending {
            stdin: None,
            signals: attending.signals,
        };
        let records = Records {
            spool: &mut spool,
            disk: &mut disk,
            witness: &mut recorder,
            gate: &mut gate,
        };
        let exec = self.exec(argv, env.clone(), limits.time_seconds);
        let attended = attend(&mut sandbox, exec, limits, records, &quiet, &mut shown)?;
        // A full disk was told of already.
        let _ = spool.end();
        let tail = shown.tail();
        let tools = if succeeded(&attended) {
            let records = Records {
                spool: &mut Spool::ends_only(),
                disk: &mut disk,
                witness: &mut recorder,
                gate: &mut gate,
            };
            self.versions(&mut sandbox, env, records, &quiet)?
        } else {
            BTreeMap::new()
        };
        for event in gate.map(Gate::end).unwrap_or_default() {
            let _ = crate::attend::Witness::network(&mut recorder, event);
        }
        let journal = recorder.journal;
        journal.append(run::exit_event(&attended))?;
        sandbox.end().map_err(Error::Wait)?;
        let status = if succeeded(&attended) {
            RunStatus::Done
        } else {
            RunStatus::Failed
        };
        journal.append(Event::End { status })?;
        journal.flush()?;
        if succeeded(&attended) {
            Ok(tools)
        } else {
            let log = failed_log(self.home, &inputs.key());
            let ending = run::ending(&attended);
            Err(EnvironmentError::Failed { ending, tail, log }.into())
        }
    }

    /// What counts more comes later.
    fn environment(&self, gate: Option<&Gate>) -> Vec<(ByteText, ByteText)> {
        let mut own = stand::variables(self.order, Some(self.resolved));
        own.extend(
            gate.map(Gate::environment)
                .unwrap_or_default()
                .iter()
                .cloned(),
        );
        if self.rooted.is_some() {
            own.extend(["USER", "LOGNAME"].map(|name| super::variable(name, "root")));
        }
        for (name, variable) in &self.order.policy.environment.setup_env {
            let value = variable.value.as_deref().unwrap_or_default();
            own.push(super::variable(name, value));
        }
        run::environment(&own)
    }

    fn exec(
        &self,
        argv: Vec<ByteText>,
        env: Vec<(ByteText, ByteText)>,
        seconds: Option<u64>,
    ) -> Exec {
        Exec {
            argv,
            env,
            cwd: ByteText::from(path_bytes(&self.order.inside)),
            stdin: Stdin::Empty,
            terminal: None,
            timeout_ms: seconds.map(|seconds| seconds * 1000),
            output: OutputMode::Attached,
            // A server that a setup started would write while its layer is read.
            leftovers: Leftovers::Kill,
        }
    }

    /// HOSTILE: what they say is the programs' own word, bounded and of plain text.
    fn versions(
        &self,
        sandbox: &mut Sandbox,
        env: Vec<(ByteText, ByteText)>,
        records: Records<'_>,
        attending: &Attending<'_>,
    ) -> Result<BTreeMap<String, String>, Error> {
        let argv = ["/bin/sh", "-c", VERSIONS].map(ByteText::from).to_vec();
        let limits = Limits {
            time_seconds: Some(VERSIONS_SECONDS),
            ..self.order.limits.clone()
        };
        let exec = self.exec(argv, env, limits.time_seconds);
        let mut heard = Heard(Vec::new());
        attend(sandbox, exec, &limits, records, attending, &mut heard)?;
        let text = String::from_utf8_lossy(&heard.0);
        let pairs = text.lines().filter_map(|line| line.split_once('\t'));
        let plain = |text: &str| -> String {
            let shown = text
                .chars()
                .filter(|c| !ringfence_model::text::misleads(*c));
            shown.take(VERSION_CHARS).collect()
        };
        let told = pairs.filter(|(_, version)| !version.is_empty());
        Ok(told
            .map(|(name, version)| (plain(name), plain(version)))
            .take(16)
            .collect())
    }
}

fn succeeded(attended: &Attended) -> bool {
    attended.outcome == Outcome::Exited && attended.code == Some(0)
}

/// Shows what a setup is at, in a line, and keeps the end of what it says.
struct Shown<'a> {
    console: &'a mut dyn Console,
    tail: VecDeque<u8>,
    line: Vec<u8>,
}

/// BOUND: what fits beside a spinner.
const LINE_CHARS: usize = 60;

impl Shown<'_> {
    fn tail(&self) -> String {
        let bytes: Vec<u8> = self.tail.iter().copied().collect();
        let text = String::from_utf8_lossy(&bytes);
        // A line that was cut at its beginning says nothing.
        if self.tail.len() == TAIL_BYTES {
            text.split_once('\n')
                .map_or(String::new(), |(_, rest)| rest.to_owned())
        } else {
            text.into_owned()
        }
    }
}

impl Console for Shown<'_> {
    fn output(&mut self, _: Stream, bytes: &[u8]) {
        self.tail.extend(bytes);
        let over = self.tail.len().saturating_sub(TAIL_BYTES);
        self.tail.drain(..over);
        self.line
            .extend_from_slice(&bytes[bytes.len().saturating_sub(TAIL_BYTES)..]);
        if let Some(end) = self.line.iter().rposition(|byte| *byte == b'\n') {
            let from = self.line[..end].iter().rposition(|byte| *byte == b'\n');
            let line = &self.line[from.map_or(0, |at| at + 1)..end];
            // HOSTILE: nothing that moves a cursor.
            let text = String::from_utf8_lossy(line);
            let shown = text
                .chars()
                .filter(|c| !ringfence_model::text::misleads(*c));
            let shown: String = shown.take(LINE_CHARS).collect();
            self.console.step(&format!("setup: {shown}"));
            self.line.drain(..=end);
        }
        let over = self.line.len().saturating_sub(TAIL_BYTES);
        self.line.drain(..over);
    }

    fn idle(&mut self) {
        self.console.idle();
    }
}

/// BOUND: a line for each program.
const HEARD_BYTES: usize = 8 << 10;

struct Heard(Vec<u8>);

impl Console for Heard {
    fn output(&mut self, stream: Stream, bytes: &[u8]) {
        if stream == Stream::Stdout && self.0.len() + bytes.len() <= HEARD_BYTES {
            self.0.extend_from_slice(bytes);
        }
    }
}

fn workspace_notes(workspace: &Workspace) -> Vec<String> {
    workspace.doubt.iter().cloned().collect()
}

fn open(path: &Path) -> Result<fs::File, EnvironmentError> {
    fs::File::open(path).map_err(make_error("open", path))
}

fn make_error<'p>(
    what: &'static str,
    path: &'p Path,
) -> impl Fn(io::Error) -> EnvironmentError + 'p {
    move |source| EnvironmentError::Make {
        what,
        path: path.to_owned(),
        source,
    }
}

fn path_bytes(path: &Path) -> &[u8] {
    std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str())
}
