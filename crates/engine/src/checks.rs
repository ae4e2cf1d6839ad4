//! Checks of the host's own on what a run leaves: each in a fresh sandbox, on files that no agent
//! has touched since.
//!
//! ```text
//!   upper          fresh for each execution of each check, and thrown away
//!   patch layer    made from base and patch by our own reader; none for the base
//!   mask, folder   as in the run
//! ```
//!
//! The layer that the agent wrote is not among them, and nothing that it left running is there. So
//! what was ignored, hidden or left behind is as the folder has it, or absent.
//!
//! An execution that fails where the other side passed is done again, to tell what the patch does
//! from what happens by chance.
//!
//! INVARIANT: what a check writes reaches no other check, and nothing that it prints decides.

mod again;
mod kept;
mod later;
mod on_top;
mod room;
mod state;
mod trees;

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use ringfence_jail::signals::Signals;
use ringfence_model::changes::Change;
use ringfence_model::check::protected;
use ringfence_model::check::{
    CheckReport, CheckVerdict, Checks, Examined, Execution, MAX_TOUCHED, Ran, Tree,
};
use ringfence_model::journal::Event;
use ringfence_model::limits::Limits;
use ringfence_model::outcome::Outcome;
use ringfence_model::policy::review::Review;

use crate::attend::{Console, Inputs};
use crate::client::Stream;
use crate::clock::now_us;
use crate::environment::Standing;
use crate::error::Error;
use crate::home::Home;
use crate::ids::RunId;
use crate::journal::{JournalError, JournalFile};
use crate::run::RunRequest;
use crate::workspace::Workspace;

pub use again::Fresh;
pub use later::{Later, LaterError, as_it_ran, check_again, later, standing};
pub(crate) use on_top::{About, Ground, Site};
pub(crate) use room::cgroup_names;
pub(crate) use trees::Stacked;

use kept::Key;
use room::{Job, OfCheck, Rooms};
use trees::{Trees, TreesError};

/// Where a run has what its checks printed, below its logs.
pub(crate) const LOGS: &str = "checks";

/// What is looked at.
#[derive(Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub home: &'a Home,
    /// Whose directory of workspaces there is room in.
    pub room: RunId,
    pub request: &'a RunRequest,
    pub workspace: &'a Workspace,
    pub standing: &'a Standing,
    pub patch: &'a Path,
    pub changes: &'a [Change],
    pub prefix: &'a [u8],
    /// Where what checks print is kept.
    pub logs: &'a Path,
    pub fresh: Fresh,
    /// The run was stopped by the user, who does not wait for checks either.
    pub stopped: bool,
    pub round: Round,
}

/// For what checks run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Round {
    /// Before the agent begins.
    Baseline,
    /// What an iteration of the agent left.
    Iteration(u32),
    /// What the run left.
    Last,
}

impl Round {
    /// What sets the names of layers and rooms apart.
    fn name(self) -> String {
        match self {
            Self::Baseline => "baseline".to_owned(),
            Self::Iteration(number) => number.to_string(),
            Self::Last => "last".to_owned(),
        }
    }

    /// How the journal tells of an execution here.
    fn told(self, event: Event) -> Option<Event> {
        let iteration = match self {
            Self::Baseline => 0,
            Self::Iteration(number) => number,
            Self::Last => return Some(event),
        };
        match event {
            Event::CheckEnded {
                check,
                tree,
                outcome,
                code,
                signal,
                duration_ms,
                log_sha256,
                cached,
            } => Some(Event::IterationCheck {
                iteration,
                check,
                tree,
                outcome,
                code,
                signal,
                duration_ms,
                log_sha256,
                cached,
            }),
            _ => None,
        }
    }
}

impl Subject<'_> {
    fn review(&self) -> &Review {
        &self.request.policy.review
    }
}

/// Where what happens is told.
struct Told<'a> {
    journal: Option<&'a mut JournalFile>,
    console: &'a mut dyn Console,
    signals: Option<&'a Signals>,
    round: Round,
}

impl Told<'_> {
    fn event(&mut self, event: Event) -> Result<(), Error> {
        let (Some(journal), Some(event)) = (&mut self.journal, self.round.told(event)) else {
            return Ok(());
        };
        if self.round == Round::Last {
            return Ok(journal.append(event)?);
        }
        match journal.append_observed(now_us(), event) {
            // No further iteration begins then.
            Err(JournalError::Full { .. }) => Ok(()),
            taken => Ok(taken?),
        }
    }
}

