//! Making a layer of a tar: what overlayfs can lay over the layers below it.
//!
//! | in the tar                    | on the disk                                              |
//! | ----------------------------- | -------------------------------------------------------- |
//! | file, directory, link         | the same; bits that change the user are dropped          |
//! | hard link                     | the same, to what is in this layer already               |
//! | `.wh.NAME`                    | character device 0:0 `NAME`, how an overlay says deleted |
//! | `.wh..wh..opq`                | `user.overlay.opaque` on its directory                   |
//! | device, FIFO                  | nothing; noted                                           |
//! | attribute `user.*`            | the same, but never one of the overlay's own             |
//! | any other attribute           | nothing; noted                                           |
//! | owner                         | as root: the same, 0 to 65535; else everything is ours   |
//!
//! HOSTILE: whoever made the image chose every entry. Names that climb, start at `/` or go through
//! a link are refused before anything is made; every parent is opened below the layer's own root by
//! `openat2`, which follows no link at all. Directories are ours alone until all is in place.
//!
//! INVARIANT: a layer has in it what the list says, and nothing else.

mod error;
mod names;
mod owners;
#[cfg(test)]
pub(super) mod tests;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;

use ringfence_model::image::Digest;
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, XattrFlags,
};
use sha2::{Digest as _, Sha256};

use super::decode::{Bomb, Decoded};
use super::list::{Listed, ListedKind};
use super::tar::{Entry, EntryKind, Reader, TarError};
use super::{Bounds, Note, Noted, Spent};
use error::{failed, make, refused};
use names::Name;

pub use error::UnpackError;
pub(super) use owners::Owners;

/// The marker by which an overlay hides what is below a directory.
const OPAQUE: &str = "user.overlay.opaque";
/// Whatever begins so is the overlay's own word.
const OVERLAY: &[u8] = b"user.overlay.";
/// BOUND: the kernel's own for one attribute.
const ATTRIBUTE_BYTES: usize = 64 << 10;
/// BOUND: the ids that a sandbox has inside.
const LAST_ID: u64 = 65535;
const NOBODY: u32 = 65534;
const BUFFER: usize = 128 << 10;

const RESOLVE: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// What became of a tar.
#[derive(Debug)]
pub(super) struct Unpacked {
    pub diff: Digest,
    pub list: BTreeMap<Vec<u8>, Listed>,
    pub notes: Vec<Note>,
}

/// Unpacks into an empty directory of ours.
pub(super) fn unpack(
    source: impl Read,
    root: OwnedFd,
    bounds: Bounds,
    spent: &Spent,
    owners: Owners,
) -> Result<Unpacked, UnpackError> {
    let decoded = Decoded::new(source, bounds).map_err(TarError::Read)?;
    let mut reader = Reader::new(decoded);
    let mut making = Making {
        root,
        owners,
        list: BTreeMap::new(),
        directories: BTreeMap::new(),
        parent: None,
        bytes: 0,
        noted: Noted::default(),
        buffer: vec![0; BUFFER],
    };
    making.directories.insert(Vec::new(), Directory::made());
    let (mut entries, mut names) = (0, 0);
    while let Some(entry) = reader.advance()? {
        entries += 1;
        if entries > bounds.entries {
            return Err(UnpackError::Entries(bounds.entries));
        }
        // All of them are in memory until the layer is whole.
        names += entry.path.len() as u64;
        if names > bounds.names {
            return Err(UnpackError::Names(bounds.names));
        }
        // HOSTILE: holes cost the maker nothing, and whoever reads them much.
        if entry.size > bounds.bytes.saturating_sub(making.bytes) {
            return Err(Bomb::Bytes(bounds.bytes).into());
        }
        if !spent.takes(&bounds, entry.path.len() as u64, entry.size) {
            return Err(UnpackError::Together);
        }
        making.add(&entry, &mut reader)?;
    }
    // The digest is of all bytes, also of those behind the last entry.
    reader.drain()?;
    let (_, diff) = reader.into_inner().finish();
    making.finish_directories()?;
    Ok(Unpacked {
        diff,
        list: making.list,
        notes: making.noted.into_notes(),
    })
}

