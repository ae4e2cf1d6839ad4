//! What was typed: bytes of a terminal to keys.

/// A key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    Char(char),
    Enter,
    Backspace,
    Escape,
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    /// Ctrl-C.
    Interrupt,
    /// Ctrl-Z.
    Suspend,
    /// Ctrl-L.
    Redraw,
}

/// Takes the next key off the bytes; `None` where there is none, or only a part of one.
pub fn take(bytes: &mut Vec<u8>) -> Option<Key> {
    loop {
        let &first = bytes.first()?;
        let (used, key) = match first {
            0x1b => sequence(bytes)?,
            0x03 => (1, Some(Key::Interrupt)),
            0x1a => (1, Some(Key::Suspend)),
            0x0c => (1, Some(Key::Redraw)),
            b'\r' | b'\n' => (1, Some(Key::Enter)),
            0x7f | 0x08 => (1, Some(Key::Backspace)),
            0x02 => (1, Some(Key::PageUp)),
            0x06 => (1, Some(Key::PageDown)),
            0x00..0x20 => (1, None),
            _ => character(bytes)?,
        };
        bytes.drain(..used);
        if key.is_some() {
            return key;
        }
    }
}

/// A key that a terminal sends as several bytes. One that came alone is the key itself.
fn sequence(bytes: &[u8]) -> Option<(usize, Option<Key>)> {
    match bytes.get(1) {
        None => Some((1, Some(Key::Escape))),
        Some(b'[' | b'O') => {
            let body = bytes.get(2..)?;
            let end = body.iter().position(|byte| (0x40..=0x7e).contains(byte))?;
            let key = match (&body[..end], body[end]) {
                (_, b'A') => Some(Key::Up),
                (_, b'B') => Some(Key::Down),
                (_, b'H') | (b"1" | b"7", b'~') => Some(Key::Home),
                (_, b'F') | (b"4" | b"8", b'~') => Some(Key::End),
                (b"5", b'~') => Some(Key::PageUp),
                (b"6", b'~') => Some(Key::PageDown),
                _ => None,
            };
            Some((end + 3, key))
        }
        // Alt and a key.
        Some(_) => Some((2, None)),
    }
}

fn character(bytes: &[u8]) -> Option<(usize, Option<Key>)> {
    let length = match bytes[0] {
        0..0x80 => 1,
        0xc0..0xe0 => 2,
        0xe0..0xf0 => 3,
        _ => 4,
    };
    let whole = bytes.get(..length)?;
    match std::str::from_utf8(whole) {
        Ok(text) => Some((length, text.chars().next().map(Key::Char))),
        Err(_) => Some((1, None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_keys() {
        let mut bytes = b"a\x1b[A\x1b[6~\x1b[1;5B\xc3\xa9\x03\x1bx\x00z\r\x1b".to_vec();
        let mut keys = Vec::new();
        while let Some(key) = take(&mut bytes) {
            keys.push(key);
        }
        assert_eq!(
            keys,
            [
                Key::Char('a'),
                Key::Up,
                Key::PageDown,
                Key::Down,
                Key::Char('é'),
                Key::Interrupt,
                Key::Char('z'),
                Key::Enter,
                Key::Escape
            ]
        );
        for part in [&b"\x1b["[..], b"\x1b[1;", b"\xc3"] {
            let mut bytes = part.to_vec();
            assert_eq!(take(&mut bytes), None, "{part:?}");
            assert_eq!(bytes, part);
        }
    }
}
