//! Runs: the blocks of a sequence lie one after another, because attention reads slots as they lie.
//!
//! Every pool is divided into homes of equal length, one for each sequence that runs at the same time. A sequence
//! starts at a home, or where its cached prefix lies, and takes the blocks after its last one. If these are in use,
//! it moves to a place with more room. If there is none, all sequences move together, so that a sequence gets
//! blocks as long as there are any. With an attention window, the blocks lie in the home in any order, since old
//! ones are freed. A pass that needs more takes the nearest others. No block has two users: shared prefixes are
//! copied on the device. Cached contents of a block that a run takes are copied to an empty block, so that runs do
//! not evict while there are empty blocks.

use std::ops::Range;

use super::block_manager::{BlockManager, OUT_OF_WINDOW};
use super::empty_runs::FreeRuns;
use super::{BLOCK, BlockId, SequenceId, SlotCopy};

impl BlockManager {
    /// Number of blocks of a home in a pool.
    pub(super) fn home_len(&self, pool: usize) -> usize {
        (self.pools[pool].len() / self.n_homes.unwrap_or(1)).max(1)
    }

    /// The first block of each home in a pool.
    fn homes(&self, pool: usize) -> impl Iterator<Item = usize> {
        let (len, home) = (self.pools[pool].len(), self.home_len(pool));
        (0..self.n_homes.unwrap_or(1))
            .map(move |i| i * home)
            .take_while(move |start| start + home <= len)
    }

    /// Whether sequences free old blocks of a pool as they continue.
    pub(super) fn is_windowed(&self, pool: usize) -> bool {
        self.groups[pool].rule.kept() > 0
    }

    /// Gives a sequence `n` more blocks of a pool, at the end of its run.
    pub(super) fn extend_run(
        &mut self,
        pool: usize,
        id: SequenceId,
        n: usize,
        copies: &mut Vec<SlotCopy>,
    ) -> Option<()> {
        if n == 0 {
            return Some(());
        }
        if self.is_windowed(pool) {
            return self.extend_window(pool, id, n);
        }
        let table = &self.sequences.get(&id)?.tables[pool];
        let (end, len) = (table.last().map(|last| *last as usize + 1), table.len());
        let has_room =
            |end: &usize| (*end..end + n).all(|block| self.pools[pool].is_unused(block as BlockId));
        let at = match end.filter(has_room) {
            Some(end) => end,
            None => match self.place(pool, len + n, &[]) {
                Some(start) => {
                    self.move_run(pool, id, start, copies)?;
                    start + len
                }
                None => self.compact(pool, id, n, copies)?,
            },
        };
        self.clear(pool, at..at + n, copies);
        for block in at..at + n {
            self.pools[pool].claim(block as BlockId, &mut self.tree, pool);
            let sequence = self.sequences.get_mut(&id)?;
            sequence.tables[pool].push(block as BlockId);
        }
        Some(())
    }

    /// Moves cached contents out of unused blocks of `region`, to empty blocks outside of it, as long as there are any:
    /// to the block after that of the preceding tokens, if it is empty.
    pub(super) fn clear(&mut self, pool: usize, region: Range<usize>, copies: &mut Vec<SlotCopy>) {
        let blocks = &self.pools[pool];
        let is_cached = |at: usize| blocks.node(at as BlockId).is_some();
        let is_unused = |at: &usize| blocks.is_unused(*at as BlockId);
        let unused = region.clone().filter(is_unused);
        let cached: Vec<usize> = unused.filter(|at| is_cached(*at)).collect();
        if cached.is_empty() {
            return;
        }
        let outside = (0..blocks.len()).filter(|at| !region.contains(at));
        let mut empty = FreeRuns::of(outside.filter(is_unused).filter(|at| !is_cached(*at)));
        for block in cached {
            let Some(node) = self.pools[pool].node(block as BlockId) else {
                continue;
            };
            let before = self.tree.part(self.tree.parent(node), pool);
            let after = before.map(|before| before as usize + 1);
            let after = after.filter(|at| empty.take(*at));
            // The first half of an empty run is left to the sequence before it.
            let Some(to) = after.or_else(|| empty.take_middle()) else {
                return;
            };
            copies.push(SlotCopy {
                pool,
                from: block * BLOCK,
                to: to * BLOCK,
                n: self.tree.n_tokens(node),
            });
            self.pools[pool].transfer(block as BlockId, to as BlockId, &mut self.tree, pool);
        }
    }

