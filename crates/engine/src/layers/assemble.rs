//! The walk that makes one layer of several: all of them, what is below and the target go down and
//! up together.
//!
//! At each name the layers are asked from the top, as the overlay asks them:
//!
//! ```text
//!   nothing        ask the next layer
//!   whiteout       nothing is there, and nothing below shows
//!   file, link, …  that is it, and nothing below shows
//!   directory      this one, merged with directories of the next layers,
//!                  up to an opaque one, a whiteout or a file
//! ```

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};

use ringfence_model::ByteText;

use super::attributes::{self, Opaque, Which};
use super::make::{self, Maker, Origin};
use super::{Copied, LayersError, access};
use crate::changes::descent::{Chain, push_name};
use crate::changes::handle::{self, Access, Kind, Meta};

/// BOUND: handles of all chains together; 1024 is the usual limit of a process.
const OPEN_HANDLES: usize = 256;
/// BOUND: handles of one chain, whatever the number of layers.
const MOST_LINKS: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    /// One layer as it is, sharing nothing with it.
    Copy,
    /// What several layers show, sharing their files.
    Merge,
}

/// What is below the layers at a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Below {
    /// A directory that shows through.
    Merged,
    /// Nothing that shows.
    Absent,
    /// Not known: nobody said, or it is closed to us. What hides is kept.
    Unknown,
}

/// Whether the layers themselves end the search before `below` is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Search {
    GoesOn,
    Ends,
}

/// A directory still to be made.
#[derive(Debug)]
struct Sub {
    name: Vec<u8>,
    /// The layers that may have a part in it, topmost first.
    layers: Vec<usize>,
    below: Below,
    search: Search,
}

/// A directory on the way from the root.
#[derive(Debug)]
struct Frame {
    layers: Vec<usize>,
    /// The topmost's, from before its mode was widened.
    meta: Meta,
    below: Below,
    opaque: Opaque,
    queue: Vec<Sub>,
    /// Where the path of the directory above ends.
    above: usize,
}

#[derive(Debug)]
pub(super) struct Assembly {
    layers: Vec<(Chain, Access)>,
    below: Option<Chain>,
    target: Chain,
    maker: Maker,
    manner: Manner,
    frames: Vec<Frame>,
    path: Vec<u8>,
    entries: u64,
}

