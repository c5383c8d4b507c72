//! Runs of consecutive empty blocks, from which blocks are taken and to which they are given back.
//!
//! The use of the blocks is not known here. Taking and giving a block cost the logarithm of the number of runs.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Runs of empty blocks. No two runs are adjacent.
#[derive(Clone, Debug)]
pub(super) struct FreeRuns {
    /// End of each run by its start.
    ends: BTreeMap<usize, usize>,
    /// Length and start of each run: the longest run is last, and among equal ones the one with the lowest start.
    by_length: BTreeSet<(usize, Reverse<usize>)>,
}

impl FreeRuns {
    /// One run of `n` blocks.
    pub(super) fn new(n: usize) -> Self {
        let mut this = Self {
            ends: BTreeMap::new(),
            by_length: BTreeSet::new(),
        };
        this.add(0..n);
        this
    }

    fn add(&mut self, run: Range<usize>) {
        if !run.is_empty() {
            self.ends.insert(run.start, run.end);
            self.by_length.insert((run.len(), Reverse(run.start)));
        }
    }

    /// Takes a block. Returns false if it is not among the empty ones.
    pub(super) fn take(&mut self, at: usize) -> bool {
        let found = self.ends.range(..=at).next_back();
        let Some((start, end)) = found.map(|(start, end)| (*start, *end)) else {
            return false;
        };
        if at >= end {
            return false;
        }
        self.remove(start..end);
        self.add(start..at);
        self.add(at + 1..end);
        true
    }

    fn remove(&mut self, run: Range<usize>) {
        self.ends.remove(&run.start);
        self.by_length.remove(&(run.len(), Reverse(run.start)));
    }

    /// Gives back a block, unless it is among the empty ones.
    pub(super) fn give(&mut self, at: usize) {
        let before = self.ends.range(..=at).next_back();
        let before = before.map(|(start, end)| *start..*end);
        if before.as_ref().is_some_and(|run| at < run.end) {
            return;
        }
        let mut run = at..at + 1;
        if let Some(before) = before.filter(|before| before.end == at) {
            run.start = before.start;
            self.remove(before);
        }
        if let Some(end) = self.ends.get(&(at + 1)).copied() {
            self.remove(at + 1..end);
            run.end = end;
        }
        self.add(run);
    }

    /// Takes the lowest block.
    pub(super) fn take_lowest(&mut self) -> Option<usize> {
        let at = *self.ends.first_key_value()?.0;
        self.take(at).then_some(at)
    }

    /// Takes the block in the middle of the longest run.
    pub(super) fn take_middle(&mut self) -> Option<usize> {
        let (len, Reverse(start)) = *self.by_length.last()?;
        let at = start + len / 2;
        self.take(at).then_some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compared with a search through all blocks.
    #[test]
    fn the_middle_of_the_longest_run_is_taken() {
        let mut state = 1u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
            (state >> 33) as usize % below
        };
        for _ in 0..50 {
            let mut is_empty: Vec<bool> = (0..60).map(|_| random(3) > 0).collect();
            let mut runs = FreeRuns::new(60);
            (0..60).for_each(|at| assert!(runs.take(at)));
            let all = (0..60).cycle().skip(random(60)).take(60);
            all.filter(|at| is_empty[*at]).for_each(|at| runs.give(at));
            loop {
                let block = random(70);
                let is_there = is_empty.get(block) == Some(&true);
                assert_eq!(runs.take(block), is_there);
                if is_there {
                    is_empty[block] = false;
                }
                let given = random(60);
                if random(4) == 0 {
                    runs.give(given);
                    is_empty[given] = true;
                }
                if random(8) == 0 {
                    let lowest = is_empty.iter().position(|is_in| *is_in);
                    assert_eq!(runs.take_lowest(), lowest);
                    lowest.into_iter().for_each(|at| is_empty[at] = false);
                }
                let mut longest = 0..0;
                let mut start = 0;
                for (at, is_in) in is_empty.iter().copied().chain([false]).enumerate() {
                    if !is_in {
                        if at - start > longest.len() {
                            longest = start..at;
                        }
                        start = at + 1;
                    }
                }
                let middle = longest.start + longest.len() / 2;
                let expected = (!longest.is_empty()).then_some(middle);
                assert_eq!(runs.take_middle(), expected, "{is_empty:?}");
                let Some(taken) = expected else { break };
                is_empty[taken] = false;
            }
        }
    }
}
