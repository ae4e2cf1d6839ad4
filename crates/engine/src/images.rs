//! Images without Docker: pulled from a registry or imported from a file, unpacked once into layers
//! that sandboxes share.
//!
//! ```text
//! images/
//! ├── lock                 shared by whoever adds, alone for whoever sweeps
//! ├── layers/<diff>/       an unpacked layer, read-only, named only when it is on the disk
//! ├── layers/<diff>.list   what is in it (list.rs)
//! ├── blobs/<digest>       manifests and configurations, as they came
//! ├── partial/<digest>     what was downloaded of a blob; the next pull goes on from there
//! ├── partial/making-*     a layer that is being unpacked
//! └── uses/<digest>.lock   held, together, by whoever runs something on the image
//! ```
//!
//! A layer is what overlayfs takes as a lower directory: whiteouts are character devices 0:0, opaque
//! directories have `user.overlay.opaque`, and it is mounted with `userxattr`. Made by root, its
//! files have the owners of the image, 0 to 65535, to be shown by an idmapped mount; made by anybody
//! else, all files are the caller's. No file has a bit that changes the user, and there is no device
//! and no FIFO.
//!
//! HOSTILE: whoever made an image chose all of it, and a registry may send anything. Every byte is
//! checked against a digest before it means something, but a digest only says that it is what its
//! maker meant.

mod config;
mod credentials;
mod decode;
mod download;
mod error;
mod import;
mod list;
mod manifest;
mod pull;
mod registry;
mod remove;
mod shelf;
pub(crate) mod tar;
#[cfg(test)]
mod tests;
mod unpack;
mod verify;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use ringfence_model::ByteText;
use ringfence_model::image::{Digest, Reference};

use crate::home::Home;
use crate::lock::FileLock;
use crate::store::{ImageRecord, Store};

pub use config::ImageConfig;
pub use error::ImageError;
pub use import::import;
pub use list::Difference;
pub use pull::{LayerSize, PullOptions, pull};
pub use remove::{Leftover, Removed, leftovers, remove, remove_leftover, remove_unused};
pub use verify::{VerifiedLayer, verify};

use shelf::Shelf;

/// BOUND: the fewest digits by which an image is named without `sha256:`.
const SHORT_DIGITS: usize = 12;

/// An image that is here, whole.
#[derive(Clone, Debug, PartialEq)]
pub struct Image {
    /// Of the manifest; of the configuration where there is no manifest.
    pub digest: String,
    /// As it was asked for.
    pub reference: String,
    /// Unpacked layers, the topmost first: read-only, whiteouts as character devices 0:0, opaque
    /// directories marked by `user.overlay.opaque`.
    pub layers: Vec<PathBuf>,
    pub config: ImageConfig,
}

/// How much an image may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Entries of one layer.
    pub entries: u64,
    /// Bytes of all their paths.
    pub names: u64,
    /// Bytes of one layer when it is unpacked.
    pub bytes: u64,
    /// How many times its size a layer may unpack to, from so many bytes on.
    pub ratio: u64,
    pub ratio_from: u64,
}

/// BOUND: the largest layers that people use have some 300,000 files and 15 GB; text packs to a
/// tenth, and only zeros to less than a hundredth.
const BOUNDS: Bounds = Bounds {
    entries: 500_000,
    names: 64 << 20,
    bytes: 64 << 30,
    ratio: 250,
    ratio_from: 256 << 20,
};

/// BOUND: layers of one image have together so many times what one may have.
const LAYERS_TOGETHER: u64 = 2;

/// What all layers of one pull or import have had so far.
#[derive(Debug, Default)]
pub(crate) struct Spent {
    entries: AtomicU64,
    names: AtomicU64,
    bytes: AtomicU64,
}

impl Spent {
    /// Adds an entry. `false`: there are too many, or they are too large.
    fn takes(&self, bounds: &Bounds, names: u64, bytes: u64) -> bool {
        let add = |to: &AtomicU64, more: u64, most: u64| {
            let before = to.fetch_add(more, Ordering::Relaxed);
            before.saturating_add(more) <= most.saturating_mul(LAYERS_TOGETHER)
        };
        add(&self.entries, 1, bounds.entries)
            & add(&self.names, names, bounds.names)
            & add(&self.bytes, bytes, bounds.bytes)
    }
}

