//! Byte strings that are usually text: paths, arguments, environment.
//!
//! Unix names are bytes. In JSON they are written as themselves when they are plain UTF-8, and in
//! git's C-style quoting (`"na\377me"`, with the quotation marks) when they are not, so that a
//! reader sees text and no two names are ever written alike.

use std::fmt::{self, Write as _};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A byte string, shown and serialised as text wherever that is exact.
#[derive(Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ByteText(pub Vec<u8>);

impl ByteText {
    /// The bytes themselves.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The written form: plain where that is safe and exact, quoted otherwise.
    pub fn to_text(&self) -> String {
        match std::str::from_utf8(&self.0) {
            Ok(text) if !text.starts_with('"') && !text.chars().any(char::is_control) => {
                text.to_owned()
            }
            _ => quote(&self.0),
        }
    }

    /// Reads the written form back; `None` where the quoting is broken.
    pub fn from_text(text: &str) -> Option<Self> {
        if text.starts_with('"') {
            unquote(text).map(Self)
        } else {
            Some(Self(text.as_bytes().to_vec()))
        }
    }
}

impl From<&str> for ByteText {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().to_vec())
    }
}

impl From<&[u8]> for ByteText {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }
}

impl From<Vec<u8>> for ByteText {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl fmt::Display for ByteText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_text())
    }
}

impl fmt::Debug for ByteText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&quote(&self.0))
    }
}

impl Serialize for ByteText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.to_text())
    }
}

impl<'de> Deserialize<'de> for ByteText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::from_text(&text).ok_or_else(|| de::Error::custom("broken quoting in a byte string"))
    }
}

/// Git's C-style quoting of a whole byte string, quotation marks included.
pub fn quote(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len() + 2);
    out.push('"');
    for &byte in bytes {
        match byte {
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            0x07 => out.push_str("\\a"),
            0x08 => out.push_str("\\b"),
            b'\t' => out.push_str("\\t"),
            b'\n' => out.push_str("\\n"),
            0x0b => out.push_str("\\v"),
            0x0c => out.push_str("\\f"),
            b'\r' => out.push_str("\\r"),
            0x20..=0x7e => out.push(char::from(byte)),
            _ => {
                write!(out, "\\{byte:03o}").expect("writing to a string cannot fail");
            }
        }
    }
    out.push('"');
    out
}

fn unquote(text: &str) -> Option<Vec<u8>> {
    let inner = text.strip_prefix('"')?.strip_suffix('"')?;
    if text.len() < 2 {
        return None;
    }
    let mut out = Vec::with_capacity(inner.len());
    let mut bytes = inner.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'"' {
            return None;
        }
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        match bytes.next()? {
            b'a' => out.push(0x07),
            b'b' => out.push(0x08),
            b't' => out.push(b'\t'),
            b'n' => out.push(b'\n'),
            b'v' => out.push(0x0b),
            b'f' => out.push(0x0c),
            b'r' => out.push(b'\r'),
            b'"' => out.push(b'"'),
            b'\\' => out.push(b'\\'),
            first @ b'0'..=b'3' => {
                let mut value = u32::from(first - b'0');
                for _ in 0..2 {
                    let digit = bytes.next().filter(|d| (b'0'..=b'7').contains(d))?;
                    value = value * 8 + u32::from(digit - b'0');
                }
                out.push(u8::try_from(value).ok()?);
            }
            _ => return None,
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn plain_names_are_written_as_they_are() {
        for (bytes, text) in [
            (&b"src/main.rs"[..], "src/main.rs"),
            ("Grüße".as_bytes(), "Grüße"),
            (b"a\nb", "\"a\\nb\""),
            (b"\xff", "\"\\377\""),
            (b"\"q\"", "\"\\\"q\\\"\""),
            (b"", ""),
        ] {
            assert_eq!(ByteText::from(bytes).to_text(), text);
        }
    }

    #[test]
    fn broken_quoting_is_refused() {
        for text in ["\"", "\"abc", "\"\\q\"", "\"\\40\"", "\"a\"b\""] {
            assert_eq!(ByteText::from_text(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn every_byte_string_survives(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let text = ByteText(bytes.clone()).to_text();
            prop_assert_eq!(ByteText::from_text(&text), Some(ByteText(bytes)));
        }
    }
}
