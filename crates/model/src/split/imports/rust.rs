//! Imports of Rust: `use`, within one crate.
//!
//! `mod` is no import: a crate's root has all others below it, and would be in a circle with most.

use super::lexer::{Dialect, Token, tokens};
use super::{Import, MAX_IMPORTS, Tree, above, join};
use crate::ByteText;
use crate::split::{directory, file_name};

pub(super) fn scan(bytes: &[u8]) -> Vec<Import> {
    let mut tokens = tokens(bytes, Dialect::Rust);
    tokens.retain(|token| *token != Token::Newline);
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        at += 1;
        // `use` is a keyword: it begins an import, or stands in `impl Trait + use<'a>`.
        if token.is_word("use") && !tokens.get(at).is_some_and(|next| next.is_sign(b'<')) {
            at = tree(&tokens, at, &mut found);
        }
    }
    found
}

/// `a::{b, c::{d, self}} as e;`, without recursion: what is before each open brace is on a stack.
fn tree(tokens: &[Token], mut at: usize, found: &mut Vec<Import>) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut path: Vec<String> = Vec::new();
    // Whether something was named since the last end of a path.
    let mut named = false;
    let mut alias = false;
    let mut take = |path: &[String]| {
        // BOUND: also of what braces within braces make.
        if found.len() < MAX_IMPORTS && path.len() <= 64 {
            found.push(Import::Rust(path.to_vec()));
        }
    };
    while let Some(token) = tokens.get(at) {
        at += 1;
        match token {
            Token::Word(word) if word == "as" => alias = true,
            Token::Word(_) if alias => alias = false,
            Token::Word(word) => {
                if word != "self" || path.is_empty() {
                    path.push(word.clone());
                }
                named = true;
            }
            Token::Sign(b'*') => named = true,
            Token::Sign(b':') => {}
            Token::Sign(b'{') => {
                before.push(path.len());
                named = false;
            }
            Token::Sign(end @ (b',' | b'}' | b';')) => {
                if named {
                    take(&path);
                }
                named = false;
                if *end == b';' {
                    return at;
                }
                if *end == b'}' {
                    before.pop();
                }
                match before.last() {
                    Some(length) => path.truncate(*length),
                    // A list that nothing opened is none of ours; `}` ends `{…}` before `;`.
                    None if *end == b',' => return at,
                    None => path.clear(),
                }
            }
            _ => return at,
        }
    }
    at
}

/// The file of the longest part of a path that is a module.
pub(super) fn resolve(tree: &Tree, from: &ByteText, path: &[String]) -> Option<ByteText> {
    let root = crate_root(tree, from)?;
    let own = own_module(from, &root);
    let (mut place, mut rest) = (own.clone(), path);
    let mut within = true;
    match path.first().map(String::as_str) {
        Some("crate") => {
            place = Vec::new();
            rest = &path[1..];
        }
        Some("self") => rest = &path[1..],
        Some("super") => {
            while rest.first().is_some_and(|part| part == "super") {
                place.pop()?;
                rest = &rest[1..];
            }
        }
        // Another crate, or a module of this one.
        _ => within = false,
    }
    for length in (0..=rest.len()).rev() {
        if length == 0 && !within {
            return None;
        }
        let parts = place.iter().chain(&rest[..length]);
        let module: Vec<&str> = parts.map(String::as_str).collect();
        let at = join(&root, module.join("/").as_bytes());
        let files = if module.is_empty() {
            vec![join(&root, b"lib.rs"), join(&root, b"main.rs")]
        } else {
            vec![[&at[..], b".rs"].concat(), join(&at, b"mod.rs")]
        };
        if let Some(found) = tree.first(files) {
            return Some(found);
        }
    }
    None
}

/// The nearest directory above that has a `lib.rs` or `main.rs`.
fn crate_root(tree: &Tree, from: &ByteText) -> Option<Vec<u8>> {
    let mut place = directory(from);
    loop {
        let roots = [join(place, b"lib.rs"), join(place, b"main.rs")];
        if tree.first(roots).is_some() {
            return Some(place.to_vec());
        }
        place = above(place)?;
    }
}

/// The path of a file's module below its crate.
fn own_module(from: &ByteText, root: &[u8]) -> Vec<String> {
    let name = String::from_utf8_lossy(file_name(from)).into_owned();
    let below = &directory(from)[root.len().min(directory(from).len())..];
    let below = String::from_utf8_lossy(below).into_owned();
    let mut module: Vec<String> = below
        .split('/')
        .filter(|part| !part.is_empty())
        .map(str::to_owned)
        .collect();
    let stem = name.strip_suffix(".rs").unwrap_or(&name);
    let is_top = matches!(stem, "lib" | "main") && module.is_empty();
    if !is_top && stem != "mod" {
        module.push(stem.to_owned());
    }
    module
}

#[cfg(test)]
mod tests {
    use super::super::tests::resolved;
    use super::*;

    #[test]
    fn imports_are_read_and_found() {
        let text = br###"
// use crate::no1;
/* /* use crate::no1; */ use crate::no1; */
use crate::a::{self, b::Thing, c::{D, e as f}};
pub(crate) use super::sibling::*;
use self::inner::X as Y;
use std::collections::BTreeMap;
use serde::{Deserialize, Serialize};
fn f<'a>(x: &'a str) -> char { let q = '"'; let r = r#"use crate::no1;"#; '\'' }
use crate::Error;
use inner::Z;
"###;
        let files = [
            "k/src/lib.rs",
            "k/src/a.rs",
            "k/src/a/b.rs",
            "k/src/a/c/mod.rs",
            "k/src/m.rs",
            "k/src/sibling.rs",
            "k/src/m/inner.rs",
            "k/src/no1.rs",
        ];
        let found = resolved(&scan(text), &files, "k/src/m.rs");
        let expected = [
            "k/src/a.rs",
            "k/src/a/b.rs",
            "k/src/a/c/mod.rs",
            "k/src/a/c/mod.rs",
            "k/src/sibling.rs",
            "k/src/m/inner.rs",
            "k/src/lib.rs",
            "k/src/m/inner.rs",
        ];
        assert_eq!(found, expected);
    }
}
