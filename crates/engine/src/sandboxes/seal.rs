//! Sealing: what is in the top becomes a layer that nothing can write any more.
//!
//! Where nothing runs in the sandbox, its execution ends and the top itself is moved away: that
//! costs the same for any size. Where something runs, everything is frozen for a moment and the top
//! is copied: a descriptor that is open for writing would follow the top wherever it is moved.

use std::fs::File;
use std::os::fd::AsFd as _;

use ringfence_model::sandbox::Purpose;

use super::{Host, open, remove};
use crate::error::Error;
use crate::fail;
use crate::ids::{LayerId, SandboxId};
use crate::keeper::{self, EndAnswer, Line, LineError};
use crate::layers;
use crate::lock::FileLock;
use crate::store::{Intent, SandboxRecord, SealHow, is_plain_name};

/// A sealed state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sealed {
    /// Absent: the base as it is.
    pub layer: Option<LayerId>,
    /// Something ran, and was frozen while its files were copied.
    pub how: Option<SealHow>,
}

/// Seals the present state under a name.
pub fn checkpoint(host: &Host, id: SandboxId, name: &str) -> Result<Sealed, Error> {
    if !is_plain_name(name) {
        return Err(Error::BadCheckpointName(name.chars().take(64).collect()));
    }
    let _shaping = host.shape(id)?;
    let record = open::usable(host, id)?;
    if host
        .store
        .checkpoints(id)?
        .iter()
        .any(|checkpoint| checkpoint.name == name)
    {
        return Err(Error::CheckpointTaken {
            sandbox: id.to_string(),
            name: name.to_owned(),
        });
    }
    let sealed = seal(host, &record, Some(name), "checkpoint")?;
    if sealed.how.is_none() {
        host.store.insert_checkpoint(id, name, sealed.layer)?;
    }
    super::settle::later(host, id);
    Ok(sealed)
}

/// The present state as a layer, a fresh one only where something was written since the last.
///
/// INVARIANT: the caller holds `shaping`.
pub(super) fn seal(
    host: &Host,
    record: &SandboxRecord,
    checkpoint: Option<&str>,
    verb: &str,
) -> Result<Sealed, Error> {
    let id = record.id;
    let places = host.places(id);
    if is_empty(&places.upper()) {
        return Ok(Sealed {
            layer: record.head,
            how: None,
        });
    }
    let line = still(host, record)?;
    let how = match line {
        None => SealHow::Swap,
        Some(_) => SealHow::Copy,
    };
    let layer = LayerId::random()?;
    let intent = Intent::Seal {
        layer,
        how,
        checkpoint: checkpoint.map(str::to_owned),
    };
    host.store
        .seal_begins(id, (record.base, record.head), layer, &intent)?;
    fail::point(&format!("{verb}:recorded"));
    let head = match line {
        None => {
            let to = host.home.layer(layer);
            std::fs::rename(places.upper(), &to)
                .map_err(|source| Error::WriteFile { path: to, source })?;
            fail::point(&format!("{verb}:moved"));
            sync_directory(&host.home.layers())?;
            keeper::renew_top(&host.home, record)?;
            Some(layer)
        }
        Some(mut line) => {
            copy_still(host, record, layer, &mut line).inspect_err(|_| {
                // Back to where it was; what resists is found by `recover`.
                let _ = host.store.seal_undone(id, layer);
            })?;
            fail::point(&format!("{verb}:copied"));
            record.head
        }
    };
    fail::point(&format!("{verb}:sealed"));
    // A copy that is nobody's yet would be swept by whoever removes a sandbox meanwhile.
    let next = (checkpoint.is_none() && head != Some(layer)).then_some(Intent::Fork { layer });
    host.store
        .sealed(id, layer, head, checkpoint, next.as_ref())?;
    fail::point(&format!("{verb}:done"));
    Ok(Sealed {
        layer: Some(layer),
        how: Some(how),
    })
}

/// Nothing in the sandbox moves when this returns: its execution has ended because nothing ran in
/// it, or everything in it is frozen for as long as the line is kept.
pub(super) fn still(host: &Host, record: &SandboxRecord) -> Result<Option<Line>, Error> {
    let Some(mut line) = rule(host, record)? else {
        return Ok(None);
    };
    match line.end_if_idle()? {
        EndAnswer::Ended { .. } => Ok(None),
        EndAnswer::Busy => {
            line.freeze()?;
            Ok(Some(line))
        }
    }
}

/// The same, without ending anything.
pub(super) fn frozen(host: &Host, record: &SandboxRecord) -> Result<Option<Line>, Error> {
    let mut line = rule(host, record)?;
    if let Some(line) = &mut line {
        line.freeze()?;
    }
    Ok(line)
}

/// A line to the keeper, where there is one.
fn rule(host: &Host, record: &SandboxRecord) -> Result<Option<Line>, Error> {
    let places = host.places(record.id);
    if !FileLock::is_held(&places.lock())? {
        return Ok(None);
    }
    match Line::connect(&places, Purpose::Rule, None) {
        Ok(line) => Ok(Some(line)),
        // It went away under our eyes.
        Err(LineError::Connect(_)) if !FileLock::is_held(&places.lock())? => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// BOUND: who wakes its processes by a timer can do so each time; it gets no checkpoint.
pub(super) const STILL_TRIES: u32 = 3;

/// Copies the top while everything stands still, and lets go on. A copy during which something ran
/// is none.
fn copy_still(
    host: &Host,
    record: &SandboxRecord,
    layer: LayerId,
    line: &mut Line,
) -> Result<(), Error> {
    for attempt in 1..=STILL_TRIES {
        let copied = copy_top(host, record, layer);
        // A keeper that died meanwhile cannot say whether something ran before.
        let thawed = line.thaw();
        if matches!(thawed, Ok(0)) {
            return copied;
        }
        remove::remove_layer(host, layer)?;
        if thawed.is_err() {
            break;
        }
        if attempt < STILL_TRIES {
            line.freeze()?;
        }
    }
    Err(Error::NotStill(record.id.to_string()))
}

fn copy_top(host: &Host, record: &SandboxRecord, layer: LayerId) -> Result<(), Error> {
    let upper = host.places(record.id).upper();
    let open = |path: &std::path::Path| {
        File::open(path).map_err(|source| Error::ReadFile {
            path: path.to_owned(),
            source,
        })
    };
    let from = open(&upper)?;
    let to = open(&host.home.layers())?;
    layers::copy(from.as_fd(), to.as_fd(), layer.as_str().as_bytes())?;
    Ok(())
}

/// Whether nothing was written.
pub(super) fn is_empty(upper: &std::path::Path) -> bool {
    match std::fs::read_dir(upper) {
        Ok(mut entries) => entries.next().is_none(),
        Err(_) => true,
    }
}

pub(super) fn sync_directory(path: &std::path::Path) -> Result<(), Error> {
    let sync = || -> std::io::Result<()> { File::open(path)?.sync_all() };
    sync().map_err(|source| Error::WriteFile {
        path: path.to_owned(),
        source,
    })
}