struct Making {
    root: OwnedFd,
    owners: Owners,
    /// All that was made, but directories: those change until the end.
    list: BTreeMap<Vec<u8>, Listed>,
    directories: BTreeMap<Vec<u8>, Directory>,
    /// The directory that the last entry was made in: mostly the next one's, too.
    parent: Option<(Vec<u8>, OwnedFd)>,
    bytes: u64,
    noted: Noted,
    buffer: Vec<u8>,
}

#[derive(Clone, Debug)]
struct Directory {
    mode: u32,
    owner: (u32, u32),
    time: Timespec,
    opaque: bool,
}

impl Directory {
    /// One that the tar has no entry for.
    fn made() -> Self {
        Self {
            mode: 0o755,
            owner: (0, 0),
            time: Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
            opaque: false,
        }
    }
}

impl Making {
    fn add(&mut self, entry: &Entry, reader: &mut Reader<Decoded<'_>>) -> Result<(), UnpackError> {
        let name = names::read(&entry.path).map_err(|why| refused(&entry.path, why))?;
        match name {
            Name::Root => {
                self.describe_directory(&[], entry)?;
                Ok(())
            }
            Name::Opaque(directory) => {
                self.parent(&directory)?;
                self.mark_opaque(&directory)
            }
            Name::Whiteout(path) => self.white_out(path),
            Name::OfAufs => Ok(()),
            Name::Plain(path) => match entry.kind {
                Some(EntryKind::Directory) => self.directory(&path, entry),
                Some(EntryKind::File) => self.file(path, entry, reader),
                Some(EntryKind::Symlink) => self.symlink(path, entry),
                Some(EntryKind::HardLink) => self.hard_link(path, entry),
                Some(EntryKind::Special(what)) => {
                    self.noted.add(what, &path);
                    Ok(())
                }
                None => Err(refused(&path, "it is of no kind")),
            },
        }
    }

    fn directory(&mut self, path: &[u8], entry: &Entry) -> Result<(), UnpackError> {
        if !self.directories.contains_key(path) {
            self.parent_of(path)?;
            self.make_directory(path)?;
        }
        self.describe_directory(path, entry)
    }

    /// Makes a directory whose parent is there, in the place of what is there.
    fn make_directory(&mut self, path: &[u8]) -> Result<(), UnpackError> {
        let (above, name) = names::split(path);
        let was = self.clear(path)?;
        let parent = self.open(above)?;
        rustix::fs::mkdirat(&parent, name, Mode::RWXU).map_err(|e| make(path, e))?;
        self.directories.insert(path.to_vec(), Directory::made());
        if was == Some(ListedKind::Whiteout) {
            // Deleted below and made anew here: nothing of below shows in it.
            self.mark_opaque(path)?;
        }
        Ok(())
    }

    fn describe_directory(&mut self, path: &[u8], entry: &Entry) -> Result<(), UnpackError> {
        let owner = self.owner(path, entry);
        let mode = self.mode(path, entry.mode, 0o500);
        let fd = self.open(path)?;
        self.set_attributes(fd.as_fd(), path, entry)?;
        if let Some(directory) = self.directories.get_mut(path) {
            directory.mode = mode;
            directory.owner = owner;
            directory.time = time(entry);
        }
        Ok(())
    }

