//! A root with files in it, for tests; beside it a place that is outside.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde_json::Value;
use tempfile::TempDir;

use crate::failure::Outcome;
use crate::place::Root;

#[derive(Debug)]
pub struct Bench {
    directory: TempDir,
    pub root: Root,
}

impl Bench {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("root")).unwrap();
        fs::create_dir(directory.path().join("outside")).unwrap();
        let root = Root::open(&directory.path().join("root")).unwrap();
        Self { directory, root }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join("root").join(name)
    }

    pub fn outside(&self, name: &str) -> PathBuf {
        self.directory.path().join("outside").join(name)
    }

    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    pub fn content(&self, name: &str) -> String {
        String::from_utf8(fs::read(self.path(name)).unwrap()).unwrap()
    }

    /// Calls a tool as the program would.
    pub fn call<Q: DeserializeOwned, A>(
        &self,
        tool: fn(&Root, Q) -> Outcome<A>,
        request: Value,
    ) -> Outcome<A> {
        tool(&self.root, serde_json::from_value(request).unwrap())
    }

    /// Names in a directory, to see that nothing is left behind.
    pub fn names(&self, directory: &str) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.path(directory))
            .unwrap()
            .map(|entry| String::from_utf8_lossy(entry.unwrap().file_name().as_bytes()).into())
            .collect();
        names.sort();
        names
    }
}