impl Assembly {
    pub fn new(
        layers: &[BorrowedFd<'_>],
        below: Option<BorrowedFd<'_>>,
        parent: BorrowedFd<'_>,
        name: &[u8],
        manner: Manner,
    ) -> Result<Self, LayersError> {
        let open = (OPEN_HANDLES / (layers.len() + 2)).clamp(2, MOST_LINKS);
        let chain = |root, access| Chain::with_open(root, access, open).map_err(LayersError::Open);
        let mut chains = Vec::new();
        let mut metas = Vec::new();
        for &layer in layers {
            let access = access(layer);
            let (chain, meta) = chain(layer, access)?;
            chains.push((chain, access));
            metas.push(meta);
        }
        let made = handle::open_directory(parent, name, Access::Take).map_err(LayersError::Open)?;
        let (target, _) = chain(made.fd.as_fd(), Access::Take)?;
        let under = match (below, manner) {
            (Some(_), _) => Below::Merged,
            (None, Manner::Merge) => Below::Absent,
            (None, Manner::Copy) => Below::Unknown,
        };
        let below = below
            .map(|root| chain(root, Access::AsItIs).map(|(chain, _)| chain))
            .transpose()?;
        let root = Frame {
            layers: (0..chains.len()).collect(),
            meta: metas[0],
            below: under,
            // The overlay merges roots whatever they are marked as.
            opaque: Opaque::Unmarked,
            queue: Vec::new(),
            above: 0,
        };
        Ok(Self {
            layers: chains,
            below,
            target,
            maker: Maker::new(parent, name).map_err(LayersError::Open)?,
            manner,
            frames: vec![root],
            path: Vec::new(),
            entries: 0,
        })
    }

    pub fn run(mut self) -> Result<Copied, LayersError> {
        self.scan()?;
        while let Some(frame) = self.frames.last_mut() {
            match frame.queue.pop() {
                Some(sub) => {
                    self.enter(sub)?;
                    self.scan()?;
                }
                None => self.leave()?,
            }
        }
        Ok(Copied {
            entries: self.entries,
            bytes: self.maker.bytes,
        })
    }

    /// Makes the files of the current directory and queues its directories.
    fn scan(&mut self) -> Result<(), LayersError> {
        let frame = self.frame();
        let below = frame.below;
        let mut found: BTreeMap<Vec<u8>, Vec<usize>> = BTreeMap::new();
        for &layer in &frame.layers {
            let names = handle::names(self.layers[layer].0.here(), usize::MAX)
                .map_err(|source| self.list_error(source))?;
            for name in names {
                found.entry(name).or_default().push(layer);
            }
        }
        for (name, layers) in found {
            let above = push_name(&mut self.path, &name);
            self.entry(name, &layers, below)?;
            self.path.truncate(above);
        }
        Ok(())
    }

    /// One name of the current directory, whose path is `self.path`, and the layers that have it.
    fn entry(&mut self, name: Vec<u8>, layers: &[usize], below: Below) -> Result<(), LayersError> {
        let mut directories = Vec::new();
        let mut search = Search::GoesOn;
        for &layer in layers {
            let (chain, access) = &self.layers[layer];
            let look = handle::look(chain.here(), &name);
            let Some(meta) = look.map_err(|source| self.read_error(source))? else {
                continue;
            };
            if meta.kind == Kind::Directory {
                directories.push(layer);
                continue;
            }
            if !directories.is_empty() {
                search = Search::Ends;
                break;
            }
            if meta.kind == Kind::Whiteout && self.below_at(&name, below)? == Beneath::Nothing {
                return Ok(());
            }
            let origin = Origin {
                dir: chain.here(),
                name: &name,
                meta,
                access: *access,
            };
            let to = self.target.here();
            let made = match self.manner {
                Manner::Copy => self.maker.copy(origin, to),
                Manner::Merge => self.maker.link(origin, to),
            };
            made.map_err(|source| self.make_error(source))?;
            self.entries += 1;
            return Ok(());
        }
        if directories.is_empty() {
            return Ok(());
        }
        let below = match self.below_at(&name, below)? {
            Beneath::Directory => Below::Merged,
            // A directory hides a file by itself.
            Beneath::Nothing | Beneath::File => Below::Absent,
            Beneath::Unknown => Below::Unknown,
        };
        self.last_frame().queue.push(Sub {
            name,
            layers: directories,
            below,
            search,
        });
        Ok(())
    }

    /// What is below the layers at a name of the current directory.
    fn below_at(&self, name: &[u8], below: Below) -> Result<Beneath, LayersError> {
        let chain = match (below, &self.below) {
            (Below::Merged, Some(chain)) => chain,
            (Below::Unknown, _) => return Ok(Beneath::Unknown),
            (Below::Absent, _) | (Below::Merged, None) => return Ok(Beneath::Nothing),
        };
        match handle::look(chain.here(), name) {
            Ok(None) => Ok(Beneath::Nothing),
            Ok(Some(meta)) => Ok(match meta.kind {
                Kind::Directory => Beneath::Directory,
                Kind::Whiteout => Beneath::Nothing,
                Kind::File | Kind::Symlink | Kind::Special => Beneath::File,
            }),
            Err(error) if handle::is_closed(&error) => Ok(Beneath::Unknown),
            Err(source) => Err(LayersError::LookBelow {
                path: self.path_text(),
                source,
            }),
        }
    }

    fn enter(&mut self, sub: Sub) -> Result<(), LayersError> {
        let above = push_name(&mut self.path, &sub.name);
        let made = make::directory(self.target.here(), &sub.name)
            .and_then(|()| handle::open_directory(self.target.here(), &sub.name, Access::Take))
            .map_err(|source| self.make_error(source))?;
        self.target.push(made);
        self.entries += 1;

        let mut layers = Vec::new();
        let mut search = sub.search;
        let mut topmost = None;
        for layer in sub.layers {
            let (chain, access) = &mut self.layers[layer];
            let opened = handle::open_directory(chain.here(), &sub.name, *access);
            let opened = opened.map_err(|source| self.read_error(source))?;
            topmost.get_or_insert(opened.meta);
            self.layers[layer].0.push(opened);
            layers.push(layer);
            if self.is_opaque(layer)? {
                search = Search::Ends;
                break;
            }
        }
        let (below, opaque) = match (search, sub.below) {
            (Search::Ends, Below::Absent) => (Below::Absent, Opaque::Unmarked),
            (Search::Ends, Below::Merged | Below::Unknown) => (Below::Absent, Opaque::Marked),
            (Search::GoesOn, Below::Merged) => (self.enter_below(&sub.name)?, Opaque::Unmarked),
            (Search::GoesOn, below) => (below, Opaque::Unmarked),
        };
        // A copy keeps all that hides, also in a directory that is opaque.
        let below = match self.manner {
            Manner::Copy => Below::Unknown,
            Manner::Merge => below,
        };
        self.frames.push(Frame {
            layers,
            meta: topmost.expect("a directory is queued because a layer has it"),
            below,
            opaque,
            queue: Vec::new(),
            above,
        });
        Ok(())
    }

    fn enter_below(&mut self, name: &[u8]) -> Result<Below, LayersError> {
        let Some(chain) = &mut self.below else {
            return Ok(Below::Absent);
        };
        match handle::open_directory(chain.here(), name, Access::AsItIs) {
            Ok(opened) if handle::may_search(opened.fd.as_fd()) => {
                chain.push(opened);
                Ok(Below::Merged)
            }
            Ok(_) => Ok(Below::Unknown),
            Err(error) if handle::is_closed(&error) => Ok(Below::Unknown),
            Err(source) => Err(LayersError::LookBelow {
                path: self.path_text(),
                source,
            }),
        }
    }

    /// Whether the directory that a layer just went into hides what is below it.
    fn is_opaque(&self, layer: usize) -> Result<bool, LayersError> {
        let here = self.layers[layer].0.here();
        let elsewhere = handle::elsewhere(here).map_err(|source| self.read_error(source))?;
        if let Some(attribute) = elsewhere {
            return Err(LayersError::OverlayAttribute {
                path: self.path_text(),
                attribute,
            });
        }
        let value = handle::attribute(here, "user.overlay.opaque");
        let value = value.map_err(|source| self.read_error(source))?;
        Ok(value.is_some_and(|value| value == b"y"))
    }

    /// Finishes the current directory: its own mode and time come last.
    fn leave(&mut self) -> Result<(), LayersError> {
        let frame = self.frames.pop().expect("who leaves a directory is in one");
        let which = match self.manner {
            Manner::Copy => Which::All,
            Manner::Merge => Which::OfAgent,
        };
        let found = attributes::read(self.layers[frame.layers[0]].0.here(), which)
            .map_err(|source| self.read_error(source))?;
        let made = self.target.here().try_clone_to_owned();
        let made = made.map_err(|source| self.make_error(source))?;
        if !self.frames.is_empty() {
            let climb_error = |source| LayersError::Climb {
                path: ByteText::from(self.path.as_slice()),
                source,
            };
            self.target.pop().map_err(climb_error)?;
            for &layer in &frame.layers {
                self.layers[layer].0.pop().map_err(climb_error)?;
            }
            if frame.below == Below::Merged
                && let Some(below) = &mut self.below
            {
                below.pop().map_err(climb_error)?;
            }
        }
        // By now nothing has to go through it any more, whatever its mode.
        attributes::apply(made.as_fd(), &frame.meta, &found, frame.opaque)
            .map_err(|source| self.make_error(source))?;
        self.path.truncate(frame.above);
        Ok(())
    }

    fn frame(&self) -> &Frame {
        self.frames.last().expect("a walk that is not over has one")
    }

    fn last_frame(&mut self) -> &mut Frame {
        let last = self.frames.last_mut();
        last.expect("a walk that is not over has one")
    }

    fn path_text(&self) -> ByteText {
        ByteText::from(self.path.as_slice())
    }

    fn read_error(&self, source: io::Error) -> LayersError {
        LayersError::Read {
            path: self.path_text(),
            source,
        }
    }

    fn list_error(&self, source: io::Error) -> LayersError {
        LayersError::List {
            path: self.path_text(),
            source,
        }
    }

    fn make_error(&self, source: io::Error) -> LayersError {
        LayersError::Make {
            path: self.path_text(),
            source,
        }
    }
}

/// What is below the layers at a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beneath {
    Nothing,
    File,
    Directory,
    Unknown,
}
