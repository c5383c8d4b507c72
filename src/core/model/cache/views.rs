//! The views of every pool for a pass: the runs of its sequences, with those at equal distances in one view.

use std::ops::Range;

use crate::blocks::Runs;

use super::block_manager::{BlockManager, OUT_OF_WINDOW};
use super::mask::Mask;
use super::{BLOCK, SequenceId};

/// The number of slots of a view is a multiple of this, so that a graph serves many steps.
const VIEW_STEP: usize = 256;

/// Maximum number of attention operations over one pool in a pass.
pub(crate) const MAX_VIEWS: usize = 16;

/// Consecutive tokens of a pass that belong to one sequence.
struct Segment {
    id: SequenceId,
    n_tokens: usize,
    /// Slots of all positions that the tokens attend to.
    slots: Range<usize>,
}

impl BlockManager {
    /// The first slot of a sequence's run in the first pool; none without a run. Sequences in this order are read
    /// together.
    pub(crate) fn run_start(&self, id: SequenceId) -> Option<usize> {
        self.n_homes?;
        let sequence = self.sequences.get(&id)?;
        self.span(0, &sequence.tables.first()?[..], sequence.homes[0])
            .map(|slots| slots.start)
    }

    /// The views of a pool for a pass, in the order of its tokens.
    pub(crate) fn views_of(&self, pool: usize, places: &[(SequenceId, u32)]) -> Vec<Runs> {
        let segments: Vec<Segment> = places
            .chunk_by(|(a, _), (b, _)| a == b)
            .map(|tokens| Segment {
                id: tokens[0].0,
                n_tokens: tokens.len(),
                slots: self.span_of(pool, tokens[0].0),
            })
            .collect();
        let n_slots = self.groups[pool].n_slots;
        let mut views: Vec<Runs> = Vec::new();
        let mut left = segments.as_slice();
        while let Some(first) = left.first() {
            if views.len() + 1 == MAX_VIEWS {
                views.push(all_of(left, n_slots));
                break;
            }
            let mut n = 1;
            let mut view = all_of(std::slice::from_ref(first), n_slots);
            while let Some(more) = left.get(..n + 1).and_then(|s| together(s, n_slots)) {
                view = more;
                n += 1;
            }
            views.push(view);
            left = &left[n..];
        }
        views
    }

    fn span_of(&self, pool: usize, id: SequenceId) -> Range<usize> {
        let sequence = self.sequences.get(&id);
        let span = sequence.and_then(|s| self.span(pool, &s.tables[pool], s.homes[pool]));
        span.unwrap_or(0..BLOCK)
    }

    /// The slots of the blocks of a table, from the start of their home on if all lie in it.
    fn span(&self, pool: usize, table: &[u32], home: Option<usize>) -> Option<Range<usize>> {
        let blocks = || {
            table
                .iter()
                .filter(|b| **b != OUT_OF_WINDOW)
                .map(|b| *b as usize)
        };
        let (mut first, last) = (blocks().min()?, blocks().max()?);
        if let Some(home) = home
            && first >= home
            && last < home + self.home_len(pool)
        {
            first = home;
        }
        Some(first * BLOCK..(last + 1) * BLOCK)
    }

    /// The row of a position of a sequence in a pool, if its block is in the table.
    pub(crate) fn row(&self, pool: usize, id: SequenceId, position: u32) -> Option<usize> {
        let sequence = self.sequences.get(&id)?;
        let block = position as usize / BLOCK;
        let is_there =
            block >= sequence.n_out_of_window[pool] && block < sequence.tables[pool].len();
        is_there.then(|| sequence.slot(pool, position))
    }

    /// The positions that query `i` attends to, with their rows in a view of a pool.
    pub(crate) fn seen(
        &self,
        pool: usize,
        view: &Runs,
        queries: &[(SequenceId, u32)],
        i: usize,
    ) -> Vec<(u32, usize)> {
        let Some(sequence) = self.sequences.get(&queries[i].0) else {
            return Vec::new();
        };
        let start = view.first + i / view.n_tokens * view.stride;
        let seen = self.visible(pool, queries[i], sequence.tokens.len() as u32);
        seen.map(|p| (p, sequence.slot(pool, p) - start)).collect()
    }

