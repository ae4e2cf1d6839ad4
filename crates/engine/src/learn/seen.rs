//! One run as it is learned from: what it asked the network for, what it wrote, what it used.

use std::path::Path;

use ringfence_model::ByteText;
use ringfence_model::bundle::{RESULT, most_bytes};
use ringfence_model::observed::Write;
use serde::Deserialize;

use super::traffic::Traced;
use crate::audit::{Followed, Kept, Story};
use crate::journal::{JournalError, load_file};

/// A run, a bundle or an execution of a sandbox.
#[derive(Debug)]
pub struct Seen {
    /// As the caller named it.
    pub name: String,
    pub(super) network: Vec<Traced>,
    pub(super) writes: Vec<Write>,
    pub(super) used: Option<Used>,
}

/// What a bundle's result says that a journal does not.
#[derive(Debug, Deserialize)]
pub(super) struct Used {
    pub duration_ms: u64,
    pub cpu_ms: u64,
    pub peak_bytes: u64,
    /// What crossed back.
    pub changed_files: Vec<ByteText>,
}

impl Seen {
    /// Reads a journal as far as its chain holds, and the result that lies beside it.
    pub fn read(name: &str, kept: &Kept) -> Result<(Self, Followed), JournalError> {
        let (story, followed) = Story::read(kept)?;
        let used = kept.path.parent().and_then(result_in);
        Ok((Self::of(name, story, used), followed))
    }

    pub(super) fn of(name: &str, story: Story, used: Option<Used>) -> Self {
        let network = story.evidence.network.into_iter();
        let writes = story.evidence.writes.into_iter();
        Self {
            name: name.to_owned(),
            network: network.map(|(_, traffic)| Traced::of(traffic)).collect(),
            writes: writes.map(|(_, write)| write).collect(),
            used,
        }
    }
}

/// HOSTILE: a bundle may come from anywhere; what cannot be read is not there.
fn result_in(directory: &Path) -> Option<Used> {
    let content = load_file(&directory.join(RESULT), most_bytes(RESULT)).ok()?;
    serde_json::from_slice(&content).ok()
}
