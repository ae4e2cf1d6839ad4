//! Everything but pid 1 stands still for a moment, so that a layer can be copied as one.
//!
//! Without a cgroup of our own, standing still is SIGSTOP to all. What was stopped before stays
//! stopped afterwards.

use std::fs;
use std::time::{Duration, Instant};

use ringfence_model::wire::Reply;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::failure;
use crate::processes::{self, Process};

/// BOUND: a process takes its stop when it leaves the kernel; who needs longer is stuck in there.
const WITHIN: Duration = Duration::from_secs(2);
/// BOUND: what waits in the kernel for this long (a `vfork` for its stopped child) does not run.
const WAITING: Duration = Duration::from_millis(300);
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Who stood still before; absent where nothing is frozen.
#[derive(Debug, Default)]
pub struct Freezer {
    before: Option<Vec<i32>>,
}

impl Freezer {
    /// Stops everything and waits until it has stopped.
    pub fn freeze(&mut self) -> Reply {
        if self.before.is_some() {
            return Reply::Done;
        }
        let stopped = |process: &&Process| process.stopped;
        let all = processes::all();
        self.before = Some(all.iter().filter(stopped).map(|p| p.pid).collect());
        let began = Instant::now();
        loop {
            signal_all(Signal::STOP);
            let waiting = if began.elapsed() > WAITING {
                Waiting::IsStill
            } else {
                Waiting::Moves
            };
            if moving(waiting) == 0 {
                return Reply::Done;
            }
            if began.elapsed() > WITHIN {
                self.thaw();
                return Reply::Failed(failure("freeze", b"processes", Errno::BUSY));
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Lets everything go on that went on before.
    pub fn thaw(&mut self) -> Reply {
        let Some(before) = self.before.take() else {
            return Reply::Thawed { ran: 0 };
        };
        if before.is_empty() {
            signal_all(Signal::CONT);
            return Reply::Thawed { ran: 0 };
        }
        for process in processes::all() {
            if process.pid != 1 && !before.contains(&process.pid) {
                processes::send(process.pid, Signal::CONT);
            }
        }
        Reply::Thawed { ran: 0 }
    }
}

/// Everything in this namespace but pid 1, as the kernel counts it: nothing forks past it.
fn signal_all(signal: Signal) {
    // The group of pid 1, negated, is what kill(2) calls everybody. Nobody there is as good.
    let _ = kill_process_group(Pid::INIT, signal);
}

/// What a process is that waits in the kernel.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waiting {
    Moves,
    IsStill,
}

/// How many threads may still run.
fn moving(waiting: Waiting) -> usize {
    let mut count = 0;
    for process in processes::all() {
        if process.pid == 1 || process.zombie {
            continue;
        }
        let tasks = fs::read_dir(format!("/proc/{}/task", process.pid));
        for task in tasks.into_iter().flatten().flatten() {
            let Ok(stat) = fs::read(task.path().join("stat")) else {
                continue;
            };
            let state = stat
                .iter()
                .rposition(|&byte| byte == b')')
                .and_then(|end| stat.get(end + 2));
            match state {
                Some(b'T' | b't' | b'Z' | b'X') | None => {}
                Some(b'D') if waiting == Waiting::IsStill => {}
                Some(_) => count += 1,
            }
        }
    }
    count
}
