//! Rules for Rust source files: length, header, where `unsafe` may stand, and names.

use super::code::{blank, has_word};
use super::{Finding, Tree, exceptions};

/// BOUND: what a reader keeps in view; aim at a third of it.
pub const MAX_LINES: usize = 600;

/// Words that say nothing about what a thing is.
const EMPTY_WORDS: &[&str] = &[
    "core", "common", "util", "helper", "manager", "service", "impl", "misc", "legacy", "new", "v2",
];

pub fn files_are_short(tree: &Tree) -> Vec<Finding> {
    let exceptions = exceptions::read(tree);
    let mut findings = Vec::new();
    for (path, text) in tree.with_extension("rs") {
        let bound = exceptions
            .iter()
            .find(|exception| exception.rule == "length" && exception.path == path)
            .and_then(|exception| exception.detail.parse().ok())
            .unwrap_or(MAX_LINES);
        let lines = text.lines().count();
        if lines > bound {
            findings.push(Finding::new(
                path,
                bound + 1,
                format!("{lines} lines, and {bound} is the bound; split the file by what it does"),
            ));
        }
    }
    findings
}

pub fn files_have_a_header(tree: &Tree) -> Vec<Finding> {
    tree.with_extension("rs")
        .filter(|(_, text)| !text.starts_with("//!"))
        .map(|(path, _)| Finding::new(path, 1, "a file starts with `//!` and says what it is"))
        .collect()
}

pub fn unsafe_is_in_jail(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.with_extension("rs") {
        if path.starts_with("crates/jail/") {
            continue;
        }
        for (index, line) in blank(text).lines().enumerate() {
            if has_word(line, "unsafe") {
                findings.push(Finding::new(
                    path,
                    index + 1,
                    "`unsafe` stands only in crates/jail",
                ));
            }
        }
    }
    findings
}

/// Crates, directories, files and modules are called after what they hold.
pub fn names_say_something(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.with_extension("rs") {
        let stem = path.strip_suffix(".rs").unwrap_or(path);
        for part in stem.split('/') {
            if let Some(word) = empty_word(part) {
                findings.push(Finding::new(
                    path,
                    1,
                    format!("`{part}` says `{word}`, which is no name for anything"),
                ));
            }
        }
        for (index, line) in blank(text).lines().enumerate() {
            if let Some(word) = module_name(line).and_then(empty_word) {
                findings.push(Finding::new(
                    path,
                    index + 1,
                    format!("a module called after `{word}` could hold anything"),
                ));
            }
        }
    }
    findings
}

fn empty_word(name: &str) -> Option<&'static str> {
    name.split(['_', '-', '.'])
        .find_map(|part| {
            EMPTY_WORDS
                .iter()
                .find(|word| part == **word || part.strip_suffix('s') == Some(word))
        })
        .copied()
}

fn module_name(line: &str) -> Option<&str> {
    let mut words = line
        .split_whitespace()
        .skip_while(|word| word.starts_with("pub"));
    if words.next() != Some("mod") {
        return None;
    }
    words.next().map(|name| name.trim_end_matches([';', '{']))
}

#[cfg(test)]
mod tests {
    use super::super::places;
    use super::*;

    #[test]
    fn length_has_a_bound_and_exceptions() {
        let long = "x\n".repeat(MAX_LINES + 1);
        let tree = Tree::of(&[("a.rs", &long), ("b.txt", &long)]);
        assert_eq!(places(&files_are_short(&tree)), ["a.rs:601"]);
        let tree = Tree::of(&[
            ("a.rs", &long),
            (exceptions::FILE, "length a.rs 601 one table"),
        ]);
        assert_eq!(files_are_short(&tree), []);
    }

    #[test]
    fn a_header_is_the_first_thing() {
        let tree = Tree::of(&[("a.rs", "//! What.\n"), ("b.rs", "use x;\n"), ("c.rs", "")]);
        assert_eq!(places(&files_have_a_header(&tree)), ["b.rs:1", "c.rs:1"]);
    }

    #[test]
    fn unsafe_is_found_in_code_only() {
        for (path, text, fine) in [
            ("crates/jail/src/a.rs", "unsafe {}", true),
            ("crates/cli/src/a.rs", "unsafe {}", false),
            (
                "crates/cli/src/a.rs",
                "// unsafe\n/* unsafe */ let a = \"unsafe\";",
                true,
            ),
            ("crates/cli/src/a.rs", "#![forbid(unsafe_code)]", true),
            ("tests/a.rs", "fn a() { unsafe { b() } }", false),
        ] {
            let found = unsafe_is_in_jail(&Tree::of(&[(path, text)]));
            assert_eq!(found.is_empty(), fine, "{path}: {text}");
        }
    }

    #[test]
    fn empty_names_are_found() {
        for (path, text, fine) in [
            ("crates/cli/src/list.rs", "mod tests {}", true),
            ("crates/cli/src/core.rs", "", false),
            ("crates/cli/src/path_utils.rs", "", false),
            ("crates/helper/src/lib.rs", "", false),
            ("crates/cli/src/newest.rs", "", true),
            ("crates/cli/src/renew.rs", "", true),
            ("crates/cli/src/a.rs", "pub(crate) mod common;", false),
            ("crates/cli/src/a.rs", "mod wire_v2 {", false),
            ("crates/cli/src/a.rs", "// mod common;", true),
        ] {
            let found = names_say_something(&Tree::of(&[(path, text)]));
            assert_eq!(found.is_empty(), fine, "{path}: {text}");
        }
    }
}
