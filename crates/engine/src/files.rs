//! What a policy says about files, ready to be asked and to be held.
//!
//! ```text
//!   hide       whiteouts in a layer of ours; what has such a name never crosses back
//!   write      ┐ each area is a mount of its own, read-only or not: the kernel refuses the rest
//!   read_only  ┘ what slips past by another spelling does not cross back
//!   export     what may cross back, asked for each changed path
//!   mounts     looked at and opened here, mounted by the launcher
//! ```

mod areas;
mod error;
pub(crate) mod mask;
mod mounts;

use ringfence_model::changes::WhyOmitted;
use ringfence_model::policy::Files;
use ringfence_model::policy::export::Export;
use ringfence_model::policy::glob::Globs;

pub(crate) use areas::Areas;
pub use error::FilesError;
pub(crate) use mounts::{check_mounts, check_places, held};

use crate::workspace::is_hidden;

/// The rules about paths of a workspace.
#[derive(Debug)]
pub struct FileRules {
    hidden: Globs,
    areas: Areas,
    export: Option<Export>,
}

impl FileRules {
    /// The rules of a policy.
    pub fn of(files: &Files) -> Result<Self, FilesError> {
        let hide: Vec<&str> = files.hide.iter().map(|line| line.text.as_str()).collect();
        let export = files.export.as_ref().map(|lines| {
            let lines: Vec<&str> = lines.iter().map(|line| line.text.as_str()).collect();
            Export::parse(&lines)
        });
        Ok(Self {
            hidden: Globs::parse(&hide).map_err(FilesError::Hide)?,
            areas: Areas::of(files)?,
            export: export.transpose().map_err(FilesError::Export)?,
        })
    }

    pub fn hidden(&self) -> &Globs {
        &self.hidden
    }

    pub(crate) fn areas(&self) -> &Areas {
        &self.areas
    }

    /// Whether the policy wants a layer between the base and what is written.
    pub(crate) fn needs_mask(&self) -> bool {
        !self.hidden.is_empty() || !self.areas.is_plain()
    }

    /// Why nothing at this path may cross back, be it a file or a directory.
    pub fn forbids(&self, path: &[u8]) -> Option<WhyOmitted> {
        is_hidden(&self.hidden, path).then_some(WhyOmitted::Hidden)
    }

    /// Why this file may not cross back, where nothing else speaks against it.
    pub fn keeps(&self, path: &[u8]) -> Option<WhyOmitted> {
        use std::os::unix::ffi::OsStrExt as _;
        if !self.areas.may_write(path) {
            return Some(WhyOmitted::ReadOnly);
        }
        let path = std::path::Path::new(std::ffi::OsStr::from_bytes(path));
        let exported = self
            .export
            .as_ref()
            .is_none_or(|export| export.matches(path));
        (!exported).then_some(WhyOmitted::NotExported)
    }
}
