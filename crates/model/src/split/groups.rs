//! What a command printed: groups of paths.
//!
//! Either JSON, a list of lists of strings, or text: one path in a line, an empty line between
//! groups. A path with odd bytes is quoted as git quotes it.
//!
//! HOSTILE: the command ran on the repository's own files. Its output is bounded, each path must be
//! one of the tree, and none may be there twice.

use std::collections::{BTreeMap, BTreeSet};

use crate::ByteText;

/// BOUND: bytes that a command may print; a million paths have more.
pub const MAX_OUTPUT: usize = 32 << 20;
/// BOUND: groups, each of which becomes a task.
pub const MAX_GROUPS: usize = 10_000;

/// Why what was printed cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum GroupsError {
    #[error("it printed no path")]
    Nothing,
    #[error("it printed more than {MAX_OUTPUT} bytes")]
    TooLong,
    #[error("it printed more than {MAX_GROUPS} groups")]
    TooMany,
    #[error("line {line} is not UTF-8; quote such a path as git does")]
    NotText { line: usize },
    #[error("line {line} is quoted, and its quoting is broken")]
    Quoting { line: usize },
    #[error("what it printed begins with `[` and is no list of lists of paths in JSON")]
    Json(#[source] serde_json::Error),
    #[error("`{path}` of group {group} leads out of the tree")]
    Outside { path: ByteText, group: usize },
    #[error("`{path}` of group {group} is no file of the tree that a task can have")]
    Unknown { path: ByteText, group: usize },
    #[error("`{path}` is in group {first} and in group {second}")]
    Overlap {
        path: ByteText,
        first: usize,
        second: usize,
    },
}

/// Reads groups; each path is one of `known`. Groups are counted from 1.
pub fn parse(output: &[u8], known: &BTreeSet<ByteText>) -> Result<Vec<Vec<ByteText>>, GroupsError> {
    if output.len() > MAX_OUTPUT {
        return Err(GroupsError::TooLong);
    }
    let read = match output.trim_ascii_start().first() {
        Some(b'[') => json(output)?,
        _ => lines(output)?,
    };
    let mut seen: BTreeMap<ByteText, usize> = BTreeMap::new();
    let mut groups = Vec::new();
    for paths in read {
        if paths.is_empty() {
            continue;
        }
        let group = groups.len() + 1;
        if group > MAX_GROUPS {
            return Err(GroupsError::TooMany);
        }
        let mut own = BTreeSet::new();
        for path in paths {
            let path = plain(path, group)?;
            if !known.contains(&path) {
                return Err(GroupsError::Unknown { path, group });
            }
            match seen.insert(path.clone(), group) {
                Some(first) if first != group => {
                    return Err(GroupsError::Overlap {
                        path,
                        first,
                        second: group,
                    });
                }
                _ => own.insert(path),
            };
        }
        groups.push(own.into_iter().collect());
    }
    if groups.is_empty() {
        Err(GroupsError::Nothing)
    } else {
        Ok(groups)
    }
}

fn json(output: &[u8]) -> Result<Vec<Vec<ByteText>>, GroupsError> {
    serde_json::from_slice(output).map_err(GroupsError::Json)
}

fn lines(output: &[u8]) -> Result<Vec<Vec<ByteText>>, GroupsError> {
    let mut groups = vec![Vec::new()];
    for (number, line) in output.split(|byte| *byte == b'\n').enumerate() {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.iter().all(u8::is_ascii_whitespace) {
            if groups.last().is_some_and(|group| !group.is_empty()) {
                groups.push(Vec::new());
            }
            continue;
        }
        let at = number + 1;
        let text = std::str::from_utf8(line).map_err(|_| GroupsError::NotText { line: at })?;
        let path = ByteText::from_text(text).ok_or(GroupsError::Quoting { line: at })?;
        if let Some(group) = groups.last_mut() {
            group.push(path);
        }
    }
    Ok(groups)
}

/// A path from the top of the tree.
fn plain(path: ByteText, group: usize) -> Result<ByteText, GroupsError> {
    let bytes = path.as_bytes();
    let mut bare = bytes;
    for top in [&b"/workspace/"[..], b"./"] {
        bare = bare.strip_prefix(top).unwrap_or(bare);
    }
    let out = bare.starts_with(b"/")
        || bare.split(|byte| *byte == b'/').any(|part| part == b"..")
        || bare.contains(&0);
    if out {
        Err(GroupsError::Outside { path, group })
    } else {
        Ok(ByteText::from(bare))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<Vec<String>>, String> {
        let known = ["a", "b", "d/c", "q\"", "\u{1b}"].map(ByteText::from);
        let known = BTreeSet::from(known);
        let groups = parse(text.as_bytes(), &known).map_err(|error| error.to_string())?;
        let texts = |group: Vec<ByteText>| group.iter().map(ByteText::to_text).collect();
        Ok(groups.into_iter().map(texts).collect())
    }

    #[test]
    fn groups_are_read_or_refused_by_name() {
        for (text, expected) in [
            ("a\nb\n\nd/c\n", vec![vec!["a", "b"], vec!["d/c"]]),
            (
                "\n\n./a\r\n\r\n\n/workspace/d/c",
                vec![vec!["a"], vec!["d/c"]],
            ),
            ("b\na\na\n", vec![vec!["a", "b"]]),
            (
                r#" [["a"],[],["b","d/c"]]"#,
                vec![vec!["a"], vec!["b", "d/c"]],
            ),
            ("\"\\033\"\n", vec![vec!["\"\\033\""]]),
        ] {
            let expected: Vec<Vec<String>> = expected
                .into_iter()
                .map(|group| group.into_iter().map(str::to_owned).collect())
                .collect();
            assert_eq!(read(text), Ok(expected), "{text}");
        }
        for (text, part) in [
            ("", "no path"),
            ("\n \n", "no path"),
            ("a\n\na\n", "`a` is in group 1 and in group 2"),
            ("../a\n", "out of the tree"),
            ("/etc/passwd\n", "out of the tree"),
            ("d/../a\n", "out of the tree"),
            ("x\n", "no file of the tree"),
            ("\"a\n", "line 1 is quoted"),
            ("[[\"a\"", "list of lists"),
            ("[{\"a\":1}]", "list of lists"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
        assert!(matches!(
            parse(b"a\n\xff\n", &BTreeSet::from([ByteText::from("a")])),
            Err(GroupsError::NotText { line: 2 })
        ));
        let many = "[".to_owned() + &"[\"a\"],".repeat(MAX_GROUPS + 1) + "[]]";
        assert!(read(&many).unwrap_err().contains("is in group"));
        let deep = "[".repeat(100_000);
        assert!(read(&deep).is_err());
    }
}
