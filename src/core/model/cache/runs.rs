//! Runs: the blocks of a sequence lie together, because attention reads slots as they lie.
//!
//! Every pool is divided into homes of equal length, one for each sequence that runs at the same time. A sequence has the
//! home of the same number in every pool, and the homes after it where it outgrows its own. So the runs of many sequences
//! lie at equal distances, and one attention operation reads them. A sequence starts at the home where most of its cached
//! prefix lies or which costs the fewest evictions, near those of the other running sequences. A sequence without a place
//! of this kind lies where there is room; if there is none, runs are shifted, so that a sequence gets blocks as long as
//! there are any. When a sequence ends, those without a regular place move to one. Blocks of a run have any order: a
//! shift moves the blocks of one end to the other. With an attention window, the blocks lie in the home in any order,
//! since old ones are freed. A pass that needs more takes the nearest others. No block has two users: shared prefixes are
//! copied on the device. Cached contents of a block that a run takes are copied to an empty block, so that runs do not
//! evict while there are empty blocks.

use std::ops::Range;

use crate::plan::HOME_STEP;

use super::super::buckets::bucket;
use super::block_manager::{BlockManager, OUT_OF_WINDOW};
use super::{BLOCK, BlockId, SequenceId, SlotCopy};

impl BlockManager {
    /// Number of blocks of a home in a pool.
    pub(super) fn home_len(&self, pool: usize) -> usize {
        let len = (self.pools[pool].len() / self.n_homes.unwrap_or(1)).max(1);
        let step = HOME_STEP as usize;
        match len / step {
            0 => len,
            n => n * step,
        }
    }

    /// Number of homes that lie whole in every pool.
    pub(super) fn n_whole_homes(&self) -> usize {
        let of_pool = |pool: usize| self.pools[pool].len() / self.home_len(pool);
        let n = (0..self.pools.len()).map(of_pool).min().unwrap_or(0);
        n.min(self.n_homes.unwrap_or(0))
    }

    /// Whether sequences free old blocks of a pool as they continue.
    pub(super) fn is_windowed(&self, pool: usize) -> bool {
        self.groups[pool].rule.kept() > 0
    }

    /// The pools in which a sequence has all its blocks.
    fn whole_pools(&self) -> impl Iterator<Item = usize> {
        (0..self.pools.len()).filter(|pool| !self.is_windowed(*pool))
    }

    /// Number of homes that a sequence takes.
    pub(super) fn n_homes_of(&self, id: SequenceId) -> usize {
        let Some(sequence) = self.sequences.get(&id) else {
            return 1;
        };
        let of_pool = |pool: usize| sequence.tables[pool].len().div_ceil(self.home_len(pool));
        self.whole_pools().map(of_pool).max().unwrap_or(1).max(1)
    }

    /// The home of a sequence, if its blocks lie there in every pool: from the start of the home on where it has all its
    /// blocks, and within the home where it has a window.
    pub(super) fn regular_home(&self, id: SequenceId) -> Option<usize> {
        let sequence = self.sequences.get(&id)?;
        let home = sequence.home?;
        let lies_there = |pool: usize| {
            let first = home * self.home_len(pool);
            sequence.tables[pool]
                .iter()
                .min()
                .is_none_or(|at| *at as usize == first)
        };
        self.whole_pools().all(lies_there).then_some(home)
    }

    /// The homes that running sequences other than `except` take.
    fn taken_homes(&self, except: Option<SequenceId>) -> Vec<bool> {
        let mut taken = vec![false; self.n_whole_homes()];
        for (id, sequence) in &self.sequences {
            let Some(home) = sequence.home.filter(|_| Some(*id) != except) else {
                continue;
            };
            let end = home + self.n_homes_of(*id);
            let own = taken.len().min(home)..taken.len().min(end);
            taken[own].fill(true);
        }
        taken
    }

