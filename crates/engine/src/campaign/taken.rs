//! What an earlier driver of a campaign left: runs that died with it, and results of tasks that it did not
//! decide on.

use std::collections::BTreeMap;

use ringfence_model::campaign::TaskState;
use ringfence_model::outcome::{Outcome, RunStatus};

use super::drive::{Again, Driving};
use super::judge::judge;
use super::queue::Entry;
use crate::archive;
use crate::error::Error;
use crate::home::Home;
use crate::ids::RunId;
use crate::run::{Attempt, OfCampaign};
use crate::sandbox::sweep;
use crate::store::{ATTEMPT, CampaignRecord, RunRecord, Store, recover};

/// Calls runs lost whose driver died, and removes what they held.
pub(super) fn settle(home: &Home, store: &Store) -> Result<(), Error> {
    for run in recover(store, home)?.lost {
        sweep(home, run.as_str());
    }
    Ok(())
}

/// The tasks as they are, with what was under way when an earlier driver ended.
pub(super) fn take_up(
    driving: &Driving<'_>,
    campaign: &CampaignRecord,
) -> Result<Vec<Entry>, Error> {
    let (home, store) = (driving.home, driving.store);
    let mut runs: BTreeMap<String, Vec<(OfCampaign, RunRecord)>> = BTreeMap::new();
    for run in store.campaign_runs(campaign.id)? {
        if let Some(of) = run.campaign() {
            runs.entry(of.task.clone()).or_default().push((of, run));
        }
    }
    let mut entries = Vec::new();
    for mut record in store.campaign_tasks(campaign.id)? {
        let attempts = store.task_document(campaign, &record.task)?.rounds.attempts;
        let before = record.clone();
        match record.state {
            // Its result may be there all the same.
            TaskState::Running | TaskState::Cancelled | TaskState::Waiting => {}
            TaskState::Infrastructure | TaskState::BaseMoved | TaskState::Skipped => {
                record.turn += u32::from(record.state != TaskState::Skipped);
            }
            TaskState::Failed | TaskState::Exhausted | TaskState::NoChange
                if driving.again == Again::Unsuccessful =>
            {
                record.turn += 1;
            }
            _ => {
                let group = RunId::random()?;
                entries.push(Entry::new(record, attempts, group, BTreeMap::new()));
                continue;
            }
        }
        record.state = TaskState::Waiting;
        record.tries = 0;
        record.run = None;
        record.why = None;
        let mut group = RunId::random()?;
        let mut done = BTreeMap::new();
        for (of, run) in runs.get(&record.task).into_iter().flatten() {
            let has_result = run.bundle.is_some()
                && !matches!(run.status, RunStatus::Running | RunStatus::Lost)
                && !matches!(run.outcome, Some(Outcome::Cancelled | Outcome::RuntimeLost));
            if of.turn != record.turn || !has_result {
                continue;
            }
            let attempt: Option<Attempt> = run
                .detail
                .get(ATTEMPT)
                .and_then(|own| serde_json::from_value(own.clone()).ok());
            if let Some(result) = archive::result(home, run.id)? {
                let judged = judge(&result);
                // Its checks were stopped: it has no verdict, and is done again.
                if judged.state == TaskState::Cancelled {
                    continue;
                }
                if let Some(attempt) = &attempt {
                    group = attempt.group;
                }
                let number = attempt.map_or(1, |own| own.number);
                done.insert(number, (run.id, judged));
            }
        }
        if !done.is_empty() {
            record.state = TaskState::Running;
        }
        if record != before {
            store.end_task(campaign.id, &record)?;
        }
        entries.push(Entry::new(record, attempts, group, done));
    }
    Ok(entries)
}
