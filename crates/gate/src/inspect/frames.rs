//! Frames of web sockets from a host, searched for secrets: messages may be cut into frames anywhere.
//!
//! INVARIANT: how many bytes are held back depends on the lengths of values and frames, never on whether the bytes
//! look like the beginning of a value: the sandbox may have chosen them, and would learn whether it guessed right.

use bytes::{Buf as _, Bytes, BytesMut};

use super::release::Due;
use crate::secrets::{Detector, Found, Needles};

/// BOUND: bytes that wait for the rest of a message.
const MAX_WAITING: usize = 1 << 20;
/// BOUND: the content of a frame that is not of a message, by RFC 6455.
const MAX_CONTROL: u64 = 125;

/// Why nothing more is passed on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// A value cannot be replaced, for frames say how long they are.
    Found(Found),
    /// What comes cannot be searched.
    Unreadable(&'static str),
}

/// What a host says.
pub(crate) struct Frames<'a> {
    needles: &'a Needles,
    /// What came and is not passed on.
    raw: BytesMut,
    /// How many of these bytes were read.
    read: usize,
    /// What the frame of a message still has, and whether the message ends with it.
    left: u64,
    last: bool,
    /// Searches the content of all messages, one after the other: a value may be cut into two.
    content: Detector<&'a Needles>,
    /// Where parts of the message are in `raw`: begin and length.
    parts: Vec<(usize, usize)>,
    /// How many bytes at the end of the message so far are held back.
    held: usize,
}

struct Head {
    bytes: usize,
    length: u64,
    control: bool,
    last: bool,
}

impl<'a> Frames<'a> {
    pub(crate) fn new(needles: &'a Needles) -> Self {
        Self {
            needles,
            raw: BytesMut::new(),
            read: 0,
            left: 0,
            last: false,
            content: Detector::new(needles),
            parts: Vec::new(),
            held: 0,
        }
    }

    /// Takes bytes, and gives those that may go on.
    pub(crate) fn piece(&mut self, piece: &[u8]) -> Result<Bytes, Ended> {
        self.raw.extend_from_slice(piece);
        while self.step()? {}
        let out = self.take();
        if self.raw.len() > MAX_WAITING {
            return Err(Ended::Unreadable("a message in too many frames"));
        }
        Ok(out)
    }

    /// Whether bytes are held back that a pause of the host releases.
    pub(crate) fn holds_back(&self) -> bool {
        self.held > 0
    }

    /// What the host may send next.
    pub(crate) fn due(&self) -> Due {
        if self.left > 0 {
            Due::Rest
        } else {
            Due::Message
        }
    }

    /// The host has sent nothing for a while: gives all that was read.
    pub(crate) fn pause(&mut self) -> Bytes {
        self.held = 0;
        self.take()
    }

    /// What may go on.
    fn take(&mut self) -> Bytes {
        let out = self.raw.split_to(self.safe()).freeze();
        self.read -= out.len();
        for (begin, length) in &mut self.parts {
            let gone = out.len().saturating_sub(*begin).min(*length);
            *begin = (*begin + gone).saturating_sub(out.len());
            *length -= gone;
        }
        self.parts.retain(|(_, length)| *length > 0);
        out
    }

    /// Reads on. `false`: more must come first.
    fn step(&mut self) -> Result<bool, Ended> {
        if self.left == 0 {
            return self.begin();
        }
        let came = self.raw.len() - self.read;
        let length = usize::try_from(self.left).map_or(came, |left| left.min(came));
        if length == 0 {
            return Ok(false);
        }
        let part = &self.raw[self.read..self.read + length];
        if let Some(found) = self.content.piece(part).first() {
            return Err(Ended::Found(*found));
        }
        self.held = (self.held + length).min(self.content.undecided());
        self.parts.push((self.read, length));
        self.read += length;
        self.left -= length as u64;
        self.end_of_frame();
        Ok(true)
    }

    fn begin(&mut self) -> Result<bool, Ended> {
        let Some(head) = read_head(&self.raw[self.read..])? else {
            return Ok(false);
        };
        if !head.control {
            self.read += head.bytes;
            (self.left, self.last) = (head.length, head.last);
            self.end_of_frame();
            return Ok(true);
        }
        // It may stand between the frames of a message, and is none of it.
        let end = self.read + head.bytes + head.length as usize;
        let Some(content) = self.raw.get(self.read + head.bytes..end) else {
            return Ok(false);
        };
        match self.needles.find(content) {
            Some(found) => Err(Ended::Found(found)),
            None => {
                self.read = end;
                Ok(true)
            }
        }
    }

    fn end_of_frame(&mut self) {
        if self.left == 0 && self.last {
            self.held = 0;
            self.parts.clear();
        }
    }

    /// How many bytes may go on: all that were read, but for what is held of the message.
    fn safe(&self) -> usize {
        let mut held = self.held;
        for (begin, length) in self.parts.iter().rev() {
            if held == 0 {
                break;
            }
            if held <= *length {
                return begin + length - held;
            }
            held -= length;
        }
        self.read
    }
}

