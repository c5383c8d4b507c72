//! The end of every chain: selects one of the candidates as the token.
//!
//! The greedy pick takes the best candidate; of equal ones, the lowest id. It needs no random number. The draw uses one
//! random number per step and walks the candidates by falling logit, equal ones by rising id: so the highest logits
//! alone nearly always decide.

use super::candidates::{Candidates, Scratch, position_of};
use super::error::SampleError;
use super::select::{self, Cut};
use super::softmax::{exp, sum_exp};
use super::stage::StageInput;

const LANE: u32 = 0;

/// Number of candidates among which most draws end.
const FIRST: usize = 64;

pub(super) fn greedy(candidates: &mut Candidates<'_>) -> Result<u32, SampleError> {
    let max = candidates.max()?;
    let position = position_of(candidates.logits(), max);
    Ok(candidates.id(position.expect("the maximum is one of the logits")))
}

/// A token drawn from the softmax of the logits, with its probability.
pub(super) fn draw(
    candidates: &mut Candidates<'_>,
    step: &StageInput<'_>,
) -> Result<(u32, f64), SampleError> {
    let max = candidates.max()?;
    let unlisted = candidates.unlisted(max);
    let (logits, scratch) = candidates.logits_and_scratch();
    let listed = sum_exp(logits, max);
    let (least, most) = unlisted.unwrap_or((0.0, 0.0));
    let uniform = step.uniform(LANE);
    let position = weighted(logits, max, uniform * (listed + least), scratch);
    let weight = exp(f64::from(logits[position]) - f64::from(max));
    if unlisted.is_some() {
        let target = uniform * (listed + most);
        let other = weighted(logits, max, target, scratch);
        if target >= listed || other != position {
            return Err(SampleError::Undecided);
        }
    }
    let is_listed = candidates.are_listed_from(f64::from(candidates.logits()[position]));
    match is_listed {
        true => Ok((candidates.id(position), weight / (listed + least))),
        false => Err(SampleError::Undecided),
    }
}

/// The position at which the running sum of the weights e^(logit - max) exceeds `target`, by falling logit; the last one with a
/// weight if rounding carries the walk past the end.
fn weighted(logits: &[f32], max: f32, target: f64, scratch: &mut Scratch) -> usize {
    let weigh = |logit: f32| exp(f64::from(logit) - f64::from(max));
    let values = &mut scratch.values;
    select::best(logits, FIRST, values);
    values.sort_unstable_by(|a, b| b.total_cmp(a));
    let mut left = target;
    let crossing = values.iter().position(|logit| {
        let weight = weigh(*logit);
        let is_reached = left < weight;
        left -= weight;
        is_reached
    });
    let cut = match crossing {
        Some(last) => Cut::below(&values[..=last], values[last]),
        None => {
            values.clear();
            values.extend(logits.iter().filter(|logit| weigh(**logit) > 0.0));
            // The first sum above the target, which a sum equal to it is not.
            select::heaviest(values, target.next_up(), |part| sum_exp(part, max))
        }
    };
    let (mut last, mut next) = (0, 0);
    for _ in 0..cut.n_equal {
        let Some(further) = position_of(&logits[next..], cut.logit) else {
            break;
        };
        last = next + further;
        next = last + 1;
    }
    last
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::reference_chain;

    #[test]
    fn draw_never_takes_a_token_without_weight() {
        let mut logits = vec![f32::NEG_INFINITY; 5000];
        logits[1500] = 1.0;
        logits[3000] = 1.0;
        for (uniform, expected) in [(0.0, 1500), (0.49, 1500), (0.5, 3000), (1.0, 3000)] {
            let target = uniform * 2.0;
            assert_eq!(
                weighted(&logits, 1.0, target, &mut Scratch::default()),
                expected
            );
        }
    }

    proptest! {
        #[test]
        fn draw_stops_where_the_cumulated_probability_does(
            logits in reference_chain::logits(1..3000),
            uniform in 0.0..1.0f64,
        ) {
            let max = checked(&logits);
            prop_assume!(max.is_finite());
            let target = uniform * sum_exp(&logits, max);
            let position = weighted(&logits, max, target, &mut Scratch::default());
            let ps = reference_chain::softmax(&logits);
            let falling = reference_chain::falling(&logits);
            let before = falling.iter().take_while(|id| **id as usize != position);
            let before: f64 = before.map(|id| ps[*id as usize]).sum();
            prop_assert!(ps[position] > 0.0);
            prop_assert!(before <= uniform + 1e-12);
            prop_assert!(uniform <= before + ps[position] + 1e-12);
        }
    }

    fn checked(logits: &[f32]) -> f32 {
        crate::candidates::checked_max(logits).expect("good logits")
    }
}
