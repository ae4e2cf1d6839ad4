//! What can wait: writing sealed layers to the disk, making deep stacks flat, and removing what was
//! rolled back. Done by a process of its own that nobody waits for.

use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::{Command, Stdio};

use super::recover::remove_from;
use super::{Host, remove};
use crate::error::Error;
use crate::ids::{LayerId, SandboxId};
use crate::layers;
use crate::store::LayerRecord;

/// The beginning of names of what was rolled back.
pub(super) const DISCARDED: &str = "discarded-";
/// BOUND: each layer costs every start a mount and every look-up a step; this many are not felt.
pub const DEEP: usize = 12;

/// Starts it; that it could not be started is found by the next one.
pub(super) fn later(host: &Host, id: SandboxId) {
    let _ = Command::new(&host.program)
        .args(["settle", id.as_str()])
        .env("RINGFENCE_HOME", host.home.root())
        .env_remove("RINGFENCE_FAIL")
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
}

/// Does it all for one sandbox.
pub fn settle(host: &Host, id: SandboxId) -> Result<(), Error> {
    // Whoever started this may end at any time, with its terminal.
    let _ = rustix::process::setsid();
    for name in discarded(host, id) {
        remove_from(&host.home.sandbox(id), &name)?;
    }
    let record = host.store.sandbox(id)?;
    let stack = host.store.stack(record.head)?;
    for checkpoint in host.store.checkpoints(id)? {
        for layer in host.store.stack(checkpoint.layer)? {
            make_durable(host, &layer)?;
        }
    }
    for layer in &stack {
        make_durable(host, layer)?;
    }
    if stack.len() > DEEP {
        squash(host, id, &stack)?;
        remove::sweep_layers(host)?;
    }
    Ok(())
}

fn make_durable(host: &Host, layer: &LayerRecord) -> Result<(), Error> {
    if layer.durable || !layer.sealed {
        return Ok(());
    }
    layers::sync(open(host, layer.id)?.as_fd())?;
    Ok(host.store.layer_durable(layer.id)?)
}

/// One layer in place of a stack: the same is seen, in fewer steps.
pub fn squash(host: &Host, id: SandboxId, stack: &[LayerRecord]) -> Result<(), Error> {
    let Some(head) = stack.first() else {
        return Ok(());
    };
    let base_path = host.home.base(head.base);
    let base = File::open(&base_path).map_err(|source| Error::ReadFile {
        path: base_path,
        source,
    })?;
    let opened: Vec<OwnedFd> = stack
        .iter()
        .map(|layer| open(host, layer.id).map(OwnedFd::from))
        .collect::<Result<_, _>>()?;
    let borrowed: Vec<_> = opened.iter().map(OwnedFd::as_fd).collect();
    let parent = File::open(host.home.layers()).map_err(|source| Error::ReadFile {
        path: host.home.layers(),
        source,
    })?;
    let merged = LayerId::random()?;
    host.store.insert_squashed(merged, head)?;
    layers::merge(
        &borrowed,
        Some(base.as_fd()),
        parent.as_fd(),
        merged.as_str().as_bytes(),
    )?;
    layers::sync(open(host, merged)?.as_fd())?;
    host.store.layer_made(merged)?;
    host.store.layer_durable(merged)?;
    let _shaping = host.shape(id)?;
    host.store.replace_head(id, head.id, merged)?;
    Ok(())
}

fn open(host: &Host, layer: LayerId) -> Result<File, Error> {
    let path = host.home.layer(layer);
    File::open(&path).map_err(|source| Error::ReadFile { path, source })
}

fn discarded(host: &Host, id: SandboxId) -> Vec<String> {
    let entries = std::fs::read_dir(host.home.sandbox(id));
    entries
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with(DISCARDED))
        .collect()
}
