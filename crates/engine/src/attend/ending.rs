//! What an end means: which bound was met, or none.

use ringfence_jail::cgroup::CgroupEvents;
use ringfence_jail::signals::Signal;
use ringfence_model::limits::{HumanBytes, Limit};
use ringfence_model::outcome::Outcome;
use ringfence_model::wire::{Bound, Exited};

use super::{Attended, Attending, Channel};
use crate::watch::Seen;

impl Attending<'_> {
    pub(super) fn judge(mut self, sandbox: &mut dyn Channel, exited: Exited) -> Attended {
        let refusals = self.memory_kills(sandbox);
        // A command can be faster than the watch.
        if self.run.over.is_none()
            && let Seen::Over(limit, detail) = self.disk.count()
        {
            self.run.hits.push((limit, detail));
            self.run.over = Some(Outcome::DiskFull);
        }
        let failed = exited.code != Some(0);
        if refusals.process_refusals > 0 {
            self.run.hits.push((
                Limit::Processes,
                format!("the kernel refused {}", refusals.process_refusals),
            ));
        }
        let file_size = exited.signal == Some(Signal::FILE_SIZE)
            // As a shell tells of a child's signal.
            || exited.code == Some(128 + Signal::FILE_SIZE);
        if file_size {
            let allowed = self.limits.file_bytes.unwrap_or_default();
            self.run
                .hits
                .push((Limit::FileSize, format!("{} allowed", HumanBytes(allowed))));
        }
        let hit = |limit: Limit| self.run.hits.iter().any(|(hit, _)| *hit == limit);
        // A fork bomb's first process may well end with success.
        let storm = exited.leftovers.len() >= 32 || exited.bound == Some(Bound::Processes);
        let outcome = if exited.not_started.is_some() {
            Outcome::NotStarted
        } else if exited.bound == Some(Bound::Time) {
            Outcome::TimedOut
        } else if let Some(over) = self.run.over {
            over
        } else if failed && hit(Limit::Memory) {
            Outcome::OutOfMemory
        } else if exited.bound == Some(Bound::Disk) {
            Outcome::DiskFull
        } else if failed && hit(Limit::Cpu) {
            Outcome::CpuLimit
        } else if hit(Limit::Processes) && (failed || storm) {
            Outcome::TooManyProcesses
        } else if file_size {
            Outcome::FileTooLarge
        } else if failed && self.disk.is_file_system_full() {
            Outcome::DiskFull
        } else if exited.signal.is_some() {
            Outcome::Signaled
        } else {
            Outcome::Exited
        };
        Attended {
            outcome,
            code: exited.code,
            signal: exited.signal,
            not_started: exited.not_started.map(|failure| failure.to_string()),
            duration_ms: exited.duration_ms,
            cpu_ms: exited.cpu_ms,
            peak_bytes: exited.peak_bytes,
            leftovers: exited.leftovers,
            hits: std::mem::take(&mut self.run.hits),
        }
    }

    /// What the kernel refused; for memory it kills.
    fn memory_kills(&mut self, sandbox: &mut dyn Channel) -> CgroupEvents {
        let refusals = sandbox.kernel_refusals();
        if refusals.memory_kills > 0 {
            self.run.hits.push((
                Limit::Memory,
                format!("the kernel killed {} processes", refusals.memory_kills),
            ));
        }
        refusals
    }

    /// Pid 1 is gone. Where everything inside is small, the kernel may have taken it for the memory
    /// that files hold.
    pub(super) fn lost(mut self, sandbox: &mut dyn Channel) -> Attended {
        let lost = if self.memory_kills(sandbox).memory_kills > 0 {
            Outcome::OutOfMemory
        } else {
            Outcome::RuntimeLost
        };
        Attended {
            outcome: self.run.over.unwrap_or(lost),
            code: None,
            signal: None,
            not_started: None,
            duration_ms: self.run.began.elapsed().as_millis() as u64,
            cpu_ms: 0,
            peak_bytes: 0,
            leftovers: Vec::new(),
            hits: std::mem::take(&mut self.run.hits),
        }
    }
}
