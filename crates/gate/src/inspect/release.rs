//! When bytes that were held back are released, though nothing came after them.

use std::future::pending;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// BOUND: a host that sends nothing for so long pauses. Nobody notices the delay behind an event or a prompt.
const QUIET: Duration = Duration::from_millis(20);
/// BOUND: how long bytes wait where the host goes on sending so few and so often that neither a pause comes nor
/// enough bytes to pass on.
const LONGEST: Duration = Duration::from_millis(200);
/// BOUND: the same where nobody waits for the first half of what comes, such as an error page. A pause there is
/// mostly the network's, and the sandbox can choose its place: it pads the page until a window of TCP or HTTP/2 ends in
/// the middle of a value, or loads the network until packets are lost. Round trips take 20 ms and more, and TCP waits
/// 200 ms and more before it sends a packet again.
const STALLED: Duration = Duration::from_secs(5);

/// What a host may send next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// Events or messages, each of which somebody waits for.
    Message,
    /// More of a text whose length is not known: perhaps one line after the other.
    Line,
    /// The rest of a body, chunk or frame whose length was announced.
    Rest,
}

/// What is to be passed on of the bytes that are held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Release {
    /// Up to the last line end. A line end is in no value, so that no value is cut there.
    Lines,
    All,
}

/// Tells when to release bytes.
///
/// INVARIANT: only the clock, the arrival of bytes, line ends, and what the head of an answer says decide.
#[derive(Default)]
pub(crate) struct ReleaseTimer {
    /// When the first of the bytes that are held back came, and when the last.
    first: Option<Instant>,
    last: Option<Instant>,
    /// Whole lines were passed on since.
    lines_passed_on: bool,
}

impl ReleaseTimer {
    /// Bytes came from the host.
    pub(crate) fn arrived(&mut self) {
        let now = Instant::now();
        self.first.get_or_insert(now);
        self.last = Some(now);
        self.lines_passed_on = false;
    }

    /// Bytes were passed on: those that are held back now came later.
    pub(crate) fn passed_on(&mut self) {
        self.first = None;
    }

    /// What was to be released was passed on, because the time was up.
    pub(crate) fn released(&mut self, release: Release) {
        match release {
            Release::Lines => self.lines_passed_on = true,
            Release::All => self.passed_on(),
        }
    }

    /// Waits until something that is held back is to be released, and says what.
    pub(crate) async fn expired(&self, due: Due) -> Release {
        let (quiet, longest, release) = match due {
            Due::Message => (QUIET, LONGEST, Release::All),
            Due::Line if !self.lines_passed_on => (QUIET, LONGEST, Release::Lines),
            Due::Line | Due::Rest => (STALLED, STALLED, Release::All),
        };
        match (self.first, self.last) {
            (Some(first), Some(last)) => sleep_until((last + quiet).min(first + longest)).await,
            _ => pending().await,
        }
        release
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is released, and after how many milliseconds.
    async fn waited(timer: &ReleaseTimer, due: Due) -> (Release, u128) {
        let from = Instant::now();
        let release = timer.expired(due).await;
        (release, from.elapsed().as_millis())
    }

    #[tokio::test(start_paused = true)]
    async fn pause_releases_after_fixed_time() {
        for (due, expected) in [
            (Due::Message, (Release::All, 20)),
            (Due::Line, (Release::Lines, 20)),
            (Due::Rest, (Release::All, 5000)),
        ] {
            let mut timer = ReleaseTimer::default();
            timer.arrived();
            assert_eq!(waited(&timer, due).await, expected);
            timer.released(expected.0);
            timer.arrived();
            assert_eq!(waited(&timer, due).await, expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn line_that_does_not_end_waits_longer() {
        let mut timer = ReleaseTimer::default();
        timer.arrived();
        assert_eq!(waited(&timer, Due::Line).await, (Release::Lines, 20));
        timer.released(Release::Lines);
        assert_eq!(waited(&timer, Due::Line).await, (Release::All, 4980));
    }

    #[tokio::test(start_paused = true)]
    async fn trickle_without_pause_releases_after_fixed_time() {
        let mut timer = ReleaseTimer::default();
        let from = Instant::now();
        for _ in 0..11 {
            timer.arrived();
            tokio::time::advance(Duration::from_millis(19)).await;
        }
        timer.expired(Due::Message).await;
        assert_eq!(from.elapsed().as_millis(), 209);
    }
}
