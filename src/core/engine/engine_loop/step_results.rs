//! The results of a step other than tokens: captured values, lens logits and pooled hidden states. Also trims the
//! cache after the step.

use crate::model::{self, CapturedRow};

use super::super::compute::Compute;
use super::super::event::{Event, Failure, FinishReason};
use super::super::sequence::Sequence;
use super::{EngineLoop, EngineRequest};

/// Hidden states that lenses read in a step of several requests. Their logits take about the time of one token: the
/// output head is a part of the weights, and these rows read it once.
const N_LENS: usize = 8;
/// Hidden states that lenses read in a step if no other request is active. The request can be cancelled between
/// steps.
const N_LENS_ALONE: usize = 64;

/// Runs the lens of a request on at most `left` hidden states, and subtracts their number.
fn run_lens(
    model: &mut impl Compute,
    sequence: &mut Sequence,
    left: &mut usize,
) -> Result<(), Failure> {
    let id = sequence.id;
    while let Some(recorder) = sequence.recorder.as_mut().filter(|_| *left > 0) {
        match recorder.run_lens(*left, id, model)? {
            0 => break,
            n => *left -= n,
        }
    }
    Ok(())
}

impl<C: Compute> EngineLoop<C> {
    /// Gives a request its captured rows, those of committed tokens.
    pub(super) fn record(&mut self, at: usize, rows: &[CapturedRow]) -> Result<(), Failure> {
        let (sequence, model) = (&mut self.active[at].sequence, &mut self.model);
        let (id, n) = (sequence.id, sequence.n_cached as u32);
        let Some(recorder) = &mut sequence.recorder else {
            return Ok(());
        };
        let own = rows.iter().filter(|row| row.sequence == id);
        recorder.take(own, n, id, model)
    }

    /// Runs the lenses. While other requests want tokens, a step reads few hidden states, so that they wait no
    /// longer than for a token of one more request.
    pub(super) fn run_lenses(&mut self) {
        let is_shared = !self.active.is_empty() && self.active.len() + self.awaiting_lens.len() > 1;
        let mut left = if is_shared { N_LENS } else { N_LENS_ALONE };
        let mut at = 0;
        while at < self.awaiting_lens.len() {
            let (sequence, _) = &mut self.awaiting_lens[at];
            let result = run_lens(&mut self.model, sequence, &mut left);
            if result.is_ok() && sequence.awaits_lens() {
                at += 1;
                continue;
            }
            self.end_lens(at, result);
        }
        let mut at = 0;
        while at < self.active.len() {
            let sequence = &mut self.active[at].sequence;
            match run_lens(&mut self.model, sequence, &mut left) {
                Ok(()) => at += 1,
                Err(failure) => self.end(at, Err(failure)),
            }
        }
    }

    /// Keeps a request whose tokens are complete until its lens is. Its cache entries are released.
    pub(super) fn await_lens(&mut self, sequence: Sequence, reason: FinishReason) {
        sequence.ids().for_each(|id| self.model.release(id));
        self.quarantined.retain(|id| *id != sequence.id);
        self.awaiting_lens.push((sequence, reason));
    }

    pub(super) fn end_lens(&mut self, at: usize, result: Result<(), Failure>) {
        let (sequence, reason) = self.awaiting_lens.remove(at);
        self.release(&sequence);
        self.report();
        match result {
            Ok(()) => sequence.finish(reason),
            Err(failure) => {
                let failure = failure.of_changed(sequence.is_changed);
                sequence.answer.fail(failure);
            }
        }
    }

    /// Pools the hidden states of a request, once all are there, and sends the result.
    pub(super) fn pool(&mut self, at: usize) -> Result<(), Failure> {
        let EngineRequest { sequence, strategy } = &mut self.active[at];
        let Some(rows) = strategy.gathered() else {
            return Ok(());
        };
        let pooled = self.model.pool(rows);
        let pooled = pooled.map_err(Failure::from)?;
        if !model::is_finite(&pooled) {
            let fault = "what the hidden states are pooled to has values that are not finite";
            return Err(Failure::NotFinite {
                fault: fault.into(),
                place: None,
                is_changed: false,
            });
        }
        sequence.answer.send(Event::Pooled(pooled));
        Ok(())
    }

    /// Removes cache entries after the committed tokens of a request.
    pub(super) fn trim(&mut self, at: usize) {
        let sequence = &mut self.active[at].sequence;
        if self.model.n_free_blocks().is_none() {
            // Every pass reads all tokens again.
            sequence.n_cached = 0;
            return;
        }
        let wanted = sequence.n_cached;
        for id in sequence.ids() {
            let mut next = self.model.next(id) as usize;
            if next > wanted && wanted == 0 {
                self.model.release(id);
                next = 0;
            } else if next > wanted {
                next = self.model.forget(id, wanted as u32) as usize;
            }
            sequence.n_cached = sequence.n_cached.min(next);
        }
        if sequence.n_cached == 0 && !sequence.source.is_empty() {
            sequence.ids().for_each(|id| self.model.release(id));
            sequence.has_source = false;
        }
    }
}
