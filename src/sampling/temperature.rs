//! Divides the logits by the temperature: `logit = (logit - max) / temperature`.
//!
//! Subtracting the highest logit first changes no probability, and no quotient can overflow upwards, however low the
//! temperature. At 0 there is no such stage: the pick is greedy.

use super::candidates::Candidates;
use super::error::SampleError;
use super::parameter::ParamError;
use super::params::Params;
#[cfg(test)]
use super::reference_chain;
use super::stage::{Stage, StageInput};

#[derive(Debug)]
struct Temperature {
    inverse: f64,
}

pub(super) fn build(params: &Params) -> Result<Option<Box<dyn Stage>>, ParamError> {
    let temperature = params.temperature;
    if temperature == 0.0 || temperature == 1.0 {
        return Ok(None);
    }
    Ok(Some(Box::new(Temperature {
        // The factor is finite, so that the best token's 0 stays 0.
        inverse: temperature.recip().min(f64::MAX),
    })))
}

impl Stage for Temperature {
    fn apply(
        &mut self,
        candidates: &mut Candidates<'_>,
        _step: &StageInput<'_>,
    ) -> Result<(), SampleError> {
        candidates.scale(self.inverse)
    }
}

#[cfg(test)]
pub(super) fn naive(params: &Params, _: &reference_chain::Tokens<'_>, kept: &mut [(u32, f32)]) {
    if params.temperature == 0.0 || params.temperature == 1.0 {
        return;
    }
    let max = kept.iter().fold(f32::NEG_INFINITY, |max, k| max.max(k.1));
    for (_, logit) in kept {
        *logit = ((f64::from(*logit) - f64::from(max)) / params.temperature) as f32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference_chain;

    fn probabilities(temperature: f64, logits: &[f32]) -> Vec<f64> {
        let params = Params {
            temperature,
            ..Params::default()
        };
        let kept = reference_chain::run(&params, &[], &[], logits).expect("something stays");
        let logits: Vec<f32> = kept.into_iter().map(|(_, logit)| logit).collect();
        reference_chain::softmax(&logits)
    }

    #[test]
    fn probabilities_are_raised_to_the_inverse_power() {
        let ps = [0.1f64, 0.6, 0.1, 0.2];
        let logits = ps.map(|p| p.ln() as f32 + 3.0);
        for temperature in [0.25, 0.7, 1.5, 4.0] {
            let powers = ps.map(|p| p.powf(1.0 / temperature));
            let total: f64 = powers.iter().sum();
            for (found, power) in probabilities(temperature, &logits).iter().zip(powers) {
                assert!((found - power / total).abs() < 1e-6);
            }
        }
    }

    #[test]
    fn no_temperature_is_too_low_or_too_high() {
        let logits = [f32::MIN, 200.0, f32::NEG_INFINITY, 200.0, 199.9];
        let lowest = f64::from_bits(1);
        assert_eq!(probabilities(lowest, &logits), [0.0, 0.5, 0.0, 0.5, 0.0]);
        let flat = probabilities(f64::MAX, &logits);
        assert_eq!(flat, [0.25, 0.25, 0.0, 0.25, 0.25]);
    }
}