    /// For each block of a pool and its end, the number of blocks from there on that a run can take; those of sequence `of`
    /// are free.
    fn room(&self, pool: usize, of: Option<SequenceId>) -> Vec<usize> {
        let blocks = &self.pools[pool];
        let mut is_free: Vec<bool> = (0..blocks.len() as BlockId)
            .map(|block| blocks.is_unused(block))
            .collect();
        // Between the blocks of a run lies no other run.
        for (id, sequence) in &self.sequences {
            let is_own = Some(*id) == of;
            if let Some(span) = span_of(&sequence.tables[pool]) {
                is_free[span].fill(is_own);
            }
        }
        let mut room = vec![0usize; blocks.len() + 1];
        for block in (0..blocks.len()).rev() {
            if is_free[block] {
                room[block] = room[block + 1] + 1;
            }
        }
        room
    }

    /// Whether blocks of a pool can be taken by a run that has none of them.
    fn has_room(&self, pool: usize, region: Range<usize>) -> bool {
        let blocks = &self.pools[pool];
        let mut spans = self.sequences.values().map(|of| span_of(&of.tables[pool]));
        region.end <= blocks.len()
            && region.clone().all(|at| blocks.is_unused(at as BlockId))
            && !spans.any(|span| {
                span.is_some_and(|span| span.start < region.end && region.start < span.end)
            })
    }

    /// The best home for a sequence with `n` blocks in each pool, of which it takes over `sources`, the last ones. It
    /// keeps the running sequences near each other, has room, and costs few copies and evictions. None if there is none
    /// among `homes`.
    pub(super) fn choose_home(
        &self,
        id: SequenceId,
        n: &[usize],
        sources: Option<&[Vec<BlockId>]>,
        homes: Range<usize>,
    ) -> Option<usize> {
        let taken = self.taken_homes(Some(id));
        let rooms: Vec<Vec<usize>> = self
            .whole_pools()
            .map(|pool| self.room(pool, Some(id)))
            .collect();
        let of_pool = |pool: usize| (n[pool], self.home_len(pool));
        let of_pools = self.whole_pools().map(of_pool);
        let n_homes = of_pools.map(|(n, len)| n.div_ceil(len)).max().unwrap_or(1);
        let n_homes = n_homes.max(1);
        let sources_of = |pool: usize| sources.map_or(&[][..], |all| &all[pool]);
        let has_room = |home: &usize| {
            let end = (home + n_homes).min(taken.len());
            let mut pools = self.whole_pools().zip(&rooms);
            !taken[*home..end].contains(&true)
                && pools.all(|(pool, room)| {
                    let start = home * self.home_len(pool);
                    room[start] >= n[pool] && is_apart(start, n[pool], sources_of(pool))
                })
        };
        let running = taken.iter().enumerate().filter(|(_, is_taken)| **is_taken);
        let running = running.map(|(home, _)| home);
        let (lowest, highest) = (running.clone().min(), running.max());
        let cost = |home: &usize| {
            let last = home + n_homes - 1;
            let first = lowest.map_or(*home, |lowest| lowest.min(*home));
            let width = highest.map_or(last, |highest| highest.max(last)) - first + 1;
            // Rows of homes between cost as much as others, up to the next shape of a pass.
            let width = if self.has_trash { bucket(width) } else { 0 };
            let is_aligned = home.is_multiple_of(n_homes.next_power_of_two());
            let (mut n_used, mut copied, mut newest) = (0, 0, None);
            for (pool, wanted) in n.iter().enumerate() {
                let (len, sources) = (self.home_len(pool), sources_of(pool));
                let start = home * len;
                let is_windowed = self.is_windowed(pool);
                let end = match is_windowed {
                    true => start + len,
                    false => start + (wanted + 1).max(len),
                };
                let region = start..end.min(self.pools[pool].len());
                let is_used = |block: &usize| !self.pools[pool].is_unused(*block as BlockId);
                n_used += region.clone().filter(is_used).count();
                let is_kept = |block: usize| match is_windowed {
                    true => sources.contains(&(block as BlockId)),
                    false => sources.get(block - start) == Some(&(block as BlockId)),
                };
                let lost = region.clone().filter(|block| !is_kept(*block));
                let lost: Vec<u64> = lost.filter_map(|b| self.last_used(pool, b)).collect();
                let n_kept = region.filter(|block| is_kept(*block)).count();
                copied += lost.len() + sources.len().saturating_sub(n_kept);
                newest = newest.max(lost.iter().max().copied());
            }
            // Used blocks count twice: the run is copied again later, and blocks are evicted then.
            (!is_aligned, width, 2 * n_used + copied, newest, *home)
        };
        let end = homes.end.min((taken.len() + 1).saturating_sub(n_homes));
        (homes.start..end).filter(has_room).min_by_key(cost)
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
        let all = 0..self.n_whole_homes();
        let sequence = self.sequences.get(&id)?;
        if sequence.home.is_none() && sequence.tables.iter().all(Vec::is_empty) {
            let mut wanted = vec![0; self.pools.len()];
            self.whole_pools().for_each(|pool| wanted[pool] = n);
            let home = self.choose_home(id, &wanted, None, all);
            self.is_crowded |= home.is_none();
            self.sequences.get_mut(&id)?.home = home;
        }
        if self.is_windowed(pool) {
            return self.extend_window(pool, id, n);
        }
        self.close(pool, id, copies)?;
        let sequence = self.sequences.get(&id)?;
        let table = &sequence.tables[pool];
        let (len, home) = (table.len(), sequence.home);
        let end = match span_of(table) {
            Some(span) => Some(span.end),
            None => home.map(|home| home * self.home_len(pool)),
        };
        let at = match end.filter(|end| self.has_room(pool, *end..end + n)) {
            Some(end) => end,
            None => self.make_room(pool, id, (len, n), copies)?,
        };
        self.clear(pool, at..at + n, copies);
        for block in at..at + n {
            self.pools[pool].claim(block as BlockId, &mut self.tree, pool);
            let sequence = self.sequences.get_mut(&id)?;
            sequence.tables[pool].push(block as BlockId);
        }
        Some(())
    }