/// Something of an image that was left out, and how often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    pub what: &'static str,
    pub count: u64,
    /// The first path it was so with.
    pub first: ByteText,
}

#[derive(Debug, Default)]
struct Noted(Vec<Note>);

impl Noted {
    fn add(&mut self, what: &'static str, path: &[u8]) {
        match self.0.iter_mut().find(|note| note.what == what) {
            Some(note) => note.count += 1,
            None => self.0.push(Note {
                what,
                count: 1,
                first: ByteText::from(path),
            }),
        }
    }

    fn into_notes(self) -> Vec<Note> {
        self.0
    }
}

/// What happens while an image is pulled or imported.
#[derive(Clone, Debug)]
pub enum Event {
    /// Which image it is, and what it is made of.
    Found {
        digest: Digest,
        layers: Vec<LayerSize>,
    },
    /// Another process is at this layer, or removes images.
    Waiting,
    /// So many bytes of a layer are here.
    Downloaded {
        layer: usize,
        bytes: u64,
    },
    Retrying {
        why: String,
        seconds: u64,
    },
    Unpacking {
        layer: usize,
    },
    Unpacked {
        layer: usize,
    },
    Noted(Note),
    /// A name is another image's from now on.
    Renamed {
        name: String,
        before: Digest,
    },
}

/// Who is told.
pub trait Progress {
    fn happened(&mut self, event: Event);
}

/// The image of a name or a digest that is here.
pub fn find(home: &Home, store: &Store, reference: &str) -> Result<Image, ImageError> {
    let record = look_up(store, reference)?;
    let shelf = Shelf::open(home)?;
    Ok(image(&shelf, record, reference))
}

/// All images, the least recently used first, with the bytes of their layers. Layers that several
/// images have count for each of them.
pub fn all(store: &Store) -> Result<Vec<(ImageRecord, u64)>, ImageError> {
    store
        .images()?
        .into_iter()
        .map(|record| {
            let mut bytes = 0;
            for layer in &record.layers {
                bytes += store.image_layer(*layer)?.map_or(0, |layer| layer.bytes);
            }
            Ok((record, bytes))
        })
        .collect()
}

/// As long as it is kept, nobody removes the image.
#[derive(Debug)]
pub struct Hold {
    _lock: FileLock,
}

/// Keeps an image from being removed while something runs on it.
pub fn hold(home: &Home, store: &Store, image: &Image) -> Result<Hold, ImageError> {
    let digest = image.digest.parse()?;
    let lock = FileLock::wait_shared(&Shelf::open(home)?.use_lock(digest), || ())?;
    // It may have been removed before the lock was ours.
    if store.image(digest)?.is_none() {
        return Err(ImageError::NotHere {
            reference: image.reference.clone(),
        });
    }
    store.touch_image(digest)?;
    Ok(Hold { _lock: lock })
}

fn image(shelf: &Shelf, record: ImageRecord, reference: &str) -> Image {
    Image {
        digest: record.digest.to_string(),
        reference: reference.to_owned(),
        layers: record
            .layers
            .iter()
            .rev()
            .map(|diff| shelf.layer(*diff))
            .collect(),
        config: record.config,
    }
}

/// By name, by digest, or by the first digits of one.
fn look_up(store: &Store, text: &str) -> Result<ImageRecord, ImageError> {
    let gone = || ImageError::NotHere {
        reference: text.chars().take(300).collect(),
    };
    if let Ok(digest) = text.parse::<Digest>() {
        return store.image(digest)?.ok_or_else(gone);
    }
    let digits = text.strip_prefix("sha256:").unwrap_or(text);
    if digits.len() >= SHORT_DIGITS && digits.bytes().all(|c| c.is_ascii_hexdigit()) {
        let mut found: Vec<ImageRecord> = store
            .images()?
            .into_iter()
            .filter(|image| image.digest.hex().starts_with(digits))
            .collect();
        match found.len() {
            0 => {}
            1 => return found.pop().ok_or_else(gone),
            _ => {
                return Err(ImageError::Ambiguous {
                    digits: digits.to_owned(),
                });
            }
        }
    }
    let reference: Reference = text.parse()?;
    if let Some(record) = store.image_named(&reference)? {
        return Ok(record);
    }
    // One that was pulled by its tag is also the one of its digest.
    match reference.digest() {
        Some(digest) => store.image(digest)?.ok_or_else(gone),
        None => Err(gone()),
    }
}
