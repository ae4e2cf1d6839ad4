//! The host's clock, as the store and the journal write it.

use jiff::Timestamp;

/// Microseconds since the epoch.
pub fn now_us() -> i64 {
    Timestamp::now().as_microsecond()
}