    /// Moves the run of a sequence in a pool, which has `len` blocks, or others, so that `n` blocks after it can be taken.
    /// Returns the first of them.
    fn make_room(
        &mut self,
        pool: usize,
        id: SequenceId,
        (len, n): (usize, usize),
        copies: &mut Vec<SlotCopy>,
    ) -> Option<usize> {
        let mut wanted = vec![0; self.pools.len()];
        self.whole_pools().for_each(|pool| wanted[pool] = len + n);
        let all = 0..self.n_whole_homes();
        if let Some(home) = self.choose_home(id, &wanted, None, all) {
            self.move_home(id, home, copies)?;
            return Some(home * self.home_len(pool) + len);
        }
        self.is_crowded = true;
        match self.place(pool, len + n, &[]) {
            Some(start) => {
                self.move_run(pool, id, start, copies)?;
                Some(start + len)
            }
            None => self.compact(pool, id, n, copies),
        }
    }

    /// After a sequence has ended: moves runs to homes again, near each other.
    pub(super) fn tidy(&mut self, copies: &mut Vec<SlotCopy>) -> Option<()> {
        if !std::mem::replace(&mut self.has_ended, false) || self.n_homes.is_none() {
            return Some(());
        }
        let all = 0..self.n_whole_homes();
        if std::mem::replace(&mut self.is_crowded, false) {
            let mut ids: Vec<SequenceId> = self.sequences.keys().copied().collect();
            ids.sort_unstable();
            for id in ids {
                if self.regular_home(id).is_some() {
                    continue;
                }
                match self.choose_home(id, &self.lens(id), None, all.clone()) {
                    Some(home) => self.move_home(id, home, copies)?,
                    None => self.is_crowded = true,
                }
            }
        }
        if !self.has_trash {
            return Some(());
        }
        // The runs outside of the homes that hold the most move there, if that makes passes smaller.
        let mut runs: Vec<(usize, SequenceId)> = Vec::new();
        for id in self.sequences.keys() {
            runs.extend(self.regular_home(*id).map(|home| (home, *id)));
        }
        runs.sort_unstable();
        let (Some((first, _)), Some((last, id))) = (runs.first(), runs.last()) else {
            return Some(());
        };
        let n: usize = runs.iter().map(|(_, id)| self.n_homes_of(*id)).sum();
        let width = bucket(n).min(all.end);
        if bucket(last + self.n_homes_of(*id) - first) <= width {
            return Some(());
        }
        let held = |start: usize| {
            runs.iter()
                .filter(|(home, _)| (start..start + width).contains(home))
                .count()
        };
        let start = (0..=all.end - width)
            .rev()
            .max_by_key(|start| held(*start))?;
        let within = start..start + width;
        for (home, id) in runs {
            if !within.contains(&home)
                && let Some(home) = self.choose_home(id, &self.lens(id), None, within.clone())
            {
                self.move_home(id, home, copies)?;
            }
        }
        Some(())
    }

