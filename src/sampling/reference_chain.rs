//! A reference implementation of the chain by full sorts and naive loops, for comparison in tests.
//!
//! It is written from the definitions of the stages and shares no code with them but the parameters. Logits are rounded
//! to f32 where the stages round them, so that sets can be compared exactly.

use std::ops::Range;

use proptest::prelude::*;

use super::candidates::{Candidates, Store};
use super::error::SampleError;
use super::params::Params;
use super::params::StageName;
use super::sampler::Sampler;
use super::stage::StageInput;

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

/// The probabilities, computed with libm's exponential; at least one token is not banned.
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
    let mut candidates = Candidates::new(logits, None, &mut store)?;
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

/// The tokens that the real stages leave.
pub(super) fn kept(params: &Params, logits: &[f32]) -> Vec<u32> {
    let kept = run(params, &[], &[], logits).expect("something stays");
    kept.into_iter().map(|(id, _)| id).collect()
}

/// Checks that the real stages leave the same candidates as the naive ones, if these leave any.
pub(super) fn agrees(params: &Params, logits: &[f32]) -> Result<(), TestCaseError> {
    let expected = chain(params, &[], &[], logits);
    prop_assume!(!expected.is_empty());
    prop_assert_eq!(run(params, &[], &[], logits)?, expected);
    Ok(())
}

/// The candidates without the banned tokens.
pub(super) fn allowed(mut kept: Vec<(u32, f32)>) -> Vec<(u32, f32)> {
    kept.retain(|&(_, logit)| logit > f32::NEG_INFINITY);
    kept
}

/// The candidates that the naive stages leave.
pub(super) fn chain(
    params: &Params,
    prompt: &[u32],
    generated: &[u32],
    logits: &[f32],
) -> Vec<(u32, f32)> {
    let mut kept: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
    for stage in &params.order {
        match stage {
            StageName::LogitBias => bias(params, &mut kept),
            StageName::Penalties => penalise(params, prompt, generated, &mut kept),
            StageName::TopK => top_k(params, &mut kept),
            StageName::TopP => top_p(params, &mut kept),
            StageName::MinP => min_p(params, &mut kept),
            StageName::Temperature => temper(params, &mut kept),
            StageName::Dry => dry(params, &[prompt, generated].concat(), &mut kept),
            StageName::TopNSigma => top_n_sigma(params, &mut kept),
            StageName::TypicalP => typical_p(params, &mut kept),
            StageName::Xtc => xtc(params, &mut kept),
            StageName::TfsZ => tfs_z(params, &mut kept),
            StageName::Mirostat => {
                mirostat(
                    params.mirostat,
                    2.0 * params.mirostat_tau,
                    logits.len(),
                    &mut kept,
                );
            }
        }
    }
    kept
}

fn bias(params: &Params, kept: &mut [(u32, f32)]) {
    for (id, logit) in kept {
        for (biased, bias) in &params.logit_bias {
            if biased == id {
                *logit = (f64::from(*logit) + f64::from(*bias)) as f32;
            }
        }
    }
}

fn penalise(params: &Params, prompt: &[u32], generated: &[u32], kept: &mut [(u32, f32)]) {
    let all = [prompt, generated].concat();
    let window = match params.repeat_last_n {
        -1 => &all[..],
        n => &all[all.len().saturating_sub(n as usize)..],
    };
    for (id, logit) in kept {
        let mut new = f64::from(*logit);
        if window.contains(id) {
            new *= params.repeat_penalty.powi(if new > 0.0 { -1 } else { 1 });
        }
        let count = generated.iter().filter(|&token| token == id).count();
        if count > 0 {
            new -= params.presence_penalty + count as f64 * params.frequency_penalty;
        }
        *logit = new as f32;
    }
}

fn top_k(params: &Params, kept: &mut Vec<(u32, f32)>) {
    if params.top_k == 0 {
        return;
    }
    keep_first(kept, |sorted| sorted.len().min(params.top_k as usize));
}

fn top_p(params: &Params, kept: &mut Vec<(u32, f32)>) {
    if params.top_p == 1.0 {
        return;
    }
    keep_first(kept, |sorted| {
        let mut reached = 0.0;
        let crossing = softmax(sorted).iter().position(|p| {
            reached += p;
            reached >= params.top_p
        });
        crossing.map_or(sorted.len(), |last| last + 1)
    });
}

fn min_p(params: &Params, kept: &mut Vec<(u32, f32)>) {
    if params.min_p == 0.0 {
        return;
    }
    keep_first(kept, |sorted| {
        let ps = softmax(sorted);
        ps.iter().filter(|&p| p / ps[0] >= params.min_p).count()
    });
}

fn dry(params: &Params, text: &[u32], kept: &mut [(u32, f32)]) {
    if params.dry_multiplier == 0.0 || params.dry_penalty_last_n == 0 {
        return;
    }
    let text = match params.dry_penalty_last_n {
        -1 => text,
        n => &text[text.len().saturating_sub(n as usize)..],
    };
    let is_breaker = |token: &u32| params.dry_sequence_breakers.contains(token);
    for (id, logit) in kept {
        let mut longest = 0;
        for at in (1..text.len()).filter(|&at| text[at] == *id && !is_breaker(id)) {
            let mut length = 0;
            while length < at
                && text[at - 1 - length] == text[text.len() - 1 - length]
                && !is_breaker(&text[at - 1 - length])
            {
                length += 1;
            }
            longest = longest.max(length);
        }
        let allowed = params.dry_allowed_length as usize;
        if longest >= allowed.max(1) && *logit > f32::NEG_INFINITY {
            let exponent = (longest - allowed) as i32;
            let penalty = params.dry_multiplier * params.dry_base.powi(exponent);
            *logit = (f64::from(*logit) - penalty) as f32;
        }
    }
}

