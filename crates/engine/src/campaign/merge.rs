//! The work of a campaign on one branch: bundles in the order of their tasks, each looked at again
//! on top of those before it.
//!
//! ```text
//! bundle ─ verdict? ─ fits the tip? ─ checks hold there? ─▶ taken, and is the tip
//!            │ no         │ no              │ no
//!            └────────────┴─────────────────┴─▶ left out, with why; the next one goes on
//! tip ─ checks of all, on all of it ─▶ objects, then one ref, or one for each task
//! ```
//!
//! INVARIANT: nothing of the working tree or the index changes, and no ref is made before everything
//! was looked at. Who dies before leaves no branch.

mod ground;
mod rebase;
mod result;

use std::collections::BTreeSet;
use std::path::PathBuf;

use ringfence_model::bundle::PATCH;
use ringfence_model::check::{CheckReport, CheckVerdict, Checks};
use ringfence_model::policy::Line;
use ringfence_model::policy::network::Origin;
use ringfence_model::verdict::{Decision, Hold, HoldKind};

use super::CampaignError;
use crate::apply::{
    self, ApplyError, Bundle, Extent, Fit, Gate, OuterLinks, Person, Placed, Stack, Step, Wording,
};
use crate::attend::{Console, Inputs};
use crate::checks::{self, About, Fresh, Site, Stacked};
use crate::error::Error;
use crate::home::Home;
use crate::run::RunRequest;
use crate::store::{RunRecord, Store};
use crate::verdicts::{self, Anyway, Deciding};

use ground::Standing;
pub use rebase::{Onto, rebased};
pub use result::{LeftTask, Merged, Reason, TakenTask, short};

/// A task with the run that was chosen for it.
#[derive(Clone, Debug)]
pub struct Piece {
    pub number: u32,
    pub task: String,
    pub run: RunRecord,
}

/// One branch, or one for each task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shape {
    #[default]
    One,
    Stacked,
}

/// What becomes of bundles that nobody has decided about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Undecided {
    #[default]
    Left,
    /// They are approved by the caller, where they are on the branch. What must be looked at by
    /// itself is left out, unless `anyway`.
    Approved { why: Option<String>, anyway: bool },
}

/// How it is done.
#[derive(Clone, Debug)]
pub struct Merging {
    /// What is said of it in commits.
    pub campaign: String,
    pub branch: String,
    pub shape: Shape,
    /// A commit's id, a branch, or `HEAD`; what the first run began from if not said.
    pub base: Option<String>,
    /// Another folder of the repository.
    pub into: Option<PathBuf>,
    pub links: OuterLinks,
    pub author: Option<Person>,
    pub undecided: Undecided,
    /// Checks at the end, beside those of the runs.
    pub last: Vec<String>,
    pub fresh: Fresh,
    pub extent: Extent,
    /// The branch is made also where the checks at the end do not hold.
    pub despite: bool,
    /// Variables and the program; all else is as each run had it.
    pub request: RunRequest,
}

/// Puts the work of a campaign on a branch.
pub fn merge(
    home: &Home,
    store: &Store,
    pieces: &[Piece],
    merging: &Merging,
    inputs: &Inputs<'_>,
    console: &mut dyn Console,
) -> Result<Merged, Error> {
    let once: BTreeSet<_> = pieces.iter().map(|piece| piece.run.id).collect();
    if once.len() != pieces.len() {
        return Err(CampaignError::RunTwice.into());
    }
    let mut merge = Merge {
        home,
        store,
        merging,
        inputs,
        console,
        stack: None,
        standing: None,
        taken: Vec::new(),
        left: Vec::new(),
        notes: Vec::new(),
    };
    for piece in pieces {
        merge.piece(piece)?;
    }
    merge.end()
}

/// A piece that is part of the branch.
struct Taken<'a> {
    piece: &'a Piece,
    bundle: Bundle,
    tree: String,
    pairs: Vec<(Vec<u8>, Vec<u8>)>,
    told: TakenTask,
}

struct Merge<'a, 'b> {
    home: &'a Home,
    store: &'a Store,
    merging: &'a Merging,
    inputs: &'a Inputs<'b>,
    console: &'a mut dyn Console,
    stack: Option<Stack>,
    standing: Option<Standing>,
    taken: Vec<Taken<'a>>,
    left: Vec<LeftTask>,
    notes: Vec<String>,
}

