//! Everything but pid 1 stands still for a moment, so that a layer can be copied as one.
//!
//! Without a cgroup of our own, standing still is SIGSTOP to all. What was stopped before stays
//! stopped afterwards.
//!
//! HOSTILE: a stop can be undone from within the kernel: by a timer or a file that was told to send
//! SIGCONT. That cannot be prevented, so it is found out: what each thread has run is noted when
//! all have stopped, and compared before they go on.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use ringfence_model::wire::{Exec, Failure, Reply};
use rustix::io::Errno;
use rustix::process::Signal;

use crate::connection::Connection;
use crate::failure;
use crate::observe::Observer;
use crate::processes::{self, Process};

/// BOUND: a process takes its stop when it leaves the kernel; who needs longer is stuck in there.
const WITHIN: Duration = Duration::from_secs(2);
/// BOUND: what waits in the kernel for this long (a `vfork` for its stopped child) does not run.
const WAITING: Duration = Duration::from_millis(300);
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Whether processes may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum World {
    Moves,
    StandsStill,
}

/// What was seen when everything stood still; absent where nothing is frozen.
#[derive(Debug, Default)]
pub struct Freezer {
    frozen: Option<Frozen>,
}

#[derive(Debug)]
struct Frozen {
    /// Who had stopped before.
    stopped: Vec<i32>,
    threads: Threads,
}

/// Every thread by process and own id.
type Threads = BTreeMap<(i32, i32), Thread>;

/// A thread and what it has run: it cannot run without changing this.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Thread {
    state: u8,
    started: Vec<u8>,
    /// Time on a processor, time waiting for one, and how often it got one.
    schedule: Vec<u8>,
    /// How often it left one. For kernels that do not count the above.
    switches: Vec<u8>,
    runs: Runs,
}

/// What the scheduler says of a thread, where it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Runs {
    /// It is on a processor or waits for one, whatever its state says: on a busy machine it can be long on
    /// its way to its stop.
    Yes,
    No,
}

impl Freezer {
    pub fn world(&self) -> World {
        match self.frozen {
            Some(_) => World::StandsStill,
            None => World::Moves,
        }
    }

