//! What a task needs to see besides its own files: their tests, and what all of them import.

use std::collections::{BTreeMap, BTreeSet};

use ringfence_model::ByteText;
use ringfence_model::split::companions;
use ringfence_model::split::imports::{Graph, Language, MAX_SCANNED, Tree, scan};

use super::files::Listing;

/// Imports of the folder's files, read as they are asked for.
pub(super) struct Imports<'a> {
    listing: &'a Listing,
    tree: Tree,
    known: BTreeMap<ByteText, Vec<ByteText>>,
    /// Tests by what they test.
    tests: BTreeMap<ByteText, Vec<ByteText>>,
}

impl<'a> Imports<'a> {
    pub fn new(listing: &'a Listing) -> Self {
        let mut tree = Tree::new(listing.paths().cloned());
        for path in tree.go_modules() {
            if let Some(text) = listing.read(&path, MAX_SCANNED) {
                tree.go_module(&path, &text);
            }
        }
        let all: Vec<&ByteText> = listing.paths().collect();
        let mut tests: BTreeMap<ByteText, Vec<ByteText>> = BTreeMap::new();
        for (test, subject) in companions::pairs(&all) {
            tests.entry(subject.clone()).or_default().push(test.clone());
        }
        Self {
            listing,
            tree,
            known: BTreeMap::new(),
            tests,
        }
    }

    /// Who imports whom among some files.
    pub fn graph<'p>(&mut self, files: impl Iterator<Item = &'p ByteText>) -> Graph {
        let mut graph = Graph::default();
        for path in files {
            graph.add(path, self.of(path));
        }
        graph
    }

    fn of(&mut self, path: &ByteText) -> Vec<ByteText> {
        if let Some(known) = self.known.get(path) {
            return known.clone();
        }
        let language = Language::of(path);
        let text = language.and_then(|own| Some((own, self.listing.read(path, MAX_SCANNED)?)));
        let mut found = BTreeSet::new();
        if let Some((language, text)) = text {
            for import in scan(language, &text) {
                found.extend(self.tree.resolve(path, &import));
            }
        }
        let found: Vec<ByteText> = found.into_iter().collect();
        self.known.insert(path.clone(), found.clone());
        found
    }

    /// The files that make the directories above a module packages.
    fn packages(&self, path: &ByteText) -> Vec<ByteText> {
        let bytes = path.as_bytes();
        let slashes = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        slashes
            .map(|(at, _)| ByteText([&bytes[..at], b"/__init__.py"].concat()))
            .filter(|path| self.listing.has(path))
            .collect()
    }

    /// What is seen beside a task's files, sorted.
    pub fn beside(&mut self, files: &[ByteText], needs: &[ByteText]) -> Vec<ByteText> {
        let mut seen: BTreeSet<ByteText> = files.iter().cloned().collect();
        let tests = files.iter().filter_map(|path| self.tests.get(path));
        seen.extend(tests.flatten().cloned());
        let mut open: Vec<ByteText> = seen.iter().cloned().collect();
        while let Some(path) = open.pop() {
            let packages = match Language::of(&path) {
                Some(Language::Python) => self.packages(&path),
                _ => Vec::new(),
            };
            for next in self.of(&path).into_iter().chain(packages) {
                if seen.insert(next.clone()) {
                    open.push(next);
                }
            }
        }
        seen.extend(needs.iter().cloned());
        for own in files {
            seen.remove(own);
        }
        seen.into_iter().collect()
    }
}
