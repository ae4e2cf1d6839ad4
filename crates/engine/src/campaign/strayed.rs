//! What a task changed that is not its own. Its checks decide what it comes to; a reviewer is told.

use std::collections::BTreeMap;

use ringfence_model::ByteText;
use ringfence_model::campaign::TaskState;
use serde::Serialize;

use crate::error::Error;
use crate::store::{CampaignRecord, Store, TaskRecord};

/// BOUND: files that are named; the counts have all.
const NAMED: usize = 100;

/// Whose each file is, by the number of the task.
#[derive(Debug, Default)]
pub(super) struct Owners(BTreeMap<ByteText, u32>);

/// Files that a task changed and that are not its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Strayed {
    pub of_others: u64,
    /// No task has them; new files are among them.
    pub of_no_task: u64,
    /// Those of others first.
    pub files: Vec<StrayedFile>,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StrayedFile {
    pub path: ByteText,
    /// Whose it is.
    pub task: Option<u32>,
}

impl Owners {
    pub fn of<'t>(
        store: &Store,
        campaign: &CampaignRecord,
        tasks: impl Iterator<Item = &'t TaskRecord>,
    ) -> Result<Self, Error> {
        let mut owners = BTreeMap::new();
        for task in tasks.filter(|task| task.state != TaskState::Dropped) {
            let files = store.task_document(campaign, &task.task)?.files;
            owners.extend(files.into_iter().map(|path| (path, task.number)));
        }
        Ok(Self(owners))
    }

    /// What of these changes is not the task's own.
    pub fn strayed(&self, number: u32, changed: &[ByteText]) -> Strayed {
        let mut files: Vec<StrayedFile> = changed
            .iter()
            .map(|path| StrayedFile {
                path: path.clone(),
                task: self.0.get(path).copied(),
            })
            .filter(|file| file.task != Some(number))
            .collect();
        let of_others = files.iter().filter(|file| file.task.is_some()).count();
        let of_no_task = (files.len() - of_others) as u64;
        files.sort_by_key(|file| file.task.is_none());
        files.truncate(NAMED);
        Strayed {
            of_others: of_others as u64,
            of_no_task,
            files,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_its_own_is_told_with_whose_it_is() {
        let own = [("a", 1), ("b", 2)].map(|(path, number)| (ByteText::from(path), number));
        let owners = Owners(own.into());
        let changed = ["a", "n", "b"].map(ByteText::from);
        let strayed = owners.strayed(1, &changed);
        assert_eq!((strayed.of_others, strayed.of_no_task), (1, 1));
        let named = strayed
            .files
            .iter()
            .map(|file| (file.path.to_text(), file.task));
        let expected = [("b".to_owned(), Some(2)), ("n".to_owned(), None)];
        assert!(named.eq(expected), "{strayed:?}");
        let many: Vec<ByteText> = (0..500)
            .map(|at| ByteText::from(&*format!("n{at}")))
            .collect();
        let strayed = owners.strayed(1, &many);
        assert_eq!((strayed.of_no_task, strayed.files.len()), (500, NAMED));
    }
}
