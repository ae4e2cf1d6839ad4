//! The folder that a patch goes to, and the top that its paths begin at.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use ringfence_model::bundle::Base;
use rustix::fs::{Mode, OFlags};

use super::{ApplyError, Bundle};
use crate::git::{self, Repository};

/// Where it goes.
#[derive(Debug)]
pub(super) struct Target {
    /// The top of the paths: of the repository, or of the folder where there is none.
    pub top: PathBuf,
    pub root: OwnedFd,
    pub repository: Option<Repository>,
}

impl Target {
    /// The one of a bundle. `into` stands for the folder of the run, or for any folder of another
    /// copy of its repository.
    pub fn of_bundle(bundle: &Bundle, into: Option<&Path>) -> Result<Self, ApplyError> {
        let recorded = PathBuf::from(OsStr::from_bytes(bundle.result.folder.as_bytes()));
        let folder = real_path(into.unwrap_or(&recorded))?;
        // Without a repository, paths begin at the folder itself.
        let in_repository = match &bundle.manifest.base {
            Base::Commit { .. } | Base::DirtyFolder { .. } => true,
            Base::Folder { .. } => git::discover(&recorded).is_ok_and(|found| found.is_some()),
        };
        let found = git::discover(&folder)?;
        match found.filter(|_| in_repository) {
            Some(repository) => Self::open(repository.top.clone(), Some(repository)),
            None => Self::open(folder, None),
        }
    }

    /// One whose paths begin there.
    pub fn at(top: &Path) -> Result<Self, ApplyError> {
        let top = real_path(top)?;
        let found = git::discover(&top)?;
        let repository = found.filter(|found| found.top == top);
        Self::open(top, repository)
    }

    fn open(top: PathBuf, repository: Option<Repository>) -> Result<Self, ApplyError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(&top, flags, Mode::empty());
        let root = root.map_err(|errno| open_error(&top, errno.into()))?;
        Ok(Self {
            root,
            top,
            repository,
        })
    }
}

fn real_path(folder: &Path) -> Result<PathBuf, ApplyError> {
    fs::canonicalize(folder).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => ApplyError::NoFolder(folder.to_owned()),
        _ => open_error(folder, source),
    })
}

fn open_error(path: &Path, source: io::Error) -> ApplyError {
    ApplyError::Open {
        path: path.to_owned(),
        source,
    }
}
