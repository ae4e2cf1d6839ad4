//! What a dead process left: sandboxes half made, layers half sealed, executions without a keeper.
//!
//! Runs at every start, costs one look into an index where there is nothing to do, and a second
//! time does nothing. Each half-done step is rolled forward where its effect is there, else back.

use std::os::fd::AsFd as _;

use ringfence_model::sandbox::SandboxState;

use super::{Host, remove, rollback};
use crate::changes::remove_tree;
use crate::error::Error;
use crate::home::Home;
use crate::ids::SandboxId;
use crate::keeper;
use crate::lock::FileLock;
use crate::sandbox;
use crate::store::{Intent, SandboxRecord, SealHow};

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
    for record in host.store.unsettled_sandboxes()? {
        let id = record.id;
        if record.state == SandboxState::Making {
            // A maker that is gone may have been done: what it wrote last is read after that.
            if !record.keeper.is_some_and(|maker| maker.is_alive())
                && host
                    .store
                    .sandbox(id)
                    .is_ok_and(|now| now.state == SandboxState::Making)
            {
                unmake(host, id)?;
                recovered.unmade.push(id);
            }
            continue;
        }
        let places = host.places(id);
        if record.state == SandboxState::Running
            && !FileLock::is_held(&places.lock())?
            && host
                .store
                .set_state(id, SandboxState::Running, SandboxState::Lost)?
        {
            sandbox::sweep(id.as_str());
            let _ = std::fs::remove_file(places.socket());
            recovered.lost.push(id);
        }
        if record.intent.is_none() {
            continue;
        }
        if !places.directory.is_dir() {
            // Nobody can hold a lock in what is not there.
            settle_intent(host, &record)?;
            recovered.settled.push(id);
            continue;
        }
        // Whoever works on it holds the lock.
        let shaping = match FileLock::take(&places.shaping()) {
            // It was removed under our eyes.
            Err(_) if !places.directory.is_dir() => continue,
            taken => taken?,
        };
        if let Some(_shaping) = shaping
            && let Ok(now) = host.store.sandbox(id)
            && now.intent.is_some()
        {
            settle_intent(host, &now)?;
            recovered.settled.push(id);
        }
    }
    Ok(recovered)
}

/// Ends what somebody began.
///
/// INVARIANT: the caller holds `shaping`, so whoever began it is gone.
pub(super) fn settle_intent(host: &Host, record: &SandboxRecord) -> Result<(), Error> {
    let id = record.id;
    match &record.intent {
        None => Ok(()),
        Some(Intent::Remove) => remove::finish(host, record).map(drop),
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
                        .sealed(id, *layer, Some(*layer), checkpoint.as_deref())?)
                }
                SealHow::Swap => Ok(host.store.seal_undone(id, *layer)?),
                // A copy that nobody called whole may be half of one; the top has everything.
                SealHow::Copy => {
                    remove_from(&host.home.layers(), layer.as_str())?;
                    Ok(host.store.seal_undone(id, *layer)?)
                }
            }
        }
    }
}

fn unmake(host: &Host, id: SandboxId) -> Result<(), Error> {
    remove_from(&host.home.sandboxes(), id.as_str())?;
    host.store.remove_sandbox(id)?;
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
    remove_tree(directory.as_fd(), name.as_bytes())?;
    Ok(())
}

/// Directories of sandboxes and layers that no row knows, for `gc`.
pub fn strangers(host: &Host) -> Result<Vec<std::path::PathBuf>, Error> {
    let mut found = Vec::new();
    let home: &Home = &host.home;
    for path in list(&home.sandboxes())? {
        let known = name_of(&path)
            .and_then(|name| name.parse().ok())
            .is_some_and(|id| host.store.sandbox(id).is_ok());
        if !known {
            found.push(path);
        }
    }
    for path in list(&home.layers())? {
        let id = name_of(&path).and_then(|name| name.parse().ok());
        let known = match id {
            Some(id) => host.store.layer(id)?.is_some(),
            None => false,
        };
        if !known {
            found.push(path);
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
