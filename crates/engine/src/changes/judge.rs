//! Decides about one path at a time: is it a change, does it cross, can it be carried?
//!
//! The walks bring paths here; what comes out is a list of changes and a list of what stays
//! behind, both relative to the folder.

use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use ringfence_model::ByteText;
use ringfence_model::changes::{Change, ChangeKind, FileMode, WhyOmitted};

use super::content::{self, Content};
use super::handle::{self, Access, Kind, Meta};
use super::names;
use super::omissions::{Omissions, Tally};
use super::{Bounds, ChangesError, Crossing, EntryType, Sources};

/// BOUND: a file over the size of a patch is still read, up to this many times that size, where
/// only its mode or nothing at all may have changed.
const COMPARED_SIZES: u64 = 4;

/// One entry, where it is and what is known of the directory around it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    /// The open directory that holds it.
    pub dir: BorrowedFd<'a>,
    /// Its whole path, relative to the folder.
    pub path: &'a [u8],
    pub meta: Meta,
}

/// What a directory passes on to everything in it.
#[derive(Clone, Debug, Default)]
pub(super) struct Around {
    /// The base's directory (or the nearest one above that it has) changed since the start.
    pub moved: bool,
    /// The ignored directory on whose line ignored files below are gathered.
    pub gathers: Option<Rc<[u8]>>,
}

/// Whether to go into a directory.
#[derive(Debug)]
pub(super) enum Entry {
    Cross(Option<Rc<[u8]>>),
    Refuse(WhyOmitted),
}

pub(super) struct Judge<'a> {
    sources: &'a Sources,
    crossing: &'a mut dyn Crossing,
    bounds: &'a Bounds,
    changes: Vec<Change>,
    omissions: Omissions,
    left_to_read: u64,
}

impl<'a> Judge<'a> {
    pub fn new(sources: &'a Sources, crossing: &'a mut dyn Crossing, bounds: &'a Bounds) -> Self {
        let omissions = Omissions::new(bounds.omitted_entries);
        Self {
            sources,
            crossing,
            bounds,
            changes: Vec::new(),
            omissions,
            left_to_read: bounds.read_bytes,
        }
    }

    pub fn finish(self) -> (Vec<Change>, Omissions) {
        (self.changes, self.omissions)
    }

    pub fn has_moved(&self, meta: &Meta) -> bool {
        meta.changed > self.sources.started
    }

    /// Whether a directory is gone into, and on whose line what is ignored below is gathered.
    pub fn directory(&mut self, path: &[u8], gathers: Option<&Rc<[u8]>>) -> Entry {
        if names::is_dot_git(names::last(path)) || self.is_too_long(path) {
            return Entry::Refuse(WhyOmitted::NotCarried);
        }
        match self.crossing.crosses(path, EntryType::Directory) {
            Ok(()) => Entry::Cross(gathers.cloned()),
            Err(WhyOmitted::Ignored) if self.crossing.may_hold_crossing(path) => {
                Entry::Cross(Some(gathers.cloned().unwrap_or_else(|| path.into())))
            }
            Err(why) => Entry::Refuse(why),
        }
    }

    /// A file or link in the layer, over whatever file, link or nothing the base has there.
    pub fn written(
        &mut self,
        new: Place<'_>,
        old: Option<Place<'_>>,
        around: &Around,
    ) -> Result<(), ChangesError> {
        let refused = self.refusal(new.path, new.meta.kind);
        if let Some(why) = refused {
            if !old.is_some_and(|old| self.is_same(new, old)) {
                self.stays(
                    new.path,
                    why,
                    Tally::file(new.meta.size),
                    old.is_some(),
                    around,
                );
            }
            return Ok(());
        }
        let why = match self.compare(new, old)? {
            Comparison::Same => return Ok(()),
            Comparison::Stays(why) => why,
            Comparison::Differs(sides) => {
                let (content, base) = *sides;
                let moved = base.as_ref().is_some_and(|base| self.has_moved(&base.meta));
                if !moved && !around.moved {
                    return self.push_written(new.path, content, base);
                }
                WhyOmitted::BaseMoved
            }
        };
        self.stays(
            new.path,
            why,
            Tally::file(new.meta.size),
            old.is_some(),
            around,
        );
        Ok(())
    }

