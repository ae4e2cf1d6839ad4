//! What can wait: writing sealed layers to the disk, making deep stacks flat, and removing what was
//! rolled back. Done by a process of its own that nobody waits for.

use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::{Command, Stdio};

use super::recover::remove_from;
use super::{Host, remove};
use crate::error::Error;
use crate::fail;
use crate::ids::{LayerId, SandboxId};
use crate::layers;
use crate::store::LayerRecord;

/// The beginning of names of what was rolled back.
pub(super) const DISCARDED: &str = "discarded-";
/// BOUND: each layer costs every start a mount and every look-up a step; this many are not felt.
pub const DEEP: usize = 12;

/// Starts it where there is anything to do; that it could not be started is found by the next one.
pub(super) fn later(host: &Host, id: SandboxId) {
    // A store that does not answer now may do so later.
    if !is_needed(host, id).unwrap_or(true) {
        return;
    }
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

/// A process costs more than all that is asked here.
fn is_needed(host: &Host, id: SandboxId) -> Result<bool, Error> {
    Ok(!listed(host, id).is_empty() || host.store.needs_settling(id, DEEP)?)
}

/// Does it all for one sandbox.
pub fn settle(host: &Host, id: SandboxId) -> Result<(), Error> {
    // Whoever started this may end at any time, with its terminal.
    let _ = rustix::process::setsid();
    for name in discarded(host, id)? {
        remove_from(&host.home.sandbox(id), &name)?;
    }
    fail::point("settle:cleared");
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
    durable(host, layer.id)
}

/// Syncs a layer, counts it, and says so.
fn durable(host: &Host, id: LayerId) -> Result<(), Error> {
    let tree = open(host, id)?;
    layers::sync(tree.as_fd())?;
    fail::point("settle:synced");
    let usage = layers::usage(tree.as_fd(), &mut layers::Inodes::default())?;
    Ok(host.store.layer_durable(id, usage.bytes, usage.inodes)?)
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
    let covers = host.store.lineage(Some(head.id))?;
    host.store.insert_squashed(merged, head.base, &covers)?;
    fail::point("squash:recorded");
    layers::merge(
        &borrowed,
        Some(base.as_fd()),
        parent.as_fd(),
        merged.as_str().as_bytes(),
    )?;
    fail::point("squash:merged");
    let tree = open(host, merged)?;
    layers::sync(tree.as_fd())?;
    let usage = layers::usage(tree.as_fd(), &mut layers::Inodes::default())?;
    let _shaping = host.shape(id)?;
    let taken = (usage.bytes, usage.inodes);
    if !host.store.squashed(id, head.id, merged, taken)? {
        remove::remove_layer(host, merged)?;
    }
    fail::point("squash:done");
    Ok(())
}

fn open(host: &Host, layer: LayerId) -> Result<File, Error> {
    let path = host.home.layer(layer);
    File::open(&path).map_err(|source| Error::ReadFile { path, source })
}

/// What was thrown away, and what a killed `diff` left. Listed under the lock, as a living `diff`
/// holds it for as long as it needs its own.
pub(super) fn discarded(host: &Host, id: SandboxId) -> Result<Vec<String>, Error> {
    let path = host.home.sandbox(id);
    if !path.is_dir() {
        return Ok(Vec::new());
    }
    let _shaping = host.shape(id)?;
    Ok(listed(host, id))
}

/// The same, for who holds the lock.
fn listed(host: &Host, id: SandboxId) -> Vec<String> {
    let entries = std::fs::read_dir(host.home.sandbox(id));
    entries
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with(DISCARDED))
        .collect()
}
