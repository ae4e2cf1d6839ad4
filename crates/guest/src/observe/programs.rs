//! Files that were executed, each named by its hash.
//!
//! A file is opened while its process stands at its exec, and read afterwards, in slices, with the
//! process already running.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{File, Metadata};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::time::SystemTime;

use ringfence_model::ByteText;
use ringfence_model::observed::Program;
use sha2::{Digest as _, Sha256};

/// BOUND: read in one turn.
const SLICE: usize = 512 << 10;
/// BOUND: files that wait to be read; beyond it one is named without its hash.
const WAITING: usize = 128;
/// BOUND: a larger file is not read, and no more than this in all.
const LARGEST: u64 = 1 << 30;
const IN_ALL: u64 = 8 << 30;
/// A file that changed so shortly before may change again without its times showing it.
const FRESH_NANOSECONDS: i128 = 50_000_000;

#[derive(Debug, Default)]
pub struct Programs {
    numbers: BTreeMap<Identity, u32>,
    last: u32,
    reading: VecDeque<Reading>,
    told: Vec<(u32, Program)>,
    read: u64,
}

/// Which file it is, in which state: it cannot change without changing this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Identity {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

#[derive(Debug)]
struct Reading {
    stream: u32,
    program: u32,
    path: ByteText,
    file: File,
    identity: Identity,
    hash: Sha256,
    done: u64,
}

impl Identity {
    fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    fn is_fresh(&self) -> bool {
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0, |since| since.as_nanos() as i128);
        let changed = i128::from(self.changed.0) * 1_000_000_000 + i128::from(self.changed.1);
        now - changed < FRESH_NANOSECONDS
    }
}

impl Programs {
    /// The number of the program that a process runs. One that is only asked for has a name and
    /// nothing else.
    pub fn number(&mut self, stream: u32, process: i32, path: &[u8], verified: bool) -> u32 {
        let opened = if verified {
            File::open(format!("/proc/{process}/exe")).ok()
        } else {
            None
        };
        let seen = opened.and_then(|file| {
            let identity = Identity::of(&file.metadata().ok()?);
            Some((file, identity))
        });
        if let Some((_, identity)) = &seen
            && let Some(&number) = self.numbers.get(identity)
        {
            return number;
        }
        self.last += 1;
        let program = self.last;
        let path = ByteText::from(path);
        match seen {
            Some((file, identity)) => {
                if !identity.is_fresh() && !is_in_memory(&file) {
                    self.numbers.insert(identity, program);
                }
                let readable = identity.size <= LARGEST && self.read + identity.size <= IN_ALL;
                if readable && self.reading.len() < WAITING {
                    self.read += identity.size;
                    self.reading.push_back(Reading {
                        stream,
                        program,
                        path,
                        file,
                        identity,
                        hash: Sha256::new(),
                        done: 0,
                    });
                } else {
                    self.name(stream, program, path, identity.size);
                }
            }
            None => self.name(stream, program, path, 0),
        }
        program
    }

    fn name(&mut self, stream: u32, program: u32, path: ByteText, size: u64) {
        let named = Program {
            program,
            path,
            size,
            sha256: None,
        };
        self.told.push((stream, named));
    }

    pub fn has_work(&self) -> bool {
        !self.reading.is_empty() || !self.told.is_empty()
    }

    /// Reads on, and tells of what has been read.
    pub fn advance(&mut self, mut tell: impl FnMut(u32, Program)) {
        for (stream, program) in self.told.drain(..) {
            tell(stream, program);
        }
        let mut left = SLICE;
        let mut buffer = vec![0; SLICE.min(64 << 10)];
        while left > 0
            && let Some(reading) = self.reading.front_mut()
        {
            match reading.file.read(&mut buffer) {
                Ok(0) | Err(_) => {
                    if let Some(reading) = self.reading.pop_front() {
                        tell(reading.stream, reading.finish());
                    }
                }
                Ok(count) => {
                    reading.hash.update(&buffer[..count]);
                    reading.done += count as u64;
                    left = left.saturating_sub(count);
                    if reading.done > reading.identity.size {
                        // It grows: not what was executed.
                        if let Some(reading) = self.reading.pop_front() {
                            tell(reading.stream, reading.finish());
                        }
                    }
                }
            }
        }
    }
}

/// A file in memory can be written through a mapping without its times changing.
fn is_in_memory(file: &File) -> bool {
    const TMPFS: i64 = 0x0102_1994;
    rustix::fs::fstatfs(file).map_or(true, |system| system.f_type == TMPFS)
}

impl Reading {
    fn finish(self) -> Program {
        // HOSTILE: once its process is gone, a file can be written while it is read.
        let unchanged = self
            .file
            .metadata()
            .is_ok_and(|now| Identity::of(&now) == self.identity)
            && self.done == self.identity.size;
        Program {
            program: self.program,
            path: self.path,
            size: self.identity.size,
            sha256: unchanged.then(|| ringfence_model::hex(&self.hash.finalize())),
        }
    }
}
