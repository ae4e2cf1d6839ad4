//! Reading one side of a change: its mode, its id, its size, and whether it is text.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};

use ringfence_model::changes::{FileMode, Side};

use super::handle::{self, Access, Kind, Meta, OpenFile};
use super::oid::{self, BlobHasher};
use ringfence_model::changes::ObjectHash;

/// BOUND: what is diffed line by line is held in memory, both sides at once.
const TEXT_BYTES: u64 = 8 << 20;
/// BOUND: a longer line is no text that a person reads.
const LINE_BYTES: usize = 1 << 20;
/// Where git looks for a NUL.
const BINARY_PROBE_BYTES: usize = 8000;

/// What one side holds.
#[derive(Debug)]
pub(super) struct Content {
    pub side: Side,
    pub binary: bool,
    /// The overlay attribute by which it says that its bytes are not its own.
    pub elsewhere: Option<&'static str>,
    /// The entry as it was after its last byte was read.
    pub meta: Meta,
}

/// Reads a file or link for its id. `UnexpectedEof` where it changed length under the reader.
pub(super) fn read(
    dir: BorrowedFd<'_>,
    name: &[u8],
    kind: Kind,
    access: Access,
    hash: ObjectHash,
) -> io::Result<Content> {
    if kind == Kind::Symlink {
        let (target, meta) = handle::read_link(dir, name, access)?;
        let side = Side {
            mode: FileMode::Symlink,
            oid: oid::blob(hash, &target),
            size: target.len() as u64,
        };
        return Ok(Content {
            side,
            binary: false,
            elsewhere: None,
            meta,
        });
    }
    let OpenFile {
        mut file,
        mut meta,
        elsewhere,
    } = handle::open_file(dir, name, access)?;
    let mut probe = Probe::default();
    let oid = stream(&mut file, meta.size, hash, |bytes| {
        probe.update(bytes);
        Ok(())
    })?;
    let side = Side {
        mode: file_mode(&meta),
        oid,
        size: meta.size,
    };
    let binary = probe.is_binary() || meta.size > TEXT_BYTES;
    meta.changed = handle::look_at(file.as_fd())?.changed;
    Ok(Content {
        side,
        binary,
        elsewhere,
        meta,
    })
}

/// Reads exactly `length` bytes, passing them on, and gives their id.
pub(super) fn stream(
    file: &mut File,
    length: u64,
    hash: ObjectHash,
    mut pass: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<String> {
    let mut hasher = BlobHasher::new(hash, length);
    let buffer_bytes = usize::try_from(length.clamp(1, 128 << 10)).unwrap_or(128 << 10);
    let mut buffer = vec![0; buffer_bytes];
    let mut left = length;
    while left > 0 {
        let want = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
        let got = match file.read(&mut buffer[..want]) {
            Ok(0) => return Err(changed_length()),
            Ok(got) => got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        hasher.update(&buffer[..got]);
        pass(&buffer[..got])?;
        left -= got as u64;
    }
    if file.read(&mut [0])? != 0 {
        return Err(changed_length());
    }
    Ok(hasher.finish())
}

fn changed_length() -> io::Error {
    io::Error::new(
        io::ErrorKind::UnexpectedEof,
        "it changed its length while it was read",
    )
}

fn file_mode(meta: &Meta) -> FileMode {
    if meta.owner_executes() {
        FileMode::Executable
    } else {
        FileMode::Regular
    }
}

#[derive(Default)]
struct Probe {
    seen: usize,
    nul: bool,
    line: usize,
    longest: usize,
}

impl Probe {
    fn update(&mut self, bytes: &[u8]) {
        let probed = bytes
            .len()
            .min(BINARY_PROBE_BYTES.saturating_sub(self.seen));
        self.nul |= bytes[..probed].contains(&0);
        self.seen = self.seen.saturating_add(bytes.len());
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            self.line += piece.len();
            self.longest = self.longest.max(self.line);
            if piece.ends_with(b"\n") {
                self.line = 0;
            }
        }
    }

    fn is_binary(&self) -> bool {
        self.nul || self.longest > LINE_BYTES
    }
}
