//! The time of the system's clock.

use std::time::{SystemTime, UNIX_EPOCH};

/// Unix time in seconds; 0 where the clock is before 1970.
pub fn unix_seconds() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |time| time.as_secs())
}
