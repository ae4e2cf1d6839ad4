//! Back to a checkpoint: what was written since is gone, and so is what ran.

use ringfence_model::sandbox::EndReason;

use super::{Host, open, settle, stop};
use crate::error::Error;
use crate::fail;
use crate::ids::{LayerId, SandboxId};
use crate::keeper;
use crate::store::{Intent, SandboxRecord};

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RolledBack {
    pub head: Option<LayerId>,
    /// How many processes were ended.
    pub processes: u64,
}

/// Ends everything in the sandbox and takes it back.
pub fn rollback(host: &Host, id: SandboxId, checkpoint: &str) -> Result<RolledBack, Error> {
    let _shaping = host.shape(id)?;
    let record = open::settled(host, id)?;
    let head = host.store.checkpoint(id, checkpoint)?.layer;
    // A state that cannot be shown is not worth losing the present one for.
    if let Some(missing) = super::status::missing_below(host, record.base, head)? {
        return Err(Error::WorkspaceBroken {
            sandbox: id.to_string(),
            missing,
        });
    }
    let processes = stop::end(host, id, EndReason::RolledBack)?;
    fail::point("rollback:ended");
    host.store.set_intent(id, &Intent::Rollback { head })?;
    fail::point("rollback:recorded");
    discard_top(host, &record)?;
    fail::point("rollback:moved");
    host.store.rolled_back(id, head)?;
    fail::point("rollback:done");
    settle::later(host, id);
    Ok(RolledBack { head, processes })
}

/// Moves the top out of the way, for `settle` to remove it, and makes an empty one. Nothing to
/// move is as good.
pub(super) fn discard_top(host: &Host, record: &SandboxRecord) -> Result<(), Error> {
    let places = host.places(record.id);
    let away = places
        .directory
        .join(format!("{}{}", settle::DISCARDED, LayerId::random()?));
    match std::fs::rename(places.upper(), &away) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(source) => return Err(Error::WriteFile { path: away, source }),
        Ok(()) => {}
    }
    keeper::renew_top(&host.home, record)
}