    /// A file or link of the base that is gone.
    pub fn deleted(&mut self, old: Place<'_>, around: &Around) -> Result<(), ChangesError> {
        let why = match self.refusal(old.path, old.meta.kind) {
            Some(why) => why,
            None if old.meta.kind == Kind::Special => WhyOmitted::Special,
            None if around.moved || self.has_moved(&old.meta) => WhyOmitted::BaseMoved,
            None if old.meta.size > self.bounds.file_bytes => WhyOmitted::TooLarge,
            None => match self.read(old, Access::AsItIs) {
                Ok(content) if self.has_moved(&content.meta) => WhyOmitted::BaseMoved,
                Ok(content) => {
                    return self.push(Change {
                        path: ByteText::from(old.path),
                        kind: ChangeKind::Deleted,
                        binary: content.binary,
                        old: Some(content.side),
                        new: None,
                    });
                }
                Err(error) => why_unread(&error),
            },
        };
        self.stays(old.path, why, Tally::file(old.meta.size), true, around);
        Ok(())
    }

    /// A link of the base that git cannot take away, because it cannot look past it.
    pub fn link_kept(&mut self, path: &[u8], around: &Around) {
        self.stays(path, WhyOmitted::NotCarried, Tally::file(0), true, around);
    }

    /// A path that the layer says is deleted and that the base does not have (any more).
    pub fn deleted_unseen(&mut self, path: &[u8], around: &Around) {
        if around.moved && self.refusal(path, Kind::File).is_none() {
            self.omissions
                .add(path, WhyOmitted::BaseMoved, Tally::default());
        }
    }

    /// A FIFO, socket or device in the layer.
    pub fn special(&mut self, new: Place<'_>, base_has_file: bool, around: &Around) {
        let why = self
            .refusal(new.path, new.meta.kind)
            .unwrap_or(WhyOmitted::Special);
        self.stays(new.path, why, Tally::file(0), base_has_file, around);
    }

    /// A directory of the layer that stays behind with all that is below it.
    pub fn directory_stays(
        &mut self,
        path: &[u8],
        why: WhyOmitted,
        tally: Tally,
        gathers: Option<&Rc<[u8]>>,
    ) {
        match gathers {
            Some(directory) if why == WhyOmitted::Ignored => {
                self.omissions.gather(directory, tally);
            }
            _ => self.omissions.add(path, why, tally),
        }
    }

    /// A directory of the base that is gone inside and stays in the base.
    pub fn directory_kept(&mut self, path: &[u8], why: WhyOmitted, gathers: Option<&Rc<[u8]>>) {
        // It is not walked only to be counted.
        self.directory_stays(path, why, Tally::default(), gathers);
        self.omissions.keep(path, why);
    }

    /// An empty directory of the base that git does not remove, because it does not know it.
    pub fn empty_directory_kept(&mut self, path: &[u8]) {
        self.omissions.keep(path, WhyOmitted::NotCarried);
    }

    /// Why a path may not cross, before anything of it is read.
    fn refusal(&mut self, path: &[u8], kind: Kind) -> Option<WhyOmitted> {
        let name = names::last(path);
        let refused_link = kind == Kind::Symlink && names::is_dot_gitmodules(name);
        if names::is_dot_git(name) || refused_link || self.is_too_long(path) {
            return Some(WhyOmitted::NotCarried);
        }
        self.crossing.crosses(path, EntryType::File).err()
    }

    fn is_too_long(&self, path: &[u8]) -> bool {
        self.sources.prefix.len() + 1 + path.len() > names::PATH_BYTES
    }

    fn stays(
        &mut self,
        path: &[u8],
        why: WhyOmitted,
        tally: Tally,
        base_has_it: bool,
        around: &Around,
    ) {
        self.directory_stays(path, why, tally, around.gathers.as_ref());
        if base_has_it {
            self.omissions.keep(path, why);
        }
    }

