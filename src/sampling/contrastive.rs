//! Contrastive search (Su et al. 2022): among the most probable tokens it chooses the best by probability and by
//! distance of its hidden state to those of the sequence.
//!
//! ```text
//! score(v) = (1 - penalty_alpha) * p(v) - penalty_alpha * max over tokens x of the sequence of cos(h(v), h(x))
//! ```
//!
//! A step has two halves. [`Contrastive::candidates`] returns the `top_k` candidates; the caller runs the model on each
//! of them after the sequence; [`Contrastive::choose`] selects the best one by their hidden states. Nothing is random.
//! The other parameters act as usual, before the candidates are taken; a temperature of 0 counts as 1, because
//! probabilities are needed.
//!
//! Invariant: one row of hidden states for each accepted token, each of length 1, or 0 if a hidden state is all zeros;
//! such a row is similar to no other.

use super::error::SampleError;
use super::history::TokenOrigin;
use super::parameter::ParamError;
use super::params::Params;
use super::row_logits::RowLogits;
use super::sampler::Sampler;
use super::sampler::run;
use super::softmax::{exp, sum_exp};
use super::stage::StageInput;

/// Number of elements that are multiplied together, for vectorisation.
const LANES: usize = 16;

/// A token that may come next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ContrastiveCandidate {
    pub id: u32,
    /// The probability of the token, before the cut to `top_k`.
    pub probability: f64,
}

/// The contrastive search of one completion.
#[derive(Debug)]
pub struct ContrastiveSearch {
    sampler: Sampler,
    alpha: f64,
    k: usize,
    n_embd: usize,
    /// The normalised hidden states of the sequence, `[n_embd, n_tokens]`.
    text: Vec<f32>,
}

impl ContrastiveSearch {
    /// Starts a sequence. The hidden state of a token has `n_embd` elements and is the model's last one before the
    /// head. All of them are stored: `4 * n_embd` bytes for each token.
    ///
    /// # Errors
    /// A parameter is out of range, or `top_k` is 0. Mirostat with `top_k` is refused anyway.
    pub fn new(params: &Params, n_embd: usize) -> Result<Self, ParamError> {
        params.check()?;
        let (k, alpha) = (params.top_k as usize, params.penalty_alpha);
        ParamError::unless(
            k > 0,
            "top_k",
            &k,
            "the number of candidates, because `penalty_alpha` is not 0",
        )?;
        let of_logits = Params {
            temperature: match params.temperature {
                0.0 => 1.0,
                other => other,
            },
            top_k: 0,
            penalty_alpha: 0.0,
            ..params.clone()
        };
        Ok(Self {
            sampler: Sampler::new(&of_logits, 0)?,
            alpha,
            k,
            n_embd,
            text: Vec::new(),
        })
    }

    /// Appends tokens of the prompt, with their hidden states `[n_embd, n_tokens]`. May be called for parts of a
    /// prompt.
    ///
    /// # Errors
    /// The hidden states have another size or are not finite; nothing is appended then.
    pub fn accept_prompt(&mut self, tokens: &[u32], hidden: &[f32]) -> Result<(), SampleError> {
        self.take_in(tokens, hidden, TokenOrigin::Given)
    }

    /// Appends the next token, with its hidden state `[n_embd]`.
    ///
    /// # Errors
    /// The hidden state has another size or is not finite; the token is not appended then.
    pub fn accept(&mut self, token: u32, hidden: &[f32]) -> Result<(), SampleError> {
        self.take_in(&[token], hidden, TokenOrigin::Generated)
    }

    fn take_in(
        &mut self,
        tokens: &[u32],
        hidden: &[f32],
        origin: TokenOrigin,
    ) -> Result<(), SampleError> {
        self.check(hidden, tokens.len())?;
        for row in hidden.chunks_exact(self.n_embd.max(1)) {
            let inverse = inverse_length(row);
            self.text
                .extend(row.iter().map(|&x| (f64::from(x) * inverse) as f32));
        }
        self.sampler.take_in(tokens, origin);
        Ok(())
    }

    /// The candidates for the next token, at most `top_k` and at least one: the most probable first; of equal ones, the
    /// lower id first. `mask` is as in [`Sampler::sample_masked`].
    pub fn candidates(
        &mut self,
        logits: &[f32],
        mask: Option<&[u32]>,
    ) -> Result<Vec<ContrastiveCandidate>, SampleError> {
        let sampler = &mut self.sampler;
        let step = StageInput {
            history: &sampler.history,
            rng: &sampler.rng,
            draw: sampler.history.n_generated(),
        };
        run(
            &mut sampler.chain,
            &step,
            RowLogits::All(logits),
            mask.into(),
            |candidates| {
                let max = candidates.max()?;
                let total = sum_exp(candidates.logits(), max);
                candidates.keep_best(self.k)?;
                let kept = candidates.logits().iter().enumerate();
                let mut best: Vec<(u32, f32)> = kept
                    .filter(|(_, logit)| logit.is_finite())
                    .map(|(position, logit)| (candidates.id(position), *logit))
                    .collect();
                best.sort_unstable_by(|a, b| {
                    let by_logit = b.1.partial_cmp(&a.1).expect("no logit is NaN");
                    by_logit.then(a.0.cmp(&b.0))
                });
                let candidate = |(id, logit)| ContrastiveCandidate {
                    id,
                    probability: exp(f64::from(logit) - f64::from(max)) / total,
                };
                Ok(best.into_iter().map(candidate).collect())
            },
        )
    }

