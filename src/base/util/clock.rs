//! The time of the system's clock.

use std::time::{SystemTime, UNIX_EPOCH};

use chrono::{DateTime, SecondsFormat};

/// Unix time in seconds; 0 where the clock is before 1970.
pub fn unix_seconds() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |time| time.as_secs())
}

/// A time as RFC 3339 writes it, in UTC with microseconds. Times before 1970 and after 9999 become the nearest one that
/// can be written.
pub fn rfc3339(time: SystemTime) -> String {
    const MAX: u64 = 253_402_300_799;
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = since.as_secs().min(MAX);
    let time = DateTime::from_timestamp(seconds as i64, since.subsec_nanos());
    let time = time.expect("the year is at most 9999");
    time.to_rfc3339_opts(SecondsFormat::Micros, true)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_are_written_in_utc() {
        let at = |seconds, nanos| rfc3339(UNIX_EPOCH + Duration::new(seconds, nanos));
        assert_eq!(at(951_827_696, 789_012_345), "2000-02-29T12:34:56.789012Z");
        assert_eq!(at(1 << 40, 0), "9999-12-31T23:59:59.000000Z");
        assert_eq!(
            rfc3339(UNIX_EPOCH - Duration::from_secs(1)),
            "1970-01-01T00:00:00.000000Z"
        );
    }
}
