//! HTTP/1 on a connection: heads and bodies, piece by piece.

use std::io;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};

use crate::head::{Framing, HeadError, MAX_HEAD, end_of_head};

/// BOUND: bytes that are read at once: a few records of TLS.
const READ: usize = 64 << 10;
/// BOUND: bytes that are read at once where a head is expected, so that idle connections are small.
const READ_HEAD: usize = 4 << 10;
/// BOUND: the line before a chunk, with extensions that nobody uses.
const MAX_CHUNK_LINE: usize = 256;

/// Both directions of a connection, with TLS or without.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> Duplex for T {}

pub(crate) type Link = Box<dyn Duplex>;

/// Splits a connection.
pub(crate) fn split(link: Link) -> (Reader, Writer) {
    let (reader, writer) = tokio::io::split(link);
    let reader = Reader {
        half: reader,
        buffer: BytesMut::new(),
    };
    (reader, Writer(writer))
}

pub(crate) struct Reader {
    half: ReadHalf<Link>,
    buffer: BytesMut,
}

/// What is still to come of a body.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Left {
    Nothing,
    Length(u64),
    Chunk(Chunk),
    UntilClose,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Chunk {
    Size,
    Data(u64),
    /// The line end behind the data.
    End,
    Trailers(usize),
}

impl From<Framing> for Left {
    fn from(framing: Framing) -> Self {
        match framing {
            Framing::None | Framing::Length(0) => Self::Nothing,
            Framing::Length(length) => Self::Length(length),
            Framing::Chunked => Self::Chunk(Chunk::Size),
            Framing::UntilClose => Self::UntilClose,
        }
    }
}

impl Left {
    pub(crate) fn is_nothing(self) -> bool {
        matches!(self, Self::Nothing)
    }

    /// Whether a part of what was announced is to come.
    pub(crate) fn owes_rest(self) -> bool {
        match self {
            Self::Nothing | Self::UntilClose => false,
            Self::Length(_) => true,
            Self::Chunk(chunk) => matches!(chunk, Chunk::Data(_)),
        }
    }
}

