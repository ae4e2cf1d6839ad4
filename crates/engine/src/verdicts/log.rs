//! `verdicts.jsonl` of the home: one verdict a line, chained by hash like the journal of a run.
//!
//! The store knows how long the file is and the hash of its last line, and the file proves itself
//! line by line. So neither of them can be changed alone.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use ringfence_model::journal::{Chain, ChainError, Lines};
use ringfence_model::verdict::Verdict;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::VerdictError;
use crate::durable;
use crate::error::Error;
use crate::home::Home;
use crate::journal::{JournalError, MAX_JOURNAL_BYTES, load};
use crate::lock::FileLock;
use crate::store::{Store, VerdictLine};

pub(super) fn path(home: &Home) -> PathBuf {
    home.root().join("verdicts.jsonl")
}

pub(super) fn lock_path(home: &Home) -> PathBuf {
    home.root().join("verdicts.lock")
}

/// The log, open for one more line. Whoever has it holds the lock.
pub(super) struct Log {
    path: PathBuf,
    file: File,
    chain: Chain,
    length: u64,
}

impl Log {
    /// Opens the log, and brings the store to where the log is.
    pub(super) fn open(home: &Home, store: &Store) -> Result<Self, Error> {
        let path = path(home);
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR)
            .map(File::from)
            .map_err(|errno| {
                VerdictError::Journal(JournalError::Create {
                    path: path.clone(),
                    source: errno.into(),
                })
            })?;
        let bytes = load(&path).map_err(VerdictError::Journal)?;
        let Read {
            chain,
            lines,
            whole,
        } = read(&path, &bytes)?;
        if whole < bytes.len() as u64 {
            // Half a line: whoever wrote it was killed before anything came of it.
            file.set_len(whole)
                .map_err(|source| write_failed(&path, source))?;
        }
        roll_forward(&path, store, &lines)?;
        Ok(Self {
            path,
            file,
            chain,
            length: whole,
        })
    }

    /// Adds a verdict. It is on the disk when this returns.
    pub(super) fn append(&mut self, verdict: &Verdict) -> Result<VerdictLine, VerdictError> {
        let sequence = self.chain.lines();
        let line = self
            .chain
            .append(verdict.at_us, verdict)
            .map_err(|source| JournalError::Encode {
                path: self.path.clone(),
                source,
            })?;
        let length = self.length + line.len() as u64;
        if length > MAX_JOURNAL_BYTES {
            let path = self.path.clone();
            return Err(JournalError::Full { path }.into());
        }
        let written = self.file.write_all(line.as_bytes());
        if let Err(source) = written.and_then(|()| self.file.sync_data()) {
            // Nothing was decided. Should this fail as well, half a line is no line.
            let _ = self.file.set_len(self.length);
            return Err(write_failed(&self.path, source));
        }
        durable::sync_directory(durable::parent(&self.path))?;
        self.length = length;
        Ok(VerdictLine {
            sequence,
            head: self.chain.head().to_owned(),
            length,
        })
    }
}

fn write_failed(path: &Path, source: std::io::Error) -> VerdictError {
    VerdictError::Journal(JournalError::Write {
        path: path.to_owned(),
        source,
    })
}

struct Read {
    chain: Chain,
    lines: Vec<(VerdictLine, Verdict)>,
    /// Bytes of whole lines.
    whole: u64,
}

fn read(path: &Path, bytes: &[u8]) -> Result<Read, VerdictError> {
    let mut follow = Lines::<Verdict>::of(bytes);
    let mut lines = Vec::new();
    let mut whole = 0;
    while let Some(line) = follow.next() {
        let line = match line {
            Ok(line) => line,
            Err(ChainError::CutOff { .. }) => break,
            Err(source) => {
                let path = path.to_owned();
                return Err(JournalError::Verify { path, source }.into());
            }
        };
        let rest = &bytes[whole as usize..];
        let end = rest.iter().position(|&byte| byte == b'\n');
        whole += end.map_or(rest.len(), |end| end + 1) as u64;
        let known = VerdictLine {
            sequence: line.sequence,
            head: follow.head().to_owned(),
            length: whole,
        };
        lines.push((known, line.event));
    }
    Ok(Read {
        chain: follow.go_on(),
        lines,
        whole,
    })
}

/// What the log has and the store lacks was cut off between the two. The other way round, somebody
/// took lines away.
fn roll_forward(path: &Path, store: &Store, lines: &[(VerdictLine, Verdict)]) -> Result<(), Error> {
    let from = match store.last_verdict_line()? {
        None => 0,
        Some(last) => {
            let known = lines.get(last.sequence as usize).map(|(line, _)| line);
            if known != Some(&last) {
                let path = path.to_owned();
                return Err(VerdictError::Disagree { path }.into());
            }
            last.sequence as usize + 1
        }
    };
    for (line, verdict) in &lines[from..] {
        store.insert_verdict(line, verdict)?;
    }
    Ok(())
}

/// Brings the store to where the log is. Costs a look at the file's length where it is there.
pub(super) fn settle(home: &Home, store: &Store) -> Result<(), Error> {
    let path = path(home);
    let known = store.last_verdict_line()?;
    let length = match rustix::fs::lstat(&path) {
        Ok(stat) => Some(stat.st_size.cast_unsigned()),
        Err(Errno::NOENT) => None,
        Err(errno) => {
            let source = errno.into();
            return Err(VerdictError::Journal(JournalError::Read { path, source }).into());
        }
    };
    match (&known, length) {
        (None, None | Some(0)) => Ok(()),
        (Some(known), Some(length)) if known.length == length => Ok(()),
        (Some(_), None) => Err(VerdictError::Disagree { path }.into()),
        _ => {
            let _lock = FileLock::wait(&lock_path(home), || {})?;
            Log::open(home, store).map(|_| ())
        }
    }
}

/// All verdicts on a run, in order, from the log itself.
pub fn history(home: &Home, store: &Store, run: &str) -> Result<Vec<Verdict>, Error> {
    settle(home, store)?;
    let path = path(home);
    if store.last_verdict_line()?.is_none() {
        return Ok(Vec::new());
    }
    let bytes = load(&path).map_err(VerdictError::Journal)?;
    let lines = read(&path, &bytes)?.lines;
    roll_forward(&path, store, &lines)?;
    let own = lines.into_iter().map(|(_, verdict)| verdict);
    Ok(own.filter(|verdict| verdict.run == run).collect())
}
