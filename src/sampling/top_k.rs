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
        candidates.keep_best(self.k);
        Ok(())
    }

    fn keeps_best(&self) -> bool {
        true
    }
}

/// The stage by definition, for comparison.
#[cfg(test)]
pub(super) fn naive(params: &Params, _: &reference_chain::Tokens<'_>, kept: &mut Vec<(u32, f32)>) {
    if params.top_k == 0 {
        return;
    }
    reference_chain::keep_first(kept, |sorted| sorted.len().min(params.top_k as usize));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::reference_chain;

    #[test]
    fn lower_ids_win_among_equals() {
        let params = Params {
            top_k: 2,
            ..Params::default()
        };
        let kept = reference_chain::run(&params, &[], &[], &[1.0, 2.0, 1.0, 1.0]);
        assert_eq!(kept, Ok(vec![(0, 1.0), (1, 2.0)]));
    }

    proptest! {
        #[test]
        fn the_same_as_by_a_full_sort(logits in reference_chain::logits(1..400), top_k in 1..500u32) {
            let params = Params { top_k, ..Params::default() };
            prop_assert_eq!(
                reference_chain::allowed(reference_chain::run(&params, &[], &[], &logits)?),
                reference_chain::chain(&params, &[], &[], &logits)
            );
        }
    }
}
