//! The agent's part of a run: it is started once, or sent back with what the checks say, in one sandbox
//! and one workspace.
//!
//! ```text
//!            ┌──────────────── feedback ◀───────────────┐ no
//!            ▼                                          │
//! baseline ─▶ agent ─▶ still ─▶ patch ─▶ checks ─▶ enough? ─▶ the run goes on: stop, seal, …
//! ```
//!
//! The last iteration is not looked at here: it is sealed and validated as every run is. Where one in
//! between is enough, nothing inside moves until the sandbox is ended, and its checks are those of the
//! run if the patch is the same.
//!
//! INVARIANT: nothing of the agent runs between the moment when its layer is read and the verdict. What
//! moves in spite of that changes the sealed patch, and that is checked again.

mod deliver;
mod record;
mod sum;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ringfence_jail::cgroup::CgroupEvents;
use ringfence_model::ByteText;
use ringfence_model::changes::{Change, ChangeSet};
use ringfence_model::check::Checks;
use ringfence_model::journal::Event;
use ringfence_model::limits::Limits;
use ringfence_model::outcome::Outcome;
use ringfence_model::rounds::{
    AgentLife, Baseline, Found, Iteration, MAX_KEPT_BYTES, Rounds, ended_well, may_go_on,
};
use ringfence_model::wire::{Exec, Leftovers, OutputMode, Reply, Request, Stdin};

use super::{Recorder, RunRequest, path_bytes};
use crate::attend::{Came, Channel, Console, Inputs, Records, Running, Told};
use crate::bundle::{self, Patch};
use crate::changes::{self, PatchStats};
use crate::checks::{self, Fresh, Round, Subject};
use crate::client::{Client, ClientError};
use crate::clock::now_us;
use crate::environment::Standing;
use crate::error::Error;
use crate::gate::Gate;
use crate::home::Home;
use crate::ids::RunId;
use crate::journal::JournalError;
use crate::output::Spool;
use crate::sandbox::Sandbox;
use crate::watch::DiskWatch;
use crate::workspace::Workspace;

pub(super) use record::Worked;
pub(crate) use record::iteration_ended;
use sum::Sum;

/// Where a run has the patches of its iterations, below its logs.
pub(crate) const ITERATIONS: &str = "iterations";

/// What the agent's part of a run is done with.
pub(super) struct Parts<'a, 'r> {
    pub home: &'a Home,
    pub id: RunId,
    pub request: &'a RunRequest,
    pub workspace: &'a Workspace,
    pub standing: &'a Standing,
    pub env: &'a [(ByteText, ByteText)],
    pub inputs: &'a Inputs<'a>,
    pub sandbox: &'a mut Sandbox,
    pub gate: &'a mut Option<Gate>,
    pub recorder: &'a mut Recorder<'r>,
    pub spool: &'a mut Spool,
    pub disk: &'a mut DiskWatch,
    pub console: &'a mut dyn Console,
    /// What the kernel had refused before the agent's last start.
    pub refused: CgroupEvents,
}

/// What is known of a loop before the run is sealed.
#[derive(Default)]
struct InLoop {
    rounds: Option<Rounds>,
    baseline: Vec<Baseline>,
    iterations: Vec<Iteration>,
    /// The last iteration, where it was not looked at.
    open: Option<Ended>,
    /// The checks of the last iteration that was, and of which patch.
    checked: Option<Checked>,
    notes: Vec<String>,
    kept_bytes: u64,
}

/// How the agent ended in one iteration.
#[derive(Clone, Copy, Debug)]
struct Ended {
    number: u32,
    outcome: Outcome,
    code: Option<i32>,
    signal: Option<i32>,
    duration_ms: u64,
}

struct Checked {
    patch_sha256: String,
    checks: Checks,
    logs: PathBuf,
}

/// What an iteration left.
struct Left {
    set: ChangeSet,
    prefix: Vec<u8>,
    path: PathBuf,
    sha256: String,
    stats: PatchStats,
}

impl Parts<'_, '_> {
    /// Has the agent do its work.
    pub fn work(mut self) -> Result<Worked, Error> {
        if let Some(brief) = &self.request.brief {
            deliver::file(self.sandbox.client(), deliver::BRIEF, brief, 0)
                .map_err(Error::Client)?;
        }
        match self.request.rounds {
            Some(rounds) => self.in_rounds(rounds),
            None => {
                let limits = self.request.limits.clone();
                let told = self.request.input.clone().map(Told::whole);
                let exec = self.exec(&limits, &self.request.argv, self.env.to_vec(), &told);
                let mut running = Running::start(self.sandbox, exec, &limits, told)?;
                loop {
                    if let Came::Ended(attended) = self.go_on(&mut running, &limits)? {
                        return Ok(Worked {
                            attended,
                            looped: None,
                        });
                    }
                }
            }
        }
    }

