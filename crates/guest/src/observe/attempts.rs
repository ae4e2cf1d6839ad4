//! Execs that failed. Looking a name up in `PATH` fails again and again until it is found: that is
//! one attempt, and none at all where it is found.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ringfence_model::ByteText;
use ringfence_model::observed::ExecFailed;
use rustix::io::Errno;

use super::ExecCall;

/// BOUND: after this long nobody is still looking.
const LOOKS_FOR: Duration = Duration::from_millis(200);
/// BOUND: attempts that are held back.
const HELD: usize = 1024;

/// A failed exec with the command that it belongs to.
pub type Failed = (u32, ExecFailed);

#[derive(Debug)]
pub struct Attempt {
    stream: u32,
    failed: ExecFailed,
    at: Instant,
}

impl Attempt {
    pub fn new(stream: u32, by: Option<u64>, call: &ExecCall, errno: Errno) -> Self {
        let argv = call.argv();
        Self {
            stream,
            failed: ExecFailed {
                by,
                pid: call.thread,
                asked: ByteText::from(call.asked()),
                argv: argv.kept,
                argv_cut: argv.cut,
                cwd: ByteText(call.cwd.clone()),
                errno: errno.raw_os_error(),
            },
            at: Instant::now(),
        }
    }

    fn name(&self) -> &[u8] {
        last_part(self.failed.asked.as_bytes())
    }
}

/// What a name is looked up by.
pub fn last_part(path: &[u8]) -> &[u8] {
    let start = path.iter().rposition(|&byte| byte == b'/');
    start.map_or(path, |slash| &path[slash + 1..])
}

/// Threads that look for something, with what they did not find.
#[derive(Debug, Default)]
pub struct Attempts {
    looking: BTreeMap<i32, Attempt>,
}

impl Attempts {
    /// Nothing was there; gives what can be told now.
    pub fn missed(&mut self, thread: i32, attempt: Attempt) -> Vec<Failed> {
        let mut told = Vec::new();
        if self.looking.len() >= HELD {
            told = self.all();
        }
        match self.looking.get_mut(&thread) {
            Some(before) if before.name() == attempt.name() => before.at = attempt.at,
            _ => {
                let before = self.looking.insert(thread, attempt);
                told.extend(before.map(|b| (b.stream, b.failed)));
            }
        }
        told
    }

    /// Something was there and could not be executed.
    pub fn failed(&mut self, thread: i32, attempt: Attempt) -> Vec<Failed> {
        let before = self.looking.remove(&thread);
        let other = before.filter(|before| before.name() != attempt.name());
        other
            .into_iter()
            .chain([attempt])
            .map(|a| (a.stream, a.failed))
            .collect()
    }

    /// A thread executed this.
    pub fn executed(&mut self, thread: i32, name: &[u8]) -> Vec<Failed> {
        let before = self.looking.remove(&thread);
        let other = before.filter(|before| before.name() != name);
        other.into_iter().map(|a| (a.stream, a.failed)).collect()
    }

    /// A thread has ended.
    pub fn ended(&mut self, thread: i32) -> Vec<Failed> {
        let before = self.looking.remove(&thread);
        before.into_iter().map(|a| (a.stream, a.failed)).collect()
    }

    /// What nobody can still be looking for.
    pub fn old(&mut self, now: Instant) -> Vec<Failed> {
        let is_old = |_: &i32, attempt: &mut Attempt| now.duration_since(attempt.at) >= LOOKS_FOR;
        let old = self.looking.extract_if(.., is_old);
        old.map(|(_, a)| (a.stream, a.failed)).collect()
    }

    pub fn all(&mut self) -> Vec<Failed> {
        let all = std::mem::take(&mut self.looking);
        all.into_values().map(|a| (a.stream, a.failed)).collect()
    }
}
