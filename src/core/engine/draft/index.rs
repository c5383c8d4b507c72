//! An index of tokens: where the last tokens of a text occurred before, and what followed them there.
//!
//! Chains of places with equal hashes, as in LZ77 compressors: a token costs the same whatever came before, and 30 bytes or so. A
//! look-up visits a bounded number of places. Not here: whose texts are indexed (`mod.rs`, `shared.rs`).

/// Numbers of last tokens that are looked up, the largest first.
const LENGTHS: [usize; 3] = [8, 4, 2];
/// Places that a look-up visits for each of them.
const MOST_PLACES: usize = 16;
/// Longer equal texts count as this long.
pub(super) const LONGEST_MATCH: usize = 16;
/// Between the texts of an index. No token has this id.
const BREAK: u32 = u32::MAX;
/// No place.
const NONE: u32 = u32::MAX;

/// The places that follow some tokens, in chains by the hashes of these tokens.
#[derive(Debug, Default)]
struct Chains {
    /// The latest place of each hash; their number is a power of two.
    latest: Vec<u32>,
    /// For each place the one before it with the same hash.
    before: Vec<u32>,
}

impl Chains {
    /// The number of the chain of `tokens`.
    fn number(&self, tokens: &[u32]) -> usize {
        let mix = |hash: u64, token: &u32| {
            (hash.rotate_left(5) ^ u64::from(*token)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        };
        let hash = tokens.iter().fold(0, mix);
        (hash >> 32) as usize & (self.latest.len() - 1)
    }

    /// Adds the end of `text` as a place after its last `len` tokens.
    fn push(&mut self, text: &[u32], len: usize) {
        let end = text.len();
        self.before.push(NONE);
        if end >= self.latest.len() {
            self.latest = vec![NONE; (2 * end).next_power_of_two().max(64)];
            (len..=end).for_each(|end| self.link(&text[..end], len));
        } else if end >= len {
            self.link(text, len);
        }
    }

    fn link(&mut self, text: &[u32], len: usize) {
        let number = self.number(&text[text.len() - len..]);
        self.before[text.len()] = std::mem::replace(&mut self.latest[number], text.len() as u32);
    }

    /// The places after texts with the hash of `tokens`, the latest first.
    fn places(&self, tokens: &[u32]) -> impl Iterator<Item = usize> {
        let latest = match self.latest.is_empty() {
            true => NONE,
            false => self.latest[self.number(tokens)],
        };
        let real = |place: u32| (place != NONE).then_some(place);
        let next = move |place: &u32| self.before.get(*place as usize).copied().and_then(real);
        std::iter::successors(real(latest), next).map(|place| place as usize)
    }
}

/// How sure the places are of a token that follows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Agreement {
    /// There is one place.
    Single,
    /// The same token follows all of them.
    All,
    /// Other tokens follow some of them.
    Some,
}

/// A token that may follow a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Continuation {
    pub(super) token: u32,
    /// For how many tokens before it the text is the same as where it was found, at most [`LONGEST_MATCH`].
    pub(super) len: usize,
    pub(super) agreement: Agreement,
}

/// Texts, and the places in them after some last tokens.
#[derive(Debug, Default)]
pub(super) struct TokenIndex {
    tokens: Vec<u32>,
    chains: [Chains; LENGTHS.len()],
}