/// HOSTILE: `None`: more must come first.
fn read_head(bytes: &[u8]) -> Result<Option<Head>, Ended> {
    let [first, second, rest @ ..] = bytes else {
        return Ok(None);
    };
    if first & 0x70 != 0 || second & 0x80 != 0 {
        return Err(Ended::Unreadable("frames that are coded"));
    }
    let control = match first & 0x0f {
        0..=2 => false,
        8..=10 => true,
        _ => return Err(Ended::Unreadable("frames of an unknown kind")),
    };
    let more = match second {
        126 => 2,
        127 => 8,
        _ => 0,
    };
    if rest.len() < more {
        return Ok(None);
    }
    let length = match more {
        0 => u64::from(*second),
        more => (&rest[..more]).get_uint(more),
    };
    if control && length > MAX_CONTROL {
        return Err(Ended::Unreadable("frames that are too long"));
    }
    Ok(Some(Head {
        bytes: 2 + more,
        length,
        control,
        last: first & 0x80 != 0,
    }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const VALUE: &str = "hunter2-hunter3";

    fn frame(first: u8, content: &[u8]) -> Vec<u8> {
        let length = content.len();
        let mut bytes = vec![first];
        match u8::try_from(length) {
            Ok(short @ 0..126) => bytes.push(short),
            _ => {
                bytes.push(126);
                bytes.extend(u16::try_from(length).expect("short").to_be_bytes());
            }
        }
        bytes.extend_from_slice(content);
        bytes
    }

    /// What comes through when bytes come in pieces of this size.
    fn pass(bytes: &[u8], size: usize) -> Result<Vec<u8>, Ended> {
        let needles = Needles::new([(VALUE.as_bytes(), &b""[..])].into_iter()).expect("a needle");
        let mut frames = Frames::new(&needles);
        let mut out = Vec::new();
        for piece in bytes.chunks(size) {
            out.extend_from_slice(&frames.piece(piece)?);
            // Nothing of a value goes on before it is known that it is none.
            let shown = String::from_utf8_lossy(&out).into_owned();
            assert!(!shown.contains("hunter2-h"), "{shown:?}");
        }
        Ok(out)
    }

    #[test]
    fn frames_without_a_value_go_on_as_they_came() {
        let all = [
            frame(0x81, b"hello hunter"),
            frame(0x01, b"hunter"),
            frame(0x89, b"ping"),
            frame(0x00, b""),
            frame(0x00, b"2"),
            frame(0x80, b"!"),
            frame(0x82, &[0; 300]),
            frame(0x80, b""),
            frame(0x81, b"h"),
        ]
        .concat();
        for size in 1..all.len() {
            assert_eq!(pass(&all, size), Ok(all.clone()), "{size}");
        }
    }

    #[test]
    fn a_value_is_found_however_its_message_is_cut() {
        let value = VALUE.as_bytes();
        for cut in 1..value.len() {
            let all = [
                frame(0x81, b"hello"),
                frame(0x01, &value[..cut]),
                frame(0x8a, b"pong"),
                frame(0x00, b""),
                frame(0x80, &value[cut..]),
            ]
            .concat();
            for size in [1, 2, 7, 100] {
                let found = pass(&all, size);
                assert!(matches!(found, Err(Ended::Found(_))), "{cut} {size}");
            }
        }
        for first in [0x81, 0x02, 0x88, 0x89] {
            let found = pass(&frame(first, value), 1);
            assert!(matches!(found, Err(Ended::Found(_))), "{first}");
        }
    }

    #[test]
    fn what_cannot_be_read_ends_it() {
        for bytes in [
            &b"\xc1\x01x"[..],
            b"\x81\x81mmmmx",
            b"\x83\x00",
            b"\x89\x7e\x01\x00",
        ] {
            let ended = pass(bytes, 1);
            assert!(matches!(ended, Err(Ended::Unreadable(_))), "{bytes:?}");
        }
        let mut endless = frame(0x01, b"hunt");
        endless.extend(frame(0x00, b"").repeat(MAX_WAITING));
        assert!(matches!(pass(&endless, 1 << 16), Err(Ended::Unreadable(_))));
    }

    /// How many bytes come through for each piece that the host sends, and when it pauses.
    fn sizes(needles: &Needles, bytes: &[u8], size: usize) -> Vec<usize> {
        let mut frames = Frames::new(needles);
        let pieces = bytes.chunks(size);
        let mut sizes: Vec<usize> = pieces
            .map(|piece| frames.piece(piece).expect("no value").len())
            .collect();
        sizes.push(frames.pause().len());
        sizes
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        #[test]
        fn sizes_do_not_tell_a_right_guess_from_a_wrong_one(
            value in "[A-Za-z0-9_]{8,60}",
            length in any::<prop::sample::Index>(),
            before in 0_usize..90,
            size in 1_usize..200,
            cut in any::<prop::sample::Index>(),
            first in prop::sample::select(vec![0x01_u8, 0x81]),
        ) {
            let needles = Needles::new([(value.as_bytes(), &b""[..])].into_iter());
            let needles = needles.expect("a needle");
            let length = length.index(value.len());
            let all = |guess: &[u8]| {
                let content = [&vec![b'!'; before], guess].concat();
                let (begin, rest) = content.split_at(cut.index(content.len() + 1));
                [frame(0x01, begin), frame(0x00, rest), frame(first & 0x80, b"")].concat()
            };
            let right = sizes(&needles, &all(&value.as_bytes()[..length]), size);
            prop_assert_eq!(right, sizes(&needles, &all(&vec![b'!'; length]), size));
        }
    }
}
