//! Who takes how much of the disk: each byte counted once, what is shared apart from what is one's
//! own.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::AsFd as _;
use std::path::Path;

use super::Host;
use crate::environment;
use crate::error::Error;
use crate::layers::{self, Inodes, Usage};

/// One thing in the home, and what would be free without it.
#[derive(Clone, Debug)]
pub struct Part {
    pub what: &'static str,
    pub id: String,
    /// For a person.
    pub label: String,
    /// Bytes that nothing else has a name for.
    pub unique: Usage,
    /// What stands on it; of environments and caches, whether something does.
    pub users: usize,
}

/// All parts: mirrors, bases, layers, sandboxes, images, environments, caches, bundles.
pub fn parts(host: &Host) -> Result<Vec<Part>, Error> {
    let mut seen = Inodes::default();
    let mut parts = Vec::new();
    let sandboxes = host.store.sandboxes()?;
    for mirror in host.store.mirrors()? {
        let users = host
            .store
            .bases()?
            .iter()
            .filter(|base| base.mirror == Some(mirror.id))
            .count();
        parts.push(Part {
            what: "mirror",
            id: mirror.id.to_string(),
            label: mirror.source,
            unique: of(&host.home.mirror(mirror.id), &mut seen),
            users,
        });
    }
    for base in host.store.bases()? {
        parts.push(Part {
            what: "base",
            id: base.id.to_string(),
            label: base.key.clone(),
            unique: of(&host.home.base(base.id), &mut seen),
            users: sandboxes
                .iter()
                .filter(|sandbox| sandbox.base == base.id)
                .count(),
        });
    }
    let mut stacks = Vec::new();
    for sandbox in &sandboxes {
        let mut stack = host.store.stack(sandbox.head).unwrap_or_default();
        for checkpoint in host.store.checkpoints(sandbox.id)? {
            stack.extend(host.store.stack(checkpoint.layer).unwrap_or_default());
        }
        stacks.push(stack);
    }
    for layer in host.store.layers()? {
        parts.push(Part {
            what: "layer",
            id: layer.id.to_string(),
            label: String::new(),
            unique: of(&host.home.layer(layer.id), &mut seen),
            users: stacks
                .iter()
                .filter(|stack| stack.iter().any(|other| other.id == layer.id))
                .count(),
        });
    }
    for sandbox in &sandboxes {
        parts.push(Part {
            what: "sandbox",
            id: sandbox.id.to_string(),
            label: sandbox.name.clone().unwrap_or_default(),
            unique: of(&host.home.sandbox(sandbox.id), &mut seen),
            users: 1,
        });
    }
    let mut counted = BTreeSet::new();
    for image in host.store.images()? {
        let mut unique = Usage::default();
        // The first image that has a layer pays for it.
        for layer in &image.layers {
            if counted.insert(*layer) {
                let found = of(&host.home.image_layer(*layer), &mut seen);
                unique.bytes += found.bytes;
                unique.inodes += found.inodes;
            }
        }
        parts.push(Part {
            what: "image",
            id: image.digest.to_string(),
            label: image.names.join(", "),
            unique,
            users: host.store.image_uses(image.digest)?.len(),
        });
    }
    for record in environment::list(&host.store)? {
        parts.push(Part {
            what: "environment",
            unique: of(&host.home.environment(&record.key), &mut seen),
            users: usize::from(record.in_use),
            label: record.setup,
            id: record.key,
        });
    }
    for cache in environment::shared_caches(&host.home, &host.store)? {
        parts.push(Part {
            what: "cache",
            unique: of(&cache.place, &mut seen),
            users: usize::from(cache.in_use),
            label: cache.kind.to_owned(),
            id: cache.scope,
        });
    }
    parts.push(Part {
        what: "bundles",
        id: String::new(),
        label: String::new(),
        unique: of(&host.home.bundles(), &mut seen),
        users: 0,
    });
    Ok(parts)
}

/// What cannot be counted counts for nothing; it is listed all the same.
fn of(path: &Path, seen: &mut Inodes) -> Usage {
    File::open(path)
        .ok()
        .and_then(|tree| layers::usage(tree.as_fd(), seen).ok())
        .unwrap_or_default()
}