    /// Number of blocks of a sequence in each pool.
    fn lens(&self, id: SequenceId) -> Vec<usize> {
        let tables = self.sequences.get(&id).map(|sequence| &sequence.tables);
        let tables = tables.into_iter().flatten();
        tables.map(Vec::len).collect()
    }

    /// Moves a sequence to a home with unused blocks for it.
    fn move_home(&mut self, id: SequenceId, home: usize, copies: &mut Vec<SlotCopy>) -> Option<()> {
        self.sequences.get_mut(&id)?.home = Some(home);
        for pool in 0..self.pools.len() {
            let first = home * self.home_len(pool);
            if !self.is_windowed(pool) {
                self.move_run(pool, id, first, copies)?;
                continue;
            }
            let lies_there = first..first + self.home_len(pool);
            let len = self.sequences.get(&id)?.tables[pool].len();
            for at in 0..len {
                let from = self.sequences.get(&id)?.tables[pool][at];
                if from == OUT_OF_WINDOW || lies_there.contains(&(from as usize)) {
                    continue;
                }
                // A block of another home would not be nearer.
                let Some(to) = self.take_within(pool, lies_there.clone()) else {
                    break;
                };
                self.relocate(pool, id, (at, to), copies)?;
            }
        }
        Some(())
    }

    /// Takes an unused block among some blocks: an empty one, or else the least recently used.
    fn take_within(&mut self, pool: usize, among: Range<usize>) -> Option<BlockId> {
        let blocks = &self.pools[pool];
        let unused = among.filter(|block| blocks.is_unused(*block as BlockId));
        let block = unused.min_by_key(|block| (self.last_used(pool, *block), *block))? as BlockId;
        self.pools[pool].claim(block, &mut self.tree, pool);
        Some(block)
    }

    /// Moves block `at` of a table to a block that was claimed for it.
    fn relocate(
        &mut self,
        pool: usize,
        id: SequenceId,
        (at, to): (usize, BlockId),
        copies: &mut Vec<SlotCopy>,
    ) -> Option<()> {
        let sequence = self.sequences.get_mut(&id)?;
        let from = std::mem::replace(&mut sequence.tables[pool][at], to);
        let n = sequence.tokens.len().saturating_sub(at * BLOCK).min(BLOCK);
        self.pools[pool].relocate(from, to, &mut self.tree, pool);
        if n > 0 {
            push_copy(copies, pool, from, to, n);
        }
        Some(())
    }

