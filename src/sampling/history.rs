//! The tokens of one choice so far: those the model was given and those it generated.
//!
//! Grows only. Its count of generated tokens numbers the random draws.

/// Where a token came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// Part of the prompt.
    Given,
    /// Part of the completion.
    Generated,
}

/// The tokens so far, oldest first.
#[derive(Debug, Default)]
pub(super) struct History {
    tokens: Vec<u32>,
    n_generated: u64,
}

impl History {
    /// Appends tokens of one origin.
    pub(super) fn extend(&mut self, tokens: &[u32], origin: Origin) {
        self.tokens.extend_from_slice(tokens);
        if origin == Origin::Generated {
            self.n_generated += tokens.len() as u64;
        }
    }

    /// All tokens, oldest first.
    pub(super) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// How many of them were generated.
    pub(super) fn n_generated(&self) -> u64 {
        self.n_generated
    }
}
