//! Who made the changes of a run, read from its bundle alone: result, journal and patch.

mod error;
mod path;
mod section;

use std::fs::File;
use std::io::{self, BufReader, Read as _};
use std::path::{Path, PathBuf};

use ringfence_model::attribution::{Attribution, FileWriters};
use ringfence_model::bundle::{JOURNAL, PATCH, RESULT};
use ringfence_model::changes::Change;
use ringfence_model::journal::Line;

use crate::archive;
use crate::error::Error;
use crate::evidence::Evidence;
use crate::journal;
use crate::run::RunResult;

pub use error::BlameError;
pub use path::Asked;

/// A bundle, opened to ask who made what.
#[derive(Debug)]
pub struct Blame {
    bundle: PathBuf,
    pub result: RunResult,
    pub writers: Attribution,
    pub evidence: Evidence,
}

impl Blame {
    /// HOSTILE: the bundle may come from anywhere. Everything of it is bounded and nothing of it is
    /// believed more than it says; `verify` tells whether it is what was packed.
    pub fn open(bundle: &Path) -> Result<Self, Error> {
        let path = bundle.join(RESULT);
        let result = archive::read_result(&path)?.ok_or_else(|| BlameError::NotABundle {
            path: bundle.to_owned(),
        })?;
        let journal = journal::read(&bundle.join(JOURNAL))?;
        Self::of(bundle.to_owned(), result, &journal.lines)
    }

    /// Of what was read already.
    pub(crate) fn of(bundle: PathBuf, result: RunResult, lines: &[Line]) -> Result<Self, Error> {
        let writers = result.evidence.clone();
        let writers = writers.ok_or_else(|| BlameError::NoEvidence {
            run: result.run.to_string(),
        })?;
        Ok(Self {
            bundle,
            evidence: Evidence::of_journal(lines),
            writers,
            result,
        })
    }

    /// A change by its number, with its writers; `None` for those beyond the list.
    pub fn change(&self, number: usize) -> Option<(&Change, Option<&FileWriters>)> {
        let change = self.result.changes.get(number)?;
        let writers = self.writers.files.get(number);
        Some((change, writers.filter(|file| file.path == change.path)))
    }

    /// The hunks of a change as the patch has them, head and lines; none where it has no text.
    pub fn hunks(&self, change: usize) -> Result<Vec<Vec<u8>>, Error> {
        let path = self.bundle.join(PATCH);
        let read = || -> io::Result<Option<Vec<Vec<u8>>>> {
            let file = File::open(&path)?;
            if !file.metadata()?.is_file() {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            section::hunks(&mut BufReader::new(file.take(section::PATCH_BYTES)), change)
        };
        let hunks = read().map_err(|source| Error::ReadFile {
            path: path.clone(),
            source,
        })?;
        let hunks = hunks.ok_or(BlameError::OtherPatch { path })?;
        Ok(hunks)
    }
}
