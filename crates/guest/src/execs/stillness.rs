//! Whether anything inside has run since all of it was looked at.
//!
//! Most agents wait most of the time: for a model, for a person. Looking at every process of a thousand of
//! them ten times a second fills a machine, so a look first asks what cannot be avoided by whoever does
//! anything: each process's own clock of processor time, and the last pid that was given to anybody.
//!
//! ```text
//! look k     clocks of those seen at k-1, last pid ──▶ all processes, their memory, bounds
//! look k+1   the same pids, clocks and last pid?   ──▶ nobody ran and nobody is new: nothing to look at
//! ```
//!
//! INVARIANT: clocks and pid are taken before the look that they stand for, so that whatever happens during
//! it is seen by the next one. A process that was not seen has a parent that ran, and a pid.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ringfence_jail::processor_time;

use super::last_pid::LastPid;
use crate::processes::Process;

/// BOUND: everything is looked at this often, whatever the clocks say.
const AT_LEAST_EVERY: Duration = Duration::from_secs(2);
/// A clock that counts in such steps is too coarse to say that nobody ran.
const COARSE: Duration = Duration::from_millis(1);

/// The clocks of everybody that was known, and the last pid.
#[derive(Debug, PartialEq, Eq)]
struct Moment {
    last_pid: i32,
    clocks: BTreeMap<i32, Duration>,
}

#[derive(Debug, Default)]
pub(super) struct Stillness {
    /// Everybody who was there at the last look.
    seen: Vec<i32>,
    /// When that look began; absent where it does not stand for everybody who was seen.
    before: Option<Moment>,
    looked: Option<Instant>,
    last_pid: LastPid,
}

impl Stillness {
    /// True if nobody ran since the last look; otherwise a look begins, and [`Self::saw`] ends it.
    pub fn holds(&mut self, now: Instant) -> bool {
        let moment = take(&mut self.last_pid, &self.seen);
        let recently = self
            .looked
            .is_some_and(|at| now.saturating_duration_since(at) < AT_LEAST_EVERY);
        if recently && moment.is_some() && moment == self.before {
            return true;
        }
        self.before = moment;
        self.looked = Some(now);
        false
    }

    /// Who was found by the look.
    pub fn saw(&mut self, all: &[Process]) {
        // We run whenever we look.
        let others = all.iter().filter(|process| process.pid != 1);
        self.seen = others.map(|process| process.pid).collect();
        // What somebody stopped is let go on by a look, perhaps not by this one.
        let is_stopped = all.iter().any(|process| process.stopped);
        let stands_for_all = |moment: &Moment| {
            moment.clocks.len() == self.seen.len()
                && self.seen.iter().all(|pid| moment.clocks.contains_key(pid))
        };
        self.before = self
            .before
            .take()
            .filter(|moment| !is_stopped && stands_for_all(moment));
    }

    /// We start somebody ourselves.
    pub fn disturb(&mut self) {
        self.before = None;
    }
}

/// `None` where a kernel does not tell, or somebody is gone.
fn take(last_pid: &mut LastPid, pids: &[i32]) -> Option<Moment> {
    let last_pid = last_pid.read()?;
    let clocks = pids.iter().map(|&pid| {
        let clock = processor_time(pid)?;
        let is_fine = clock.subsec_nanos() % COARSE.subsec_nanos() != 0;
        is_fine.then_some((pid, clock))
    });
    Some(Moment {
        last_pid,
        clocks: clocks.collect::<Option<_>>()?,
    })
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;
    use crate::processes;

    fn start(program: &str) -> Child {
        Command::new(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("started")
    }

    fn end(mut child: Child) {
        child.kill().expect("killed");
        child.wait().expect("waited for");
    }

    /// What the clocks of these say now, whoever else is on this machine.
    fn clocks(pids: &[i32]) -> BTreeMap<i32, Duration> {
        moment(pids).expect("clocks").clocks
    }

    fn moment(pids: &[i32]) -> Option<Moment> {
        take(&mut LastPid::default(), pids)
    }

    #[test]
    fn who_is_new_is_the_last() {
        let mut last_pid = LastPid::default();
        let before = take(&mut last_pid, &[]);
        let new = start("cat");
        // Others on this machine start programs too.
        assert_ne!(take(&mut last_pid, &[]), before);
        end(new);
    }

    /// Until it has begun and waits: its clock stands.
    fn settled(pid: i32) -> Duration {
        let clock = || moment(&[pid]).map(|moment| moment.clocks[&pid]);
        for _ in 0..600 {
            let before = clock();
            std::thread::sleep(Duration::from_millis(50));
            if let Some(before) = before.filter(|before| clock() == Some(*before)) {
                return before;
            }
        }
        panic!("{pid} does not come to rest");
    }

    #[test]
    fn the_least_work_moves_a_clock() {
        let mut waits = start("cat");
        let pid = waits.id() as i32;
        let before = settled(pid);
        let input = waits.stdin.as_mut().expect("input");
        std::io::Write::write_all(input, b"x").expect("written");
        let moved = (0..600).any(|_| {
            std::thread::sleep(Duration::from_millis(50));
            clocks(&[pid])[&pid] > before
        });
        assert!(moved, "its clock stands");
        end(waits);
        assert!(moment(&[pid]).is_none(), "who is gone has no clock");
    }

    #[test]
    fn a_moment_stands_for_those_it_knew() {
        let (one, other) = (start("cat"), start("cat"));
        let [a, b] = [one.id() as i32, other.id() as i32];
        settled(a);
        settled(b);
        let both = || [a, b].map(|pid| processes::read(pid).expect("there"));
        let now = Instant::now();
        let mut still = Stillness::default();
        assert!(!still.holds(now), "nothing was looked at");
        still.saw(&both());
        assert!(still.before.is_none(), "their clocks came after the look");
        assert!(!still.holds(now));
        still.saw(&both());
        assert_eq!(still.before.as_ref().expect("known").clocks.len(), 2);
        // Others on this machine start programs, so the pid is as it was.
        still.before = moment(&still.seen);
        let same = Moment {
            last_pid: still.before.as_ref().expect("known").last_pid,
            clocks: clocks(&[a, b]),
        };
        assert_eq!(still.before.as_ref(), Some(&same));
        still.saw(&both()[..1]);
        assert!(still.before.is_none(), "one of them was not seen");
        end(one);
        end(other);
    }

    #[test]
    fn everything_is_looked_at_now_and_then() {
        let mut still = Stillness::default();
        let began = Instant::now();
        assert!(!still.holds(began));
        still.saw(&[]);
        assert!(!still.holds(began + AT_LEAST_EVERY));
        still.disturb();
        assert!(!still.holds(began + AT_LEAST_EVERY));
    }
}
