//! A place in the home for one planning, gone when it is over.

use ringfence_model::bundle::Base;

use crate::base::identity;
use crate::error::Error;
use crate::git::Repository;
use crate::home::Home;
use crate::ids::RunId;
use crate::lock::RunLock;
use crate::run::discard_layer;
use crate::workspace::{Folder, now};

#[derive(Debug)]
pub(super) struct Room<'a> {
    pub home: &'a Home,
    pub id: RunId,
    _lock: RunLock,
}

impl<'a> Room<'a> {
    pub fn make(home: &'a Home) -> Result<Self, Error> {
        let id = RunId::random()?;
        let lock = RunLock::create(home, id)?;
        Ok(Self {
            home,
            id,
            _lock: lock,
        })
    }

    /// What the folder is by name.
    pub fn base(&self, repository: Option<Repository>, folder: &Folder) -> Result<Base, Error> {
        let scratch = self.home.workspace(self.id).join("lookup.git");
        let seeking = identity::seek(repository, now(), scratch);
        let seeking = seeking.map_err(|source| Error::OpenFolder {
            path: folder.path().to_owned(),
            source,
        })?;
        Ok(seeking.finish(&[]).0)
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        discard_layer(self.home, self.id);
    }
}
