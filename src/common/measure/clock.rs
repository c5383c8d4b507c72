//! The processor time of a thread.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// The time that this thread was on a processor, which other work of a busy machine does not add to. Where the system does
/// not tell it, the time since the first call.
pub fn thread_time() -> Duration {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    // The system adds up what it is asked for when it chooses whom to run.
    std::thread::yield_now();
    let found = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let found = found.and_then(|text| text.split_whitespace().next()?.parse().ok());
    found.map_or_else(|| START.elapsed(), Duration::from_nanos)
}