impl<'a> Merge<'a, '_> {
    fn leave(&mut self, piece: &Piece, reason: Reason, why: String) -> &mut LeftTask {
        self.left.push(LeftTask {
            number: piece.number,
            task: piece.task.clone(),
            run: piece.run.id,
            reason,
            why,
            clashes: Vec::new(),
            checks: Checks::default(),
        });
        self.left.last_mut().expect("it was just put there")
    }

    /// One task: it is taken, or left out for a reason.
    fn piece(&mut self, piece: &'a Piece) -> Result<(), Error> {
        self.console.step(&format!("task {}", piece.number));
        let bundle = match Bundle::open(self.home, piece.run.id) {
            Ok(bundle) => bundle,
            Err(error @ (Error::NotKept { .. } | Error::Apply(_))) => {
                self.leave(piece, Reason::NoBundle, error.to_string());
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        // First: of nothing there is nothing to decide on.
        if bundle.result.changes.is_empty() {
            self.leave(piece, Reason::NoChange, "it changes nothing".to_owned());
            return Ok(());
        }
        if !self.passes(piece, &bundle)? {
            return Ok(());
        }
        if self.stack.is_none() {
            self.begin(&bundle)?;
        }
        let stack = self.stack.as_mut().expect("begun above");
        let step = match stack.fit(piece.number, &bundle) {
            Ok(Fit::Step(step)) => step,
            Ok(Fit::Clashes(clashes)) => {
                let why = result::clashes_in_words(&clashes);
                self.leave(piece, Reason::Clash, why).clashes = clashes;
                return Ok(());
            }
            Err(error @ (ApplyError::Patch(_) | ApplyError::Lookup(_))) => {
                let why = checks::chain(&error);
                self.leave(piece, Reason::Refused, why);
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        if step.is_nothing() {
            let why = "the tasks before it made all of its changes".to_owned();
            self.leave(piece, Reason::NoChange, why);
            return Ok(());
        }
        let checks = self.check(piece, &bundle, &step)?;
        let before = checks::standing(self.home, piece.run.id)?.unwrap_or_default();
        let failed: Vec<&CheckReport> = checks
            .reports
            .iter()
            .filter(|report| is_worse(report, &before))
            .collect();
        if !failed.is_empty() {
            let why = result::checks_in_words(&failed);
            self.leave(piece, Reason::Checks, why).checks = checks;
            return Ok(());
        }
        let told = TakenTask {
            number: piece.number,
            task: piece.task.clone(),
            run: piece.run.id,
            placed: Placed {
                tree: step.tree.clone(),
                commit: None,
                branch: None,
            },
            merged: step.merged.clone(),
            checks,
        };
        self.taken.push(Taken {
            piece,
            bundle,
            tree: step.tree.clone(),
            pairs: step.pairs.clone(),
            told,
        });
        let stack = self.stack.as_mut().expect("begun above");
        stack.take(step)?;
        Ok(())
    }

    /// Whether there is a verdict that lets it pass; else it is left out.
    fn passes(&mut self, piece: &Piece, bundle: &Bundle) -> Result<bool, Error> {
        let gate = Gate::of(self.home, self.store, &piece.run, bundle)?;
        let (reason, why) = match (&gate, &self.merging.undecided) {
            (Gate::Open(_), _) => return Ok(true),
            (Gate::Rejected(verdict), _) => {
                let why = verdict.why.clone().unwrap_or_default();
                (Reason::Rejected, format!("by {}: {why}", verdict.by))
            }
            (Gate::Changed(_), _) => {
                let why = "its bundle is not the one that was approved";
                (Reason::Changed, why.to_owned())
            }
            // It is approved when all was looked at, and only what is on the branch.
            (Gate::Undecided(_), Undecided::Approved { anyway: true, .. }) => return Ok(true),
            (Gate::Undecided(holds), Undecided::Approved { .. }) => {
                let why = self.own_decision(piece, holds)?;
                let Some(why) = why else {
                    return Ok(true);
                };
                (Reason::Held, why)
            }
            (Gate::Undecided(holds), Undecided::Left) => {
                let why: Vec<String> = holds.iter().map(Hold::to_string).collect();
                (Reason::Held, why.join("; "))
            }
        };
        self.leave(piece, reason, why);
        Ok(false)
    }

    /// Why an approval of many at once does not cover a run: what somebody must have looked at.
    fn own_decision(&self, piece: &Piece, holds: &[Hold]) -> Result<Option<String>, Error> {
        let grave = |hold: &&Hold| {
            hold.kind.needs_anyway() || matches!(hold.kind, HoldKind::Risky | HoldKind::Checks)
        };
        let mut why: Vec<String> = holds.iter().filter(grave).map(Hold::to_string).collect();
        // Somebody may have checked it again since it ended.
        let checks = checks::standing(self.home, piece.run.id)?.unwrap_or_default();
        if !checks.hold() && !holds.iter().any(|hold| hold.kind == HoldKind::Checks) {
            why.push("its checks do not hold".to_owned());
        }
        if why.is_empty() {
            return Ok(None);
        }
        let run = piece.run.id;
        why.push(format!(
            "it needs a decision of its own: `ringfence review {run}`"
        ));
        Ok(Some(why.join("; ")))
    }

    /// Records the approval of what is about to be on the branch.
    fn approve(&self) -> Result<(), Error> {
        let Undecided::Approved { why, anyway } = &self.merging.undecided else {
            return Ok(());
        };
        for taken in &self.taken {
            let run = &taken.piece.run;
            let gate = Gate::of(self.home, self.store, run, &taken.bundle)?;
            // Who rejected it meanwhile is not overruled.
            if !matches!(gate, Gate::Undecided(_)) {
                continue;
            }
            let deciding = Deciding {
                decision: Decision::Approved,
                by: verdicts::person(None),
                why: why.clone(),
                seen_sha256: Some(taken.bundle.sha256()),
                shown: None,
                anyway: match anyway {
                    true => Anyway::Yes,
                    false => Anyway::No,
                },
            };
            verdicts::record(self.home, self.store, run, deciding)?;
        }
        Ok(())
    }

    fn begin(&mut self, first: &Bundle) -> Result<(), Error> {
        let merging = self.merging;
        let into = merging.into.as_deref();
        let stack = Stack::begin(first, into, merging.base.as_deref(), merging.links)?;
        // Before anything is checked for an hour.
        stack.author(merging.author.as_ref())?;
        if merging.shape == Shape::One {
            stack.free(std::slice::from_ref(&merging.branch))?;
        } else {
            stack.free(&[format!("{}/0000-0", merging.branch)])?;
        }
        self.stack = Some(stack);
        Ok(())
    }

    /// What its checks say on top of what was taken.
    fn check(&mut self, piece: &Piece, bundle: &Bundle, step: &Step) -> Result<Checks, Error> {
        let request = ground::request(&self.merging.request, bundle);
        if request.policy.review.checks.is_empty() {
            return Ok(Checks::default());
        }
        let stack = self.stack.as_mut().expect("begun with the first");
        let stacked = Stacked {
            below: stack.laid(None)?,
            with: stack.laid(Some(step))?,
            pairs: step.pairs.clone(),
        };
        self.check_stacked(&piece.run, bundle, request, &stacked)
    }

    fn check_stacked(
        &mut self,
        run: &RunRecord,
        bundle: &Bundle,
        mut request: RunRequest,
        stacked: &Stacked,
    ) -> Result<Checks, Error> {
        if self.standing.is_none() {
            let stack = self.stack.as_ref().expect("begun with the first");
            let into = self.merging.into.as_deref();
            let standing = Standing::find((self.home, self.store), bundle, into, stack)?;
            self.notes.extend(standing.note.clone());
            self.standing = Some(standing);
        }
        let standing = self.standing.as_ref().expect("found above");
        request.folder = standing.folder.clone();
        let site = Site::make(
            self.home,
            self.store,
            standing.ground(),
            &request,
            self.inputs,
            self.console,
        )?;
        let name = format!("checks-{}", crate::ids::RunId::random()?);
        let logs = self.home.log(run.id).join(name);
        let about = About {
            patch: &self.home.bundle(run.id).join(PATCH),
            changes: &bundle.result.changes,
            logs: &logs,
            fresh: self.merging.fresh,
        };
        site.check(about, stacked, self.inputs, self.console)
    }

    /// The checks of all on all of it, against the commit below.
    fn check_all(&mut self) -> Result<Checks, Error> {
        let (Some(last), Some(stack)) = (self.taken.last(), self.stack.as_mut()) else {
            return Ok(Checks::default());
        };
        let mut request = ground::request(&self.merging.request, &last.bundle);
        for taken in &self.taken {
            let own = ground::request(&self.merging.request, &taken.bundle);
            for line in own.policy.review.checks {
                request.policy.review.add(line);
            }
        }
        for text in &self.merging.last {
            let from = Origin {
                file: "campaign".to_owned(),
                line: 0,
            };
            let text = text.clone();
            request.policy.review.add(Line { text, from });
        }
        if request.policy.review.checks.is_empty() {
            let note = "nothing was checked: no run has a check, and none was given";
            self.notes.push(note.to_owned());
            return Ok(Checks::default());
        }
        self.console.step("all of it");
        let pairs = self.taken.iter().flat_map(|taken| taken.pairs.clone());
        let stacked = Stacked {
            below: crate::patch::Laid::default(),
            with: stack.laid(None)?,
            pairs: pairs.collect(),
        };
        let taken = self.taken.pop().expect("there is a last one");
        let checks = self.check_stacked(&taken.piece.run, &taken.bundle, request, &stacked);
        self.taken.push(taken);
        checks
    }

    /// All of it is looked at once more; then commits and refs.
    fn end(mut self) -> Result<Merged, Error> {
        let last = self.check_all()?;
        let merging = self.merging;
        let mut merged = Merged {
            repository: None,
            base: None,
            branch: None,
            commit: None,
            tree: None,
            made: false,
            taken: Vec::new(),
            left_out: std::mem::take(&mut self.left),
            last,
            notes: std::mem::take(&mut self.notes),
        };
        let Some(stack) = &self.stack else {
            return Ok(merged);
        };
        merged.repository = Some(stack.repository());
        merged.base = Some(stack.commit.clone());
        merged.tree = self.taken.last().map(|taken| taken.tree.clone());
        if !merged.last.hold() {
            merged.notes.extend(
                self.taken
                    .iter()
                    .filter_map(|taken| result::exam_in_words(&taken.told)),
            );
        }
        let holds = merged.last.hold() || merging.despite;
        if merging.extent == Extent::Apply && holds && !self.taken.is_empty() {
            let author = stack.author(merging.author.as_ref())?;
            let commits = self.commits(stack)?;
            let placed = stack.write(&commits, &author, &|| self.allowed())?;
            for (taken, placed) in self.taken.iter_mut().zip(placed) {
                taken.told.placed = placed;
            }
            let tip = self.taken.last().map(|taken| taken.told.placed.clone());
            merged.branch = tip.as_ref().and_then(|tip| tip.branch.clone());
            merged.commit = tip.and_then(|tip| tip.commit);
            merged.made = true;
        }
        merged.taken = self.taken.into_iter().map(|taken| taken.told).collect();
        Ok(merged)
    }

    /// What each commit is to be, and which branch is at it.
    fn commits(&self, stack: &Stack) -> Result<Vec<Wording>, Error> {
        let merging = self.merging;
        let names: Vec<String> = match merging.shape {
            Shape::One => vec![merging.branch.clone()],
            Shape::Stacked => {
                let name = |taken: &Taken<'_>| {
                    format!(
                        "{}/{:04}-{}",
                        merging.branch, taken.piece.number, taken.piece.task
                    )
                };
                self.taken.iter().map(name).collect()
            }
        };
        // All of them are looked at before the first is made.
        let full = stack.free(&names)?;
        let branch = |at: usize| match merging.shape {
            Shape::Stacked => full.get(at).cloned(),
            Shape::One => full.first().filter(|_| at + 1 == self.taken.len()).cloned(),
        };
        let mut commits = Vec::new();
        for (at, taken) in self.taken.iter().enumerate() {
            let files = match taken.pairs.len() {
                1 => "1 file".to_owned(),
                count => format!("{count} files"),
            };
            let subject = format!(
                "{}: task {} ({}), {files}",
                merging.campaign, taken.piece.number, taken.piece.task
            );
            commits.push(Wording {
                tree: taken.tree.clone(),
                message: apply::message(&taken.bundle, Some(&subject), &[])?,
                branch: branch(at),
            });
        }
        Ok(commits)
    }

    /// Whether all verdicts still hold. All was looked at, and the next thing is a ref: what the caller
    /// approves is approved here.
    fn allowed(&self) -> Result<(), ApplyError> {
        let approved = self.approve();
        approved.map_err(|error| ApplyError::Verdict(Box::new(error)))?;
        for taken in &self.taken {
            let gate = Gate::of(self.home, self.store, &taken.piece.run, &taken.bundle);
            let gate = gate.map_err(|error| ApplyError::Verdict(Box::new(error)))?;
            gate.pass(&taken.bundle)?;
        }
        Ok(())
    }
}

/// Whether a check says no that said yes of the run by itself. What a person took although it failed
/// may still fail, and may break nothing.
fn is_worse(report: &CheckReport, before: &Checks) -> bool {
    let of_run = before
        .reports
        .iter()
        .find(|own| own.command == report.command);
    let held = of_run.is_none_or(CheckReport::holds);
    !report.holds()
        && (held || matches!(report.verdict, CheckVerdict::Broke | CheckVerdict::NotRun))
}
