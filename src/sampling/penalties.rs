//! Lowers the logits of tokens that occurred before.
//!
//! ```text
//! window token:   logit = logit > 0 ? logit / repeat_penalty : logit * repeat_penalty
//! answer token:   logit = logit - presence_penalty - count * frequency_penalty
//! ```
//!
//! The first is the rule of Hugging Face and llama.cpp (CTRL, Keskar et al. 2019, with its fault for negative logits
//! corrected), over the last `repeat_last_n` tokens of prompt and completion. The second is OpenAI's: it counts tokens
//! in the whole completion, but not in the prompt.

use std::collections::BTreeMap;

use super::candidates::Candidates;
use super::error::SampleError;
use super::history::{History, TokenOrigin};
use super::parameter::ParamError;
use super::params::Params;
#[cfg(test)]
use super::reference_chain;
use super::stage::{Stage, StageInput};

#[derive(Debug)]
struct Penalties {
    repeat: f64,
    /// Length of the window in tokens; 0 if repetition is not penalised.
    window: usize,
    presence: f64,
    frequency: f64,
    counts: BTreeMap<u32, Count>,
}

#[derive(Debug, Default)]
struct Count {
    in_window: u32,
    in_answer: u32,
}

pub(super) fn build(params: &Params) -> Result<Option<Box<dyn Stage>>, ParamError> {
    let &Params {
        repeat_penalty: repeat,
        repeat_last_n,
        presence_penalty: presence,
        frequency_penalty: frequency,
        ..
    } = params;
    let window = match repeat {
        1.0 => 0,
        _ => usize::try_from(repeat_last_n).unwrap_or(usize::MAX),
    };
    if window == 0 && presence == 0.0 && frequency == 0.0 {
        return Ok(None);
    }
    Ok(Some(Box::new(Penalties {
        repeat,
        window,
        presence,
        frequency,
        counts: BTreeMap::new(),
    })))
}

impl Stage for Penalties {
    fn apply(
        &mut self,
        candidates: &mut Candidates<'_>,
        _step: &StageInput<'_>,
    ) -> Result<(), SampleError> {
        for (&id, count) in &self.counts {
            candidates.change(id, |logit| self.penalised(logit, count));
        }
        Ok(())
    }

    fn accept(&mut self, history: &History, n_new: usize, origin: TokenOrigin) {
        let tokens = history.tokens();
        let n_old = tokens.len() - n_new;
        if self.window > 0 {
            let old_start = n_old.saturating_sub(self.window);
            let start = tokens.len().saturating_sub(self.window);
            for &token in &tokens[start.max(n_old)..] {
                self.counts.entry(token).or_default().in_window += 1;
            }
            for token in &tokens[old_start..start.min(n_old)] {
                self.leave_window(*token);
            }
        }
        if origin == TokenOrigin::Generated {
            for &token in &tokens[n_old..] {
                self.counts.entry(token).or_default().in_answer += 1;
            }
        }
    }
}

impl Penalties {
    fn penalised(&self, logit: f64, count: &Count) -> f64 {
        let mut logit = logit;
        if count.in_window > 0 {
            logit = if logit > 0.0 {
                logit / self.repeat
            } else {
                logit * self.repeat
            };
        }
        if count.in_answer > 0 {
            logit -= self.presence + f64::from(count.in_answer) * self.frequency;
        }
        logit
    }

    fn leave_window(&mut self, token: u32) {
        let count = self.counts.entry(token).or_default();
        count.in_window -= 1;
        if count.in_window == 0 && count.in_answer == 0 {
            self.counts.remove(&token);
        }
    }
}

#[cfg(test)]
pub(super) fn naive(
    params: &Params,
    tokens: &reference_chain::Tokens<'_>,
    kept: &mut [(u32, f32)],
) {
    let all = [tokens.prompt, tokens.generated].concat();
    let window = match params.repeat_last_n {
        -1 => &all[..],
        n => &all[all.len().saturating_sub(n as usize)..],
    };
    for (id, logit) in kept {
        let mut new = f64::from(*logit);
        if window.contains(id) {
            new *= params.repeat_penalty.powi(if new > 0.0 { -1 } else { 1 });
        }
        let count = tokens.generated.iter().filter(|&token| token == id).count();
        if count > 0 {
            new -= params.presence_penalty + count as f64 * params.frequency_penalty;
        }
        *logit = new as f32;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::reference_chain;

    #[test]
    fn each_rule_changes_its_tokens_and_no_result_is_infinite() {
        let repeat = |penalty| reference_chain::with(|p| p.repeat_penalty = penalty);
        let short = Params {
            repeat_last_n: 3,
            ..repeat(2.0)
        };
        let counts =
            reference_chain::with(|p| (p.presence_penalty, p.frequency_penalty) = (1.0, 0.25));
        let run = |params: &Params, prompt: &[u32], generated: &[u32], logits: &[f32]| {
            let kept = reference_chain::run(params, prompt, generated, logits).expect("all stay");
            kept.into_iter().map(|(_, logit)| logit).collect::<Vec<_>>()
        };
        // The first token of the prompt is outside the window of three.
        let found = run(&short, &[3, 0], &[1, 1], &[4.0, -4.0, 4.0, 4.0]);
        assert_eq!(found, [2.0, -8.0, 4.0, 4.0]);
        // The completion alone is counted.
        let found = run(&counts, &[0, 0, 1], &[1, 2, 1], &[4.0; 3]);
        assert_eq!(found, [4.0, 2.5, 2.75]);
        assert_eq!(
            run(&repeat(1e-300), &[0], &[], &[4.0, 5.0]),
            [f32::MAX, 5.0]
        );
        assert_eq!(run(&repeat(2.0), &[0], &[], &[f32::MIN]), [f32::MIN]);
        // A token beyond the vocabulary is no candidate.
        assert_eq!(run(&repeat(2.0), &[70_000], &[], &[4.0, 5.0]), [4.0, 5.0]);
    }

    proptest! {
        #[test]
        fn counts_kept_along_are_those_of_the_whole_history(
            logits in reference_chain::logits(8..9),
            parts in prop::collection::vec(prop::collection::vec(0..8u32, 0..12), 0..4),
            generated in prop::collection::vec(0..8u32, 0..30),
            repeat_penalty in 0.5..2.0f64,
            repeat_last_n in -1..20i32,
            presence_penalty in -2.0..2.0f64,
            frequency_penalty in -2.0..2.0f64,
        ) {
            let params = Params {
                repeat_penalty,
                repeat_last_n,
                presence_penalty,
                frequency_penalty,
                ..Params::default()
            };
            let prompt = parts.concat();
            let mut sampler = reference_chain::sampler(&params);
            for part in &parts {
                sampler.accept_prompt(part);
            }
            for &token in &generated {
                sampler.accept(token);
            }
            prop_assert_eq!(
                reference_chain::candidates(&mut sampler, &logits),
                Ok(reference_chain::chain(&params, &prompt, &generated, &logits))
            );
        }
    }
}