    fn in_rounds(&mut self, rounds: Rounds) -> Result<Worked, Error> {
        let mut own = InLoop {
            rounds: Some(rounds),
            ..InLoop::default()
        };
        let mut sum = Sum::default();
        if rounds.iterations > 1 {
            make_directory(&self.directory())?;
            if self.baseline(&mut own)? == Outcome::Cancelled {
                return Ok(sum.cancelled(own));
            }
        }
        let word = deliver::turn_word()?;
        let began = Instant::now();
        let mut running: Option<Running> = None;
        let mut feedback: Option<Vec<u8>> = None;
        let mut again: Option<&[ByteText]> = None;
        for number in 1..=rounds.iterations {
            let Some(limits) = left_of(&self.request.limits, began.elapsed()) else {
                sum.time_over(&self.request.limits);
                break;
            };
            self.console.iteration(number, rounds.iterations);
            if !self.record(Event::IterationBegan {
                iteration: number,
                most: rounds.iterations,
            })? {
                sum.journal_full();
                break;
            }
            let turn = Instant::now();
            let mut command = match running.take() {
                Some(mut waiting) => {
                    waiting.tell(deliver::FEEDBACK.as_bytes());
                    waiting
                }
                None => {
                    let feedback = feedback.as_deref();
                    self.start(number, &rounds, &word, &limits, feedback, again)?
                }
            };
            let ended = match self.go_on(&mut command, &limits)? {
                Came::Ended(attended) => sum.ended(number, attended, rounds.agent, turn),
                Came::TurnOver => {
                    let ended = sum.turn_over(number, turn, &mut command);
                    running = Some(command);
                    ended
                }
            };
            own.open = Some(ended);
            if number == rounds.iterations || !may_go_on(ended.outcome) {
                if running.is_some() {
                    // It is ended next. What it does until then would be observed by nobody.
                    let _ = self.still();
                }
                break;
            }
            // A layer that cannot be read now is read when nothing runs any more.
            let left = match self.still().and_then(|()| self.read(number)) {
                Ok(left) => left,
                Err(error) => {
                    let why = checks::chain(&error);
                    own.notes
                        .push(format!("no more after iteration {number}: {why}"));
                    break;
                }
            };
            self.look(number, &left, &mut own)?;
            own.open = None;
            self.close(&mut own, &ended, &left)?;
            let checks = own.checked.as_ref().map(|checked| &checked.checks);
            if checks.is_some_and(Checks::was_cancelled) {
                sum.stopped();
                break;
            }
            let hold = checks.is_none_or(Checks::hold);
            let moved = left.set.moved().next().is_some();
            if moved || (hold && ended_well(ended.outcome, ended.code)) {
                break;
            }
            let text = self.feedback(&ended, &rounds, &left, &own);
            if let Err(error) =
                deliver::file(self.sandbox.client(), deliver::FEEDBACK, &text, number)
            {
                // HOSTILE: an agent can see to that. It is told in the other ways.
                let why = checks::chain(&error);
                own.notes
                    .push(format!("iteration {number}: no file with feedback: {why}"));
            }
            feedback = Some(text);
            // One that crashed may have left nothing to go on from.
            let agent = self.request.agent.as_ref();
            let agent = agent.filter(|_| ended_well(ended.outcome, ended.code));
            again = agent.and_then(|agent| agent.again.as_deref());
            if self.thaw()? > 0 {
                own.notes.push(format!(
                    "something inside ran while iteration {number} was read and checked"
                ));
            }
        }
        Ok(sum.worked(own))
    }

    /// Each check on the files as they are.
    fn baseline(&mut self, own: &mut InLoop) -> Result<Outcome, Error> {
        let prefix = self.workspace.sources()?.prefix;
        let logs = self.directory().join("baseline");
        // No patch at all: both trees are the base.
        let empty = PathBuf::from("/dev/null");
        let checks = self.validate(Round::Baseline, &empty, &[], &prefix, &logs)?;
        own.baseline = Baseline::of(&checks);
        own.notes.extend(checks.notes.iter().cloned());
        if checks.was_cancelled() {
            Ok(Outcome::Cancelled)
        } else {
            Ok(Outcome::Exited)
        }
    }

    fn validate(
        &mut self,
        round: Round,
        patch: &Path,
        changes: &[Change],
        prefix: &[u8],
        logs: &Path,
    ) -> Result<Checks, Error> {
        let subject = Subject {
            home: self.home,
            room: self.id,
            request: self.request,
            workspace: self.workspace,
            standing: self.standing,
            patch,
            changes,
            prefix,
            logs,
            fresh: Fresh::Kept,
            stopped: false,
            round,
        };
        checks::validate(subject, self.recorder.journal, self.inputs, self.console)
    }

