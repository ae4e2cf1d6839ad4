//! Processors: who has used them, and who has them soon.

use std::time::Duration;

use super::check;

/// The processor time that a process has used with all its threads, to the nanosecond; `None` for one that
/// is not there, or where the kernel does not tell.
pub fn processor_time(pid: i32) -> Option<Duration> {
    /// The scheduler's own count, of a whole process.
    const SCHEDULED: libc::clockid_t = 2;
    let clock = (!pid << 3) | SCHEDULED;
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes one timespec, which lives through the call.
    check(unsafe { libc::clock_gettime(clock, &raw mut time) }.into()).ok()?;
    Some(Duration::new(
        time.tv_sec.try_into().ok()?,
        time.tv_nsec.try_into().ok()?,
    ))
}

/// Who else is scheduled as a prompt thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Descendants {
    /// Whatever it starts.
    Too,
    /// Nobody: not what it looks after.
    No,
}

/// BOUND: the least time in one piece that the kernel lets anybody wish for, in nanoseconds.
const PROMPT: u64 = 100_000;

/// This thread would rather have little of a processor soon than much of it later. Its share is what it was:
/// but where hundreds wait for their turn, it is not behind them all. A kernel before 6.12 knows no such wish.
pub fn be_prompt(descendants: Descendants) {
    // SAFETY: plain numbers, for which zero is a value.
    let mut wish: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of_val(&wish);
    // SAFETY: the kernel writes as many bytes as there are, at most.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut wish, size, 0) };
    let is_usual = [libc::SCHED_OTHER, libc::SCHED_BATCH].contains(&(wish.sched_policy as i32));
    if check(got).is_err() || !is_usual {
        return;
    }
    wish.sched_runtime = PROMPT;
    if descendants == Descendants::No {
        wish.sched_flags |= libc::SCHED_FLAG_RESET_ON_FORK as u64;
    }
    // Where that fails, it waits as everybody does.
    // SAFETY: the kernel reads one sched_attr, which lives through the call.
    let _ = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const wish, 0) };
}