    /// Moves cached contents out of unused blocks of `region`, to empty blocks outside of it, as long as there are any:
    /// to the block after that of the preceding tokens, if it is empty.
    pub(super) fn clear(&mut self, pool: usize, region: Range<usize>, copies: &mut Vec<SlotCopy>) {
        let blocks = &self.pools[pool];
        let is_cached =
            |at: &usize| blocks.is_unused(*at as BlockId) && blocks.node(*at as BlockId).is_some();
        let cached: Vec<usize> = region.clone().filter(is_cached).collect();
        if cached.is_empty() {
            return;
        }
        // Nothing is moved to blocks of the region.
        let blocks = &mut self.pools[pool];
        let mut hidden: Vec<usize> = region.filter(|at| blocks.hide(*at)).collect();
        for block in cached {
            let Some(node) = self.pools[pool].node(block as BlockId) else {
                continue;
            };
            let before = self.tree.part(self.tree.parent(node), pool);
            let after = before.map(|before| before as usize + 1);
            let after = after.filter(|at| self.pools[pool].hide(*at));
            // The first half of an empty run is left to the sequence before it.
            let Some(to) = after.or_else(|| self.pools[pool].hide_middle()) else {
                break;
            };
            let n = self.tree.n_tokens(node);
            push_copy(copies, pool, block as BlockId, to as BlockId, n);
            self.pools[pool].transfer(block as BlockId, to as BlockId, &mut self.tree, pool);
            self.pools[pool].hide(block);
            hidden.push(block);
        }
        hidden.into_iter().for_each(|at| self.pools[pool].show(at));
    }

    /// The best place for a run of `n` blocks that takes over the contents of blocks `sources`, where no home is left for
    /// it. It has room for a home if possible, and needs few copies and evictions.
    pub(super) fn place(&self, pool: usize, n: usize, sources: &[BlockId]) -> Option<usize> {
        let room = self.room(pool, None);
        let n_blocks = self.pools[pool].len();
        // The middle of the free blocks between two runs, so that both have room.
        let is_begin = |block: &usize| room[*block] > 0 && (*block == 0 || room[block - 1] == 0);
        let between = (0..n_blocks).filter(is_begin).map(|begin| match begin {
            0 => 0,
            _ => begin + room[begin].saturating_sub(n) / 2,
        });
        let homes = (0..n_blocks).step_by(self.home_len(pool));
        let in_place = sources.first().map(|block| *block as usize);
        let in_place = in_place.filter(|block| *block < n_blocks);
        let fits = |start: &usize| room[*start] >= n && is_apart(*start, n, sources);
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
        let all = homes.chain(between).chain(in_place);
        all.filter(fits).min_by_key(cost)
    }

    /// When the cached contents of a block were last used; none if it has none.
    fn last_used(&self, pool: usize, block: usize) -> Option<u64> {
        let node = self.pools[pool].node(block as BlockId);
        node.map(|node| self.tree.last_used(node))
    }

    /// Moves a run to blocks that are unused or its own: those that do not lie there yet, in the order of its tokens.
    fn move_run(
        &mut self,
        pool: usize,
        id: SequenceId,
        start: usize,
        copies: &mut Vec<SlotCopy>,
    ) -> Option<()> {
        let left = self.sequences.get(&id)?.tables[pool].clone();
        let own = start..start + left.len();
        self.clear(pool, own.clone(), copies);
        let is_outside = |at: &usize| !own.contains(&(left[*at] as usize));
        let outside: Vec<usize> = (0..left.len()).filter(is_outside).collect();
        let free = own.map(|block| block as BlockId);
        let free: Vec<BlockId> = free.filter(|block| !left.contains(block)).collect();
        for (at, to) in outside.into_iter().zip(free) {
            self.pools[pool].claim(to, &mut self.tree, pool);
            self.relocate(pool, id, (at, to), copies)?;
        }
        Some(())
    }

