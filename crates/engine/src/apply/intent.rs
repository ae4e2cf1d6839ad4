//! What is about to be done to a folder, written down before it is done.
//!
//! ```text
//! applying/<id>.json   staging ─▶ swapping ─▶ done ─▶ removed
//! ```
//!
//! Whoever finds one that nobody drives undoes what was begun, or clears up what was done.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use ringfence_model::ByteText;
use serde::{Deserialize, Serialize};

use super::ApplyError;
use crate::changes::handle::Meta;
use crate::durable::{self, Existing};
use crate::home::Home;
use crate::ids::RunId;

/// The beginning of the names of directories that we make in a folder.
pub(super) const STAGE_PREFIX: &str = ".ringfence-apply-";

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum State {
    /// Files are made beside their places; the folder is as it was.
    Staging,
    /// Some or all of it was put in its place.
    Swapping,
    /// All of it was.
    Done,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Intent {
    pub id: RunId,
    pub run: RunId,
    pub top: ByteText,
    pub state: State,
    pub ops: Vec<Planned>,
    /// Directories that are made for what comes, from the top down.
    pub directories: Vec<ByteText>,
}

/// One rename; its number is its name in the stage.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Planned {
    pub path: ByteText,
    /// What comes; absent where something only goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new: Option<Print>,
}

/// Which file something is, and whether it was written to since.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Print {
    pub inode: u64,
    pub size: u64,
    pub seconds: i64,
    pub nanoseconds: u32,
}

impl Print {
    pub fn of(meta: &Meta) -> Self {
        Self {
            inode: meta.identity.inode,
            size: meta.size,
            seconds: meta.modified.seconds,
            nanoseconds: meta.modified.nanoseconds,
        }
    }
}

impl Intent {
    pub fn begin(run: RunId, top: &Path) -> Result<Self, ApplyError> {
        Ok(Self {
            id: RunId::random()?,
            run,
            top: ByteText::from(top.as_os_str().as_bytes()),
            state: State::Staging,
            ops: Vec::new(),
            directories: Vec::new(),
        })
    }

    pub fn top(&self) -> PathBuf {
        PathBuf::from(OsStr::from_bytes(self.top.as_bytes()))
    }

    /// The name of its stage, in the top.
    pub fn stage(&self) -> Vec<u8> {
        format!("{STAGE_PREFIX}{}", self.id).into_bytes()
    }

    pub fn path(&self, home: &Home) -> PathBuf {
        home.applying().join(format!("{}.json", self.id))
    }

    /// Writes it down; it is on the disk when this returns.
    pub fn write(&self, home: &Home) -> Result<(), ApplyError> {
        let text = serde_json::to_vec(self).expect("plain data always serialises");
        durable::write_synced(&self.path(home), &text, Existing::Replace)?;
        Ok(())
    }

    pub fn forget(&self, home: &Home) {
        // What stays says `done`, and is cleared the next time.
        let _ = std::fs::remove_file(self.path(home));
    }
}
