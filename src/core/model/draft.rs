//! What a drafter is asked for and what it gives: tokens that may follow a sequence, each with a probability.

use super::cache::SequenceId;
use super::error::Result;
use super::memory_use::MemoryUse;

/// A sequence whose next tokens are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraftRequest<'a> {
    pub sequence: SequenceId,
    /// The tokens of the sequence, of which the last one is not read yet.
    pub tokens: &'a [u32],
    /// Maximum number of draft tokens.
    pub most: usize,
}

/// Tokens that may follow a sequence.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Draft {
    pub tokens: Vec<u32>,
    /// For each token its probability after those before it, as the drafter sees it: 0 to 1.
    pub probabilities: Vec<f32>,
}

/// What drafts for a model, which tells it of its sequences and, where it reads them, of the values of its passes.
pub(super) trait DraftModel {
    fn memory(&self) -> MemoryUse;
    /// Elements of a row of its logits.
    fn n_logits(&self) -> usize;
    /// The most tokens of a draft.
    fn most(&self) -> usize;
    /// Whether all tokens of a draft are made in one pass.
    fn drafts_blocks(&self) -> bool;
    /// Keeps the rows of the target `[width, n]` of tokens at these places, in the order of positions of each sequence.
    fn keep(&mut self, places: &[(SequenceId, u32)], rows: &[f32]);
    /// Ends a sequence.
    fn release(&mut self, sequence: SequenceId);
    /// Forgets what the target has forgotten: the positions of a sequence from `from` on.
    fn forget(&mut self, sequence: SequenceId, from: u32);
    /// Drafts for sequences, together. A sequence whose rows are not known gets no draft.
    fn draft(&mut self, wanted: &[DraftRequest<'_>]) -> Result<Vec<Draft>>;
    /// The logits `[n_logits, n]` after each new token of a sequence, then after each token of its draft but the last.
    fn logits(&mut self, request: &DraftRequest<'_>) -> Result<Vec<f32>>;
}
