//! A way of generating, and the loop that each of them runs in.

use std::time::Instant;

use tokio::sync::mpsc;

use super::answer::Answer;
use super::{Limits, Submitted};

/// What the engine's thread does with requests.
pub(super) trait Way {
    /// Takes a request, which waits for its turn.
    fn enqueue(&mut self, submitted: Submitted);
    /// Whether nothing waits or runs.
    fn is_idle(&self) -> bool;
    /// Lets the threads that compute sleep.
    fn rest(&self);
    /// One step, with all that is to be done around it.
    fn turn(&mut self);
}

/// Serves requests until the last handle is gone and every answer is complete.
pub(super) fn serve(mut way: impl Way, mut requests: mpsc::UnboundedReceiver<Submitted>) {
    loop {
        if way.is_idle() {
            way.rest();
            match requests.blocking_recv() {
                Some(submitted) => way.enqueue(submitted),
                None => return,
            }
        }
        while let Ok(submitted) = requests.try_recv() {
            way.enqueue(submitted);
        }
        way.turn();
    }
}

/// A request that waits or runs.
pub(super) trait Asked {
    /// What was told of it.
    fn answer(&self) -> &Answer;
    /// That alone, to end it.
    fn into_answer(self) -> Answer;
}

/// Ends those that nobody waits for and those that take too long, each shown to `end` first.
pub(super) fn let_go<T: Asked, L>(list: &mut L, limits: &Limits, mut end: impl FnMut(&T))
where
    L: Default + IntoIterator<Item = T> + FromIterator<T>,
{
    let now = Instant::now();
    let stays = |asked: T| {
        if !asked.answer().is_over(limits, now) {
            return Some(asked);
        }
        end(&asked);
        asked.into_answer().end_early(limits, now);
        None
    };
    *list = std::mem::take(list).into_iter().filter_map(stays).collect();
}
