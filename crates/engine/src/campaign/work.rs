//! One run of a task: made ready, made, and judged. And which of several attempts counts.

use std::path::Path;

use ringfence_jail::signals::Signals;
use ringfence_model::campaign::{Spent, TaskState};
use ringfence_model::check::{Ran, Tree};

use super::begin::{open_root, seen};
use super::judge::{Judged, judge, refused, told};
use super::queue::{Came, Entry};
use super::strayed::Owners;
use super::told::{Told, Watcher};
use super::{CampaignError, Typed, request};
use crate::attend::{Console, Inputs};
use crate::client::Stream;
use crate::compare::{compare, keep};
use crate::error::Error;
use crate::home::Home;
use crate::run::{Attempt, OfCampaign, run};
use crate::store::{CampaignRecord, Store, TaskRecord};

/// What all runs of a campaign share.
pub(super) struct Shop<'a> {
    pub home: &'a Home,
    pub campaign: &'a CampaignRecord,
    pub typed: &'a Typed,
    pub watcher: &'a dyn Watcher,
    pub owners: &'a Owners,
}

/// Which run of which task.
pub(super) struct Piece {
    pub record: TaskRecord,
    /// Absent: it is the only one.
    pub attempt: Option<Attempt>,
}

impl Shop<'_> {
    /// Makes a run, whatever comes of it. `started` is called when the agent is about to be.
    pub fn make(
        &self,
        store: &Store,
        piece: &Piece,
        signals: &Signals,
        started: &dyn Fn(),
    ) -> Came {
        match self.run(store, piece, signals, started) {
            Ok(came) => came,
            Err(error) => match refused(&error) {
                Some(state) => Came::Refused(state, told(&error), Spent::default()),
                None => Came::Fault(told(&error), Spent::default()),
            },
        }
    }

    fn run(
        &self,
        store: &Store,
        piece: &Piece,
        signals: &Signals,
        started: &dyn Fn(),
    ) -> Result<Came, Error> {
        let record = &piece.record;
        let task = store.task_document(self.campaign, &record.task)?;
        let root = open_root(&self.campaign.folder)?;
        if seen(&root, &task.files) != record.seen {
            return Err(CampaignError::FilesMoved {
                task: record.task.clone(),
            }
            .into());
        }
        drop(root);
        let name = format!("task {} of {}", record.number, self.campaign.name);
        let mut request = request(self.home, &task, Path::new(&name), self.typed)?;
        request.attempt = piece.attempt.clone();
        request.campaign = Some(OfCampaign {
            id: self.campaign.id,
            name: self.campaign.name.clone(),
            task: record.task.clone(),
            number: record.number,
            turn: record.turn,
        });
        let inputs = Inputs {
            stdin: None,
            signals: Some(signals),
        };
        let mut console = Steps {
            watcher: self.watcher,
            piece,
            started,
        };
        let result = run(self.home, store, &request, &inputs, &mut console)?;
        let judged = judge(&result);
        let spent = judged.figures.spent;
        Ok(match judged.state {
            TaskState::Infrastructure => Came::Fault(judged.why.unwrap_or_default(), spent),
            TaskState::Cancelled => {
                Came::Refused(TaskState::Cancelled, judged.why.unwrap_or_default(), spent)
            }
            _ => Came::Result(result.run, judged),
        })
    }

    /// What a task comes to whose runs are all over.
    pub fn decide(&self, store: &Store, entry: &Entry) -> TaskRecord {
        let mut record = entry.record.clone();
        let cut = entry.fault.as_ref().filter(|_| {
            let all = entry.done.len() as u32 == entry.attempts;
            !all && entry.fault_is(TaskState::Cancelled) || entry.done.is_empty()
        });
        if let Some((state, why)) = cut {
            record.state = *state;
            record.why = Some(why.clone());
            // Attempts with a result are found again by whoever goes on.
            record.figures.spent = entry.before;
            return record;
        }
        let (run, judged, note) = match self.best(store, entry) {
            Ok(best) => best,
            Err(error) => {
                record.state = TaskState::Infrastructure;
                record.why = Some(told(&error));
                return record;
            }
        };
        let spent = entry.spent();
        record.state = judged.state;
        record.why = judged.why.or(note);
        record.run = Some(run);
        let strayed = self.owners.strayed(record.number, &judged.changed);
        record.figures = judged.figures;
        record.figures.of_others = strayed.of_others;
        record.figures.of_no_task = strayed.of_no_task;
        if entry.attempts > 1 {
            record.figures.best_of = entry.done.len() as u64;
        }
        record.figures.spent = spent;
        record
    }

    fn best(
        &self,
        store: &Store,
        entry: &Entry,
    ) -> Result<(crate::ids::RunId, Judged, Option<String>), Error> {
        let mut done = entry.done.values();
        if let (Some((run, judged)), None) = (done.next(), done.next()) {
            return Ok((*run, judged.clone(), None));
        }
        let runs = entry.done.values().map(|(run, _)| store.run(*run));
        let runs = runs.collect::<Result<Vec<_>, _>>()?;
        let compared = compare(self.home, &runs)?;
        // Where none can be kept without a doubt, all stay to be looked at.
        let _ = keep(store, &compared);
        let best = compared.attempts[0].run;
        let found = entry.done.values().find(|(run, _)| *run == best);
        let (run, judged) = found.expect("only these were compared");
        let note = format!("the best of {} attempts: {}", runs.len(), compared.why);
        Ok((*run, judged.clone(), Some(note)))
    }
}

impl Entry {
    fn fault_is(&self, state: TaskState) -> bool {
        self.fault.as_ref().is_some_and(|(own, _)| *own == state)
    }
}

/// Steps, and nothing that the agent prints: its log has it.
struct Steps<'a> {
    watcher: &'a dyn Watcher,
    piece: &'a Piece,
    /// Called when the agent is.
    started: &'a dyn Fn(),
}

impl Steps<'_> {
    fn tell(&self, step: &str) {
        self.watcher.told(&Told::Step {
            task: &self.piece.record.task,
            number: self.piece.record.number,
            attempt: self.piece.attempt.as_ref().map_or(1, |own| own.number),
            step,
        });
    }
}

impl Console for Steps<'_> {
    fn output(&mut self, _: Stream, _: &[u8]) {}

    fn step(&mut self, step: &str) {
        if step == "agent" {
            (self.started)();
        }
        self.tell(step);
    }

    fn iteration(&mut self, number: u32, of: u32) {
        if of > 1 {
            self.tell(&format!("agent, iteration {number} of {of}"));
        }
    }

    fn check(&mut self, command: &str, tree: Tree, ran: Option<&Ran>) {
        if ran.is_none() {
            self.tell(&format!("check {}: {command}", tree.as_str()));
        }
    }
}
