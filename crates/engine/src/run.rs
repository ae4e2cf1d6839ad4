//! The run driver: one function, top to bottom, one named step after another.
//!
//! ```text
//! base ─▶ start ─▶ prove ─▶ agent ─▶ stop ─▶ seal ─▶ validate ─▶ pack ─▶ hold
//! ```
//!
//! In a loop the agent's step has iterations ([docs/loop.md]); all other steps are the same.
//!
//! Each step is recorded before it is done and after. A driver that is killed leaves a row that
//! says `running` and a lock that nobody holds: the next command calls that run `lost`, and its
//! layer is still there.

mod claim;
mod observed;
mod request;
mod result;
mod review;
mod rounds;
mod steps;
mod summary;

use std::fs;
use std::os::fd::AsFd as _;
use std::time::Instant;

use ringfence_jail::cgroup::CgroupEvents;
use ringfence_jail::plan::{Runs, Spec};
use ringfence_model::ByteText;
use ringfence_model::bundle::{Backend, PATCH};
use ringfence_model::changes::ChangeSet;
use ringfence_model::journal::{Event, measured};
use ringfence_model::limits::{Grade, Limits};
use ringfence_model::observed::Observed;
use ringfence_model::outcome::{Outcome, RunStatus};
use ringfence_model::rounds::ended_well;
use serde_json::json;

use crate::agents;
use crate::attend::{Attended, Console, Inputs, Witness};
use crate::backend::Start;
use crate::bundle::{Facts, Packing};
use crate::changes;
use crate::checks::{self, Fresh, Round, Subject};
use crate::clock::now_us;
use crate::commits;
use crate::environment::{self, Resolved, Standing};
use crate::error::Error;
use crate::evidence::Evidence;
use crate::fail;
use crate::gate::{Gate, Handover};
use crate::guard::Guard;
use crate::home::Home;
use crate::ids::RunId;
use crate::journal::{JournalError, JournalFile};
use crate::keys;
use crate::lock::RunLock;
use crate::output::Spool;
use crate::sandbox::Sandbox;
use crate::store::{ATTEMPT, CAMPAIGN, Driver, FinishedRun, NewRun, Store};
use crate::verdicts;
use crate::watch::DiskWatch;
use crate::workspace::{Folder, Workspace, open_folder};

pub use observed::{Denied, Observations, TestResult, TestSeen, Times};
pub use request::{Attempt, OfCampaign, RunRequest};
pub(crate) use request::{PATH, check_limits, check_variables, environment};
pub(crate) use result::{JOURNAL_HEAD, ending};
pub use result::{OutputResult, ROUNDS, RunResult, Seconds, why};
use rounds::Parts;
pub(crate) use rounds::{ITERATIONS, iteration_ended};
use steps::Steps;

/// The host name inside.
pub(crate) const HOSTNAME: &str = "ringfence";

