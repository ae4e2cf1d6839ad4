//! The host's clock, as the store and the journal write it.

use std::time::Instant;

use jiff::Timestamp;

/// Microseconds since the epoch.
pub fn now_us() -> i64 {
    Timestamp::now().as_microsecond()
}

/// Whole milliseconds that have passed, as tracing tells them.
pub fn ms_since(began: Instant) -> u64 {
    began.elapsed().as_millis() as u64
}
