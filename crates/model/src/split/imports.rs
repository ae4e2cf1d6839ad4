//! Which file of a tree imports which, where the language is plain about it: Python, JavaScript and
//! TypeScript, Rust, Go.
//!
//! Only imports are read, by small scanners that know comments and strings. What is looked up while
//! a program runs is not seen, and neither is what an import of another package means: an order that
//! is right for most files serves, and nothing that is wrong here can hurt more than the order.
//!
//! HOSTILE: the files are the repository's. Scanners take any bytes, in linear time, without
//! recursion.

mod go;
mod lexer;
mod python;
mod rust;
mod script;

use std::collections::{BTreeMap, BTreeSet};

use super::{directory, file_name};
use crate::ByteText;

/// BOUND: bytes of a file that are scanned. Imports stand at the top.
pub const MAX_SCANNED: usize = 1 << 20;
/// BOUND: imports of one file.
const MAX_IMPORTS: usize = 2000;

/// A language whose imports are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    Python,
    /// JavaScript and TypeScript.
    Script,
    Rust,
    Go,
}

impl Language {
    /// By the end of a name.
    pub fn of(path: &ByteText) -> Option<Self> {
        let name = file_name(path);
        let dot = name.iter().rposition(|byte| *byte == b'.')?;
        match &name[dot + 1..] {
            b"py" | b"pyi" => Some(Self::Python),
            b"js" | b"jsx" | b"ts" | b"tsx" | b"mjs" | b"cjs" | b"mts" | b"cts" => {
                Some(Self::Script)
            }
            b"rs" => Some(Self::Rust),
            b"go" => Some(Self::Go),
            _ => None,
        }
    }
}

/// An import as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Import {
    /// `from ..a.b import c`: two levels up, `a.b`, and `c`.
    Python {
        level: usize,
        module: Vec<String>,
        name: Option<String>,
    },
    Script(String),
    Rust(Vec<String>),
    Go(String),
}

/// The imports of a file.
pub fn scan(language: Language, bytes: &[u8]) -> Vec<Import> {
    let bytes = &bytes[..bytes.len().min(MAX_SCANNED)];
    let mut found = match language {
        Language::Python => python::scan(bytes),
        Language::Script => script::scan(bytes),
        Language::Rust => rust::scan(bytes),
        Language::Go => go::scan(bytes),
    };
    found.truncate(MAX_IMPORTS);
    found
}

/// The files among which imports are looked up.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    paths: BTreeSet<ByteText>,
    /// Directories that hold a `go.mod`, by the name of their module.
    modules: Vec<(String, Vec<u8>)>,
    /// Go files that are no tests, by directory.
    packages: BTreeMap<Vec<u8>, Vec<ByteText>>,
}

impl Tree {
    pub fn new(paths: impl IntoIterator<Item = ByteText>) -> Self {
        let paths: BTreeSet<ByteText> = paths.into_iter().collect();
        let mut packages: BTreeMap<Vec<u8>, Vec<ByteText>> = BTreeMap::new();
        for path in &paths {
            let bytes = path.as_bytes();
            if bytes.ends_with(b".go") && !bytes.ends_with(b"_test.go") {
                let place = directory(path).to_vec();
                packages.entry(place).or_default().push(path.clone());
            }
        }
        Self {
            paths,
            modules: Vec::new(),
            packages,
        }
    }

    /// Files that say what Go's imports mean.
    pub fn go_modules(&self) -> Vec<ByteText> {
        let named = self
            .paths
            .iter()
            .filter(|path| file_name(path) == b"go.mod");
        named.cloned().collect()
    }

    /// Takes one of them.
    pub fn go_module(&mut self, path: &ByteText, text: &[u8]) {
        if let Some(name) = go::module(text) {
            self.modules.push((name, directory(path).to_vec()));
        }
    }

    /// The files of the tree that an import stands for.
    pub fn resolve(&self, from: &ByteText, import: &Import) -> Vec<ByteText> {
        match import {
            Import::Python {
                level,
                module,
                name,
            } => {
                let found = python::resolve(self, from, *level, module, name.as_deref());
                found.into_iter().collect()
            }
            Import::Script(text) => script::resolve(self, from, text).into_iter().collect(),
            Import::Rust(path) => rust::resolve(self, from, path).into_iter().collect(),
            Import::Go(text) => go::resolve(self, text),
        }
    }

    /// The first of some paths that is there.
    fn first(&self, paths: impl IntoIterator<Item = Vec<u8>>) -> Option<ByteText> {
        let mut paths = paths.into_iter().map(ByteText);
        paths.find(|path| self.paths.contains(path))
    }
}

/// Who imports whom.
#[derive(Clone, Debug, Default)]
pub struct Graph(BTreeMap<ByteText, BTreeSet<ByteText>>);

impl Graph {
    pub fn add(&mut self, from: &ByteText, to: Vec<ByteText>) {
        let own = self.0.entry(from.clone()).or_default();
        own.extend(to.into_iter().filter(|to| to != from));
    }

    /// What a file imports.
    pub fn of(&self, path: &ByteText) -> impl Iterator<Item = &ByteText> {
        self.0.get(path).into_iter().flatten()
    }
}

/// `directory/rest`.
fn join(directory: &[u8], rest: &[u8]) -> Vec<u8> {
    match directory {
        b"" => rest.to_vec(),
        directory => [directory, b"/", rest].concat(),
    }
}

/// The directory above; `None` at the top.
fn above(directory: &[u8]) -> Option<&[u8]> {
    if directory.is_empty() {
        return None;
    }
    let end = directory.iter().rposition(|byte| *byte == b'/');
    Some(&directory[..end.unwrap_or(0)])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The files of a tree that the imports of one of them stand for.
    pub(super) fn resolved(imports: &[Import], files: &[&str], from: &str) -> Vec<String> {
        let tree = Tree::new(files.iter().copied().map(ByteText::from));
        let from = ByteText::from(from);
        let found = imports.iter().flat_map(|one| tree.resolve(&from, one));
        found.map(|path| path.to_text()).collect()
    }

    const ALL: [Language; 4] = [
        Language::Python,
        Language::Script,
        Language::Rust,
        Language::Go,
    ];

    proptest! {
        #[test]
        fn any_bytes_are_scanned(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            for language in ALL {
                scan(language, &bytes);
            }
        }

        #[test]
        fn any_mixture_of_signs_is_scanned(
            text in "(import|from|use|crate|require|export|r#*\"|'''|\"|'|`|\\$\\{|\\}|/\\*|\\*/|//|#|\\(|\\)|::|\\{|,|;|\\\\|\n| |a|\\.){0,60}"
        ) {
            for language in ALL {
                scan(language, text.as_bytes());
            }
        }
    }

    #[test]
    fn a_hostile_file_costs_no_stack_and_little_time() {
        for sign in [
            "{", "`${", "use a::{", "/*", "import ", "from .", "(", "r#\"", "'", "import(",
        ] {
            let text = sign.repeat(200_000 / sign.len());
            for language in ALL {
                assert!(scan(language, text.as_bytes()).len() <= MAX_IMPORTS);
            }
        }
    }
}
