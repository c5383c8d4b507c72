//! Counters and the current state of an engine, written by the engine and read by others.
//!
//! Counters only grow. Not here: their presentation.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use lab_base::util::lock::lock;

use super::draft::{DraftTotals, StepDraft};
use super::event::{FinishReason, Usage};
use super::prefix_store::StoreCounts;
use crate::model::PassCounts;

/// Upper bounds of the histogram of the time to the first token, in seconds.
static FIRST_TOKEN: [f64; 14] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
];
/// Upper bounds of the histogram of the time between two tokens, in seconds.
static BETWEEN_TOKENS: [f64; 12] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
];

/// Maximum number of clients that are counted apart.
const MAX_CLIENTS: usize = 200;
/// The name of all others together.
const OTHERS: &str = "others";

/// The complete requests of a client since the start of an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientCounts {
    pub n_requests: u64,
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
}

impl std::ops::AddAssign for ClientCounts {
    fn add_assign(&mut self, other: Self) {
        self.n_requests += other.n_requests;
        self.prompt_tokens += other.prompt_tokens;
        self.completion_tokens += other.completion_tokens;
    }
}

/// Upper bounds of the histograms of tokens of a request.
static TOKENS: [f64; 17] = [
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0,
    20_000.0, 50_000.0, 100_000.0, 200_000.0,
];

/// A histogram of durations in seconds, or of numbers.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [f64],
    /// The count of each interval, and of values above the last bound.
    counts: Vec<AtomicU64>,
    /// In millionths.
    sum_micros: AtomicU64,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Self {
        Self {
            bounds,
            counts: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(),
            sum_micros: AtomicU64::new(0),
        }
    }

    pub(super) fn add(&self, time: Duration) {
        self.add_value(time.as_secs_f64());
    }

    fn add_value(&self, value: f64) {
        let at = self.bounds.partition_point(|bound| *bound < value);
        self.counts[at].fetch_add(1, Ordering::Relaxed);
        let micros = (value * 1e6).round() as u64;
        self.sum_micros.fetch_add(micros, Ordering::Relaxed);
    }

    /// The bounds, each with the number of values not above it.
    pub fn cumulative(&self) -> Vec<(f64, u64)> {
        let mut n = 0;
        let counts = self.counts.iter().map(|count| {
            n += count.load(Ordering::Relaxed);
            n
        });
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        bounds.zip(counts).collect()
    }

    /// Sum of all values.
    pub fn sum(&self) -> f64 {
        self.sum_micros.load(Ordering::Relaxed) as f64 / 1e6
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ActiveSequence {
    /// Tokens of the prompt.
    pub n_prompt: usize,
    /// Tokens whose keys and values are cached.
    pub n_cached: usize,
    /// Tokens of the completion.
    pub n_decoded: usize,
    /// Whether its prompt is still being read.
    pub is_prefill: bool,
}

/// The current state of an engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineLoad {
    /// Number of waiting requests.
    pub n_waiting: usize,
    /// Active requests.
    pub active: Vec<ActiveSequence>,
    /// The ids of the adapters that active requests use.
    pub active_adapters: BTreeSet<usize>,
    /// The ids of the adapters that waiting requests use.
    pub waiting_adapters: BTreeSet<usize>,
    /// KV blocks in use and their total; none if no block is kept between passes.
    pub blocks: Option<(usize, usize)>,
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of an engine since its start.
        pub struct Stats {
            $($(#[$doc])* pub $name: AtomicU64,)*
            /// Time from the arrival of a request to its first token.
            pub first_token: Histogram,
            /// Time between two tokens of a completion.
            pub between_tokens: Histogram,
            /// Time from the arrival of a request to its end.
            pub request_time: Histogram,
            /// Time from the arrival of a request to its first step.
            pub queue_time: Histogram,
            /// Time from the first step of a request to the end of its prompt.
            pub prefill_time: Histogram,
            /// Tokens of the prompt of a request.
            pub prompt_lengths: Histogram,
            /// Tokens of the completion of a request.
            pub completion_lengths: Histogram,
            clients: Mutex<BTreeMap<Arc<str>, ClientCounts>>,
            now: Mutex<EngineLoad>,
            /// Numbers of lookups by tier and result.
            lookups: Mutex<BTreeMap<(&'static str, &'static str), u64>>,
            store: OnceLock<Box<dyn Fn() -> StoreCounts + Send + Sync>>,
            work: Mutex<PassCounts>,
            drafts: Mutex<DraftTotals>,
            /// When the current step began; none between steps.
            step: Mutex<Option<Instant>>,
        }

        impl Default for Stats {
            fn default() -> Self {
                Self {
                    $($name: AtomicU64::new(0),)*
                    first_token: Histogram::new(&FIRST_TOKEN),
                    between_tokens: Histogram::new(&BETWEEN_TOKENS),
                    request_time: Histogram::new(&FIRST_TOKEN),
                    queue_time: Histogram::new(&FIRST_TOKEN),
                    prefill_time: Histogram::new(&FIRST_TOKEN),
                    prompt_lengths: Histogram::new(&TOKENS),
                    completion_lengths: Histogram::new(&TOKENS),
                    clients: Mutex::default(),
                    now: Mutex::default(),
                    lookups: Mutex::default(),
                    store: OnceLock::new(),
                    work: Mutex::default(),
                    drafts: Mutex::default(),
                    step: Mutex::default(),
                }
            }
        }
    };
}

counters! {
    /// Requests that the model or a stop sequence ended.
    n_stopped,
    /// Requests that reached the limit of tokens.
    n_cut,
    /// Requests that failed.
    n_failed,
    /// Requests that were cancelled.
    n_cancelled,
    /// Requests that were refused because too many waited.
    n_refused,
    /// Times that a request gave its place up for others.
    n_preempted,
    prompt_tokens,
    /// Tokens of prompts that were in the prefix cache.
    cached_tokens,
    /// Tokens of prompts whose blocks came back from the host's memory.
    host_tokens,
    /// Tokens of prompts whose blocks came back from files.
    disk_tokens,
    completion_tokens,
}

/// Adds `n` to a counter.
pub(super) fn count(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Ordering::Relaxed);
}