    /// The position of the best candidate; of equal ones, the first. `hidden` `[n_embd, n_candidates]` holds the hidden
    /// state of each candidate, read after the sequence.
    ///
    /// # Errors
    /// There are no candidates, or the hidden states have another size or are not finite.
    pub fn choose(
        &self,
        candidates: &[ContrastiveCandidate],
        hidden: &[f32],
    ) -> Result<usize, SampleError> {
        self.check(hidden, candidates.len())?;
        let rows = hidden.chunks_exact(self.n_embd.max(1));
        let mut best = None;
        for (at, (candidate, row)) in candidates.iter().zip(rows).enumerate() {
            let score =
                (1.0 - self.alpha) * candidate.probability - self.alpha * self.similarity(row);
            if best.is_none_or(|(_, highest)| score > highest) {
                best = Some((at, score));
            }
        }
        let nothing = SampleError::NothingLeft { n_vocab: 0 };
        best.map(|(at, _)| at).ok_or(nothing)
    }

    /// The highest cosine similarity between a hidden state and those of the sequence; 0 before any token.
    fn similarity(&self, row: &[f32]) -> f64 {
        let inverse = inverse_length(row);
        let row: Vec<f32> = row
            .iter()
            .map(|&x| (f64::from(x) * inverse) as f32)
            .collect();
        let text = self.text.chunks_exact(self.n_embd.max(1));
        let highest = text.map(|known| dot(&row, known)).reduce(f32::max);
        highest.map_or(0.0, f64::from)
    }

    fn check(&self, hidden: &[f32], n_tokens: usize) -> Result<(), SampleError> {
        let expected = self.n_embd.saturating_mul(n_tokens);
        if hidden.len() != expected {
            return Err(SampleError::HiddenLength {
                found: hidden.len(),
                expected,
            });
        }
        match hidden.iter().position(|x| !x.is_finite()) {
            Some(index) => Err(SampleError::HiddenNotFinite { index }),
            None => Ok(()),
        }
    }
}