/// Runs a command on a copy of a folder, and brings out what changed.
pub fn run(
    home: &Home,
    store: &Store,
    request: &RunRequest,
    inputs: &Inputs<'_>,
    console: &mut dyn Console,
) -> Result<RunResult, Error> {
    request.check()?;
    let began = Instant::now();
    let key = keys::own(home)?;
    let id = RunId::random()?;
    let folder = open_folder(home, &request.folder)?;
    let span = Steps::span(id, request, folder.path());
    let _inside = span.enter();
    let order = request.order(&folder)?;
    let resolved = environment::resolve(home, store, &order, console)?;
    let lock = RunLock::create(home, id)?;
    let undo = Undo {
        home,
        store,
        id,
        armed: true,
    };
    let steps = Steps::of(store, id);

    store.insert_run(&lock, &new_run(request, &folder, resolved.as_ref()))?;
    let standing = match &resolved {
        Some(resolved) => environment::ensure(home, store, &order, resolved, inputs, console)?,
        None => Standing::default(),
    };
    steps.begin("base", console)?;
    let mut workspace = Workspace::create(home, id, folder, &request.view, &request.files())?;
    workspace.stand_on(standing.workspace());
    let packing = Packing::begin(home, id)?;
    make_directory(&home.log(id))?;
    let mut journal = packing.journal()?;
    journal.append(Event::Task {
        run: id.to_string(),
        argv: request.argv.clone(),
        folder: ByteText::from(path_bytes(workspace.folder())),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    })?;

    steps.begin("start", console)?;
    let place = home.workspaces().join(id.as_str());
    let opened = Gate::open(home, &request.program, &request.policy, &place)?;
    let (mut gate, handover) = opened.unzip();
    let spec = Spec {
        overlays: standing.overlays(&place, workspace.identity())?,
        ..spec(&workspace, &standing, &request.limits, handover.as_ref())
    };
    let start = Start {
        name: id.as_str(),
        spec: &spec,
        limits: &request.limits,
        gate: handover.as_ref().map(|handover| handover.socket.as_fd()),
    };
    let mut sandbox = Sandbox::start(&*request.backend, &start)?;
    drop(handover);
    require_hard(request, &sandbox)?;
    gate.as_mut().map(Gate::ready).transpose()?;
    journal.append(Event::Enforced {
        backend: sandbox.backend().to_owned(),
        identity: workspace.identity().as_str().to_owned(),
        limits: sandbox.grades().to_vec(),
        files: sandbox.files().clone(),
        image: standing.facts.image.clone(),
    })?;

    steps.begin("prove", console)?;
    let probes = sandbox.prove(&home.canary())?;
    let probed = probes.iter().filter(|probe| !probe.is_left_out()).count();
    journal.append(Event::Proof { probes })?;
    agents::stage(sandbox.client(), request.agent.as_ref())?;

    steps.begin("agent", console)?;
    journal.append(Event::Command {
        argv: request.argv.clone(),
    })?;
    journal.flush()?;
    let seeking = workspace.seek_identity()?;
    store.start_run(id, now_us())?;
    let reserve = Reserve::make(home, id, &request.limits);
    let guard = gate.as_ref().map(Gate::guard).cloned().unwrap_or_default();
    let mut spool = Spool::create(&home.stdout_log(id), &home.stderr_log(id))?.guarded(&guard);
    let mut disk = DiskWatch::new(&workspace.upper(), &request.limits)?;
    for overlay in &spec.overlays {
        disk.also(&overlay.layer.join("upper"))?;
    }
    checks::warm(request);
    let given = gate.as_ref().map(Gate::environment).unwrap_or_default();
    let env = request.environment(&standing.env, given);
    let mut recorder = Recorder {
        journal: &mut journal,
        evidence: Evidence::default(),
        guard: &guard,
    };
    let parts = Parts {
        home,
        id,
        request,
        workspace: &workspace,
        standing: &standing,
        env: &env,
        inputs,
        sandbox: &mut sandbox,
        gate: &mut gate,
        recorder: &mut recorder,
        spool: &mut spool,
        disk: &mut disk,
        console,
        refused: CgroupEvents::default(),
    };
    let mut worked = parts.work()?;
    let attended = &mut worked.attended;
    drop(reserve);
    // A full disk was told of already.
    let _ = spool.end();
    let claimed = claim::read(sandbox.client(), &env, &mut recorder)?;
    for event in gate.map(Gate::end).unwrap_or_default() {
        match recorder.network(event) {
            // The run is judged by what was recorded, and says that this is not all.
            Err(JournalError::Full { .. }) => attended.journal_full(),
            taken => taken?,
        }
    }
    let evidence = recorder.evidence;
    for (limit, detail) in &attended.hits {
        journal.append(Event::Limit {
            limit: *limit,
            detail: detail.clone(),
        })?;
    }
    journal.append(exit_event(attended))?;

    // From here on an interrupt ends this process; the layer stays, and the run is `lost`. Where
    // there are checks, it first ends those.
    let checking = !request.policy.review.checks.is_empty();
    let release = || {
        if let Some(signals) = inputs.signals.filter(|_| !checking) {
            signals.release();
        }
    };
    // What is on another machine has to be brought before.
    let is_elsewhere = sandbox.is_elsewhere();
    if !is_elsewhere {
        release();
    }

    steps.begin("stop", console)?;
    let backend = backend(&workspace, &sandbox, probed);
    sandbox.end().map_err(Error::Wait)?;
    drop(sandbox);
    if is_elsewhere {
        release();
    }

    steps.begin("seal", console)?;
    let (sources, mut set) = workspace.changes()?;
    guard.hold_back(&sources, &mut set);
    fail::point("run:changed");
    let (patch, attribution) = packing.patch(&sources, &set, &evidence)?;
    fail::point("run:rendered");
    let (base, tree) = seeking.finish(&set.changes);
    journal.append(Event::Seal {
        changed: set.changes.len() as u64,
        omitted: set.omitted.len() as u64,
        patch_sha256: patch.sha256.clone(),
    })?;

    let subject = Subject {
        home,
        room: id,
        request,
        workspace: &workspace,
        standing: &standing,
        patch: &packing.path(PATCH),
        changes: &set.changes,
        prefix: &sources.prefix,
        logs: &home.log(id).join(checks::LOGS),
        fresh: Fresh::Kept,
        stopped: worked.attended.outcome == Outcome::Cancelled,
        round: Round::Last,
    };
    let checks = match worked.checked(&patch.sha256, subject.logs, &mut journal)? {
        Some(checks) => checks,
        None => checks::validate(subject, &mut journal, inputs, console)?,
    };
    fail::point("run:validated");
    if let Some(signals) = inputs.signals.filter(|_| checking) {
        signals.release();
    }

    steps.begin("pack", console)?;
    let attended = &worked.attended;
    let status = status(attended, &set);
    let left = review::Left {
        workspace: &workspace,
        sources: &sources,
        set: &set,
        stats: &patch.stats,
        patch: &packing.path(PATCH),
        evidence: &evidence,
        claimed: &claimed,
        attribution: &attribution,
        checks: &checks,
        succeeded: ended_well(attended.outcome, attended.code),
    };
    let review = review::review(home, store, &left)?;
    let looped = worked.looped(&set, &patch, &checks, &mut journal)?;
    journal.append(Event::End { status })?;
    journal.flush()?;
    fail::point("run:ended");
    let bundle = home.bundle(id);
    let mut notes = notes(request, &workspace, &standing, status);
    let commits = commits::keep(home, id, &base, &guard, &mut notes);
    let result = RunResult {
        run: id,
        name: request.name.clone(),
        status,
        outcome: attended.outcome,
        exit_code: attended.code,
        signal: attended.signal,
        not_started: attended.not_started.clone(),
        argv: request.argv.clone(),
        folder: ByteText::from(path_bytes(workspace.folder())),
        changed_files: changed_files(&set),
        changes: set.changes.clone(),
        omitted: set.omitted.clone(),
        omitted_truncated: set.omitted_truncated,
        insertions: patch.stats.insertions,
        deletions: patch.stats.deletions,
        patch: bundle.join(PATCH),
        patch_sha256: patch.sha256.clone(),
        bundle,
        duration_ms: attended.duration_ms,
        total_ms: began.elapsed().as_millis() as u64,
        cpu_ms: attended.cpu_ms,
        peak_bytes: attended.peak_bytes,
        stdout: OutputResult::of(&spool, crate::client::Stream::Stdout, home.stdout_log(id)),
        stderr: OutputResult::of(&spool, crate::client::Stream::Stderr, home.stderr_log(id)),
        leftovers: attended.leftovers.clone(),
        limits: backend.limits.clone(),
        limit_hits: attended.hits.clone(),
        wall: backend.wall,
        probes: probed,
        journal_head: journal.head().to_owned(),
        evidence: Some(attribution),
        notes,
        line_counts: review.lines,
        claimed: claimed.unwrap_or_default(),
        observed: Observations::of(&evidence, &attended.hits),
        checks,
        rounds: looped,
        flags: review.flags,
        environment: standing.facts.clone(),
        commits,
        usage: agents::usage(request.agent.as_ref(), &home.stdout_log(id)),
    };
    let facts = Facts {
        policy: request.policy(&workspace.spec().inside),
        base,
        tree,
        backend,
    };
    packing.finish(&result, facts, &patch, &journal, &key, &guard)?;

    steps.begin("hold", console)?;
    review::note(store, &workspace, &evidence)?;
    let mut end = result.finished(now_us());
    let programs = verdicts::programs(&request.policy, &sources, &result.changes);
    verdicts::hold(&mut end, &request.policy, &result, &programs);
    store.finish_run(id, &end)?;
    fail::point("run:held");
    // Where that cannot be recorded, it stays held.
    let _ = verdicts::by_rule(home, store, &request.policy, &result, &programs);
    undo.disarm();
    drop(lock);
    discard_layer(home, id);
    steps.end(&result);
    Ok(result)
}