    fn compare(
        &mut self,
        new: Place<'_>,
        old: Option<Place<'_>>,
    ) -> Result<Comparison, ChangesError> {
        let Bounds { file_bytes, .. } = *self.bounds;
        if old.is_some_and(|old| old.meta.kind == Kind::Special) {
            return Ok(Comparison::Stays(WhyOmitted::Special));
        }
        let largest = new.meta.size.max(old.map_or(0, |old| old.meta.size));
        let equal_size = old.is_some_and(|old| old.meta.size == new.meta.size);
        let compared = file_bytes.saturating_mul(COMPARED_SIZES);
        if largest > file_bytes && !(equal_size && largest <= compared) {
            return Ok(Comparison::Stays(WhyOmitted::TooLarge));
        }
        if new.meta.kind != Kind::Symlink {
            match self.left_to_read.checked_sub(new.meta.size) {
                Some(left) => self.left_to_read = left,
                None => return Ok(Comparison::Stays(WhyOmitted::TooLarge)),
            }
        }
        let content = match self.read(new, Access::Widen) {
            Ok(content) => content,
            Err(error) if handle::is_closed(&error) => {
                return Ok(Comparison::Stays(WhyOmitted::Unreadable));
            }
            Err(source) => {
                return Err(ChangesError::Read {
                    path: ByteText::from(new.path),
                    source,
                });
            }
        };
        if let Some(attribute) = content.elsewhere {
            return Err(ChangesError::OverlayAttribute {
                path: ByteText::from(new.path),
                attribute,
            });
        }
        let base = match old.map(|old| self.read(old, Access::AsItIs)).transpose() {
            Ok(base) => base,
            Err(error) => return Ok(Comparison::Stays(why_unread(&error))),
        };
        let same_content = base
            .as_ref()
            .is_some_and(|base| base.side.oid == content.side.oid);
        if base.as_ref().is_some_and(|base| base.side == content.side) {
            return Ok(Comparison::Same);
        }
        if largest > file_bytes && !same_content {
            return Ok(Comparison::Stays(WhyOmitted::TooLarge));
        }
        Ok(Comparison::Differs(Box::new((content, base))))
    }

    /// Whether a refused file was merely touched. Not found out at a great cost.
    fn is_same(&self, new: Place<'_>, old: Place<'_>) -> bool {
        if new.meta.kind != old.meta.kind
            || new.meta.size != old.meta.size
            || new.meta.size > self.bounds.file_bytes
            || new.meta.kind == Kind::Special
        {
            return false;
        }
        let sides = (
            self.read(new, Access::Widen),
            self.read(old, Access::AsItIs),
        );
        matches!(sides, (Ok(new), Ok(old)) if new.side == old.side)
    }

    fn read(&self, place: Place<'_>, access: Access) -> io::Result<Content> {
        let name = names::last(place.path);
        content::read(place.dir, name, place.meta.kind, access, self.sources.hash)
    }

    fn push_written(
        &mut self,
        path: &[u8],
        new: Content,
        old: Option<Content>,
    ) -> Result<(), ChangesError> {
        let path = ByteText::from(path);
        let is_link = |content: &Content| content.side.mode == FileMode::Symlink;
        match old {
            None => self.push(Change {
                path,
                kind: ChangeKind::Added,
                old: None,
                binary: new.binary,
                new: Some(new.side),
            }),
            Some(old) if is_link(&old) == is_link(&new) => self.push(Change {
                path,
                kind: ChangeKind::Modified,
                binary: old.binary || new.binary,
                old: Some(old.side),
                new: Some(new.side),
            }),
            Some(old) => {
                self.push(Change {
                    path: path.clone(),
                    kind: ChangeKind::Deleted,
                    binary: old.binary,
                    old: Some(old.side),
                    new: None,
                })?;
                self.push_written(path.as_bytes(), new, None)
            }
        }
    }

    fn push(&mut self, change: Change) -> Result<(), ChangesError> {
        if self.changes.len() >= self.bounds.changes {
            return Err(ChangesError::TooManyChanges {
                bound: self.bounds.changes,
            });
        }
        self.changes.push(change);
        Ok(())
    }
}

enum Comparison {
    Same,
    Stays(WhyOmitted),
    Differs(Box<(Content, Option<Content>)>),
}

/// The base is live: what cannot be read any more has moved, unless it never could.
fn why_unread(error: &io::Error) -> WhyOmitted {
    if handle::is_gone(error) {
        WhyOmitted::BaseMoved
    } else {
        WhyOmitted::Unreadable
    }
}