impl Stats {
    /// The state of the engine after its last step.
    pub fn now(&self) -> EngineLoad {
        lock(&self.now).clone()
    }

    pub(super) fn set_now(&self, now: EngineLoad) {
        *lock(&self.now) = now;
    }

    /// What the passes did until the last step.
    pub fn work(&self) -> PassCounts {
        *lock(&self.work)
    }

    pub(super) fn set_work(&self, work: PassCounts) {
        *lock(&self.work) = work;
    }

    /// The draft tokens of all steps.
    pub fn drafts(&self) -> DraftTotals {
        *lock(&self.drafts)
    }

    /// Counts the draft tokens of a sequence in a step.
    pub(super) fn count_draft(&self, step: StepDraft) {
        lock(&self.drafts).count(step);
    }

    /// Adds the seconds that the draft tokens of a step saved.
    pub(super) fn drafts_saved(&self, seconds: f64) {
        lock(&self.drafts).seconds_saved += seconds;
    }

    /// Counts a lookup of a prompt in a tier of the prefix cache, by the reason why not more was found.
    pub(super) fn count_lookup(&self, tier: &'static str, reason: &'static str) {
        *lock(&self.lookups).entry((tier, reason)).or_default() += 1;
    }

    /// The numbers of lookups of prompts, by tier of the prefix cache and by the reason why not more was found.
    pub fn lookups(&self) -> BTreeMap<(&'static str, &'static str), u64> {
        lock(&self.lookups).clone()
    }

    pub(super) fn count_restored(&self, n_host: usize, n_disk: usize) {
        count(&self.host_tokens, n_host);
        count(&self.disk_tokens, n_disk);
    }

    pub(super) fn set_store(&self, store: Box<dyn Fn() -> StoreCounts + Send + Sync>) {
        // An engine has one store.
        let _ = self.store.set(store);
    }

    /// What the store of prefixes has and did; none if there is no store.
    pub fn store(&self) -> Option<StoreCounts> {
        self.store.get().map(|counts| counts())
    }

    /// Time since the current step began; none between steps.
    pub fn step_time(&self) -> Option<Duration> {
        let began = *lock(&self.step);
        began.map(|began| began.elapsed())
    }

    /// Notes that a step began, or, with none, that it has ended.
    pub(super) fn set_step(&self, began: Option<Instant>) {
        *lock(&self.step) = began;
    }

    /// Counts a request that is complete, also for its client.
    pub(super) fn done(
        &self,
        reason: FinishReason,
        usage: &Usage,
        client: &Arc<str>,
        took: Duration,
    ) {
        match reason {
            FinishReason::Stop => count(&self.n_stopped, 1),
            FinishReason::Length => count(&self.n_cut, 1),
        }
        count(&self.prompt_tokens, usage.prompt_tokens);
        count(&self.cached_tokens, usage.cached_tokens);
        count(&self.completion_tokens, usage.completion_tokens);
        self.request_time.add(took);
        self.prefill_time.add(usage.prefill);
        self.prompt_lengths.add_value(usage.prompt_tokens as f64);
        let length = usage.completion_tokens as f64;
        self.completion_lengths.add_value(length);
        let mut clients = lock(&self.clients);
        let is_known = clients.len() < MAX_CLIENTS || clients.contains_key(client);
        let name = if is_known {
            Arc::clone(client)
        } else {
            OTHERS.into()
        };
        let own = clients.entry(name).or_default();
        *own += ClientCounts {
            n_requests: 1,
            prompt_tokens: usage.prompt_tokens as u64,
            completion_tokens: usage.completion_tokens as u64,
        };
    }

    /// The counts of each client since the start.
    pub fn clients(&self) -> BTreeMap<Arc<str>, ClientCounts> {
        lock(&self.clients).clone()
    }

    /// Counts a token. `after` is the time since the token before it or, for the first one, since the arrival of
    /// the request.
    pub(super) fn token(&self, is_first: bool, after: Duration) {
        match is_first {
            true => self.first_token.add(after),
            false => self.between_tokens.add(after),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_beyond_the_limit_are_counted_together() {
        let stats = Stats::default();
        let usage = Usage {
            prompt_tokens: 2,
            completion_tokens: 3,
            ..Usage::default()
        };
        for i in 0..MAX_CLIENTS + 5 {
            stats.done(
                FinishReason::Stop,
                &usage,
                &i.to_string().into(),
                Duration::ZERO,
            );
        }
        stats.done(FinishReason::Length, &usage, &"7".into(), Duration::ZERO);
        let clients = stats.clients();
        assert_eq!(clients.len(), MAX_CLIENTS + 1);
        let of = |name: &str| clients[name];
        assert_eq!((of("7").n_requests, of("7").prompt_tokens), (2, 4));
        assert_eq!(
            (of(OTHERS).n_requests, of(OTHERS).completion_tokens),
            (5, 15)
        );
    }

    #[test]
    fn a_duration_counts_in_every_interval_that_holds_it() {
        let histogram = Histogram::new(&[0.1, 1.0]);
        for millis in [50, 100, 500, 3000] {
            histogram.add(Duration::from_millis(millis));
        }
        let counts = histogram.cumulative();
        assert_eq!(counts, [(0.1, 2), (1.0, 3), (f64::INFINITY, 4)]);
        assert!((histogram.sum() - 3.65).abs() < 1e-9);
    }
}