/// Puts what was observed into the journal, and keeps it for the result.
pub(crate) struct Recorder<'a> {
    pub journal: &'a mut JournalFile,
    pub evidence: Evidence,
    pub guard: &'a Guard,
}

impl Witness for Recorder<'_> {
    fn observed(&mut self, observed: Observed) -> Result<(), JournalError> {
        let time_us = now_us();
        let told = |event| self.guard.event(event);
        match self.evidence.take(time_us, observed, told) {
            Some(event) => self.journal.append_observed(time_us, event),
            None => Ok(()),
        }
    }

    fn network(&mut self, event: Event) -> Result<(), JournalError> {
        let time_us = now_us();
        let event = self.guard.event(event);
        self.evidence.keep(time_us, &event);
        self.journal.append_observed(time_us, event)
    }

    fn idle(&mut self) {
        // A disk that is full now may have room when it must have.
        let _ = self.journal.flush();
    }
}

/// The row of a run that begins.
fn new_run(request: &RunRequest, folder: &Folder, resolved: Option<&Resolved>) -> NewRun {
    let stands_on = resolved.map(|resolved| ("stands_on".to_owned(), json!(resolved.stands_on())));
    NewRun {
        name: request.name.clone(),
        folder: folder.path().to_owned(),
        argv: request.argv.clone(),
        created_us: now_us(),
        driver: Driver::current(),
        detail: serde_json::Map::from_iter(
            [
                ("view".to_owned(), json!(request.view)),
                ("files".to_owned(), json!(request.policy.files)),
                (ATTEMPT.to_owned(), json!(request.attempt)),
                (CAMPAIGN.to_owned(), json!(request.campaign)),
            ]
            .into_iter()
            .chain(stands_on),
        ),
    }
}

