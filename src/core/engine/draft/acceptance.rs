//! How often draft tokens were right, by what is known of them beforehand.
//!
//! A class is what is known: for look-ups the number of equal tokens before, for a drafter with weights its own probability. The counts of
//! a class tend to those of all sequences where a sequence has few of its own.

use super::index::{Agreement, Continuation, LONGEST_MATCH};

/// Upper bounds of the lengths of matches that count together.
const LENGTHS: [usize; 7] = [2, 3, 4, 6, 9, LONGEST_MATCH - 1, LONGEST_MATCH];
/// The share that is expected to be right after matches of these lengths, before any was tried.
const EXPECTED: [f64; LENGTHS.len()] = [0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8];
const N_OF_LOOKUP: usize = 3 * LENGTHS.len();
/// Equal parts of the probabilities from 0 to 1.
const N_PROBABILITIES: usize = 10;
/// Positions of a draft that are told apart.
pub(super) const N_POSITIONS: usize = 16;
const N_CLASSES: usize = 2 * N_OF_LOOKUP + N_PROBABILITIES + N_POSITIONS;

/// What is known of a draft token before it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Class(usize);

impl Class {
    /// A token that was looked up, in the sequence or elsewhere.
    pub(super) fn of_lookup(is_own: bool, of: Continuation) -> Self {
        let len = LENGTHS.iter().position(|most| of.len <= *most);
        let len = len.unwrap_or(LENGTHS.len() - 1);
        let first = if is_own { 0 } else { N_OF_LOOKUP };
        let agreement = match of.agreement {
            Agreement::Single => 0,
            Agreement::All => 1,
            Agreement::Some => 2,
        };
        Self(first + 3 * len + agreement)
    }

    /// A token that a drafter with weights gave this probability.
    pub(super) fn of_probability(probability: f32) -> Self {
        // What is no number counts as 0.
        let part = (probability * N_PROBABILITIES as f32) as usize;
        Self(2 * N_OF_LOOKUP + part.min(N_PROBABILITIES - 1))
    }

    /// The token at a position of a draft that a drafter with weights has yet to make.
    pub(super) fn of_position(at: usize) -> Self {
        Self(2 * N_OF_LOOKUP + N_PROBABILITIES + at.min(N_POSITIONS - 1))
    }

    /// The share that is expected to be right before any was tried.
    fn expected(self) -> f64 {
        match self.0.checked_sub(2 * N_OF_LOOKUP) {
            None => EXPECTED[self.0 % N_OF_LOOKUP / 3],
            Some(part) if part < N_PROBABILITIES => (part as f64 + 0.5) / N_PROBABILITIES as f64,
            Some(_) => 0.7,
        }
    }
}

/// How often tokens of each class were right.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Acceptance {
    /// Tokens that were tried and those that were right; later ones count more.
    counts: [(f64, f64); N_CLASSES],
}

impl Default for Acceptance {
    fn default() -> Self {
        Self {
            counts: [(0.0, 0.0); N_CLASSES],
        }
    }
}

impl Acceptance {
    /// Share of an earlier token that still counts after a later one of the same class.
    const KEPT: f64 = 0.97;
    /// Tokens that what is expected of a class counts for.
    const WEIGHT: f64 = 2.0;

    pub(super) fn count(&mut self, class: Class, is_right: bool) {
        let (tried, right) = &mut self.counts[class.0];
        *tried = *tried * Self::KEPT + 1.0;
        *right = *right * Self::KEPT + f64::from(u8::from(is_right));
    }

    fn share_or(&self, class: Class, expected: f64) -> f64 {
        let (tried, right) = self.counts[class.0];
        (right + Self::WEIGHT * expected) / (tried + Self::WEIGHT)
    }

    /// The share of a class that is expected to be right, where these counts are of all sequences and `own` of one.
    pub(super) fn share(&self, class: Class, own: &Self) -> f64 {
        own.share_or(class, self.share_or(class, class.expected()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_is_expected_to_be_like_others_until_it_has_shown_itself() {
        let class = Class::of_position(0);
        let (mut all, mut own) = (Acceptance::default(), Acceptance::default());
        assert!((all.share(class, &own) - 0.7).abs() < 1e-9);
        (0..100).for_each(|_| all.count(class, false));
        assert!(all.share(class, &own) < 0.1);
        (0..20).for_each(|_| own.count(class, true));
        assert!(all.share(class, &own) > 0.8);
        // Other classes are as before.
        assert!((all.share(Class::of_position(1), &own) - 0.7).abs() < 1e-9);
    }

    #[test]
    fn every_class_is_within_bounds() {
        for probability in [f32::NAN, -1.0, 0.0, 0.999, 1.0, f32::INFINITY] {
            assert!(Class::of_probability(probability).0 < N_CLASSES);
        }
        assert_eq!(Class::of_position(99), Class::of_position(N_POSITIONS - 1));
        for len in 0..=LONGEST_MATCH {
            let agreement = Agreement::Some;
            let of = Continuation {
                token: 0,
                len,
                agreement,
            };
            assert!(Class::of_lookup(false, of).0 < 2 * N_OF_LOOKUP);
        }
    }
}
