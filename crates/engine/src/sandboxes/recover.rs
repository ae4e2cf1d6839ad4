//! What a dead process left: sandboxes half made, layers half sealed, executions without a keeper.
//!
//! Runs at every start, costs one look into an index where there is nothing to do, and a second
//! time does nothing. Each half-done step is rolled forward where its effect is there, else back.

use std::collections::HashSet;
use std::os::fd::AsFd as _;

use ringfence_model::sandbox::SandboxState;

use super::{Host, remove, rollback, stop};
use crate::base;
use crate::changes::{ChangesError, remove_tree};
use crate::error::Error;
use crate::home::Home;
use crate::ids::{BaseId, MirrorId, SandboxId};
use crate::keeper;
use crate::layers;
use crate::lock::FileLock;
use crate::store::{Driver, Intent, SandboxRecord, SealHow, SourceState, StoreError};

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Executions without a keeper.
    pub lost: Vec<SandboxId>,
    /// Sandboxes on which something was half done, and now is done or was not.
    pub settled: Vec<SandboxId>,
    /// Sandboxes that were never whole, and are gone.
    pub unmade: Vec<SandboxId>,
}

/// Brings everything to an honest state.
pub fn recover(host: &Host) -> Result<Recovered, Error> {
    let mut recovered = Recovered::default();
    let mut first = Ok(());
    for record in host.store.unsettled_sandboxes()? {
        let settled = match record.state {
            SandboxState::Making => unmake(host, &record, &mut recovered),
            _ => settle_one(host, &record, &mut recovered),
        };
        // One that resists is no reason to leave the others as they are.
        first = first.and(settled);
    }
    first.map(|()| recovered)
}

fn settle_one(host: &Host, record: &SandboxRecord, recovered: &mut Recovered) -> Result<(), Error> {
    let id = record.id;
    let places = host.places(id);
    let is_lost = |record: &SandboxRecord| -> Result<bool, Error> {
        Ok(record.state == SandboxState::Running && !FileLock::is_held(&places.lock())?)
    };
    if record.intent.is_none() && !is_lost(record)? {
        return Ok(());
    }
    // Whoever works on it, or starts an execution of it, holds the lock; nobody can hold one in
    // what is not there.
    let _shaping = if places.directory.is_dir() {
        match FileLock::take(&places.shaping())? {
            Some(shaping) => Some(shaping),
            None => return Ok(()),
        }
    } else {
        None
    };
    // Looked at again: what was read before may have been somebody's work until now.
    let Ok(now) = host.store.sandbox(id) else {
        return Ok(());
    };
    if is_lost(&now)? && stop::lost(host, &now)? {
        recovered.lost.push(id);
    }
    if now.intent.is_some() {
        settle_intent(host, &now)?;
        recovered.settled.push(id);
    }
    Ok(())
}

/// Ends what somebody began.
///
/// INVARIANT: the caller holds `shaping`, so whoever began it is gone.
pub(super) fn settle_intent(host: &Host, record: &SandboxRecord) -> Result<(), Error> {
    let id = record.id;
    match &record.intent {
        None => Ok(()),
        // All forks or none are there, and each knows what it stands on.
        Some(Intent::Fork { .. }) => Ok(host.store.clear_intent(id)?),
        Some(Intent::Remove) => remove::finish(host, record),
        Some(Intent::Rollback { head }) => {
            rollback::discard_top(host, record)?;
            Ok(host.store.rolled_back(id, *head)?)
        }
        Some(Intent::Seal {
            layer,
            how,
            checkpoint,
        }) => {
            let path = host.home.layer(*layer);
            match how {
                // The top was moved, in one step, or it was not.
                SealHow::Swap if path.is_dir() => {
                    keeper::renew_top(&host.home, record)?;
                    Ok(host
                        .store
                        .sealed(id, *layer, Some(*layer), checkpoint.as_deref(), None)?)
                }
                SealHow::Swap => Ok(host.store.seal_undone(id, *layer)?),
                // A copy that nobody called whole may be half of one; the top has everything.
                SealHow::Copy => {
                    remove::remove_layer(host, *layer)?;
                    Ok(host.store.seal_undone(id, *layer)?)
                }
            }
        }
    }
}