/// What a sandbox of a run is made of, but for overlays.
pub(crate) fn spec(
    workspace: &Workspace,
    standing: &Standing,
    limits: &Limits,
    gate: Option<&Handover>,
) -> Spec {
    Spec {
        identity: workspace.identity().clone(),
        runs: Runs::Agent,
        hostname: HOSTNAME.to_owned(),
        root: standing.root(),
        workspace: workspace.spec().clone(),
        overlays: Vec::new(),
        mounts: workspace.mounts().to_vec(),
        tmpfs: standing.tmpfs.clone(),
        // BOUND: each temporary file system may hold half of the memory that the sandbox has.
        tmpfs_bytes: limits.memory_bytes.unwrap_or(8 << 30) / 2,
        gate: gate.map(|handover| handover.spec.clone()),
    }
}

/// Who holds the sandbox, and to what.
fn backend(workspace: &Workspace, sandbox: &Sandbox, probes: usize) -> Backend {
    Backend {
        name: sandbox.backend().to_owned(),
        identity: workspace.identity().as_str().to_owned(),
        limits: sandbox.grades().to_vec(),
        wall: sandbox.wall(),
        probes: probes as u64,
        observation: sandbox.observation(),
        files: sandbox.files().clone(),
    }
}

pub(crate) fn exit_event(attended: &Attended) -> Event {
    let (cpu_ms, peak_bytes) = measured(attended.cpu_ms, attended.peak_bytes);
    Event::CommandEnded {
        outcome: attended.outcome,
        code: attended.code,
        signal: attended.signal,
        duration_ms: attended.duration_ms,
        leftovers: attended.leftovers.len() as u64,
        cpu_ms,
        peak_bytes,
    }
}