fn top_n_sigma(params: &Params, kept: &mut Vec<(u32, f32)>) {
    if params.top_n_sigma == 0.0 {
        return;
    }
    keep_first(kept, |sorted| {
        let n = sorted.len() as f64;
        let mean = sorted.iter().map(|l| f64::from(*l)).sum::<f64>() / n;
        let squares = sorted.iter().map(|l| (f64::from(*l) - mean).powi(2));
        let sigma = (squares.sum::<f64>() / n).sqrt();
        let floor = (f64::from(sorted[0]) - params.top_n_sigma * sigma) as f32;
        sorted.iter().filter(|l| **l >= floor).count()
    });
}

fn typical_p(params: &Params, kept: &mut Vec<(u32, f32)>) {
    if params.typical_p == 1.0 {
        return;
    }
    kept.retain(|&(_, logit)| logit > f32::NEG_INFINITY);
    if kept.is_empty() {
        return;
    }
    let logits: Vec<f32> = kept.iter().map(|&(_, logit)| logit).collect();
    let ps = softmax(&logits);
    let terms = ps.iter().filter(|p| **p > 0.0).map(|p| -p * p.ln());
    let entropy: f64 = terms.sum();
    let mut order: Vec<usize> = (0..kept.len()).collect();
    let distance = |i: usize| (-ps[i].ln() - entropy).abs();
    // Equal logits have equal distances, despite rounding.
    order.sort_by(|&a, &b| {
        let by_distance = distance(a).partial_cmp(&distance(b)).expect("no NaN");
        by_distance.then(a.cmp(&b))
    });
    let mut reached = 0.0;
    let crossing = order.iter().position(|&i| {
        reached += ps[i];
        reached >= params.typical_p
    });
    order.truncate(crossing.map_or(order.len(), |last| last + 1));
    order.sort_unstable();
    *kept = order.into_iter().map(|i| kept[i]).collect();
}

/// XTC, as if the stage acted in every step.
fn xtc(params: &Params, kept: &mut Vec<(u32, f32)>) {
    if params.xtc_probability == 0.0 {
        return;
    }
    kept.retain(|&(_, logit)| logit > f32::NEG_INFINITY);
    if kept.is_empty() {
        return;
    }
    let logits: Vec<f32> = kept.iter().map(|&(_, logit)| logit).collect();
    let ps = softmax(&logits);
    let mut falling: Vec<usize> = (0..kept.len()).collect();
    falling.sort_by(|&a, &b| {
        logits[b]
            .partial_cmp(&logits[a])
            .expect("no NaN")
            .then(a.cmp(&b))
    });
    let n_top = falling
        .iter()
        .filter(|&&i| ps[i] >= params.xtc_threshold)
        .count();
    if n_top > 1 {
        let gone: Vec<u32> = falling[..n_top - 1].iter().map(|&i| kept[i].0).collect();
        kept.retain(|(id, _)| !gone.contains(id));
    }
}

fn tfs_z(params: &Params, kept: &mut Vec<(u32, f32)>) {
    if params.tfs_z == 1.0 {
        return;
    }
    keep_first(kept, |sorted| {
        let ps = softmax(sorted);
        let first: Vec<f64> = ps.windows(2).map(|p| p[0] - p[1]).collect();
        let second: Vec<f64> = first.windows(2).map(|d| (d[0] - d[1]).abs()).collect();
        if second.is_empty() {
            return sorted.len();
        }
        let total: f64 = second.iter().sum();
        let shares: Vec<f64> = match total / ps[0] < 1e-6 {
            true => vec![1.0 / second.len() as f64; second.len()],
            false => second.iter().map(|d| d / total).collect(),
        };
        let mut reached = 0.0;
        let within = shares.iter().take_while(|share| {
            reached += **share;
            reached <= params.tfs_z
        });
        1 + within.count()
    });
}

/// Mirostat with a given mu.
pub(super) fn mirostat(version: u32, mu: f64, n_vocab: usize, kept: &mut Vec<(u32, f32)>) {
    match version {
        0 => {}
        1 => keep_first(kept, |sorted| {
            let ps = softmax(sorted);
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
        _ => keep_first(kept, |sorted| {
            let ps = softmax(sorted);
            ps.iter().filter(|p| -p.log2() <= mu).count().max(1)
        }),
    }
}

fn temper(params: &Params, kept: &mut [(u32, f32)]) {
    if params.temperature == 0.0 || params.temperature == 1.0 {
        return;
    }
    let max = kept.iter().fold(f32::NEG_INFINITY, |max, k| max.max(k.1));
    for (_, logit) in kept {
        *logit = ((f64::from(*logit) - f64::from(max)) / params.temperature) as f32;
    }
}

/// Keeps the first of the best candidates, as many as `count` computes from their falling logits.
fn keep_first(kept: &mut Vec<(u32, f32)>, count: impl Fn(&[f32]) -> usize) {
    kept.retain(|&(_, logit)| logit > f32::NEG_INFINITY);
    if kept.is_empty() {
        return;
    }
    kept.sort_by(|a, b| b.1.partial_cmp(&a.1).expect("no NaN").then(a.0.cmp(&b.0)));
    let sorted: Vec<f32> = kept.iter().map(|&(_, logit)| logit).collect();
    kept.truncate(count(&sorted));
    kept.sort_unstable_by_key(|&(id, _)| id);
}
