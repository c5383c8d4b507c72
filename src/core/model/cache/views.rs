//! The views of every pool for a pass: the runs of its sequences, with those at equal distances in one view.
//!
//! Where a pass has rows of no sequence, they stand for the homes between those of its sequences, so that one view reads
//! all of these. Such a row attends to the first slot of the home that it stands for, which holds a finite number.

use std::ops::Range;

use crate::blocks::Runs;

use super::block_manager::BlockManager;
use super::mask::{MaskValue, mask_of_slots};
use super::runs::span_of;
use super::{BLOCK, NOBODY, SequenceId};

/// The number of slots of a view is a multiple of this, so that a graph serves many steps.
const VIEW_STEP: usize = 256;

/// Maximum number of attention operations over one pool in a pass.
pub(crate) const MAX_VIEWS: usize = 16;

/// The position of a row of nobody that stands for no home: it lengthens the run before it.
pub(crate) const PADDING: u32 = u32::MAX;

/// The homes of a sequence: equal steps from home to home in which its run lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) home: usize,
    /// Number of homes; the home is a multiple of it.
    pub(crate) n_homes: usize,
}

/// Consecutive rows of a pass that attend to one run.
struct Segment {
    n_tokens: usize,
    /// The home at which the run is expected.
    home: Option<usize>,
    /// Number of homes that the run takes.
    n_homes: usize,
    /// Slots of all positions that the tokens attend to; none of nobody.
    slots: Option<Range<usize>>,
}

impl BlockManager {
    /// The homes of a sequence whose run starts at one in every pool, if these are a step of equal ones.
    pub(crate) fn cell(&self, id: SequenceId) -> Option<Cell> {
        let home = self.regular_home(id)?;
        let n_homes = self.n_homes_of(id).next_power_of_two();
        home.is_multiple_of(n_homes)
            .then_some(Cell { home, n_homes })
    }

    /// A number by which sequences whose runs are read together follow each other.
    pub(crate) fn order(&self, id: SequenceId) -> usize {
        if self.n_homes.is_none() {
            return 0;
        }
        let first = match self.cell(id) {
            Some(Cell { home, n_homes }) => return (n_homes.ilog2() as usize) << 32 | home,
            None => self.sequences.get(&id),
        };
        let first = first.and_then(|sequence| span_of(sequence.tables.first()?));
        (1 << 48) | first.map_or(0, |span| span.start)
    }

    /// Number of homes of a pool; none if blocks of sequences lie anywhere.
    pub(crate) fn n_cells(&self) -> Option<usize> {
        self.n_homes.map(|_| self.n_whole_homes())
    }

    /// The views of a pool for a pass, in the order of its tokens.
    pub(crate) fn views_of(&self, pool: usize, places: &[(SequenceId, u32)]) -> Vec<Runs> {
        let mut segments: Vec<Segment> = Vec::new();
        let same = |a: &(SequenceId, u32), b: &(SequenceId, u32)| {
            a.0 == b.0 && (a.0 != NOBODY || a.1 == b.1)
        };
        for tokens in places.chunk_by(same) {
            match (tokens[0], segments.last_mut()) {
                ((NOBODY, PADDING), Some(last)) => last.n_tokens += tokens.len(),
                ((NOBODY, home), _) => segments.push(Segment {
                    n_tokens: tokens.len(),
                    home: Some(home as usize),
                    n_homes: 1,
                    slots: None,
                }),
                ((id, _), _) => segments.push(Segment {
                    n_tokens: tokens.len(),
                    home: self.sequences.get(&id).and_then(|sequence| sequence.home),
                    n_homes: self.n_homes_of(id).next_power_of_two(),
                    slots: Some(self.span_in(pool, id)),
                }),
            }
        }
        let mut views: Vec<Runs> = Vec::new();
        let mut left = segments.as_slice();
        while let Some(first) = left.first() {
            let view = self.first_view(pool, first, left);
            views.push(view);
            left = &left[view.n_runs..];
        }
        views
    }

    /// The slots of the blocks of a sequence, from the start of its home on if all lie in it.
    fn span_in(&self, pool: usize, id: SequenceId) -> Range<usize> {
        let sequence = self.sequences.get(&id);
        let span = sequence.and_then(|sequence| {
            let mut span = span_of(&sequence.tables[pool])?;
            let home = sequence.home.map(|home| home * self.home_len(pool));
            if let Some(home) = home
                && span.start >= home
                && span.end <= home + self.home_len(pool)
            {
                span.start = home;
            }
            Some(span.start * BLOCK..span.end * BLOCK)
        });
        span.unwrap_or(0..BLOCK)
    }

