//! Words of a command line as a shell would take them, and as a terminal can bear them.

use ringfence_model::ByteText;
use ringfence_model::text::misleads;

/// A word: as it is where that is plain, between `'` where it is text, and as `$'…'` with escapes
/// where it is not, as `bash` reads it.
///
/// HOSTILE: an agent chose it; nothing of it reaches a terminal as anything but visible text.
pub fn argument(word: &ByteText) -> String {
    if let Some((shown, _)) = word.as_bytes().split_at_checked(LINE) {
        return escaped(shown) + "…";
    }
    let text = std::str::from_utf8(word.as_bytes());
    match text {
        Ok(text) if !text.is_empty() && text.chars().all(is_plain) => text.to_owned(),
        Ok(text) if !text.chars().any(misleads) && !text.contains('\'') => format!("'{text}'"),
        _ => escaped(word.as_bytes()),
    }
}

/// BOUND: bytes of a word, and of a line before another word, that are shown; every page cuts far
/// below.
const LINE: usize = 16 << 10;

/// The words of a command line.
pub fn arguments(words: &[ByteText]) -> String {
    let mut line = String::new();
    for word in words {
        if !line.is_empty() {
            line.push(' ');
        }
        if line.len() > LINE {
            line.push('…');
            break;
        }
        line.push_str(&argument(word));
    }
    line
}

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_@%+=:,./-^".contains(c) || (!c.is_ascii() && c.is_alphanumeric())
}

fn escaped(bytes: &[u8]) -> String {
    let mut out = String::from("$'");
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\n' => out.push_str("\\n"),
                '\t' => out.push_str("\\t"),
                '\r' => out.push_str("\\r"),
                '\u{1b}' => out.push_str("\\e"),
                '\'' | '\\' => out.extend(['\\', c]),
                c if c.is_ascii() && misleads(c) => out.push_str(&format!("\\x{:02x}", c as u32)),
                c if misleads(c) && (c as u32) < 0x10000 => {
                    out.push_str(&format!("\\u{:04x}", c as u32));
                }
                c if misleads(c) => out.push_str(&format!("\\U{:08x}", c as u32)),
                c => out.push(c),
            }
        }
        for byte in chunk.invalid() {
            out.push_str(&format!("\\x{byte:02x}"));
        }
    }
    out.push('\'');
    out
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const WORDS: &[&[u8]] = &[
        b"plain",
        b"a/b-c.d=e,f:g",
        "Gr\u{fc}\u{df}e".as_bytes(),
        b"",
        b"two words",
        b"$HOME `id` \"x\" ; rm -rf *",
        b"it's",
        b"back\\slash's",
        b"a\nb\tc\rd",
        b"\x1b]0;title\x07\x1b[2J",
        b"\x7f\x08\x01f",
        b"\xff\xfea",
        "\u{202e}txt\u{2028}\u{85}".as_bytes(),
        "\u{e0041}x".as_bytes(),
        b"$'\\n'",
        b"~",
        b"#c",
        b"-n",
    ];

    #[test]
    fn words_are_shown_as_a_person_would_type_them() {
        for (word, shown) in [
            (&b"plain"[..], "plain"),
            (b"", "''"),
            (b"two words", "'two words'"),
            (b"it's", "$'it\\'s'"),
            (b"a\nb", "$'a\\nb'"),
            (b"\xff", "$'\\xff'"),
            (b"\x1b[2J", "$'\\e[2J'"),
            ("\u{202e}x".as_bytes(), "$'\\u202ex'"),
        ] {
            assert_eq!(argument(&word.into()), shown);
        }
    }

    #[test]
    fn a_line_is_not_longer_than_anybody_reads() {
        let words = vec![ByteText::from("word"); 100_000];
        let line = arguments(&words);
        assert!(line.len() < 2 * LINE && line.ends_with(" word …"));
        let word = argument(&ByteText(b"\n".repeat(1 << 20)));
        assert!(word.len() < 3 * LINE && word.ends_with("\\n'…"));
    }

    #[test]
    fn nothing_in_them_is_more_than_text() {
        for word in WORDS {
            let shown = argument(&(*word).into());
            assert!(!shown.chars().any(misleads), "{shown:?}");
        }
    }

    #[test]
    fn bash_reads_every_word_back() {
        let words: Vec<ByteText> = WORDS.iter().map(|word| (*word).into()).collect();
        let script = format!("printf '%s\\0' {}", arguments(&words));
        let output = Command::new("bash")
            .env("LC_ALL", "C.UTF-8")
            .args(["-c", &script])
            .output()
            .unwrap();
        let expected: Vec<u8> = WORDS
            .iter()
            .flat_map(|word| [word, &b"\0"[..]].concat())
            .collect();
        assert_eq!(
            output.stdout.escape_ascii().to_string(),
            expected.escape_ascii().to_string(),
        );
    }
}
