//! What a drafter is asked for and what it gives: tokens that may follow a sequence, each with a probability.

use super::cache::SequenceId;

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
