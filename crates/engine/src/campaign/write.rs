//! Task documents on the disk, and an earlier split read back.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use ringfence_model::ByteText;
use ringfence_model::plan::{SplitDiff, diff};
use ringfence_model::task::Task;
use serde::Deserialize;

use super::{CampaignError, Planned};
use crate::error::Error;

/// BOUND: bytes of an earlier split.
const MAX_SPLIT: u64 = 256 << 20;

/// Writes a document for each task into a directory that is not there yet, or empty.
pub fn write(planned: &Planned, directory: &Path) -> Result<(), Error> {
    write_tasks(&planned.documents, directory).map(|_| ())
}

/// Refuses a directory that documents cannot be written to. Nothing is made.
pub fn refuse_full(directory: &Path) -> Result<(), Error> {
    if fs::symlink_metadata(directory).is_err() {
        return Ok(());
    }
    match fs::read_dir(directory).map(|mut entries| entries.next().is_none()) {
        Ok(true) => Ok(()),
        _ => Err(CampaignError::NotEmpty(directory.to_owned()).into()),
    }
}

/// The same of any tasks; gives where each is.
pub fn write_tasks(tasks: &[Task], directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::WriteFile { path, source }
    };
    match fs::create_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => refuse_full(directory)?,
        made => made.map_err(failed(directory))?,
    }
    let mut written = Vec::new();
    for task in tasks {
        let path = directory.join(format!("{:04}-{}.toml", task.number, task.id));
        let mut file = File::create_new(&path).map_err(failed(&path))?;
        let text = task.to_toml();
        file.write_all(text.as_bytes()).map_err(failed(&path))?;
        written.push(path);
    }
    Ok(written)
}

/// What is needed of an earlier split; there is more in it.
#[derive(Deserialize)]
struct Earlier {
    tasks: Vec<EarlierTask>,
}

#[derive(Deserialize)]
struct EarlierTask {
    id: String,
    files: Vec<ByteText>,
}

/// What differs from an earlier split.
pub fn compare(file: &Path, planned: &Planned) -> Result<SplitDiff, Error> {
    let failed = |source| Error::ReadFile {
        path: file.to_owned(),
        source,
    };
    let mut bytes = Vec::new();
    let open = File::open(file).map_err(failed)?;
    open.take(MAX_SPLIT)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    let earlier: Earlier =
        serde_json::from_slice(&bytes).map_err(|source| CampaignError::Against {
            path: file.to_owned(),
            source,
        })?;
    let old: Vec<_> = earlier
        .tasks
        .into_iter()
        .map(|task| (task.id, task.files))
        .collect();
    let tasks = planned.tasks.iter();
    let new: Vec<_> = tasks
        .map(|task| (task.id.clone(), task.files.clone()))
        .collect();
    Ok(diff(&old, &new))
}
