//! What routers are told of the prefix cache: the changes of each step, on their way from the engine thread to who sends them.

use std::time::SystemTime;

use tokio::sync::mpsc::{self, Receiver, Sender};

use crate::model::KvEvent;

/// Maximum number of batches that wait to be sent.
const MAX_WAITING: usize = 10_000;

/// The changes of the prefix cache in a step.
#[derive(Clone, Debug, PartialEq)]
pub struct KvEventBatch {
    /// Number of batches before it. Where one is missing, it was lost.
    pub number: u64,
    pub time: SystemTime,
    pub events: Vec<KvEvent>,
}

/// The end of a channel that an engine gets. It never waits: batches that nobody takes are lost.
#[derive(Clone, Debug)]
pub struct KvEventSender(Sender<KvEventBatch>);

/// A channel from an engine to who sends its events.
pub fn kv_event_channel() -> (KvEventSender, Receiver<KvEventBatch>) {
    let (sender, receiver) = mpsc::channel(MAX_WAITING);
    (KvEventSender(sender), receiver)
}

/// Numbers the batches of an engine.
pub(super) struct KvEventQueue {
    sender: KvEventSender,
    next: u64,
    is_behind: bool,
}

impl KvEventQueue {
    /// A queue that begins with the event that nothing is cached: an engine before it may have ended without a word.
    pub(super) fn new(sender: KvEventSender) -> Self {
        let mut queue = Self {
            sender,
            next: 0,
            is_behind: false,
        };
        queue.push(vec![KvEvent::AllBlocksCleared]);
        queue
    }

    pub(super) fn push(&mut self, events: Vec<KvEvent>) {
        if events.is_empty() {
            return;
        }
        let batch = KvEventBatch {
            number: self.next,
            time: SystemTime::now(),
            events,
        };
        self.next += 1;
        let is_lost = self.sender.0.try_send(batch).is_err();
        if is_lost && !self.is_behind {
            tracing::warn!("KV events are lost: they are not sent as fast as they come");
        }
        self.is_behind = is_lost;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_that_is_lost_leaves_a_gap_and_the_engine_does_not_wait() {
        let (sender, mut receiver) = kv_event_channel();
        let mut queue = KvEventQueue::new(sender);
        let event = || vec![KvEvent::BlockRemoved { hashes: vec![1] }];
        (0..MAX_WAITING).for_each(|_| queue.push(event()));
        queue.push(Vec::new());
        let first = receiver.try_recv().expect("a batch");
        assert_eq!(
            (first.number, first.events),
            (0, vec![KvEvent::AllBlocksCleared])
        );
        queue.push(event());
        let numbers = std::iter::from_fn(|| Some(receiver.try_recv().ok()?.number));
        let numbers: Vec<u64> = numbers.collect();
        let gap = MAX_WAITING as u64;
        assert_eq!(numbers.len(), MAX_WAITING);
        assert!(numbers.iter().all(|number| *number != gap), "it was lost");
        assert_eq!(numbers.last(), Some(&(gap + 1)));
    }
}
