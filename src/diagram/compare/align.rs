//! The best order-preserving match of two sequences, at a cost that is bounded.
//!
//! Rows come out in the order of both. What a table does not have room for is matched by what both begin
//! and end with, and in between by place.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

use super::Pair;

/// Cells of all tables of a comparison together.
const CELLS: usize = 4 << 20;
/// Cells of one table.
const TABLE: usize = 1 << 18;

/// What alignments may still cost.
pub(super) struct Aligner {
    left: Cell<usize>,
}

impl Aligner {
    pub(super) fn new() -> Self {
        Self {
            left: Cell::new(CELLS),
        }
    }

    /// Takes room for a table of so many cells, if there is some.
    pub(super) fn takes(&self, n: usize, m: usize) -> bool {
        let cells = n.saturating_mul(m);
        let fits = cells <= TABLE && cells <= self.left.get();
        if fits {
            self.left.set(self.left.get() - cells);
        }
        fits
    }

    /// Rows with the greatest sum of scores; what has the score 0 is not matched.
    pub(super) fn align(
        &self,
        n: usize,
        m: usize,
        score: &dyn Fn(usize, usize) -> u32,
    ) -> Vec<Pair<usize>> {
        if !self.takes(n, m) {
            return by_place(n, m, score);
        }
        // best[i][j]: of what is left from i and j on.
        let width = m + 1;
        let scores: Vec<u32> = (0..n * m).map(|at| score(at / m, at % m)).collect();
        let mut best = vec![0u32; (n + 1) * width];
        for i in (0..n).rev() {
            for j in (0..m).rev() {
                let at = i * width + j;
                let skipped = best[at + width].max(best[at + 1]);
                let matched = scores[i * m + j] + best[at + width + 1];
                best[at] = skipped.max(matched);
            }
        }
        let (mut i, mut j) = (0, 0);
        let mut rows = Vec::with_capacity(n.max(m));
        while i < n && j < m {
            let at = i * width + j;
            let own = scores[i * m + j];
            if own > 0 && best[at] == own + best[at + width + 1] {
                rows.push(Pair::both(i, j));
                (i, j) = (i + 1, j + 1);
            } else if best[at] == best[at + width] {
                rows.push(first(i));
                i += 1;
            } else {
                rows.push(second(j));
                j += 1;
            }
        }
        rows.extend((i..n).map(first));
        rows.extend((j..m).map(second));
        rows
    }
}

fn first(at: usize) -> Pair<usize> {
    Pair {
        a: Some(at),
        b: None,
    }
}

fn second(at: usize) -> Pair<usize> {
    Pair {
        a: None,
        b: Some(at),
    }
}

/// What both begin and end with, and the rest one by one.
fn by_place(n: usize, m: usize, score: &dyn Fn(usize, usize) -> u32) -> Vec<Pair<usize>> {
    let least = n.min(m);
    let begin = (0..least).take_while(|i| score(*i, *i) > 0).count();
    let rest = least - begin;
    let end = (0..rest).take_while(|i| score(n - 1 - i, m - 1 - i) > 0);
    let end = end.count();
    let mut rows: Vec<Pair<usize>> = (0..begin).map(|i| Pair::both(i, i)).collect();
    rows.extend((begin..n - end).map(first));
    rows.extend((begin..m - end).map(second));
    rows.extend((0..end).rev().map(|i| Pair::both(n - 1 - i, m - 1 - i)));
    rows
}

