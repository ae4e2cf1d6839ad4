//! Waiting for a program that may be stuck, and ending it with all that it started.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, Signal};

/// BOUND: git starts a handful of processes; this ends a walk that would not.
const MAX_PROCESSES: usize = 1000;

/// Waits until there is something to read, or the end; false where nothing came in time.
pub(crate) fn wait(from: impl AsFd, bound: Duration) -> io::Result<bool> {
    let bound = Timespec {
        tv_sec: i64::try_from(bound.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: bound.subsec_nanos().into(),
    };
    loop {
        let mut polled = [PollFd::new(&from, PollFlags::IN)];
        match rustix::event::poll(&mut polled, Some(&bound)) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Kills whatever a process started, and what that started. The process itself is the caller's: as
/// long as he has not waited for it, its number is not another's.
pub(crate) fn kill_below(pid: u32) {
    let mut pending = vec![pid];
    let mut seen = 0;
    while let Some(parent) = pending.pop() {
        for child in children(parent) {
            seen += 1;
            if seen > MAX_PROCESSES {
                return;
            }
            pending.push(child);
        }
        let raw = i32::try_from(parent).ok().and_then(Pid::from_raw);
        if let Some(raw) = raw.filter(|_| parent != pid) {
            // It may be gone already.
            let _ = rustix::process::kill_process(raw, Signal::KILL);
        }
    }
}

fn children(pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return found;
    };
    for thread in threads.flatten() {
        let text = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        found.extend(
            text.split_ascii_whitespace()
                .filter_map(|word| word.parse::<u32>().ok()),
        );
    }
    found
}
