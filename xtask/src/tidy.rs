//! The checks, over a tree of texts held in memory, so that each is a plain function with a table.

mod code;
mod documents;
mod edges;
mod exceptions;
pub mod history;
mod leaks;
mod promises;
mod sources;

use std::collections::BTreeMap;
use std::fmt;

/// Path (with `/`) to text; `None` for a file that is not text.
#[derive(Debug, Default)]
pub struct Tree {
    files: BTreeMap<String, Option<String>>,
    /// Those that are checked, the newest first.
    pub commits: Vec<history::Commit>,
}

impl Tree {
    pub fn insert(&mut self, path: &str, text: Option<String>) {
        self.files.insert(path.to_owned(), text);
    }

    #[cfg(test)]
    pub fn of(files: &[(&str, &str)]) -> Self {
        let mut tree = Self::default();
        for (path, text) in files {
            tree.insert(path, Some((*text).to_owned()));
        }
        tree
    }

    fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path)?.as_deref()
    }

    fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files
            .iter()
            .filter_map(|(path, text)| Some((path.as_str(), text.as_deref()?)))
    }

    fn with_extension<'a>(
        &'a self,
        extension: &'a str,
    ) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.texts().filter(move |(path, _)| {
            path.rsplit_once('.')
                .is_some_and(|(_, found)| found == extension)
        })
    }

    /// True for a file and for a directory that holds one.
    fn exists(&self, path: &str) -> bool {
        let below = format!("{path}/");
        path.is_empty()
            || self.files.contains_key(path)
            || self
                .files
                .range(below.clone()..)
                .next()
                .is_some_and(|(first, _)| first.starts_with(&below))
    }
}

/// Something that is not as the rules want it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    path: String,
    /// 0 where there is none.
    line: usize,
    message: String,
}

impl Finding {
    fn new(path: &str, line: usize, message: impl Into<String>) -> Self {
        Self {
            path: path.to_owned(),
            line,
            message: message.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.message),
            line => write!(f, "{}:{line}: {}", self.path, self.message),
        }
    }
}

/// What a whole run found.
#[derive(Debug)]
pub struct Report {
    pub checks: usize,
    pub files: usize,
    pub commits: usize,
    pub findings: Vec<Finding>,
}

type Check = fn(&Tree) -> Vec<Finding>;

/// In the order of the rules in `CONTRIBUTING.md`.
const CHECKS: &[Check] = &[
    edges::crates_are_known,
    edges::edges_are_allowed,
    sources::files_are_short,
    sources::files_have_a_header,
    sources::unsafe_is_in_jail,
    sources::names_say_something,
    exceptions::exceptions_are_needed,
    leaks::no_machine_paths,
    leaks::no_registry_hosts,
    documents::links_resolve,
    documents::changelog_has_unreleased,
    promises::promises_are_kept,
    promises::requirements_have_tests,
    history::commits_are_small_and_say_why,
];

/// Runs every check.
pub fn check(tree: &Tree) -> Report {
    let mut findings: Vec<Finding> = CHECKS.iter().flat_map(|check| check(tree)).collect();
    findings.sort();
    Report {
        checks: CHECKS.len(),
        files: tree.files.len(),
        commits: tree.commits.len(),
        findings,
    }
}

/// For tables: the findings as `path:line`.
#[cfg(test)]
pub fn places(findings: &[Finding]) -> Vec<String> {
    findings
        .iter()
        .map(|finding| format!("{}:{}", finding.path, finding.line))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_exists_where_a_file_is_below_it() {
        let tree = Tree::of(&[("docs/a.md", "")]);
        for (path, expected) in [
            ("docs", true),
            ("docs/a.md", true),
            ("", true),
            ("doc", false),
            ("docs/a", false),
        ] {
            assert_eq!(tree.exists(path), expected, "{path}");
        }
    }

    #[test]
    fn a_finding_is_one_line_that_editors_understand() {
        let finding = Finding::new("a/b.rs", 7, "too long");
        assert_eq!(finding.to_string(), "a/b.rs:7: too long");
    }
}
