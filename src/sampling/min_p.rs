//! Keeps the tokens at least `min_p` times as probable as the best one (Nguyen et al. 2024):
//! `logit >= max + ln(min_p)`.

use super::parameter::ParamError;
use super::params::Params;
#[cfg(test)]
use super::reference_chain;
use super::select::Cut;
use super::stage::{self, Stage};

pub(super) fn build(params: &Params) -> Result<Option<Box<dyn Stage>>, ParamError> {
    Ok(stage::cut(params.min_p, 0.0, |_, max, p, _| {
        Cut::at_least(f64::from(max) + p.ln())
    }))
}

/// The stage by definition, for comparison.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::reference_chain;

    fn kept(min_p: f64, logits: &[f32]) -> Vec<u32> {
        let params = Params {
            min_p,
            ..Params::default()
        };
        reference_chain::kept(&params, logits)
    }

    #[test]
    fn the_floor_is_a_share_of_the_best() {
        let logits = [0.1f32, 0.6, 0.1, 0.2].map(f32::ln);
        assert_eq!(kept(0.16, &logits), [0, 1, 2, 3]);
        assert_eq!(kept(0.17, &logits), [1, 3]);
        assert_eq!(kept(0.34, &logits), [1]);
        assert_eq!(kept(1.0, &logits), [1]);
    }

    #[test]
    fn equals_of_the_best_always_stay() {
        assert_eq!(kept(1.0, &[0.5, 2.0, f32::NEG_INFINITY, 2.0]), [1, 3]);
        assert_eq!(kept(f64::MIN_POSITIVE, &[f32::MIN, f32::NEG_INFINITY]), [0]);
    }

    #[test]
    fn the_floor_is_exact_to_the_last_bit() {
        for percent in 1..100 {
            let min_p = f64::from(percent) / 100.0;
            let nearest = min_p.ln() as f32;
            let stays = f64::from(nearest) >= min_p.ln();
            assert_eq!(kept(min_p, &[0.0, nearest]).len(), 1 + usize::from(stays));
        }
    }

    proptest! {
        #[test]
        fn the_same_as_by_a_full_sort(logits in reference_chain::logits(1..400), min_p in 1e-9..1.0f64) {
            let params = Params { min_p, ..Params::default() };
            reference_chain::agrees(&params, &logits)?;
        }
    }
}
