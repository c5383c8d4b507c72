//! Sets of positions of a sequence.

use std::sync::Arc;

/// Positions of a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Positions {
    /// From the first number up to, and without, the second.
    Range(u32, u32),
    /// A list in ascending order.
    List(Arc<[u32]>),
}

impl Positions {
    /// Whether a position is in the set.
    pub fn contains(&self, position: u32) -> bool {
        self.index_of(position).is_some()
    }

    /// The index of a position in the set.
    pub fn index_of(&self, position: u32) -> Option<usize> {
        match self {
            Self::Range(from, to) => {
                let is_in = (*from..*to).contains(&position);
                is_in.then(|| (position - from) as usize)
            }
            Self::List(all) => all.binary_search(&position).ok(),
        }
    }

    /// The positions that are in both sets.
    #[must_use]
    pub fn within(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::Range(a, b), Self::Range(from, to)) => Self::Range(*a.max(from), *b.min(to)),
            (Self::List(all), other) | (other, Self::List(all)) => {
                Self::List(all.iter().copied().filter(|p| other.contains(*p)).collect())
            }
        }
    }

    /// The first position of the set from `from` on.
    pub fn next(&self, from: u32) -> Option<u32> {
        match self {
            Self::Range(first, end) => Some(from.max(*first)).filter(|next| next < end),
            Self::List(all) => all.get(all.partition_point(|p| *p < from)).copied(),
        }
    }

    /// Number of positions of the set below `end`.
    pub fn n_below(&self, end: u32) -> usize {
        match self {
            Self::Range(first, last) => end.min(*last).saturating_sub(*first) as usize,
            Self::List(all) => all.partition_point(|p| *p < end),
        }
    }
}
