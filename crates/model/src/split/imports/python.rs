//! Imports of Python.

use super::lexer::{Dialect, Token, tokens};
use super::{Import, Tree, above, join};
use crate::ByteText;
use crate::split::directory;

/// Statements that begin with `import` or `from`.
pub(super) fn scan(bytes: &[u8]) -> Vec<Import> {
    let tokens = tokens(bytes, Dialect::Python);
    let mut found = Vec::new();
    let mut depth = 0usize;
    let mut begins = true;
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        at += 1;
        match token {
            Token::Word(word) if begins && word == "import" => {
                at = imported(&tokens, at, &mut found);
                begins = false;
            }
            Token::Word(word) if begins && word == "from" => {
                at = from(&tokens, at, &mut found);
                begins = false;
            }
            Token::Newline => begins = depth == 0 || begins,
            Token::Sign(b'(' | b'[' | b'{') => {
                depth += 1;
                begins = false;
            }
            Token::Sign(b')' | b']' | b'}') => {
                depth = depth.saturating_sub(1);
                begins = false;
            }
            // `if x: import y`, `a; import b`.
            Token::Sign(b':' | b';') => begins = depth == 0,
            _ => begins = false,
        }
    }
    found
}

/// `a.b as c, d`.
fn imported(tokens: &[Token], mut at: usize, found: &mut Vec<Import>) -> usize {
    loop {
        let (module, next) = dotted(tokens, at);
        if module.is_empty() {
            return at;
        }
        found.push(Import::Python {
            level: 0,
            module,
            name: None,
        });
        at = after_alias(tokens, next);
        match tokens.get(at) {
            Some(token) if token.is_sign(b',') => at += 1,
            _ => return at,
        }
    }
}

/// `..a.b import (c as d, e)`.
fn from(tokens: &[Token], mut at: usize, found: &mut Vec<Import>) -> usize {
    let mut level = 0;
    while tokens.get(at).is_some_and(|token| token.is_sign(b'.')) {
        level += 1;
        at += 1;
    }
    let (module, mut at) = dotted(tokens, at);
    if !tokens.get(at).is_some_and(|token| token.is_word("import")) {
        return at;
    }
    at += 1;
    let open = tokens.get(at).is_some_and(|token| token.is_sign(b'('));
    at += usize::from(open);
    loop {
        while open && tokens.get(at) == Some(&Token::Newline) {
            at += 1;
        }
        let name = match tokens.get(at) {
            Some(Token::Word(name)) => Some(name.clone()),
            Some(Token::Sign(b'*')) => None,
            _ => return at,
        };
        found.push(Import::Python {
            level,
            module: module.clone(),
            name,
        });
        at = after_alias(tokens, at + 1);
        while open && tokens.get(at) == Some(&Token::Newline) {
            at += 1;
        }
        match tokens.get(at) {
            Some(token) if token.is_sign(b',') => at += 1,
            _ => return at,
        }
    }
}

fn dotted(tokens: &[Token], mut at: usize) -> (Vec<String>, usize) {
    let mut module = Vec::new();
    while let Some(Token::Word(word)) = tokens.get(at) {
        if word == "import" {
            break;
        }
        module.push(word.clone());
        at += 1;
        match tokens.get(at) {
            Some(token) if token.is_sign(b'.') => at += 1,
            _ => break,
        }
    }
    (module, at)
}

fn after_alias(tokens: &[Token], at: usize) -> usize {
    match tokens.get(at) {
        Some(token) if token.is_word("as") => at + 2,
        _ => at,
    }
}

/// A module, or what is in one, as a file.
pub(super) fn resolve(
    tree: &Tree,
    from: &ByteText,
    level: usize,
    module: &[String],
    name: Option<&str>,
) -> Option<ByteText> {
    let at = |root: &[u8]| {
        let path = join(root, module.join("/").as_bytes());
        let path = path.strip_suffix(b"/").unwrap_or(&path).to_vec();
        let files = |path: &[u8]| {
            let package = join(path, b"__init__.py");
            let mut files = vec![[path, b".py"].concat(), [path, b".pyi"].concat(), package];
            if path.is_empty() {
                files.drain(..2);
            }
            files
        };
        let inner = name.map(|name| files(&join(&path, name.as_bytes())));
        let own = files(&path);
        tree.first(inner.into_iter().flatten().chain(own))
    };
    let mut root = directory(from);
    if level > 0 {
        for _ in 1..level {
            root = above(root)?;
        }
        return at(root);
    }
    // Beside the file, above it, at the top; and `src` is a top as well.
    loop {
        if let Some(found) = at(root) {
            return Some(found);
        }
        match above(root) {
            Some(next) => root = next,
            None => return at(b"src"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::resolved;
    use super::*;

    #[test]
    fn imports_are_read_and_found() {
        let text = br#"
"""import doc"""
# import comment
import os, pkg.a as x
from . import b
from ..core import (
    base as q,  # import no
    other,
)
from pkg import *
x = "from s import t"; import pkg.c
if x: import pkg.d
f(
from_x, import_y)
r'''
import raw
'''
from\
    .b import z
"#;
        let files = [
            "pkg/a.py",
            "pkg/__init__.py",
            "pkg/sub/b.py",
            "pkg/core/base.py",
            "pkg/c.py",
            "pkg/core/__init__.py",
            "src/pkg/d.py",
            "pkg/sub/m.py",
        ];
        let found = resolved(&scan(text), &files, "pkg/sub/m.py");
        let expected = [
            "pkg/a.py",
            "pkg/sub/b.py",
            "pkg/core/base.py",
            "pkg/core/__init__.py",
            "pkg/__init__.py",
            "pkg/c.py",
            "src/pkg/d.py",
            "pkg/sub/b.py",
        ];
        assert_eq!(found, expected);
    }
}
