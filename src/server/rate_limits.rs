//! How much each client may ask for in a minute: a bucket for each, which fills evenly and holds one minute's worth.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use lab_base::util::lock::lock;

/// Number of buckets above which full ones are forgotten.
const MAX_BUCKETS: usize = 1000;

/// What is left of a client's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allowance {
    /// The limit of a minute.
    pub(crate) limit: u32,
    /// What may be used at once.
    pub(crate) remaining: u32,
    /// Time until all of the limit may be used.
    pub(crate) reset: Duration,
}

/// A request that is more than its client may send.
#[derive(Debug)]
pub(crate) struct Exceeded {
    /// The client in words.
    pub(crate) client: String,
    /// `requests` or `tokens`.
    pub(crate) what: &'static str,
    /// The limit of a minute.
    pub(crate) limit: u32,
    /// Time after which a retry may succeed.
    pub(crate) after: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    limit: u32,
    /// Below 0 where more was used than was known before.
    level: f64,
    at: Instant,
}

impl Bucket {
    fn rate(&self) -> f64 {
        f64::from(self.limit) / 60.0
    }

    /// The bucket as it is at a time, with a limit that may be another than before.
    fn at(&self, now: Instant, limit: u32) -> Self {
        let gained = now.saturating_duration_since(self.at).as_secs_f64() * self.rate();
        Self {
            limit,
            level: (self.level + gained).min(f64::from(limit)),
            at: now.max(self.at),
        }
    }

    /// The time until the level is at least this.
    fn time_until(&self, level: f64) -> Duration {
        Duration::from_secs_f64(((level - self.level) / self.rate()).max(0.0))
    }

    fn allowance(&self) -> Allowance {
        Allowance {
            limit: self.limit,
            remaining: self.level.max(0.0) as u32,
            reset: self.time_until(f64::from(self.limit)),
        }
    }
}

/// The buckets of clients by their names.
#[derive(Debug, Default)]
pub(crate) struct RateLimits(Mutex<BTreeMap<String, Bucket>>);

impl RateLimits {
    /// Takes `n` of what a client may use in a minute; more than the limit from a full bucket only. Returns what is left.
    ///
    /// # Errors
    /// So much is not left; the time after which it is.
    pub(crate) fn take(
        &self,
        client: &str,
        limit: u32,
        n: usize,
    ) -> (Allowance, Result<(), Duration>) {
        self.take_at(Instant::now(), client, limit, n)
    }

    fn take_at(
        &self,
        now: Instant,
        client: &str,
        limit: u32,
        n: usize,
    ) -> (Allowance, Result<(), Duration>) {
        let mut all = lock(&self.0);
        if all.len() >= MAX_BUCKETS {
            all.retain(|_, one| one.at(now, one.limit).level < f64::from(one.limit));
        }
        let new = || Bucket {
            limit,
            level: f64::from(limit),
            at: now,
        };
        let own = all.entry(client.to_owned()).or_insert_with(new);
        *own = own.at(now, limit);
        let needed = (n as f64).min(f64::from(limit));
        if own.level < needed {
            return (own.allowance(), Err(own.time_until(needed)));
        }
        own.level -= n as f64;
        (own.allowance(), Ok(()))
    }

    /// Counts what a client has used, which was not known before.
    pub(crate) fn charge(&self, client: &str, n: usize) {
        if let Some(own) = lock(&self.0).get_mut(client) {
            own.level -= n as f64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_fills_evenly_and_holds_a_minute() {
        let limits = RateLimits::default();
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let take = |seconds, n| limits.take_at(after(seconds), "a", 60, n);
        let (left, taken) = take(0, 50);
        assert!(taken.is_ok());
        assert_eq!((left.limit, left.remaining), (60, 10));
        assert_eq!(left.reset, Duration::from_secs(50));
        assert_eq!(take(0, 20).1, Err(Duration::from_secs(10)));
        assert!(take(10, 20).1.is_ok());
        // Another client has its own.
        assert!(limits.take_at(after(10), "b", 60, 60).1.is_ok());
        // What was not known before is paid later.
        limits.charge("a", 30);
        assert_eq!(take(10, 1).1, Err(Duration::from_secs(31)));
        // Time without requests gives no more than a minute's worth; more than that goes from a full bucket.
        assert_eq!(take(1000, 90).0.remaining, 0);
        assert_eq!(take(1000, 90).1, Err(Duration::from_secs(90)));
        // A changed limit holds at once.
        let (left, _) = limits.take_at(after(2000), "a", 10, 1);
        assert_eq!((left.limit, left.remaining), (10, 9));
    }

    #[test]
    fn full_buckets_are_forgotten() {
        let limits = RateLimits::default();
        let start = Instant::now();
        for i in 0..3 * MAX_BUCKETS {
            let at = start + Duration::from_secs(i as u64);
            assert!(limits.take_at(at, &i.to_string(), 60, 1).1.is_ok());
        }
        assert!(lock(&limits.0).len() <= MAX_BUCKETS);
    }
}
