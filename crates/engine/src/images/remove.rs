//! Removing images, and what no image needs.
//!
//! INVARIANT: the row goes first. What is left of files then belongs to nobody, and is removed when
//! nobody adds an image: the one who does may rely on layers that no row names yet.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use ringfence_model::image::{Digest, Reference};

use super::shelf::Shelf;
use super::{ImageError, look_up};
use crate::fail;
use crate::home::Home;
use crate::lock::FileLock;
use crate::store::Store;

/// What became of an image that was to be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removed {
    /// It has other names, and stays.
    NameOnly,
    All,
    /// Its layers are removed by `gc`, as somebody adds an image just now.
    LayersLater,
}

/// Removes a name; with the last one, or by its digest, the image.
pub fn remove(home: &Home, store: &Store, text: &str) -> Result<Removed, ImageError> {
    let record = look_up(store, text)?;
    let named: Option<Reference> = match text.parse() {
        Ok(name) if store.image_named(&name)?.is_some() => Some(name),
        _ => None,
    };
    if let Some(name) = named
        && record.names.len() > 1
    {
        store.remove_image_name(&name)?;
        return Ok(Removed::NameOnly);
    }
    if !remove_unused(home, store, record.digest)? {
        let mut users = store.image_uses(record.digest)?;
        if users.is_empty() {
            users.push("something runs on it".to_owned());
        }
        return Err(ImageError::InUse {
            reference: text.to_owned(),
            users: users.join(", "),
        });
    }
    if FileLock::take(&Shelf::open(home)?.lock())?.is_none() {
        return Ok(Removed::LayersLater);
    }
    for leftover in leftovers(home, store)? {
        remove_leftover(home, store, &leftover)?;
    }
    Ok(Removed::All)
}

/// Forgets an image that nothing stands on and nobody runs on; false where something does.
pub fn remove_unused(home: &Home, store: &Store, digest: Digest) -> Result<bool, ImageError> {
    let shelf = Shelf::open(home)?;
    let path = shelf.use_lock(digest);
    let Some(_lock) = FileLock::take(&path)? else {
        return Ok(false);
    };
    // Only now: whoever comes to stand on it holds the lock until that is recorded.
    if !store.image_uses(digest)?.is_empty() {
        return Ok(false);
    }
    store.remove_image(digest)?;
    fail::point("image:forgot");
    // Whoever waits for this lock sees that it has no name any more, and takes another.
    let _ = std::fs::remove_file(path);
    Ok(true)
}

/// A file or directory that no image needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    pub path: PathBuf,
    pub why: &'static str,
}

/// All of them; none while somebody adds an image.
pub fn leftovers(home: &Home, store: &Store) -> Result<Vec<Leftover>, ImageError> {
    let shelf = Shelf::open(home)?;
    let Some(_alone) = FileLock::take(&shelf.lock())? else {
        return Ok(Vec::new());
    };
    found(&shelf, store)
}

/// Removes one of them, unless it came into use; nothing while somebody adds an image.
pub fn remove_leftover(home: &Home, store: &Store, leftover: &Leftover) -> Result<(), ImageError> {
    let shelf = Shelf::open(home)?;
    let Some(_alone) = FileLock::take(&shelf.lock())? else {
        return Ok(());
    };
    if !found(&shelf, store)?.contains(leftover) {
        return Ok(());
    }
    store.forget_unused_image_layers()?;
    if let (Some(directory), Some(name)) = (
        leftover.path.parent(),
        leftover.path.file_name().and_then(|name| name.to_str()),
    ) {
        shelf.remove(directory, name)?;
    }
    Ok(())
}

fn found(shelf: &Shelf, store: &Store) -> Result<Vec<Leftover>, ImageError> {
    let mut found = Vec::new();
    let images = store.images()?;
    let layers: BTreeSet<String> = images
        .iter()
        .flat_map(|image| image.layers.iter().map(Digest::hex))
        .collect();
    // Layers before their lists, so that a layer without a list is never taken for whole.
    let mut lists = Vec::new();
    for path in names(&shelf.layers())? {
        let name = name_of(&path);
        let diff = name.strip_suffix(".list").unwrap_or(&name);
        if !layers.contains(diff) {
            let leftover = Leftover {
                why: "no image has this layer",
                path,
            };
            if name.ends_with(".list") {
                lists.push(leftover)
            } else {
                found.push(leftover)
            }
        }
    }
    found.append(&mut lists);
    for path in names(&shelf.partials())? {
        found.push(Leftover {
            why: "a pull was not finished",
            path,
        });
    }
    let documents: BTreeSet<String> = images
        .iter()
        .flat_map(|image| image.documents.iter().map(Digest::hex))
        .collect();
    for path in names(&shelf.blobs())? {
        if !documents.contains(&name_of(&path)) {
            found.push(Leftover {
                why: "no image has this document",
                path,
            });
        }
    }
    Ok(found)
}

fn name_of(path: &Path) -> String {
    path.file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
}

fn names(directory: &Path) -> Result<Vec<PathBuf>, ImageError> {
    let read = || -> std::io::Result<Vec<PathBuf>> {
        std::fs::read_dir(directory)?
            .map(|entry| Ok(entry?.path()))
            .collect()
    };
    let mut paths = read().map_err(|source| ImageError::Access {
        what: "list",
        path: directory.to_owned(),
        source,
    })?;
    paths.sort();
    Ok(paths)
}
