//! Speculative decoding: draft tokens that one pass verifies together.
//!
//! A draft token costs a row of the next pass and nothing else: it is accepted only if the sampler, given the
//! model's logits, chooses the same token. The distribution of completions is therefore the same as without drafts,
//! whatever tokens are proposed. Not here: the choice of tokens, and how many draft tokens are worth their rows (`draft_control.rs`).

use std::collections::HashMap;

/// Numbers of last tokens of the sequence that are looked up, the largest first.
const LENGTHS: [usize; 3] = [4, 3, 2];
const LONGEST: usize = LENGTHS[0];
/// Longer equal texts count as this long.
const LONGEST_MATCH: usize = 16;

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

    /// Appends at most `n` draft tokens to `out`. Returns for how many of the last tokens the sequence was the same before them, at most
    /// [`LONGEST_MATCH`].
    fn propose(&self, n: usize, out: &mut Vec<u32>) -> usize {
        let end = self.tokens.len();
        let place = LENGTHS
            .into_iter()
            .find_map(|len| self.places.get(&self.key(len, end)?));
        let Some(place) = place.copied() else {
            return 0;
        };
        out.extend(self.tokens[place..].iter().take(n));
        let before = self.tokens[..place].iter().rev();
        let same = before.zip(self.tokens.iter().rev());
        same.take(LONGEST_MATCH).take_while(|(a, b)| a == b).count()
    }
}

/// How often draft tokens were right, by the number of tokens that were the same before them.
#[derive(Clone, Debug, Default)]
pub(super) struct Acceptance {
    /// Of each length the draft tokens that were tried, and those that were right; later ones count more.
    counts: [(f64, f64); LONGEST_MATCH + 1],
}

impl Acceptance {
    /// Share of an earlier draft that still counts after a later one of the same length.
    const KEPT: f64 = 0.95;

    fn count(&mut self, outcome: DraftOutcome) {
        for at in 0..outcome.n_drafted.min(outcome.n_accepted + 1) {
            let (tried, right) = &mut self.counts[(outcome.len + at).min(LONGEST_MATCH)];
            *tried = *tried * Self::KEPT + 1.0;
            *right = *right * Self::KEPT + f64::from(u8::from(at < outcome.n_accepted));
        }
    }

    /// The share that is expected to be right after `len` equal tokens, where it was `before` elsewhere.
    fn share(&self, len: usize, before: f64) -> f64 {
        const WEIGHT: f64 = 2.0;
        let (tried, right) = self.counts[len.min(LONGEST_MATCH)];
        (right + WEIGHT * before) / (tried + WEIGHT)
    }
}

/// What became of the draft of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DraftOutcome {
    /// Number of equal tokens before it.
    len: usize,
    n_drafted: usize,
    n_accepted: usize,
}

#[derive(Debug)]
pub(super) struct Drafter {
    lookup: PromptLookup,
    /// Maximum number of tokens of a step.
    most: usize,
    tokens: Vec<u32>,
    /// Number of equal tokens before the draft.
    len: usize,
    own: Acceptance,
    outcome: Option<DraftOutcome>,
}

impl Drafter {
    /// A drafter of at most `most` tokens per step.
    pub(super) fn new(prompt: &[u32], most: usize) -> Self {
        let mut lookup = PromptLookup::default();
        prompt.iter().for_each(|token| lookup.push(*token));
        Self {
            lookup,
            most,
            tokens: Vec::new(),
            len: 0,
            own: Acceptance::default(),
            outcome: None,
        }
    }

    pub(super) fn push(&mut self, token: u32) {
        self.lookup.push(token);
    }

    pub(super) fn propose(&mut self, n: usize) {
        self.tokens.clear();
        self.len = self.lookup.propose(n.min(self.most), &mut self.tokens);
    }

    pub(super) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// For each draft token how likely it is that it and all before it are right. `all` is how often those of all sequences were.
    pub(super) fn odds<'a>(&'a self, all: &'a Acceptance) -> impl Iterator<Item = f64> + 'a {
        const FIRST: f64 = 0.5;
        let mut odds = 1.0;
        (self.len..).take(self.tokens.len()).map(move |len| {
            odds *= self.own.share(len, all.share(len, FIRST));
            odds
        })
    }

    /// Keeps only the first `n` draft tokens, which the pass reads.
    pub(super) fn truncate(&mut self, n: usize) {
        self.tokens.truncate(n);
    }

    /// Ends the draft of this step, of which `n_accepted` tokens were accepted.
    pub(super) fn learn(&mut self, n_accepted: usize) {
        let outcome = DraftOutcome {
            len: self.len,
            n_drafted: self.tokens.len(),
            n_accepted,
        };
        self.own.count(outcome);
        self.outcome = Some(outcome);
        self.tokens.clear();
    }

    /// Adds what became of the last draft to that of all sequences, once.
    pub(super) fn report(&mut self, all: &mut Acceptance) {
        self.outcome
            .take()
            .into_iter()
            .for_each(|outcome| all.count(outcome));
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
    fn odds_follow_what_became_of_drafts_after_as_many_equal_tokens() {
        let mut all = Acceptance::default();
        let text = [1, 2, 3, 4, 5, 6, 1, 2, 3];
        let odds = |drafter: &Drafter, all: &Acceptance| drafter.odds(all).collect::<Vec<f64>>();
        let mut drafter = Drafter::new(&text, 4);
        drafter.propose(4);
        assert_eq!(drafter.tokens(), [4, 5, 6, 1]);
        assert_eq!(odds(&drafter, &all), [0.5, 0.25, 0.125, 0.0625]);
        drafter.learn(1);
        drafter.report(&mut all);
        drafter.propose(4);
        let after = odds(&drafter, &all);
        assert!(after[0] > 0.75 && after[1] / after[0] < 0.25, "{after:?}");
        assert!((after[2] / after[1] - 0.5).abs() < 1e-9, "{after:?}");
        // Other sequences learn from it, and less.
        let mut other = Drafter::new(&text, 4);
        other.propose(4);
        let of_other = odds(&other, &all);
        assert!(of_other[0] > 0.5 && of_other[0] < after[0], "{of_other:?}");
        // Each draft counts once.
        let before = all.counts;
        drafter.report(&mut all);
        assert_eq!(before, all.counts);
    }
}
