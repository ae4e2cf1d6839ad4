//! A directory of our own for a moment.

use std::fs;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use crate::ids::RunId;

/// A directory of our own that is gone afterwards.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub fn make() -> std::io::Result<Self> {
        let name = RunId::random().map_err(std::io::Error::other)?;
        let path = std::env::temp_dir().join(format!("ringfence-{name}"));
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What is left of it means nothing.
        let _ = fs::remove_dir_all(&self.0);
    }
}
