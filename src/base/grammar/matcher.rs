//! The state of one completion under its constraint: token mask and forced tokens.
//!
//! A thin layer over the constraint library that translates its states and messages. The engine's worker calls it; it
//! starts no threads.

use std::fmt;

use super::Error;

/// The state of one completion in its grammar. A clone advances independently.
#[derive(Clone)]
pub struct Matcher {
    pub(super) inner: llguidance::Matcher,
}

impl Matcher {
    pub(super) fn new(inner: llguidance::Matcher) -> Self {
        Self { inner }
    }

    /// A copy that shares no cache with this one.
    pub(super) fn apart(&self) -> Self {
        Self::new(self.inner.deep_clone())
    }

    /// The token mask: bit `i % 32` of word `i / 32` is set if token `i` of the tokenizer's vocabulary
    /// may come next. End-of-generation tokens are allowed exactly where the completion may stop. The
    /// mask is empty once the completion is complete.
    ///
    /// # Errors
    /// The grammar needs too much work here, or no token of the vocabulary continues it.
    pub fn mask(&mut self) -> Result<Vec<u32>, Error> {
        if self.is_stopped() {
            return Ok(Vec::new());
        }
        self.inner
            .compute_mask()
            .map(Vec::from)
            .map_err(|error| Error::broken(&error))
    }

    /// Advances by the chosen token.
    ///
    /// # Errors
    /// The grammar does not allow the token here. The matcher is unusable from then on.
    pub fn accept(&mut self, token: u32) -> Result<(), Error> {
        self.inner
            .consume_token(token)
            .map_err(|error| Error::broken(&error))
    }

    /// The forced tokens, the only ones that may come next; the state advances past them.
    ///
    /// # Errors
    /// The grammar needs too much work here.
    pub fn forced(&mut self) -> Result<Vec<u32>, Error> {
        let mut all = Vec::new();
        while !self.is_stopped() {
            let tokens = self.inner.consume_ff_tokens();
            if tokens.is_empty() {
                break;
            }
            all.extend(tokens);
        }
        match self.inner.get_error() {
            Some(message) => Err(Error::broken(&message)),
            None => Ok(all),
        }
    }

    /// Whether the completion is complete: the grammar allows no further token.
    pub fn is_stopped(&self) -> bool {
        self.inner.is_stopped() && !self.inner.is_error()
    }

    /// Whether the completion may end here.
    pub fn may_stop(&mut self) -> Result<bool, Error> {
        if self.is_stopped() {
            return Ok(true);
        }
        self.inner
            .is_accepting()
            .map_err(|error| Error::broken(&error))
    }
}

impl fmt::Debug for Matcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Matcher")
            .field("stopped", &self.is_stopped())
            .finish_non_exhaustive()
    }
}
