//! Log-probabilities of the model's own distribution, for responses.
//!
//! `logprob(i) = (logit(i) - max) - ln(sum of e^(logit - max))`, natural logarithm, in f64 and from the raw logits:
//! before mask, bias, penalties and temperature. Equal logits give equal floats, so a token is a best one exactly if
//! its value equals the first of the top list.
//!
//! Invariant: every value is finite, at most 0 and at least [`LOGPROB_FLOOR`].

use super::candidates::checked_max;
use super::error::SampleError;
use super::select;
use super::softmax::{exp, sum_exp};

/// The log-probability of very improbable and of banned tokens (JSON has no infinity).
pub const LOGPROB_FLOOR: f64 = -9999.0;

/// The log-probabilities of one row of logits.
#[derive(Clone, Debug)]
pub struct Logprobs<'a> {
    logits: &'a [f32],
    max: f64,
    ln_sum: f64,
}

/// A token and its log-probability.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenLogprob {
    pub id: u32,
    /// Natural logarithm of the token's probability.
    pub logprob: f64,
}

impl<'a> Logprobs<'a> {
    /// Normalises one row of logits.
    pub fn new(logits: &'a [f32]) -> Result<Self, SampleError> {
        // A part stays in the L1 cache for both of its reads, so each logit is read from memory once.
        const PART: usize = 1024;
        let mut max = f32::NEG_INFINITY;
        let mut sum = 0.0;
        for (i, part) in logits.chunks(PART).enumerate() {
            let highest = checked_max(part).map_err(|error| at_offset(error, i * PART))?;
            if highest > max {
                sum *= exp(f64::from(max) - f64::from(highest));
                max = highest;
            }
            if highest > f32::NEG_INFINITY {
                sum += sum_exp(part, max);
            }
        }

        if max == f32::NEG_INFINITY {
            return Err(SampleError::NothingLeft {
                n_vocab: logits.len(),
            });
        }
        Ok(Self {
            logits,
            max: f64::from(max),
            ln_sum: sum.ln(),
        })
    }

    /// The log-probability of one token; `None` if it is outside the vocabulary.
    pub fn of(&self, id: u32) -> Option<f64> {
        self.logits.get(id as usize).map(|&l| self.logprob(l))
    }

    /// The rank of one token among all, from 1; of equal ones, the lower id comes first.
    pub fn rank(&self, id: u32) -> Option<usize> {
        let id = id as usize;
        let own = *self.logits.get(id)?;
        let (before, after) = self.logits.split_at(id);
        let n_before = before.iter().filter(|&&logit| logit >= own).count();
        let n_after = after.iter().filter(|&&logit| logit > own).count();
        Some(1 + n_before + n_after)
    }

    /// The entropy of the distribution, in nats.
    pub fn entropy(&self) -> f64 {
        let part = |logit: &f32| {
            let logprob = f64::from(*logit) - self.max - self.ln_sum;
            // A token of probability 0 adds nothing: x ln x tends to 0.
            let p = logprob.exp();
            if p > 0.0 { -p * logprob } else { 0.0 }
        };
        self.logits.iter().map(part).sum()
    }

    /// The `n` most probable tokens, the best first; of equal ones, the lower id first. Fewer if fewer have a
    /// probability above 0.
    pub fn top(&self, n: usize) -> Vec<TokenLogprob> {
        if n == 0 {
            return Vec::new();
        }
        let mut ids = Vec::new();
        select::best(self.logits, n, &mut Vec::new()).survivors(self.logits, &mut ids);

        let mut top: Vec<_> = ids
            .iter()
            .map(|&id| (id, self.logits[id as usize]))
            .collect();
        // Ids rise, and a stable sort keeps the order of equal logits.
        top.sort_by(|(_, a), (_, b)| b.partial_cmp(a).expect("no logit is NaN"));
        top.into_iter()
            .map(|(id, logit)| TokenLogprob {
                id,
                logprob: self.logprob(logit),
            })
            .collect()
    }

    fn logprob(&self, logit: f32) -> f64 {
        (f64::from(logit) - self.max - self.ln_sum).max(LOGPROB_FLOOR)
    }
}

fn at_offset(error: SampleError, offset: usize) -> SampleError {
    match error {
        SampleError::NotANumber { index } => SampleError::NotANumber {
            index: index + offset,
        },
        SampleError::Infinite { index } => SampleError::Infinite {
            index: index + offset,
        },
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::reference_chain;

    fn ids(top: &[TokenLogprob]) -> Vec<u32> {
        top.iter().map(|entry| entry.id).collect()
    }

    proptest! {
        #[test]
        fn the_same_as_by_a_full_sort(logits in reference_chain::logits(1..3000), n in 0..40usize) {
            let falling = reference_chain::falling(&logits);
            prop_assume!(!falling.is_empty());
            let logprobs = Logprobs::new(&logits)?;
            let ps = reference_chain::softmax(&logits);

            let top = logprobs.top(n);
            prop_assert_eq!(ids(&top), &falling[..n.min(falling.len())]);
            for entry in &top {
                prop_assert_eq!(Some(entry.logprob), logprobs.of(entry.id));
            }
            // A rank is a count over all logits, so only a sample of ranks is checked, from the first to the end.
            let step = (falling.len() / 64).max(1);
            for (i, &id) in falling.iter().enumerate().step_by(step) {
                let found = logprobs.of(id).expect("a known token");
                prop_assert!((found - ps[id as usize].ln()).abs() < 1e-12);
                prop_assert_eq!(logprobs.rank(id), Some(i + 1));
            }
        }
    }

    #[test]
    fn wide_ranges_lose_no_precision() {
        // Exact values: ln(1 + 2 e^-1000 + ...) is 0 in f64.
        let mut logits = vec![-1e30; 5000];
        logits[10] = -500.0;
        logits[1030] = 500.0;
        logits[4999] = -500.0;
        let logprobs = Logprobs::new(&logits).expect("good logits");
        assert_eq!(logprobs.of(1030), Some(0.0));
        assert_eq!(logprobs.of(10), Some(-1000.0));
        assert_eq!(logprobs.of(0), Some(LOGPROB_FLOOR));
        assert_eq!(ids(&logprobs.top(3)), [1030, 10, 4999]);
    }

    #[test]
    fn a_banned_token_has_the_floor_and_the_last_rank() {
        let logprobs = Logprobs::new(&[0.0, f32::NEG_INFINITY, 0.0]).expect("good logits");
        assert_eq!(logprobs.of(1), Some(LOGPROB_FLOOR));
        assert_eq!(logprobs.rank(1), Some(3));
        assert_eq!(logprobs.of(0), logprobs.of(2));
        assert_eq!(ids(&logprobs.top(usize::MAX)), [0, 2]);
        assert_eq!((logprobs.of(3), logprobs.rank(3)), (None, None));
    }

    #[test]
    fn bad_rows_are_errors() {
        let error = |logits: &[f32]| Logprobs::new(logits).expect_err("a bad row");
        let mut logits = vec![0.0; 3000];
        logits[2999] = f32::NAN;
        assert_eq!(error(&logits), SampleError::NotANumber { index: 2999 });
        logits[1500] = f32::INFINITY;
        assert_eq!(error(&logits), SampleError::Infinite { index: 1500 });
        assert_eq!(error(&[]), SampleError::NothingLeft { n_vocab: 0 });
        assert_eq!(
            error(&[f32::NEG_INFINITY; 2]),
            SampleError::NothingLeft { n_vocab: 2 }
        );
    }
}
