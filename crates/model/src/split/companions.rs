//! Which file is a test, and of what: by the names that people give them.

use std::collections::BTreeMap;

use super::{directory, file_name};
use crate::ByteText;

/// Directories that hold tests.
const TEST_DIRECTORIES: [&str; 6] = ["tests", "test", "__tests__", "spec", "specs", "testing"];
/// Directories that say nothing about what is below them.
const PLAIN_DIRECTORIES: [&str; 6] = ["src", "lib", "main", "java", "kotlin", "unit"];

/// Languages whose files can test each other: extensions of one row.
const FAMILIES: [&[&str]; 10] = [
    &["py", "pyi"],
    &[
        "js", "jsx", "ts", "tsx", "mjs", "cjs", "mts", "cts", "vue", "svelte",
    ],
    &["rs"],
    &["go"],
    &["java", "kt", "scala", "groovy"],
    &["rb"],
    &["c", "h", "cc", "cpp", "cxx", "hpp", "hh"],
    &["cs", "fs"],
    &["php"],
    &["ex", "exs", "swift", "dart", "sh"],
];

/// A file's name, taken apart.
struct Name<'a> {
    stem: &'a str,
    family: usize,
}

/// Tests, each with the file that it tests. Whatever order the files are in, it is the same.
pub fn pairs<'a>(files: &[&'a ByteText]) -> Vec<(&'a ByteText, &'a ByteText)> {
    let mut subjects: BTreeMap<(usize, &str), Vec<&ByteText>> = BTreeMap::new();
    let mut tests = Vec::new();
    for path in files {
        let Some(name) = name(path) else { continue };
        match tested(path, name.stem) {
            Some(stem) => tests.push((*path, name.family, stem)),
            None => subjects
                .entry((name.family, name.stem))
                .or_default()
                .push(path),
        }
    }
    for list in subjects.values_mut() {
        list.sort_unstable();
    }
    let mut pairs = Vec::new();
    for (test, family, stem) in tests {
        let Some(candidates) = subjects.get(&(family, stem)) else {
            continue;
        };
        // BOUND: a name that hundreds of files have (`index`) tells nothing.
        if candidates.len() > 200 {
            continue;
        }
        let best = candidates
            .iter()
            .map(|subject| (nearness(test, subject), *subject))
            .max_by(|(near, path), (other, than)| near.cmp(other).then(than.cmp(path)));
        match best {
            Some((near, subject)) if near > 0 || candidates.len() == 1 => {
                pairs.push((test, subject));
            }
            _ => {}
        }
    }
    pairs
}

fn name(path: &ByteText) -> Option<Name<'_>> {
    let text = std::str::from_utf8(file_name(path)).ok()?;
    let (stem, extension) = text.rsplit_once('.')?;
    let family = FAMILIES
        .iter()
        .position(|family| family.contains(&extension))?;
    Some(Name { stem, family })
}

/// The stem of what a file tests; `None` for one that is no test.
fn tested<'a>(path: &'a ByteText, stem: &'a str) -> Option<&'a str> {
    let by_name = ["test_", "tests_", "spec_"]
        .iter()
        .find_map(|prefix| stem.strip_prefix(prefix))
        .or_else(|| {
            let suffixes = [
                "_test", "_tests", "_spec", ".test", ".spec", "-test", "-spec", ".cy",
            ];
            suffixes.iter().find_map(|end| stem.strip_suffix(end))
        })
        .or_else(|| {
            // `UserTest`, not `latest`.
            let suffixes = ["Tests", "Test", "Spec", "IT"];
            let cut = suffixes.iter().find_map(|end| stem.strip_suffix(end))?;
            cut.ends_with(|c: char| c.is_lowercase() || c.is_ascii_digit())
                .then_some(cut)
        })
        .filter(|rest| !rest.is_empty());
    if by_name.is_some() {
        return by_name;
    }
    let place = std::str::from_utf8(directory(path)).ok()?;
    // `src/lexer/tests.rs` tests `src/lexer.rs`.
    if matches!(stem, "tests" | "test") && path.as_bytes().ends_with(b".rs") {
        return place.rsplit('/').next().filter(|name| !name.is_empty());
    }
    let in_tests = place
        .split('/')
        .any(|part| TEST_DIRECTORIES.contains(&part));
    in_tests.then_some(stem)
}

/// How much of the places of two files is the same, but for what tells tests from the rest.
fn nearness(test: &ByteText, subject: &ByteText) -> usize {
    let parts = |path: &ByteText| -> Vec<Vec<u8>> {
        let mut parts: Vec<Vec<u8>> = directory(path)
            .split(|byte| *byte == b'/')
            .map(<[u8]>::to_vec)
            .collect();
        let says = |part: &Vec<u8>| {
            let plain = TEST_DIRECTORIES.iter().chain(&PLAIN_DIRECTORIES);
            !part.is_empty() && !plain.clone().any(|name| name.as_bytes() == part)
        };
        parts.retain(says);
        parts
    };
    let (own, other) = (parts(test), parts(subject));
    if directory(test) == directory(subject) {
        return 1000;
    }
    if own == other {
        return 999;
    }
    let before = own.iter().zip(&other).take_while(|(a, b)| a == b).count();
    let after = own.iter().rev().zip(other.iter().rev());
    let after = after.take_while(|(a, b)| a == b).count();
    before.max(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_find_what_they_test() {
        let files = [
            "pkg/a.py",
            "pkg/test_a.py",
            "pkg/sub/a.py",
            "tests/sub/test_a.py",
            "tests/test_b.py",
            "src/b.py",
            "web/x.ts",
            "web/x.test.ts",
            "web/__tests__/y.tsx",
            "web/y.tsx",
            "go/z.go",
            "go/z_test.go",
            "src/lexer.rs",
            "src/lexer/tests.rs",
            "tests/lone.rs",
            "src/main/java/a/User.java",
            "src/test/java/a/UserTest.java",
            "lib/latest.py",
            "tests/helpers.py",
            "one/q.rb",
            "two/q.rb",
            "spec/q_spec.rb",
        ]
        .map(ByteText::from);
        let list: Vec<&ByteText> = files.iter().collect();
        let found: BTreeMap<String, String> = pairs(&list)
            .into_iter()
            .map(|(test, subject)| (test.to_text(), subject.to_text()))
            .collect();
        let expected: BTreeMap<String, String> = [
            ("pkg/test_a.py", "pkg/a.py"),
            ("tests/sub/test_a.py", "pkg/sub/a.py"),
            ("tests/test_b.py", "src/b.py"),
            ("web/x.test.ts", "web/x.ts"),
            ("web/__tests__/y.tsx", "web/y.tsx"),
            ("go/z_test.go", "go/z.go"),
            ("src/lexer/tests.rs", "src/lexer.rs"),
            ("src/test/java/a/UserTest.java", "src/main/java/a/User.java"),
        ]
        .into_iter()
        .map(|(test, subject)| (test.to_owned(), subject.to_owned()))
        .collect();
        assert_eq!(found, expected);
    }
}
