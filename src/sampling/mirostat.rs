//! Mirostat (Basu et al. 2020): cuts so that the mean surprisal of the sampled tokens, in bits, is `mirostat_tau`.
//!
//! ```text
//! v1   keep the k best,   k = (e 2^mu / (1 - N^-e)) ^ (1/s),   e = s - 1,   N = size of the vocabulary
//!      s: exponent of Zipf's law, fitted to the 100 best
//! v2   keep those whose surprisal -log2 p is at most mu; at least the best
//! mu = mu - mirostat_eta * (-log2 p(drawn) - mirostat_tau)            at first 2 mirostat_tau
//! ```
//!
//! `p(drawn)` is the probability among the kept tokens, as in llama.cpp. Only a draw changes mu; a forced token does
//! not. The stage must be the last one and the only one that cuts, so other cuts are refused with it
//! ([`Params::check`]).

use std::f64::consts::LN_2;

use super::candidates::Candidates;
use super::error::SampleError;
use super::history::{History, TokenOrigin};
use super::parameter::ParamError;
use super::params::Params;
#[cfg(test)]
use super::reference_chain;
use super::select::{self, Cut};
use super::softmax::sum_exp;
use super::stage::{Stage, StageInput};

const N_FIT: usize = 100;

#[derive(Debug)]
enum Version {
    One,
    Two,
}

#[derive(Debug)]
struct Mirostat {
    version: Version,
    tau: f64,
    eta: f64,
    mu: f64,
    drawn: Option<(u32, f64)>,
}

pub(super) fn build(params: &Params) -> Result<Option<Box<dyn Stage>>, ParamError> {
    let (tau, eta) = (params.mirostat_tau, params.mirostat_eta);
    let version = match params.mirostat {
        0 => return Ok(None),
        1 => Version::One,
        _ => Version::Two,
    };
    Ok(Some(Box::new(Mirostat {
        version,
        tau,
        eta,
        mu: 2.0 * tau,
        drawn: None,
    })))
}

impl Stage for Mirostat {
    fn apply(
        &mut self,
        candidates: &mut Candidates<'_>,
        _step: &StageInput<'_>,
    ) -> Result<(), SampleError> {
        candidates.need_all()?;
        match self.version {
            Version::One => keep_by_fit(candidates, self.mu),
            Version::Two => keep_by_surprise(candidates, self.mu),
        }
    }

    fn drawn(&mut self, token: u32, probability: f64) {
        self.drawn = Some((token, probability));
    }

    fn accept(&mut self, history: &History, n_new: usize, origin: TokenOrigin) {
        let Some((token, probability)) = self.drawn.take() else {
            return;
        };
        let is_drawn = history.tokens().last() == Some(&token);
        if is_drawn && n_new == 1 && origin == TokenOrigin::Generated {
            self.mu -= self.eta * (-probability.log2() - self.tau);
        }
    }

    fn decides_by(&self, _n: usize) -> bool {
        false
    }

    fn keeps_best(&self) -> bool {
        true
    }
}

fn keep_by_fit(candidates: &mut Candidates<'_>, mu: f64) -> Result<(), SampleError> {
    candidates.max()?;
    let n_vocab = candidates.n_vocab();
    let (logits, scratch) = candidates.logits_and_scratch();
    select::best(logits, N_FIT, &mut scratch.values);
    scratch.values.sort_unstable_by(|a, b| b.total_cmp(a));
    let k = match zipf_exponent(&scratch.values) {
        Some(s) => fitted_k(s, mu, n_vocab),
        None => 1,
    };
    candidates.keep_best(k)
}

/// The exponent of Zipf's law, by least squares over the differences of neighbours in the falling logits; `None` for
/// fewer than two logits.
fn zipf_exponent(falling: &[f32]) -> Option<f64> {
    let (mut product, mut square) = (0.0, 0.0);
    for (pair, rank) in falling.windows(2).zip(1u32..) {
        let step = (f64::from(rank + 1) / f64::from(rank)).ln();
        product += step * (f64::from(pair[0]) - f64::from(pair[1]));
        square += step * step;
    }
    (square > 0.0).then(|| product / square)
}

/// The number of best tokens with an expected surprisal of `mu` under Zipf's law; at least 1.
fn fitted_k(s: f64, mu: f64, n_vocab: usize) -> usize {
    let e = s - 1.0;
    let ln_n = (n_vocab as f64).ln();
    // e / (1 - N^-e); its limit at e = 0 is 1 / ln N.
    let factor = match e {
        0.0 => ln_n.recip(),
        _ => e / -(-e * ln_n).exp_m1(),
    };
    let k = ((factor.ln() + mu * LN_2) / s).exp();
    // The conversion saturates: an overflow becomes the largest number. `max` turns NaN into 1.
    k.max(1.0) as usize
}

