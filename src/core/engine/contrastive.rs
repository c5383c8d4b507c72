//! Contrastive search: every candidate is read once before one is chosen.
//!
//! The following steps read the candidates for a token one after another. Each candidate is rolled back after its
//! step. Other requests continue meanwhile. The chosen candidate is then read again and kept, together with the
//! first candidate for the next token. Models with recurrent states, which cannot be rolled back, are excluded.

use crate::model::Batch;
use lab_sampling::{ContrastiveCandidate, ContrastiveSearch, SampleError};

use super::event::{Failure, FinishReason};
use super::scheduler::Job;
use super::sequence::Sequence;
use super::strategy::{OutputRow, StepOutcome, Strategy};

pub(super) struct ContrastiveStrategy {
    search: ContrastiveSearch,
    /// Maximum length of prompt and completion.
    limit: usize,
    /// Tokens whose hidden states the search has read. Earlier positions need no row.
    n_taken: usize,
    /// The logits that the candidates come from.
    from: Vec<f32>,
    candidates: Vec<ContrastiveCandidate>,
    /// Logits and hidden states of the candidates read so far.
    logits: Vec<Vec<f32>>,
    hidden: Vec<f32>,
    /// Whether the current step reads all pending tokens.
    is_last: bool,
}

impl ContrastiveStrategy {
    pub(super) fn new(search: ContrastiveSearch, limit: usize) -> Self {
        Self {
            search,
            limit,
            n_taken: 0,
            from: Vec::new(),
            candidates: Vec::new(),
            logits: Vec::new(),
            hidden: Vec::new(),
            is_last: false,
        }
    }

    /// The candidate to be read next.
    fn probe(&self) -> Option<u32> {
        let next = self.candidates.get(self.logits.len());
        next.map(|candidate| candidate.id)
    }

    /// Finds the candidates for the next token among `logits`.
    fn look_ahead(&mut self, logits: Vec<f32>) -> Result<(), SampleError> {
        self.candidates = self.search.candidates(&logits, None)?;
        self.from = logits;
        self.logits.clear();
        self.hidden.clear();
        Ok(())
    }

    /// Adds the row of a candidate. After the last one, chooses a candidate and returns it with the logits that it
    /// came from.
    fn add(&mut self, row: &OutputRow<'_>) -> Result<Option<(u32, Vec<f32>)>, SampleError> {
        self.logits.push(row.logits.to_vec());
        self.hidden.extend_from_slice(row.hidden);
        if self.logits.len() < self.candidates.len() {
            return Ok(None);
        }
        let at = self.search.choose(&self.candidates, &self.hidden)?;
        let token = self.candidates[at].id;
        let n_embd = row.hidden.len();
        let hidden = &self.hidden[at * n_embd..(at + 1) * n_embd];
        self.search.accept(token, hidden)?;
        self.n_taken += 1;
        let next = self.logits.swap_remove(at);
        let from = std::mem::take(&mut self.from);
        self.look_ahead(next)?;
        Ok(Some((token, from)))
    }
}

impl Strategy for ContrastiveStrategy {
    fn job(&self, sequence: &Sequence) -> Job {
        let job = sequence.job();
        Job {
            pending: job.pending + usize::from(self.probe().is_some()),
            ..job
        }
    }

    fn read(&mut self, sequence: &mut Sequence, n: usize, batch: &mut Batch) {
        batch.wants_hidden = true;
        let probe = self.probe();
        let tokens = sequence.pending().iter().chain(&probe).take(n);
        for (token, position) in tokens.zip(sequence.n_cached..) {
            let wants_logits = position >= self.n_taken;
            batch.push(*token, sequence.id, position as u32, wants_logits);
        }
        self.is_last = n >= sequence.pending().len();
        sequence.read(n);
    }

    fn take(&mut self, sequence: &mut Sequence, row: &OutputRow<'_>) -> Result<(), Failure> {
        let n_tokens = sequence.tokens.len();
        if row.position < n_tokens {
            self.n_taken += 1;
            let token = sequence.tokens[row.position];
            self.search.accept_prompt(&[token], row.hidden)?;
            if row.position + 1 == n_tokens {
                sequence.answer.prefilled();
                self.look_ahead(row.logits.to_vec())?;
            }
            return Ok(());
        }
        if let Some((token, from)) = self.add(row)? {
            let entry = sequence.answer.entry(token, &from)?;
            sequence.push(token, entry);
            if sequence.ending.is_none() && sequence.tokens.len() >= self.limit {
                sequence.ending = Some(FinishReason::Length);
            }
        }
        Ok(())
    }

    fn commit(&mut self, sequence: &mut Sequence) -> StepOutcome {
        sequence.commit(self.is_last, 0);
        Ok(sequence.conclude())
    }
}
