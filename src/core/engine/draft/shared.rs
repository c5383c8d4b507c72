//! Recent answers of the server, from which drafts of later requests are looked up.
//!
//! Each client has its own, for each set of scales of adapters, so that what one is sent cannot be told from how fast another is
//! answered. Their tokens are bounded; the oldest leave first.

use std::collections::HashMap;
use std::mem;
use std::sync::Arc;

use super::index::{Continuation, TokenIndex};

/// Maximum number of tokens of all answers together. A token takes 30 bytes or so.
const MOST_TOKENS: usize = 1 << 20;
/// Maximum number of tokens of one client and set of scales.
const MOST_OF_CLIENT: usize = 1 << 18;
/// Tokens of a prompt before the answer.
const N_BEFORE: usize = 8;
/// Answers with fewer tokens are not kept.
const SHORTEST: usize = 4;

/// The answers of a client with the same scales of adapters.
#[derive(Debug, Default)]
struct RecentAnswers {
    /// The later ones. When they are half of what may be kept, they take the place of the earlier ones.
    later: TokenIndex,
    earlier: TokenIndex,
    /// When they were last used.
    used: u64,
}

impl RecentAnswers {
    fn len(&self) -> usize {
        self.later.len() + self.earlier.len()
    }
}

type Key = (Arc<str>, Vec<u32>);

#[derive(Debug, Default)]
pub(in crate::engine) struct SharedDrafts {
    answers: HashMap<Key, RecentAnswers>,
    clock: u64,
}

fn key_of(client: &Arc<str>, scales: &[f32]) -> Key {
    let bits = scales.iter().map(|scale| scale.to_bits()).collect();
    (Arc::clone(client), bits)
}

impl SharedDrafts {
    /// Keeps the answer after the first `n_prompt` of `tokens`.
    pub(in crate::engine) fn add(
        &mut self,
        client: &Arc<str>,
        scales: &[f32],
        tokens: &[u32],
        n_prompt: usize,
    ) {
        let Some(answer) = tokens.get(n_prompt..).filter(|of| of.len() >= SHORTEST) else {
            return;
        };
        let n = answer.len().min(MOST_OF_CLIENT / 2);
        let from = (tokens.len() - n).saturating_sub(N_BEFORE);
        self.clock += 1;
        let of = self.answers.entry(key_of(client, scales)).or_default();
        of.used = self.clock;
        if of.later.len() + tokens.len() - from > MOST_OF_CLIENT / 2 {
            of.earlier = mem::take(&mut of.later);
        }
        of.later.push_text(&tokens[from..]);
        while self.answers.values().map(RecentAnswers::len).sum::<usize>() > MOST_TOKENS {
            let oldest = self.answers.iter().min_by_key(|(_, of)| of.used);
            let Some(key) = oldest.map(|(key, _)| key.clone()) else {
                return;
            };
            self.answers.remove(&key);
        }
    }

    /// At most `n` tokens that followed the last of `tokens` in answers to the same client.
    pub(super) fn follow(
        &mut self,
        client: &Arc<str>,
        scales: &[f32],
        tokens: &[u32],
        n: usize,
    ) -> Vec<Continuation> {
        let Some(of) = self.answers.get_mut(&key_of(client, scales)) else {
            return Vec::new();
        };
        self.clock += 1;
        of.used = self.clock;
        let later = of.later.follow_text(tokens, n);
        let earlier = of.earlier.follow_text(tokens, n);
        let len = |found: &[Continuation]| found.first().map_or(0, |of| of.len);
        match len(&earlier) > len(&later) {
            true => earlier,
            false => later,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn following(shared: &mut SharedDrafts, client: &str, scales: &[f32]) -> Vec<u32> {
        let found = shared.follow(&client.into(), scales, &[9, 1, 2], 3);
        found.into_iter().map(|of| of.token).collect()
    }

    #[test]
    fn answers_are_for_the_same_client_and_adapters_alone() {
        let mut shared = SharedDrafts::default();
        shared.add(&"a".into(), &[0.5], &[7, 1, 2, 3, 4, 5], 1);
        assert_eq!(following(&mut shared, "a", &[0.5]), [3, 4, 5]);
        assert!(following(&mut shared, "b", &[0.5]).is_empty());
        assert!(following(&mut shared, "a", &[]).is_empty());
    }

    #[test]
    fn prompts_are_not_kept_but_for_what_an_answer_follows() {
        let mut shared = SharedDrafts::default();
        let long: Vec<u32> = (100..200).chain([1, 2, 3, 4, 5]).collect();
        shared.add(&"a".into(), &[], &long, 100);
        assert_eq!(following(&mut shared, "a", &[]), [3, 4, 5]);
        assert!(shared.follow(&"a".into(), &[], &[110, 111], 3).is_empty());
        assert_eq!(
            shared
                .answers
                .values()
                .map(RecentAnswers::len)
                .sum::<usize>(),
            14
        );
    }

    #[test]
    fn the_oldest_answers_leave_first() {
        let mut shared = SharedDrafts::default();
        let n = MOST_OF_CLIENT / 8;
        let text = |first: u32| -> Vec<u32> {
            [0, 1, 2]
                .into_iter()
                .chain(first..first + n as u32)
                .collect()
        };
        let n_kept = |shared: &SharedDrafts| -> usize {
            shared.answers.values().map(RecentAnswers::len).sum()
        };
        for i in 1..=12 {
            shared.add(&"a".into(), &[], &text(i * 1_000_000), 1);
            assert!(n_kept(&shared) <= MOST_OF_CLIENT);
        }
        assert_eq!(following(&mut shared, "a", &[])[0], 12_000_000);
        let follows = |shared: &mut SharedDrafts, i: u32| {
            let text = [i * 1_000_000 + 5, i * 1_000_000 + 6];
            !shared.follow(&"a".into(), &[], &text, 1).is_empty()
        };
        assert!(!follows(&mut shared, 1) && follows(&mut shared, 11));
        // Clients that were answered least recently leave as a whole.
        for i in 0..8 {
            for _ in 0..8 {
                shared.add(&i.to_string().into(), &[], &text(i * 1_000_000), 1);
            }
        }
        assert!(n_kept(&shared) <= MOST_TOKENS);
        assert!(!follows(&mut shared, 11), "it was used before all others");
    }
}
