//! What a command writes: all of it in files, the head and the tail at hand, never merged.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::Arc;

use ringfence_model::needles::{Needles, Stream as Searched};

use crate::client::Stream;
use crate::error::Error;
use crate::guard::Guard;

/// BOUND: what a caller gets of each end of a stream without asking for the file.
const END_BYTES: usize = 16 * 1024;

/// Both streams of one command.
#[derive(Debug)]
pub struct Spool {
    stdout: Capture,
    stderr: Capture,
}

/// One stream: spooled whole, kept in part.
#[derive(Debug)]
pub struct Capture {
    /// Takes values of secrets out before anything is kept.
    guard: Option<Searched<Arc<Needles>>>,
    file: Option<File>,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    total: u64,
}

impl Spool {
    /// Spools into these files, which must not be there yet.
    pub fn create(stdout: &Path, stderr: &Path) -> Result<Self, Error> {
        Ok(Self {
            stdout: Capture::create(stdout)?,
            stderr: Capture::create(stderr)?,
        })
    }

    /// Keeps both ends of what comes and nothing else.
    pub fn ends_only() -> Self {
        let capture = || Capture {
            guard: None,
            file: None,
            head: Vec::new(),
            tail: VecDeque::new(),
            total: 0,
        };
        Self {
            stdout: capture(),
            stderr: capture(),
        }
    }

    /// From now on, nothing is kept that holds the value of a secret.
    pub fn guarded(mut self, guard: &Guard) -> Self {
        self.stdout.guard = guard.stream();
        self.stderr.guard = guard.stream();
        self
    }

    pub fn write(&mut self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        match stream {
            Stream::Stdout => self.stdout.write(bytes),
            Stream::Stderr => self.stderr.write(bytes),
        }
    }

    /// Nothing more comes: what was held back until all of it could be searched is kept now.
    pub fn end(&mut self) -> io::Result<()> {
        self.stdout.end().and(self.stderr.end())
    }

    pub fn stream(&self, stream: Stream) -> &Capture {
        match stream {
            Stream::Stdout => &self.stdout,
            Stream::Stderr => &self.stderr,
        }
    }

    pub fn total(&self) -> u64 {
        self.stdout.total + self.stderr.total
    }
}

impl Capture {
    fn create(path: &Path) -> Result<Self, Error> {
        let file = File::create_new(path).map_err(|source| Error::WriteFile {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self {
            guard: None,
            file: Some(file),
            head: Vec::new(),
            tail: VecDeque::new(),
            total: 0,
        })
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.guard {
            None => self.keep(bytes),
            Some(guard) => {
                let searched = guard.piece(bytes);
                self.keep(&searched)
            }
        }
    }

    fn end(&mut self) -> io::Result<()> {
        match self.guard.take() {
            None => Ok(()),
            Some(mut guard) => self.keep(&guard.end()),
        }
    }

    fn keep(&mut self, bytes: &[u8]) -> io::Result<()> {
        if let Some(file) = &mut self.file {
            file.write_all(bytes)?;
        }
        self.total += bytes.len() as u64;
        let to_head = bytes.len().min(END_BYTES - self.head.len());
        self.head.extend_from_slice(&bytes[..to_head]);
        let rest = &bytes[to_head..];
        self.tail
            .extend(&rest[rest.len().saturating_sub(END_BYTES)..]);
        let over = self.tail.len().saturating_sub(END_BYTES);
        self.tail.drain(..over);
        Ok(())
    }

    /// All bytes that came.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Whether head and tail together are less than all.
    pub fn is_truncated(&self) -> bool {
        self.total > (self.head.len() + self.tail.len()) as u64
    }

    pub fn head(&self) -> &[u8] {
        &self.head
    }

    pub fn tail(&self) -> Vec<u8> {
        self.tail.iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_spooled_and_both_ends_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let (out, err) = (dir.path().join("o"), dir.path().join("e"));
        let mut spool = Spool::create(&out, &err).unwrap();
        let all: Vec<u8> = (0..100_000u32).flat_map(|n| n.to_le_bytes()).collect();
        for chunk in all.chunks(7001) {
            spool.write(Stream::Stdout, chunk).unwrap();
        }
        spool.write(Stream::Stderr, b"short").unwrap();
        let kept = spool.stream(Stream::Stdout);
        assert_eq!(std::fs::read(&out).unwrap(), all);
        assert_eq!(kept.head(), &all[..END_BYTES]);
        assert_eq!(kept.tail(), &all[all.len() - END_BYTES..]);
        assert!(kept.is_truncated());
        let short = spool.stream(Stream::Stderr);
        assert_eq!(
            (short.head(), short.is_truncated(), short.total()),
            (&b"short"[..], false, 5)
        );
    }
}