    /// Starts the agent for an iteration.
    fn start(
        &mut self,
        number: u32,
        rounds: &Rounds,
        word: &str,
        limits: &Limits,
        feedback: Option<&[u8]>,
        again: Option<&[ByteText]>,
    ) -> Result<Running, Error> {
        let request = self.request;
        // Who goes on where it was knows what it was asked.
        let asked = request.input.as_ref().filter(|_| again.is_none());
        let asked = || asked.cloned().unwrap_or_default();
        let mut env = self.env.to_vec();
        deliver::variables(&mut env, request, rounds, number, word);
        let in_words = request.input.as_ref().is_none_or(Vec::is_empty);
        let brief = request.brief.as_deref().filter(|_| in_words);
        let (argv, placed) = deliver::words(again.unwrap_or(&request.argv), brief, feedback);
        let told = match (rounds.agent, placed) {
            (AgentLife::Stays, _) => {
                let first = match (feedback, &request.brief) {
                    (Some(_), _) => deliver::FEEDBACK,
                    (None, Some(_)) => deliver::BRIEF,
                    (None, None) => "",
                };
                Some(Told::turns(word, first.as_bytes()))
            }
            // The caller's own input is the first one's.
            (AgentLife::Restarts, _) if feedback.is_none() => {
                request.input.clone().map(Told::whole)
            }
            (AgentLife::Restarts, deliver::Placed::InWords) => Some(Told::whole(asked())),
            (AgentLife::Restarts, deliver::Placed::Nowhere) => {
                let mut text = asked();
                if !text.is_empty() {
                    text.extend_from_slice(b"\n\n");
                }
                text.extend_from_slice(feedback.unwrap_or_default());
                Some(Told::whole(text))
            }
        };
        let mut exec = self.exec(limits, &argv, env, &told);
        if rounds.iterations > 1 {
            exec.leftovers = Leftovers::Kill;
        }
        // Before it can have met a bound.
        self.refused = self.sandbox.kernel_refusals();
        Running::start(self.sandbox, exec, limits, told)
    }

    fn exec(
        &self,
        limits: &Limits,
        argv: &[ByteText],
        env: Vec<(ByteText, ByteText)>,
        told: &Option<Told>,
    ) -> Exec {
        let reads = told.is_some() || self.inputs.stdin.is_some();
        Exec {
            argv: argv.to_vec(),
            env,
            cwd: ByteText::from(path_bytes(&self.workspace.spec().inside)),
            stdin: if reads { Stdin::Frames } else { Stdin::Empty },
            terminal: self.request.terminal,
            timeout_ms: limits.time_seconds.map(|seconds| seconds * 1000),
            output: OutputMode::Attached,
            leftovers: Leftovers::Keep,
        }
    }

    fn go_on(&mut self, running: &mut Running, limits: &Limits) -> Result<Came, Error> {
        let mut records = Records {
            spool: self.spool,
            disk: self.disk,
            witness: self.recorder,
            gate: self.gate,
        };
        let mut since = Since {
            sandbox: self.sandbox,
            before: self.refused,
            now: self.refused,
        };
        let came = running.go_on(&mut since, limits, &mut records, self.inputs, self.console);
        self.refused = since.now;
        came
    }

    /// Nothing inside runs when this returns.
    fn still(&mut self) -> Result<(), Error> {
        /// BOUND: each try takes seconds at most. What was killed a moment ago may need some.
        const TRIES: usize = 5;
        let mut tried = 0;
        loop {
            tried += 1;
            match self.sandbox.client().call(&Request::Freeze) {
                Err(ClientError::Failed(_)) if tried < TRIES => {}
                answered => {
                    answered?;
                    return Ok(self.sandbox.bring()?);
                }
            }
        }
    }

