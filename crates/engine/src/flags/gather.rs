//! What is read of the folder and the layer for the rules, beside the patch: both sides of a few
//! small files, where links lead, and which names lie beside new ones.

use std::collections::{BTreeMap, BTreeSet};

use ringfence_model::ByteText;
use ringfence_model::changes::{Change, ChangeKind, FileMode};
use ringfence_model::paths::runs::is_manifest;

use super::{recipes, settings};
use crate::changes::{self, Sources};

/// BOUND: of a manifest that is compared.
const MANIFEST_BYTES: u64 = 1 << 20;
/// BOUND: manifests and links that are read.
const READ: usize = 2000;
/// BOUND: directories whose names are looked at, and names of each.
const DIRECTORIES: usize = 2000;
const NAMES: usize = 20_000;

/// What was read.
#[derive(Clone, Debug, Default)]
pub struct Gathered {
    /// Both sides of files of which the parts matter one by one, by path.
    pub sides: BTreeMap<ByteText, Sides>,
    /// Where new links lead, by path.
    pub links: BTreeMap<ByteText, Vec<u8>>,
    /// What the base has and the change set leaves, by directory (without a slash at its end).
    pub beside: BTreeMap<Vec<u8>, Vec<Vec<u8>>>,
    /// Some of it was too much to be read.
    pub cut: bool,
}

/// A file before and after.
#[derive(Clone, Debug, Default)]
pub struct Sides {
    pub old: Option<Vec<u8>>,
    pub new: Option<Vec<u8>>,
}

/// Reads it. What cannot be read is not there; the patch was made of the same files just before.
pub fn gather(sources: &Sources, changes: &[Change]) -> Gathered {
    let mut gathered = Gathered::default();
    let mut directories = BTreeSet::new();
    for change in changes {
        let read = gathered.sides.len() + gathered.links.len();
        let link = change
            .new
            .as_ref()
            .is_some_and(|new| new.mode == FileMode::Symlink);
        let path = change.path.as_bytes();
        let told = is_manifest(path) || recipes::is_recipes(path) || settings::is_settings(path);
        let told = told && !change.binary;
        if (link || told) && read >= READ {
            gathered.cut = true;
        } else if link {
            if let Some(target) = changes::new_bytes(sources, change, MANIFEST_BYTES) {
                gathered.links.insert(change.path.clone(), target);
            }
        } else if told {
            let sides = Sides {
                old: changes::old_bytes(sources, change, MANIFEST_BYTES),
                new: changes::new_bytes(sources, change, MANIFEST_BYTES),
            };
            gathered.sides.insert(change.path.clone(), sides);
        }
        if matches!(change.kind, ChangeKind::Added | ChangeKind::Renamed { .. }) {
            // The deepest first: above one that is known, all are.
            for directory in above(change.path.as_bytes()) {
                if !directories.insert(directory.to_vec()) {
                    break;
                }
            }
        }
    }
    gathered.cut |= directories.len() > DIRECTORIES;
    for directory in directories.into_iter().take(DIRECTORIES) {
        let names = changes::names_left(sources, &directory, NAMES);
        gathered.cut |= names.len() == NAMES;
        gathered.beside.insert(directory, names);
    }
    gathered
}

/// The directories above a path, the deepest first, the top (which is empty) last.
pub(super) fn above(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    let directories = slashes.rev().map(|(at, _)| &path[..at]);
    directories.chain(std::iter::once(&path[..0]))
}
