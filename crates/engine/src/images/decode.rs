//! The bytes of a layer as it was before it was compressed: counted, digested and bounded.
//!
//! How a layer is compressed is seen from its first bytes, not believed from a media type.
//!
//! HOSTILE: a few bytes can stand for very many.

use std::cell::Cell;
use std::io::{self, BufReader, Read};
use std::rc::Rc;

use flate2::bufread::MultiGzDecoder;
use ringfence_model::image::Digest;
use ruzstd::decoding::BlockDecodingStrategy;
use ruzstd::decoding::FrameDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use sha2::{Digest as _, Sha256};

use super::Bounds;

const BUFFER: usize = 128 << 10;

/// What a layer has too much of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Bomb {
    #[error("it has more than {0} bytes when unpacked")]
    Bytes(u64),
    #[error("it unpacks to more than {0} times its size")]
    Ratio(u64),
}

/// The uncompressed bytes of a layer.
pub(super) struct Decoded<'a> {
    source: Box<dyn Read + 'a>,
    packed: Rc<Cell<u64>>,
    bytes: u64,
    hash: Sha256,
    bounds: Bounds,
}

impl<'a> Decoded<'a> {
    pub fn new(source: impl Read + 'a, bounds: Bounds) -> io::Result<Self> {
        let packed = Rc::new(Cell::new(0));
        let counted = Counted {
            source,
            count: packed.clone(),
        };
        let mut source = BufReader::with_capacity(BUFFER, counted);
        let mut magic = [0; 4];
        let found = fill(&mut source, &mut magic)?;
        // What was looked at is read again.
        let source = io::Cursor::new(magic).take(found as u64).chain(source);
        let source: Box<dyn Read + 'a> = match &magic[..found] {
            [0x1f, 0x8b, ..] => Box::new(MultiGzDecoder::new(BufReader::with_capacity(
                BUFFER, source,
            ))),
            [0x28, 0xb5, 0x2f, 0xfd] | [0x50..=0x5f, 0x2a, 0x4d, 0x18] => Box::new(Frames {
                source,
                decoder: FrameDecoder::new(),
                within: false,
            }),
            _ => Box::new(source),
        };
        Ok(Self {
            source,
            packed,
            bytes: 0,
            hash: Sha256::new(),
            bounds,
        })
    }

    /// What has been read so far: how many bytes, and which.
    pub fn finish(self) -> (u64, Digest) {
        (self.bytes, Digest::from_bytes(self.hash.finalize().into()))
    }
}

impl std::fmt::Debug for Decoded<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decoded")
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl Read for Decoded<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.source.read(buffer)?;
        self.hash.update(&buffer[..length]);
        self.bytes += length as u64;
        let Bounds {
            bytes,
            ratio,
            ratio_from,
            ..
        } = self.bounds;
        if self.bytes > bytes {
            return Err(io::Error::other(Bomb::Bytes(bytes)));
        }
        if self.bytes > ratio_from && self.bytes / ratio > self.packed.get() {
            return Err(io::Error::other(Bomb::Ratio(ratio)));
        }
        Ok(length)
    }
}

struct Counted<R> {
    source: R,
    count: Rc<Cell<u64>>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.source.read(buffer)?;
        self.count.set(self.count.get() + length as u64);
        Ok(length)
    }
}

/// All frames of zstd, one behind the other; those that are to be skipped are.
struct Frames<R> {
    source: R,
    decoder: FrameDecoder,
    within: bool,
}

impl<R: Read> Read for Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.within {
                if self.decoder.can_collect() > 0 {
                    return self.decoder.read(buffer);
                }
                if !self.decoder.is_finished() {
                    self.decoder
                        .decode_blocks(&mut self.source, BlockDecodingStrategy::UptoBlocks(1))
                        .map_err(io::Error::other)?;
                    continue;
                }
                self.within = false;
            }
            // The end of the stream is where a frame could begin, and nowhere else.
            let mut first = [0];
            if fill(&mut self.source, &mut first)? == 0 {
                return Ok(0);
            }
            let mut source = io::Cursor::new(first).chain(&mut self.source);
            match self.decoder.init(&mut source) {
                Ok(()) => self.within = true,
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let mut skipped = source.take(u64::from(length));
                    if io::copy(&mut skipped, &mut io::sink())? < u64::from(length) {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
    }
}

fn fill(source: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match source.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(length) => filled += length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
