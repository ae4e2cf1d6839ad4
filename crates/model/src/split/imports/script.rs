//! Imports of JavaScript and TypeScript: those that name a file beside, not a package.

use super::lexer::{Dialect, Token, tokens};
use super::{Import, Tree, above, join};
use crate::ByteText;
use crate::split::directory;

/// BOUND: tokens between `import` and its `from`.
const MAX_CLAUSE: usize = 4000;
const EXTENSIONS: [&str; 8] = ["ts", "tsx", "d.ts", "mts", "cts", "js", "jsx", "mjs"];

pub(super) fn scan(bytes: &[u8]) -> Vec<Import> {
    let mut tokens = tokens(bytes, Dialect::Script);
    tokens.retain(|token| *token != Token::Newline);
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        at += 1;
        let Token::Word(word) = token else { continue };
        let of_another = at >= 2 && tokens[at - 2].is_sign(b'.');
        if of_another {
            continue;
        }
        match (word.as_str(), tokens.get(at), tokens.get(at + 1)) {
            ("import", Some(Token::Text(text)), _) => found.push(Import::Script(text.clone())),
            ("import" | "require", Some(Token::Sign(b'(')), Some(Token::Text(text))) => {
                found.push(Import::Script(text.clone()));
            }
            ("import", Some(next), _) if !next.is_sign(b'(') && !next.is_sign(b'.') => {
                at = clause(&tokens, at, &mut found);
            }
            ("export", Some(Token::Sign(b'*' | b'{')), _) => {
                at = clause(&tokens, at, &mut found);
            }
            ("export", Some(next), Some(Token::Sign(b'*' | b'{'))) if next.is_word("type") => {
                at = clause(&tokens, at, &mut found);
            }
            _ => {}
        }
    }
    found
}

/// From after `import` or `export` to the string after `from`, where there is one.
fn clause(tokens: &[Token], at: usize, found: &mut Vec<Import>) -> usize {
    let end = tokens.len().min(at + MAX_CLAUSE);
    for (number, token) in tokens[at..end].iter().enumerate() {
        match (token, tokens.get(at + number + 1)) {
            (Token::Word(word), Some(Token::Text(text))) if word == "from" => {
                found.push(Import::Script(text.clone()));
                return at + number + 2;
            }
            (Token::Word(_) | Token::Sign(b'{' | b'}' | b',' | b'*' | b'$'), _) => {}
            // `import x = require("y")` and what is no import at all.
            _ => return at + number,
        }
    }
    end
}

pub(super) fn resolve(tree: &Tree, from: &ByteText, text: &str) -> Option<ByteText> {
    if !(text.starts_with("./") || text.starts_with("../") || matches!(text, "." | "..")) {
        return None;
    }
    let mut place = directory(from).to_vec();
    for part in text.split('/') {
        match part {
            "" | "." => {}
            ".." => place = above(&place)?.to_vec(),
            part => place = join(&place, part.as_bytes()),
        }
    }
    let with = |path: &[u8], end: &str| [path, b".", end.as_bytes()].concat();
    let index = join(&place, b"index");
    let mut paths = vec![place.clone()];
    paths.extend(EXTENSIONS.map(|end| with(&place, end)));
    // TypeScript names what a file becomes, not what it is.
    for (written, meant) in [
        (&b".js"[..], &["ts", "tsx"][..]),
        (b".jsx", &["tsx"]),
        (b".mjs", &["mts"]),
        (b".cjs", &["cts"]),
    ] {
        if let Some(stem) = place.strip_suffix(written) {
            paths.extend(meant.iter().map(|end| with(stem, end)));
        }
    }
    paths.extend(EXTENSIONS.map(|end| with(&index, end)));
    tree.first(paths)
}

#[cfg(test)]
mod tests {
    use super::super::tests::resolved;
    use super::*;

    #[test]
    fn imports_are_read_and_found() {
        let text = br#"
// import './no1'
/* import './no2' */
import './a'
import d, { from, x as y } from "../lib"
import type { T } from './t.js'
export * from './b'
export { q } from './c';
export const u = 1; const from = './no3'
const r = require('./d'), s = obj.require('./no4')
const t = `import './no5' ${ require('./e') } ${ `${1}` } './no6'`
const re = /import '.\/no7'["']/g, half = a / b
const lazy = () => import('./f')
import pkg from 'pkg'
import out from '../../../../out'
import.meta.url
"#;
        let files = [
            "web/src/a.ts",
            "web/lib/index.tsx",
            "web/src/t.ts",
            "web/src/b.js",
            "web/src/c.jsx",
            "web/src/d.mjs",
            "web/src/e.js",
            "web/src/f.tsx",
            "pkg.js",
            "web/src/no1.js",
            "web/src/no3.js",
            "web/src/no4.js",
            "web/src/no5.js",
            "web/src/no7.js",
            "out.js",
        ];
        let found = resolved(&scan(text), &files, "web/src/m.ts");
        let expected = [
            "web/src/a.ts",
            "web/lib/index.tsx",
            "web/src/t.ts",
            "web/src/b.js",
            "web/src/c.jsx",
            "web/src/d.mjs",
            "web/src/e.js",
            "web/src/f.tsx",
        ];
        assert_eq!(found, expected);
    }
}