impl TokenIndex {
    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }

    pub(super) fn push(&mut self, token: u32) {
        // The last tokens of a text are recorded only when a token follows them.
        for (chains, len) in self.chains.iter_mut().zip(LENGTHS) {
            chains.push(&self.tokens, len);
        }
        self.tokens.push(token);
    }

    /// Adds a text of its own.
    pub(super) fn push_text(&mut self, text: &[u32]) {
        text.iter().chain(&[BREAK]).for_each(|t| self.push(*t));
    }

    /// At most `n` tokens that may follow the text of this index.
    pub(super) fn follow(&self, n: usize) -> Vec<Continuation> {
        self.continue_at(&self.tokens, n, true)
    }

    /// At most `n` tokens that may follow another text, of which `text` is the end.
    pub(super) fn follow_text(&self, text: &[u32], n: usize) -> Vec<Continuation> {
        self.continue_at(text, n, false)
    }

    /// The places where as many of the last tokens of `text` come before as anywhere among those that are visited, the latest first,
    /// and their number.
    fn longest(&self, text: &[u32]) -> (Vec<usize>, usize) {
        for (chains, len) in self.chains.iter().zip(LENGTHS) {
            let Some(from) = text.len().checked_sub(len) else {
                continue;
            };
            let mut longest = (Vec::new(), len);
            for place in chains.places(&text[from..]).take(MOST_PLACES) {
                let before = self.tokens[..place].iter().rev();
                let same = before.zip(text.iter().rev()).take(LONGEST_MATCH);
                let n_same = same.take_while(|(a, b)| a == b).count();
                if n_same > longest.1 {
                    longest = (Vec::new(), n_same);
                }
                if n_same == longest.1 {
                    longest.0.push(place);
                }
            }
            if !longest.0.is_empty() {
                return longest;
            }
        }
        (Vec::new(), 0)
    }

    /// Follows the places with the longest match. Where they part, those go on that have the most frequent token, or the latest of the
    /// most frequent ones. What follows the end of the index is, in its own text, what was found so far: a period goes on.
    fn continue_at(&self, text: &[u32], n: usize, is_own: bool) -> Vec<Continuation> {
        let mut found: Vec<Continuation> = Vec::new();
        let (mut places, len) = self.longest(text);
        while found.len() < n {
            let at = found.len();
            let token_of = |place: &usize| match (place + at).checked_sub(self.tokens.len()) {
                None => Some(self.tokens[place + at]).filter(|token| *token != BREAK),
                Some(beyond) if is_own => found.get(beyond).map(|of| of.token),
                Some(_) => None,
            };
            let tokens: Vec<Option<u32>> = places.iter().map(token_of).collect();
            let count = |token: &Option<u32>| tokens.iter().filter(|of| *of == token).count();
            // Of equally frequent ones the last that is compared is taken: the latest.
            let best = tokens.iter().rev().filter(|token| token.is_some());
            let Some(best) = best.max_by_key(|token| count(token)).copied().flatten() else {
                break;
            };
            let agreement = match (places.len(), count(&Some(best))) {
                (1, _) => Agreement::Single,
                (all, n) if all == n => Agreement::All,
                _ => Agreement::Some,
            };
            let mut goes_on = tokens.iter().map(|token| *token == Some(best));
            places.retain(|_| goes_on.next() == Some(true));
            found.push(Continuation {
                token: best,
                len: (len + at).min(LONGEST_MATCH),
                agreement,
            });
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(tokens: &[u32]) -> TokenIndex {
        let mut index = TokenIndex::default();
        tokens.iter().for_each(|token| index.push(*token));
        index
    }

    fn following(tokens: &[u32], n: usize) -> Vec<u32> {
        let found = index(tokens).follow(n);
        found.into_iter().map(|of| of.token).collect()
    }

    #[test]
    fn a_text_goes_on_as_after_the_longest_match() {
        assert_eq!(following(&[1, 2, 3, 4, 5, 1, 2], 3), [3, 4, 5]);
        assert_eq!(following(&[1, 2, 7, 1, 2, 8, 1, 2], 2), [8, 1]);
        // The longer match decides.
        assert_eq!(following(&[5, 1, 2, 7, 6, 1, 2, 8, 5, 1, 2], 1), [7]);
        assert!(following(&[1, 2, 3], 2).is_empty());
        assert!(following(&[], 2).is_empty());
    }

    #[test]
    fn a_period_goes_on_beyond_the_end_of_the_text() {
        assert_eq!(following(&[9, 9, 9], 4), [9; 4]);
        assert_eq!(
            following(&[1, 2, 3, 4, 5, 1, 2], 9),
            [3, 4, 5, 1, 2, 3, 4, 5, 1]
        );
    }

    #[test]
    fn of_equal_matches_the_most_frequent_token_is_taken() {
        let text = [1, 2, 7, 0, 1, 2, 7, 4, 1, 2, 8, 5, 1, 2];
        let found = index(&text).follow(2);
        assert_eq!((found[0].token, found[0].agreement), (7, Agreement::Some));
        // Of 0 and 4, which are as frequent, the latest.
        assert_eq!((found[1].token, found[1].agreement), (4, Agreement::Some));
        assert_eq!([found[0].len, found[1].len], [2, 3]);
    }

    #[test]
    fn texts_of_an_index_do_not_run_into_each_other() {
        let mut index = TokenIndex::default();
        index.push_text(&[1, 2, 3, 4]);
        index.push_text(&[5, 6, 7]);
        let after = |text: &[u32]| {
            let found = index.follow_text(text, 5);
            found.into_iter().map(|of| of.token).collect::<Vec<_>>()
        };
        assert_eq!(after(&[8, 1, 2]), [3, 4]);
        assert!(after(&[3, 4]).is_empty());
        assert_eq!(after(&[5, 6]), [7]);
        assert!(after(&[4, 5]).is_empty());
    }

    /// The length of the longest match of the last tokens, of 2, 4 or 8 and more tokens, by linear search.
    fn longest_slowly(tokens: &[u32]) -> usize {
        let ends = 1..tokens.len();
        let same = |end: usize| {
            let before = tokens[..end].iter().rev().zip(tokens.iter().rev());
            before
                .take(LONGEST_MATCH)
                .take_while(|(a, b)| a == b)
                .count()
        };
        let longest = ends.map(same).max().unwrap_or(0);
        if longest < 2 { 0 } else { longest }
    }

    proptest::proptest! {
        #[test]
        fn the_longest_match_is_found_where_few_places_are_like_it(
            tokens in proptest::collection::vec(0..40u32, 0..90),
            repeated in 0..30usize,
        ) {
            let repeated = repeated.min(tokens.len());
            let tokens = [&tokens[..], &tokens[..repeated]].concat();
            let found = index(&tokens).follow(1);
            let len = found.first().map_or(0, |of| of.len);
            proptest::prop_assert_eq!(len, longest_slowly(&tokens));
        }
    }
}
