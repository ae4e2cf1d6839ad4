//! The walk of a layer beside its base.
//!
//! Every entry of the layer is a hint that something changed there: a whiteout deletes what the
//! base has, an opaque directory replaces what the base has, anything else is compared with it.

use std::io;
use std::os::fd::BorrowedFd;

use ringfence_model::ByteText;
use ringfence_model::changes::{Change, WhyOmitted};

use super::descent::{Chain, Descent, Step, push_name};
use super::handle::{self, Access, Kind, Meta};
use super::judge::{Around, Entry, Judge, Place};
use super::omissions::{Omissions, Tally};
use super::{ChangesError, Sources, deleted, measure};

pub(super) struct Walk<'a> {
    upper: Descent,
    base: Chain,
    base_root: BorrowedFd<'a>,
    judge: Judge<'a>,
    frames: Vec<Frame>,
    /// The current directory, relative to the folder.
    path: Vec<u8>,
}

/// One directory of the layer on the way to the current one.
struct Frame {
    base: BaseSide,
    around: Around,
    /// Where the path above it ends.
    above: usize,
}

/// What the base has where a directory of the layer is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BaseSide {
    /// A directory, which shows through.
    Merged,
    /// A directory, of which nothing shows through.
    Replaced,
    /// No directory.
    Absent,
}

impl<'a> Walk<'a> {
    pub fn new(sources: &'a Sources, judge: Judge<'a>) -> Result<Self, ChangesError> {
        use std::os::fd::AsFd as _;
        let (upper, _) =
            Descent::new(sources.upper.as_fd(), Access::Widen).map_err(ChangesError::OpenLayer)?;
        let (base, meta) =
            Chain::new(sources.base.as_fd(), Access::AsItIs).map_err(ChangesError::OpenBase)?;
        let moved = judge.has_moved(&meta);
        let base_side = if is_opaque(upper.here(), b"")? {
            BaseSide::Replaced
        } else {
            BaseSide::Merged
        };
        let top = Frame {
            base: base_side,
            around: Around {
                moved,
                gathers: None,
            },
            above: 0,
        };
        Ok(Self {
            upper,
            base,
            base_root: sources.base.as_fd(),
            judge,
            frames: vec![top],
            path: Vec::new(),
        })
    }

    pub fn run(mut self) -> Result<(Vec<Change>, Omissions), ChangesError> {
        self.scan()?;
        while let Some(step) = self
            .upper
            .advance()
            .map_err(|source| self.climb_error(source))?
        {
            match step {
                Step::Entered(name, _) => {
                    if self.enter(&name)? {
                        self.scan()?;
                    }
                }
                Step::Left => self.leave()?,
                Step::Closed(name, error) => {
                    if !handle::is_closed(&error) {
                        return Err(self.list_error(error));
                    }
                    let above = push_name(&mut self.path, &name);
                    let around = self.frame().around.clone();
                    let why = WhyOmitted::Unreadable;
                    let gathers = around.gathers.as_ref();
                    self.judge
                        .directory_stays(&self.path, why, Tally::default(), gathers);
                    self.path.truncate(above);
                }
            }
        }
        Ok(self.judge.finish())
    }

    fn frame(&self) -> &Frame {
        self.frames
            .last()
            .expect("the top frame stays until the walk is over")
    }