    /// Everything goes on; gives how many threads had not stood still.
    fn thaw(&mut self) -> Result<u64, Error> {
        match self.sandbox.client().call(&Request::Thaw) {
            Ok(Reply::Thawed { ran }) => Ok(ran),
            Ok(_) => Ok(0),
            // Who attends it next finds out the same, and says what it means.
            Err(ClientError::Gone) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads what there is in the layer, and renders it.
    fn read(&mut self, number: u32) -> Result<Left, Error> {
        let (sources, mut set) = self.workspace.changes()?;
        self.recorder.guard.hold_back(&sources, &mut set);
        let path = self.directory().join(format!("{number}.patch"));
        let render = |out: &mut dyn std::io::Write| {
            let stats = changes::render(&sources, &set, out)?;
            Ok((stats, ()))
        };
        let (Patch { sha256, stats, .. }, ()) = bundle::render(&path, render)?;
        Ok(Left {
            prefix: sources.prefix.clone(),
            set,
            path,
            sha256,
            stats,
        })
    }

    /// Runs the checks on it, unless they ran on the same patch a moment ago.
    fn look(&mut self, number: u32, left: &Left, own: &mut InLoop) -> Result<(), Error> {
        let same = |checked: &Checked| checked.patch_sha256 == left.sha256;
        if own.checked.as_ref().is_some_and(same) || self.request.policy.review.checks.is_empty() {
            return Ok(());
        }
        let logs = self.directory().join(format!("{number}.checks"));
        let changes = &left.set.changes;
        let round = Round::Iteration(number);
        let checks = self.validate(round, &left.path, changes, &left.prefix, &logs)?;
        own.checked = Some(Checked {
            patch_sha256: left.sha256.clone(),
            checks,
            logs,
        });
        Ok(())
    }

    /// Notes an iteration that was looked at.
    fn close(&mut self, own: &mut InLoop, ended: &Ended, left: &Left) -> Result<(), Error> {
        let bytes = left.stats.bytes;
        let kept = own.kept_bytes + bytes <= MAX_KEPT_BYTES;
        if kept {
            own.kept_bytes += bytes
        } else {
            drop(fs::remove_file(&left.path))
        }
        let checks = own.checked.as_ref().map(|checked| &checked.checks);
        let iteration = Iteration {
            number: ended.number,
            outcome: ended.outcome,
            exit_code: ended.code,
            signal: ended.signal,
            duration_ms: ended.duration_ms,
            changed_files: super::changed_files(&left.set).len() as u64,
            insertions: left.stats.insertions,
            deletions: left.stats.deletions,
            patch_sha256: left.sha256.clone(),
            kept,
            checks: checks.map(Found::of).unwrap_or_default(),
        };
        tracing::info!(
            iteration = iteration.number,
            outcome = ?iteration.outcome,
            changed_files = iteration.changed_files,
            ms = iteration.duration_ms,
            "iteration done"
        );
        self.recorder.journal.append(iteration_ended(&iteration))?;
        self.recorder.journal.flush()?;
        own.iterations.push(iteration);
        Ok(())
    }

    /// Whether the journal took it. What repeats with each iteration leaves room for the end.
    fn record(&mut self, event: Event) -> Result<bool, Error> {
        match self.recorder.journal.append_observed(now_us(), event) {
            Ok(()) => Ok(true),
            Err(JournalError::Full { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn directory(&self) -> PathBuf {
        self.home.log(self.id).join(ITERATIONS)
    }
}

/// The bounds of an iteration: of the time, what is left. `None`: nothing is.
fn left_of(limits: &Limits, gone: Duration) -> Option<Limits> {
    let Some(seconds) = limits.time_seconds else {
        return Some(limits.clone());
    };
    let left = Duration::from_secs(seconds).checked_sub(gone)?;
    // Whole seconds, and the first iteration has all of them.
    let left = left.as_secs() + u64::from(left.subsec_nanos() > 0);
    (left > 0).then(|| Limits {
        time_seconds: Some(left),
        ..limits.clone()
    })
}

fn make_directory(path: &Path) -> Result<(), Error> {
    fs::create_dir(path).map_err(|source| Error::WriteFile {
        path: path.to_owned(),
        source,
    })
}

/// A sandbox, with what the kernel refused from some moment on.
struct Since<'a> {
    sandbox: &'a mut Sandbox,
    before: CgroupEvents,
    /// When it was last asked.
    now: CgroupEvents,
}

impl Channel for Since<'_> {
    fn client(&mut self) -> &mut Client {
        self.sandbox.client()
    }

    fn kernel_refusals(&mut self) -> CgroupEvents {
        let now = self.sandbox.kernel_refusals();
        self.now = now;
        CgroupEvents {
            memory_kills: now.memory_kills.saturating_sub(self.before.memory_kills),
            process_refusals: now
                .process_refusals
                .saturating_sub(self.before.process_refusals),
        }
    }

    fn held_up(&self) -> Option<String> {
        self.sandbox.held_up()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_run_is_for_all_iterations_together() {
        let limits = |seconds| Limits {
            time_seconds: seconds,
            ..Limits::for_host(1 << 30)
        };
        for (seconds, gone_ms, expected) in [
            (Some(10), 0, Some(Some(10))),
            (Some(10), 1, Some(Some(10))),
            (Some(10), 1000, Some(Some(9))),
            (Some(10), 9_999, Some(Some(1))),
            (Some(10), 10_000, None),
            (Some(10), 20_000, None),
            (None, 1 << 40, Some(None)),
        ] {
            let left = left_of(&limits(seconds), Duration::from_millis(gone_ms));
            let found = left.map(|left| left.time_seconds);
            assert_eq!(found, expected, "{seconds:?} {gone_ms}");
        }
    }
}
