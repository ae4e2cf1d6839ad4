//! Removing a sandbox, also one that is half broken, and the layers that nothing needs any more.

use std::collections::HashSet;

use ringfence_model::sandbox::EndReason;

use super::recover::remove_from;
use super::{Host, stop};
use crate::error::Error;
use crate::fail;
use crate::ids::{LayerId, SandboxId};
use crate::layers::YARD;
use crate::lock::FileLock;
use crate::sandbox;
use crate::store::{BaseKind, Driver, Intent, SandboxRecord};

/// The end of names of what is being removed.
pub(super) const GONE: &str = ".gone";

/// Removes a sandbox with its executions, checkpoints and history. Its forks do not notice.
pub fn remove(host: &Host, record: &SandboxRecord) -> Result<(), Error> {
    let shaping = if host.places(record.id).directory.is_dir() {
        Some(host.shape(record.id)?)
    } else {
        None
    };
    remove_held(host, record, shaping)
}

/// The same, for who holds the lock; without one its directory is gone already.
pub(super) fn remove_held(
    host: &Host,
    record: &SandboxRecord,
    shaping: Option<FileLock>,
) -> Result<(), Error> {
    let id = record.id;
    if shaping.is_some() {
        fail::point("rm:locked");
        stop::end(host, id, EndReason::Removed)?;
        host.store.set_intent(id, &Intent::Remove)?;
        fail::point("rm:recorded");
    } else {
        // Its lock and its socket are gone as well.
        stop::kill_keeper(host, id)?;
    }
    finish(host, record)?;
    drop(shaping);
    fail::point("rm:forgot");
    sweep_layers(host)?;
    forget_snapshot(host, record)
}

/// A folder as it was is nobody else's base; where a fork stands on it, it stays.
fn forget_snapshot(host: &Host, record: &SandboxRecord) -> Result<(), Error> {
    let used = host
        .store
        .sandboxes()?
        .iter()
        .any(|other| other.base == record.base);
    let layered = host
        .store
        .layers()?
        .iter()
        .any(|layer| layer.base == record.base);
    let base = host.store.base(record.base)?;
    if !used && !layered && base.is_some_and(|base| base.kind == BaseKind::Snapshot) {
        crate::base::forget(&host.home, &host.store, record.base)?;
    }
    Ok(())
}

pub(super) fn finish(host: &Host, record: &SandboxRecord) -> Result<(), Error> {
    // First: a backend may have its layers mounted.
    sandbox::sweep(&host.home, record.id.as_str());
    // In one step out of everybody's way: a lock that is taken in what is half removed would keep
    // nobody out, and would be in the way itself.
    let (from, gone) = (host.home.sandbox(record.id), gone(record.id));
    let away = host.home.sandboxes().join(&gone);
    remove_from(&host.home.sandboxes(), &gone)?;
    match std::fs::rename(&from, &away) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            return Err(Error::WriteFile { path: away, source });
        }
        _ => {}
    }
    fail::point("rm:moved");
    remove_from(&host.home.sandboxes(), &gone)?;
    fail::point("rm:removed");
    host.store.remove_sandbox(record.id)?;
    Ok(())
}

/// The name of what is being removed.
fn gone(id: SandboxId) -> String {
    format!("{id}{GONE}")
}

/// Layers that no sandbox, checkpoint, layer or execution stands on.
pub fn unused_layers(host: &Host) -> Result<Vec<LayerId>, Error> {
    let sandboxes = host.store.sandboxes()?;
    let mut used: HashSet<LayerId> = HashSet::new();
    for record in &sandboxes {
        used.extend(record.head);
        used.extend(&record.detail.mounted);
        if let Some(Intent::Seal { layer, .. } | Intent::Fork { layer }) = &record.intent {
            used.insert(*layer);
        }
        if let Some(Intent::Rollback { head: Some(head) }) = &record.intent {
            used.insert(*head);
        }
        for checkpoint in host.store.checkpoints(record.id)? {
            used.extend(checkpoint.layer);
        }
    }
    let layers = host.store.layers()?;
    let mut open: Vec<LayerId> = used.iter().copied().collect();
    while let Some(id) = open.pop() {
        let parent = layers
            .iter()
            .find(|layer| layer.id == id)
            .and_then(|layer| layer.parent);
        if let Some(parent) = parent
            && used.insert(parent)
        {
            open.push(parent);
        }
    }
    // Children before parents.
    Ok(layers
        .iter()
        .rev()
        .filter(|layer| !used.contains(&layer.id))
        // One that is being made is its maker's.
        .filter(|layer| layer.sealed || !layer.maker.is_some_and(Driver::is_alive))
        .map(|layer| layer.id)
        .collect())
}

/// Removes the directory of a layer, and what a killed maker left beside it.
pub(super) fn remove_layer(host: &Host, id: LayerId) -> Result<(), Error> {
    remove_from(&host.home.layers(), id.as_str())?;
    remove_from(&host.home.layers(), &format!("{id}{YARD}"))
}

/// Removes them; gives how many.
pub fn sweep_layers(host: &Host) -> Result<usize, Error> {
    let mut removed = 0;
    for id in unused_layers(host)? {
        // Row first: what has no row is found by name, what has one must be whole.
        if host.store.remove_layer(id)? {
            fail::point("sweep:forgot");
            remove_layer(host, id)?;
            removed += 1;
        }
    }
    Ok(removed)
}
