//! Text for terminals: nothing that comes out of a sandbox may move the cursor or change a title.

mod argument;

pub use argument::{argument, arguments};

use ringfence_model::text::misleads;

/// JSON that is the same to a program, and harmless to a terminal: `serde_json` escapes only the
/// control characters of ASCII.
pub fn clean_json(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if misleads(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        } else {
            out.push(c);
        }
    }
    out
}

/// Control characters and what reorders or hides text are shown as escapes.
pub fn clean(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if misleads(c) && c != '\n' {
            out.extend(c.escape_unicode());
        } else {
            out.push(c);
        }
    }
    out
}

/// A patch or log for a terminal: the same, but tabs stay, and bytes that are no text are shown.
pub fn clean_bytes(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes).replace("\r\n", "\n");
    let text = without_colours(&text);
    text.split('\t').map(clean).collect::<Vec<_>>().join("\t")
}

/// Text without the sequences that set colours, which say nothing in a log.
fn without_colours(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("\u{1b}[") {
        let (before, sequence) = rest.split_at(at);
        out.push_str(before);
        let body = &sequence[2..];
        let end = body
            .find(|c: char| !c.is_ascii_digit() && c != ';')
            .unwrap_or(body.len());
        if body[end..].starts_with('m') {
            rest = &body[end + 1..];
        } else {
            out.push_str(&sequence[..2]);
            rest = body;
        }
    }
    out.push_str(rest);
    out
}

/// A point in time, for a person.
pub fn time(us: i64) -> String {
    jiff::Timestamp::from_microsecond(us).map_or_else(
        |_| "?".to_owned(),
        |t| t.strftime("%Y-%m-%d %H:%M:%S").to_string(),
    )
}

/// One line of at most so many characters.
pub fn shorten(text: &str, width: usize) -> String {
    let line = clean(text).replace('\n', " ");
    if line.chars().count() <= width {
        return line;
    }
    line.chars()
        .take(width.saturating_sub(1))
        .chain(['…'])
        .collect()
}

/// The same, with what is left out in the middle: both ends of a path say more.
pub fn shorten_middle(text: &str, width: usize) -> String {
    let line = clean(text).replace('\n', " ");
    let count = line.chars().count();
    if count <= width {
        return line;
    }
    let left = width.saturating_sub(1);
    let tail = left - left / 2;
    line.chars()
        .take(left / 2)
        .chain(['…'])
        .chain(line.chars().skip(count - tail))
        .collect()
}

/// `1 file`, `2 files`.
pub fn plural(count: usize, word: &str) -> String {
    match (count, word) {
        (1, _) => format!("1 {word}"),
        (_, "process") => format!("{count} processes"),
        _ => format!("{count} {word}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_reaches_the_terminal_raw() {
        for (input, expected) in [
            ("plain\ntext", "plain\ntext"),
            ("\x1b]0;title\x07", "\\u{1b}]0;title\\u{7}"),
            ("a\rb", "a\\u{d}b"),
            ("\u{202e}txt", "\\u{202e}txt"),
            ("\u{9b}31m", "\\u{9b}31m"),
        ] {
            assert_eq!(clean(input), expected);
        }
        assert_eq!(
            clean_json("\"a\u{9b}\u{202e}\u{e0001}\""),
            "\"a\\u009b\\u202e\\udb40\\udc01\""
        );
        assert_eq!(clean_bytes(b"a\tb\xff\x08"), "a\tb\u{fffd}\\u{8}");
        assert_eq!(
            clean_bytes(b"\x1b[1;31mred\x1b[0m\r\n\x1b[2J"),
            "red\n\\u{1b}[2J"
        );
        assert_eq!(shorten("abcdef", 4), "abc…");
        for (width, shown) in [
            (0, "…"),
            (1, "…"),
            (4, "a…fg"),
            (5, "ab…fg"),
            (7, "abcdefg"),
        ] {
            assert_eq!(shorten_middle("abcdefg", width), shown);
        }
        assert_eq!(shorten_middle("\x1b\n", 9), "\\u{1b} ");
    }
}