    /// The best place for a run of `n` blocks that takes over the contents of blocks `sources`. It has room for a
    /// home if possible, and needs few copies and evictions.
    pub(super) fn place(&self, pool: usize, n: usize, sources: &[BlockId]) -> Option<usize> {
        let blocks = &self.pools[pool];
        let mut room = vec![0usize; blocks.len() + 1];
        for block in (0..blocks.len()).rev() {
            if blocks.is_unused(block as BlockId) {
                room[block] = room[block + 1] + 1;
            }
        }
        // The middle of the free blocks between two runs, so that both have room.
        let is_begin = |block: &usize| room[*block] > 0 && (*block == 0 || room[block - 1] == 0);
        let between = (0..blocks.len()).filter(is_begin).map(|begin| match begin {
            0 => 0,
            _ => begin + room[begin].saturating_sub(n) / 2,
        });
        let in_place = sources.first().map(|block| *block as usize);
        let is_apart = |start: &usize| {
            let mut sources = (*start..).zip(sources);
            room[*start] >= n
                && sources.all(|(to, from)| {
                    let from = *from as usize;
                    from == to || !(*start..start + n).contains(&from)
                })
        };
        let wanted = (n + 1).max(self.home_len(pool));
        let cost = |start: &usize| {
            let missing = wanted.saturating_sub(room[*start]);
            let region = *start..start + wanted.min(room[*start]);
            let kept = |block: usize| sources.get(block - start) == Some(&(block as BlockId));
            let n_kept = region.clone().filter(|block| kept(*block)).count();
            let lost = region.filter(|block| !kept(*block));
            let lost: Vec<u64> = lost.filter_map(|b| self.last_used(pool, b)).collect();
            let newest = lost.iter().max().copied();
            // Missing blocks count twice: the run is copied again later, and blocks are evicted then.
            let n_copied = sources.len() - n_kept;
            (2 * missing + lost.len() + n_copied, newest, *start)
        };
        let all = self.homes(pool).chain(between).chain(in_place);
        all.filter(is_apart).min_by_key(cost)
    }

    /// When the cached contents of a block were last used; none if it has none.
    fn last_used(&self, pool: usize, block: usize) -> Option<u64> {
        let node = self.pools[pool].node(block as BlockId);
        node.map(|node| self.tree.last_used(node))
    }

    /// Moves a run to unused blocks.
    fn move_run(
        &mut self,
        pool: usize,
        id: SequenceId,
        start: usize,
        copies: &mut Vec<SlotCopy>,
    ) -> Option<()> {
        let len = self.sequences.get(&id)?.tables[pool].len();
        self.clear(pool, start..start + len, copies);
        let sequence = self.sequences.get_mut(&id)?;
        let table = &mut sequence.tables[pool];
        if let Some(first) = table.first() {
            copies.push(SlotCopy {
                pool,
                from: *first as usize * BLOCK,
                to: start * BLOCK,
                n: sequence.tokens.len(),
            });
        }
        for (block, to) in table.iter_mut().zip(start as BlockId..) {
            self.pools[pool].claim(to, &mut self.tree, pool);
            self.pools[pool].relocate(*block, to, &mut self.tree, pool);
            *block = to;
        }
        Some(())
    }

    /// Moves all runs of a pool so that one of them can take `n` more blocks and the gaps between runs are equal.
    /// Returns the first of those blocks.
    fn compact(
        &mut self,
        pool: usize,
        id: SequenceId,
        n: usize,
        copies: &mut Vec<SlotCopy>,
    ) -> Option<usize> {
        let runs = self.sequences.iter().map(|(id, s)| (*id, &s.tables[pool]));
        let runs = runs.filter(|(of, table)| *of == id || !table.is_empty());
        // A run without blocks is the last one.
        let runs = runs.map(|(id, table)| {
            let start = table.first().map_or(usize::MAX, |first| *first as usize);
            (start, id, table.len())
        });
        let mut runs: Vec<(usize, SequenceId, usize)> = runs.collect();
        runs.sort_unstable();
        let n_taken = runs.iter().map(|(.., len)| len).sum::<usize>() + n;
        let gap = self.pools[pool].len().checked_sub(n_taken)? / runs.len();
        let mut next = 0;
        let (mut down, mut up, mut end) = (Vec::new(), Vec::new(), None);
        for (start, of, len) in runs {
            let to = next;
            next += len + gap;
            if of == id {
                end = Some(to + len);
                next += n;
            }
            match to < start {
                _ if len == 0 => {}
                true => down.push((of, to)),
                false if to > start => up.push((of, to)),
                false => {}
            }
        }
        // Nothing is overwritten before it has moved: first runs that move down, from the lowest on, then runs that
        // move up, from the highest on.
        for (of, to) in down.into_iter().chain(up.into_iter().rev()) {
            self.shift_run(pool, of, to, copies)?;
        }
        end
    }