fn keep_by_surprise(candidates: &mut Candidates<'_>, mu: f64) -> Result<(), SampleError> {
    let max = candidates.max()?;
    let total = sum_exp(candidates.logits(), max);
    // -log2 p <= mu is equivalent to logit >= max + ln(total * 2^-mu).
    let floor = f64::from(max) + (total * (-mu).exp2()).ln();
    if floor > f64::from(max) {
        return candidates.keep_best(1);
    }
    candidates.keep(Cut::at_least(floor.max(f64::from(f32::MIN))))
}

/// The stage by definition before anything was sampled, for comparison.
#[cfg(test)]
pub(super) fn naive(
    params: &Params,
    tokens: &reference_chain::Tokens<'_>,
    kept: &mut Vec<(u32, f32)>,
) {
    naive_of(
        params.mirostat,
        2.0 * params.mirostat_tau,
        tokens.n_vocab,
        kept,
    );
}

/// The stage by definition, with a given mu.
#[cfg(test)]
fn naive_of(version: u32, mu: f64, n_vocab: usize, kept: &mut Vec<(u32, f32)>) {
    match version {
        0 => {}
        1 => reference_chain::keep_first(kept, |sorted| {
            let ps = reference_chain::softmax(sorted);
            let (mut tb, mut tt) = (0.0, 0.0);
            for i in 0..99.min(ps.len() - 1) {
                let t = ((i + 2) as f64 / (i + 1) as f64).ln();
                tb += t * (ps[i] / ps[i + 1]).ln();
                tt += t * t;
            }
            let s = tb / tt;
            let e = s - 1.0;
            let k = (e * mu.exp2() / (1.0 - (n_vocab as f64).powf(-e))).powf(1.0 / s);
            (k.max(1.0) as usize).min(sorted.len())
        }),
        _ => reference_chain::keep_first(kept, |sorted| {
            let ps = reference_chain::softmax(sorted);
            ps.iter().filter(|p| -p.log2() <= mu).count().max(1)
        }),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Sampler, reference_chain};

    fn params(mirostat: u32, tau: f64, eta: f64) -> Params {
        reference_chain::with(|p| {
            (p.mirostat, p.mirostat_tau, p.mirostat_eta, p.seed) = (mirostat, tau, eta, 11);
        })
    }

    fn n_kept(mirostat: u32, tau: f64, logits: &[f32]) -> usize {
        let kept = reference_chain::run(&params(mirostat, tau, 0.1), &[], &[], logits);
        kept.expect("something stays").len()
    }

    fn zipf(n: u32, exponent: f64) -> Vec<f32> {
        let ranks = (1..=n).map(|rank| (-exponent * f64::from(rank).ln()) as f32);
        let mut row: Vec<f32> = ranks.collect();
        row.rotate_left(n as usize / 3);
        row
    }

    #[test]
    fn versions_keep_as_many_as_llama_cpp() {
        // The tokens that llama_sampler_init_mirostat and its second version keep in the first step of these rows
        // (llama-cpp-python 0.3.36).
        const KEPT: [(u32, f64, f64, usize, usize); 9] = [
            (2000, 1.1, 1.0, 1, 1),
            (2000, 1.1, 2.5, 5, 4),
            (2000, 1.1, 4.0, 33, 30),
            (2000, 0.7, 1.0, 1, 1),
            (2000, 0.7, 2.5, 1, 1),
            (2000, 0.7, 4.0, 22, 21),
            (500, 2.0, 1.0, 2, 1),
            (500, 2.0, 2.5, 5, 4),
            (500, 2.0, 4.0, 16, 12),
        ];
        for (n, exponent, tau, one, two) in KEPT {
            let logits = zipf(n, exponent);
            let found = [1, 2].map(|version| n_kept(version, tau, &logits));
            assert_eq!(found, [one, two], "{n}, {exponent}, {tau}");
        }
    }

    #[test]
    fn degenerate_rows_keep_something() {
        for version in [1, 2] {
            for tau in [0.0, 3.0, 100.0] {
                assert_eq!(n_kept(version, tau, &[2.5]), 1);
                assert!(n_kept(version, tau, &[f32::NEG_INFINITY, 2.5]) >= 1);
                assert!(n_kept(version, tau, &[1.0; 50]) >= 1);
                assert!(n_kept(version, tau, &[f32::MIN, f32::MAX]) >= 1);
            }
        }
        // A flat row: all tokens are kept if mu exceeds its surprisal, otherwise one.
        assert_eq!(n_kept(1, 2.0, &[1.0; 64]), 1);
        assert_eq!(n_kept(1, 4.0, &[1.0; 64]), 64);
    }

    /// Mean surprisal, in bits, of a number of draws, after the same number of draws to settle.
    fn mean_surprise(mirostat: u32, tau: f64, logits: &[f32]) -> f64 {
        const DRAWS: u32 = 1500;
        let mut sampler = Sampler::new(&params(mirostat, tau, 0.1), 0).expect("valid");
        let mut sum = 0.0;
        for i in 0..2 * DRAWS {
            let kept = match i < DRAWS {
                true => Vec::new(),
                false => reference_chain::candidates(&mut sampler, logits).expect("good logits"),
            };
            let token = sampler.sample(logits).expect("good logits");
            sampler.accept(token);
            let weight = |logit: f32| f64::from(logit).exp();
            let total: f64 = kept.iter().map(|k| weight(k.1)).sum();
            let drawn = kept.iter().find(|k| k.0 == token);
            sum += drawn.map_or(0.0, |k| (total / weight(k.1)).log2());
        }
        sum / f64::from(DRAWS)
    }

    #[test]
    fn the_mean_surprise_is_the_target() {
        let logits = zipf(300, 1.1);
        for version in [1, 2] {
            for tau in [1.0, 2.5, 4.0] {
                let mean = mean_surprise(version, tau, &logits);
                assert!((mean - tau).abs() < 0.05, "v{version}, {tau}: {mean}");
            }
        }
    }

    #[test]
    fn only_its_own_draws_teach_it() {
        let logits = zipf(200, 1.1);
        let params = params(2, 3.0, 0.5);
        let new = |choice| Sampler::new(&params, choice).expect("valid");
        let kept = |sampler: &mut Sampler| {
            reference_chain::candidates(sampler, &logits)
                .expect("good")
                .len()
        };
        let mut sampler = new(0);
        let first = kept(&mut sampler);
        sampler.accept_prompt(&[1, 2, 3]);
        sampler.accept(7);
        assert_eq!(kept(&mut sampler), first, "nothing was drawn");
        let token = sampler.sample(&logits).expect("good logits");
        sampler.accept(token + 1);
        assert_eq!(kept(&mut sampler), first, "another token was forced");
        sampler.accept(token);
        assert_eq!(kept(&mut sampler), first, "that draw is over");
        let again = sampler.sample(&logits).expect("good logits");
        assert_eq!(sampler.sample(&logits), Ok(again), "asked twice");
        sampler.accept(again);
        assert_ne!(kept(&mut sampler), first);
        assert_eq!(kept(&mut new(1)), first, "each completion starts afresh");
    }

    #[test]
    fn a_greedy_pick_needs_none_of_it() {
        let mut params = params(2, 3.0, 0.1);
        params.temperature = 0.0;
        let mut sampler = Sampler::new(&params, 0).expect("valid");
        assert_eq!(sampler.sample(&zipf(30, 1.0)), Ok(20));
    }

    proptest! {
        /// Compares a whole completion with one whose every step is naive.
        #[test]
        fn answers_follow_the_reference(
            rows in prop::collection::vec(reference_chain::logits(40..90), 1..30),
            mirostat in 1..3u32,
            tau in 0.5..5.0f64,
            eta in 0.0..1.0f64,
        ) {
            let params = params(mirostat, tau, eta);
            let mut sampler = Sampler::new(&params, 0).expect("valid");
            let mut mu = 2.0 * tau;
            for logits in rows {
                let mut naive: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
                naive_of(mirostat, mu, logits.len(), &mut naive);
                let kept = reference_chain::allowed(reference_chain::candidates(&mut sampler, &logits)?);
                prop_assert_eq!(&kept, &naive);
                let token = sampler.sample(&logits)?;
                sampler.accept(token);
                let kept_logits: Vec<f32> = naive.iter().map(|k| k.1).collect();
                let at = naive.iter().position(|k| k.0 == token).expect("of those kept");
                mu -= eta * (-reference_chain::softmax(&kept_logits)[at].log2() - tau);
            }
        }
    }
}
