//! Processes that begin, held back where a crowd starts more and more.
//!
//! The kernel shares processors among processes, and a storm of them has nearly all: while it rises, nobody
//! else on the machine runs. So those of a crowd begin no faster than this, and wait otherwise:
//!
//! ```text
//! first call of its C library ──▶ few in this turn, or no crowd ──▶ goes on at once
//!                            └──▶ else waits for another turn, in which each command has some
//! ```
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
/// BOUND: as many in a turn for each processor are few: 320 in a second. A program that is executed begins twice.
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
        }
    }

    /// Whether one more may go on now.
    pub fn may_go_on(&mut self, now: Instant, is_crowd: impl Fn() -> bool) -> bool {
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
        // One of each command in its turn.
        while !self.held.is_empty() {
            let streams: Vec<u32> = self.held.keys().copied().collect();
            for stream in streams {
                if !self.may_go_on(now, is_crowd) {
                    return next;
                }
                next.extend(self.pop(stream));
            }
        }
        next
    }

    fn pop(&mut self, stream: u32) -> Option<(u32, Shown)> {
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
        assert_eq!(next(TURN * 2), [2, 3, 4]);
        assert_eq!(begins.next_wake(now), None);
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
