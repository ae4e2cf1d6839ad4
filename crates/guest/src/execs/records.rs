//! What a warden says of its exec: that it started, how it ended, and that nothing is left.

use std::time::Instant;

use ringfence_jail::warden::{NotStartedAt, RECORD, Record};
use ringfence_model::wire::{Failure, Leftovers};
use rustix::io::Errno;
use rustix::process::Signal;

use super::{Ended, Exec, Kill};
use crate::failure;

/// How the warden's records ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Word {
    None,
    /// Nothing of the exec is left: the warden said so.
    Last,
    /// Without a word: the agent killed it.
    Missing,
}

impl Exec {
    /// Takes what the warden says; how its records ended, where they end now.
    pub(super) fn read_records(&mut self) -> Word {
        let Some(records) = &self.records else {
            return Word::None;
        };
        let mut chunk = [0u8; 4 * RECORD];
        match rustix::io::read(records, &mut chunk) {
            Ok(0) => {
                self.records = None;
                if self.word == Word::None {
                    self.word = Word::Missing;
                }
                // A warden that went without a word was killed by the agent it looked after.
                if self.ended.is_none() {
                    self.end(None, Some(Signal::KILL.as_raw()), None, 0, 0);
                }
                return self.word;
            }
            Ok(count) => self.partial_record.extend_from_slice(&chunk[..count]),
            Err(_) => return Word::None,
        }
        while let Some((bytes, _)) = self.partial_record.split_first_chunk::<RECORD>() {
            let record = Record::decode(bytes);
            self.partial_record.drain(..RECORD);
            match record {
                Some(Record::Started { pid }) => self.leader = Some(pid),
                Some(Record::NotStarted { errno, at }) => {
                    let errno = Errno::from_raw_os_error(errno);
                    let failure = match at {
                        NotStartedAt::Directory => failure("enter", self.cwd.as_bytes(), errno),
                        NotStartedAt::Program => failure("execute", self.program.as_bytes(), errno),
                        NotStartedAt::Limits => failure("prepare", self.program.as_bytes(), errno),
                    };
                    // As a shell says it: 127 not found, 126 found and not executable.
                    let code = if errno == Errno::NOENT { 127 } else { 126 };
                    self.end(Some(code), None, Some(failure), 0, 0);
                }
                Some(Record::Ended {
                    code,
                    signal,
                    cpu_us,
                    peak_kib,
                    alone,
                }) if self.ended.is_none() => {
                    self.alone = alone;
                    self.end(code, signal, None, cpu_us / 1000, peak_kib * 1024);
                }
                Some(Record::NothingLeft) => self.word = Word::Last,
                Some(Record::Ended { .. }) | None => {}
            }
        }
        Word::None
    }

    fn end(
        &mut self,
        code: Option<i32>,
        signal: Option<i32>,
        not_started: Option<Failure>,
        cpu_ms: u64,
        peak_bytes: u64,
    ) {
        self.ended = Some(Ended {
            at: Instant::now(),
            code,
            signal,
            not_started,
            cpu_ms,
            peak_bytes,
        });
        self.deadline = None;
        if self.leftovers == Leftovers::Kill {
            self.kill = Some(Kill::Now);
        }
    }
}
