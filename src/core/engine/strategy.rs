//! How the tokens of one request are found. The engine loop runs requests and knows no strategy. A strategy reads
//! one [`Sequence`] and its rows, and knows neither the model nor other requests.

use std::ops::Range;
use std::sync::Arc;

use crate::model::Batch;
use lab_sampling::TopLogits;

use super::draft::Drafter;
use super::event::{Failure, FinishReason};
use super::scheduler::Job;
use super::sequence::Sequence;

/// How a completion ends in a step, if it does.
pub(super) type StepOutcome = Result<Option<FinishReason>, Failure>;

/// The results of a pass for one token.
#[derive(Clone, Copy)]
pub(super) struct OutputRow<'l> {
    /// The index of the token's sequence among those of the request.
    pub(super) part: usize,
    /// Position of the token.
    pub(super) position: usize,
    /// Logits `[n_vocab]`.
    pub(super) logits: &'l [f32],
    /// The hidden state `[n_embd]` after the final norm; empty where it was not wanted.
    pub(super) hidden: &'l [f32],
}

/// What a request did with the highest logits of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowUse {
    /// It took the row.
    Taken,
    /// It needs all logits of the row, and changed nothing.
    NeedsAll,
}

/// All that the rows of a pass over an unfinished text depend on.
#[derive(PartialEq)]
pub(super) struct SharedInput<'s> {
    pub(super) tokens: &'s [u32],
    pub(super) n_prompt: usize,
    pub(super) scales: &'s [f32],
    /// The positions that the pass fills.
    pub(super) block: &'s Range<usize>,
    /// For each position whether its token is fixed.
    pub(super) is_fixed: &'s [bool],
    pub(super) cfg_scale: Option<f64>,
}

/// A way of decoding one request. A step calls these methods in this order.
pub(super) trait Strategy: Send {
    /// Whether the prompt may come from the prefix cache.
    fn reuses_prefix(&self) -> bool {
        false
    }

    /// Chooses the tokens of the next step beyond the pending ones: forced and draft tokens.
    fn prepare(&mut self, _sequence: &mut Sequence) -> StepOutcome {
        Ok(None)
    }

    /// What drafts its tokens, if anything does.
    fn drafter(&mut self) -> Option<&mut Drafter> {
        None
    }

    /// The request as a job of the scheduler.
    fn job(&self, sequence: &Sequence) -> Job;

    /// All that the rows of the next pass depend on, if requests with the same input may share them.
    fn shared_input<'s>(&'s self, _sequence: &'s Sequence) -> Option<SharedInput<'s>> {
        None
    }

    /// Adds the next `n` tokens to a pass.
    fn read(&mut self, sequence: &mut Sequence, n: usize, batch: &mut Batch);

    /// Whether the step after this one probably reads one token, unless the token that this one chooses ends the completion. None if
    /// this one certainly is the last.
    fn continues(&self, _sequence: &Sequence) -> Option<bool> {
        Some(false)
    }

    /// The tokens that are banned, if the token that this step or one `later` chooses is the one with the highest logit of all others,
    /// and the step after it reads it. At most [`MAX_BANNED`](crate::model::MAX_BANNED).
    fn takes_best(&self, _sequence: &Sequence, _later: usize) -> Option<Arc<[u32]>> {
        None
    }

    /// The logits to choose from, made of a row; none while they need further rows.
    fn logits<'l>(&self, row: &OutputRow<'l>, _buffer: &'l mut Vec<f32>) -> Option<&'l [f32]> {
        Some(row.logits)
    }

    /// Whether the highest logits of its rows are worth a try. Only a strategy that needs no row of another sequence says so.
    fn tries_top(&self, _sequence: &Sequence) -> bool {
        false
    }

    /// Processes the row of a position if its highest logits suffice.
    fn take_top(
        &mut self,
        _sequence: &mut Sequence,
        _position: usize,
        _top: TopLogits<'_>,
    ) -> Result<RowUse, Failure> {
        Ok(RowUse::NeedsAll)
    }

    /// Processes a row, which has the logits to choose from.
    fn take(&mut self, sequence: &mut Sequence, row: &OutputRow<'_>) -> Result<(), Failure>;

    /// Commits the results of a step, after all its rows. Sets in the sequence how many of the cached tokens stay
    /// valid.
    fn commit(&mut self, sequence: &mut Sequence) -> StepOutcome;

    /// The hidden states to pool, once all are there.
    fn gathered(&self) -> Option<&[f32]> {
        None
    }

    /// Drops the state of a failed step. Returns whether the cached tokens must be dropped too.
    fn abort(&mut self) -> bool {
        false
    }
}
