//! Looking at everything inside again and again, for the bounds that no kernel holds.

use std::time::{Duration, Instant};

use ringfence_model::wire::Bound;

use super::storm::Met;
use super::{Exec, Execs, strays};
use crate::Ready;
use crate::connection::Connection;
use crate::freeze::World;
use crate::processes;

/// BOUND: how often the processes inside are looked at while a command runs.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// BOUND: and in its first moments, in which a storm of processes rises and falls.
const LOOK_FIRST: Duration = Duration::from_millis(20);
const FIRST: Duration = Duration::from_millis(300);
/// BOUND: a look takes a third of the time at most, however many there are to be looked at.
const LOOK_SHARE: u32 = 3;

impl Execs {
    pub(super) fn look_every(&self, now: Instant) -> Duration {
        let young = |exec: &Exec| now.saturating_duration_since(exec.started) < FIRST;
        if self.running.values().any(young) {
            LOOK_FIRST
        } else {
            LOOK_EVERY
        }
    }

    /// Looks at what everything inside uses, and ends what is beyond its bound.
    pub(super) fn look(
        &mut self,
        now: Instant,
        ready: &Ready,
        world: World,
        connection: &mut Connection,
    ) {
        if self.running.is_empty() {
            self.looked = None;
            return;
        }
        let due = self
            .looked
            .is_none_or(|at| now.saturating_duration_since(at) >= self.look_every(now));
        if !due {
            return;
        }
        // The first look comes after one interval: a short command is not looked at.
        let first = self.looked.is_none();
        self.looked = Some(now);
        if first {
            return;
        }
        let hello = &ready.hello;
        let rests = self
            .looked_at_all
            .is_some_and(|at| now.saturating_duration_since(at) < self.cost * LOOK_SHARE);
        // The disk of somebody else is looked at in its own time.
        if !rests && self.still.holds(now) && hello.disk.is_none() {
            return;
        }
        let storm = match world {
            World::Moves => self.storm.look(hello.processes),
            World::StandsStill => None,
        };
        if let Some(storm) = &storm {
            self.end_storm(storm, world, connection);
        }
        if rests && storm.is_none() {
            return;
        }
        self.looked_at_all = Some(now);
        let began = own_time();
        let all = processes::all();
        self.still.saw(&all);
        if strays::any(&all, &self.wardens()) {
            self.hunt.begin();
        }
        let grown = ready.reach.as_agent(|| self.disk.look(hello));
        for (bound, detail) in self
            .watchdog
            .look(&all, hello, world)
            .into_iter()
            .chain(grown)
        {
            for (&stream, exec) in &mut self.running {
                exec.meet(stream, bound, &detail, connection);
            }
        }
        self.cost = own_time().saturating_sub(began);
    }

    /// Ends the commands that are a part of a storm, while everybody stands still: the kernel lets no fork past that.
    fn end_storm(&mut self, storm: &Met, world: World, connection: &mut Connection) {
        let stopped = processes::stop_all(&processes::all());
        let wardens: Vec<i32> = self.wardens().iter().map(|warden| warden.pid).collect();
        let parts = storm.of(&processes::all(), &wardens);
        for (&stream, exec) in &mut self.running {
            if exec.records.is_some() && parts.contains(&exec.warden.pid) {
                exec.meet(stream, Bound::Processes, &storm.detail, connection);
                exec.end_storm();
                processes::kill_all(exec.warden.pid, world);
            }
        }
        processes::go_on(&stopped);
    }
}

/// The processor time that we used ourselves: a machine that is busy with others makes no look dearer.
fn own_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
