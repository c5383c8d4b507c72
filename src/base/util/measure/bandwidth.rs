//! The memory bandwidth of this machine: the upper bound of any work that reads all weights in each step.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Bytes that all threads together sum: more than any cache that they may share.
const BYTES: usize = 512 << 20;
/// Minimum number of bytes per thread, for machines with many threads.
const LEAST_PER_THREAD: usize = 16 << 20;
/// Maximum number of sums, and the time after which no further sum begins. The fastest sum counts.
const RUNS: usize = 6;
const TIME: Duration = Duration::from_millis(400);

/// The bytes per second that `n_threads` threads together read from memory: the fastest of several sums over a buffer
/// much larger than the caches.
pub fn read_bandwidth(n_threads: usize) -> f64 {
    let n_threads = n_threads.max(1);
    sum_rate(n_threads, (BYTES / n_threads).max(LEAST_PER_THREAD), RUNS)
}

/// The rate of the fastest of at most `runs` sums over `bytes` for each thread, in bytes per second.
fn sum_rate(n_threads: usize, bytes: usize, runs: usize) -> f64 {
    let words = bytes / size_of::<u64>();
    let barrier = Barrier::new(n_threads);
    // The index of the first run that does not take place. The first thread lowers it, but never to a run that has
    // begun.
    let end_of_runs = AtomicUsize::new(runs);
    let spans: Vec<Vec<(Instant, Instant)>> = std::thread::scope(|scope| {
        let work = |i: usize| {
            // Every word is written: pages that were never written all map to one page of zeros.
            let data: Vec<u64> = (0..words).map(|word| (word ^ i) as u64).collect();
            let mut spent = Duration::ZERO;
            let timed = |run| {
                barrier.wait();
                if run >= end_of_runs.load(Ordering::Relaxed) {
                    return None;
                }
                let start = Instant::now();
                std::hint::black_box(sum(std::hint::black_box(&data)));
                let end = Instant::now();
                spent += end - start;
                if i == 0 && spent >= TIME {
                    end_of_runs.store(run + 1, Ordering::Relaxed);
                }
                Some((start, end))
            };
            (0..runs).map_while(timed).collect()
        };
        let workers: Vec<_> = (0..n_threads)
            .map(|i| scope.spawn(move || work(i)))
            .collect();
        workers
            .into_iter()
            .filter_map(|worker| worker.join().ok())
            .collect()
    });
    let seconds = |run: usize| {
        let all = spans.iter().filter_map(|thread| thread.get(run));
        let start = all.clone().map(|(start, _)| *start).min();
        let end = all.map(|(_, end)| *end).max();
        match (start, end) {
            (Some(start), Some(end)) => (end - start).as_secs_f64(),
            _ => f64::INFINITY,
        }
    };
    let fastest = (0..runs).map(seconds).fold(f64::INFINITY, f64::min);
    (spans.len() * words * size_of::<u64>()) as f64 / fastest
}

/// The sum of all words. The compiler vectorises a plain fold. Nested loops over parts stay loops with a call in them,
/// which is slower than memory.
fn sum(data: &[u64]) -> u64 {
    data.iter().fold(0, |sum, word| sum.wrapping_add(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_read() {
        for n in [0, 1, 15, 16, 17, 1000] {
            let data: Vec<u64> = (0..n).map(|i| i * i + 1).collect();
            let squares = if n == 0 {
                0
            } else {
                (n - 1) * n * (2 * n - 1) / 6
            };
            assert_eq!(sum(&data), squares + n, "{n}");
        }
    }

    #[test]
    fn a_rate_is_of_this_world() {
        let rate = sum_rate(2, 1 << 20, 3);
        assert!((1e7..1e13).contains(&rate), "{rate}");
    }
}
