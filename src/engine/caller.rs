//! The receiver of a request's events, and its place in the queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use tokio::sync::mpsc;

use super::event::Event;
use super::stats::Stats;

/// The receiver of a request's events, and its place in the queue.
pub(super) struct Caller {
    /// The receiver closes the channel to cancel the request.
    pub(super) events: mpsc::UnboundedSender<Event>,
    pub(super) arrived: Instant,
    pub(super) stats: Arc<Stats>,
    pub(super) _ticket: Ticket,
}

/// A place among the waiting and active requests, given back when it is dropped.
pub(super) struct Ticket(Arc<AtomicUsize>);

impl Ticket {
    /// Takes `n` places if fewer than `limit` are taken. The completions of one request are queued together,
    /// whatever their number.
    pub(super) fn take(places: &Arc<AtomicUsize>, limit: usize, n: usize) -> Option<Vec<Self>> {
        let more = |taken| (taken < limit).then_some(taken + n);
        let taken = places.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        taken.ok()?;
        Some((0..n).map(|_| Self(Arc::clone(places))).collect())
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
