//! Sets of characters, as sorted ranges of code points.

const LAST: u32 = 0x10_ffff;
const SURROGATES: (u32, u32) = (0xd800, 0xdfff);

/// A set of characters. Invariant: ranges rise, do not touch and hold no surrogates.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct CharSet(Vec<(u32, u32)>);

impl CharSet {
    pub(super) fn new(ranges: &[(u32, u32)]) -> Self {
        let mut sorted: Vec<(u32, u32)> = Vec::with_capacity(ranges.len());
        for &(low, high) in ranges {
            // A range over the surrogates is split into the parts before and after them.
            let (before, after) = (SURROGATES.0 - 1, SURROGATES.1 + 1);
            for (low, high) in [(low, high.min(before)), (low.max(after), high)] {
                if low <= high {
                    sorted.push((low, high));
                }
            }
        }
        sorted.sort_unstable();
        let mut out: Vec<(u32, u32)> = Vec::with_capacity(sorted.len());
        for (low, high) in sorted {
            match out.last_mut() {
                Some(last) if low <= last.1 + 1 => last.1 = last.1.max(high),
                _ => out.push((low, high)),
            }
        }
        Self(out)
    }

    pub(super) fn one(c: char) -> Self {
        Self(vec![(c.into(), c.into())])
    }

    pub(super) fn any() -> Self {
        Self::new(&[(0, LAST)])
    }

    pub(super) fn negated(&self) -> Self {
        let mut out = Vec::new();
        let mut from = 0;
        for &(low, high) in &self.0 {
            if from < low {
                out.push((from, low - 1));
            }
            from = high + 1;
        }
        if from <= LAST {
            out.push((from, LAST));
        }
        Self::new(&out)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

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

    use super::*;

    fn holds(chars: &CharSet, c: char) -> bool {
        let code = u32::from(c);
        chars
            .0
            .iter()
            .any(|&(low, high)| (low..=high).contains(&code))
    }

    proptest! {
        #[test]
        fn sets_hold_what_their_ranges_do(
            ranges in prop::collection::vec((0..0x11_0000u32, 0..3000u32), 0..5),
            others in prop::collection::vec((0..0x11_0000u32, 0..3000u32), 0..5),
            picks in prop::collection::vec(any::<char>(), 50),
        ) {
            let ranges: Vec<_> = ranges.iter().map(|(low, n)| (*low, (low + n).min(LAST))).collect();
            let others: Vec<_> = others.iter().map(|(low, n)| (*low, (low + n).min(LAST))).collect();
            let (set, other) = (CharSet::new(&ranges), CharSet::new(&others));
            let edges = ranges.iter().flat_map(|(low, high)| [*low, *high, high + 1]);
            for c in picks.into_iter().chain(edges.filter_map(char::from_u32)) {
                let expected = ranges.iter().any(|&(l, h)| (l..=h).contains(&u32::from(c)));
                prop_assert_eq!(holds(&set, c), expected);
                prop_assert_eq!(holds(&set.negated(), c), !expected);
                if expected {
                    let lead = c.encode_utf8(&mut [0; 4]).as_bytes()[0];
                    prop_assert!(set.first_bytes().0[usize::from(lead / 64)] >> (lead % 64) & 1 == 1);
                }
            }
            // The intersection of two sets begins where a range of one of them begins, or after the surrogates.
            let lows = ranges.iter().chain(&others).map(|(low, _)| *low);
            let both = lows.chain([SURROGATES.1 + 1]).filter_map(char::from_u32)
                .any(|c| holds(&set, c) && holds(&other, c));
            prop_assert_eq!(set.meets(&other), both);
        }
    }
}
