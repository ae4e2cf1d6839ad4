//! Which programs of the machine were seen in runs on a folder, so that a new one can be told.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use ringfence_model::ByteText;
use rusqlite::params;

use super::{Store, StoreError};
use crate::clock::now_us;

/// BOUND: of all folders; those that were not used for longest are forgotten.
const KEPT: i64 = 100_000;
/// BOUND: of one run; more distinct programs of the machine are no work that anybody does.
const NOTED: usize = 5000;

impl Store {
    /// The programs of earlier runs on a folder.
    pub fn known_programs(&self, folder: &Path) -> Result<BTreeSet<ByteText>, StoreError> {
        let read = || -> Result<BTreeSet<ByteText>, rusqlite::Error> {
            self.connection
                .prepare_cached("SELECT path FROM programs WHERE folder = ?1")?
                .query_map([folder.as_os_str().as_bytes()], |row| {
                    Ok(ByteText(row.get::<_, Vec<u8>>(0)?))
                })?
                .collect()
        };
        read().map_err(|e| self.programs_failed(folder, e))
    }

    /// Notes the programs of a run that is over.
    pub fn note_programs(
        &self,
        folder: &Path,
        programs: &BTreeSet<ByteText>,
    ) -> Result<(), StoreError> {
        if programs.is_empty() {
            return Ok(());
        }
        let write = || -> Result<(), rusqlite::Error> {
            let transaction = self.intent()?.unchecked_transaction()?;
            let now = now_us();
            for path in programs.iter().take(NOTED) {
                transaction
                    .prepare_cached(
                        "INSERT INTO programs (folder, path, first_us, used_us)
                         VALUES (?1, ?2, ?3, ?3)
                         ON CONFLICT (folder, path) DO UPDATE SET used_us = ?3",
                    )?
                    .execute(params![folder.as_os_str().as_bytes(), path.as_bytes(), now])?;
            }
            transaction
                .prepare_cached(
                    "DELETE FROM programs WHERE (folder, path) IN
                     (SELECT folder, path FROM programs ORDER BY used_us DESC LIMIT -1 OFFSET ?1)",
                )?
                .execute([KEPT])?;
            transaction.commit()
        };
        write().map_err(|e| self.programs_failed(folder, e))
    }

    fn programs_failed(&self, folder: &Path, source: rusqlite::Error) -> StoreError {
        self.failed(source, |source| StoreError::Programs {
            folder: folder.to_owned(),
            source,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::home::Home;

    #[test]
    fn programs_are_known_by_folder() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::open(Some(directory.path().join("home"))).unwrap();
        let store = Store::open(&home).unwrap();
        let set = |paths: &[&str]| -> BTreeSet<ByteText> {
            paths.iter().map(|path| ByteText::from(*path)).collect()
        };
        let (one, other) = (Path::new("/one"), Path::new("/other"));
        assert!(store.known_programs(one).unwrap().is_empty());
        store
            .note_programs(one, &set(&["/bin/a", "/bin/b"]))
            .unwrap();
        store
            .note_programs(one, &set(&["/bin/b", "/bin/c"]))
            .unwrap();
        store.note_programs(other, &set(&["/bin/d"])).unwrap();
        let known = Store::open(&home).unwrap().known_programs(one).unwrap();
        assert_eq!(known, set(&["/bin/a", "/bin/b", "/bin/c"]));
    }
}
