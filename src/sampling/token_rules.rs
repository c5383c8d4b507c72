//! Which tokens may come next in a transcript: rules that read the tokens so far and the logits, before any stage.
//!
//! The rules of timestamps are those of Radford et al. 2022, as openai/whisper applies them: timestamps come in pairs around a text, never
//! go back, and one comes where it is likelier as a class than each other token.

/// Which tokens may come next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenRules {
    /// One of these alone. Log-probabilities are those among all tokens.
    Only(Vec<u32>),
    /// The text of a transcript, with timestamps where there are any. Log-probabilities are those among the tokens that may come.
    Transcript(TranscriptRules),
}

/// The tokens of a transcript.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TranscriptRules {
    /// The token that ends it. Tokens of text have lower ids.
    pub end: u32,
    /// Tokens that never come.
    pub suppressed: Vec<u32>,
    /// Tokens that do not come first.
    pub suppressed_first: Vec<u32>,
    /// The timestamps; none: a text without times.
    pub timestamps: Option<Timestamps>,
}

/// Tokens of times, one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timestamps {
    /// The id of the time 0.
    pub first: u32,
    /// Their number.
    pub n: u32,
    /// The latest one that may come first, counted from 0.
    pub most_initial: Option<u32>,
}

impl Timestamps {
    /// The number of a timestamp, from 0; none if the token is another one.
    pub fn number(&self, token: u32) -> Option<u32> {
        token.checked_sub(self.first).filter(|at| *at < self.n)
    }
}

const NEVER: f32 = f32::NEG_INFINITY;

impl TokenRules {
    /// The logits after the tokens of a completion, with those of tokens that may not come set to -inf.
    pub fn applied(&self, tokens: &[u32], logits: &[f32]) -> Vec<f32> {
        match self {
            Self::Only(allowed) => {
                let mut masked = vec![NEVER; logits.len()];
                for id in allowed.iter().map(|id| *id as usize) {
                    if let (Some(to), Some(from)) = (masked.get_mut(id), logits.get(id)) {
                        *to = *from;
                    }
                }
                masked
            }
            Self::Transcript(rules) => rules.applied(tokens, logits),
        }
    }

    /// Whether log-probabilities are those among the tokens that may come.
    pub fn are_scores_ruled(&self) -> bool {
        matches!(self, Self::Transcript(_))
    }
}

