//! Nucleus sampling (Holtzman et al. 2019): keeps the fewest tokens, the most probable first,
//! whose probabilities together reach `top_p`; always at least one.
//!
//! Probabilities are those of the incoming candidates. No vocabulary is sorted: tokens so light that all of them
//! together weigh less than `1 - top_p` are dropped at once, and the border among the others is found by bisection.

use super::parameter::ParamError;
use super::params::Params;
#[cfg(test)]
use super::reference_chain;
use super::select::{self, Cut};
use super::softmax::sum_exp;
use super::stage::{self, CutInput, Stage};

pub(super) fn build(params: &Params) -> Result<Option<Box<dyn Stage>>, ParamError> {
    Ok(stage::cut(params.top_p, 1.0, nucleus))
}

fn nucleus(input: &CutInput<'_>, p: f64, scratch: &mut Vec<f32>) -> Cut {
    let CutInput { logits, max, .. } = *input;
    let total = input.total();

    // A token is dropped if its weight is below (1 - p) of the average weight: together these weigh less than 1 - p of
    // the total. The bound is far from tight, so lowering it against rounding costs nothing.
    let lightest = ((1.0 - p) * total / logits.len() as f64).ln() - 0.01;
    let floor = (f64::from(max) + lightest) as f32;
    scratch.clear();
    scratch.extend(logits.iter().filter(|&&logit| logit >= floor));

    if input.unlisted.is_some() && sum_exp(scratch, max) < p * total {
        return Cut::UNDECIDED;
    }
    select::heaviest(scratch, p * total, |part| sum_exp(part, max))
}

#[cfg(test)]
pub(super) fn naive(params: &Params, _: &reference_chain::Tokens<'_>, kept: &mut Vec<(u32, f32)>) {
    if params.top_p == 1.0 {
        return;
    }
    reference_chain::keep_first(kept, |sorted| {
        let mut reached = 0.0;
        let crossing = reference_chain::softmax(sorted).iter().position(|p| {
            reached += p;
            reached >= params.top_p
        });
        crossing.map_or(sorted.len(), |last| last + 1)
    });
}