    fn file(
        &mut self,
        path: Vec<u8>,
        entry: &Entry,
        reader: &mut Reader<Decoded<'_>>,
    ) -> Result<(), UnpackError> {
        self.parent_of(&path)?;
        self.clear(&path)?;
        let (above, name) = names::split(&path);
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(self.open(above)?, name, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|e| make(&path, e))?;
        let mut file = File::from(fd);
        let hash = match &entry.pieces {
            None => self.content(&path, &mut file, reader)?,
            Some(pieces) => self.pieces(&path, &file, entry.size, pieces, reader)?,
        };
        let mode = self.mode(&path, entry.mode, 0o400);
        let owner = self.owner(&path, entry);
        self.set_attributes(file.as_fd(), &path, entry)?;
        let finish = || -> Result<(), rustix::io::Errno> {
            if self.owners == Owners::AsInTar {
                rustix::fs::fchown(
                    &file,
                    Some(Uid::from_raw(owner.0)),
                    Some(Gid::from_raw(owner.1)),
                )?;
            }
            rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
            rustix::fs::futimens(&file, &times(time(entry)))
        };
        finish().map_err(|e| make(&path, e))?;
        self.bytes += entry.size;
        let listed = Listed {
            kind: ListedKind::File,
            mode,
            size: entry.size,
            hash,
        };
        self.list.insert(path, listed);
        Ok(())
    }

    fn content(
        &mut self,
        path: &[u8],
        file: &mut File,
        reader: &mut Reader<Decoded<'_>>,
    ) -> Result<[u8; 32], UnpackError> {
        let mut hash = Sha256::new();
        loop {
            let length = reader.read(&mut self.buffer)?;
            if length == 0 {
                return Ok(hash.finalize().into());
            }
            hash.update(&self.buffer[..length]);
            file.write_all(&self.buffer[..length])
                .map_err(|e| failed(path, e))?;
        }
    }

    /// A sparse file: its holes stay holes.
    fn pieces(
        &mut self,
        path: &[u8],
        file: &File,
        size: u64,
        pieces: &[(u64, u64)],
        reader: &mut Reader<Decoded<'_>>,
    ) -> Result<[u8; 32], UnpackError> {
        rustix::fs::ftruncate(file, size).map_err(|e| make(path, e))?;
        for &(start, length) in pieces {
            let (mut at, end) = (start, start + length);
            while at < end {
                let most = usize::try_from(end - at).map_or(BUFFER, |left| left.min(BUFFER));
                let length = reader.read(&mut self.buffer[..most])?;
                if length == 0 {
                    return Err(TarError::CutOff.into());
                }
                file.write_all_at(&self.buffer[..length], at)
                    .map_err(|e| failed(path, e))?;
                at += length as u64;
            }
        }
        let file = self.reopen(path)?;
        super::list::hash_file(&file).map_err(|e| failed(path, e))
    }

