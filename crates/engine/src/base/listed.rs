//! The tree of a commit, one directory at a time, for who looks for names in it.

use std::collections::BTreeMap;

use ringfence_model::changes::ObjectHash;
use ringfence_model::hex;

use super::changed::{DIRECTORY, Read, parse};
use super::tree::GITLINK;
use crate::changes::git_directory::{Entry, Tree};
use crate::git::LookupError;

/// A tree that is nowhere on the disk.
pub(crate) struct ListedTree<'a, 'r> {
    read: &'a mut Read<'r>,
    hash: ObjectHash,
    /// Directories that were seen, with their ids. One is seen before it is asked for.
    known: BTreeMap<Vec<u8>, String>,
}

impl<'a, 'r> ListedTree<'a, 'r> {
    /// `read` gives a tree object by its id.
    pub fn new(root: &str, hash: ObjectHash, read: &'a mut Read<'r>) -> Self {
        Self {
            read,
            hash,
            known: BTreeMap::from([(Vec::new(), root.to_owned())]),
        }
    }
}

impl Tree for ListedTree<'_, '_> {
    type Error = LookupError;

    fn entries(
        &mut self,
        directory: &[u8],
        wanted: &dyn Fn(&[u8]) -> bool,
    ) -> Result<Vec<(Vec<u8>, Entry)>, LookupError> {
        let Some(oid) = self.known.get(directory).cloned() else {
            return Ok(Vec::new());
        };
        let body = (self.read)(&oid)?;
        let found = parse(&body, self.hash).ok_or(LookupError::Missing { oid })?;
        let mut entries = Vec::new();
        for (name, (mode, oid)) in found.into_iter().filter(|(name, _)| wanted(name)) {
            let entry = match mode {
                DIRECTORY => {
                    let path = match directory {
                        b"" => name.clone(),
                        _ => [directory, b"/", &name].concat(),
                    };
                    self.known.insert(path, hex(&oid));
                    Entry::Directory
                }
                // A directory of another repository.
                GITLINK => Entry::Directory,
                _ => Entry::Other,
            };
            entries.push((name, entry));
        }
        Ok(entries)
    }
}
