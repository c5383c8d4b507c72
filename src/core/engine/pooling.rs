//! Pooling: the vector of a text, or the scores of its classes, made of its hidden states.
//!
//! Nothing is generated. This strategy gathers the hidden states that the model's pooling needs. Once all are
//! there, the model computes the result ([`Compute::pool`](super::compute::Compute::pool)).

use crate::arch::Mode;
use crate::model::{Batch, Model};
use crate::plan::Pooling;

use super::compute::BLOCK;
use super::event::{Failure, FinishReason};
use super::scheduler::Job;
use super::sequence::Sequence;
use super::strategy::{OutputRow, StepOutcome, Strategy};

/// Rows of a step whose hidden states are kept with their logits, where a model has both.
const N_ROWS: usize = 4 * BLOCK;

/// A text, or a pair of texts, whose vector or scores are wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passage {
    /// Token ids.
    pub tokens: Vec<u32>,
    /// Where the second text of a pair starts. Its tokens are of type 1.
    pub second: Option<usize>,
}

/// How a model pools a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PoolingModel {
    pooling: Pooling,
    /// Whether the results of the model's passes are hidden states, because no logits are computed.
    pub(super) gives_hidden: bool,
    /// Whether tokens attend to later ones, so that one pass reads all of them.
    is_whole: bool,
    /// Rows of the table of token types.
    n_types: u64,
}

impl PoolingModel {
    pub(super) fn of(model: &Model) -> Self {
        let plan = model.plan();
        let types = plan.embed.weight("types");
        let head = plan.head.as_ref().and_then(|head| head.unit.as_ref());
        Self {
            pooling: plan.pooling(),
            gives_hidden: model.options().embeddings || head.is_none(),
            is_whole: plan.mode != Mode::Causal,
            // A tensor of one dimension is one row.
            n_types: types.map_or(0, |at| plan.tensors[at].shape.get(1).copied().unwrap_or(1)),
        }
    }
}

pub(super) struct PoolingStrategy {
    model: PoolingModel,
    second: Option<usize>,
    rows: Vec<f32>,
    /// Whether the current step reads the last token.
    is_last: bool,
}

impl PoolingStrategy {
    pub(super) fn new(model: PoolingModel, second: Option<usize>) -> Self {
        Self {
            model,
            second: second.filter(|_| model.n_types > 1),
            rows: Vec::new(),
            is_last: false,
        }
    }

    /// Whether the pooling needs every token's hidden state.
    fn needs_all(&self) -> bool {
        !matches!(self.model.pooling, Pooling::First | Pooling::Last)
    }

    fn needs(&self, position: usize, n_tokens: usize) -> bool {
        match self.model.pooling {
            Pooling::First => position == 0,
            Pooling::Last => position + 1 == n_tokens,
            _ => true,
        }
    }
}

impl Strategy for PoolingStrategy {
    fn reuses_prefix(&self) -> bool {
        self.model.pooling == Pooling::Last && !self.model.is_whole && self.second.is_none()
    }

    fn job(&self, sequence: &Sequence) -> Job {
        let job = sequence.job();
        let pending = job.pending;
        Job {
            is_whole: self.model.is_whole,
            cut: match self.needs_all() && !self.model.gives_hidden && pending > N_ROWS {
                true => Some(job.cut.map_or(N_ROWS, |cut| cut.min(N_ROWS))),
                false => job.cut,
            },
            ..job
        }
    }

    fn read(&mut self, sequence: &mut Sequence, n: usize, batch: &mut Batch) {
        let n_tokens = sequence.tokens.len();
        for (token, position) in sequence.pending().iter().take(n).zip(sequence.n_cached..) {
            let is_second = self.second.is_some_and(|second| position >= second);
            let wanted = self.needs(position, n_tokens);
            let place = (sequence.id, position as u32);
            batch.push_of_type(*token, place, u32::from(is_second), wanted);
        }
        batch.wants_hidden |= !self.model.gives_hidden;
        sequence.read(n);
        self.is_last = sequence.n_read() == n_tokens;
    }

    fn take(&mut self, sequence: &mut Sequence, row: &OutputRow<'_>) -> Result<(), Failure> {
        let hidden = match self.model.gives_hidden {
            true => row.logits,
            false => row.hidden,
        };
        // This row may be computed only for its captured values.
        if !self.needs(row.position, sequence.tokens.len()) {
            return Ok(());
        }
        if hidden.is_empty() {
            let missing = "the model gives no hidden states";
            return Err(Failure::Computation(missing.into()));
        }
        // A repeated step hands out its rows again.
        let at = if self.needs_all() { row.position } else { 0 };
        self.rows.truncate(at * hidden.len());
        self.rows.extend_from_slice(hidden);
        Ok(())
    }

    fn commit(&mut self, sequence: &mut Sequence) -> StepOutcome {
        sequence.commit(self.is_last, 0);
        if self.is_last {
            sequence.answer.prefilled();
            sequence.ending = Some(FinishReason::Stop);
        }
        Ok(sequence.conclude())
    }

    fn gathered(&self) -> Option<&[f32]> {
        self.is_last.then_some(&self.rows)
    }
}