impl TranscriptRules {
    fn applied(&self, tokens: &[u32], logits: &[f32]) -> Vec<f32> {
        let mut masked = logits.to_vec();
        let n_vocab = masked.len();
        let first = self.suppressed_first.iter().filter(|_| tokens.is_empty());
        for id in self.suppressed.iter().chain(first) {
            if let Some(logit) = masked.get_mut(*id as usize) {
                *logit = NEVER;
            }
        }
        let Some(times) = self.timestamps else {
            return masked;
        };
        let start = (times.first as usize).min(n_vocab);
        let end = start.saturating_add(times.n as usize).min(n_vocab);
        let is_time = |back: usize| {
            let at = tokens.len().checked_sub(back)?;
            Some(times.number(tokens[at]).is_some())
        };
        let last = tokens.iter().rev().find_map(|id| times.number(*id));
        if is_time(1) == Some(true) {
            // The first timestamp of a completion counts as the second of a pair: text follows it.
            match is_time(2).unwrap_or(true) {
                true => masked[start..end].fill(NEVER),
                false => masked[..(self.end as usize).min(n_vocab)].fill(NEVER),
            }
        }
        if let Some(last) = last {
            let begins_pair = is_time(1) == Some(true) && is_time(2) == Some(false);
            // A segment begins where the one before it ended, or later, and is not empty.
            let least = (last + u32::from(!begins_pair)) as usize;
            masked[start..start.saturating_add(least).min(end)].fill(NEVER);
        }
        if tokens.is_empty() {
            masked[..start].fill(NEVER);
            masked[end..].fill(NEVER);
            if let Some(most) = times.most_initial {
                masked[start.saturating_add(most as usize + 1).min(end)..end].fill(NEVER);
            }
        }
        let largest = |of: &[f32]| of.iter().copied().fold(NEVER, f32::max);
        let (text, time) = (
            largest(&masked[..start]).max(largest(&masked[end..])),
            largest(&masked[start..end]),
        );
        if time > NEVER {
            let scaled = masked[start..end]
                .iter()
                .map(|logit| f64::from(logit - time).exp());
            // The logarithm of the probability of any timestamp, up to the term that all tokens share.
            let of_times = f64::from(time) + scaled.sum::<f64>().ln();
            if of_times > f64::from(text) {
                masked[..start].fill(NEVER);
                masked[end..].fill(NEVER);
            }
        }
        masked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Text 0 to 4, the end 5, another special token 6, timestamps 7 to 11, and a token beyond them.
    fn rules() -> TranscriptRules {
        TranscriptRules {
            end: 5,
            suppressed: vec![6, 12],
            suppressed_first: vec![0],
            timestamps: Some(Timestamps {
                first: 7,
                n: 5,
                most_initial: Some(2),
            }),
        }
    }

    fn allowed(tokens: &[u32], logits: &[f32]) -> Vec<usize> {
        let masked = TokenRules::Transcript(rules()).applied(tokens, logits);
        (0..masked.len()).filter(|id| masked[*id] > NEVER).collect()
    }

    #[test]
    fn a_transcript_begins_with_an_early_timestamp() {
        assert_eq!(allowed(&[], &[1.0; 13]), [7, 8, 9]);
    }

    #[test]
    fn timestamps_come_in_pairs_and_never_go_back() {
        let mut likely_text = [0.0; 13];
        likely_text[3] = 9.0;
        // Text follows the first one, and the second of a pair.
        assert_eq!(allowed(&[8], &likely_text), [0, 1, 2, 3, 4, 5]);
        assert_eq!(allowed(&[8, 1, 9, 9], &likely_text), [0, 1, 2, 3, 4, 5]);
        // Within a text a later timestamp than that of its begin.
        assert_eq!(
            allowed(&[8, 1], &likely_text),
            [0, 1, 2, 3, 4, 5, 9, 10, 11]
        );
        // After the end of a segment the begin of the next, or the end of all.
        let mut likely_end = [0.0; 13];
        likely_end[5] = 9.0;
        assert_eq!(allowed(&[8, 1, 10], &likely_end), [5, 10, 11]);
        assert_eq!(allowed(&[8, 1, 10], &likely_text), [10, 11]);
    }

    #[test]
    fn timestamps_come_where_together_they_are_likelier_than_each_other_token() {
        let mut logits = [0.0; 13];
        logits[2] = 1.0;
        // Three timestamps of probability 1 are more than e.
        assert_eq!(allowed(&[8, 1], &logits), [9, 10, 11]);
        logits[2] = 1.2;
        assert_eq!(allowed(&[8, 1], &logits).len(), 9);
    }

    #[test]
    fn without_timestamps_only_what_is_suppressed_is_left_out() {
        let rules = TokenRules::Transcript(TranscriptRules {
            timestamps: None,
            ..rules()
        });
        let left = |tokens: &[u32]| {
            let masked = rules.applied(tokens, &[0.0; 13]);
            (0..13).filter(|id| masked[*id] > NEVER).count()
        };
        assert_eq!((left(&[]), left(&[1])), (10, 11));
    }

    #[test]
    fn one_of_a_list_keeps_its_logit() {
        let masked = TokenRules::Only(vec![2, 90]).applied(&[], &[0.5, 1.5, 2.5]);
        assert_eq!(masked, [NEVER, NEVER, 2.5]);
    }

    #[test]
    fn ids_beyond_the_logits_do_no_harm() {
        let rules = TranscriptRules {
            end: 90,
            suppressed: vec![90],
            timestamps: Some(Timestamps {
                first: 80,
                n: u32::MAX,
                most_initial: Some(u32::MAX - 1),
            }),
            ..TranscriptRules::default()
        };
        for tokens in [&[][..], &[81], &[1, 81]] {
            assert_eq!(
                TokenRules::Transcript(rules.clone())
                    .applied(tokens, &[0.0; 3])
                    .len(),
                3
            );
        }
    }
}