    /// Moves blocks from the end of a run to blocks between its others that were given back.
    fn close(&mut self, pool: usize, id: SequenceId, copies: &mut Vec<SlotCopy>) -> Option<()> {
        loop {
            let table = &self.sequences.get(&id)?.tables[pool];
            let Some(span) = span_of(table).filter(|span| span.len() > table.len()) else {
                return Some(());
            };
            let last = (span.end - 1) as BlockId;
            let at = table.iter().position(|block| *block == last)?;
            let mut blocks = span.map(|block| block as BlockId);
            let to = blocks.find(|block| self.pools[pool].is_unused(*block))?;
            self.pools[pool].claim(to, &mut self.tree, pool);
            self.relocate(pool, id, (at, to), copies)?;
        }
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
        let mut ids: Vec<SequenceId> = self.sequences.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            self.close(pool, id, copies)?;
        }
        let runs = self.sequences.iter().map(|(id, s)| (*id, &s.tables[pool]));
        let runs = runs.filter(|(of, table)| *of == id || !table.is_empty());
        // A run without blocks is the last one.
        let runs = runs.map(|(id, table)| {
            let start = span_of(table).map_or(usize::MAX, |span| span.start);
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
            self.move_run(pool, of, to, copies)?;
        }
        end
    }

    /// Gives a sequence `n` more blocks of a pool with a window. Blocks of its home come last.
    fn extend_window(&mut self, pool: usize, id: SequenceId, n: usize) -> Option<()> {
        let home = match self.sequences.get(&id)?.home {
            Some(home) => home,
            None => self.least_used_home(pool),
        };
        self.sequences.get_mut(&id)?.home = Some(home);
        let mut blocks = Vec::with_capacity(n);
        for _ in 0..n {
            blocks.push(self.take_near(pool, home * self.home_len(pool))?);
        }
        let table = &mut self.sequences.get_mut(&id)?.tables[pool];
        table.extend(blocks.into_iter().rev());
        Some(())
    }

    /// The home with the fewest blocks in use, where all homes are taken.
    pub(super) fn least_used_home(&self, pool: usize) -> usize {
        let (blocks, len) = (&self.pools[pool], self.home_len(pool));
        let n_used = |home: &usize| {
            let mut region = home * len..(home + 1) * len;
            region
                .by_ref()
                .filter(|b| !blocks.is_unused(*b as BlockId))
                .count()
        };
        (0..self.n_whole_homes()).min_by_key(n_used).unwrap_or(0)
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
        let nearest = |among: Range<usize>| {
            let unused = among.filter(|block| blocks.is_unused(*block as BlockId));
            unused.min_by_key(|b| (distance(*b), self.last_used(pool, *b), *b))
        };
        let of_home = nearest(home..region.end.min(blocks.len()));
        let found = of_home.or_else(|| nearest(0..blocks.len()))?;
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

/// From the first block of a run to the end of its last one.
pub(super) fn span_of(table: &[BlockId]) -> Option<Range<usize>> {
    let blocks = || table.iter().filter(|block| **block != OUT_OF_WINDOW);
    let (first, last) = (blocks().min()?, blocks().max()?);
    Some(*first as usize..*last as usize + 1)
}

/// Whether a run of `n` blocks from `start` on takes over `sources`, in their order, without writing to one that is read
/// later.
fn is_apart(start: usize, n: usize, sources: &[BlockId]) -> bool {
    let mut sources = (start..).zip(sources);
    sources.all(|(to, from)| {
        let from = *from as usize;
        from >= to || !(start..start + n).contains(&from)
    })
}

/// Adds a copy of the first `n` slots of a block, to the last copy if it goes on there.
fn push_copy(copies: &mut Vec<SlotCopy>, pool: usize, from: BlockId, to: BlockId, n: usize) {
    let [from, to] = [from, to].map(|block| block as usize * BLOCK);
    match copies.last_mut() {
        Some(last)
            if (last.pool, last.from + last.n, last.to + last.n) == (pool, from, to)
                && last.from.abs_diff(last.to) >= last.n + n =>
        {
            last.n += n;
        }
        _ => copies.push(SlotCopy { pool, from, to, n }),
    }
}
