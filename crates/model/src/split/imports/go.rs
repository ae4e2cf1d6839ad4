//! Imports of Go: packages, which are directories below a `go.mod`.

use super::lexer::{Dialect, Token, tokens};
use super::{Import, Tree, join};
use crate::ByteText;

pub(super) fn scan(bytes: &[u8]) -> Vec<Import> {
    let tokens = tokens(bytes, Dialect::Go);
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        at += 1;
        // Imports stand before everything else.
        if matches!(token, Token::Word(word) if matches!(word.as_str(), "func" | "type" | "var" | "const"))
        {
            break;
        }
        if !token.is_word("import") {
            continue;
        }
        let many = tokens.get(at).is_some_and(|token| token.is_sign(b'('));
        for token in &tokens[at..] {
            at += 1;
            match token {
                Token::Text(text) => {
                    found.push(Import::Go(text.clone()));
                    if !many {
                        break;
                    }
                }
                Token::Sign(b')') => break,
                Token::Newline if !many => break,
                _ => {}
            }
        }
    }
    found
}

/// The name in a `go.mod`.
pub(super) fn module(text: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(text).ok()?;
    let line = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("module"))?;
    let name = line.split("//").next().unwrap_or_default().trim();
    let name = name.trim_matches(|c| c == '"' || c == '`');
    (line.starts_with([' ', '\t', '"']) && !name.is_empty()).then(|| name.to_owned())
}

/// All files of the package.
pub(super) fn resolve(tree: &Tree, text: &str) -> Vec<ByteText> {
    let below = |(name, place): &(String, Vec<u8>)| {
        let rest = text.strip_prefix(name.as_str())?;
        let rest = match rest {
            "" => rest,
            _ => rest.strip_prefix('/')?,
        };
        let package = match rest {
            "" => place.clone(),
            rest => join(place, rest.as_bytes()),
        };
        // Of two modules the one with the longer name is meant.
        Some((name.len(), package))
    };
    let best = tree.modules.iter().filter_map(below).max();
    let files = best.and_then(|(_, package)| tree.packages.get(&package));
    files.cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imports_are_read_and_found() {
        let text = br#"
package m // import "no"
/* import "example.org/app/no" */
import "example.org/app/a"
import (
    "fmt"
    x "example.org/app/b" // "example.org/app/no"
    _ `example.org/app`
)
var s = "x"
import "example.org/app/no"
"#;
        let mut tree = Tree::new(
            [
                "go.mod",
                "a/a.go",
                "a/a_test.go",
                "b/1.go",
                "b/2.go",
                "no/n.go",
                "main.go",
                "fmt/f.go",
            ]
            .map(ByteText::from),
        );
        for path in tree.go_modules() {
            tree.go_module(&path, b"// x\nmodule example.org/app // y\n\ngo 1.22\n");
        }
        let from = ByteText::from("cmd/m.go");
        let found: Vec<String> = scan(text)
            .iter()
            .flat_map(|import| tree.resolve(&from, import))
            .map(|path| path.to_text())
            .collect();
        assert_eq!(found, ["a/a.go", "b/1.go", "b/2.go", "main.go"]);
    }
}