    /// Finds out what a directory of the layer stands for. False where it is not looked into.
    fn enter(&mut self, name: &[u8]) -> Result<bool, ChangesError> {
        let above = push_name(&mut self.path, name);
        let mut frame = Frame {
            base: BaseSide::Absent,
            around: self.frame().around.clone(),
            above,
        };
        // Nothing shows through below a directory of which nothing shows through.
        let above_replaced = self.frame().base == BaseSide::Replaced;
        let opaque = is_opaque(self.upper.here(), &self.path)? || above_replaced;
        let entry = self
            .judge
            .directory(&self.path, frame.around.gathers.as_ref());
        let refusal = match entry {
            Entry::Refuse(why) => Some(why),
            // Someone else's, to be listed and not to be looked into.
            Entry::Cross(_) if !handle::may_search(self.upper.here()) => {
                Some(WhyOmitted::Unreadable)
            }
            Entry::Cross(gathers) => {
                frame.around.gathers = gathers;
                None
            }
        };
        let refusal = match self.look_in_base(name) {
            Err(_) => refusal.or(Some(WhyOmitted::Unreadable)),
            // Git looks at `link/file` before it takes `link` away.
            Ok(Some(meta))
                if meta.kind == Kind::Symlink && handle::is_loop(self.base_root, &self.path) =>
            {
                self.judge.link_kept(&self.path, &frame.around);
                refusal
            }
            Ok(Some(meta)) if meta.kind != Kind::Directory => {
                let place = Place {
                    dir: self.base.here(),
                    path: &self.path,
                    meta,
                };
                self.judge.deleted(place, &frame.around)?;
                refusal
            }
            Ok(Some(_)) if refusal.is_none() => {
                match handle::open_directory(self.base.here(), name, Access::AsItIs) {
                    Ok(directory) => {
                        frame.around.moved = self.judge.has_moved(&directory.meta);
                        frame.base = if opaque {
                            BaseSide::Replaced
                        } else {
                            BaseSide::Merged
                        };
                        self.base.push(directory);
                        None
                    }
                    Err(_) => Some(WhyOmitted::Unreadable),
                }
            }
            Ok(_) => refusal,
        };
        if let Some(why) = refusal {
            let tally =
                measure::tally(self.upper.here()).map_err(|source| self.list_error(source))?;
            // A directory that merely was looked at, or had its mode changed, is no change.
            if tally.files > 0 || !matches!(self.look_in_base(name), Ok(Some(_))) {
                let gathers = frame.around.gathers.as_ref();
                self.judge.directory_stays(&self.path, why, tally, gathers);
            }
        }
        self.frames.push(frame);
        Ok(refusal.is_none())
    }

    fn leave(&mut self) -> Result<(), ChangesError> {
        let frame = self
            .frames
            .pop()
            .expect("a directory that is left was entered");
        if frame.base != BaseSide::Absent {
            self.base.pop().map_err(|source| self.climb_error(source))?;
        }
        self.path.truncate(frame.above);
        Ok(())
    }

    /// Judges the files of the current directory and queues its directories.
    fn scan(&mut self) -> Result<(), ChangesError> {
        let found = handle::names(self.upper.here(), usize::MAX)
            .map_err(|source| self.list_error(source))?;
        let is_empty = found.is_empty();
        for name in found {
            if self.is_own_git(&name) {
                continue;
            }
            let above = push_name(&mut self.path, &name);
            self.entry(name)?;
            self.path.truncate(above);
        }
        match self.frame().base {
            BaseSide::Merged => {}
            BaseSide::Replaced => self.scan_replaced()?,
            BaseSide::Absent if is_empty && self.frame().around.gathers.is_none() => {
                let tally = Tally::default();
                self.judge
                    .directory_stays(&self.path, WhyOmitted::NotCarried, tally, None);
            }
            BaseSide::Absent => {}
        }
        Ok(())
    }

    /// One entry of the current directory, whose path is `self.path`.
    fn entry(&mut self, name: Vec<u8>) -> Result<(), ChangesError> {
        let Some(meta) = self.look_in_layer(&name)? else {
            return Ok(());
        };
        match meta.kind {
            Kind::Directory => {
                self.upper.queue(name);
                Ok(())
            }
            Kind::Whiteout => self.gone(&name),
            Kind::File | Kind::Symlink | Kind::Special => self.present(&name, meta),
        }
    }

