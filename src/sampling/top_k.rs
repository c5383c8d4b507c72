//! Keeps the `top_k` most probable tokens; of equal ones, those with the lower ids.

use super::candidates::Candidates;
use super::error::SampleError;
use super::parameter::ParamError;
use super::params::Params;
#[cfg(test)]
use super::reference_chain;
use super::stage::{Stage, StageInput};

#[derive(Debug)]
struct TopK {
    k: usize,
}

pub(super) fn build(params: &Params) -> Result<Option<Box<dyn Stage>>, ParamError> {
    if params.top_k == 0 {
        return Ok(None);
    }
    Ok(Some(Box::new(TopK {
        k: params.top_k as usize,
    })))
}

impl Stage for TopK {
    fn apply(
        &mut self,
        candidates: &mut Candidates<'_>,
        _step: &StageInput<'_>,
    ) -> Result<(), SampleError> {
        candidates.keep_best(self.k)
    }

    /// The last of the highest logits is not listed: it may have equals.
    fn decides_by(&self, n: usize) -> bool {
        self.k < n
    }

    fn keeps_best(&self) -> bool {
        true
    }
}

#[cfg(test)]
pub(super) fn naive(params: &Params, _: &reference_chain::Tokens<'_>, kept: &mut Vec<(u32, f32)>) {
    if params.top_k == 0 {
        return;
    }
    reference_chain::keep_first(kept, |sorted| sorted.len().min(params.top_k as usize));
}
