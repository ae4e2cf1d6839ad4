//! Processes that begin, held back where a crowd starts more and more.
//!
//! The kernel shares processors among processes, and a storm of them has nearly all: while it rises, nobody
//! else on the machine runs. So those of a crowd begin no faster than this, and wait otherwise:
//!
//! ```text
//! early call of its C library ──▶ few in this turn, or no crowd ──▶ goes on at once
//!                            └──▶ else waits for another turn; commands are served round-robin
//! ```
//!
//! Threads make that call as well, and wait like processes.
//!
//! It is no bound: who makes processes without a C library is not held back. It keeps the processors of everybody
//! else free from what runs away by mistake, and until a storm is known for one (`execs/storm.rs`).

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use ringfence_jail::observe::Shown;
use ringfence_jail::processors;

use crate::processes;

/// BOUND: what is counted together.
const TURN: Duration = Duration::from_millis(50);
/// BOUND: as many in a turn for each processor are few: 320 in a second. A program that a shell forks and executes begins twice.
const FEW: usize = 16;
/// BOUND: so many processes are a crowd.
const CROWD: usize = 64;
/// BOUND: after as many more it is looked again whether there is one.
const UNCOUNTED: usize = 16;

#[derive(Debug)]
pub(super) struct Begins {
    few: usize,
    turn: Turn,
    /// By the stream of their command; none is empty.
    held: BTreeMap<u32, VecDeque<Shown>>,
    /// The stream of the command that was served last: they are served round-robin.
    last: u32,
}

#[derive(Debug)]
struct Turn {
    began: Instant,
    let_go: usize,
    uncounted: usize,
}

impl Turn {
    fn at(now: Instant) -> Self {
        Self {
            began: now,
            let_go: 0,
            uncounted: 0,
        }
    }
}

impl Begins {
    pub fn new() -> Self {
        Self {
            few: FEW * processors(),
            turn: Turn::at(Instant::now()),
            held: BTreeMap::new(),
            last: 0,
        }
    }

    /// Whether a new process may continue now. It never overtakes those that already wait.
    pub fn may_pass(&mut self, now: Instant, is_crowd: impl Fn() -> bool) -> bool {
        self.held.is_empty() && self.may_go_on(now, is_crowd)
    }

    /// Whether one more may go on now.
    fn may_go_on(&mut self, now: Instant, is_crowd: impl Fn() -> bool) -> bool {
        if now >= self.turn_ends() {
            self.turn = Turn::at(now);
        }
        let turn = &mut self.turn;
        if turn.let_go >= self.few {
            if turn.uncounted == 0 {
                if is_crowd() {
                    return false;
                }
                turn.uncounted = UNCOUNTED;
            }
            turn.uncounted -= 1;
        }
        turn.let_go += 1;
        true
    }

    pub fn hold(&mut self, stream: u32, shown: Shown) {
        self.held.entry(stream).or_default().push_back(shown);
    }

    /// Those that may go on in a turn that begins. Who does not wait any more is forgotten.
    pub fn next(
        &mut self,
        now: Instant,
        is_crowd: impl Fn() -> bool + Copy,
        still_waits: impl Fn(u32, &Shown) -> bool,
    ) -> Vec<(u32, Shown)> {
        let mut next = Vec::new();
        if now < self.turn_ends() {
            return next;
        }
        // HOSTILE: whole crowds may be killed while they wait.
        self.held.retain(|&stream, held| {
            held.retain(|shown| still_waits(stream, shown));
            !held.is_empty()
        });
        while !self.held.is_empty() && self.may_go_on(now, is_crowd) {
            next.extend(self.pop());
        }
        next
    }

    /// The process that has waited longest, of the next command round-robin.
    fn pop(&mut self) -> Option<(u32, Shown)> {
        let after = self.held.range(self.last.saturating_add(1)..).next();
        let (&stream, _) = after.or_else(|| self.held.first_key_value())?;
        self.last = stream;
        let held = self.held.get_mut(&stream)?;
        let shown = held.pop_front();
        if held.is_empty() {
            self.held.remove(&stream);
        }
        shown.map(|shown| (stream, shown))
    }

    /// All of them.
    pub fn all(&mut self) -> impl Iterator<Item = (u32, Shown)> {
        let all = std::mem::take(&mut self.held).into_iter();
        all.flat_map(|(stream, held)| held.into_iter().map(move |shown| (stream, shown)))
    }

    /// How long those that are held back wait.
    pub fn next_wake(&self, now: Instant) -> Option<Duration> {
        let wait = self.turn_ends().saturating_duration_since(now);
        (!self.held.is_empty()).then_some(wait)
    }

    fn turn_ends(&self) -> Instant {
        self.turn.began + TURN
    }
}

/// Whether there are so many inside.
pub(super) fn is_crowd() -> bool {
    processes::pids().nth(CROWD - 1).is_some()
}

#[cfg(test)]
mod tests {
    use ringfence_jail::observe::Asked;

    use super::*;

    fn shown(thread: i32) -> Shown {
        Shown {
            id: thread as u64,
            thread,
            asked: Asked::Begin,
        }
    }

    fn threads(next: &[(u32, Shown)]) -> Vec<i32> {
        next.iter().map(|(_, shown)| shown.thread).collect()
    }

    #[test]
    fn few_begin_at_once_and_so_do_many_that_are_no_crowd() {
        let mut begins = Begins::new();
        let now = begins.turn.began;
        for _ in 0..begins.few {
            assert!(begins.may_go_on(now, || true));
        }
        assert!(!begins.may_go_on(now, || true));
        for _ in 0..1000 {
            assert!(begins.may_go_on(now, || false));
        }
        // Each turn has its own.
        assert!(begins.may_go_on(now + TURN, || true));
    }

    #[test]
    fn a_crowd_waits_for_its_turn_and_no_command_for_another() {
        let mut begins = Begins::new();
        let now = begins.turn.began;
        begins.few = 3;
        for thread in 0..5 {
            begins.hold(1, shown(thread));
        }
        begins.hold(2, shown(10));
        assert_eq!(begins.next_wake(now), Some(TURN));
        let mut next = |after: Duration| threads(&begins.next(now + after, || true, |_, _| true));
        assert_eq!(next(TURN / 2), [0; 0]);
        assert_eq!(next(TURN), [0, 10, 1]);
        assert_eq!(next(TURN), [0; 0]);
        // A new process does not overtake those that wait, even when a turn is over.
        assert!(!begins.may_pass(now + TURN * 2, || false));
        begins.hold(2, shown(11));
        let mut next = |after: Duration| threads(&begins.next(now + after, || true, |_, _| true));
        // Stream 1 was served last, so stream 2 is next.
        assert_eq!(next(TURN * 2), [11, 2, 3]);
        assert_eq!(next(TURN * 3), [4]);
        assert_eq!(begins.next_wake(now), None);
        assert!(begins.may_pass(now + TURN * 4, || true));
    }

    #[test]
    fn who_was_killed_while_it_waited_takes_no_place() {
        let mut begins = Begins::new();
        let now = begins.turn.began;
        begins.few = 1;
        for thread in 0..1000 {
            begins.hold(1, shown(thread));
        }
        let next = begins.next(now + TURN, || true, |_, shown| shown.thread >= 998);
        assert_eq!(threads(&next), [998]);
        assert_eq!(
            begins
                .all()
                .map(|(_, shown)| shown.thread)
                .collect::<Vec<_>>(),
            [999]
        );
        assert_eq!(begins.all().count(), 0);
    }
}
