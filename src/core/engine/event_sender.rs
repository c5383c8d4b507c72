//! The sending end of a completion's events, and the place of its request in the queue.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::mpsc;

use super::client::QueuePermit;
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
