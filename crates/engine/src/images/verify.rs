//! Whether the layers of an image are still what was unpacked.
//!
//! The store has the digest of each layer's list, and the list the digest of each file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;

use ringfence_model::ByteText;
use ringfence_model::image::Digest;
use rustix::fs::{Mode, OFlags};
use sha2::{Digest as _, Sha256};

use super::list::{self, Difference, Listed, ListedKind};
use super::shelf::{Shelf, access, digest_of};
use super::{ImageError, look_up};
use crate::changes::descent::{Descent, Step, push_name};
use crate::changes::handle::{self, Access, Kind};
use crate::home::Home;
use crate::store::Store;

/// BOUND: differences that are told of one layer.
const TOLD: usize = 100;

/// What was found of one layer.
#[derive(Clone, Debug)]
pub struct VerifiedLayer {
    pub diff: Digest,
    pub differences: Vec<Difference>,
    /// More differences than are told.
    pub more: bool,
}

/// Digests all layers of an image again, the topmost last.
pub fn verify(home: &Home, store: &Store, text: &str) -> Result<Vec<VerifiedLayer>, ImageError> {
    let record = look_up(store, text)?;
    let shelf = Shelf::open(home)?;
    let mut layers = Vec::new();
    for diff in record.layers {
        let known = store.image_layer(diff)?.map(|layer| layer.list);
        let mut found = Found::default();
        layer(&shelf, diff, known, &mut found)?;
        layers.push(VerifiedLayer {
            diff,
            differences: found.differences,
            more: found.more,
        });
    }
    Ok(layers)
}

#[derive(Default)]
struct Found {
    differences: Vec<Difference>,
    more: bool,
}

impl Found {
    fn add(&mut self, path: &[u8], what: impl Into<String>) {
        if self.differences.len() < TOLD {
            self.differences.push(Difference {
                path: ByteText::from(path),
                what: what.into(),
            })
        } else {
            self.more = true
        }
    }
}

fn layer(
    shelf: &Shelf,
    diff: Digest,
    known: Option<Digest>,
    found: &mut Found,
) -> Result<(), ImageError> {
    let bytes = match std::fs::read(shelf.list(diff)) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(source) => {
            return Err(ImageError::Access {
                what: "read",
                path: shelf.list(diff),
                source,
            });
        }
    };
    let list = list::read(&bytes).filter(|_| known == Some(digest_of(&bytes)));
    let Some(mut list) = list else {
        found.add(b"", "the list of what is in the layer is damaged or gone");
        return Ok(());
    };
    let path = shelf.layer(diff);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = match rustix::fs::open(&path, flags, Mode::empty()) {
        Ok(root) => root,
        Err(rustix::io::Errno::NOENT) => {
            found.add(b"", "the layer is gone");
            return Ok(());
        }
        Err(errno) => return Err(access("open", path, errno)),
    };
    walk(root.as_fd(), &mut list, found).map_err(|source| ImageError::Access {
        what: "read",
        path,
        source,
    })?;
    for (path, _) in list {
        found.add(&path, "is gone");
    }
    Ok(())
}

/// Takes from the list what is there.
fn walk(
    root: std::os::fd::BorrowedFd<'_>,
    list: &mut BTreeMap<Vec<u8>, Listed>,
    found: &mut Found,
) -> io::Result<()> {
    let (mut descent, _) = Descent::new(root, Access::Widen)?;
    let mut path = Vec::new();
    let mut ends = Vec::new();
    let mut mode = handle::look_at(root)?.mode;
    loop {
        let listed = list.remove(&path);
        directory(&mut descent, &mut path, mode, listed, list, found)?;
        loop {
            match descent.advance()? {
                Some(Step::Entered(name, meta)) => {
                    ends.push(push_name(&mut path, &name));
                    // What it is before it was widened.
                    mode = meta.mode;
                    break;
                }
                Some(Step::Left) => path.truncate(ends.pop().unwrap_or(0)),
                Some(Step::Closed(_, error)) => return Err(error),
                None => return Ok(()),
            }
        }
    }
}

fn directory(
    descent: &mut Descent,
    path: &mut Vec<u8>,
    mode: u32,
    listed: Option<Listed>,
    list: &mut BTreeMap<Vec<u8>, Listed>,
    found: &mut Found,
) -> io::Result<()> {
    let opaque = handle::attribute(descent.here(), "user.overlay.opaque")?;
    let kind = match opaque.as_deref() {
        Some(b"y") => ListedKind::OpaqueDirectory,
        _ => ListedKind::Directory,
    };
    compare(path, listed, kind, mode, || Ok((0, [0; 32])), found)?;
    for name in handle::names(descent.here(), usize::MAX)? {
        let Some(meta) = handle::look(descent.here(), &name)? else {
            continue;
        };
        let end = push_name(path, &name);
        if meta.kind == Kind::Directory {
            path.truncate(end);
            descent.queue(name);
            continue;
        }
        let listed = list.remove(path.as_slice());
        let here = descent.here();
        match meta.kind {
            Kind::Whiteout => {
                compare(
                    path,
                    listed,
                    ListedKind::Whiteout,
                    0,
                    || Ok((0, [0; 32])),
                    found,
                )?;
            }
            Kind::Symlink => {
                let (target, _) = handle::read_link(here, &name, Access::Widen)?;
                let hash = || Ok((target.len() as u64, Sha256::digest(&target).into()));
                compare(path, listed, ListedKind::Symlink, 0, hash, found)?;
            }
            Kind::File => {
                let hash = || {
                    crate::layers::with_file(here, &name, Access::Widen, |file, meta| {
                        let file = File::from(file.try_clone_to_owned()?);
                        Ok((meta.size, list::hash_file(&file)?))
                    })
                };
                compare(path, listed, ListedKind::File, meta.mode, hash, found)?;
            }
            Kind::Directory | Kind::Special => found.add(path, "is nothing that was unpacked"),
        }
        path.truncate(end);
    }
    Ok(())
}

fn compare(
    path: &[u8],
    listed: Option<Listed>,
    kind: ListedKind,
    mode: u32,
    content: impl FnOnce() -> io::Result<(u64, [u8; 32])>,
    found: &mut Found,
) -> io::Result<()> {
    let Some(listed) = listed else {
        found.add(path, "was not in the image");
        return Ok(());
    };
    if listed.kind != kind {
        let text = format!("is {}, and was {}", kind.text(), listed.kind.text());
        found.add(path, text);
        return Ok(());
    }
    if listed.mode != mode {
        let text = format!("has the mode {mode:04o}, and had {:04o}", listed.mode);
        found.add(path, text);
    }
    if content()? != (listed.size, listed.hash) {
        found.add(path, "has another content");
    }
    Ok(())
}
