//! How the tokens of one request are found. The engine loop runs requests and knows no strategy; a
//! strategy sees one [`Sequence`] and its rows, and neither the model nor any other request.

use std::any::Any;

use crate::model::Batch;
use crate::text::tokenizer::Tokenizer;

use super::event::{Failure, FinishReason};
use super::scheduler::Job;
use super::sequence::Sequence;

/// Why a completion ends in a step, if it does.
pub(super) type Ending = Result<Option<FinishReason>, Failure>;

/// What a pass computed of one token.
#[derive(Clone, Copy)]
pub(super) struct Row<'l> {
    /// Which of the request's sequences the token is of, from 0.
    pub(super) part: usize,
    /// Position of the token.
    pub(super) position: usize,
    /// `[n_vocab]`.
    pub(super) logits: &'l [f32],
    /// `[n_embd]`, the hidden state after the final norm; empty where it was not wanted.
    pub(super) hidden: &'l [f32],
}

/// A way of decoding one request. A step calls these methods from the first to the last.
pub(super) trait Strategy: Any {
    /// Whether the prompt may come from the prefix cache.
    fn reuses_prefix(&self) -> bool {
        false
    }

    /// Decides what the next step shall read beyond the pending tokens, forced and draft tokens.
    fn prepare(&mut self, _sequence: &mut Sequence, _tokenizer: &Tokenizer) -> Ending {
        Ok(None)
    }

    /// What the request is to the scheduler.
    fn job(&self, sequence: &Sequence) -> Job;

    /// Whether a pass over the other request is one over this request too.
    fn is_duplicate(&self, _sequence: &Sequence, _other: (&Sequence, &dyn Strategy)) -> bool {
        false
    }

    /// Adds the next `n` tokens to a pass.
    fn read(&mut self, sequence: &mut Sequence, n: usize, batch: &mut Batch);

    /// The logits to choose by, made from a row; none as long as other rows belong to them.
    fn logits<'l>(&self, row: &Row<'l>, _buffer: &'l mut Vec<f32>) -> Option<&'l [f32]> {
        Some(row.logits)
    }

    /// Takes in a row, and the logits to choose by.
    fn take(
        &mut self,
        sequence: &mut Sequence,
        row: &Row<'_>,
        tokenizer: &Tokenizer,
    ) -> Result<(), Failure>;

    /// Commits what a step brought, after all its rows. Leaves in the sequence how much of what is
    /// cached stays true.
    fn commit(&mut self, sequence: &mut Sequence, tokenizer: &Tokenizer) -> Ending;

    /// The hidden states that the model shall make the result of, once all are there.
    fn gathered(&self) -> Option<&[f32]> {
        None
    }

    /// Drops what a failed step had started. Returns whether what is cached must go too.
    fn abort(&mut self) -> bool {
        false
    }
}
