//! Ending an execution, and starting another one on the same workspace.

use ringfence_model::sandbox::{EndReason, Purpose, SandboxState};

use super::Host;
use super::open::{Lost, open_line};
use crate::error::Error;
use crate::fail;
use crate::ids::SandboxId;
use crate::keeper::{EndAnswer, Line, LineError};
use crate::lock::FileLock;
use crate::sandbox;
use crate::store::SandboxRecord;

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resumed {
    pub incarnation: u64,
    pub notes: Vec<String>,
}

/// Ends the execution; gives how many processes ended with it.
pub fn stop(host: &Host, id: SandboxId) -> Result<u64, Error> {
    let _shaping = host.shape(id)?;
    fail::point("stop:locked");
    let processes = end(host, id, EndReason::Asked)?;
    fail::point("stop:ended");
    // Nothing ran: stopped all the same, until somebody resumes it.
    for state in [SandboxState::Ready, SandboxState::Lost] {
        host.store.set_state(id, state, SandboxState::Stopped)?;
    }
    fail::point("stop:done");
    Ok(processes)
}

/// Starts an execution where there is none.
pub fn resume(host: &Host, id: SandboxId) -> Result<Resumed, Error> {
    let opened = open_line(host, id, Lost::Replace, None)?;
    Ok(Resumed {
        incarnation: opened.line.incarnation(),
        notes: opened.notes,
    })
}

/// Ends whatever executes; nothing is as good.
///
/// INVARIANT: the caller holds `shaping`.
pub(super) fn end(host: &Host, id: SandboxId, reason: EndReason) -> Result<u64, Error> {
    let places = host.places(id);
    if !FileLock::is_held(&places.lock())? {
        lost(host, &host.store.sandbox(id)?)?;
        return Ok(0);
    }
    let ended = Line::connect(&places, Purpose::Rule, None).and_then(|mut line| line.end(reason));
    let processes = match ended {
        Ok(EndAnswer::Ended { processes }) => processes,
        Ok(EndAnswer::Busy) => 0,
        // It went by itself, or it does not answer: then it is told in the one way that is left.
        Err(LineError::Connect(_) | LineError::Talk(_) | LineError::OtherVersion) => {
            kill_keeper(host, id)?;
            0
        }
        Err(error) => return Err(error.into()),
    };
    // The keeper lets go of its lock with its last breath.
    let gone = FileLock::wait(&places.lock(), || {})?;
    drop(gone);
    lost(host, &host.store.sandbox(id)?)?;
    Ok(processes)
}

/// Records that an execution has no keeper any more, and removes what the keeper would have.
///
/// INVARIANT: the caller holds `shaping` and has seen that nobody holds `lock`: no keeper can be
/// about to come up.
pub(super) fn lost(host: &Host, record: &SandboxRecord) -> Result<bool, Error> {
    let id = record.id;
    // One that lives without its lock has lost its directory, and nobody can reach it any more.
    kill_keeper(host, id)?;
    let gone = host
        .store
        .execution_gone(id, record.incarnation, SandboxState::Lost)?;
    if gone {
        sandbox::sweep(&host.home, id.as_str());
        let _ = std::fs::remove_file(host.places(id).socket());
    }
    Ok(gone)
}

/// A keeper that holds its lock and does not talk is killed; the kernel ends what it kept.
pub(super) fn kill_keeper(host: &Host, id: SandboxId) -> Result<(), Error> {
    let Some(keeper) = host.store.sandbox(id)?.keeper else {
        return Ok(());
    };
    if !keeper.is_alive() {
        return Ok(());
    }
    if let Some(pid) = i32::try_from(keeper.pid)
        .ok()
        .and_then(rustix::process::Pid::from_raw)
    {
        // Gone already is as good.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
    Ok(())
}