fn inverse_length(row: &[f32]) -> f64 {
    let square: f64 = row.iter().map(|&x| f64::from(x).powi(2)).sum();
    if square > 0.0 {
        square.sqrt().recip()
    } else {
        0.0
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (a_blocks, a_rest) = a.as_chunks::<LANES>();
    let (b_blocks, b_rest) = b.as_chunks::<LANES>();
    let mut lanes = [0.0f32; LANES];
    for (a, b) in a_blocks.iter().zip(b_blocks) {
        for i in 0..LANES {
            lanes[i] += a[i] * b[i];
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    lanes.iter().sum::<f32>() + rest
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::reference_chain;

    fn search(alpha: f64, top_k: u32, n_embd: usize) -> ContrastiveSearch {
        let params = reference_chain::with(|p| (p.penalty_alpha, p.top_k) = (alpha, top_k));
        ContrastiveSearch::new(&params, n_embd).expect("valid")
    }

    fn candidates(probabilities: &[f64]) -> Vec<ContrastiveCandidate> {
        let ids = (0..).zip(probabilities);
        ids.map(|(id, &probability)| ContrastiveCandidate { id, probability })
            .collect()
    }

    #[test]
    fn hidden_states_of_zeros_are_like_no_other_and_large_ones_do_not_overflow() {
        let mut search = search(0.5, 2, 2);
        search
            .accept_prompt(&[1, 2], &[0.0, 0.0, f32::MAX, f32::MAX])
            .expect("good");
        let two = candidates(&[0.5, 0.5]);
        assert_eq!(search.choose(&two, &[1.0, 1.0, 0.0, 0.0]), Ok(1));
        assert_eq!(search.choose(&two, &[f32::MAX, 0.0, 1e-38, 1e-38]), Ok(0));
        assert_eq!(search.choose(&two, &[0.0; 4]), Ok(0), "first of equals");
    }

    #[test]
    fn what_the_model_gave_wrong_is_an_error() {
        let mut search = search(0.5, 2, 2);
        let length = |found, expected| SampleError::HiddenLength { found, expected };
        assert_eq!(search.accept(1, &[0.0; 3]), Err(length(3, 2)));
        assert_eq!(search.accept_prompt(&[1, 2], &[0.0; 2]), Err(length(2, 4)));
        let bad = Err(SampleError::HiddenNotFinite { index: 1 });
        assert_eq!(search.accept(1, &[0.0, f32::NAN]), bad);
        let two = candidates(&[0.5, 0.5]);
        assert_eq!(search.choose(&two, &[0.0; 5]), Err(length(5, 4)));
        let infinite = [0.0, f32::INFINITY, 0.0, 0.0];
        let bad = Err(SampleError::HiddenNotFinite { index: 1 });
        assert_eq!(search.choose(&two, &infinite), bad);
        let nothing = Err(SampleError::NothingLeft { n_vocab: 0 });
        assert_eq!(search.choose(&[], &[]), nothing);
        assert!(search.text.is_empty(), "nothing was taken in");
    }

    #[test]
    fn parameters_that_make_no_search_are_refused() {
        let refused = |change: fn(&mut Params)| {
            let mut params = reference_chain::with(|p| (p.penalty_alpha, p.top_k) = (0.6, 4));
            change(&mut params);
            let error = ContrastiveSearch::new(&params, 8).expect_err("refused");
            error.to_string()
        };
        let changes: [fn(&mut Params); 4] = [
            |p| p.top_k = 0,
            |p| p.penalty_alpha = 1.5,
            |p| p.mirostat = 2,
            |p| p.xtc_probability = 2.0,
        ];
        insta::assert_snapshot!(changes.map(refused).join("\n"), @"
        `top_k`: found `0`, expected the number of candidates, because `penalty_alpha` is not 0
        `penalty_alpha`: found `1.5`, expected a number from 0 to 1 (contrastive search; 0 = off)
        `mirostat`: found `2`, expected 0, because `top_k` cuts already: only one of them can
        `xtc_probability`: found `2`, expected a number from 0 to 1 (XTC; 0 = off)
        ");
        let params = reference_chain::with(|p| p.penalty_alpha = 0.6);
        let error = Sampler::new(&params, 0).expect_err("it sees logits alone");
        assert_eq!(error.field, "penalty_alpha");
    }

    #[test]
    fn candidates_are_the_best_after_the_other_stages() {
        let params = reference_chain::with(|p| {
            (p.penalty_alpha, p.top_k, p.temperature) = (0.6, 2, 0.0);
            p.logit_bias = vec![(2, f32::NEG_INFINITY)];
        });
        let mut search = ContrastiveSearch::new(&params, 1).expect("valid");
        let logits = [0.1f32, 0.2, 0.5, 0.2].map(f32::ln);
        let found = search.candidates(&logits, None).expect("good logits");
        let ids: Vec<u32> = found.iter().map(|c| c.id).collect();
        assert_eq!(ids, [1, 3]);
        for candidate in found {
            // 0.2 of the 0.5 that the ban leaves.
            assert!((candidate.probability - 0.4).abs() < 1e-6);
        }
        let only = search.candidates(&logits, Some(&[0b0101])).expect("good");
        assert_eq!(only.len(), 1, "the bias bans one of the two allowed");
        let none = search.candidates(&logits, Some(&[0b0100]));
        assert_eq!(none, Err(SampleError::NothingLeft { n_vocab: 4 }));
    }

    fn naive(alpha: f64, p: f64, row: &[f32], text: &[Vec<f32>]) -> f64 {
        let dot = |a: &[f32], b: &[f32]| -> f64 {
            (0..a.len())
                .map(|i| f64::from(a[i]) * f64::from(b[i]))
                .sum()
        };
        let cosine = |other: &Vec<f32>| match dot(row, row) * dot(other, other) {
            0.0 => 0.0,
            squares => dot(row, other) / squares.sqrt(),
        };
        let highest = text.iter().map(cosine).reduce(f64::max).unwrap_or(0.0);
        (1.0 - alpha) * p - alpha * highest
    }

    fn rows(n: std::ops::Range<usize>, n_embd: usize) -> impl Strategy<Value = Vec<Vec<f32>>> {
        let number = prop_oneof![4 => -3.0..3.0f32, 1 => Just(0.0)];
        prop::collection::vec(prop::collection::vec(number, n_embd), n)
    }

    proptest! {
        #[test]
        fn the_choice_is_the_naive_one(
            (text, hidden) in (1..40usize).prop_flat_map(|n| (rows(0..30, n), rows(1..9, n))),
            alpha in 0.0..1.0f64,
            logits in reference_chain::logits(9..60),
        ) {
            let n_embd = hidden[0].len();
            let mut search = search(alpha, hidden.len() as u32, n_embd);
            let (prompt, answer) = text.split_at(text.len() / 2);
            search.accept_prompt(&vec![1; prompt.len()], &prompt.concat())?;
            for row in answer {
                search.accept(2, row)?;
            }

            let falling = reference_chain::falling(&logits);
            prop_assume!(!falling.is_empty());
            let found = search.candidates(&logits, None)?;
            let ps = reference_chain::softmax(&logits);
            let expected: Vec<u32> = falling.into_iter().take(hidden.len()).collect();
            prop_assert_eq!(found.iter().map(|c| c.id).collect::<Vec<_>>(), expected);
            for candidate in &found {
                prop_assert!((candidate.probability - ps[candidate.id as usize]).abs() < 1e-12);
            }

            let hidden = &hidden[..found.len()];
            let chosen = search.choose(&found, &hidden.concat())?;
            let score = |at: usize| naive(alpha, found[at].probability, &hidden[at], &text);
            let best = (0..found.len()).map(score).fold(f64::NEG_INFINITY, f64::max);
            prop_assert!(score(chosen) >= best - 1e-5, "{} of {}", score(chosen), best);
        }
    }
}
