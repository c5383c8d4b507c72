//! Guesses at what comes next, which one pass confirms or refutes together.
//!
//! A guess costs a row of the next pass and nothing else: each of its tokens is kept only if the
//! sampler, given the model's logits, chooses just it. The answer is therefore distributed as without
//! guesses, whatever guesses.

use std::collections::HashMap;

/// Something that guesses.
pub(super) trait Draft: Send {
    /// Takes note of the next token of the text.
    fn push(&mut self, token: u32);

    /// At most `n` tokens that may follow, into `out`.
    fn guess(&self, n: usize, out: &mut Vec<u32>);
}

/// Lengths of the ends of the text that are looked up, the longest first.
const LENGTHS: [usize; 3] = [4, 3, 2];
const LONGEST: usize = LENGTHS[0];

/// Guesses that the text goes on as it did when it last had the same end: prompt lookup (Saxena
/// 2023, "Prompt Lookup Decoding").
#[derive(Debug, Default)]
pub(super) struct Lookup {
    text: Vec<u32>,
    /// What follows the last occurrence of some tokens, the unused ones 0, and their number.
    places: HashMap<([u32; LONGEST], usize), usize>,
}

impl Lookup {
    fn key(&self, len: usize, end: usize) -> Option<([u32; LONGEST], usize)> {
        let tokens = self.text.get(end.checked_sub(len)?..end)?;
        let mut key = [0; LONGEST];
        key[..len].copy_from_slice(tokens);
        Some((key, len))
    }
}

impl Draft for Lookup {
    fn push(&mut self, token: u32) {
        // The end of the text itself is noted only when something follows it.
        let end = self.text.len();
        for len in LENGTHS {
            if let Some(key) = self.key(len, end) {
                self.places.insert(key, end);
            }
        }
        self.text.push(token);
    }

    fn guess(&self, n: usize, out: &mut Vec<u32>) {
        let end = self.text.len();
        let place = LENGTHS
            .into_iter()
            .find_map(|len| self.places.get(&self.key(len, end)?));
        if let Some(place) = place {
            out.extend(self.text[*place..].iter().take(n));
        }
    }
}

/// How many tokens are worth guessing, by what became of earlier guesses.
#[derive(Debug)]
pub(super) struct Effort {
    n: usize,
    most: usize,
}

impl Effort {
    pub(super) fn new(most: usize) -> Self {
        Self {
            n: most.min(4),
            most,
        }
    }

    pub(super) fn n(&self) -> usize {
        self.n
    }

    /// Takes note that `accepted` of `guessed` tokens were right.
    pub(super) fn learn(&mut self, guessed: usize, accepted: usize) {
        if guessed == 0 {
            return;
        }
        self.n = match accepted {
            0 => (self.n / 2).max(1),
            n if n == guessed => self.n.saturating_mul(2),
            _ => self.n,
        };
        self.n = self.n.min(self.most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guess(text: &[u32], n: usize) -> Vec<u32> {
        let mut lookup = Lookup::default();
        text.iter().for_each(|token| lookup.push(*token));
        let mut out = Vec::new();
        lookup.guess(n, &mut out);
        out
    }

    #[test]
    fn the_text_goes_on_as_it_last_did() {
        assert_eq!(guess(&[1, 2, 3, 4, 5, 1, 2], 3), [3, 4, 5]);
        assert_eq!(guess(&[1, 2, 3, 4, 5, 1, 2], 9), [3, 4, 5, 1, 2]);
        assert_eq!(guess(&[1, 2, 7, 1, 2, 8, 1, 2], 2), [8, 1]);
        // The longer end decides.
        assert_eq!(guess(&[5, 1, 2, 7, 6, 1, 2, 8, 5, 1, 2], 1), [7]);
        assert_eq!(guess(&[9, 9, 9], 2), [9]);
        assert!(guess(&[1, 2, 3], 2).is_empty());
        assert!(guess(&[], 2).is_empty());
    }

    /// The same by looking everywhere.
    fn guess_slowly(text: &[u32], n: usize) -> Vec<u32> {
        for len in LENGTHS.into_iter().filter(|len| *len < text.len()) {
            let end = &text[text.len() - len..];
            let found = (len..text.len())
                .rev()
                .find(|at| text[at - len..*at] == *end);
            if let Some(at) = found {
                return text[at..].iter().copied().take(n).collect();
            }
        }
        Vec::new()
    }

    proptest::proptest! {
        #[test]
        fn looking_up_finds_what_looking_everywhere_does(
            text in proptest::collection::vec(0..4u32, 0..60),
        ) {
            proptest::prop_assert_eq!(guess(&text, 5), guess_slowly(&text, 5));
        }
    }

    #[test]
    fn effort_follows_success() {
        let mut effort = Effort::new(16);
        effort.learn(4, 4);
        assert_eq!(effort.n(), 8);
        effort.learn(8, 3);
        assert_eq!(effort.n(), 8);
        (0..9).for_each(|_| effort.learn(8, 0));
        assert_eq!(effort.n(), 1);
        assert_eq!(Effort::new(0).n(), 0);
    }
}