fn status(attended: &Attended, set: &ChangeSet) -> RunStatus {
    if set.moved().next().is_some() {
        RunStatus::BaseMoved
    } else if ended_well(attended.outcome, attended.code) {
        RunStatus::Done
    } else {
        RunStatus::Failed
    }
}

fn notes(
    request: &RunRequest,
    workspace: &Workspace,
    standing: &Standing,
    status: RunStatus,
) -> Vec<String> {
    let doubt = workspace
        .doubt
        .iter()
        .filter(|_| status == RunStatus::Failed);
    let notes = request.notes.iter().chain(&standing.notes);
    let notes = notes.chain(&workspace.notes);
    notes.chain(doubt).cloned().collect()
}

/// Each changed path once; one that changed its type has two changes.
fn changed_files(set: &ChangeSet) -> Vec<ByteText> {
    let mut paths: Vec<ByteText> = set.changes.iter().map(|c| c.path.clone()).collect();
    paths.dedup();
    paths
}

/// Refuses to go on where a limit that was asked for is not hard here and must be.
fn require_hard(request: &RunRequest, sandbox: &Sandbox) -> Result<(), Error> {
    if !request.require_hard {
        return Ok(());
    }
    for graded in sandbox.grades() {
        let off = graded.grade == Grade::Absent && graded.by == "switched off";
        if graded.grade != Grade::Hard && !off {
            return Err(Error::LimitNotHard {
                limit: graded.limit,
                grade: graded.grade.as_str(),
            });
        }
    }
    Ok(())
}

/// Room on the disk that the agent cannot take, so that how it ended can be written down.
struct Reserve(std::path::PathBuf);

/// BOUND: some pages of the store and the journal, and a small patch.
const RESERVE_BYTES: u64 = 512 << 10;

impl Reserve {
    fn make(home: &Home, id: RunId, limits: &Limits) -> Self {
        let path = home.workspace(id).join("reserve");
        let free = rustix::fs::statvfs(home.root()).map_or(0, |stat| stat.f_bavail * stat.f_frsize);
        // The agent meets its own bound long before the disk is full.
        if limits.disk_bytes.is_some_and(|bytes| free / 2 > bytes) {
            return Self(path);
        }
        // A disk that has no room for it will be told of soon enough.
        if let Ok(file) = fs::File::create_new(&path) {
            let _ =
                rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, RESERVE_BYTES);
        }
        Self(path)
    }
}

impl Drop for Reserve {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn make_directory(path: &std::path::Path) -> Result<(), Error> {
    fs::create_dir(path).map_err(|source| Error::WriteFile {
        path: path.to_owned(),
        source,
    })
}

fn path_bytes(path: &std::path::Path) -> &[u8] {
    std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str())
}

/// Removes a layer whose result is packed. A layer that resists is found again by `rm`.
pub(crate) fn discard_layer(home: &Home, id: RunId) {
    if let Ok(parent) = fs::File::open(home.workspaces()) {
        let _ = changes::remove_tree(std::os::fd::AsFd::as_fd(&parent), id.as_str().as_bytes());
    }
}

/// What a run that failed before its end leaves: a row that says so, and no layer without a use.
struct Undo<'a> {
    home: &'a Home,
    store: &'a Store,
    id: RunId,
    armed: bool,
}

impl Undo<'_> {
    fn disarm(mut self) {
        self.armed = false;
    }
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        // The agent's work may be in the layer: it is kept unless the agent never started.
        let run = self.store.run(self.id);
        let began = run.is_ok_and(|run| run.started_us.is_some());
        if began {
            let _ = self.store.mark_lost(self.id);
        } else {
            let _ = self
                .store
                .finish_run(self.id, &FinishedRun::never_started(now_us()));
            discard_layer(self.home, self.id);
        }
    }
}
