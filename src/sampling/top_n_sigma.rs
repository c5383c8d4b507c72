//! Keeps the tokens whose logits are at most `top_n_sigma` standard deviations below the best one (Tang et al. 2024):
//! the set of kept tokens does not grow with the temperature.

use super::parameter::ParamError;
use super::params::Params;
#[cfg(test)]
use super::reference_chain;
use super::select::Cut;
use super::stage::{self, CutInput, Stage};

pub(super) fn build(params: &Params) -> Result<Option<Box<dyn Stage>>, ParamError> {
    Ok(stage::cut_of_all(params.top_n_sigma, 0.0, within))
}

fn within(input: &CutInput<'_>, n_sigma: f64, _: &mut Vec<f32>) -> Cut {
    let CutInput { logits, max, .. } = *input;
    let allowed = || {
        let logits = logits.iter();
        logits.filter(|l| l.is_finite()).map(|l| f64::from(*l))
    };
    let (n, sum) = allowed().fold((0.0, 0.0), |(n, sum), l| (n + 1.0, sum + l));
    let mean = sum / n;
    let variance = allowed().map(|l| (l - mean).powi(2)).sum::<f64>() / n;
    let floor = f64::from(max) - n_sigma * variance.sqrt();
    Cut {
        logit: floor.max(f64::from(f32::MIN)) as f32,
        n_equal: usize::MAX,
    }
}

#[cfg(test)]
pub(super) fn naive(params: &Params, _: &reference_chain::Tokens<'_>, kept: &mut Vec<(u32, f32)>) {
    if params.top_n_sigma == 0.0 {
        return;
    }
    reference_chain::keep_first(kept, |sorted| {
        let n = sorted.len() as f64;
        let mean = sorted.iter().map(|l| f64::from(*l)).sum::<f64>() / n;
        let squares = sorted.iter().map(|l| (f64::from(*l) - mean).powi(2));
        let sigma = (squares.sum::<f64>() / n).sqrt();
        let floor = (f64::from(sorted[0]) - params.top_n_sigma * sigma) as f32;
        sorted.iter().filter(|l| **l >= floor).count()
    });
}