/// Makes ready what checks need, beside whatever else happens now.
pub(crate) fn warm(request: &RunRequest) {
    if !request.policy.review.checks.is_empty() {
        // Nobody waits for it but who needs it.
        thread::spawn(protected::usual);
    }
}

/// The step of a run: all checks of its policy. Nothing is asked: nothing is done.
pub(crate) fn validate(
    subject: Subject<'_>,
    journal: &mut JournalFile,
    inputs: &Inputs<'_>,
    console: &mut dyn Console,
) -> Result<Checks, Error> {
    if subject.review().checks.is_empty() {
        return Ok(Checks::default());
    }
    console.step(match subject.round {
        Round::Baseline => "baseline",
        Round::Iteration(_) | Round::Last => "validate",
    });
    let told = Told {
        journal: Some(journal),
        console,
        signals: inputs.signals,
        round: subject.round,
    };
    check(subject, told)
}

/// Runs all checks, before and after.
fn check(subject: Subject<'_>, told: Told<'_>) -> Result<Checks, Error> {
    check_on(subject, told, Trees::make)
}

/// The same on trees that are made in another way.
fn check_on(
    subject: Subject<'_>,
    mut told: Told<'_>,
    make: impl FnOnce(&Subject<'_>) -> Result<Trees, TreesError>,
) -> Result<Checks, Error> {
    let review = subject.review();
    let began = Instant::now();
    fs::create_dir(subject.logs).map_err(|source| Error::WriteFile {
        path: subject.logs.to_owned(),
        source,
    })?;
    let mut checks = Checks {
        environment: kept::environment(&subject),
        ..Checks::default()
    };
    if subject.stopped {
        checks
            .notes
            .push("no check ran: the run was stopped by you".to_owned());
        checks.reports = review.checks.iter().map(|line| unrun(&line.text)).collect();
        return Ok(checks);
    }
    let trees = match make(&subject) {
        Ok(trees) => trees,
        // The folder moved on, or the patch is not one that our reader takes.
        Err(error) if error.is_of_subject() => {
            checks
                .notes
                .push(format!("no check ran: {}", chain(&error)));
            checks.reports = review.checks.iter().map(|line| unrun(&line.text)).collect();
            return Ok(checks);
        }
        Err(error) => return Err(error.into()),
    };
    for path in trees.touched.iter().take(MAX_TOUCHED) {
        checks.touched.push(path.clone());
    }
    checks.touched_more = (trees.touched.len() - checks.touched.len()) as u64;
    let seen = thread::scope(|scope| -> Result<Seen, Error> {
        let (asks, asked) = mpsc::channel();
        // One room is made ahead while a check runs in the one before.
        let (gives, given) = mpsc::sync_channel(room::AHEAD);
        let maker = (&subject, &trees);
        let span = tracing::Span::current();
        scope.spawn(move || span.in_scope(|| room::serve(maker.0, maker.1, &asked, &gives)));
        let mut validation = Validation {
            subject,
            trees: &trees,
            told: &mut told,
            rooms: Rooms::new(asks, given),
            environment: checks.environment.clone(),
            may_keep: kept::may_keep(&subject),
            limits: limits(&subject.request.limits),
            seen: Seen::default(),
        };
        validation.all()?;
        Ok(validation.seen)
    })?;
    checks.reports = seen.reports;
    checks.notes.extend(trees.notes.iter().cloned());
    if state::of(subject.workspace.folder()) != trees.state {
        checks.notes.push(
            "the folder changed while the checks ran: what they say is of no one state of it"
                .to_owned(),
        );
    } else {
        for (key, kept) in &seen.to_keep {
            kept::keep(subject.home, key, kept)?;
        }
        if !seen.to_keep.is_empty() {
            kept::sweep(subject.home);
        }
    }
    checks.duration_ms = began.elapsed().as_millis() as u64;
    Ok(checks)
}

#[derive(Default)]
struct Seen {
    reports: Vec<CheckReport>,
    to_keep: Vec<(Key, kept::Kept)>,
}

struct Validation<'a, 'b, 'c> {
    subject: Subject<'a>,
    trees: &'a Trees,
    told: &'b mut Told<'c>,
    rooms: Rooms,
    environment: String,
    may_keep: bool,
    limits: Limits,
    seen: Seen,
}

