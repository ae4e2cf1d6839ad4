//! The disk use of a layer against its bounds, looked at while a command runs.
//!
//! Counting a layer costs what it holds, so it is counted when the file system has lost space or
//! inodes since the last count, and now and then; asking the file system costs nothing.

use std::os::fd::AsFd as _;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use ringfence_model::limits::{HumanBytes, Limit, Limits};
use ringfence_model::wire;

use crate::changes::{ChangesError, Usage, measure};
use crate::error::Error;

/// BOUND: how often the file system is asked.
pub const LOOK_EVERY: Duration = Duration::from_millis(50);
/// BOUND: others may free what the layer takes, so it is counted this often in any case, or as often
/// as costs a twentieth of the time.
const COUNT_EVERY: Duration = Duration::from_secs(2);
const COUNT_SHARE: u32 = 20;

/// BOUND: space that goes without a trace is the sandbox's beyond this much.
const UNEXPLAINED: u64 = 4 << 30;

/// What is to be done after a look.
#[derive(Debug, PartialEq, Eq)]
pub enum Seen {
    Fine,
    /// The bound is met: end the command.
    Over(Limit, String),
    /// Space went that no name accounts for: ask the guest for files without a name.
    Unaccounted,
}

/// Watches one layer.
#[derive(Debug)]
pub struct DiskWatch {
    upper: OwnedFd,
    /// Other layers of the same sandbox, which count as well.
    others: Vec<OwnedFd>,
    bytes: Option<u64>,
    inodes: Option<u64>,
    /// Free bytes and inodes at the last count, and what the layer held then.
    free: (u64, u64),
    used: (u64, u64),
    counted: Instant,
    cost: Duration,
    first_free: u64,
}

impl DiskWatch {
    pub fn new(upper: &Path, limits: &Limits) -> Result<Self, Error> {
        let upper = open(upper)?;
        let free = free(&upper);
        Ok(Self {
            upper,
            others: Vec::new(),
            bytes: limits.disk_bytes,
            inodes: limits.disk_inodes,
            free,
            used: (0, 0),
            counted: Instant::now(),
            cost: Duration::ZERO,
            first_free: free.0,
        })
    }

    /// Counts another layer of the sandbox in. It is on the same file system.
    pub fn also(&mut self, upper: &Path) -> Result<(), Error> {
        self.others.push(open(upper)?);
        Ok(())
    }

    /// Looks, and counts if there is a reason.
    pub fn look(&mut self) -> Seen {
        let now_free = free(&self.upper);
        let gone = (
            self.free.0.saturating_sub(now_free.0),
            self.free.1.saturating_sub(now_free.1),
        );
        let room = |limit: Option<u64>, used: u64| {
            limit.map_or(u64::MAX, |limit| limit.saturating_sub(used))
        };
        let reason = gone.0 > room(self.bytes, self.used.0) / 4
            || gone.1 > room(self.inodes, self.used.1) / 4
            || self.counted.elapsed() >= COUNT_EVERY.max(self.cost * COUNT_SHARE);
        if reason { self.count() } else { Seen::Fine }
    }

    /// Counts what the layer holds.
    pub fn count(&mut self) -> Seen {
        if self.bytes.is_none() && self.inodes.is_none() {
            return Seen::Fine;
        }
        let now_free = free(&self.upper);
        let began = Instant::now();
        let layers = std::iter::once(&self.upper).chain(&self.others);
        let mut usage = Usage::default();
        let counted = layers.into_iter().try_for_each(|layer| {
            let own = measure(layer.as_fd())?;
            usage.bytes += own.bytes;
            usage.inodes += own.inodes;
            Ok::<(), ChangesError>(())
        });
        let Ok(()) = counted else {
            // An agent that moves directories under the count does not count for nothing.
            let lost = self.first_free.saturating_sub(now_free.0);
            return match self.bytes {
                Some(limit) if lost > limit => Seen::Over(
                    Limit::Disk,
                    format!(
                        "{} gone from the disk while the layer could not be counted",
                        HumanBytes(lost)
                    ),
                ),
                _ => Seen::Fine,
            };
        };
        self.used = (usage.bytes, usage.inodes);
        self.free = now_free;
        self.counted = Instant::now();
        self.cost = began.elapsed();
        if let Some(limit) = self.bytes.filter(|limit| usage.bytes > *limit) {
            return Seen::Over(
                Limit::Disk,
                format!(
                    "{} written, {} allowed",
                    HumanBytes(usage.bytes),
                    HumanBytes(limit)
                ),
            );
        }
        if let Some(limit) = self.inodes.filter(|limit| usage.inodes > *limit) {
            return Seen::Over(
                Limit::Inodes,
                format!("{} files made, {limit} allowed", usage.inodes),
            );
        }
        let lost = self
            .first_free
            .saturating_sub(now_free.0)
            .saturating_sub(usage.bytes);
        if self.bytes.is_some_and(|limit| lost > limit / 2) {
            Seen::Unaccounted
        } else {
            Seen::Fine
        }
    }

    /// Judges what the guest said about files without a name. Where it could not look everywhere,
    /// what is missing is the sandbox's; where it could, only a large loss is, for others write on
    /// this disk as well.
    pub fn judge_unlinked(&self, usage: &wire::Usage) -> Seen {
        let Some(limit) = self.bytes else {
            return Seen::Fine;
        };
        let lost = self.first_free.saturating_sub(free(&self.upper).0);
        let lost = lost.saturating_sub(self.used.0);
        let held = if usage.hidden_processes > 0 || lost > limit.max(UNEXPLAINED) * 2 {
            lost
        } else {
            usage.unlinked_bytes
        };
        if self.used.0 + held <= limit {
            return Seen::Fine;
        }
        let detail = format!(
            "{} in files and {} held without a name, {} allowed",
            HumanBytes(self.used.0),
            HumanBytes(held),
            HumanBytes(limit)
        );
        Seen::Over(Limit::Disk, detail)
    }

    /// Whether the file system itself has no room left.
    pub fn is_file_system_full(&self) -> bool {
        rustix::fs::fstatvfs(&self.upper)
            .is_ok_and(|stat| stat.f_bavail < 16 || (stat.f_files > 0 && stat.f_favail < 4))
    }
}

fn open(upper: &Path) -> Result<OwnedFd, Error> {
    let file = std::fs::File::open(upper).map_err(|source| Error::MakeWorkspace {
        what: "open",
        path: upper.to_owned(),
        source,
    })?;
    Ok(file.into())
}

fn free(fd: &OwnedFd) -> (u64, u64) {
    rustix::fs::fstatvfs(fd).map_or((0, 0), |stat| (stat.f_bfree * stat.f_frsize, stat.f_ffree))
}