    /// What the layer has at `self.path` is not a directory.
    fn present(&mut self, name: &[u8], meta: Meta) -> Result<(), ChangesError> {
        let around = self.frame().around.clone();
        let new = Place {
            dir: self.upper.here(),
            path: &self.path,
            meta,
        };
        let old = match self.look_in_base(name) {
            Ok(Some(meta)) if meta.kind == Kind::Directory => {
                deleted::directory(&mut self.judge, self.base.here(), &self.path, &around)?;
                None
            }
            Ok(old) => old.map(|meta| Place {
                dir: self.base.here(),
                path: &self.path,
                meta,
            }),
            Err(_) => {
                let tally = Tally::file(meta.size);
                let why = WhyOmitted::Unreadable;
                self.judge
                    .directory_stays(&self.path, why, tally, around.gathers.as_ref());
                return Ok(());
            }
        };
        if meta.kind == Kind::Special {
            self.judge.special(new, old.is_some(), &around);
            return Ok(());
        }
        self.judge.written(new, old, &around)
    }

    /// The layer has nothing at `self.path`, and hides what the base has.
    fn gone(&mut self, name: &[u8]) -> Result<(), ChangesError> {
        let around = self.frame().around.clone();
        if self.frame().base == BaseSide::Absent {
            return Ok(());
        }
        match self.look_in_base(name) {
            Err(_) => {
                let gathers = around.gathers.as_ref();
                self.judge
                    .directory_kept(&self.path, WhyOmitted::Unreadable, gathers);
                Ok(())
            }
            Ok(None) => {
                self.judge.deleted_unseen(&self.path, &around);
                Ok(())
            }
            Ok(Some(meta)) if meta.kind == Kind::Directory => {
                deleted::directory(&mut self.judge, self.base.here(), &self.path, &around)
            }
            Ok(Some(meta)) => {
                let place = Place {
                    dir: self.base.here(),
                    path: &self.path,
                    meta,
                };
                self.judge.deleted(place, &around)
            }
        }
    }

    /// Whatever the base has in the current directory and the layer has not is gone.
    fn scan_replaced(&mut self) -> Result<(), ChangesError> {
        let found = handle::names(self.base.here(), usize::MAX)
            .map_err(|source| self.list_error(source))?;
        for name in found {
            if self.is_own_git(&name) {
                continue;
            }
            let above = push_name(&mut self.path, &name);
            if self.look_in_layer(&name)?.is_none() {
                self.gone(&name)?;
            }
            self.path.truncate(above);
        }
        Ok(())
    }

    fn look_in_layer(&self, name: &[u8]) -> Result<Option<Meta>, ChangesError> {
        let look = handle::look(self.upper.here(), name);
        look.map_err(|source| ChangesError::Look {
            path: self.path_text(),
            source,
        })
    }

    /// What the base has in the current directory; a whiteout there is nothing to the overlay.
    fn look_in_base(&self, name: &[u8]) -> io::Result<Option<Meta>> {
        if self.frame().base == BaseSide::Absent {
            return Ok(None);
        }
        let meta = handle::look(self.base.here(), name)?;
        Ok(meta.filter(|meta| meta.kind != Kind::Whiteout))
    }

    /// The folder's own `.git` is ours to make, not the agent's to change.
    fn is_own_git(&self, name: &[u8]) -> bool {
        self.path.is_empty() && name == b".git"
    }

    fn path_text(&self) -> ByteText {
        ByteText::from(self.path.as_slice())
    }

    fn list_error(&self, source: io::Error) -> ChangesError {
        ChangesError::List {
            path: self.path_text(),
            source,
        }
    }

    fn climb_error(&self, source: io::Error) -> ChangesError {
        ChangesError::Climb {
            path: self.path_text(),
            source,
        }
    }
}

/// Whether a directory of the layer hides what the base has below it.
fn is_opaque(dir: BorrowedFd<'_>, path: &[u8]) -> Result<bool, ChangesError> {
    let look_error = |source| ChangesError::Look {
        path: ByteText::from(path),
        source,
    };
    if let Some(attribute) = handle::elsewhere(dir).map_err(look_error)? {
        return Err(ChangesError::OverlayAttribute {
            path: ByteText::from(path),
            attribute,
        });
    }
    let value = handle::attribute(dir, "user.overlay.opaque").map_err(look_error)?;
    Ok(value.is_some_and(|value| value == b"y"))
}
