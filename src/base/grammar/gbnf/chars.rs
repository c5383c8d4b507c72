//! Sets of characters, as sorted ranges of code points.

use regex_syntax::hir::ClassUnicode;

const LAST: u32 = 0x10_ffff;

/// A set of characters. Invariant: ranges rise and do not touch; surrogates within a range are no characters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct CharSet(Vec<(u32, u32)>);

impl From<ClassUnicode> for CharSet {
    fn from(class: ClassUnicode) -> Self {
        let range = class
            .iter()
            .map(|range| (range.start() as u32, range.end() as u32));
        Self(range.collect())
    }
}

impl CharSet {
    pub(super) fn ranges(&self) -> &[(u32, u32)] {
        &self.0
    }

    pub(super) fn meets(&self, other: &Self) -> bool {
        let (mut a, mut b) = (self.0.iter().peekable(), other.0.iter().peekable());
        while let (Some(x), Some(y)) = (a.peek(), b.peek()) {
            if x.1 < y.0 {
                a.next();
            } else if y.1 < x.0 {
                b.next();
            } else {
                return true;
            }
        }
        false
    }

    pub(super) fn first_bytes(&self) -> ByteSet {
        // Characters of one length have rising first bytes.
        const LENGTHS: [(u32, u32); 4] =
            [(0, 0x7f), (0x80, 0x7ff), (0x800, 0xffff), (0x1_0000, LAST)];
        let lead = |code| {
            let c = char::from_u32(code).unwrap_or(char::MAX);
            c.encode_utf8(&mut [0; 4]).as_bytes()[0]
        };
        let mut leads = ByteSet::default();
        for &(low, high) in &self.0 {
            for (first, last) in LENGTHS {
                let (low, high) = (low.max(first), high.min(last));
                if low <= high {
                    (lead(low)..=lead(high)).for_each(|byte| leads.insert(byte));
                }
            }
        }
        leads
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ByteSet([u64; 4]);

impl ByteSet {
    fn insert(&mut self, byte: u8) {
        self.0[usize::from(byte / 64)] |= 1 << (byte % 64);
    }

    pub(super) fn add(&mut self, other: Self) {
        for (word, more) in self.0.iter_mut().zip(other.0) {
            *word |= more;
        }
    }

    pub(super) fn meets(self, other: Self) -> bool {
        self.0.iter().zip(other.0).any(|(a, b)| a & b != 0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::super::schema::char_classes::set;
    use super::*;

    proptest! {
        #[test]
        fn sets_meet_and_begin_as_their_characters_do(
            ranges in prop::collection::vec((0..0x11_0000u32, 0..3000u32), 0..5),
            others in prop::collection::vec((0..0x11_0000u32, 0..3000u32), 0..5),
            picks in prop::collection::vec(any::<char>(), 50),
        ) {
            let [ranges, others]: [Vec<_>; 2] = [ranges, others]
                .map(|all| all.iter().map(|(low, n)| (*low, (low + n).min(LAST))).collect());
            let holds = |all: &[(u32, u32)], c: char| {
                all.iter().any(|&(low, high)| (low..=high).contains(&u32::from(c)))
            };
            let [chars, other] = [&ranges, &others].map(|all| CharSet::from(set(all)));
            let edges = ranges.iter().flat_map(|(low, high)| [*low, *high]);
            for c in picks.into_iter().chain(edges.filter_map(char::from_u32)) {
                if holds(&ranges, c) {
                    let lead = c.encode_utf8(&mut [0; 4]).as_bytes()[0];
                    prop_assert!(chars.first_bytes().0[usize::from(lead / 64)] >> (lead % 64) & 1 == 1);
                }
            }
            // What two sets share begins where a range of one of them begins, or after the surrogates.
            let lows = ranges.iter().chain(&others).map(|(low, _)| *low);
            let both = lows.chain([0xe000]).filter_map(char::from_u32)
                .any(|c| holds(&ranges, c) && holds(&others, c));
            prop_assert_eq!(chars.meets(&other), both);
        }
    }
}
