//! Which changed paths cross back, and why the others do not.

use std::fs;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use ringfence_model::changes::WhyOmitted;
use rustix::fs::{AtFlags, FileType};

use super::Ignored;
use crate::changes::{Crossing, EntryType, Sources};
use crate::error::Error;
use crate::files::FileRules;
use crate::git::{GitError, IgnoreRules, Repository};

/// The rules of one run.
#[derive(Debug)]
pub struct Rules<'a> {
    files: &'a FileRules,
    ignore: IgnoreRules,
    repository: Option<&'a Repository>,
    base: OwnedFd,
    /// Read where the rules that hold now are others.
    before: Option<IgnoreRules>,
    ignored: Ignored,
    stage: Option<Stage>,
    mask: Option<OwnedFd>,
    environment: Option<Made>,
}

/// The directories above a path, the outermost first, and the path.
fn parts(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let slashes = path.iter().enumerate().filter(|&(_, &byte)| byte == b'/');
    slashes.map(|(slash, _)| &path[..slash]).chain([path])
}

/// What a setup made, and the base that it was made for.
#[derive(Debug)]
struct Made {
    setup: OwnedFd,
    base: OwnedFd,
}

impl Made {
    /// Whether this path, or a directory above it, is there by the setup alone.
    fn holds(&self, path: &[u8]) -> bool {
        // The first one that the base has not decides: below it the base has nothing.
        let first = parts(path).find(|part| kind(&self.base, part).is_none());
        first.is_some_and(|part| kind(&self.setup, part).is_some())
    }
}

/// A workspace that shows only some files of a whole.
#[derive(Debug)]
struct Stage {
    whole: OwnedFd,
    shown: OwnedFd,
}

impl<'a> Rules<'a> {
    /// The rules of a repository, as the layer and its base have them.
    pub fn of(
        repository: Option<&'a Repository>,
        sources: &Sources,
        files: &'a FileRules,
        ignored: Ignored,
    ) -> Result<Self, Error> {
        let (upper, base) = (sources.upper.as_fd(), sources.base.as_fd());
        let base_again = base.try_clone_to_owned();
        let base_again = base_again.map_err(|source| GitError::OpenLayers { source })?;
        Ok(Self {
            files,
            ignore: IgnoreRules::load(repository, upper, base)?,
            repository,
            base: base_again,
            before: None,
            ignored,
            stage: None,
            mask: None,
            environment: None,
        })
    }

    /// What the whole has and the workspace does not show cannot be made anew: the patch would not
    /// apply to the whole.
    pub fn stage(&mut self, whole: &Path, shown: &Path) -> Result<(), Error> {
        self.stage = Some(Stage {
            whole: open(whole)?,
            shown: open(shown)?,
        });
        Ok(())
    }

    /// What has a whiteout in the mask was absent inside: other names of hidden files, too.
    pub fn mask(&mut self, mask: &Path) -> Result<(), Error> {
        if !self.files.hidden().is_empty() {
            self.mask = Some(open(mask)?);
        }
        Ok(())
    }

    /// What a setup made never crosses back, whoever changed it later.
    pub fn environment(&mut self, setup: &Path, base: &Path) -> Result<(), Error> {
        self.environment = Some(Made {
            setup: open(setup)?,
            base: open(base)?,
        });
        Ok(())
    }

    /// Whether the folder has this path, or a directory above it, as something that it ignores by its own
    /// rules. What is new may cross by new rules; what was there and ignored is the user's.
    ///
    /// HOSTILE: an agent that edits `.gitignore` could bring the user's installed programs into the patch,
    /// and so into what checks run.
    fn was_ignored(&mut self, path: &[u8], is_dir: bool) -> bool {
        if !self.ignore.are_edited() {
            return false;
        }
        if self.before.is_none() {
            let base = self.base.as_fd();
            self.before = IgnoreRules::load(self.repository, base, base).ok();
        }
        let Some(before) = &mut self.before else {
            // It was read a moment ago. Who cannot say what is the user's lets nothing cross.
            return true;
        };
        let first = parts(path).find(|part| {
            let is_dir = is_dir || part.len() < path.len();
            before.is_ignored(part, is_dir)
        });
        first.is_some_and(|part| kind(&self.base, part).is_some())
    }

    /// Whether the mask hides this path, or something above it.
    fn is_masked(&self, path: &[u8]) -> bool {
        let Some(mask) = &self.mask else {
            return false;
        };
        parts(path).any(|part| kind(mask, part) == Some(FileType::CharacterDevice))
    }
}

fn open(path: &Path) -> Result<OwnedFd, Error> {
    let file = fs::File::open(path).map_err(|source| Error::OpenFolder {
        path: path.to_owned(),
        source,
    })?;
    Ok(file.into())
}

fn kind(tree: &OwnedFd, path: &[u8]) -> Option<FileType> {
    let stat = rustix::fs::statat(tree, path, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    Some(FileType::from_raw_mode(stat.st_mode))
}

impl Stage {
    /// Whether the whole has something at this path, or in its way, that is not shown.
    fn conceals(&self, path: &[u8], what: EntryType) -> bool {
        if kind(&self.shown, path).is_some() {
            return false;
        }
        match kind(&self.whole, path) {
            // A directory of the whole can take more files.
            Some(FileType::Directory) => what == EntryType::File,
            Some(_) => true,
            None => false,
        }
    }
}

impl Crossing for Rules<'_> {
    fn crosses(&mut self, path: &[u8], what: EntryType) -> Result<(), WhyOmitted> {
        if let Some(why) = self.files.forbids(path) {
            return Err(why);
        }
        if self.is_masked(path) {
            return Err(WhyOmitted::Hidden);
        }
        if self
            .environment
            .as_ref()
            .is_some_and(|made| made.holds(path))
        {
            return Err(WhyOmitted::Environment);
        }
        let is_dir = what == EntryType::Directory;
        if self.ignored == Ignored::LeftBehind
            && (self.ignore.is_ignored(path, is_dir) || self.was_ignored(path, is_dir))
        {
            return Err(WhyOmitted::Ignored);
        }
        if self
            .stage
            .as_ref()
            .is_some_and(|stage| stage.conceals(path, what))
        {
            return Err(WhyOmitted::NotStaged);
        }
        // Something below a directory may cross, whatever becomes of the rest.
        match what {
            EntryType::Directory => Ok(()),
            EntryType::File => self.files.keeps(path).map_or(Ok(()), Err),
        }
    }

    fn may_hold_crossing(&mut self, dir: &[u8]) -> bool {
        self.ignore.has_tracked_below(dir)
    }
}
