//! What the hunks and literals of a patch make of a content.

use ringfence_model::changes::{ObjectHash, Side};

use super::read::{Hunk, Literal, Sign};
use crate::changes::{BlobHasher, read_literal};

/// Whether these bytes are what a side names.
pub(crate) fn is_content(content: &[u8], side: &Side, hash: ObjectHash) -> bool {
    let mut hasher = BlobHasher::new(hash, content.len() as u64);
    hasher.update(content);
    content.len() as u64 == side.size && hasher.finish() == side.oid
}

pub(super) fn inflate(literal: &Literal<'_>) -> Option<Vec<u8>> {
    read_literal(literal.size, literal.lines.iter().copied())
}

/// All lines of a sign.
pub(super) fn side(hunks: &[Hunk<'_>], wanted: Sign) -> Vec<u8> {
    let lines = hunks.iter().flat_map(|hunk| &hunk.lines);
    lines
        .filter(|(sign, _)| *sign == wanted)
        .flat_map(|(_, text)| text.iter().copied())
        .collect()
}

/// The text that hunks make of another. Each must fit exactly where it says.
pub(super) fn apply(hunks: &[Hunk<'_>], old: &[u8]) -> Option<Vec<u8>> {
    let lines: Vec<&[u8]> = old.split_inclusive(|&b| b == b'\n').collect();
    let mut out: Vec<&[u8]> = Vec::new();
    let mut at = 0;
    for hunk in hunks {
        let start = usize::try_from(hunk.old_start).ok()?;
        out.extend(lines.get(at..start)?);
        at = start;
        if out.len() as u64 != hunk.new_start {
            return None;
        }
        for (sign, text) in &hunk.lines {
            if *sign != Sign::In {
                if lines.get(at) != Some(text) {
                    return None;
                }
                at += 1;
            }
            if *sign != Sign::Out {
                out.push(text);
            }
        }
    }
    out.extend(&lines[at..]);
    Some(out.concat())
}

#[cfg(test)]
mod tests {
    use super::super::read::{Body, parse};
    use super::*;

    fn applied(old: &str, hunks: &str) -> Option<String> {
        let patch = format!("diff --git a/a b/a\nindex 1..2 100644\n--- a/a\n+++ b/a\n{hunks}");
        let files = parse(patch.as_bytes()).ok()?;
        let Body::Text(hunks) = &files[0].body else {
            return None;
        };
        let bytes = apply(hunks, old.as_bytes())?;
        Some(String::from_utf8(bytes).unwrap())
    }

    #[test]
    fn hunks_fit_where_they_say_and_nowhere_else() {
        for (old, hunks, new) in [
            ("a\nb\n", "@@ -1,2 +1,2 @@\n a\n-b\n+c\n", Some("a\nc\n")),
            ("a\nb\n", "@@ -2 +2 @@\n-b\n+c\n", Some("a\nc\n")),
            ("a\nb\n", "@@ -1 +1 @@\n-b\n+c\n", None),
            ("a\nb\n", "@@ -2 +1 @@\n-b\n+c\n", None),
            ("a\n", "@@ -1,0 +2 @@\n+b\n", Some("a\nb\n")),
            ("a\n", "@@ -9,0 +10 @@\n+b\n", None),
            (
                "a",
                "@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+a\n",
                Some("a\n"),
            ),
            ("a", "@@ -1 +1 @@\n-a\n+b\n", None),
            (
                "1\n2\n3\n",
                "@@ -1 +1 @@\n-1\n+x\n@@ -3 +3 @@\n-3\n+z\n",
                Some("x\n2\nz\n"),
            ),
            (
                "1\n2\n3\n",
                "@@ -3 +3 @@\n-3\n+z\n@@ -1 +1 @@\n-1\n+x\n",
                None,
            ),
        ] {
            assert_eq!(applied(old, hunks).as_deref(), new, "{old:?} {hunks:?}");
        }
    }
}
