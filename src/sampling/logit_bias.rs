//! Adds a number to the logits of chosen tokens: `logit += bias`.
//!
//! The OpenAI field: -100 practically bans a token and +100 practically forces it; minus infinity bans it entirely. A
//! bias for a token outside the vocabulary is an error, never ignored.

use super::candidates::Candidates;
use super::error::SampleError;
use super::parameter::ParamError;
use super::params::Params;
#[cfg(test)]
use super::reference_chain;
use super::stage::{Stage, StageInput};

#[derive(Debug)]
struct LogitBias {
    biases: Vec<(u32, f32)>,
}

pub(super) fn build(params: &Params) -> Result<Option<Box<dyn Stage>>, ParamError> {
    let mut biases = params.logit_bias.clone();
    biases.sort_unstable_by_key(|&(id, _)| id);
    for &(id, bias) in &biases {
        ParamError::unless(
            bias < f32::INFINITY,
            "logit_bias",
            &format_args!("{id}: {bias}"),
            "a finite number or minus infinity",
        )?;
    }
    for pair in biases.windows(2) {
        ParamError::unless(
            pair[0].0 < pair[1].0,
            "logit_bias",
            &pair[0].0,
            "each token at most once",
        )?;
    }

    // A bias of 0 is kept: only the logits show whether its token exists.
    if biases.is_empty() {
        return Ok(None);
    }
    Ok(Some(Box::new(LogitBias { biases })))
}

impl Stage for LogitBias {
    fn apply(
        &mut self,
        candidates: &mut Candidates<'_>,
        _step: &StageInput<'_>,
    ) -> Result<(), SampleError> {
        let n_vocab = candidates.n_vocab();
        for &(id, bias) in &self.biases {
            if id as usize >= n_vocab {
                return Err(SampleError::UnknownToken { id, n_vocab });
            }
            candidates.change(id, |logit| logit + f64::from(bias));
        }
        Ok(())
    }

    fn banned(&self) -> Option<Vec<u32>> {
        let banned = |&(id, bias): &(u32, f32)| (bias == f32::NEG_INFINITY).then_some(id);
        self.biases.iter().map(banned).collect()
    }
}

#[cfg(test)]
pub(super) fn naive(params: &Params, _: &reference_chain::Tokens<'_>, kept: &mut [(u32, f32)]) {
    for (id, logit) in kept {
        for (biased, bias) in &params.logit_bias {
            if biased == id {
                *logit = (f64::from(*logit) + f64::from(*bias)) as f32;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Sampler, reference_chain};

    fn biased(logit_bias: Vec<(u32, f32)>) -> Params {
        reference_chain::with(|p| (p.logit_bias, p.temperature) = (logit_bias, 0.0))
    }

    #[test]
    fn biases_are_added_to_their_tokens() {
        let params = biased(vec![(3, -0.5), (0, 100.0), (1, f32::NEG_INFINITY)]);
        let kept = reference_chain::run(&params, &[], &[], &[1.0, 2.0, 3.0, 4.0]);
        let expected = [(0, 101.0), (1, f32::NEG_INFINITY), (2, 3.0), (3, 3.5)];
        assert_eq!(kept, Ok(expected.to_vec()));
    }

    #[test]
    fn a_bias_for_an_unknown_token_is_an_error() {
        let mut sampler = Sampler::new(&biased(vec![(3, 0.0)]), 0).expect("valid");
        assert_eq!(
            sampler.sample(&[1.0, 2.0, 3.0]),
            Err(SampleError::UnknownToken { id: 3, n_vocab: 3 })
        );
    }

    #[test]
    fn biases_that_only_ban_leave_the_best_of_the_other_tokens() {
        let of = |biases, temperature| {
            let params = Params {
                temperature,
                ..biased(biases)
            };
            Sampler::new(&params, 0).expect("valid").banned()
        };
        let bans = [(4, f32::NEG_INFINITY), (1, f32::NEG_INFINITY)];
        assert_eq!(of(bans.to_vec(), 0.0), Some(vec![1, 4]));
        assert_eq!(of(Vec::new(), 0.0), Some(Vec::new()));
        assert_eq!(of(bans.to_vec(), 1.0), None);
        assert_eq!(of([&bans[..], &[(2, -1.0)]].concat(), 0.0), None);
        let penalties = reference_chain::with(|p| (p.repeat_penalty, p.temperature) = (1.1, 0.0));
        let sampler = Sampler::new(&penalties, 0).expect("valid");
        assert_eq!(sampler.banned(), None);
    }

    #[test]
    fn banning_every_token_is_an_error() {
        let bans = (0..3).map(|id| (id, f32::NEG_INFINITY)).collect();
        let error = Err(SampleError::NothingLeft { n_vocab: 3 });
        let mut sampler = Sampler::new(&biased(bans), 0).expect("valid");
        assert_eq!(sampler.sample(&[1.0, 2.0, 3.0]), error);
    }
}
