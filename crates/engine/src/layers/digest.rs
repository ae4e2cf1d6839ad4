//! One number for all that a tree shows: paths, types, modes, link targets, contents, whiteouts,
//! opaque marks and what attributes its files carry. Not owners, times and who shares an inode
//! with whom.

use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt as _;

use ringfence_model::ByteText;
use rustix::fs::FileType;
use sha2::{Digest as _, Sha256};

use super::attributes::{self, Attributes, Which};
use super::{LayersError, access, content};
use crate::changes::descent::{Descent, Step};
use crate::changes::handle::{self, Access, Kind, Meta};

/// BOUND: content is read in blocks of this many bytes; those without a bit set are holes,
/// whether or not the disk has them.
const BLOCK: usize = 4096;
const BUFFER: usize = 32 * BLOCK;

/// Digests a tree: a layer, or a view.
pub fn digest(tree: BorrowedFd<'_>) -> Result<[u8; 32], LayersError> {
    let access = access(tree);
    let (descent, root) = Descent::new(tree, access).map_err(LayersError::Open)?;
    let mut walk = Walk {
        descent,
        access,
        hash: Sha256::new(),
        path: Vec::new(),
        ends: Vec::new(),
    };
    walk.directory(b"", &root)?;
    walk.run()
}

/// The same of one file's bytes. Holes and zeros are the same.
pub fn digest_of_file(file: &File, size: u64) -> io::Result<[u8; 32]> {
    let mut hash = Sha256::new();
    add_content(&mut hash, file, size)?;
    Ok(hash.finalize().into())
}

struct Walk {
    descent: Descent,
    access: Access,
    hash: Sha256,
    path: Vec<u8>,
    /// Where the path of each directory above ends.
    ends: Vec<usize>,
}

impl Walk {
    fn run(mut self) -> Result<[u8; 32], LayersError> {
        loop {
            match self.descent.advance() {
                Ok(Some(Step::Entered(name, meta))) => {
                    let end = self.path.len();
                    self.ends.push(end);
                    self.push_name(&name);
                    self.directory(&name, &meta)?;
                }
                Ok(Some(Step::Left)) => {
                    self.hash.update(b"^");
                    self.path.truncate(self.ends.pop().unwrap_or(0));
                }
                Ok(Some(Step::Closed(name, source))) => {
                    self.push_name(&name);
                    return Err(self.read_error(source));
                }
                Ok(None) => return Ok(self.hash.finalize().into()),
                Err(source) => {
                    return Err(LayersError::Climb {
                        path: ByteText::from(self.path.as_slice()),
                        source,
                    });
                }
            }
        }
    }

    /// The current directory and its files; its directories are queued.
    fn directory(&mut self, name: &[u8], meta: &Meta) -> Result<(), LayersError> {
        let here = self.descent.here();
        let opaque = handle::attribute(here, "user.overlay.opaque");
        let opaque = opaque.map_err(|source| self.read_error(source))?;
        let found = attributes::read(here, Which::OfAgent);
        let found = found.map_err(|source| self.read_error(source))?;
        let names = handle::names(here, usize::MAX).map_err(|source| LayersError::List {
            path: ByteText::from(self.path.as_slice()),
            source,
        })?;
        self.head(b'd', name, meta.mode);
        self.field(&opaque.unwrap_or_default());
        add_attributes(&mut self.hash, &found);
        for name in names {
            let end = self.path.len();
            self.push_name(&name);
            self.entry(name).map_err(|source| self.read_error(source))?;
            self.path.truncate(end);
        }
        Ok(())
    }

    fn entry(&mut self, name: Vec<u8>) -> io::Result<()> {
        let Some(meta) = handle::look(self.descent.here(), &name)? else {
            return Ok(());
        };
        match meta.kind {
            Kind::Directory => self.descent.queue(name),
            Kind::Whiteout => self.head(b'w', &name, 0),
            Kind::Symlink => {
                let (target, _) = handle::read_link(self.descent.here(), &name, self.access)?;
                self.head(b'l', &name, 0);
                self.field(&target);
            }
            Kind::Special => {
                let kind = match meta.file_type {
                    FileType::Fifo => b'p',
                    FileType::Socket => b's',
                    _ => b'?',
                };
                self.head(kind, &name, meta.mode);
            }
            Kind::File => {
                self.head(b'f', &name, meta.mode);
                let hash = &mut self.hash;
                let dir = self.descent.here();
                attributes::with_file(dir, &name, self.access, |file, meta| {
                    add_attributes(hash, &attributes::read(file, Which::OfAgent)?);
                    add_content(hash, &File::from(file.try_clone_to_owned()?), meta.size)
                })?;
            }
        }
        Ok(())
    }

    fn head(&mut self, kind: u8, name: &[u8], mode: u32) {
        self.hash.update([kind]);
        self.field(name);
        self.hash.update(mode.to_le_bytes());
    }

    fn field(&mut self, bytes: &[u8]) {
        add_field(&mut self.hash, bytes);
    }

    fn push_name(&mut self, name: &[u8]) {
        if !self.path.is_empty() {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(name);
    }

    fn read_error(&self, source: io::Error) -> LayersError {
        LayersError::Read {
            path: ByteText::from(self.path.as_slice()),
            source,
        }
    }
}

/// With its length before it, so that no two lists of fields are the same bytes.
fn add_field(hash: &mut Sha256, bytes: &[u8]) {
    hash.update((bytes.len() as u64).to_le_bytes());
    hash.update(bytes);
}

fn add_attributes(hash: &mut Sha256, found: &Attributes) {
    hash.update((found.len() as u64).to_le_bytes());
    for (name, value) in found {
        add_field(hash, name.to_bytes());
        add_field(hash, value);
    }
}

/// HOSTILE: a file says how large it is and need not have a byte of it. So holes are not read, and
/// only blocks with something in them count.
fn add_content(hash: &mut Sha256, file: &File, size: u64) -> io::Result<()> {
    hash.update(size.to_le_bytes());
    let mut buffer = vec![0_u8; BUFFER.min(usize::try_from(size).unwrap_or(BUFFER))];
    let block = BLOCK as u64;
    let mut at = 0;
    while let Some((start, end)) = content::data(file, at, size)? {
        let mut here = (start - start % block).max(at);
        let end = end.next_multiple_of(block).min(size);
        while here < end {
            let wanted =
                usize::try_from(end - here).map_or(buffer.len(), |rest| rest.min(buffer.len()));
            file.read_exact_at(&mut buffer[..wanted], here)?;
            for (number, bytes) in buffer[..wanted].chunks(BLOCK).enumerate() {
                if bytes.iter().any(|&byte| byte != 0) {
                    hash.update((here + number as u64 * block).to_le_bytes());
                    hash.update(bytes);
                }
            }
            here += wanted as u64;
        }
        at = end;
    }
    hash.update(u64::MAX.to_le_bytes());
    Ok(())
}
