//! Removing a sandbox, also one that is half broken, and the layers that nothing needs any more.

use std::collections::HashSet;
use std::time::Duration;

use ringfence_model::sandbox::EndReason;

use super::recover::remove_from;
use super::{Host, stop};
use crate::clock::now_us;
use crate::error::Error;
use crate::fail;
use crate::ids::{LayerId, SandboxId};
use crate::keeper::Places;
use crate::sandbox;
use crate::store::{Intent, LayerRecord, SandboxRecord};

/// BOUND: who else removes the same sandbox is done in a moment.
const TRIES: u32 = 50;
const BETWEEN_TRIES: Duration = Duration::from_millis(5);

/// Removes a sandbox with its executions, checkpoints and history. Its forks do not notice.
pub fn remove(host: &Host, record: &SandboxRecord) -> Result<(), Error> {
    let id = record.id;
    let places = Places::of(&host.home, id);
    if places.directory.is_dir() {
        let _shaping = host.shape(id)?;
        fail::point("rm:locked");
        stop::end(host, id, EndReason::Removed)?;
        host.store.set_intent(id, &Intent::Remove)?;
        fail::point("rm:recorded");
        finish(host, record)?;
    } else {
        // Its lock and its socket are gone as well.
        stop::kill_keeper(host, id)?;
        finish(host, record)?;
    }
    sweep_layers(host)?;
    Ok(())
}

pub(super) fn finish(host: &Host, record: &SandboxRecord) -> Result<SandboxId, Error> {
    let mut tries = 0;
    while let Err(error) = remove_from(&host.home.sandboxes(), record.id.as_str()) {
        // Somebody else may be at it as well, or have looked for a lock in it.
        tries += 1;
        if tries == TRIES {
            return Err(error);
        }
        std::thread::sleep(BETWEEN_TRIES);
    }
    fail::point("rm:removed");
    sandbox::sweep(record.id.as_str());
    host.store.remove_sandbox(record.id)?;
    Ok(record.id)
}

/// Layers that no sandbox, checkpoint, layer or execution stands on.
pub fn unused_layers(host: &Host) -> Result<Vec<LayerId>, Error> {
    let sandboxes = host.store.sandboxes()?;
    let mut used: HashSet<LayerId> = HashSet::new();
    for record in &sandboxes {
        used.extend(record.head);
        used.extend(&record.detail.mounted);
        if let Some(Intent::Seal { layer, .. }) = &record.intent {
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
        .filter(|layer| (layer.sealed || abandoned(layer)) && !used.contains(&layer.id))
        .map(|layer| layer.id)
        .collect())
}

/// BOUND: a stack is made flat within minutes; what is not done by then lost its maker.
const MADE_WITHIN_US: i64 = 3600 * 1_000_000;

fn abandoned(layer: &LayerRecord) -> bool {
    now_us() - layer.created_us > MADE_WITHIN_US
}

/// Removes them; gives how many.
pub fn sweep_layers(host: &Host) -> Result<usize, Error> {
    let mut removed = 0;
    for id in unused_layers(host)? {
        // Row first: what has no row is found by name, what has one must be whole.
        if host.store.remove_layer(id)? {
            remove_from(&host.home.layers(), id.as_str())?;
            removed += 1;
        }
    }
    Ok(removed)
}
