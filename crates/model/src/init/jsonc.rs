//! JSON as editors write it: with comments and a comma too many. Everything else is as strict as
//! usual.

use serde_json::Value;

use crate::strict::{self, StrictError};

/// Reads a text. No key twice, nothing after the end, no deeper than `serde_json` goes.
pub(super) fn parse(text: &str) -> Result<Value, StrictError> {
    strict::value(&without_comments(text.as_bytes()))
}

/// The same bytes, with blanks where comments and commas before a closing bracket were. A comment
/// that does not end is left as it is, and refused with the rest.
fn without_comments(text: &[u8]) -> Vec<u8> {
    let mut out = text.to_vec();
    let mut at = 0;
    // The comma that nothing has followed yet, and the last byte that says something.
    let (mut comma, mut last) = (None, b'{');
    while let Some(&byte) = text.get(at) {
        let end = match (byte, text.get(at + 1)) {
            (b'"', _) => {
                (comma, last) = (None, b'"');
                at = string_end(text, at);
                continue;
            }
            (b'/', Some(b'/')) => find_from(text, at, b"\n").unwrap_or(text.len()),
            (b'/', Some(b'*')) => match find_from(text, at + 2, b"*/") {
                Some(end) => end + 2,
                None => return text.to_vec(),
            },
            _ => {
                match byte {
                    b',' => comma = (!b"{[,:".contains(&last)).then_some(at),
                    b'}' | b']' => {
                        if let Some(comma) = comma.take() {
                            out[comma] = b' ';
                        }
                    }
                    b' ' | b'\t' | b'\r' | b'\n' => {}
                    _ => comma = None,
                }
                if !byte.is_ascii_whitespace() {
                    last = byte;
                }
                at += 1;
                continue;
            }
        };
        for byte in &mut out[at..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = end;
    }
    out
}

/// The place after a string that begins here.
fn string_end(text: &[u8], begin: usize) -> usize {
    let mut at = begin + 1;
    while let Some(&byte) = text.get(at) {
        match byte {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    text.len()
}

fn find_from(text: &[u8], from: usize, needle: &[u8]) -> Option<usize> {
    let rest = text.get(from..)?;
    let found = rest.windows(needle.len()).position(|part| part == needle)?;
    Some(from + found)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn comments_and_commas_are_nothing_and_all_else_is_strict() {
        for (text, expected) in [
            ("{}", Some(json!({}))),
            ("// one\n{ /* two */ }", Some(json!({}))),
            ("{\"a\": [1, 2,], }", Some(json!({ "a": [1, 2] }))),
            ("{\"a\": 1, // x,\n /* , */ }", Some(json!({ "a": 1 }))),
            (
                "{\"a\": \"// no, /* no */ ,]\"}",
                Some(json!({ "a": "// no, /* no */ ,]" })),
            ),
            ("{\"a\": \"q\\\"//,}\"}", Some(json!({ "a": "q\"//,}" }))),
            ("{} // end", Some(json!({}))),
            ("{\"a\": 1,, }", None),
            ("{,}", None),
            ("[,]", None),
            ("{\"a\": 1 /* open", None),
            ("{\"a\": 1, \"a\": 2}", None),
            ("{'a': 1}", None),
            ("{} {}", None),
            ("", None),
            ("\"\\", None),
        ] {
            assert_eq!(parse(text).ok(), expected, "{text}");
        }
        assert!(parse(&"[".repeat(100_000)).is_err());
        assert!(parse(&"{\"a\":".repeat(10_000)).is_err());
    }
}
