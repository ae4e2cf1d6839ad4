//! The way to the execution of a sandbox: the one that is there, or one that is started.

use ringfence_model::sandbox::{EndReason, Purpose, SandboxState};

use super::Host;
use crate::clock::now_us;
use crate::error::Error;
use crate::fail;
use crate::ids::SandboxId;
use crate::keeper::{self, Line, LineError};
use crate::lock::FileLock;
use crate::store::{Ended, Intent, SandboxRecord};

/// What to do where the execution is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lost {
    /// Say so.
    #[default]
    Tell,
    /// Start another one.
    Replace,
}

/// BOUND: a keeper that ends or starts does so within moments.
const TRIES: u32 = 200;
const BETWEEN_TRIES: std::time::Duration = std::time::Duration::from_millis(5);

/// A line, and what a person should know about it.
#[derive(Debug)]
pub struct Opened {
    pub line: Line,
    pub record: SandboxRecord,
    pub notes: Vec<String>,
}

/// Finds or starts the execution.
pub fn open_line(
    host: &Host,
    id: SandboxId,
    lost: Lost,
    incarnation: Option<u64>,
) -> Result<Opened, Error> {
    let places = host.places(id);
    let mut notes = Vec::new();
    for _ in 0..TRIES {
        let shaping = host.shape(id)?;
        let record = usable(host, id)?;
        if let Some(asked) = incarnation
            && asked != record.incarnation
        {
            return Err(Error::OtherExecution {
                sandbox: id.to_string(),
                asked,
                found: record.incarnation,
            });
        }
        if FileLock::is_held(&places.lock())? {
            match Line::connect(&places, Purpose::Work, incarnation) {
                Ok(line) => {
                    return Ok(Opened {
                        line,
                        record,
                        notes,
                    });
                }
                // It is about to be up, or about to be gone.
                Err(LineError::Connect(_) | LineError::Talk(_)) => {
                    drop(shaping);
                    std::thread::sleep(BETWEEN_TRIES);
                    continue;
                }
                Err(error) => return Err(error.into()),
            }
        }
        match record.state {
            SandboxState::Running | SandboxState::Lost => {
                super::stop::lost(host, &record)?;
                if lost == Lost::Tell {
                    return Err(Error::RuntimeLost {
                        sandbox: id.to_string(),
                        incarnation: record.incarnation,
                    });
                }
                notes.push(format!(
                    "execution {} was lost and is replaced; what ran in the background is gone",
                    record.incarnation
                ));
            }
            SandboxState::Stopped => {
                let told = |ended: &Ended| {
                    matches!(
                        ended.reason,
                        EndReason::Asked
                            | EndReason::Idle
                            | EndReason::DiskFull
                            | EndReason::JournalFull
                    )
                };
                if let Some(ended) = record.detail.ended.filter(told) {
                    let jobs = match ended.processes {
                        0 => String::new(),
                        1 => "; 1 process in the background ended with it".to_owned(),
                        n => format!("; {n} processes in the background ended with it"),
                    };
                    notes.push(format!(
                        "resumed: it had ended ({}){jobs}",
                        ended.reason.as_str()
                    ));
                }
            }
            SandboxState::Making | SandboxState::Ready | SandboxState::Expired => {}
        }
        keeper::spawn(&host.home, &host.program, id, &shaping)?;
        fail::point("exec:spawned");
    }
    Err(Error::StartKeeper {
        sandbox: id.to_string(),
        source: std::io::ErrorKind::TimedOut.into(),
    })
}

/// A sandbox whose workspace is whole, and on which nothing is half done.
pub fn usable(host: &Host, id: SandboxId) -> Result<SandboxRecord, Error> {
    let record = settled(host, id)?;
    if let Some(missing) = super::status::missing(host, &record)? {
        return Err(Error::WorkspaceBroken {
            sandbox: id.to_string(),
            missing,
        });
    }
    Ok(record)
}

/// A sandbox on which nothing is half done, whole or not.
pub fn settled(host: &Host, id: SandboxId) -> Result<SandboxRecord, Error> {
    let record = host.store.sandbox(id)?;
    if let Some(intent) = &record.intent {
        // Whoever did this is gone: we hold the lock that it held.
        if *intent == Intent::Remove {
            return Err(Error::BeingRemoved(id.to_string()));
        }
        super::recover::settle_intent(host, &record)?;
    }
    let record = host.store.sandbox(id)?;
    if record.state == SandboxState::Making {
        return Err(Error::NotMade(id.to_string()));
    }
    if record.state == SandboxState::Expired || record.expires_us.is_some_and(|at| at <= now_us()) {
        return Err(Error::Expired(id.to_string()));
    }
    Ok(record)
}