    /// Stops everything and waits until it has stopped.
    /// Who waits for the observer's answer gets it, and stops then.
    pub fn freeze(&mut self, observer: &mut Observer, connection: &mut Connection) -> Reply {
        if self.frozen.is_some() {
            return Reply::Done;
        }
        let is_stopped = |process: &&Process| process.stopped;
        let all = processes::all();
        let stopped = all.iter().filter(is_stopped).map(|p| p.pid).collect();
        let began = Instant::now();
        let mut before = None;
        processes::signal_all(Signal::STOP);
        loop {
            observer.advance(connection);
            observer.let_all_begin();
            let threads = threads();
            if moving(&threads, began.elapsed()) > 0 || observer.is_amid_exec() {
                processes::signal_all(Signal::STOP);
                before = None;
            } else if before.as_ref() == Some(&threads) {
                // A thread shows its stop a moment before it is off its processor: seen twice.
                self.frozen = Some(Frozen { stopped, threads });
                return Reply::Done;
            } else {
                before = Some(threads);
            }
            if began.elapsed() > WITHIN {
                processes::go_on(&stopped);
                return Reply::Failed(failure("freeze", b"processes", Errno::BUSY));
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Lets everything go on that went on before, and says how many threads had not stood still.
    pub fn thaw(&mut self) -> Reply {
        let Some(frozen) = self.frozen.take() else {
            return Reply::Thawed { ran: 0 };
        };
        let ran = differing(&frozen.threads, &threads());
        processes::go_on(&frozen.stopped);
        Reply::Thawed { ran }
    }
}

/// Nothing is started where nothing may run.
pub fn refuse(exec: &Exec) -> Reply {
    Reply::Failed(Failure {
        operation: "start".to_owned(),
        subject: exec.argv.first().cloned().unwrap_or_default(),
        errno: Errno::AGAIN.raw_os_error(),
        reason: "frozen".to_owned(),
    })
}

/// How many threads ran, appeared or vanished.
fn differing(before: &Threads, after: &Threads) -> u64 {
    let changed = before
        .iter()
        .filter(|(id, thread)| after.get(id) != Some(thread))
        .count();
    let appeared = after.keys().filter(|id| !before.contains_key(id)).count();
    (changed + appeared) as u64
}

/// How many threads may still run.
fn moving(threads: &Threads, waited: Duration) -> usize {
    let moves = |thread: &&Thread| match thread.state {
        b'T' | b't' => thread.runs == Runs::Yes,
        b'D' => waited <= WAITING,
        _ => true,
    };
    threads.values().filter(moves).count()
}

/// All threads but that of pid 1, and but those that have ended.
fn threads() -> Threads {
    let mut found = Threads::new();
    for process in processes::all() {
        if process.pid == 1 || process.zombie {
            continue;
        }
        let tasks = fs::read_dir(format!("/proc/{}/task", process.pid));
        for task in tasks.into_iter().flatten().flatten() {
            let id = task.file_name().to_str().and_then(|name| name.parse().ok());
            if let Some(id) = id
                && let Some(thread) = thread(&task.path())
            {
                found.insert((process.pid, id), thread);
            }
        }
    }
    found
}

fn thread(task: &Path) -> Option<Thread> {
    let stat = fs::read(task.join("stat")).ok()?;
    // HOSTILE: the name in parentheses may hold anything.
    let end = stat.iter().rposition(|&byte| byte == b')')?;
    let mut fields = stat.get(end + 2..)?.split(|&byte| byte == b' ');
    let state = *fields.next()?.first()?;
    if matches!(state, b'Z' | b'X') {
        return None;
    }
    let status = fs::read(task.join("status")).unwrap_or_default();
    let switches: Vec<&[u8]> = status
        .split(|&byte| byte == b'\n')
        .filter(|line| line.windows(14).any(|word| word == b"_ctxt_switches"))
        .collect();
    Some(Thread {
        state,
        // Field 22 of the line; the state is its third.
        started: fields.nth(18)?.to_vec(),
        schedule: fs::read(task.join("schedstat")).unwrap_or_default(),
        switches: switches.concat(),
        runs: match fs::read(task.join("syscall")) {
            Ok(told) if told.starts_with(b"running") => Runs::Yes,
            _ => Runs::No,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(state: u8, schedule: &[u8]) -> Thread {
        Thread {
            state,
            started: b"7".to_vec(),
            schedule: schedule.to_vec(),
            switches: Vec::new(),
            runs: Runs::No,
        }
    }

    #[test]
    fn who_is_on_its_way_to_a_stop_still_moves() {
        let mut thread = one(b'T', b"10 0 1");
        let moves = |thread: &Thread| {
            let threads = Threads::from([((2, 2), thread.clone())]);
            moving(&threads, Duration::ZERO)
        };
        assert_eq!(moves(&thread), 0);
        thread.runs = Runs::Yes;
        assert_eq!(moves(&thread), 1);
    }

    #[test]
    fn who_ran_appeared_or_vanished_is_counted() {
        let before = Threads::from([
            ((2, 2), one(b'T', b"10 0 1")),
            ((3, 3), one(b'T', b"10 0 1")),
            ((3, 4), one(b'T', b"10 0 1")),
        ]);
        assert_eq!(differing(&before, &before), 0);
        let after = Threads::from([
            ((2, 2), one(b'T', b"10 0 1")),
            ((3, 3), one(b'T', b"12 0 2")),
            ((5, 5), one(b'R', b"0 0 1")),
        ]);
        assert_eq!(differing(&before, &after), 3);
    }

    #[test]
    fn a_thread_of_ours_is_read_whole() {
        let thread = thread(Path::new("/proc/thread-self")).unwrap();
        assert_eq!(thread.state, b'R');
        assert!(!thread.schedule.is_empty());
        assert_eq!(
            thread
                .switches
                .windows(14)
                .filter(|w| w == b"_ctxt_switches")
                .count(),
            2
        );
        let started: u64 = String::from_utf8(thread.started).unwrap().parse().unwrap();
        assert!(started > 0);
    }
}
