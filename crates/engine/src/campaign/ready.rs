//! Whether the agent of a campaign can be started here: asked before anything is recorded, so that a
//! name that was mistyped or a key that is not set uses up no name and fails no task.

use std::path::Path;

use ringfence_model::campaign::TaskState;
use ringfence_model::task::Task;

use super::single::source_folder;
use super::{Again, Typed, request};
use crate::agents::{self, AgentError};
use crate::error::Error;
use crate::home::Home;
use crate::store::{CampaignRecord, Store};

/// Refuses where the agent of a task is not known, not installed, or has no key. Whatever else is wrong
/// with a task is told when it is its turn.
pub fn ready(home: &Home, typed: &Typed, task: &Task) -> Result<(), AgentError> {
    let name = typed.agent.as_ref().or(task.agent.preset.as_ref());
    let Some(name) = name else {
        return Ok(());
    };
    // A base that moved is in the way of a request, and not of this.
    if let Ok(folder) = source_folder(task) {
        agents::prepare(home, name, "", &[], &folder)?;
    }
    match request(home, task, Path::new("campaign"), typed) {
        Err(Error::Agent(error)) => Err(error),
        _ => Ok(()),
    }
}

/// The first task that another sitting would run.
pub fn next_task(
    store: &Store,
    campaign: &CampaignRecord,
    again: Again,
) -> Result<Option<Task>, Error> {
    let is_left = |state: TaskState| match state {
        TaskState::Passed | TaskState::Dropped => false,
        state => again == Again::Unsuccessful || !state.is_finished(),
    };
    let tasks = store.campaign_tasks(campaign.id)?;
    let task = tasks.iter().find(|task| is_left(task.state));
    let document = task.map(|task| store.task_document(campaign, &task.task));
    Ok(document.transpose()?)
}
