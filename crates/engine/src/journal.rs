//! The journal as a file: appended to, never rewritten.
//!
//! Lines are buffered; [`JournalFile::flush`] hands them to the kernel (survives `kill -9`),
//! [`JournalFile::sync`] puts all of them on the disk at once (survives a power cut). Whoever
//! acknowledges something syncs first. The chain shows a change to every line but the last; whoever
//! reads compares the head with one that was written down elsewhere.

mod read;

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use ringfence_model::journal::{Chain, ChainError, Event};
use rustix::fs::{Mode, OFlags};

pub use read::{Journal, read};
pub(crate) use read::{LoadError, load, load_file};

use crate::clock::now_us;
use crate::durable::{self, DurableError};

/// BOUND: what is held in memory before it is written on its own.
const BUFFER_BYTES: usize = 64 * 1024;
/// BOUND: a journal is read whole; 64 MiB are some 200,000 events.
pub const MAX_JOURNAL_BYTES: u64 = 64 << 20;

/// BOUND: kept free for what the host itself has to say.
const LAST_WORDS: u64 = 1 << 20;

/// What went wrong with a journal.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error("cannot create the journal `{path}`")]
    Create {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot encode an event for the journal `{path}`")]
    Encode {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    #[error("cannot write the journal `{path}`")]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the journal `{path}` has had a failed write and takes no more events")]
    Poisoned { path: PathBuf },
    #[error("the journal `{path}` is full: it would be over {MAX_JOURNAL_BYTES} bytes")]
    Full { path: PathBuf },
    #[error("cannot sync the journal `{path}` to the disk")]
    Sync {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot read the journal `{path}`")]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    SyncName(DurableError),
    #[error("the journal `{path}` is not a regular file")]
    NotAFile { path: PathBuf },
    #[error("`{path}` has {bytes} bytes; a journal has at most {MAX_JOURNAL_BYTES}")]
    TooLarge { path: PathBuf, bytes: u64 },
    #[error("the journal `{path}` has been changed or cut")]
    Verify {
        path: PathBuf,
        #[source]
        source: ChainError,
    },
}

/// A journal that is being written. There is one writer: the process that drives the run.
#[derive(Debug)]
pub struct JournalFile {
    path: PathBuf,
    file: File,
    chain: Chain,
    buffer: Vec<u8>,
    /// Bytes taken so far, written or not.
    length: u64,
    state: State,
    name: Name,
}

/// Whether the journal is found again after a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Name {
    New,
    OnDisk,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Whole,
    /// A part of a line is in the file, or a sync failed and the kernel may have dropped what it
    /// could not write. Nothing may follow, and no later sync may be believed.
    Broken,
}

impl JournalFile {
    /// Starts a journal in a file that must not exist.
    pub fn create(path: &Path) -> Result<Self, JournalError> {
        let flags = OFlags::WRONLY
            | OFlags::CREATE
            | OFlags::EXCL
            | OFlags::APPEND
            | OFlags::NOFOLLOW
            | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).map_err(|errno| {
            JournalError::Create {
                path: path.to_owned(),
                source: errno.into(),
            }
        })?;
        Ok(Self::in_file(path, File::from(fd)))
    }

    fn in_file(path: &Path, file: File) -> Self {
        Self {
            path: path.to_owned(),
            file,
            chain: Chain::default(),
            buffer: Vec::new(),
            length: 0,
            state: State::Whole,
            name: Name::New,
        }
    }

    /// Adds an event, at the time that it is now.
    pub fn append(&mut self, event: Event) -> Result<(), JournalError> {
        self.append_within(MAX_JOURNAL_BYTES, now_us(), event)
    }

    /// Adds what was observed inside, as long as room is left to say how it ended.
    pub fn append_observed(&mut self, time_us: i64, event: Event) -> Result<(), JournalError> {
        self.append_within(MAX_JOURNAL_BYTES - LAST_WORDS, time_us, event)
    }

    fn append_within(
        &mut self,
        bound: u64,
        time_us: i64,
        event: Event,
    ) -> Result<(), JournalError> {
        self.check_whole()?;
        // The chain moves on only with a line that is taken.
        let mut chain = self.chain.clone();
        let line = chain
            .append(time_us, event)
            .map_err(|source| JournalError::Encode {
                path: self.path.clone(),
                source,
            })?;
        let length = self.length + line.len() as u64;
        if length > bound {
            return Err(JournalError::Full {
                path: self.path.clone(),
            });
        }
        self.chain = chain;
        self.length = length;
        self.buffer.extend_from_slice(line.as_bytes());
        if self.buffer.len() >= BUFFER_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    /// Hands all lines to the kernel. What does not fit is kept, and can be tried again.
    pub fn flush(&mut self) -> Result<(), JournalError> {
        self.check_whole()?;
        if self.buffer.is_empty() {
            return Ok(());
        }
        if let Err(source) = self.file.write_all(&self.buffer) {
            // Half a line is taken back: on a disk that has room again, all goes on.
            let written = self.length - self.buffer.len() as u64;
            if self.file.set_len(written).is_err() {
                self.state = State::Broken;
            }
            return Err(JournalError::Write {
                path: self.path.clone(),
                source,
            });
        }
        self.buffer.clear();
        Ok(())
    }

    /// Puts all lines on the disk, with one sync for all that came since the last.
    pub fn sync(&mut self) -> Result<(), JournalError> {
        self.flush()?;
        if let Err(source) = self.file.sync_data() {
            self.state = State::Broken;
            return Err(JournalError::Sync {
                path: self.path.clone(),
                source,
            });
        }
        if self.name == Name::New {
            durable::sync_directory(durable::parent(&self.path)).map_err(JournalError::SyncName)?;
            self.name = Name::OnDisk;
        }
        Ok(())
    }

    /// The hash of the last line.
    pub fn head(&self) -> &str {
        self.chain.head()
    }

    /// How many lines there are.
    pub fn lines(&self) -> u64 {
        self.chain.lines()
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file, to be synced in a group after [`Self::flush`].
    pub fn file(&self) -> &File {
        &self.file
    }

    fn check_whole(&self) -> Result<(), JournalError> {
        match self.state {
            State::Whole => Ok(()),
            State::Broken => Err(JournalError::Poisoned {
                path: self.path.clone(),
            }),
        }
    }
}

impl Drop for JournalFile {
    fn drop(&mut self) {
        // Whoever needs to know calls `flush` or `sync`; this only saves the facts of a run that
        // ends by an error.
        let _ = self.flush();
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use ringfence_model::outcome::RunStatus;

    use super::*;

    fn event(argument: &str) -> Event {
        Event::Command {
            argv: vec![argument.into()],
        }
    }

    /// A journal of three lines, and the head that its writer knew.
    fn journal(path: &Path) -> String {
        let mut journal = JournalFile::create(path).unwrap();
        journal.append(event("one")).unwrap();
        journal.append(event("two\n{")).unwrap();
        journal
            .append(Event::End {
                status: RunStatus::Done,
            })
            .unwrap();
        journal.sync().unwrap();
        journal.head().to_owned()
    }

    #[test]
    fn what_is_written_is_read_back() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("audit.jsonl");
        let head = journal(&path);
        let journal = read(&path).unwrap();
        assert_eq!(journal.head, head);
        assert_eq!(journal.lines[1].event, event("two\n{"));
        let now = now_us();
        assert!(
            journal
                .lines
                .iter()
                .all(|line| (now - line.time_us) < 60_000_000)
        );
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
    }

    #[test]
    fn nothing_that_exists_is_taken_over() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("audit.jsonl");
        let link = home.path().join("link");
        std::fs::write(&path, "mine").unwrap();
        std::os::unix::fs::symlink(home.path().join("elsewhere"), &link).unwrap();
        for taken in [&path, &link] {
            assert!(matches!(
                JournalFile::create(taken),
                Err(JournalError::Create { .. })
            ));
        }
        assert_eq!(std::fs::read(&path).unwrap(), b"mine");
    }

    #[test]
    fn nothing_follows_a_failed_write() {
        let mut journal = JournalFile::in_file(
            Path::new("/dev/full"),
            File::options().write(true).open("/dev/full").unwrap(),
        );
        journal.append(event("one")).unwrap();
        assert!(matches!(journal.flush(), Err(JournalError::Write { .. })));
        assert!(matches!(
            journal.append(event("two")),
            Err(JournalError::Poisoned { .. })
        ));
    }

    #[test]
    fn what_did_not_fit_is_written_later() {
        use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("audit.jsonl");
        let mut journal = JournalFile::create(&path).unwrap();
        journal.append(event(&"one".repeat(9000))).unwrap();
        // A file that has room for some pages of it and then for nothing.
        let full = memfd_create("full", MemfdFlags::ALLOW_SEALING)
            .map(File::from)
            .unwrap();
        full.set_len(8192).unwrap();
        fcntl_add_seals(&full, SealFlags::GROW).unwrap();
        let roomy = std::mem::replace(&mut journal.file, full);
        assert!(matches!(journal.flush(), Err(JournalError::Write { .. })));
        assert_eq!(journal.file.metadata().unwrap().len(), 0);
        journal.file = roomy;
        journal.append(event("two")).unwrap();
        journal.sync().unwrap();
        assert_eq!(read(&path).unwrap().lines.len(), 2);
    }

    #[test]
    fn nothing_follows_a_failed_sync() {
        // A pipe takes lines and cannot be synced.
        let (_reader, writer) = std::io::pipe().unwrap();
        let mut journal = JournalFile::in_file(
            Path::new("pipe"),
            File::from(std::os::fd::OwnedFd::from(writer)),
        );
        journal.append(event("one")).unwrap();
        assert!(matches!(journal.sync(), Err(JournalError::Sync { .. })));
        for refused in [journal.append(event("two")), journal.sync()] {
            assert!(matches!(refused, Err(JournalError::Poisoned { .. })));
        }
    }

    #[test]
    fn lines_reach_the_file_when_the_buffer_is_full_and_when_it_is_dropped() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("audit.jsonl");
        let mut journal = JournalFile::create(&path).unwrap();
        journal.append(event("small")).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
        journal.append(event(&"x".repeat(BUFFER_BYTES))).unwrap();
        assert!(std::fs::metadata(&path).unwrap().len() > BUFFER_BYTES as u64);
        journal.append(event("last")).unwrap();
        drop(journal);
        assert_eq!(read(&path).unwrap().lines.len(), 3);
    }
}
