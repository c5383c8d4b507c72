//! Tail-free sampling (Phénix and Egan 2019): cuts where the curve of the sorted probabilities becomes flat.
//!
//! ```text
//! d[i] = |p[i] - 2 p[i+1] + p[i+2]|              p falling
//! keep = 1 + number of i with (d[0] + ... + d[i]) / sum of all d <= tfs_z
//! ```
//!
//! The 1 is the authors': it puts the border into the middle of the three tokens that a difference spans (llama.cpp's
//! former sampler of this name omitted it). A straight curve has no tail, so all its differences count alike. No
//! vocabulary is sorted: the differences below a token sum to at most twice that token's probability, so a few of the
//! best decide.

use super::parameter::ParamError;
use super::params::Params;
#[cfg(test)]
use super::reference_chain;
use super::select::{self, Cut};
use super::softmax::exp;
use super::stage::{self, CutInput, Stage};

/// Number of best tokens in the first attempt.
const FIRST: usize = 256;

/// If the sum of the differences is below this share of the best probability, it is only rounding of the logits.
const STRAIGHT: f64 = 1e-6;

pub(super) fn build(params: &Params) -> Result<Option<Box<dyn Stage>>, ParamError> {
    Ok(stage::cut(params.tfs_z, 1.0, without_tail))
}

fn without_tail(input: &CutInput<'_>, z: f64, best: &mut Vec<f32>) -> Cut {
    let CutInput { logits, max, .. } = *input;
    let mut room = FIRST;
    loop {
        select::best(logits, room, best);
        let is_listed = best.len() < room || room >= logits.len();
        let is_all = is_listed && input.unlisted.is_none();
        best.sort_unstable_by(|a, b| b.total_cmp(a));
        if let Some(n) = kept(best, max, z, is_all) {
            return Cut::below(&best[..n], best[n - 1]);
        }
        if is_listed {
            return Cut::UNDECIDED;
        }
        room *= 8;
    }
}

/// The number of the best tokens that are kept. `None` if later tokens could change it; `is_all` if there are none.
fn kept(best: &[f32], max: f32, z: f64, is_all: bool) -> Option<usize> {
    let weight = |logit: f32| exp(f64::from(logit) - f64::from(max));
    let bends = || {
        best.windows(3)
            .map(|w| (weight(w[0]) - 2.0 * weight(w[1]) + weight(w[2])).abs())
    };
    let n_bends = best.len().saturating_sub(2);
    if n_bends == 0 {
        return is_all.then_some(best.len());
    }
    let within = |target: f64| {
        let mut reached = 0.0;
        let crossing = bends().position(|bend| {
            reached += bend;
            reached > target
        });
        crossing.unwrap_or(n_bends)
    };

    let least: f64 = bends().sum();
    if is_all && least < STRAIGHT {
        let n = (1..=n_bends).take_while(|i| *i as f64 / n_bends as f64 <= z);
        return Some(1 + n.count());
    }
    let n = within(z * least);
    // The differences of a falling curve sum to at most twice its remaining fall.
    let most = least + 2.0 * weight(best[n_bends]);
    let is_settled = is_all || (least >= STRAIGHT && n < n_bends && n == within(z * most));
    is_settled.then_some(1 + n)
}

#[cfg(test)]
pub(super) fn naive(params: &Params, _: &reference_chain::Tokens<'_>, kept: &mut Vec<(u32, f32)>) {
    if params.tfs_z == 1.0 {
        return;
    }
    reference_chain::keep_first(kept, |sorted| {
        let ps = reference_chain::softmax(sorted);
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
