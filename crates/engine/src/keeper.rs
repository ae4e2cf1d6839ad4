//! The keeper of a sandbox: a small process that holds the guest's channel, the bounds of what
//! runs unattended, and the journal, for as long as the execution lives.
//!
//! ```text
//! ringfence ──┐                 ┌── journal
//! ringfence ──┼── socket ── keeper ── guest (pid 1 inside)
//! ringfence ──┘                 └── row in the store: running, incarnation
//! ```
//!
//! It knows nothing of layers and checkpoints: whoever calls does that work. Frames go through to
//! the guest with other stream numbers; what is on stream 0 is for the keeper itself. When it dies,
//! the execution dies with it and the workspace stays.

mod line;
mod peer;
mod relay;
mod serve;
mod start;

pub use line::EndAnswer;
pub use line::{Line, LineError};
pub(crate) use start::INSIDE;
pub(crate) use start::renew_top;
pub use start::{Ready, keep, say, spawn};

use std::path::PathBuf;

use crate::home::Home;
use crate::ids::SandboxId;

/// The places of one sandbox that a keeper and those who call it share.
#[derive(Clone, Debug)]
pub struct Places {
    pub directory: PathBuf,
}

impl Places {
    pub fn of(home: &Home, id: SandboxId) -> Self {
        Self {
            directory: home.sandbox(id),
        }
    }

    /// Held by the keeper for as long as it lives.
    pub fn lock(&self) -> PathBuf {
        self.directory.join("lock")
    }

    /// Held by whoever runs a command that may change the workspace.
    pub fn writing(&self) -> PathBuf {
        self.directory.join("writing")
    }

    /// Held by whoever changes the layers, or starts or ends the execution.
    pub fn shaping(&self) -> PathBuf {
        self.directory.join("shaping")
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.join("socket")
    }

    pub fn top(&self) -> PathBuf {
        self.directory.join("top")
    }

    pub fn upper(&self) -> PathBuf {
        self.top().join("upper")
    }

    pub fn journal(&self, incarnation: u64) -> PathBuf {
        self.directory.join(format!("audit-{incarnation}.jsonl"))
    }

    pub fn log(&self) -> PathBuf {
        self.directory.join("keeper.log")
    }
}
