//! Where images are kept on the disk, and how a layer comes to be there: whole, synced, named last.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ringfence_model::image::Digest;
use rustix::fs::{CWD, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};

use super::list::{self, Listed};
use super::{ImageError, Note, Spent};
use crate::changes::remove_tree;
use crate::durable::{self, Existing};
use crate::home::Home;
use crate::ids::LayerId;
use crate::lock::FileLock;
use crate::store::ImageLayerRecord;

/// How the names begin of what is being unpacked.
pub(super) const MAKING: &str = "making-";

const DIRECTORIES: [&str; 4] = ["layers", "blobs", "partial", "uses"];

#[derive(Clone, Debug)]
pub(super) struct Shelf {
    root: PathBuf,
    /// What was unpacked here since it was opened.
    pub spent: Arc<Spent>,
}

/// A layer that is unpacked and has no name yet. Dropped, it is gone.
#[derive(Debug)]
pub(super) struct Making {
    shelf: Shelf,
    name: String,
    pub root: Option<OwnedFd>,
}

impl Shelf {
    pub fn open(home: &Home) -> Result<Self, ImageError> {
        let root = home.images();
        for name in DIRECTORIES {
            let path = root.join(name);
            match rustix::fs::mkdir(&path, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(access("make", path, errno)),
            }
        }
        let spent = Arc::default();
        Ok(Self { root, spent })
    }

    pub fn layers(&self) -> PathBuf {
        self.root.join("layers")
    }

    pub fn layer(&self, diff: Digest) -> PathBuf {
        self.layers().join(diff.hex())
    }

    pub fn list(&self, diff: Digest) -> PathBuf {
        self.layers().join(format!("{}.list", diff.hex()))
    }

    pub fn blobs(&self) -> PathBuf {
        self.root.join("blobs")
    }

    pub fn partials(&self) -> PathBuf {
        self.root.join("partial")
    }

    pub fn partial(&self, blob: Digest) -> PathBuf {
        self.partials().join(blob.hex())
    }

    /// Held by whoever downloads a blob.
    pub fn partial_lock(&self, blob: Digest) -> PathBuf {
        self.partials().join(format!("{}.lock", blob.hex()))
    }

    pub fn use_lock(&self, image: Digest) -> PathBuf {
        self.root.join("uses").join(format!("{}.lock", image.hex()))
    }

    /// Held, together, by all who add; alone by who sweeps.
    pub fn lock(&self) -> PathBuf {
        self.root.join("lock")
    }

    pub fn share(&self, on_wait: impl FnMut()) -> Result<FileLock, ImageError> {
        // Whoever was killed left what it was unpacking, and nobody goes on with that.
        if let Some(_alone) = FileLock::take(&self.lock())? {
            self.remove_unfinished()?;
        }
        Ok(FileLock::wait_shared(&self.lock(), on_wait)?)
    }

    fn remove_unfinished(&self) -> Result<(), ImageError> {
        let path = self.partials();
        let failed = |source| ImageError::Access {
            what: "list",
            path: path.clone(),
            source,
        };
        for entry in std::fs::read_dir(&path).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            if let Some(name) = name.to_str().filter(|name| name.starts_with(MAKING)) {
                self.remove(&path, name)?;
            }
        }
        Ok(())
    }

    /// What is known of a layer that is here; its list is named before it and removed after it.
    pub fn record(&self, diff: Digest) -> Result<Option<ImageLayerRecord>, ImageError> {
        if !self.layer(diff).is_dir() {
            return Ok(None);
        }
        let path = self.list(diff);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => {
                return Err(ImageError::Access {
                    what: "read",
                    path,
                    source,
                });
            }
        };
        Ok(list::read(&bytes).map(|list| summary(diff, &bytes, &list)))
    }

    /// Keeps a document as it came.
    pub fn keep_blob(&self, digest: Digest, bytes: &[u8]) -> Result<(), ImageError> {
        let path = self.blobs().join(digest.hex());
        durable::write_file(&path, bytes, Existing::Replace)?;
        Ok(())
    }

    /// An empty directory to unpack into.
    pub fn make(&self) -> Result<Making, ImageError> {
        let name = format!("{MAKING}{}", LayerId::random()?);
        let path = self.partials().join(&name);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let root = rustix::fs::mkdir(&path, Mode::RWXU)
            .and_then(|()| rustix::fs::open(&path, flags, Mode::empty()))
            .map_err(|errno| access("make", path, errno))?;
        Ok(Making {
            shelf: self.clone(),
            name,
            root: Some(root),
        })
    }

    /// Everything that was written so far is on the disk when this returns.
    pub fn sync(&self) -> Result<(), ImageError> {
        let path = self.layers();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(&path, flags, Mode::empty())
            .and_then(rustix::fs::syncfs)
            .map_err(|errno| access("sync", path, errno))
    }

    /// The names of layers are on the disk when this returns.
    pub fn sync_names(&self) -> Result<(), ImageError> {
        durable::sync_directory(&self.layers())?;
        Ok(durable::sync_directory(&self.blobs())?)
    }

    /// Removes a directory or file of the shelf.
    pub fn remove(&self, directory: &Path, name: &str) -> Result<(), ImageError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(directory, flags, Mode::empty())
            .map_err(|errno| access("open", directory.to_owned(), errno))?;
        Ok(remove_tree(fd.as_fd(), name.as_bytes())?)
    }
}

impl Making {
    /// Writes the list beside where the layer will be; without the layer it means nothing.
    pub fn write_list(
        &self,
        diff: Digest,
        list: &BTreeMap<Vec<u8>, Listed>,
    ) -> Result<ImageLayerRecord, ImageError> {
        let bytes = list::write(list);
        // Whoever makes the same layer writes the same.
        durable::write_file(&self.shelf.list(diff), &bytes, Existing::Replace)?;
        Ok(summary(diff, &bytes, list))
    }

    /// Gives the layer its name; all of it was synced before. Where somebody else was faster, theirs
    /// stays.
    pub fn publish(mut self, diff: Digest) -> Result<(), ImageError> {
        self.root = None;
        let from = self.shelf.partials().join(&self.name);
        let to = self.shelf.layer(diff);
        match rustix::fs::renameat_with(CWD, &from, CWD, &to, RenameFlags::NOREPLACE) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(errno) => Err(access("name", to, errno)),
        }
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        // What cannot be removed now is removed by the next sweep; after `publish` it is not there.
        let _ = self.shelf.remove(&self.shelf.partials(), &self.name);
    }
}

fn summary(diff: Digest, bytes: &[u8], list: &BTreeMap<Vec<u8>, Listed>) -> ImageLayerRecord {
    ImageLayerRecord {
        diff,
        list: digest_of(bytes),
        entries: list.len() as u64,
        bytes: list.values().map(|listed| listed.size).sum(),
    }
}

/// The digest of some bytes.
pub(super) fn digest_of(bytes: &[u8]) -> Digest {
    Digest::from_bytes(Sha256::digest(bytes).into())
}

/// Tells a person what the unpacking left out.
pub(super) fn merge_notes(all: &mut Vec<Note>, more: Vec<Note>) {
    for note in more {
        match all.iter_mut().find(|known| known.what == note.what) {
            Some(known) => known.count += note.count,
            None => all.push(note),
        }
    }
}

pub(super) fn access(what: &'static str, path: PathBuf, errno: Errno) -> ImageError {
    ImageError::Access {
        what,
        path,
        source: errno.into(),
    }
}
