//! Speculative decoding: draft tokens that one pass verifies together.
//!
//! A draft token costs a row of the next pass and nothing else: it is accepted only if the sampler, given the
//! model's logits, chooses the same token. The distribution of completions is therefore the same as without drafts,
//! whatever tokens are proposed. Not here: the choice of tokens.

use std::collections::HashMap;

/// Numbers of last tokens of the sequence that are looked up, the largest first.
const LENGTHS: [usize; 3] = [4, 3, 2];
const LONGEST: usize = LENGTHS[0];

/// Drafts the tokens that followed the last occurrence of the sequence's last tokens: prompt lookup (Saxena 2023,
/// "Prompt Lookup Decoding").
#[derive(Debug, Default)]
struct PromptLookup {
    tokens: Vec<u32>,
    /// The position after the last occurrence of some tokens. The key is the tokens, padded with 0, and their
    /// number.
    places: HashMap<([u32; LONGEST], usize), usize>,
}

impl PromptLookup {
    fn key(&self, len: usize, end: usize) -> Option<([u32; LONGEST], usize)> {
        let tokens = self.tokens.get(end.checked_sub(len)?..end)?;
        let mut key = [0; LONGEST];
        key[..len].copy_from_slice(tokens);
        Some((key, len))
    }

    fn push(&mut self, token: u32) {
        // The last tokens of the sequence are recorded only when a token follows them.
        let end = self.tokens.len();
        for len in LENGTHS {
            if let Some(key) = self.key(len, end) {
                self.places.insert(key, end);
            }
        }
        self.tokens.push(token);
    }

    /// Appends at most `n` draft tokens to `out`.
    fn propose(&self, n: usize, out: &mut Vec<u32>) {
        let end = self.tokens.len();
        let place = LENGTHS
            .into_iter()
            .find_map(|len| self.places.get(&self.key(len, end)?));
        if let Some(place) = place {
            out.extend(self.tokens[*place..].iter().take(n));
        }
    }
}

/// How many tokens to draft, by the success of earlier drafts.
#[derive(Debug)]
struct Effort {
    n: usize,
    most: usize,
}

impl Effort {
    fn new(most: usize) -> Self {
        Self {
            n: most.min(4),
            most,
        }
    }

    /// Adapts the number after `accepted` of `drafted` tokens were right.
    fn learn(&mut self, drafted: usize, accepted: usize) {
        if drafted == 0 {
            return;
        }
        self.n = match accepted {
            0 => (self.n / 2).max(1),
            n if n == drafted => self.n.saturating_mul(2),
            _ => self.n,
        };
        self.n = self.n.min(self.most);
    }
}

#[derive(Debug)]
pub(super) struct Drafter {
    lookup: PromptLookup,
    effort: Effort,
    tokens: Vec<u32>,
}

impl Drafter {
    /// A drafter of at most `most` tokens per step.
    pub(super) fn new(prompt: &[u32], most: usize) -> Self {
        let mut lookup = PromptLookup::default();
        prompt.iter().for_each(|token| lookup.push(*token));
        Self {
            lookup,
            effort: Effort::new(most),
            tokens: Vec::new(),
        }
    }

    pub(super) fn push(&mut self, token: u32) {
        self.lookup.push(token);
    }

    pub(super) fn propose(&mut self, n: usize) {
        self.tokens.clear();
        self.lookup.propose(n.min(self.effort.n), &mut self.tokens);
    }

    pub(super) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Keeps only the first `n` draft tokens, which the pass reads.
    pub(super) fn truncate(&mut self, n: usize) {
        self.tokens.truncate(n);
    }

    /// Ends the draft of this step, of which `n_accepted` tokens were accepted.
    pub(super) fn learn(&mut self, n_accepted: usize) {
        self.effort.learn(self.tokens.len(), n_accepted);
        self.tokens.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft(tokens: &[u32], n: usize) -> Vec<u32> {
        let mut lookup = PromptLookup::default();
        tokens.iter().for_each(|token| lookup.push(*token));
        let mut out = Vec::new();
        lookup.propose(n, &mut out);
        out
    }

    #[test]
    fn the_sequence_goes_on_as_it_last_did() {
        assert_eq!(draft(&[1, 2, 3, 4, 5, 1, 2], 3), [3, 4, 5]);
        assert_eq!(draft(&[1, 2, 3, 4, 5, 1, 2], 9), [3, 4, 5, 1, 2]);
        assert_eq!(draft(&[1, 2, 7, 1, 2, 8, 1, 2], 2), [8, 1]);
        // The longer match decides.
        assert_eq!(draft(&[5, 1, 2, 7, 6, 1, 2, 8, 5, 1, 2], 1), [7]);
        assert_eq!(draft(&[9, 9, 9], 2), [9]);
        assert!(draft(&[1, 2, 3], 2).is_empty());
        assert!(draft(&[], 2).is_empty());
    }

    /// The same draft by linear search.
    fn draft_slowly(tokens: &[u32], n: usize) -> Vec<u32> {
        for len in LENGTHS.into_iter().filter(|len| *len < tokens.len()) {
            let end = &tokens[tokens.len() - len..];
            let found = (len..tokens.len())
                .rev()
                .find(|at| tokens[at - len..*at] == *end);
            if let Some(at) = found {
                return tokens[at..].iter().copied().take(n).collect();
            }
        }
        Vec::new()
    }

    proptest::proptest! {
        #[test]
        fn looking_up_finds_what_looking_everywhere_does(
            tokens in proptest::collection::vec(0..4u32, 0..60),
        ) {
            proptest::prop_assert_eq!(draft(&tokens, 5), draft_slowly(&tokens, 5));
        }
    }

    #[test]
    fn effort_follows_success() {
        let mut effort = Effort::new(16);
        effort.learn(4, 4);
        assert_eq!(effort.n, 8);
        effort.learn(8, 3);
        assert_eq!(effort.n, 8);
        (0..9).for_each(|_| effort.learn(8, 0));
        assert_eq!(effort.n, 1);
        assert_eq!(Effort::new(0).n, 0);
    }
}
