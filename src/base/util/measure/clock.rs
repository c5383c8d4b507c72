//! The processor time of a thread.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// The processor time of this thread, which other work on a busy machine does not increase. Where the system does not
/// report it, the time since the first call.
pub fn thread_time() -> Duration {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    // The system updates the counter when it schedules threads.
    std::thread::yield_now();
    let found = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let found = found.and_then(|text| text.split_whitespace().next()?.parse().ok());
    found.map_or_else(|| START.elapsed(), Duration::from_nanos)
}
