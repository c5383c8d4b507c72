//! The tokens of a pass, their positions, and which of them want a result.

use std::sync::Arc;

use super::cache::SequenceId;
use super::error::{Error, Result};

/// Most ids that are banned after a token ([`Batch::banned`]).
pub const MAX_BANNED: usize = 16;

/// Tokens of one pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Token ids.
    pub tokens: Vec<u32>,
    /// Sequence and position of each token.
    pub positions: Vec<(SequenceId, u32)>,
    /// For each token, whether it wants logits.
    pub outputs: Vec<bool>,
    /// Type of each token: 0 except for the second text of a pair. Models without token types ignore it.
    pub types: Vec<u32>,
    /// For each token the ids that are not taken for the best token after it, where a device finds that; at most [`MAX_BANNED`].
    pub banned: Vec<Arc<[u32]>>,
    /// Whether the tokens that want logits want the hidden state after the final norm too.
    pub wants_hidden: bool,
    /// Whether the highest logits of rows suffice, in any order of the rows of different sequences.
    pub wants_top: bool,
}

impl Batch {
    /// Adds a token.
    pub fn push(&mut self, token: u32, sequence: SequenceId, position: u32, wants_logits: bool) {
        self.push_of_type(token, (sequence, position), 0, wants_logits);
    }

    /// Adds a token with a token type.
    pub fn push_of_type(
        &mut self,
        token: u32,
        place: (SequenceId, u32),
        token_type: u32,
        wants_logits: bool,
    ) {
        self.tokens.push(token);
        self.positions.push(place);
        self.outputs.push(wants_logits);
        self.types.push(token_type);
        self.banned.push(Arc::default());
    }

    /// Adds token `at` of another batch.
    pub(super) fn push_from(&mut self, other: &Self, at: usize) {
        let (token, place) = (other.tokens[at], other.positions[at]);
        self.push_of_type(token, place, other.types[at], other.outputs[at]);
        self.ban(Arc::clone(&other.banned[at]));
    }

    /// Bans ids after the token that was added last.
    pub fn ban(&mut self, ids: Arc<[u32]>) {
        if let Some(last) = self.banned.last_mut() {
            *last = ids;
        }
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Number of tokens that want logits.
    pub fn n_outputs(&self) -> usize {
        self.outputs.iter().filter(|wanted| **wanted).count()
    }

    /// Whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Removes all tokens and keeps the allocated memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.outputs.clear();
        self.types.clear();
        self.banned.clear();
        self.wants_hidden = false;
        self.wants_top = false;
    }

    /// Checks that a model with a vocabulary of `n_vocab` tokens can run the batch. Whether media are there is checked when
    /// their rows are gathered.
    pub(super) fn check(
        &self,
        n_batch: usize,
        n_vocab: u64,
        is_medium: impl Fn(u32) -> bool,
    ) -> Result<()> {
        let fault = |found: String, expected: String| Err(Error::Batch { found, expected });
        let n = self.len();
        if n == 0 || n > n_batch {
            return fault(format!("{n} tokens"), format!("1 to {n_batch} tokens"));
        }
        let lists = [
            self.positions.len(),
            self.outputs.len(),
            self.types.len(),
            self.banned.len(),
        ];
        if lists.iter().any(|len| *len != n) {
            return fault(
                "lists of different lengths".into(),
                "a position, an output, a type and banned ids for each token".into(),
            );
        }
        if let Some(token) = self
            .tokens
            .iter()
            .find(|t| u64::from(**t) >= n_vocab && !is_medium(**t))
        {
            return fault(
                format!("the token {token}, which is not in the vocabulary"),
                format!("ids below {n_vocab}"),
            );
        }
        let mut positions = self.positions.clone();
        positions.sort_unstable();
        if let Some(pair) = positions.windows(2).find(|pair| pair[0] == pair[1]) {
            return fault(
                format!("position {} of sequence {} twice", pair[0].1, pair[0].0),
                "each position once".into(),
            );
        }
        if let Some((_, position)) = positions
            .iter()
            .find(|(_, position)| *position > i32::MAX as u32)
        {
            return fault(
                format!("position {position}"),
                format!("positions up to {}", i32::MAX),
            );
        }
        Ok(())
    }
}
