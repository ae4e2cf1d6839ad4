//! The list of a layer: what was unpacked, so that `image verify` can say what is different now.
//!
//! One record for each path, sorted: `f 644 12 <sha256>`, a zero byte, the path, a zero byte. The
//! store has the digest of the whole list.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use ringfence_model::{ByteText, hex};
use sha2::{Digest as _, Sha256};

/// BOUND: how much of a file is looked at at once.
const BUFFER: usize = 128 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListedKind {
    File,
    Symlink,
    Directory,
    OpaqueDirectory,
    Whiteout,
}

/// What is known of one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Listed {
    pub kind: ListedKind,
    pub mode: u32,
    pub size: u64,
    /// Of the content of a file, or of the target of a link.
    pub hash: [u8; 32],
}

impl ListedKind {
    const ALL: [(Self, &'static str); 5] = [
        (Self::File, "f"),
        (Self::Symlink, "l"),
        (Self::Directory, "d"),
        (Self::OpaqueDirectory, "o"),
        (Self::Whiteout, "w"),
    ];

    fn letter(self) -> &'static str {
        let found = Self::ALL.iter().find(|(kind, _)| *kind == self);
        found.map_or("?", |(_, letter)| letter)
    }

    /// For a person.
    pub fn text(self) -> &'static str {
        match self {
            Self::File => "a file",
            Self::Symlink => "a link",
            Self::Directory => "a directory",
            Self::OpaqueDirectory => "a directory that hides what is below it",
            Self::Whiteout => "a whiteout",
        }
    }
}

/// The list as bytes, in one way only.
pub(super) fn write(list: &BTreeMap<Vec<u8>, Listed>) -> Vec<u8> {
    let mut out = Vec::new();
    for (path, listed) in list {
        let Listed {
            kind,
            mode,
            size,
            hash,
        } = listed;
        let head = format!("{} {mode:o} {size} {}", kind.letter(), hex(hash));
        out.extend_from_slice(head.as_bytes());
        out.push(0);
        out.extend_from_slice(path);
        out.push(0);
    }
    out
}

/// Reads a list back; `None` where it is not one.
pub(super) fn read(bytes: &[u8]) -> Option<BTreeMap<Vec<u8>, Listed>> {
    let mut list = BTreeMap::new();
    let mut fields = bytes.split(|&byte| byte == 0);
    loop {
        let head = std::str::from_utf8(fields.next()?).ok()?;
        if head.is_empty() {
            // What is behind the last zero byte.
            return fields.next().is_none().then_some(list);
        }
        let path = fields.next()?.to_vec();
        let mut words = head.split(' ');
        let letter = words.next()?;
        let (kind, _) = ListedKind::ALL.iter().find(|(_, its)| *its == letter)?;
        let mode = u32::from_str_radix(words.next()?, 8).ok()?;
        let size = words.next()?.parse().ok()?;
        let digest: ringfence_model::image::Digest =
            format!("sha256:{}", words.next()?).parse().ok()?;
        let listed = Listed {
            kind: *kind,
            mode,
            size,
            hash: digest.bytes(),
        };
        list.insert(path, listed);
    }
}

/// The digest of a file's bytes, of which its maker had a bounded number.
pub(super) fn hash_file(file: &File) -> io::Result<[u8; 32]> {
    let size = file.metadata()?.len();
    let mut hash = Sha256::new();
    let mut buffer = vec![0; BUFFER];
    let mut at = 0;
    while at < size {
        let length = file.read_at(&mut buffer, at)?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        hash.update(&buffer[..length]);
        at += length as u64;
    }
    Ok(hash.finalize().into())
}

/// What is not as it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    pub path: ByteText,
    pub what: String,
}