    /// The view of a run alone.
    fn alone(&self, pool: usize, segment: &Segment) -> Runs {
        let n_slots = self.groups[pool].n_slots;
        let slots = match &segment.slots {
            Some(slots) => slots.clone(),
            None => {
                let home = segment.home.unwrap_or(0);
                let first = home * self.home_len(pool) * BLOCK;
                first..first + BLOCK
            }
        };
        let n_kv = self.padded(slots.len()).min(n_slots);
        Runs {
            n_tokens: segment.n_tokens,
            n_runs: 1,
            // Padding extends a view forwards. It starts earlier only at the end of the pool.
            first: slots.start.min(n_slots - n_kv),
            stride: n_kv,
            n_kv,
        }
    }

    /// One view of the first segments, as many as have a run each with equally many tokens, at homes at equal distances.
    /// Without rows of nobody, whose plans have devices that skip what is masked, padding at most doubles the number of slots
    /// that are read.
    fn first_view(&self, pool: usize, one: &Segment, segments: &[Segment]) -> Runs {
        let mut view = self.alone(pool, one);
        let (Some(first), Some(second)) = (one.home, segments.get(1).and_then(|two| two.home))
        else {
            return view;
        };
        let Some(step) = second.checked_sub(first).filter(|step| *step > 0) else {
            return view;
        };
        let home = self.home_len(pool) * BLOCK;
        let (stride, n_slots) = (step * home, self.groups[pool].n_slots);
        let (mut n_homes, mut longest, mut apart) = (0, 0, 0);
        for (i, segment) in segments.iter().enumerate() {
            let own = first + i * step;
            if segment.n_tokens != one.n_tokens || segment.home != Some(own) {
                break;
            }
            let start = own * home;
            if let Some(slots) = &segment.slots {
                if slots.start < start {
                    break;
                }
                longest = longest.max(slots.end - start);
                apart += self.padded(slots.end - start);
            }
            n_homes = n_homes.max(segment.n_homes);
            if i == 0 {
                continue;
            }
            // Runs do not overlap, so their views must not either.
            let n_kv = self.padded(longest.max(BLOCK)).min(stride);
            let is_cheap = self.has_trash || (i + 1) * n_kv <= 2 * apart;
            // Few distances, so that graphs serve more steps.
            let is_usual = !self.has_trash || step == n_homes;
            if !is_usual || !is_cheap || longest > n_kv || start + n_kv > n_slots {
                break;
            }
            view = Runs {
                n_tokens: one.n_tokens,
                n_runs: i + 1,
                first: first * home,
                stride,
                n_kv,
            };
        }
        view
    }

    /// The number of slots of a view for `n`: where graphs are kept for padded passes, fewer sizes serve more steps.
    fn padded(&self, n: usize) -> usize {
        match self.has_trash {
            true => n.next_power_of_two().max(VIEW_STEP),
            false => n.next_multiple_of(VIEW_STEP),
        }
    }

    /// The row of a position of a sequence in a pool, if its block is in the table.
    pub(crate) fn row(&self, pool: usize, id: SequenceId, position: u32) -> Option<usize> {
        let sequence = self.sequences.get(&id)?;
        let block = position as usize / BLOCK;
        let is_there =
            block >= sequence.n_out_of_window[pool] && block < sequence.tables[pool].len();
        is_there.then(|| sequence.slot(pool, position))
    }

    /// The positions that query `i` attends to, with their rows in a view of a pool. A row of nobody attends to the first
    /// row.
    pub(crate) fn seen(
        &self,
        pool: usize,
        view: &Runs,
        queries: &[(SequenceId, u32)],
        i: usize,
    ) -> Vec<(u32, usize)> {
        let Some(sequence) = self.sequences.get(&queries[i].0) else {
            return vec![(0, 0)];
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
    pub(crate) fn mask<T: MaskValue>(
        &self,
        pool: usize,
        view: &Runs,
        queries: &[(SequenceId, u32)],
    ) -> Vec<T> {
        let sequences: Vec<_> = queries
            .iter()
            .map(|(id, _)| self.sequences.get(id))
            .collect();
        // A row of nobody has no position.
        let queries: Vec<_> = queries
            .iter()
            .map(|(id, position)| (*id, if *id == NOBODY { 0 } else { *position }))
            .collect();
        mask_of_slots(
            view.n_kv,
            &queries,
            &self.groups[pool].rule,
            |i| match sequences[i] {
                Some(sequence) => self.visible(pool, queries[i], sequence.tokens.len() as u32),
                None => 0..1,
            },
            |i, position| {
                let start = view.first + i / view.n_tokens * view.stride;
                sequences[i].map_or(0, |sequence| sequence.slot(pool, position) - start)
            },
        )
    }
}
