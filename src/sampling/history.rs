//! The tokens of one choice so far: those of the prompt and those that were generated.
//!
//! The history only grows. Its count of generated tokens is the index of the random draws.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenOrigin {
    Given,
    Generated,
}

#[derive(Debug, Default)]
pub(super) struct History {
    tokens: Vec<u32>,
    n_generated: u64,
}

impl History {
    pub(super) fn extend(&mut self, tokens: &[u32], origin: TokenOrigin) {
        self.tokens.extend_from_slice(tokens);
        if origin == TokenOrigin::Generated {
            self.n_generated += tokens.len() as u64;
        }
    }

    pub(super) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    pub(super) fn n_generated(&self) -> u64 {
        self.n_generated
    }
}
