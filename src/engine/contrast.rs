//! Contrastive search while an answer runs: every candidate is read once before one is chosen.
//!
//! The candidates for a token are read one after another in the steps that follow, each as a token
//! that is taken back again; other requests go on beside them. The chosen one is then read for good
//! together with the first candidate for the next token. Not for models with states, which cannot
//! be taken back.

use crate::sampling::{Candidate, Contrastive, SampleError};

/// The search of one answer.
pub(super) struct Contrast {
    search: Contrastive,
    /// Tokens whose rows the search has taken in: positions before this need none.
    n_read: usize,
    /// Logits that the candidates come from.
    from: Vec<f32>,
    candidates: Vec<Candidate>,
    /// Logits and stream of the candidates read so far.
    logits: Vec<Vec<f32>>,
    hidden: Vec<f32>,
}

/// A token that was chosen, and the logits that it was a candidate of.
pub(super) struct Chosen {
    pub(super) token: u32,
    pub(super) from: Vec<f32>,
}

impl Contrast {
    pub(super) fn new(search: Contrastive) -> Self {
        Self {
            search,
            n_read: 0,
            from: Vec::new(),
            candidates: Vec::new(),
            logits: Vec::new(),
            hidden: Vec::new(),
        }
    }

    /// The candidate that is to be read next.
    pub(super) fn probe(&self) -> Option<u32> {
        let next = self.candidates.get(self.logits.len());
        next.map(|candidate| candidate.id)
    }

    /// Tokens whose rows were taken in.
    pub(super) fn n_read(&self) -> usize {
        self.n_read
    }

    /// Whether the row of the token at `position` is needed.
    pub(super) fn wants(&self, position: usize) -> bool {
        position >= self.n_read
    }

    /// Takes in a token of the prompt.
    pub(super) fn read(&mut self, token: u32, hidden: &[f32]) -> Result<(), SampleError> {
        self.n_read += 1;
        self.search.accept_prompt(&[token], hidden)
    }

    /// Finds the candidates for the token behind `logits`.
    pub(super) fn look_ahead(&mut self, logits: Vec<f32>) -> Result<(), SampleError> {
        self.candidates = self.search.candidates(&logits, None)?;
        self.from = logits;
        self.logits.clear();
        self.hidden.clear();
        Ok(())
    }

    /// Takes in the row of the candidate that was read. Chooses one when all were.
    pub(super) fn add(
        &mut self,
        logits: &[f32],
        hidden: &[f32],
    ) -> Result<Option<Chosen>, SampleError> {
        self.logits.push(logits.to_vec());
        self.hidden.extend_from_slice(hidden);
        if self.logits.len() < self.candidates.len() {
            return Ok(None);
        }
        let at = self.search.choose(&self.candidates, &self.hidden)?;
        let token = self.candidates[at].id;
        let width = hidden.len();
        let row = &self.hidden[at * width..(at + 1) * width];
        self.search.accept(token, row)?;
        self.n_read += 1;
        let next = self.logits.swap_remove(at);
        let from = std::mem::take(&mut self.from);
        self.look_ahead(next)?;
        Ok(Some(Chosen { token, from }))
    }
}
