//! A reference implementation of the chain by full sorts and naive loops, for comparison in tests.
//!
//! The naive form of a stage is in the file of the stage, written from its definition; it shares no code with the stage but
//! the parameters. Logits are rounded to f32 where the stages round them, so that sets can be compared exactly.

use std::ops::Range;

use proptest::prelude::*;

use super::candidates::{Candidates, Store};
use super::error::SampleError;
use super::params::Params;
use super::params::StageName;
use super::row_logits::{Allowed, RowLogits};
use super::sampler::Sampler;
use super::stage::StageInput;
use super::table::sampling_table;

/// The neutral parameters with a change.
pub(super) fn with(change: impl FnOnce(&mut Params)) -> Params {
    let mut params = Params::default();
    change(&mut params);
    params
}

/// Rows of logits with many equal ones and some banned tokens.
pub(super) fn logits(n: Range<usize>) -> impl Strategy<Value = Vec<f32>> {
    let logit = prop_oneof![
        8 => -20.0..20.0f32,
        4 => (-8..8i8).prop_map(|halves| f32::from(halves) * 0.5),
        1 => Just(f32::NEG_INFINITY),
    ];
    prop::collection::vec(logit, n)
}

/// The tokens that are not banned, the best first; of equal ones, the lower id first.
pub(super) fn falling(logits: &[f32]) -> Vec<u32> {
    let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
    ids.retain(|&id| logits[id as usize] > f32::NEG_INFINITY);
    ids.sort_by(|&a, &b| {
        let (x, y) = (logits[a as usize], logits[b as usize]);
        y.partial_cmp(&x).expect("no logit is NaN").then(a.cmp(&b))
    });
    ids
}

/// The probabilities, computed with libm's exponential; unless there are no tokens, at least one is not banned.
pub(super) fn softmax(logits: &[f32]) -> Vec<f64> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f64> = logits
        .iter()
        .map(|&logit| (f64::from(logit) - f64::from(max)).exp())
        .collect();
    let total: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / total).collect()
}

/// A sampler that runs all stages, including those that a greedy pick would skip.
pub(super) fn sampler(params: &Params) -> Sampler {
    let mut sampler = Sampler::new(params, 0).expect("valid parameters");
    sampler.chain = params.chain().expect("valid parameters");
    sampler
}

/// The candidates that the stages of `sampler` leave of `logits`, as (id, logit).
pub(super) fn candidates(
    sampler: &mut Sampler,
    logits: &[f32],
) -> Result<Vec<(u32, f32)>, SampleError> {
    let mut store = Store::default();
    let mut candidates = Candidates::new(RowLogits::All(logits), Allowed::default(), &mut store)?;
    let step = StageInput {
        history: &sampler.history,
        rng: &sampler.rng,
        draw: sampler.history.n_generated(),
    };
    for stage in &mut sampler.chain {
        stage.apply(&mut candidates, &step)?;
    }
    let positions = candidates.logits().iter().enumerate();
    Ok(positions.map(|(i, &l)| (candidates.id(i), l)).collect())
}

/// The candidates that the real stages leave, after a prompt and the start of a completion.
pub(super) fn run(
    params: &Params,
    prompt: &[u32],
    generated: &[u32],
    logits: &[f32],
) -> Result<Vec<(u32, f32)>, SampleError> {
    let mut sampler = sampler(params);
    sampler.accept_prompt(prompt);
    for &token in generated {
        sampler.accept(token);
    }
    candidates(&mut sampler, logits)
}

/// The candidates without the banned tokens.
pub(super) fn allowed(mut kept: Vec<(u32, f32)>) -> Vec<(u32, f32)> {
    drop_banned(&mut kept);
    kept
}

/// Removes the banned tokens, and returns the logits of the others.
pub(super) fn drop_banned(kept: &mut Vec<(u32, f32)>) -> Vec<f32> {
    kept.retain(|&(_, logit)| logit > f32::NEG_INFINITY);
    kept.iter().map(|&(_, logit)| logit).collect()
}

pub(super) struct Tokens<'a> {
    pub(super) prompt: &'a [u32],
    pub(super) generated: &'a [u32],
    pub(super) n_vocab: usize,
}

macro_rules! naive_stages {
    (
        stages {$(
            $(#[doc = $doc:literal])*
            $variant:ident = $module:ident, $technique:literal { $($rest:tt)* }
        )*}
        search $($search:tt)*
    ) => {
        /// Applies a stage by the naive form in its file to candidates in the order of their ids, as (id, logit).
        pub(super) fn naive(
            stage: StageName,
            params: &Params,
            tokens: &Tokens<'_>,
            kept: &mut Vec<(u32, f32)>,
        ) {
            match stage {
                $(StageName::$variant => $crate::$module::naive(params, tokens, kept),)*
            }
        }
    };
}

sampling_table!(naive_stages);

pub(super) fn chain(
    params: &Params,
    prompt: &[u32],
    generated: &[u32],
    logits: &[f32],
) -> Vec<(u32, f32)> {
    let mut kept: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
    let tokens = Tokens {
        prompt,
        generated,
        n_vocab: logits.len(),
    };
    for stage in &params.order {
        naive(*stage, params, &tokens, &mut kept);
    }
    kept
}

/// Keeps the first of the best candidates, as many as `count` computes from their falling logits.
pub(super) fn keep_first(kept: &mut Vec<(u32, f32)>, count: impl Fn(&[f32]) -> usize) {
    drop_banned(kept);
    if kept.is_empty() {
        return;
    }
    kept.sort_by(|a, b| b.1.partial_cmp(&a.1).expect("no NaN").then(a.0.cmp(&b.0)));
    let sorted: Vec<f32> = kept.iter().map(|&(_, logit)| logit).collect();
    kept.truncate(count(&sorted));
    kept.sort_unstable_by_key(|&(id, _)| id);
}