fn unmake(host: &Host, record: &SandboxRecord, recovered: &mut Recovered) -> Result<(), Error> {
    let id = record.id;
    if record.keeper.is_some_and(Driver::is_alive) {
        return Ok(());
    }
    // The maker may have finished and ended since the row was read. What is not finished now never
    // will be: nobody else does it.
    match host.store.sandbox(id) {
        Ok(now) if now.state == SandboxState::Making => {}
        _ => return Ok(()),
    }
    remove_from(&host.home.sandboxes(), id.as_str())?;
    host.store.remove_sandbox(id)?;
    recovered.unmade.push(id);
    Ok(())
}

/// Removes a tree by name; nothing there is as good.
pub(super) fn remove_from(parent: &std::path::Path, name: &str) -> Result<(), Error> {
    if parent.join(name).symlink_metadata().is_err() {
        return Ok(());
    }
    let directory = std::fs::File::open(parent).map_err(|source| Error::ReadFile {
        path: parent.to_owned(),
        source,
    })?;
    for _ in 0..TRIES {
        match remove_tree(directory.as_fd(), name.as_bytes()) {
            // Somebody else removes it as well, and was faster below.
            Err(ChangesError::Remove { source, .. })
                if source.kind() == std::io::ErrorKind::NotFound => {}
            removed => return Ok(removed?),
        }
    }
    Ok(remove_tree(directory.as_fd(), name.as_bytes())?)
}

/// BOUND: each try goes as deep as the other one has not been yet.
const TRIES: usize = 1000;

/// Directories of sandboxes and layers that no row knows, for `gc`.
pub fn strangers(host: &Host) -> Result<Vec<std::path::PathBuf>, Error> {
    let mut found = Vec::new();
    let home: &Home = &host.home;
    for path in list(&home.sandboxes())? {
        let known = name_of(&path)
            .and_then(|name| name.strip_suffix(remove::GONE).unwrap_or(name).parse().ok())
            .is_some_and(|id| match host.store.sandbox(id) {
                Err(StoreError::NoSandbox { .. }) => false,
                // What the store cannot say is no reason to remove anything.
                Ok(_) | Err(_) => true,
            });
        if !known {
            found.push(path);
        }
    }
    for path in list(&home.layers())? {
        let name = name_of(&path).unwrap_or_default();
        let beside = name.strip_suffix(layers::YARD);
        let known = match beside.unwrap_or(name).parse() {
            // Beside a layer there is something only until it is sealed.
            Ok(id) => match host.store.layer(id)? {
                Some(layer) => beside.is_none() || !layer.sealed,
                None => false,
            },
            Err(_) => false,
        };
        if !known {
            found.push(path);
        }
    }
    Ok(found)
}

/// Bases that are not, and never will be, whole: nobody makes them.
pub fn unfinished_bases(host: &Host) -> Result<Vec<BaseId>, Error> {
    let mut found = Vec::new();
    let mut known = HashSet::new();
    for base in host.store.bases()? {
        known.insert(base.id);
        if base.state == SourceState::Making && !base::is_being_made(&host.home, base.id)? {
            found.push(base.id);
        }
    }
    // The directory is listed before the row is looked for, as the row is made first.
    for path in list(&host.home.bases())? {
        if let Some(id) = name_of(&path).and_then(|name| name.parse().ok())
            && !known.contains(&id)
            && host.store.base(id)?.is_none()
        {
            found.push(id);
        }
    }
    Ok(found)
}

/// Directories of mirrors that no row knows.
pub fn unknown_mirrors(host: &Host) -> Result<Vec<MirrorId>, Error> {
    let mut found = Vec::new();
    for path in list(&host.home.mirrors())? {
        if let Some(id) = name_of(&path).and_then(|name| name.parse().ok())
            && host.store.mirror(id)?.is_none()
        {
            found.push(id);
        }
    }
    Ok(found)
}

fn name_of(path: &std::path::Path) -> Option<&str> {
    path.file_name().and_then(|name| name.to_str())
}

fn list(directory: &std::path::Path) -> Result<Vec<std::path::PathBuf>, Error> {
    let read = || -> std::io::Result<Vec<std::path::PathBuf>> {
        std::fs::read_dir(directory)?
            .map(|entry| Ok(entry?.path()))
            .collect()
    };
    let mut paths = read().map_err(|source| Error::ReadFile {
        path: directory.to_owned(),
        source,
    })?;
    paths.sort();
    Ok(paths)
}