impl Validation<'_, '_, '_> {
    /// Each check on each tree. What must be done again is known only afterwards.
    fn all(&mut self) -> Result<(), Error> {
        let commands: Vec<String> = {
            let lines = self.subject.review().checks.iter();
            lines.map(|line| line.text.clone()).collect()
        };
        let trees: &[Tree] = match self.trees.examined {
            Examined::AsPatched => &[Tree::Base, Tree::Patched],
            Examined::BothWays => &[Tree::Base, Tree::Patched, Tree::Exam],
        };
        let mut jobs = VecDeque::new();
        let mut found: Vec<Vec<Execution>> = vec![Vec::new(); commands.len()];
        for (check, command) in commands.iter().enumerate() {
            for tree in trees {
                match self.known(check, command, *tree)? {
                    Some(ran) => found[check].push(Execution { tree: *tree, ran }),
                    // The same files as the base are looked at once.
                    None if *tree != Tree::Base && self.trees.is_base(*tree) => {}
                    None => jobs.push_back(Job { check, tree: *tree }),
                }
            }
        }
        let mut cancelled = false;
        while let Some(job) = self.rooms.next(&mut jobs) {
            let (before, ran) = self.execute(job, &commands[job.check])?;
            cancelled = ran.outcome == Outcome::Cancelled;
            let tree = job.tree;
            let executions = before.into_iter().chain([ran]);
            found[job.check].extend(executions.map(|ran| Execution { tree, ran }));
            if cancelled {
                break;
            }
            let done = |own: &VecDeque<Job>| own.iter().all(|other| other.check != job.check);
            if done(&jobs) && !self.rooms.has(job.check) {
                let again = again::wanted(&found[job.check], self.trees.examined);
                jobs.extend(again.into_iter().map(|tree| Job { tree, ..job }));
            }
        }
        self.rooms.close();
        for (check, (command, mut executions)) in commands.iter().zip(found).enumerate() {
            for tree in [Tree::Patched, Tree::Exam] {
                if self.trees.is_base(tree) && trees.contains(&tree) {
                    let same = |own: &&Execution| own.tree == Tree::Base;
                    let ran = executions.iter().find(same).map(|own| own.ran.clone());
                    if let Some(ran) = ran {
                        let ran = Ran {
                            cached: true,
                            ..ran
                        };
                        self.told.event(ended(check, tree, &ran))?;
                        executions.push(Execution { tree, ran });
                    }
                }
            }
            let mut report = CheckReport::judge(command, executions, self.trees.examined);
            report.notes.extend(again::notes(&report, cancelled));
            if report.verdict == CheckVerdict::Flaky || report.exam == Some(CheckVerdict::Flaky) {
                // What is by chance is not what the next one should be told.
                self.seen.to_keep.retain(|(key, _)| key.command != *command);
            }
            self.seen.reports.push(report);
        }
        Ok(())
    }

    fn key(&self, command: &str, tree: Tree) -> Option<Key> {
        Some(Key {
            tree: self.trees.key(tree).filter(|_| self.may_keep)?,
            command: command.to_owned(),
            environment: self.environment.clone(),
            limits: self.limits.clone(),
        })
    }

    /// What an earlier execution gave on the same files.
    fn known(&mut self, check: usize, command: &str, tree: Tree) -> Result<Option<Ran>, Error> {
        let key = self.key(command, tree);
        let Some(key) = key.filter(|_| self.subject.fresh == Fresh::Kept) else {
            return Ok(None);
        };
        let known = kept::find(self.subject.home, &key);
        if let Some(ran) = &known {
            trace(command, tree, ran);
            self.told.event(ended(check, tree, ran))?;
            self.told.console.check(command, tree, Some(ran));
        }
        Ok(known)
    }

    /// Runs it. With it goes an earlier result on the same files that differs.
    fn execute(&mut self, job: Job, command: &str) -> Result<(Option<Ran>, Ran), Error> {
        self.told.console.check(command, job.tree, None);
        self.told.event(Event::CheckBegan {
            check: job.check as u64,
            tree: job.tree,
            command: command.to_owned(),
        })?;
        let mut room = self.rooms.take()?;
        let inputs = Inputs {
            stdin: None,
            signals: self.told.signals,
        };
        let mut witness = OfCheck {
            job,
            journal: self.told.journal.as_deref_mut(),
        };
        let kept = room.run(&self.subject, command, &self.limits, &inputs, &mut witness)?;
        self.rooms.give_back(room);
        let ran = kept.ran.clone();
        trace(command, job.tree, &ran);
        self.told.event(ended(job.check, job.tree, &ran))?;
        self.told.console.check(command, job.tree, Some(&ran));
        let whole = !matches!(ran.outcome, Outcome::Cancelled | Outcome::RuntimeLost);
        if let Some(key) = self.key(command, job.tree).filter(|_| whole) {
            let known = kept::find(self.subject.home, &key);
            if let Some(known) = known.filter(|known| known.passed() != ran.passed()) {
                // Neither is what the next one should be told.
                kept::forget(self.subject.home, &key);
                let told = self.subject.fresh == Fresh::Again;
                return Ok((told.then_some(known), ran));
            }
            self.seen.to_keep.push((key, kept));
        }
        Ok((None, ran))
    }
}

