//! What requests gather of a step besides tokens: captured values and pooled hidden states; and what of their
//! cache stays true after it.

use crate::model::{self, DirectHeads, DirectLogit, SequenceId, TakenRow};

use super::super::compute::Compute;
use super::super::event::{Event, Failure};
use super::super::watch::Probe;
use super::{ActiveRequest, EngineLoop};

/// The head of a model for a sequence.
struct Head<'a, C> {
    model: &'a mut C,
    id: SequenceId,
}

impl<C: Compute> Probe for Head<'_, C> {
    type Error = Failure;

    fn logits(&mut self, rows: (&[f32], usize)) -> Result<Vec<f32>, Failure> {
        let logits = self.model.lens(self.id, rows);
        logits.map_err(Failure::from)
    }

    fn direct(&mut self, token: u32) -> Result<DirectLogit, Failure> {
        let direct = self.model.direct_logit(token);
        direct.map_err(Failure::from)
    }

    fn direct_heads(&mut self, at: usize, along: &[f64]) -> Result<DirectHeads, Failure> {
        let direct = self.model.direct_heads(at, along);
        direct.map_err(Failure::from)
    }
}

impl<C: Compute> EngineLoop<C> {
    /// Gives a request the rows that its plan captures, of the tokens that are part of it.
    pub(super) fn watch(&mut self, at: usize, taken: &[TakenRow]) -> Result<(), Failure> {
        let (sequence, model) = (&mut self.active[at].sequence, &mut self.model);
        let (id, n) = (sequence.id, sequence.n_cached as u32);
        let Some(watch) = &mut sequence.watch else {
            return Ok(());
        };
        let own: Vec<TakenRow> = taken.iter().filter(|r| r.sequence == id).cloned().collect();
        watch.take(&own, n, &mut Head { model, id })
    }

    /// Has the model make the result of the hidden states that a request has gathered.
    pub(super) fn pool(&mut self, at: usize) -> Result<(), Failure> {
        let ActiveRequest { sequence, strategy } = &self.active[at];
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
            });
        }
        sequence.answer.send(Event::Pooled(pooled));
        Ok(())
    }

    /// Drops what is cached of a request beyond what is true of it.
    pub(super) fn trim(&mut self, at: usize) {
        let sequence = &mut self.active[at].sequence;
        if self.model.n_blocks().is_none() {
            // All tokens are read again in every pass.
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
    }
}
