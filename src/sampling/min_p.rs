//! Keeps the tokens at least `min_p` times as probable as the best one (Nguyen et al. 2024):
//! `logit >= max + ln(min_p)`.

use super::parameter::ParamError;
use super::params::Params;
#[cfg(test)]
use super::reference_chain;
use super::select::Cut;
use super::stage::{self, Stage};

pub(super) fn build(params: &Params) -> Result<Option<Box<dyn Stage>>, ParamError> {
    Ok(stage::cut(params.min_p, 0.0, |input, p, _| {
        Cut::at_least(f64::from(input.max) + p.ln())
    }))
}

#[cfg(test)]
pub(super) fn naive(params: &Params, _: &reference_chain::Tokens<'_>, kept: &mut Vec<(u32, f32)>) {
    if params.min_p == 0.0 {
        return;
    }
    reference_chain::keep_first(kept, |sorted| {
        let ps = reference_chain::softmax(sorted);
        ps.iter().filter(|&p| p / ps[0] >= params.min_p).count()
    });
}