    fn reopen(&mut self, path: &[u8]) -> Result<File, UnpackError> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat2(&self.root, path, flags, Mode::empty(), RESOLVE)
            .map(File::from)
            .map_err(|e| make(path, e))
    }

    fn symlink(&mut self, path: Vec<u8>, entry: &Entry) -> Result<(), UnpackError> {
        // HOSTILE: a target is text. Where it leads is decided inside, by whoever follows it.
        if entry.link.is_empty() || entry.link.contains(&0) || entry.link.len() > names::PATH_BYTES
        {
            return Err(refused(
                &path,
                "the target of the link is empty or too long",
            ));
        }
        self.parent_of(&path)?;
        self.clear(&path)?;
        let owner = self.owner(&path, entry);
        let (above, name) = names::split(&path);
        let owners = self.owners;
        let parent = self.open(above)?;
        let link = || -> Result<(), rustix::io::Errno> {
            rustix::fs::symlinkat(&entry.link[..], &parent, name)?;
            let nofollow = AtFlags::SYMLINK_NOFOLLOW;
            if owners == Owners::AsInTar {
                let (uid, gid) = (Uid::from_raw(owner.0), Gid::from_raw(owner.1));
                rustix::fs::chownat(&parent, name, Some(uid), Some(gid), nofollow)?;
            }
            rustix::fs::utimensat(&parent, name, &times(time(entry)), nofollow)
        };
        link().map_err(|e| make(&path, e))?;
        let listed = Listed {
            kind: ListedKind::Symlink,
            mode: 0,
            size: entry.link.len() as u64,
            hash: Sha256::digest(&entry.link).into(),
        };
        self.list.insert(path, listed);
        Ok(())
    }

    fn hard_link(&mut self, path: Vec<u8>, entry: &Entry) -> Result<(), UnpackError> {
        let outside = "it is a hard link to what is not in this layer";
        let target = match names::read(&entry.link) {
            Ok(Name::Plain(target)) if target != path => target,
            _ => return Err(refused(&path, outside)),
        };
        // INVARIANT: only what this layer made itself gets another name.
        let Some(listed) = self.list.get(&target).copied() else {
            return Err(refused(&path, outside));
        };
        if !matches!(listed.kind, ListedKind::File | ListedKind::Symlink) {
            return Err(refused(&path, outside));
        }
        self.parent_of(&path)?;
        self.clear(&path)?;
        let (from_above, from) = names::split(&target);
        let (above, name) = names::split(&path);
        let source = self.open(from_above)?;
        let parent = self.open(above)?;
        rustix::fs::linkat(&source, from, &parent, name, AtFlags::empty())
            .map_err(|e| make(&path, e))?;
        self.list.insert(path, listed);
        Ok(())
    }

    /// What is below `path` in lower layers is not there. What this layer has there stays.
    fn white_out(&mut self, path: Vec<u8>) -> Result<(), UnpackError> {
        if self.directories.contains_key(&path) {
            return self.mark_opaque(&path);
        }
        if self.list.contains_key(&path) {
            return Ok(());
        }
        self.parent_of(&path)?;
        let (above, name) = names::split(&path);
        rustix::fs::mknodat(
            self.open(above)?,
            name,
            FileType::CharacterDevice,
            Mode::empty(),
            0,
        )
        .map_err(|e| make(&path, e))?;
        let listed = Listed {
            kind: ListedKind::Whiteout,
            mode: 0,
            size: 0,
            hash: [0; 32],
        };
        self.list.insert(path, listed);
        Ok(())
    }

    fn mark_opaque(&mut self, path: &[u8]) -> Result<(), UnpackError> {
        let fd = self.open_to_read(path)?;
        rustix::fs::fsetxattr(&fd, OPAQUE, b"y", XattrFlags::empty()).map_err(|e| make(path, e))?;
        if let Some(directory) = self.directories.get_mut(path) {
            directory.opaque = true;
        }
        Ok(())
    }

    /// Removes what an earlier entry made, so that a later one takes its place.
    fn clear(&mut self, path: &[u8]) -> Result<Option<ListedKind>, UnpackError> {
        if self.directories.contains_key(path) {
            return Err(refused(path, "it would take the place of a directory"));
        }
        let Some(listed) = self.list.remove(path) else {
            return Ok(None);
        };
        let (above, name) = names::split(path);
        rustix::fs::unlinkat(self.open(above)?, name, AtFlags::empty())
            .map_err(|e| make(path, e))?;
        Ok(Some(listed.kind))
    }

    fn parent_of(&mut self, path: &[u8]) -> Result<(), UnpackError> {
        let (above, _) = names::split(path);
        self.parent(above)
    }

    /// Makes all directories down to this one that no entry has made.
    fn parent(&mut self, directory: &[u8]) -> Result<(), UnpackError> {
        if self.directories.contains_key(directory) {
            return Ok(());
        }
        let ends = directory
            .iter()
            .enumerate()
            .filter(|(_, byte)| **byte == b'/')
            .map(|(at, _)| at)
            .chain([directory.len()]);
        for end in ends {
            let part = &directory[..end];
            if self.directories.contains_key(part) {
                continue;
            }
            match self.list.get(part).map(|listed| listed.kind) {
                None | Some(ListedKind::Whiteout) => self.make_directory(part)?,
                Some(ListedKind::Symlink) => {
                    return Err(refused(directory, "it goes through a link"));
                }
                Some(_) => return Err(refused(directory, "it goes through a file")),
            }
        }
        Ok(())
    }

    /// A handle on a directory of the layer. HOSTILE: no link is followed on the way.
    fn open(&mut self, directory: &[u8]) -> Result<OwnedFd, UnpackError> {
        if self
            .parent
            .as_ref()
            .is_none_or(|(path, _)| path != directory)
        {
            let path = if directory.is_empty() {
                &b"."[..]
            } else {
                directory
            };
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let fd = rustix::fs::openat2(&self.root, path, flags, Mode::empty(), RESOLVE)
                .map_err(|e| make(directory, e))?;
            self.parent = Some((directory.to_vec(), fd));
        }
        let (_, fd) = self.parent.as_ref().expect("it was just put there");
        fd.try_clone().map_err(|e| failed(directory, e))
    }

    fn open_to_read(&mut self, directory: &[u8]) -> Result<OwnedFd, UnpackError> {
        let path = if directory.is_empty() {
            &b"."[..]
        } else {
            directory
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat2(&self.root, path, flags, Mode::empty(), RESOLVE)
            .map_err(|e| make(directory, e))
    }

    /// Modes, owners and times of directories, the deepest first: making things changes them.
    fn finish_directories(&mut self) -> Result<(), UnpackError> {
        let directories = std::mem::take(&mut self.directories);
        for (path, directory) in directories.into_iter().rev() {
            let fd = self.open_to_read(&path)?;
            let finish = || -> Result<(), rustix::io::Errno> {
                if self.owners == Owners::AsInTar {
                    let (uid, gid) = directory.owner;
                    rustix::fs::fchown(&fd, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
                }
                rustix::fs::fchmod(&fd, Mode::from_raw_mode(directory.mode))?;
                rustix::fs::futimens(&fd, &times(directory.time))
            };
            finish().map_err(|e| make(&path, e))?;
            let listed = Listed {
                kind: if directory.opaque {
                    ListedKind::OpaqueDirectory
                } else {
                    ListedKind::Directory
                },
                mode: directory.mode,
                size: 0,
                hash: [0; 32],
            };
            self.list.insert(path, listed);
        }
        Ok(())
    }

    /// Who owns it: the tar's owner as far as a sandbox has such an id.
    fn owner(&mut self, path: &[u8], entry: &Entry) -> (u32, u32) {
        if self.owners == Owners::Caller {
            return (0, 0);
        }
        let mut clamp = |id: u64| match u32::try_from(id) {
            Ok(id) if u64::from(id) <= LAST_ID => id,
            _ => {
                self.noted.add("an owner over 65535, now nobody", path);
                NOBODY
            }
        };
        (clamp(entry.uid), clamp(entry.gid))
    }

    /// The mode without what changes the user. Where all is ours, we may always read it.
    fn mode(&mut self, path: &[u8], mode: u32, least: u32) -> u32 {
        if mode & 0o6000 != 0 {
            self.noted
                .add("a set-user-id or set-group-id bit, dropped", path);
        }
        let least = match self.owners {
            Owners::AsInTar => 0,
            Owners::Caller => least,
        };
        mode & 0o1777 | least
    }

    fn set_attributes(
        &mut self,
        fd: BorrowedFd<'_>,
        path: &[u8],
        entry: &Entry,
    ) -> Result<(), UnpackError> {
        for (name, value) in &entry.attributes {
            // HOSTILE: the overlay's own marks would hide or show what the image chose.
            if !name.starts_with(b"user.")
                || name.starts_with(OVERLAY)
                || name.contains(&0)
                || value.len() > ATTRIBUTE_BYTES
            {
                self.noted
                    .add("an attribute that is not the user's, dropped", path);
                continue;
            }
            let place = crate::changes::handle::by_handle(fd);
            rustix::fs::setxattr(&place, &name[..], value, XattrFlags::empty())
                .map_err(|e| make(path, e))?;
        }
        Ok(())
    }
}

fn time(entry: &Entry) -> Timespec {
    Timespec {
        tv_sec: entry.mtime_seconds,
        tv_nsec: entry.mtime_nanoseconds.into(),
    }
}

fn times(time: Timespec) -> Timestamps {
    Timestamps {
        last_access: time,
        last_modification: time,
    }
}
