//! A storm of processes, ended while it rises.
//!
//! The kernel refuses what is beyond a sandbox's bound of processes, and a command that meets it goes on as
//! best it can. But one that forks without end keeps hundreds of processes coming and going, and everybody
//! else on the machine waits behind them for as long as it is let. So it is let no longer than it takes to
//! know it:
//!
//! ```text
//! most of the processes that there may be are there,
//! and within a second so many were started as there may be, at least 256 for each processor ──▶ storm
//! ```
//!
//! A build that fills a large machine starts fewer for each processor, and a crowd that stays starts none.
//!
//! To look at each of them takes longer than a storm takes to rise. The last pid is one number, and how many
//! there are is a list of names. Only when everybody stands still, each is looked at: of several commands those are
//! ended that have their share of what is new, and the others are not touched.

use std::time::{Duration, Instant};

use ringfence_jail::processors;

use super::last_pid::LastPid;
use crate::processes::{self, Process};

/// BOUND: what is counted together.
const WINDOW: Duration = Duration::from_secs(1);
/// BOUND: as many at least for each processor: compilers and shells come to a hundred or two.
const STARTED: u64 = 256;
/// BOUND: as many more for each processor since the last count, and it is counted again before anything else is
/// done.
const RISES: u64 = 4;
/// BOUND: between two such counts, and how many there are.
const COUNT_EVERY: Duration = Duration::from_millis(2);
const COUNTS: u32 = 32;

/// A storm that was met.
pub(super) struct Met {
    /// What is to be said of it.
    pub detail: String,
    /// Whoever has a higher pid is new.
    first: i32,
}

impl Met {
    fn is_new(&self, pid: i32) -> bool {
        pid > self.first
    }

    /// Those of these wardens below whom it is: each with at least its equal share of what is new. Strays, which are
    /// below none of them, have a share as well.
    pub fn of(&self, all: &[Process], wardens: &[i32]) -> Vec<i32> {
        let is_new = |&pid: &i32| self.is_new(pid);
        let new = |&warden: &i32| {
            let below = processes::below(all, warden);
            (warden, below.iter().filter(|&pid| is_new(pid)).count())
        };
        let all_new = all.iter().filter(|process| is_new(&process.pid)).count();
        have_their_share(&wardens.iter().map(new).collect::<Vec<_>>(), all_new)
    }
}

fn have_their_share(new: &[(i32, usize)], all_new: usize) -> Vec<i32> {
    let shares = new.len() + 1;
    let of_each = new.iter();
    of_each
        .filter(|&(_, count)| *count > 0 && count * shares >= all_new)
        .map(|&(warden, _)| warden)
        .collect()
}

#[derive(Debug, Default)]
pub(super) struct Storm {
    last_pid: LastPid,
    window: Option<Window>,
    /// Asked once.
    processors: Option<u64>,
}

/// When it began, the last pid at that time, and at the last count.
#[derive(Clone, Copy, Debug)]
struct Window {
    began: Instant,
    first: i32,
    last: i32,
}

impl Storm {
    /// A storm, if there is one.
    pub fn look(&mut self, allowed: u64) -> Option<Met> {
        let processors = *self.processors.get_or_insert_with(|| processors() as u64);
        let many = allowed.max(STARTED * processors);
        for _ in 0..COUNTS {
            let (more, started) = self.started(Instant::now())?;
            if started >= many {
                let there = processes::pids().count() as u64;
                if there >= most(allowed) {
                    let detail = format!(
                        "{there} processes, {allowed} allowed, and {started} started within a second"
                    );
                    let first = self.window?.first;
                    return Some(Met { detail, first });
                }
            }
            if more < RISES * processors {
                break;
            }
            std::thread::sleep(COUNT_EVERY);
        }
        None
    }

    /// How many were started since the last count, and since the window began.
    fn started(&mut self, now: Instant) -> Option<(u64, u64)> {
        let last = self.last_pid.read()?;
        let window = Window::at(self.window, now, last);
        self.window = Some(Window { last, ..window });
        let since = |pid: i32| u64::from((last - pid).unsigned_abs());
        Some((since(window.last), since(window.first)))
    }
}

impl Window {
    /// The one that is open, or a new one.
    fn at(open: Option<Self>, now: Instant, last: i32) -> Self {
        // Pids begin anew when they have reached their end.
        let is_open = |window: &Self| {
            now.saturating_duration_since(window.began) < WINDOW && window.last <= last
        };
        open.filter(is_open).unwrap_or(Self {
            began: now,
            first: last,
            last,
        })
    }
}

/// BOUND: fewer are in nobody's way, however fast they come and go: a loop of pipes starts hundreds in a second.
const FEW: u64 = 128;

/// BOUND: three quarters: in a storm many end all the time.
fn most(allowed: u64) -> u64 {
    (allowed - allowed / 4).max(FEW)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_ends_after_its_time_and_where_pids_begin_anew() {
        let now = Instant::now();
        let window = Window::at(None, now, 40);
        assert_eq!((window.first, window.last), (40, 40));
        let counted = Window { last: 90, ..window };
        let later = |after: Duration, last: i32| Window::at(Some(counted), now + after, last).first;
        assert_eq!(later(WINDOW / 2, 95), 40);
        assert_eq!(later(WINDOW, 95), 95);
        assert_eq!(later(WINDOW / 2, 2), 2);
    }

    #[test]
    fn whoever_starts_little_is_no_storm() {
        let mut storm = Storm::default();
        // There are many more processes than that on any machine.
        assert!(storm.look(1).is_none());
        assert!(storm.look(1).is_none());
    }

    #[test]
    fn whoever_has_its_share_is_a_part_of_it() {
        assert_eq!(have_their_share(&[(7, 400)], 401), [7]);
        assert_eq!(have_their_share(&[(7, 3), (8, 300), (9, 0)], 303), [8]);
        assert_eq!(have_their_share(&[(7, 200), (8, 200)], 410), [7, 8]);
        // Strays.
        assert_eq!(have_their_share(&[(7, 3), (8, 0)], 400), [0; 0]);
        assert_eq!(have_their_share(&[(7, 0)], 0), [0; 0]);
    }

    #[test]
    fn most_are_three_quarters() {
        assert_eq!([512, 200, 8, 0].map(most), [384, 150, FEW, FEW]);
    }
}
