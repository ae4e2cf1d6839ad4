//! A plan becomes a campaign that the store knows, and a plan that was edited takes its place.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::path::Path;

use ringfence_model::ByteText;
use ringfence_model::campaign::TaskState;
use ringfence_model::hex;
use ringfence_model::plan::{SplitDiff, campaign_name, diff};
use ringfence_model::task::Task;
use rustix::fs::{Mode, OFlags};
use sha2::{Digest as _, Sha256};

use super::{CampaignError, Planned};
use crate::base::files::open_file;
use crate::clock::now_us;
use crate::error::Error;
use crate::home::Home;
use crate::ids::CampaignId;
use crate::lock::FileLock;
use crate::store::{
    CampaignRecord, Decided, NewTask, RunFilter, RunRecord, Settings, Store, StoreError, TaskRecord,
};

/// The campaign of a name, where there is one.
pub fn find(store: &Store, name: &str) -> Result<Option<CampaignRecord>, Error> {
    match store.campaign(name) {
        Ok(found) => Ok(Some(found)),
        Err(StoreError::NoCampaign { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Whether a living process drives it.
pub fn is_driven(home: &Home, campaign: &CampaignRecord) -> Result<bool, Error> {
    Ok(FileLock::is_held(&home.campaign_lock(campaign.id))?)
}

/// What the tasks of a campaign left and waits for a verdict, in their order.
pub fn held(store: &Store, campaign: &CampaignRecord) -> Result<Vec<RunRecord>, Error> {
    let filter = RunFilter {
        decided: Some(Decided::Held),
        campaign: Some(campaign.id),
        ..RunFilter::default()
    };
    let waiting = store.runs(filter, usize::MAX)?;
    let tasks = store.campaign_tasks(campaign.id)?;
    let of = |task: &TaskRecord| {
        let own = waiting.iter().find(|run| Some(run.id) == task.run);
        own.cloned()
    };
    // What the plan has no more cannot go on a branch with the others.
    let tasks = tasks.iter().filter(|task| task.state != TaskState::Dropped);
    Ok(tasks.filter_map(of).collect())
}

/// Forgets a campaign; false while somebody drives it. Its runs stay.
pub fn forget(home: &Home, store: &Store, campaign: &CampaignRecord) -> Result<bool, Error> {
    let path = home.campaign_lock(campaign.id);
    let Some(lock) = FileLock::take(&path)? else {
        return Ok(false);
    };
    store.remove_campaign(campaign.id)?;
    // What is left of it is an empty file.
    let _ = std::fs::remove_file(&path);
    drop(lock);
    Ok(true)
}

/// Records a campaign. Nothing runs yet.
pub fn begin(
    store: &Store,
    planned: &Planned,
    name: &str,
    settings: Settings,
) -> Result<CampaignRecord, Error> {
    campaign_name(name).map_err(CampaignError::Name)?;
    let record = CampaignRecord {
        id: CampaignId::random()?,
        name: name.to_owned(),
        folder: planned.folder.clone(),
        plan: planned.text.clone(),
        base: planned.base.clone(),
        brief: planned.brief.clone(),
        settings,
        created_us: now_us(),
        driven_ms: 0,
        stop_asked: false,
    };
    let tasks = new_tasks(planned, name, planned.documents.iter())?;
    store.insert_campaign(&record, &tasks)?;
    Ok(record)
}

/// What an edited plan would change of a campaign.
pub fn against(
    store: &Store,
    campaign: &CampaignRecord,
    planned: &Planned,
) -> Result<SplitDiff, Error> {
    let mut old = Vec::new();
    for task in store.campaign_tasks(campaign.id)? {
        if task.state != TaskState::Dropped {
            let document = store.task_document(campaign, &task.task)?;
            old.push((task.task, document.files));
        }
    }
    let tasks = planned.tasks.iter();
    let new: Vec<_> = tasks
        .map(|task| (task.id.clone(), task.files.clone()))
        .collect();
    Ok(diff(&old, &new))
}

/// Puts an edited plan in the place of the old one. What is finished and still in the plan stays
/// finished; what is not is planned anew, for the folder as it is now; what is gone is dropped.
pub fn replan(
    store: &Store,
    campaign: &CampaignRecord,
    planned: &Planned,
    settings: Settings,
) -> Result<CampaignRecord, Error> {
    if planned.folder != campaign.folder {
        return Err(CampaignError::OtherFolder {
            campaign: campaign.name.clone(),
            was: campaign.folder.clone(),
            is: planned.folder.clone(),
        }
        .into());
    }
    let known: BTreeMap<String, TaskState> = store
        .campaign_tasks(campaign.id)?
        .into_iter()
        .map(|task| (task.task, task.state))
        .collect();
    let wanted: BTreeSet<&str> = planned.tasks.iter().map(|task| &*task.id).collect();
    let gone = known
        .iter()
        .filter(|(task, state)| !wanted.contains(task.as_str()) && **state != TaskState::Dropped);
    let gone: Vec<String> = gone.map(|(task, _)| task.clone()).collect();
    let stays = |task: &&Task| known.get(&task.id).is_some_and(|state| state.is_finished());
    let fresh = planned.documents.iter().filter(|task| !stays(task));
    let tasks = new_tasks(planned, &campaign.name, fresh)?;
    let numbers = planned.documents.iter().filter(stays);
    let mut numbers: Vec<(String, u32)> =
        numbers.map(|task| (task.id.clone(), task.number)).collect();
    // Those that are gone stand behind all others.
    let last = planned.tasks.len() as u32;
    numbers.extend(gone.iter().cloned().zip(last + 1..));
    let record = CampaignRecord {
        plan: planned.text.clone(),
        base: planned.base.clone(),
        brief: planned.brief.clone(),
        settings,
        ..campaign.clone()
    };
    store.replan_campaign(&record, &tasks, &numbers, &gone)?;
    Ok(record)
}

fn new_tasks<'p>(
    planned: &Planned,
    name: &str,
    documents: impl Iterator<Item = &'p Task>,
) -> Result<Vec<NewTask>, Error> {
    let root = open_root(&planned.folder)?;
    let task = |task: &Task| NewTask {
        seen: seen(&root, &task.files),
        document: Task {
            campaign: name.to_owned(),
            ..task.clone()
        },
    };
    Ok(documents.map(task).collect())
}

pub(super) fn open_root(folder: &Path) -> Result<OwnedFd, Error> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(folder, flags, Mode::empty());
    root.map_err(|_| Error::NoFolder(folder.to_owned()))
}

/// A hash of what files hold: where it is another one, somebody has worked on them.
///
/// HOSTILE: no link is followed and nothing but a regular file is read. What cannot be read counts
/// as such.
pub(super) fn seen(root: &OwnedFd, files: &[ByteText]) -> String {
    let mut hasher = Sha256::new();
    for path in files {
        hasher.update((path.as_bytes().len() as u64).to_be_bytes());
        hasher.update(path.as_bytes());
        let Ok(mut file) = open_file(root, path.as_bytes()) else {
            hasher.update(b"-");
            continue;
        };
        let mut own = Sha256::new();
        let mut buffer = vec![0; 64 << 10];
        loop {
            match file.read(&mut buffer) {
                Ok(0) | Err(_) => break,
                Ok(count) => own.update(&buffer[..count]),
            }
        }
        hasher.update(own.finalize());
    }
    hex(&hasher.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edit_is_seen_and_a_touch_is_not() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("a");
        std::fs::write(&file, "one").unwrap();
        let root = open_root(place.path()).unwrap();
        let files = [ByteText::from("a"), ByteText::from("gone")];
        let before = seen(&root, &files);
        std::fs::write(&file, "one").unwrap();
        assert_eq!(seen(&root, &files), before);
        std::fs::write(&file, "two").unwrap();
        assert_ne!(seen(&root, &files), before);
        std::fs::remove_file(&file).unwrap();
        let absent = seen(&root, &files);
        assert_ne!(absent, before);
        // A link, whatever it leads to, is nothing that is read.
        std::os::unix::fs::symlink("/etc/hostname", &file).unwrap();
        assert_eq!(seen(&root, &files), absent);
    }
}
