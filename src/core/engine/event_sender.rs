//! The sending end of a completion's events, and the place of its request in the queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use tokio::sync::mpsc;

use super::event::Event;
use super::stats::Stats;

/// The sending end of a completion's events, and the place of its request in the queue.
pub(super) struct EventSender {
    /// The receiver closes the channel to cancel the request.
    pub(super) events: mpsc::UnboundedSender<Event>,
    pub(super) arrived: Instant,
    pub(super) stats: Arc<Stats>,
    /// Shared by the completions of a request.
    pub(super) permit: Arc<QueuePermit>,
}

/// A place among the waiting and active requests, given back when the last of its completions drops it.
pub(super) struct QueuePermit(Arc<AtomicUsize>);

impl QueuePermit {
    /// Takes a place if fewer than `limit` are taken. All completions of a request share one place, so that a request
    /// with many of them leaves places for others.
    pub(super) fn take(places: &Arc<AtomicUsize>, limit: usize) -> Option<Arc<Self>> {
        let more = |taken| (taken < limit).then_some(taken + 1);
        let taken = places.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        taken.ok()?;
        Some(Arc::new(Self(Arc::clone(places))))
    }
}

impl Drop for QueuePermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
