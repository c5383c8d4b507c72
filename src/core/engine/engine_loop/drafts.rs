//! The draft tokens of a step: looked up, made by the drafter of the model, chosen, and what became of them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use crate::model::{Draft, DraftRequest};

use super::super::compute::Compute;
use super::super::draft::{Drafter, N_DRAFTED, StepRows};
use super::super::sequence::Sequence;
use super::{EngineLoop, EngineRequest};

/// The drafts that a model makes; none, with a warning, if that fails.
fn drafts_of(model: &mut impl Compute, wanted: &[DraftRequest<'_>]) -> Option<Vec<Draft>> {
    let off = "the drafter of the model failed; it is off until the model is loaded again";
    match catch_unwind(AssertUnwindSafe(|| model.draft(wanted))) {
        Ok(Ok(drafts)) => return Some(drafts),
        Ok(Err(error)) => tracing::warn!(%error, "{off}"),
        Err(_) => tracing::warn!(error = "it panicked", "{off}"),
    }
    None
}

impl<C: Compute> EngineLoop<C> {
    /// Chooses the draft tokens of the step. A step that reads a prompt has none: where it computes at the limit of the device, each row
    /// costs. Nor has one of more sequences than it may read draft tokens.
    pub(super) fn draft(&mut self) -> StepRows {
        let mut rows = StepRows {
            n_rows: 0,
            n_decoding: 0,
        };
        let mut may_draft = self.quarantined.is_empty() && self.active.len() <= N_DRAFTED;
        let mut sequences: Vec<&Sequence> = Vec::with_capacity(self.active.len());
        let mut drafters: Vec<Option<&mut Drafter>> = Vec::with_capacity(self.active.len());
        for EngineRequest { sequence, strategy } in &mut self.active {
            may_draft &= !sequence.is_prefill;
            rows.n_rows += sequence.pending().len();
            rows.n_decoding += 1;
            drafters.push(strategy.drafter());
            sequences.push(&*sequence);
        }
        if !may_draft || drafters.iter().all(Option::is_none) || !self.drafts.may_draft(rows) {
            return rows;
        }
        for (sequence, drafter) in sequences.iter().zip(&mut drafters) {
            let of = (sequence.answer.client(), sequence.scales.as_slice());
            if let Some(drafter) = drafter {
                drafter.look_up(&sequence.tokens, &mut self.shared_drafts, of);
            }
        }
        let most = self.model.drafter().filter(|_| !self.drafter_failed);
        if let Some(most) = most.filter(|most| *most > 0) {
            let asked = self.drafts.ask_model(&drafters, rows, (most, N_DRAFTED));
            let all = sequences.iter().zip(&mut drafters).zip(asked);
            let mut wanted = Vec::new();
            let mut takers = Vec::new();
            let mut catches_up = false;
            for ((sequence, drafter), most) in all {
                if let (Some(drafter), 1..) = (drafter, most) {
                    catches_up |= drafter.catches_up(sequence.tokens.len());
                    takers.push(drafter);
                    wanted.push(DraftRequest {
                        sequence: sequence.id,
                        tokens: &sequence.tokens,
                        most,
                    });
                }
            }
            if !wanted.is_empty() {
                let began = Instant::now();
                let drafts = drafts_of(&mut self.model, &wanted);
                self.drafter_failed = drafts.is_none();
                let drafts = drafts.unwrap_or_default();
                let longest = drafts.iter().map(|draft| draft.tokens.len()).max();
                let drafted = (wanted.len(), longest.unwrap_or(0));
                self.drafts.drafted(drafted, catches_up, began.elapsed());
                for (drafter, draft) in takers.into_iter().zip(&drafts) {
                    drafter.take(draft);
                }
            }
        }
        self.drafts.choose(&mut drafters, rows, N_DRAFTED);
        rows
    }

    /// Notes the time of the pass of a step, if it only decoded, and what its draft tokens saved.
    pub(super) fn measured(&mut self, rows: StepRows, took: Option<Duration>) {
        let n_accepted = std::mem::take(&mut self.n_accepted);
        if let Some(took) = took.filter(|_| self.model.takes_time()) {
            let n_read = self.batch.len();
            let saved = self.drafts.measured((rows, n_read), n_accepted, took);
            self.stats.drafts_saved(saved);
        }
    }

    /// Adds the answer of a request that has ended to the drafts of later ones, if it takes part in them.
    pub(super) fn share_drafts(&mut self, request: &mut EngineRequest) {
        let EngineRequest { sequence, strategy } = request;
        if strategy
            .drafter()
            .is_some_and(|drafter| drafter.is_shared())
        {
            let (client, scales) = (sequence.answer.client(), &sequence.scales);
            self.shared_drafts
                .add(client, scales, &sequence.tokens, sequence.n_prompt);
        }
    }
}
