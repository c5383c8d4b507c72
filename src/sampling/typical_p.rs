//! Locally typical sampling (Meister et al. 2022): keeps the tokens whose surprisal is nearest to the expected
//! surprisal, which is the entropy, until their total probability reaches `typical_p`.
//!
//! The best token may be removed. No vocabulary is sorted: the nearest tokens are selected in batches.

use super::candidates::Candidates;
use super::error::SampleError;
use super::parameter::ParamError;
use super::params::Params;
#[cfg(test)]
use super::reference_chain;
use super::softmax::{exp, sum_exp};
use super::stage::{Stage, StageInput};

/// Number of tokens in the first batch.
const FIRST: usize = 256;

#[derive(Debug)]
struct TypicalP {
    p: f64,
    /// Distance from the expected surprisal, and position, for each candidate.
    distances: Vec<(f64, u32)>,
}

pub(super) fn build(params: &Params) -> Result<Option<Box<dyn Stage>>, ParamError> {
    let p = params.typical_p;
    if p == 1.0 {
        return Ok(None);
    }
    Ok(Some(Box::new(TypicalP {
        p,
        distances: Vec::new(),
    })))
}

impl Stage for TypicalP {
    fn apply(
        &mut self,
        candidates: &mut Candidates<'_>,
        _step: &StageInput<'_>,
    ) -> Result<(), SampleError> {
        candidates.need_all()?;
        let max = candidates.max()?;
        let logits = candidates.logits();
        let total = sum_exp(logits, max);
        let below = |logit: f32| f64::from(logit) - f64::from(max);
        let allowed = || logits.iter().filter(|logit| logit.is_finite());
        // -ln p = ln(total) - (logit - max)
        let mean = allowed().map(|l| exp(below(*l)) * below(*l)).sum::<f64>() / total;

        self.distances.clear();
        self.distances.reserve_exact(logits.len());
        for (position, logit) in (0..).zip(logits) {
            if logit.is_finite() {
                self.distances
                    .push(((mean - below(*logit)).abs(), position));
            }
        }
        let n = nearest(&mut self.distances, self.p * total, |position| {
            exp(below(logits[position as usize]))
        });
        self.distances.truncate(n);
        self.distances
            .sort_unstable_by_key(|(_, position)| *position);
        candidates.keep_positions(self.distances.iter().map(|(_, position)| *position));
        Ok(())
    }

    fn decides_by(&self, _n: usize) -> bool {
        false
    }
}

/// Moves the nearest to the front until their weights reach `share`, and returns their number.
fn nearest(distances: &mut [(f64, u32)], share: f64, weight: impl Fn(u32) -> f64) -> usize {
    let order = |a: &(f64, u32), b: &(f64, u32)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1));
    let (mut done, mut reached) = (0, 0.0);
    let mut room = FIRST;
    while done < distances.len() {
        let rest = &mut distances[done..];
        let n = room.min(rest.len());
        if n < rest.len() {
            rest.select_nth_unstable_by(n, order);
        }
        rest[..n].sort_unstable_by(order);
        for (i, (_, position)) in rest[..n].iter().enumerate() {
            reached += weight(*position);
            if reached >= share {
                return done + i + 1;
            }
        }
        done += n;
        room *= 8;
    }
    distances.len()
}

#[cfg(test)]
pub(super) fn naive(params: &Params, _: &reference_chain::Tokens<'_>, kept: &mut Vec<(u32, f32)>) {
    if params.typical_p == 1.0 {
        return;
    }
    let logits = reference_chain::drop_banned(kept);
    let ps = reference_chain::softmax(&logits);
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
