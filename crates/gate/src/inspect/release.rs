//! When bytes that were held back are released, though nothing came after them.

use std::future::pending;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// BOUND: a host that sends nothing for so long pauses. The parts of one answer come closer together, and nobody
/// notices the delay behind an event or a prompt.
const QUIET: Duration = Duration::from_millis(20);
/// BOUND: how long bytes wait where the host goes on sending so few and so often that neither a pause comes nor
/// enough bytes to pass on.
const LONGEST: Duration = Duration::from_millis(200);
/// BOUND: the same where the host owes a part of what it announced. Such a pause is the network's: the sandbox can
/// load the network until packets are lost in the middle of a value, and TCP needs 200 ms and more to send one again.
const STALLED: Duration = Duration::from_secs(5);

/// What a host may send next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// Anything, or nothing for hours: all that it announced so far came.
    Anything,
    /// The rest of a body, chunk or frame whose length it announced.
    Rest,
}

/// Tells when to release bytes.
///
/// INVARIANT: only the clock, the arrival of bytes and announced lengths decide, never what the bytes are.
#[derive(Default)]
pub(crate) struct ReleaseTimer {
    /// When the first of the bytes that are held back came, and when the last.
    first: Option<Instant>,
    last: Option<Instant>,
}

impl ReleaseTimer {
    /// Bytes came from the host.
    pub(crate) fn arrived(&mut self) {
        let now = Instant::now();
        self.first.get_or_insert(now);
        self.last = Some(now);
    }

    /// Bytes were passed on: those that are held back now came later.
    pub(crate) fn passed_on(&mut self) {
        self.first = None;
    }

    /// Waits until what is held back is to be released.
    pub(crate) async fn expired(&self, due: Due) {
        let (quiet, longest) = match due {
            Due::Anything => (QUIET, LONGEST),
            Due::Rest => (STALLED, STALLED),
        };
        match (self.first, self.last) {
            (Some(first), Some(last)) => sleep_until((last + quiet).min(first + longest)).await,
            _ => pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Milliseconds until bytes are released.
    async fn waited(timer: &ReleaseTimer, due: Due) -> u128 {
        let from = Instant::now();
        timer.expired(due).await;
        from.elapsed().as_millis()
    }

    #[tokio::test(start_paused = true)]
    async fn pause_releases_after_fixed_time() {
        let mut timer = ReleaseTimer::default();
        timer.arrived();
        assert_eq!(waited(&timer, Due::Anything).await, 20);
        timer.passed_on();
        timer.arrived();
        assert_eq!(waited(&timer, Due::Anything).await, 20);
        timer.passed_on();
        timer.arrived();
        assert_eq!(waited(&timer, Due::Rest).await, 5000);
    }

    #[tokio::test(start_paused = true)]
    async fn trickle_without_pause_releases_after_fixed_time() {
        let mut timer = ReleaseTimer::default();
        let from = Instant::now();
        for _ in 0..11 {
            timer.arrived();
            tokio::time::advance(Duration::from_millis(19)).await;
        }
        timer.expired(Due::Anything).await;
        assert_eq!(from.elapsed().as_millis(), 209);
    }
}
