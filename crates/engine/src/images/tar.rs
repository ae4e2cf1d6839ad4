//! Reading a tar stream: the old form, ustar, GNU's long names and sparse files, and pax.
//!
//! It only reads. What may be made of an entry is decided in `unpack.rs`.
//!
//! HOSTILE: whoever made the layer chose every byte. Each number is checked, each name and list has
//! a bound, and nothing is kept of what is not needed.

use std::io::{self, Read};

const BLOCK: usize = 512;
/// BOUND: a path of the kernel has 4096 bytes; more than this is not even read.
const NAME_BYTES: u64 = 64 << 10;
/// BOUND: attributes of a file have 64 KiB each, and a file has a few.
const PAX_BYTES: u64 = 1 << 20;
/// BOUND: pieces of a sparse file.
const PIECES: usize = 100_000;

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryKind {
    File,
    HardLink,
    Symlink,
    Directory,
    /// A device or a FIFO; said how it is called.
    Special(&'static str),
}

/// One entry; its content is read from the [`Reader`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Entry {
    pub path: Vec<u8>,
    pub link: Vec<u8>,
    pub kind: Option<EntryKind>,
    pub mode: u32,
    pub uid: u64,
    pub gid: u64,
    pub mtime_seconds: i64,
    pub mtime_nanoseconds: u32,
    /// Of the file; a sparse one has fewer bytes in the stream.
    pub size: u64,
    /// Extended attributes, as named.
    pub attributes: Vec<(Vec<u8>, Vec<u8>)>,
    /// Where the bytes of a sparse file belong: offset and length, in order.
    pub pieces: Option<Vec<(u64, u64)>>,
}

