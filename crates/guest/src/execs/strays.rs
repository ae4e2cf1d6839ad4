//! Strays: what belongs to no warden any more, hunted until nothing of it is left.
//!
//! A warden lives as long as anything it looks after, and adopts every orphan of it. So a child of
//! pid 1 that is no living warden of ours can only be there because an agent with a warden's uid
//! killed it. Such a process is in nobody's account and must not live on outside all bounds.
//!
//! ```text
//! warden ended without its last word ──▶ hunt every KILL_EVERY ──▶ nothing found, ROUNDS times
//! stray met by a regular look ─────────────▲
//! ```

use std::time::Instant;

use rustix::process::Signal;

use super::KILL_EVERY;
use crate::freeze::World;
use crate::processes::{self, Process};

/// BOUND: empty rounds before a hunt is over: processes move to a new parent while we look.
const ROUNDS: u32 = 3;

/// Who a warden is; a pid alone can be had again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub pid: i32,
    /// Absent where it had ended before we could look.
    pub started: Option<u64>,
}

impl Identity {
    /// A process that was just started by us.
    pub fn of(pid: i32) -> Self {
        Self {
            pid,
            started: processes::started(pid),
        }
    }

    fn is(self, process: &Process) -> bool {
        process.pid == self.pid && Some(process.started) == self.started
    }
}

/// The rounds that are still to be made.
#[derive(Debug, Default)]
pub(super) struct Hunt {
    rounds: u32,
    last: Option<Instant>,
}

impl Hunt {
    pub fn begin(&mut self) {
        self.rounds = ROUNDS;
    }

    pub fn is_on(&self) -> bool {
        self.rounds > 0
    }

    /// One round: kills every stray and all below it.
    pub fn go(&mut self, now: Instant, wardens: &[Identity], world: World) {
        let since = self.last.map(|last| now.saturating_duration_since(last));
        if since.is_some_and(|since| since < KILL_EVERY) {
            return;
        }
        self.last = Some(now);
        let before = processes::all();
        if found(&before, wardens).is_empty() {
            self.rounds = self.rounds.saturating_sub(1);
            return;
        }
        self.begin();
        if world == World::StandsStill {
            kill(&before, wardens);
            return;
        }
        // HOSTILE: one that forks and ends all the time is never there when its signal comes.
        // Everybody stands still for a moment; the kernel lets no fork past that.
        let stopped = processes::stop_all(&before);
        kill(&processes::all(), wardens);
        processes::go_on(&stopped);
    }
}

/// Whether there is any stray among these.
pub(super) fn any(all: &[Process], wardens: &[Identity]) -> bool {
    !found(all, wardens).is_empty()
}

fn found(all: &[Process], wardens: &[Identity]) -> Vec<i32> {
    all.iter()
        .filter(|process| process.parent == 1 && !process.zombie)
        .filter(|process| !wardens.iter().any(|warden| warden.is(process)))
        .map(|process| process.pid)
        .collect()
}

fn kill(all: &[Process], wardens: &[Identity]) {
    for root in found(all, wardens) {
        processes::send(root, Signal::KILL);
        for pid in processes::below(all, root) {
            processes::send(pid, Signal::KILL);
        }
    }
}
