//! Which files of a tree a split is about, by their paths.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::When;
use super::content::Pattern;
use crate::ByteText;
use crate::plan::{By, Split};
use crate::policy::Line;
use crate::policy::glob::{GlobError, Globs};

/// The patterns of a split, ready to be matched.
#[derive(Clone, Debug)]
pub struct Selection {
    /// `None`: all of them.
    files: Option<Globs>,
    except: Globs,
    first: Globs,
    last: Globs,
    pattern: Option<Pattern>,
}

/// A file that the plan wants both first and last.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is to be both first and last")]
pub struct FirstAndLast(pub ByteText);

impl Selection {
    /// Of a split that was read from a plan, and is therefore well formed.
    pub fn of(split: &Split) -> Result<Self, GlobError> {
        let globs = |lines: &[Line]| {
            let texts: Vec<&str> = lines.iter().map(|line| line.text.as_str()).collect();
            Globs::exact(&texts)
        };
        // Who names nothing else names only what comes first or last.
        let all = split.matching.is_some() || matches!(split.by, By::Command(_));
        let files = if split.files.is_empty() && all {
            None
        } else {
            Some(globs(&split.files)?)
        };
        let matching = split.matching.as_ref();
        Ok(Self {
            files,
            except: globs(&split.except)?,
            first: globs(&split.first)?,
            last: globs(&split.last)?,
            pattern: matching.and_then(|line| Pattern::parse(&line.text).ok()),
        })
    }

    /// When a file is worked on; `None` where it is not.
    pub fn when(&self, path: &ByteText) -> Result<Option<When>, FirstAndLast> {
        let place = Path::new(OsStr::from_bytes(path.as_bytes()));
        if self.except.matches(place) {
            return Ok(None);
        }
        match (self.first.matches(place), self.last.matches(place)) {
            (true, true) => Err(FirstAndLast(path.clone())),
            (true, false) => Ok(Some(When::First)),
            (false, true) => Ok(Some(When::Last)),
            (false, false) => {
                let chosen = self.files.as_ref().is_none_or(|globs| globs.matches(place));
                Ok(chosen.then_some(When::Between))
            }
        }
    }

    /// What must be in a file that is neither first nor last.
    pub fn pattern(&self) -> Option<&Pattern> {
        self.pattern.as_ref()
    }
}
