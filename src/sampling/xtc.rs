//! XTC (exclude top choices): with probability `xtc_probability`, removes all but the least probable of the tokens with
//! a probability of at least `xtc_threshold`, so that a completion varies where there are several good choices (as in
//! text-generation-webui).

use super::candidates::Candidates;
use super::error::SampleError;
use super::parameter::ParamError;
use super::params::Params;
#[cfg(test)]
use super::reference_chain;
use super::softmax::sum_exp;
use super::stage::{Stage, StageInput};

const LANE: u32 = 1;

#[derive(Debug)]
struct Xtc {
    probability: f64,
    threshold: f64,
}

pub(super) fn build(params: &Params) -> Result<Option<Box<dyn Stage>>, ParamError> {
    let (probability, threshold) = (params.xtc_probability, params.xtc_threshold);
    // No two tokens have a probability above a half.
    if probability == 0.0 || threshold > 0.5 {
        return Ok(None);
    }
    Ok(Some(Box::new(Xtc {
        probability,
        threshold,
    })))
}

impl Stage for Xtc {
    fn apply(
        &mut self,
        candidates: &mut Candidates<'_>,
        step: &StageInput<'_>,
    ) -> Result<(), SampleError> {
        if step.uniform(LANE) >= self.probability {
            return Ok(());
        }
        let max = candidates.max()?;
        let (least, most) = candidates.unlisted(max).unwrap_or((0.0, 0.0));
        let logits = candidates.logits();
        let listed = sum_exp(logits, max);
        let floor = |unlisted: f64| f64::from(max) + (self.threshold * (listed + unlisted)).ln();
        let (floor, other) = (floor(least), floor(most));
        let is_between = |logit: &f32| (floor..other).contains(&f64::from(*logit));
        if logits.iter().any(is_between) || !candidates.are_listed_from(floor) {
            return Err(SampleError::Undecided);
        }
        let is_top = |logit: f32| logit.is_finite() && f64::from(logit) >= floor;
        let tops = || (0..).zip(logits).filter(|(_, logit)| is_top(**logit));
        // The spared token is the least probable; of equal ones, the lower id counts as more probable.
        let spared = tops().min_by(|a: &(u32, &f32), b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0)));
        let Some((spared, _)) = spared else {
            return Ok(());
        };
        if tops().nth(1).is_none() {
            return Ok(());
        }
        candidates.keep_where(|position, logit| {
            logit.is_finite() && (position == spared || !is_top(logit))
        });
        Ok(())
    }
}

/// The stage by definition, as if it acted in every step, for comparison.
#[cfg(test)]
pub(super) fn naive(params: &Params, _: &reference_chain::Tokens<'_>, kept: &mut Vec<(u32, f32)>) {
    if params.xtc_probability == 0.0 {
        return;
    }
    let logits = reference_chain::drop_banned(kept);
    let ps = reference_chain::softmax(&logits);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Sampler;

    #[test]
    fn it_happens_as_often_as_it_should_whatever_else_is_drawn() {
        let params = Params {
            xtc_probability: 0.3,
            xtc_threshold: 0.1,
            seed: 5,
            ..Params::default()
        };
        let mut sampler = Sampler::new(&params, 0).expect("valid");
        let logits = [0.6f32, 0.39, 0.01].map(f32::ln);
        let mut best = 0;
        for _ in 0..4000 {
            let token = sampler.sample(&logits).expect("good logits");
            best += u32::from(token == 0);
            sampler.accept(token);
        }
        // The best token is drawn in 0.6 of the steps that keep it, which are 0.7 of all steps.
        assert!((1560..1800).contains(&best), "{best}");
    }
}
