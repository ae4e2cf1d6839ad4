//! Sandboxes that last: a workspace that is kept, and executions on it that come and go.
//!
//! ```text
//!   base ◀── layer ◀── layer (head) ◀── top, which is written
//!              ▲          ▲
//!            fork     checkpoint `green`
//! ```
//!
//! One file per verb. Each takes the lock it needs, records its intent, makes its effect and
//! records the result; `recover` knows each of these places.
//!
//! | lock | held for | by |
//! | --- | --- | --- |
//! | `lock` | the life of the execution | the keeper |
//! | `shaping` | moments | whoever changes layers, or starts or ends an execution |
//! | `writing` | a command or an edit | whoever may change files, one at a time |

pub mod create;
pub mod diff;
pub mod exec;
pub mod files;
pub mod fork;
pub mod gc;
pub mod network;
mod open;
pub mod recover;
pub mod relocate;
pub mod remove;
pub mod rollback;
mod room;
pub mod seal;
pub mod session;
pub mod settle;
pub mod status;
pub mod stop;
pub mod usage;

use std::path::PathBuf;

use crate::error::Error;
use crate::home::Home;
use crate::ids::SandboxId;
use crate::keeper::Places;
use crate::lock::FileLock;
use crate::store::Store;

/// Where sandboxes are kept, and the program that keeps them running.
#[derive(Debug)]
pub struct Host {
    pub home: Home,
    pub store: Store,
    /// This program, to be started as a keeper.
    pub program: PathBuf,
}

impl Host {
    pub fn places(&self, id: SandboxId) -> Places {
        Places::of(&self.home, id)
    }

    /// The right to change layers, or to start or end the execution.
    fn shape(&self, id: SandboxId) -> Result<FileLock, Error> {
        let places = self.places(id);
        match FileLock::wait(&places.shaping(), || {}) {
            // It was removed: by somebody of us, then there is none any more, or by hand.
            Err(_) if !places.directory.is_dir() => {
                self.store.sandbox(id)?;
                Err(Error::WorkspaceBroken {
                    sandbox: id.to_string(),
                    missing: status::directory_of(id),
                })
            }
            taken => Ok(taken?),
        }
    }

    /// No lock can be had in a directory that is gone.
    fn there(&self, id: SandboxId) -> Result<(), Error> {
        if self.places(id).directory.is_dir() {
            return Ok(());
        }
        match status::missing(self, &self.store.sandbox(id)?)? {
            Some(missing) => Err(Error::WorkspaceBroken {
                sandbox: id.to_string(),
                missing,
            }),
            None => Err(Error::NotMade(id.to_string())),
        }
    }
}
