//! The probabilities from which a token is drawn: those after all stages, for responses.
//!
//! These are not the model's own, which [`Logprobs`](super::Logprobs) reads. The chain runs once more and keeps its
//! state, so the call must come before the token is accepted.

use super::error::SampleError;
use super::logprobs::TokenLogprob;
use super::row_logits::{Allowed, RowLogits};
use super::sampler::{Sampler, run};
use super::softmax::{exp, sum_exp};
use super::stage::StageInput;

/// A drawn token, and the most probable tokens of the distribution.
#[derive(Clone, Debug, PartialEq)]
pub struct Drawn {
    pub chosen: TokenLogprob,
    /// The rank of the token by probability, from 1.
    pub rank: usize,
    /// The most probable tokens, in falling order; only those that could be drawn.
    pub top: Vec<TokenLogprob>,
}

impl Drawn {
    /// A token that was the only possible one.
    pub fn certain(id: u32) -> Self {
        let chosen = TokenLogprob { id, logprob: 0.0 };
        Self {
            chosen,
            rank: 1,
            top: vec![chosen],
        }
    }
}

impl Sampler {
    /// The distribution from which [`Sampler::sample_row`] drew `token` with the same arguments, with the `n` most
    /// probable tokens. A token that no stage left counts as certain: it was forced, not drawn.
    pub fn drawn(
        &mut self,
        token: u32,
        logits: &[f32],
        allowed: Allowed<'_>,
        n: usize,
    ) -> Result<Drawn, SampleError> {
        if self.is_greedy {
            return Ok(Drawn::certain(token));
        }
        let step = StageInput {
            history: &self.history,
            rng: &self.rng,
            draw: self.history.n_generated(),
        };
        let mut all: Vec<(u32, f64)> = run(
            &mut self.chain,
            &step,
            RowLogits::All(logits),
            allowed,
            |candidates| {
                let max = candidates.max()?;
                let sum = sum_exp(candidates.logits(), max);
                let weights = candidates.logits().iter();
                let weights = weights.map(|logit| exp(f64::from(*logit) - f64::from(max)));
                let all = weights
                    .enumerate()
                    .filter(|(_, weight)| *weight > 0.0)
                    .map(|(at, weight)| (candidates.id(at), weight / sum));
                Ok(all.collect())
            },
        )?;
        let own = all.iter().find(|(id, _)| *id == token);
        let Some(own) = own.map(|(_, probability)| *probability) else {
            return Ok(Drawn::certain(token));
        };
        let falling = |a: &(u32, f64), b: &(u32, f64)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        let is_before = |one: &&(u32, f64)| falling(one, &(token, own)).is_lt();
        let rank = 1 + all.iter().filter(is_before).count();
        if n < all.len() {
            all.select_nth_unstable_by(n, falling);
            all.truncate(n);
        }
        all.sort_unstable_by(falling);
        let of = |(id, probability): (u32, f64)| TokenLogprob {
            id,
            logprob: probability.ln(),
        };
        Ok(Drawn {
            chosen: of((token, own)),
            rank,
            top: all.into_iter().map(of).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Params, reference_chain};

    const LOGITS: [f32; 5] = [0.5, 2.0, -1.0, 2.0, 1.0];

    fn sampler(change: impl FnOnce(&mut Params)) -> Sampler {
        Sampler::new(&reference_chain::with(change), 0).expect("good parameters")
    }

    #[test]
    fn the_probabilities_are_those_after_the_stages() {
        let mut sampler = sampler(|params| (params.top_k, params.temperature) = (3, 0.5));
        let token = sampler.sample(&LOGITS).expect("a token");
        let drawn = sampler
            .drawn(token, &LOGITS, Allowed::default(), 10)
            .expect("drawn");
        let ids: Vec<u32> = drawn.top.iter().map(|one| one.id).collect();
        assert_eq!(
            ids,
            [1, 3, 4],
            "equals by rising id, and only three are left"
        );
        let all: f64 = drawn.top.iter().map(|one| one.logprob.exp()).sum();
        assert!((all - 1.0).abs() < 1e-12, "{all}");
        // A temperature of 0.5 turns a difference of 1 into a ratio of e^2.
        let ratio = (drawn.top[0].logprob - drawn.top[2].logprob).exp();
        assert!((ratio - 2f64.exp()).abs() < 1e-9, "{ratio}");
        assert_eq!(drawn.top[drawn.rank - 1], drawn.chosen);
        assert_eq!(sampler.sample(&LOGITS), Ok(token), "asking changes nothing");
        let two = sampler
            .drawn(token, &LOGITS, Allowed::default(), 2)
            .expect("drawn");
        assert_eq!(two.top, drawn.top[..2]);
    }

    #[test]
    fn what_could_only_be_one_token_is_certain() {
        let mut greedy = sampler(|params| params.temperature = 0.0);
        let token = greedy.sample(&LOGITS).expect("a token");
        let drawn = greedy
            .drawn(token, &LOGITS, Allowed::default(), 10)
            .expect("drawn");
        assert_eq!((token, &drawn), (1, &Drawn::certain(1)));
        let mut cut = sampler(|params| params.top_k = 1);
        let forced = cut
            .drawn(2, &LOGITS, Allowed::default(), 10)
            .expect("drawn");
        assert_eq!(forced, Drawn::certain(2), "no stage left it");
    }
}
