//! Git's binary hunks: zlib in base 85, `literal` in both directions.

use std::io::{self, Read as _, Write};

use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;

use super::ChangesError;

const ALPHABET: &[u8; 85] =
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~";
/// Bytes on a line: as many as its first letter can say (`A`–`Z`, `a`–`z`).
const LINE_BYTES: usize = 52;

/// Writes one `literal` of `size` bytes, which `feed` passes in pieces.
pub(super) fn write_literal(
    size: u64,
    out: &mut dyn Write,
    feed: impl FnOnce(&mut dyn FnMut(&[u8]) -> io::Result<()>) -> Result<(), ChangesError>,
) -> Result<(), ChangesError> {
    writeln!(out, "literal {size}").map_err(ChangesError::WritePatch)?;
    let mut encoder = ZlibEncoder::new(
        Base85 {
            out,
            line: Vec::new(),
        },
        Compression::default(),
    );
    feed(&mut |piece| encoder.write_all(piece))?;
    let mut base85 = encoder.finish().map_err(ChangesError::WritePatch)?;
    base85.end_line().map_err(ChangesError::WritePatch)?;
    base85
        .out
        .write_all(b"\n")
        .map_err(ChangesError::WritePatch)
}

/// What one `literal` holds, of the lines below its first; `None` where they are not as we write
/// them, or do not hold exactly `size` bytes.
pub(crate) fn read_literal<'a>(
    size: u64,
    lines: impl Iterator<Item = &'a [u8]>,
) -> Option<Vec<u8>> {
    let mut deflated = Vec::new();
    for line in lines {
        let (letter, digits) = line.split_first()?;
        let length = match letter {
            b'A'..=b'Z' => letter - b'A' + 1,
            b'a'..=b'z' => letter - b'a' + 27,
            _ => return None,
        };
        if digits.len() != usize::from(length).div_ceil(4) * 5 {
            return None;
        }
        let start = deflated.len();
        for group in digits.chunks(5) {
            let mut value = 0u32;
            for digit in group {
                let place = ALPHABET.iter().position(|known| known == digit)?;
                value = value.checked_mul(85)?.checked_add(place as u32)?;
            }
            deflated.extend_from_slice(&value.to_be_bytes());
        }
        // What fills the last group up is zero.
        let end = start + usize::from(length);
        if deflated[end..].iter().any(|&b| b != 0) {
            return None;
        }
        deflated.truncate(end);
    }
    // HOSTILE: a few bytes can hold gigabytes.
    let mut bytes = Vec::new();
    let mut inflater = ZlibDecoder::new(&deflated[..]);
    let mut bounded = (&mut inflater).take(size.checked_add(1)?);
    bounded.read_to_end(&mut bytes).ok()?;
    (bytes.len() as u64 == size && inflater.total_in() == deflated.len() as u64).then_some(bytes)
}

/// Writes bytes as lines of a length letter and base 85.
struct Base85<'a> {
    out: &'a mut dyn Write,
    line: Vec<u8>,
}

impl Base85<'_> {
    fn end_line(&mut self) -> io::Result<()> {
        if self.line.is_empty() {
            return Ok(());
        }
        let length = u8::try_from(self.line.len()).expect("a line is at most 52 bytes");
        let mut text = Vec::with_capacity(2 + LINE_BYTES / 4 * 5);
        text.push(if length <= 26 {
            b'A' + length - 1
        } else {
            b'a' + length - 27
        });
        for group in self.line.chunks(4) {
            let mut word = [0; 4];
            word[..group.len()].copy_from_slice(group);
            let mut value = u32::from_be_bytes(word);
            let mut digits = [0; 5];
            for digit in digits.iter_mut().rev() {
                *digit = ALPHABET[(value % 85) as usize];
                value /= 85;
            }
            text.extend_from_slice(&digits);
        }
        text.push(b'\n');
        self.line.clear();
        self.out.write_all(&text)
    }
}

impl Write for Base85<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(LINE_BYTES - self.line.len());
        self.line.extend_from_slice(&bytes[..taken]);
        if self.line.len() == LINE_BYTES {
            self.end_line()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn literal(bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let feed = |pass: &mut dyn FnMut(&[u8]) -> io::Result<()>| {
            pass(bytes).map_err(ChangesError::WritePatch)
        };
        write_literal(bytes.len() as u64, &mut out, feed).expect("a vector takes everything");
        out
    }

    fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
        text.split(|&b| b == b'\n')
            .skip(1)
            .take_while(|line| !line.is_empty())
    }

    proptest::proptest! {
        #[test]
        fn what_is_written_is_read_back(bytes: Vec<u8>, at: proptest::sample::Index) {
            let text = literal(&bytes);
            let size = bytes.len() as u64;
            proptest::prop_assert_eq!(read_literal(size, lines(&text)), Some(bytes.clone()));
            proptest::prop_assert_eq!(read_literal(size + 1, lines(&text)), None);
            // A damaged one is none, or holds something else of the same length.
            let mut text = text;
            let at = at.index(text.len());
            text[at] ^= 1;
            let _ = read_literal(size, lines(&text));
        }
    }

    #[test]
    fn a_bomb_is_not_unfolded() {
        let text = literal(&vec![0; 10 << 20]);
        assert_eq!(read_literal(100, lines(&text)), None);
    }

    #[test]
    fn nothing_is_written_as_git_writes_it() {
        let mut out = Vec::new();
        write_literal(0, &mut out, |_| Ok(())).expect("a vector takes everything");
        let text = String::from_utf8(out).expect("base 85 is text");
        // Eight bytes of zlib. Git writes `HcmV?d00001`; the level in the header may differ.
        assert!(
            text.starts_with("literal 0\nHc") && text.ends_with("00001\n\n"),
            "{text}"
        );
    }
}