    /// The slot of a position of a sequence in a pool, if the position is stored.
    pub(crate) fn slot_of(&self, pool: usize, id: SequenceId, position: u32) -> Option<usize> {
        let sequence = self.sequences.get(&id)?;
        let is_there = (position as usize) < sequence.tokens.len();
        is_there.then(|| sequence.slot(pool, position))
    }

    /// The mask `[n_kv, n_queries]` of queries over the keys of a view of a pool.
    pub(crate) fn mask(&self, pool: usize, view: &Runs, queries: &[(SequenceId, u32)]) -> Mask {
        let sequences: Vec<_> = queries
            .iter()
            .filter_map(|(id, _)| self.sequences.get(id))
            .collect();
        Mask::of_slots(
            view.n_kv,
            queries,
            &self.groups[pool].rule,
            |i| self.visible(pool, queries[i], sequences[i].tokens.len() as u32),
            |i, position| {
                let start = view.first + i / view.n_tokens * view.stride;
                sequences[i].slot(pool, position) - start
            },
        )
    }
}

fn padded(n: usize) -> usize {
    n.next_multiple_of(VIEW_STEP)
}

/// The first slot and the number of slots of a view of at least `n` slots from `first` on, in a pool of `n_slots`.
fn view(first: usize, n: usize, n_slots: usize) -> (usize, usize) {
    let n_kv = padded(n).min(n_slots);
    (first.min(n_slots - n_kv), n_kv)
}

/// One view of all slots that the segments attend to.
fn all_of(segments: &[Segment], n_slots: usize) -> Runs {
    let starts = segments.iter().map(|segment| segment.slots.start);
    let ends = segments.iter().map(|segment| segment.slots.end);
    let first = starts.min().unwrap_or(0);
    let end = ends.max().unwrap_or(BLOCK);
    // Padding extends a view forwards. It starts earlier only at the end of the pool.
    let (first, n_kv) = view(first, end - first, n_slots);
    Runs {
        n_tokens: segments.iter().map(|segment| segment.n_tokens).sum(),
        n_runs: 1,
        first,
        stride: n_kv,
        n_kv,
    }
}

/// One view of segments with a run each, if the runs are at equal distances, they have equally many tokens, and
/// padding at most doubles the number of slots that are read.
fn together(segments: &[Segment], n_slots: usize) -> Option<Runs> {
    let [one, two, ..] = segments else {
        return None;
    };
    let n_tokens = one.n_tokens;
    let stride = two.slots.start.checked_sub(one.slots.start)?;
    let is_regular = |pair: &[Segment]| {
        pair[0].slots.start + stride == pair[1].slots.start && pair[0].id != pair[1].id
    };
    let is_alike = segments.iter().all(|segment| segment.n_tokens == n_tokens);
    if stride == 0 || !is_alike || !segments.windows(2).all(is_regular) {
        return None;
    }
    let len = |segment: &Segment| padded(segment.slots.len());
    let longest = segments.iter().map(len).max()?;
    let last = segments.last()?.slots.start;
    // Padding beyond the end of the pool starts earlier instead, as far as there are slots before.
    let back = (last + longest)
        .saturating_sub(n_slots)
        .min(one.slots.start);
    // Runs do not overlap, so their views must not either.
    let n_kv = longest.min(n_slots - (last - back)).min(stride);
    let is_seen = segments.iter().all(|s| s.slots.len() + back <= n_kv);
    let apart: usize = segments.iter().map(len).sum();
    let is_cheap = segments.len() * n_kv <= 2 * apart;
    (is_seen && is_cheap).then_some(Runs {
        n_tokens,
        n_runs: segments.len(),
        first: one.slots.start - back,
        stride,
        n_kv,
    })
}
