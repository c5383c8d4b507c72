//! DRY ("don't repeat yourself"): a token that would continue a repetition is penalised, the more the longer the
//! repeated passage is.
//!
//! ```text
//! n     = length of the longest passage before an earlier occurrence of the token that is also
//!         the end of the sequence
//! logit = logit - dry_multiplier * dry_base ^ (n - dry_allowed_length)     if n >= dry_allowed_length
//! ```
//!
//! A passage contains no breakers, such as line feeds and quotes: a repetition ends at a breaker. A breaker itself is
//! never penalised. (text-generation-webui's sampler of this name.)

use std::collections::BTreeMap;

use super::candidates::Candidates;
use super::error::SampleError;
use super::parameter::ParamError;
use super::params::Params;
#[cfg(test)]
use super::reference_chain;
use super::stage::{Stage, StageInput};

/// Passages that exceed the allowed length by more than this count as passages that exceed it by this: the penalty is
/// already far beyond any logit.
const LONGEST: usize = 512;

#[derive(Debug)]
struct Dry {
    multiplier: f64,
    base: f64,
    allowed: usize,
    window: usize,
    /// The ids of the breakers, sorted.
    breakers: Vec<u32>,
    /// For each token that would continue a repetition, the length of the repetition.
    repeated: BTreeMap<u32, usize>,
    /// The Z-function of the reversed sequence; a buffer.
    lengths: Vec<usize>,
}

pub(super) fn build(params: &Params) -> Result<Option<Box<dyn Stage>>, ParamError> {
    let (multiplier, base) = (params.dry_multiplier, params.dry_base);
    let window = params.dry_penalty_last_n;
    if multiplier == 0.0 || window == 0 {
        return Ok(None);
    }
    let mut breakers = params.dry_sequence_breakers.clone();
    breakers.sort_unstable();
    Ok(Some(Box::new(Dry {
        multiplier,
        base,
        allowed: params.dry_allowed_length as usize,
        window: usize::try_from(window).unwrap_or(usize::MAX),
        breakers,
        repeated: BTreeMap::new(),
        lengths: Vec::new(),
    })))
}

impl Stage for Dry {
    fn apply(
        &mut self,
        candidates: &mut Candidates<'_>,
        step: &StageInput<'_>,
    ) -> Result<(), SampleError> {
        let tokens = step.history.tokens();
        let tokens = &tokens[tokens.len().saturating_sub(self.window)..];
        self.find(tokens);
        for (id, length) in &self.repeated {
            let exponent = length.saturating_sub(self.allowed);
            let penalty = self.multiplier * self.base.powi(exponent as i32);
            candidates.change(*id, |logit| (logit - penalty).max(f64::from(f32::MIN)));
        }
        Ok(())
    }
}

impl Dry {
    fn find(&mut self, tokens: &[u32]) {
        self.repeated.clear();
        let n = tokens.len();
        let is_breaker = |token: &u32| self.breakers.binary_search(token).is_ok();
        let back = tokens.iter().rev();
        let longest = self.allowed.saturating_add(LONGEST);
        let limit = back.take(longest).take_while(|t| !is_breaker(t)).count();
        if limit == 0 || limit < self.allowed {
            return;
        }
        // The Z-function of the reversed sequence: `lengths[i]` is the number of tokens before position `n - i` that
        // equal those at the end.
        let back = |i: usize| tokens[n - 1 - i];
        self.lengths.clear();
        self.lengths.resize(n, 0);
        let (mut left, mut right) = (0, 0);
        for i in 1..n {
            let mut length = match i < right {
                true => self.lengths[i - left].min(right - i),
                false => 0,
            };
            while i + length < n && back(length) == back(i + length) {
                length += 1;
            }
            if i + length > right {
                (left, right) = (i, i + length);
            }
            self.lengths[i] = length;
            let next = back(i - 1);
            let length = length.min(limit);
            if length >= self.allowed.max(1) && !is_breaker(&next) {
                let longest = self.repeated.entry(next).or_default();
                *longest = length.max(*longest);
            }
        }
    }
}

#[cfg(test)]
pub(super) fn naive(
    params: &Params,
    tokens: &reference_chain::Tokens<'_>,
    kept: &mut [(u32, f32)],
) {
    if params.dry_multiplier == 0.0 || params.dry_penalty_last_n == 0 {
        return;
    }
    let text = &[tokens.prompt, tokens.generated].concat()[..];
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::reference_chain;

    #[test]
    fn what_prolongs_a_repetition_is_penalised_by_its_length_unless_a_breaker_ends_it() {
        // 1 2 3 occurred before 4, and ends the sequence; one repeated token is allowed.
        for (text, breakers, id, penalty) in [
            (&[1, 2, 3, 4, 1, 2, 3][..], &[][..], 4, 2.0),
            (&[1, 2, 3, 4, 5, 2, 3], &[], 4, 1.0),
            (&[3, 4, 5, 1, 3], &[], 4, 0.0),
            (&[1, 1, 1, 1], &[], 1, 2.0),
            (&[], &[], 1, 0.0),
            (&[1, 2, 3, 4, 1, 2, 3], &[1], 4, 1.0),
            (&[1, 2, 3, 4, 1, 2, 3], &[3], 4, 0.0),
            (&[1, 2, 3, 4, 1, 2, 3], &[4], 4, 0.0),
        ] {
            let params = reference_chain::with(|p| {
                (p.dry_multiplier, p.dry_base) = (1.0, 2.0);
                p.dry_sequence_breakers = breakers.to_vec();
            });
            let mut expected = [0.0; 6];
            expected[id] = -penalty;
            let kept = reference_chain::run(&params, text, &[], &[0.0; 6]).expect("all stay");
            let found: Vec<f32> = kept.into_iter().map(|(_, logit)| logit).collect();
            assert_eq!(found, expected, "{text:?} {breakers:?}");
        }
    }

    #[test]
    fn a_passage_longer_than_the_allowed_length_counts_however_long_that_is() {
        let passage: Vec<u32> = (10..710).collect();
        let text = [&passage[..], &[0], &passage].concat();
        for (allowed, penalty) in [(600, 1.0), (700, 1.0), (701, 0.0)] {
            let params = reference_chain::with(|p| {
                (p.dry_multiplier, p.dry_base, p.dry_allowed_length) = (1.0, 1.0, allowed);
            });
            let kept = reference_chain::run(&params, &text, &[], &[0.0; 2]).expect("both stay");
            assert_eq!(kept, [(0, -penalty), (1, 0.0)], "{allowed}");
        }
    }

    proptest! {
        #[test]
        fn the_same_as_by_naive_loops(
            text in prop::collection::vec(0..4u32, 0..60),
            breakers in prop::collection::vec(0..4u32, 0..2),
            allowed in 0..4u32,
            last_n in prop_oneof![Just(-1), 1..50i32],
        ) {
            let params = Params {
                dry_multiplier: 0.7,
                dry_base: 1.3,
                dry_allowed_length: allowed,
                dry_penalty_last_n: last_n,
                dry_sequence_breakers: breakers,
                ..Params::default()
            };
            let logits = [0.5, 1.0, 2.0, -1.0, 0.0];
            let expected = reference_chain::chain(&params, &text, &[], &logits);
            prop_assert_eq!(reference_chain::run(&params, &text, &[], &logits)?, expected);
        }
    }
}