fn trace(command: &str, tree: Tree, ran: &Ran) {
    tracing::info!(
        ?command,
        tree = tree.as_str(),
        outcome = ?ran.outcome,
        code = ran.exit_code,
        cached = ran.cached,
        ms = ran.duration_ms,
        "check done"
    );
}

/// What the journal says of an execution.
pub(crate) fn ended(check: usize, tree: Tree, ran: &Ran) -> Event {
    Event::CheckEnded {
        check: check as u64,
        tree,
        outcome: ran.outcome,
        code: ran.exit_code,
        signal: ran.signal,
        duration_ms: ran.duration_ms,
        log_sha256: ran.log_sha256.clone(),
        cached: ran.cached,
    }
}

/// What a check of a run printed when it last ran on a tree: by the run's own log, else by that of
/// the execution whose result was taken.
pub fn log(
    home: &Home,
    run: RunId,
    number: usize,
    tree: Tree,
    stream: Stream,
) -> Result<Option<fs::File>, Error> {
    let directory = home.log(run).join(LOGS);
    if let Some(log) = own_log(&directory, number, tree, stream)? {
        return Ok(Some(log));
    }
    let checks = crate::archive::result(home, run)?.map(|result| result.checks);
    let report = checks
        .as_ref()
        .and_then(|checks| checks.reports.get(number.checked_sub(1)?));
    let ran = report.and_then(|report| report.last(tree));
    Ok(ran.and_then(|ran| kept::log(home, &ran.log_sha256, name_of(stream))))
}

/// The same of an execution whose result is at hand, and whose logs are in this directory, if anywhere.
pub(crate) fn log_in(
    home: &Home,
    directory: &Path,
    number: usize,
    tree: Tree,
    stream: Stream,
    ran: &Ran,
) -> Option<fs::File> {
    let own = own_log(directory, number, tree, stream).ok().flatten();
    own.or_else(|| kept::log(home, &ran.log_sha256, name_of(stream)))
}

fn name_of(stream: Stream) -> &'static str {
    match stream {
        Stream::Stdout => "stdout",
        Stream::Stderr => "stderr",
    }
}

/// What a check printed last on a tree, in a directory of logs.
fn own_log(
    directory: &Path,
    number: usize,
    tree: Tree,
    stream: Stream,
) -> Result<Option<fs::File>, Error> {
    let begins = format!("{number}-{}-", tree.as_str());
    let mut last: Option<(usize, PathBuf)> = None;
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let file = entry.file_name();
        let file = file.to_string_lossy();
        let middle = file.strip_prefix(&begins);
        let middle = middle.and_then(|rest| rest.strip_suffix(name_of(stream))?.strip_suffix('.'));
        if let Some(count) = middle.and_then(|count| count.parse().ok())
            && last.as_ref().is_none_or(|(most, _)| count > *most)
        {
            last = Some((count, entry.path()));
        }
    }
    let open = |path: PathBuf| {
        let opened = fs::File::open(&path);
        opened.map_err(|source| Error::ReadFile { path, source })
    };
    last.map(|(_, path)| open(path)).transpose()
}

/// The bounds of a check: those of the run, and never more output than a log should have.
fn limits(of_run: &Limits) -> Limits {
    /// BOUND: what a person or a parser can make sense of; a test suite prints a hundredth of it.
    const OUTPUT: u64 = 64 << 20;
    Limits {
        output_bytes: Some(of_run.output_bytes.unwrap_or(OUTPUT).min(OUTPUT)),
        ..of_run.clone()
    }
}

fn unrun(command: &str) -> CheckReport {
    CheckReport::judge(command, Vec::new(), Examined::AsPatched)
}

/// The causes of an error in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