/// Matches what is left on both sides and has the same key, wherever it stands; whether a row came
/// about so.
pub(super) fn rejoin<K: Hash + Eq>(
    rows: Vec<Pair<usize>>,
    key_a: &dyn Fn(usize) -> K,
    key_b: &dyn Fn(usize) -> K,
) -> Vec<(Pair<usize>, bool)> {
    let mut left: HashMap<K, VecDeque<usize>> = HashMap::new();
    for row in rows.iter().filter(|row| row.b.is_none()) {
        if let Some(a) = row.a {
            left.entry(key_a(a)).or_default().push_back(a);
        }
    }
    let mut taken = Vec::new();
    let mut out: Vec<(Pair<usize>, bool)> = Vec::with_capacity(rows.len());
    for row in rows {
        let partner = match (row.a, row.b) {
            (None, Some(b)) => left.get_mut(&key_b(b)).and_then(VecDeque::pop_front),
            _ => None,
        };
        taken.extend(partner);
        out.push(match partner {
            Some(a) => (Pair { a: Some(a), ..row }, true),
            None => (row, false),
        });
    }
    taken.sort_unstable();
    out.retain(|(row, is_moved)| {
        let is_alone = row.b.is_none() && !is_moved;
        !(is_alone && row.a.is_some_and(|a| taken.binary_search(&a).is_ok()))
    });
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(a: &str, b: &str) -> Vec<(Pair<usize>, bool)> {
        let (a, b) = (a.as_bytes(), b.as_bytes());
        let score = |i: usize, j: usize| u32::from(a[i] == b[j]);
        let rows = Aligner::new().align(a.len(), b.len(), &score);
        rejoin(rows, &|i| a[i], &|j| b[j])
    }

    fn show(a: &str, b: &str) -> String {
        let one = |(row, is_moved): &(Pair<usize>, bool)| {
            let sign = match (row.a, row.b, is_moved) {
                (Some(_), Some(_), true) => "~",
                (Some(_), Some(_), false) => "",
                (Some(_), None, _) => "-",
                _ => "+",
            };
            let letter = row.a.map(|i| a.as_bytes()[i]);
            let letter = letter.or(row.b.map(|j| b.as_bytes()[j]));
            format!("{sign}{}", letter.map_or(' ', char::from))
        };
        rows(a, b).iter().map(one).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn what_is_added_removed_and_moved_is_told_apart() {
        assert_eq!(show("abc", "abc"), "a b c");
        assert_eq!(show("abc", "axbc"), "a +x b c");
        assert_eq!(show("abc", "ac"), "a -b c");
        assert_eq!(show("abc", "bca"), "b c ~a");
        assert_eq!(show("", "ab"), "+a +b");
    }

    #[test]
    fn everything_occurs_once_however_long() {
        let mut state = 1u32;
        let mut random = |n: usize| -> Vec<u8> {
            let next = |_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 29) as u8
            };
            (0..n).map(next).collect()
        };
        for (n, m) in [(0, 5), (7, 7), (40, 60), (2000, 3000)] {
            let (a, b) = (random(n), random(m));
            let score = |i: usize, j: usize| u32::from(a[i] == b[j]);
            let rows = Aligner::new().align(n, m, &score);
            let rows = rejoin(rows, &|i| a[i], &|j| b[j]);
            let mut of_a: Vec<usize> = rows.iter().filter_map(|(row, _)| row.a).collect();
            let mut of_b: Vec<usize> = rows.iter().filter_map(|(row, _)| row.b).collect();
            of_a.sort_unstable();
            of_b.sort_unstable();
            assert_eq!(of_a, (0..n).collect::<Vec<_>>());
            assert_eq!(of_b, (0..m).collect::<Vec<_>>());
            for (row, _) in &rows {
                if let Some((i, j)) = row.matched() {
                    assert_eq!(a[*i], b[*j]);
                }
            }
        }
    }

    #[test]
    fn one_change_in_a_long_sequence_stays_one() {
        let a: Vec<usize> = (0..5000).collect();
        let mut b = a.clone();
        b.insert(2500, 9999);
        let score = |i: usize, j: usize| u32::from(a[i] == b[j]);
        let rows = Aligner::new().align(a.len(), b.len(), &score);
        assert_eq!(rows.iter().filter(|row| row.matched().is_none()).count(), 1);
    }
}