/// Why a stream is no tar, or none that is read here.
#[derive(Debug, thiserror::Error)]
pub enum TarError {
    #[error("it cannot be read")]
    Read(#[source] io::Error),
    #[error("it ends in the middle of an entry")]
    CutOff,
    #[error("it is not a tar archive: the header at byte {0} is damaged")]
    Checksum(u64),
    #[error("the header at byte {at} has a bad {what}")]
    Number { at: u64, what: &'static str },
    #[error("the header at byte {at} has {bytes} bytes for {what}, and {most} are the most")]
    Long {
        at: u64,
        what: &'static str,
        bytes: u64,
        most: u64,
    },
    #[error("the header at byte {at} is of an unknown kind (`{kind}`)")]
    Kind { at: u64, kind: char },
    #[error("the header at byte {0} has pax records that cannot be read")]
    Pax(u64),
    #[error("the file at byte {0} is sparse in a way that is not supported")]
    Sparse(u64),
}

#[derive(Debug)]
pub(crate) struct Reader<R> {
    inner: R,
    at: u64,
    /// Of the content of the current entry.
    left: u64,
    padding: u64,
}

/// What pax and GNU headers say of the entry behind them.
#[derive(Default)]
struct Said {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
    mtime: Option<(i64, u32)>,
    attributes: Vec<(Vec<u8>, Vec<u8>)>,
    sparse: bool,
}

impl<R: Read> Reader<R> {
    pub fn new(inner: R) -> Self {
        Self {
            inner,
            at: 0,
            left: 0,
            padding: 0,
        }
    }

    /// Where the next byte is read.
    pub fn position(&self) -> u64 {
        self.at
    }

    pub fn into_inner(self) -> R {
        self.inner
    }

    /// The next entry; what was not read of the one before is passed over.
    pub fn advance(&mut self) -> Result<Option<Entry>, TarError> {
        self.pass_over()?;
        let mut said = Said::default();
        loop {
            let at = self.at;
            let Some(header) = self.block()? else {
                return Ok(None);
            };
            if header.iter().all(|&byte| byte == 0) {
                return Ok(None);
            }
            check_sum(&header, at)?;
            let number = |range: std::ops::Range<usize>, what| {
                number(&header[range]).ok_or(TarError::Number { at, what })
            };
            let size = number(124..136, "size")?;
            match header[156] {
                b'L' => said.path = Some(self.text(at, size)?),
                b'K' => said.link = Some(self.text(at, size)?),
                b'x' => self.pax(at, size, &mut said)?,
                // What is said of all entries is a comment.
                b'g' => {
                    self.small(at, "pax records", size, PAX_BYTES)?;
                }
                kind => {
                    let entry = self.entry(at, &header, kind, size, said)?;
                    return Ok(Some(entry));
                }
            }
        }
    }

    fn entry(
        &mut self,
        at: u64,
        header: &[u8; BLOCK],
        kind: u8,
        size: u64,
        said: Said,
    ) -> Result<Entry, TarError> {
        let get = |range: std::ops::Range<usize>, what| {
            number(&header[range]).ok_or(TarError::Number { at, what })
        };
        let path = said.path.unwrap_or_else(|| name(header));
        let ends_as_directory = path.last() == Some(&b'/');
        let found = match kind {
            b'0' | 0 | b'7' if ends_as_directory => EntryKind::Directory,
            b'0' | 0 | b'7' | b'S' => EntryKind::File,
            b'1' => EntryKind::HardLink,
            b'2' => EntryKind::Symlink,
            b'3' => EntryKind::Special("a device"),
            b'4' => EntryKind::Special("a device"),
            b'5' => EntryKind::Directory,
            b'6' => EntryKind::Special("a FIFO"),
            kind => {
                let kind = if kind.is_ascii_graphic() {
                    char::from(kind)
                } else {
                    '?'
                };
                return Err(TarError::Kind { at, kind });
            }
        };
        if said.sparse {
            return Err(TarError::Sparse(at));
        }
        let size = said.size.unwrap_or(size);
        // Only files have content, whatever the header says.
        self.left = if found == EntryKind::File { size } else { 0 };
        self.padding = padding(self.left);
        let pieces = match kind {
            b'S' => Some(self.pieces(at, header)?),
            _ => None,
        };
        let (mtime_seconds, mtime_nanoseconds) = match said.mtime {
            Some(mtime) => mtime,
            // A time before 1970 is nobody's.
            None => (
                i64::try_from(number(&header[136..148]).unwrap_or(0)).unwrap_or(0),
                0,
            ),
        };
        Ok(Entry {
            link: said.link.unwrap_or_else(|| cut(&header[157..257]).to_vec()),
            kind: Some(found),
            mode: (get(100..108, "mode")? & 0o7777) as u32,
            uid: said.uid.map_or_else(|| get(108..116, "owner"), Ok)?,
            gid: said.gid.map_or_else(|| get(116..124, "group"), Ok)?,
            mtime_seconds,
            mtime_nanoseconds,
            size: match &pieces {
                Some(_) => get(483..495, "size")?,
                None => self.left,
            },
            attributes: said.attributes,
            pieces,
            path,
        })
    }

    /// The pieces of GNU's sparse file: four in the header, more in blocks behind it.
    fn pieces(&mut self, at: u64, header: &[u8; BLOCK]) -> Result<Vec<(u64, u64)>, TarError> {
        let bad = || TarError::Sparse(at);
        let size = number(&header[483..495]).ok_or_else(bad)?;
        let mut pieces = Vec::new();
        let mut add = |bytes: &[u8]| -> Result<(), TarError> {
            for pair in bytes.chunks_exact(24).filter(|pair| pair[0] != 0) {
                let start = number(&pair[..12]).ok_or_else(bad)?;
                let length = number(&pair[12..]).ok_or_else(bad)?;
                let end = start.checked_add(length).ok_or_else(bad)?;
                let before = pieces.last().map_or(0, |(start, length)| start + length);
                if start < before || end > size || pieces.len() >= PIECES {
                    return Err(bad());
                }
                pieces.push((start, length));
            }
            Ok(())
        };
        add(&header[386..482])?;
        let mut more = header[482] != 0;
        while more {
            let block = self.block()?.ok_or(TarError::CutOff)?;
            add(&block[..504])?;
            more = block[504] != 0;
        }
        if total(&pieces) != Some(self.left) {
            return Err(bad());
        }
        Ok(pieces)
    }

    /// Content of the current entry.
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<usize, TarError> {
        let most = usize::try_from(self.left).map_or(buffer.len(), |left| left.min(buffer.len()));
        if most == 0 {
            return Ok(0);
        }
        let length = self.some(&mut buffer[..most])?;
        if length == 0 {
            return Err(TarError::CutOff);
        }
        self.left -= length as u64;
        Ok(length)
    }

    /// All that is behind the last entry, so that whoever counts the bytes has counted them all.
    pub fn drain(&mut self) -> Result<(), TarError> {
        let mut buffer = [0; 64 << 10];
        while self.some(&mut buffer)? > 0 {}
        Ok(())
    }

    fn pass_over(&mut self) -> Result<(), TarError> {
        let mut buffer = [0; 64 << 10];
        let mut left = self.left.saturating_add(self.padding);
        while left > 0 {
            let most = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
            let length = self.some(&mut buffer[..most])?;
            if length == 0 {
                return Err(TarError::CutOff);
            }
            left -= length as u64;
        }
        (self.left, self.padding) = (0, 0);
        Ok(())
    }

    /// A whole block; `None` at the end of the stream.
    fn block(&mut self) -> Result<Option<[u8; BLOCK]>, TarError> {
        let mut block = [0; BLOCK];
        let mut filled = 0;
        while filled < BLOCK {
            match self.some(&mut block[filled..])? {
                0 if filled == 0 => return Ok(None),
                0 => return Err(TarError::CutOff),
                length => filled += length,
            }
        }
        Ok(Some(block))
    }

    fn some(&mut self, buffer: &mut [u8]) -> Result<usize, TarError> {
        loop {
            match self.inner.read(buffer) {
                Ok(length) => {
                    self.at += length as u64;
                    return Ok(length);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Err(TarError::CutOff);
                }
                Err(error) => return Err(TarError::Read(error)),
            }
        }
    }

    /// The content of a header that is about another one.
    fn small(
        &mut self,
        at: u64,
        what: &'static str,
        size: u64,
        most: u64,
    ) -> Result<Vec<u8>, TarError> {
        if size > most {
            return Err(TarError::Long {
                at,
                what,
                bytes: size,
                most,
            });
        }
        self.left = size;
        self.padding = padding(size);
        let mut content = vec![0; size as usize];
        let mut filled = 0;
        while filled < content.len() {
            filled += self.read(&mut content[filled..])?;
        }
        self.pass_over()?;
        Ok(content)
    }

    fn text(&mut self, at: u64, size: u64) -> Result<Vec<u8>, TarError> {
        let text = self.small(at, "a name", size, NAME_BYTES)?;
        Ok(cut(&text).to_vec())
    }

    fn pax(&mut self, at: u64, size: u64, said: &mut Said) -> Result<(), TarError> {
        let content = self.small(at, "pax records", size, PAX_BYTES)?;
        let bad = || TarError::Pax(at);
        let mut rest = content.as_slice();
        while !rest.is_empty() {
            let space = rest.iter().position(|&b| b == b' ').ok_or_else(bad)?;
            let length = decimal(&rest[..space]).ok_or_else(bad)?;
            let length = usize::try_from(length).map_err(|_| bad())?;
            if length <= space + 1 || length > rest.len() || rest[length - 1] != b'\n' {
                return Err(bad());
            }
            let record = &rest[space + 1..length - 1];
            rest = &rest[length..];
            let equals = record.iter().position(|&b| b == b'=').ok_or_else(bad)?;
            let (key, value) = (&record[..equals], &record[equals + 1..]);
            match key {
                b"path" => said.path = Some(value.to_vec()),
                b"linkpath" => said.link = Some(value.to_vec()),
                b"size" => said.size = Some(decimal(value).ok_or_else(bad)?),
                b"uid" => said.uid = Some(decimal(value).ok_or_else(bad)?),
                b"gid" => said.gid = Some(decimal(value).ok_or_else(bad)?),
                b"mtime" => said.mtime = Some(time(value).ok_or_else(bad)?),
                _ if key.starts_with(b"GNU.sparse.") => said.sparse = true,
                _ => {
                    if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                        said.attributes.push((name.to_vec(), value.to_vec()));
                    }
                }
            }
        }
        Ok(())
    }
}

/// What is between some bytes and the next block. HOSTILE: there may be as many as a number has.
fn padding(bytes: u64) -> u64 {
    (BLOCK as u64 - bytes % BLOCK as u64) % BLOCK as u64
}

fn check_sum(header: &[u8; BLOCK], at: u64) -> Result<(), TarError> {
    let said = number(&header[148..156]).ok_or(TarError::Checksum(at))?;
    let sum = |byte_value: fn(u8) -> i64| -> i64 {
        header
            .iter()
            .enumerate()
            .map(|(index, &byte)| match index {
                148..156 => i64::from(b' '),
                _ => byte_value(byte),
            })
            .sum()
    };
    // Some writers took bytes for signed.
    let said = i64::try_from(said).map_err(|_| TarError::Checksum(at))?;
    let signed = sum(|byte| i64::from(byte.cast_signed()));
    if said == sum(i64::from) || said == signed {
        Ok(())
    } else {
        Err(TarError::Checksum(at))
    }
}

/// The name of the old form, with the part before it that ustar has.
fn name(header: &[u8; BLOCK]) -> Vec<u8> {
    let name = cut(&header[..100]);
    let prefix = cut(&header[345..500]);
    if &header[257..263] == b"ustar\0" && !prefix.is_empty() {
        [prefix, b"/", name].concat()
    } else {
        name.to_vec()
    }
}

fn total(pieces: &[(u64, u64)]) -> Option<u64> {
    let mut lengths = pieces.iter().map(|(_, length)| length);
    lengths.try_fold(0_u64, |sum, length| sum.checked_add(*length))
}

fn cut(field: &[u8]) -> &[u8] {
    let end = field.iter().position(|&byte| byte == 0);
    &field[..end.unwrap_or(field.len())]
}

/// Octal digits, or the number itself where the first bit says so. An empty field is 0.
fn number(field: &[u8]) -> Option<u64> {
    match field[0] {
        0x80 => field[1..].iter().try_fold(0_u64, |sum, &byte| {
            Some(sum.checked_mul(256)? | u64::from(byte))
        }),
        0x81.. => None,
        _ => {
            let text = cut(field).trim_ascii();
            text.iter().try_fold(0_u64, |sum, &byte| match byte {
                b'0'..=b'7' => sum.checked_mul(8)?.checked_add(u64::from(byte - b'0')),
                _ => None,
            })
        }
    }
}

fn decimal(text: &[u8]) -> Option<u64> {
    if text.iter().all(u8::is_ascii_digit) {
        std::str::from_utf8(text).ok()?.parse().ok()
    } else {
        None
    }
}

/// Seconds with a fraction; a time before 1970 is nobody's.
fn time(text: &[u8]) -> Option<(i64, u32)> {
    let text = std::str::from_utf8(text).ok()?;
    if text.starts_with('-') {
        return Some((0, 0));
    }
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let mut nanoseconds: String = fraction.chars().take(9).collect();
    while nanoseconds.len() < 9 {
        nanoseconds.push('0');
    }
    let seconds = decimal(seconds.as_bytes())?;
    let nanoseconds = decimal(nanoseconds.as_bytes())?;
    Some((
        i64::try_from(seconds).ok()?,
        u32::try_from(nanoseconds).ok()?,
    ))
}
