//! Processes that have executed something: which exec each one is, and how it ends.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use ringfence_jail::observe::{Ending, Endings, ended_how};
use ringfence_model::observed::Exit;

use crate::processes::{self, Process};

/// BOUND: how far up a process is looked for that has executed something.
const GENERATIONS: usize = 64;
/// BOUND: execs of one process that are remembered, and programs.
const EARLIER: usize = 16;
const REMEMBERED: usize = 4096;

#[derive(Debug)]
pub struct Table {
    endings: Endings,
    known: BTreeMap<i32, Known>,
    /// The last exec of each program, also of processes that are gone.
    last_of: BTreeMap<Vec<u8>, u64>,
}

#[derive(Debug)]
struct Known {
    started: u64,
    exec: u64,
    parent: Option<u64>,
    stream: u32,
    exe: Vec<u8>,
    /// What the process was before, the latest last.
    earlier: Vec<(Vec<u8>, u64)>,
    since: Instant,
    /// Absent where the end cannot be waited for: no descriptor is left.
    handle: Option<OwnedFd>,
}

/// Where a new exec stands.
#[derive(Debug)]
pub struct Position {
    pub started: u64,
    pub parent: Option<u64>,
    pub parent_pid: i32,
    pub replaces: Option<u64>,
}

impl AsFd for Table {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.endings.as_fd()
    }
}

impl Table {
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            endings: Endings::new()?,
            known: BTreeMap::new(),
            last_of: BTreeMap::new(),
        })
    }

    /// A process became this exec, which `by` asked for.
    pub fn executed(
        &mut self,
        process: i32,
        exec: u64,
        stream: u32,
        exe: &[u8],
        by: Option<u64>,
    ) -> Position {
        let seen = processes::read(process);
        let started = seen.as_ref().map_or(0, |seen| seen.started);
        let parent_pid = seen.as_ref().map_or(0, |seen| seen.parent);
        let before = match self.known.remove(&process) {
            Some(before) if before.started == started => Some(before),
            Some(other) => {
                other.forget(&self.endings);
                None
            }
            None => None,
        };
        let replaces = before.as_ref().map(|before| before.exec);
        let parent = match &before {
            Some(before) => before.parent,
            // HOSTILE: who is above it by now may be somebody who took it in.
            None => by,
        };
        if self.last_of.len() < REMEMBERED || self.last_of.contains_key(exe) {
            self.last_of.insert(exe.to_vec(), exec);
        }
        let mut earlier = Vec::new();
        let handle = before.and_then(|before| {
            earlier = before.earlier;
            earlier.push((before.exe, before.exec));
            earlier.drain(..earlier.len().saturating_sub(EARLIER));
            before.handle
        });
        let handle = handle.or_else(|| self.endings.add(process, process as u64).ok());
        self.known.insert(
            process,
            Known {
                started,
                exec,
                parent,
                stream,
                exe: exe.to_vec(),
                earlier,
                since: Instant::now(),
                handle,
            },
        );
        Position {
            started,
            parent,
            parent_pid,
            replaces,
        }
    }

    /// The exec that a thread belongs to: its process, or the nearest above that executed anything.
    pub fn exec_of(&self, thread: i32) -> Option<u64> {
        if let Some(known) = self.known.get(&thread) {
            return Some(known.exec);
        }
        let process = who(thread).process;
        let exe = super::paths::link(process, "exe");
        let found = self
            .known_above(process)
            .or_else(|| self.known_beside(&processes::read(process)?));
        // HOSTILE: who has another parent, group or program by now is not what forked it. Of execs
        // the one that it still runs is its own; else nobody's.
        found
            .and_then(|known| known.running(&exe))
            .or_else(|| self.last_of.get(&exe).copied())
    }

    /// For an orphan: what made its group or its session.
    fn known_beside(&self, orphan: &Process) -> Option<&Known> {
        [orphan.group, orphan.session]
            .iter()
            .find_map(|process| self.known.get(process))
    }

    fn known_above(&self, process: i32) -> Option<&Known> {
        let mut process = process;
        for _ in 0..GENERATIONS {
            if let Some(known) = self.known.get(&process) {
                return Some(known);
            }
            if process <= 1 {
                return None;
            }
            process = processes::read(process)?.parent;
        }
        None
    }

    /// Those that have ended: command, process, and how.
    pub fn ended(&mut self, now: Instant) -> Vec<(u32, i32, Exit)> {
        let mut all = Vec::new();
        loop {
            let tokens = self.endings.ended();
            let known = |token: &u64| self.known.contains_key(&(*token as i32));
            if !tokens.iter().any(known) {
                return all;
            }
            for token in tokens {
                let process = token as i32;
                if let Some(known) = self.known.remove(&process) {
                    all.push((known.stream, process, known.exit(process, now)));
                    known.forget(&self.endings);
                }
            }
        }
    }
}

impl Known {
    /// The exec of this process that ran this program, the latest first.
    fn running(&self, exe: &[u8]) -> Option<u64> {
        // A file may have been deleted since.
        let exe = match exe.strip_suffix(b" (deleted)") {
            Some(whole) if self.exe != exe => whole,
            _ => exe,
        };
        if self.exe == exe {
            return Some(self.exec);
        }
        let mut earlier = self.earlier.iter().rev();
        earlier.find(|(was, _)| was == exe).map(|(_, exec)| *exec)
    }

    fn forget(&self, endings: &Endings) {
        if let Some(handle) = &self.handle {
            endings.remove(handle);
        }
    }

    /// How it ended: from what is left of it, or from the kernel's own note where it is gone.
    fn exit(&self, process: i32, now: Instant) -> Exit {
        let left =
            processes::read(process).filter(|left| left.started == self.started && left.zombie);
        let ending = left
            .as_ref()
            .and_then(Process::status)
            .map(Ending::of_status)
            .or_else(|| ended_how(self.handle.as_ref()?.as_fd()));
        let (code, signal) = match ending {
            Some(Ending::Code(code)) => (Some(code), None),
            Some(Ending::Signal(signal)) => (None, Some(signal)),
            None => (None, None),
        };
        Exit {
            exec: self.exec,
            code,
            signal,
            duration_us: now.duration_since(self.since).as_micros() as u64,
            cpu_us: left.as_ref().map(Process::cpu_us),
        }
    }
}

/// The process that a thread is of, and how many threads it has.
#[derive(Clone, Copy, Debug)]
pub struct Who {
    pub process: i32,
    pub threads: u32,
}

pub fn who(thread: i32) -> Who {
    let status = status(&format!("/proc/{thread}/status"));
    Who {
        process: number(&status, "Tgid:").unwrap_or(thread),
        threads: number(&status, "Threads:").unwrap_or(1) as u32,
    }
}

/// Whether somebody inside traces a thread of it.
pub fn is_debugged(process: i32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{process}/task"));
    threads.into_iter().flatten().flatten().any(|thread| {
        let status = status(&thread.path().join("status").to_string_lossy());
        number(&status, "TracerPid:").is_some_and(|tracer| tracer > 1)
    })
}

fn status(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// HOSTILE: the name comes first, and has no newline: the kernel escapes it.
fn number(status: &str, field: &str) -> Option<i32> {
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    line.trim().parse().ok()
}