    /// Moves a run to a place that may overlap with its present one.
    fn shift_run(
        &mut self,
        pool: usize,
        id: SequenceId,
        start: usize,
        copies: &mut Vec<SlotCopy>,
    ) -> Option<()> {
        let sequence = self.sequences.get_mut(&id)?;
        let len = sequence.tokens.len();
        let table = &mut sequence.tables[pool];
        let from = *table.first()? as usize;
        let step = from.abs_diff(start) * BLOCK;
        let pieces = (0..len).step_by(step);
        let piece = |at: usize| SlotCopy {
            pool,
            from: from * BLOCK + at,
            to: start * BLOCK + at,
            n: step.min(len - at),
        };
        let mut order: Vec<usize> = (0..table.len()).collect();
        if start < from {
            copies.extend(pieces.map(piece));
        } else {
            copies.extend(pieces.rev().map(piece));
            order.reverse();
        }
        for i in order {
            let to = (start + i) as BlockId;
            self.pools[pool].claim(to, &mut self.tree, pool);
            self.pools[pool].relocate(table[i], to, &mut self.tree, pool);
            table[i] = to;
        }
        Some(())
    }

    /// Gives a sequence `n` more blocks of a pool with a window. Blocks of its home come last.
    fn extend_window(&mut self, pool: usize, id: SequenceId, n: usize) -> Option<()> {
        let home = match self.sequences.get(&id)?.homes[pool] {
            Some(home) => home,
            None => self.choose_home(pool, &[])?,
        };
        self.sequences.get_mut(&id)?.homes[pool] = Some(home);
        let mut blocks = Vec::with_capacity(n);
        for _ in 0..n {
            blocks.push(self.take_near(pool, home)?);
        }
        let table = &mut self.sequences.get_mut(&id)?.tables[pool];
        table.extend(blocks.into_iter().rev());
        Some(())
    }

    /// The home with the fewest blocks in use; among equal ones, that with the fewest copies and evictions.
    pub(super) fn choose_home(&self, pool: usize, sources: &[BlockId]) -> Option<usize> {
        let blocks = &self.pools[pool];
        let cost = |home: &usize| {
            let region = *home as BlockId..(home + self.home_len(pool)) as BlockId;
            let n_used = region.clone().filter(|b| !blocks.is_unused(*b)).count();
            let lost = region.clone().filter(|b| !sources.contains(b));
            let lost: Vec<u64> = lost
                .filter_map(|b| self.last_used(pool, b as usize))
                .collect();
            let n_copied = sources.iter().filter(|b| !region.contains(b)).count();
            let newest = lost.iter().max().copied();
            (n_used, lost.len() + n_copied, newest, *home)
        };
        self.homes(pool).min_by_key(cost)
    }

    /// Takes an unused block of a home, or else the nearest unused one. At equal distance, empty blocks come first,
    /// then the least recently used.
    pub(super) fn take_near(&mut self, pool: usize, home: usize) -> Option<BlockId> {
        let region = home..home + self.home_len(pool);
        let distance = |block: usize| match block < home {
            true => home - block,
            false => (block + 1).saturating_sub(region.end),
        };
        let blocks = &self.pools[pool];
        let unused = (0..blocks.len()).filter(|block| blocks.is_unused(*block as BlockId));
        let found = unused.min_by_key(|b| (distance(*b), self.last_used(pool, *b), *b))?;
        let block = found as BlockId;
        self.pools[pool].claim(block, &mut self.tree, pool);
        Some(block)
    }

    /// When a sequence ends, caches its blocks for nodes whose own blocks were evicted. In runs each sequence has
    /// its own copy.
    pub(super) fn remember_again(&mut self, id: SequenceId) {
        let Some(sequence) = self.sequences.get(&id).filter(|_| self.n_homes.is_some()) else {
            return;
        };
        let mut node = sequence.node;
        for at in (0..sequence.n_known).rev() {
            for (i, pool) in self.pools.iter_mut().enumerate() {
                let block = sequence.tables[i].get(at).copied().unwrap_or(OUT_OF_WINDOW);
                let is_own = block != OUT_OF_WINDOW && pool.node(block).is_none();
                if is_own && self.tree.part(node, i).is_none() {
                    pool.remember(block, node);
                    self.tree.set(node, i, block);
                }
            }
            node = self.tree.parent(node);
        }
    }
}