fn broken(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl Reader {
    async fn fill(&mut self, most: usize) -> io::Result<usize> {
        self.buffer.reserve(most);
        self.half.read_buf(&mut self.buffer).await
    }

    async fn fill_some(&mut self, most: usize) -> io::Result<()> {
        match self.fill(most).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    /// Waits for the first byte of a message. `false`: the connection ended.
    pub(crate) async fn begins(&mut self) -> io::Result<bool> {
        Ok(!self.buffer.is_empty() || self.fill(READ_HEAD).await? > 0)
    }

    /// Whether something came that nobody asked for, or the end.
    pub(crate) async fn is_stale(&mut self) -> bool {
        tokio::select! {
            biased;
            _ = self.begins() => true,
            () = std::future::ready(()) => !self.buffer.is_empty(),
        }
    }

    /// A whole head.
    pub(crate) async fn head(&mut self) -> io::Result<Result<Bytes, HeadError>> {
        loop {
            match end_of_head(&self.buffer) {
                Ok(Some(end)) => return Ok(Ok(self.buffer.split_to(end).freeze())),
                Ok(None) => self.fill_some(READ_HEAD).await?,
                Err(error) => return Ok(Err(error)),
            }
        }
    }

    /// The next piece of a body; `None` at its end.
    pub(crate) async fn body(&mut self, left: &mut Left) -> io::Result<Option<Bytes>> {
        loop {
            match left {
                Left::Nothing => return Ok(None),
                Left::Length(length) => {
                    let piece = self.piece(*length).await?;
                    *length -= piece.len() as u64;
                    if *length == 0 {
                        *left = Left::Nothing;
                    }
                    return Ok(Some(piece));
                }
                Left::UntilClose => {
                    if self.buffer.is_empty() && self.fill(READ).await? == 0 {
                        *left = Left::Nothing;
                        return Ok(None);
                    }
                    return Ok(Some(self.buffer.split().freeze()));
                }
                Left::Chunk(chunk) => {
                    let data = self.chunk(chunk).await?;
                    match data {
                        Some(data) if data.is_empty() => {}
                        Some(data) => return Ok(Some(data)),
                        None => *left = Left::Nothing,
                    }
                }
            }
        }
    }

    async fn piece(&mut self, most: u64) -> io::Result<Bytes> {
        if self.buffer.is_empty() {
            self.fill_some(READ).await?;
        }
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let length = most.min(self.buffer.len());
        Ok(self.buffer.split_to(length).freeze())
    }

    /// One step of a chunked body: nothing, some data, or the end.
    async fn chunk(&mut self, chunk: &mut Chunk) -> io::Result<Option<Bytes>> {
        match *chunk {
            Chunk::Size => {
                let line = self.line(MAX_CHUNK_LINE).await?;
                *chunk = match chunk_size(&line).ok_or_else(|| broken("a chunk has no size"))? {
                    0 => Chunk::Trailers(0),
                    size => Chunk::Data(size),
                };
            }
            Chunk::Data(size) => {
                let piece = self.piece(size).await?;
                *chunk = match size - piece.len() as u64 {
                    0 => Chunk::End,
                    size => Chunk::Data(size),
                };
                return Ok(Some(piece));
            }
            Chunk::End => {
                if !self.line(MAX_CHUNK_LINE).await?.is_empty() {
                    return Err(broken("a chunk is longer than its size"));
                }
                *chunk = Chunk::Size;
            }
            // Nobody needs them; what nobody passes on hides nothing.
            Chunk::Trailers(seen) => {
                let line = self.line(MAX_HEAD).await?;
                let seen = seen + line.len();
                if line.is_empty() {
                    return Ok(None);
                }
                if seen > MAX_HEAD {
                    return Err(broken("the trailers are too long"));
                }
                *chunk = Chunk::Trailers(seen);
            }
        }
        Ok(Some(Bytes::new()))
    }

    /// A line that ends with CR LF, without its end.
    async fn line(&mut self, most: usize) -> io::Result<Bytes> {
        loop {
            if let Some(at) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(at + 1).freeze();
                let plain = line
                    .strip_suffix(b"\r\n")
                    .filter(|line| line.len() <= most && !line.contains(&b'\r'));
                return match plain {
                    Some(plain) => Ok(line.slice_ref(plain)),
                    None => Err(broken("a line does not end with CR LF")),
                };
            }
            if self.buffer.len() > most {
                return Err(broken("a line is too long"));
            }
            self.fill_some(READ_HEAD).await?;
        }
    }

    /// What comes next, whatever it is; `None` at the end.
    pub(crate) async fn anything(&mut self) -> io::Result<Option<Bytes>> {
        self.body(&mut Left::UntilClose).await
    }
}

/// Reads `1a` or `1a;extension`.
fn chunk_size(line: &[u8]) -> Option<u64> {
    let digits = line.split(|byte| *byte == b';').next()?;
    let plain = !digits.is_empty()
        && digits.len() <= 15
        && digits.iter().all(u8::is_ascii_hexdigit)
        && line
            .iter()
            .all(|byte| (0x20..0x7f).contains(byte) || *byte == b'\t');
    let digits = std::str::from_utf8(digits).ok().filter(|_| plain)?;
    u64::from_str_radix(digits, 16).ok()
}

pub(crate) struct Writer(WriteHalf<Link>);

impl Writer {
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes).await?;
        self.0.flush().await
    }

    /// Writes a piece of a body in its framing.
    pub(crate) async fn piece(&mut self, framing: Framing, piece: &[u8]) -> io::Result<()> {
        if framing != Framing::Chunked {
            return self.send(piece).await;
        }
        // An empty chunk would be the end.
        if piece.is_empty() {
            return Ok(());
        }
        let mut chunk = format!("{:x}\r\n", piece.len()).into_bytes();
        chunk.reserve(piece.len() + 2);
        chunk.extend_from_slice(piece);
        chunk.extend_from_slice(b"\r\n");
        self.send(&chunk).await
    }

    pub(crate) async fn end(&mut self, framing: Framing) -> io::Result<()> {
        match framing {
            Framing::Chunked => self.send(b"0\r\n\r\n").await,
            _ => Ok(()),
        }
    }

    /// Says that nothing more comes.
    pub(crate) async fn shutdown(&mut self) -> io::Result<()> {
        self.0.shutdown().await
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read_all(bytes: &[u8], framing: Framing) -> io::Result<Vec<u8>> {
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        let (reader, _) = split(Box::new(tokio::io::join(
            std::io::Cursor::new(bytes.to_vec()),
            tokio::io::sink(),
        )));
        let (mut reader, mut left) = (reader, Left::from(framing));
        runtime.block_on(async {
            let mut out = Vec::new();
            while let Some(piece) = reader.body(&mut left).await? {
                out.extend_from_slice(&piece);
            }
            Ok(out)
        })
    }

    #[test]
    fn chunks_are_put_together() {
        let body = b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nX: y\r\n\r\n";
        assert_eq!(read_all(body, Framing::Chunked).expect("whole"), b"abcde");
        assert_eq!(
            read_all(b"abcde", Framing::Length(3)).expect("whole"),
            b"abc"
        );
    }

    #[test]
    fn bodies_that_may_be_read_in_two_ways_are_refused() {
        for body in [
            "3\r\nabcd\r\n0\r\n\r\n",
            "3\nabc\n0\n\n",
            "3\r\nabc\r\n0\r\n",
            "+3\r\nabc\r\n0\r\n\r\n",
            "0x3\r\nabc\r\n0\r\n\r\n",
            "-1\r\n\r\n",
            "3 \r\nabc\r\n0\r\n\r\n",
            "\r\nabc\r\n0\r\n\r\n",
            "3;a\rb\r\nabc\r\n0\r\n\r\n",
            "ffffffffffffffffff\r\n",
            "3\r\nab",
        ] {
            assert!(
                read_all(body.as_bytes(), Framing::Chunked).is_err(),
                "{body:?}"
            );
        }
        assert!(read_all(b"ab", Framing::Length(3)).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            read_all(&bytes, Framing::Chunked).ok();
        }
    }
}
