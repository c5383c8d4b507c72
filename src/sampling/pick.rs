//! The end of every chain: selects one of the candidates as the token.
//!
//! The greedy pick takes the best candidate; of equal ones, the lowest id. It needs no random number. The draw uses one
//! random number per step and walks the candidates by rising id.

use super::candidates::{Candidates, PART, position_of};
use super::error::SampleError;
use super::softmax::{exp, sum_exp};
use super::stage::StageInput;

const LANE: u32 = 0;

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
    let (logits, scratch) = candidates.logits_and_scratch();
    let position = weighted(logits, max, step.uniform(LANE), &mut scratch.sums);
    let weight = exp(f64::from(logits[position]) - f64::from(max));
    let probability = weight / scratch.sums.iter().sum::<f64>();
    Ok((candidates.id(position), probability))
}

/// The position at which the running sum of the weights exceeds the share `uniform` of the total. The sums of parts are
/// stored, so that the walk covers only one part.
fn weighted(logits: &[f32], max: f32, uniform: f64, sums: &mut Vec<f64>) -> usize {
    sums.clear();
    sums.extend(logits.chunks(PART).map(|part| sum_exp(part, max)));
    let mut left = uniform * sums.iter().sum::<f64>();

    // Rounding may carry the walk past the end: it then stops at the last part or candidate with a weight.
    let mut chosen = 0;
    for (i, sum) in sums.iter().enumerate() {
        if *sum > 0.0 {
            chosen = i;
            if left < *sum {
                break;
            }
            left -= sum;
        }
    }

    let from = chosen * PART;
    let mut position = from;
    for (i, &logit) in logits[from..].iter().take(PART).enumerate() {
        let weight = exp(f64::from(logit) - f64::from(max));
        if weight > 0.0 {
            position = from + i;
            if left < weight {
                break;
            }
            left -= weight;
        }
    }
    position
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
            assert_eq!(weighted(&logits, 1.0, uniform, &mut Vec::new()), expected);
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
            let position = weighted(&logits, max, uniform, &mut Vec::new());
            let ps = reference_chain::softmax(&logits);
            let before: f64 = ps[..position].iter().sum();
            prop_assert!(ps[position] > 0.0);
            prop_assert!(before <= uniform + 1e-12);
            prop_assert!(uniform <= before + ps[position] + 1e-12);
        }
    }

    fn checked(logits: &[f32]) -> f32 {
        crate::candidates::checked_max(logits).expect("good logits")
    }
}
