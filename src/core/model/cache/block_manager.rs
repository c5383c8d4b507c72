//! The KV block manager: the block table of every sequence, over all pools.
//!
//! A sequence's own blocks are committed to the prefix cache when it continues after them or ends. Until then its
//! last pass can be rolled back.

use std::ops::Range;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::blocks::cache::CacheOptions as Visibility;
use crate::plan::KeyTokens;

use super::super::media::SequenceMedia;
use super::blocks::BlockPool;
use super::kv_events::{BlockAdapter, KvEvent};
use super::prefix::{NodeId, PrefixTree, ROOT};
use super::{AfterCopies, BLOCK, BlockId, NOBODY, PoolBlock, SequenceId, SlotCopy};

type TokenPosition = (SequenceId, u32);

/// The entry of a block table for a block that has left the attention window.
pub(super) const OUT_OF_WINDOW: BlockId = BlockId::MAX;

/// A KV group: the layers with the same attention view, which share a pool.
#[derive(Clone, Debug)]
pub(crate) struct KvGroup {
    pub(crate) n_slots: usize,
    /// The positions that a query attends to.
    pub(crate) rule: Visibility,
    /// The tokens that the keys belong to.
    pub(crate) keys: KeyTokens,
}

#[derive(Clone, Debug)]
pub(super) struct CachedSequence {
    pub(super) tokens: Vec<u32>,
    pub(super) tables: Vec<Vec<BlockId>>,
    /// Number of blocks at the start of each table that have left the window.
    pub(super) n_out_of_window: Vec<usize>,
    /// The number of its home in each pool, if blocks lie in runs.
    pub(super) home: Option<usize>,
    /// The node of the last committed block, and the number of committed blocks.
    pub(super) node: NodeId,
    pub(super) n_known: usize,
    /// Row of its recurrent state.
    pub(super) row: Option<BlockId>,
    /// Whether its next pass keeps the state before it.
    pub(super) holds: bool,
    /// The row with the state before its last pass, and the number of positions then, if that is kept.
    pub(super) held: Option<(BlockId, usize)>,
    /// Whether its last pass was one token, or one that may be taken back.
    was_decode: bool,
    /// Row and node of the last state committed while it decodes. Only the latest one stays cached.
    mark: Option<(BlockId, NodeId)>,
}

impl CachedSequence {
    /// A sequence that starts at a node.
    pub(super) fn new(n_pools: usize, node: NodeId) -> Self {
        Self {
            tokens: Vec::new(),
            tables: vec![Vec::new(); n_pools],
            n_out_of_window: vec![0; n_pools],
            home: None,
            node,
            n_known: 0,
            row: None,
            holds: false,
            held: None,
            was_decode: false,
            mark: None,
        }
    }

    pub(super) fn slot(&self, pool: usize, position: u32) -> usize {
        let position = position as usize;
        self.tables[pool][position / BLOCK] as usize * BLOCK + position % BLOCK
    }

    fn key(&self, block: usize) -> Option<&[u32; BLOCK]> {
        let tokens = self.tokens.get(block * BLOCK..(block + 1) * BLOCK)?;
        tokens.try_into().ok()
    }
}

/// The rows with the recurrent states of the sequences of a pass, in the order of the sequences.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PassStateRows {
    /// Rows that are read. A new sequence reads the row of zeros.
    pub(crate) read: Vec<usize>,
    /// Rows that are written; empty if no state is stored.
    pub(crate) write: Vec<usize>,
}

/// Slots and rows that were allocated for a pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Allocation {
    /// Slot of each token in each pool.
    pub(crate) slots: Vec<Vec<usize>>,
    /// Rows of the recurrent states.
    pub(crate) rows: PassStateRows,
}

/// The resource that is exhausted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shortage {
    Slots,
    Rows,
}

/// The block tables of the sequences of a pass, in one pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BlockTables {
    /// For each token: the start of its sequence in `blocks`, its position, the first position that it attends to,
    /// and the end of those positions.
    pub(crate) queries: Vec<[i32; 4]>,
    /// Blocks of the sequences, one sequence after another.
    pub(crate) blocks: Vec<i32>,
}

/// The block tables of all sequences, and the prefix cache.
#[derive(Clone, Debug)]
pub(crate) struct BlockManager {
    pub(super) groups: Vec<KvGroup>,
    pub(super) pools: Vec<BlockPool>,
    /// Rows of recurrent states; none if the model has none.
    pub(super) rows: Option<BlockPool>,
    pub(super) tree: PrefixTree,
    pub(super) sequences: FxHashMap<SequenceId, CachedSequence>,
    /// The root nodes of sequences with a prefix key of their own; each is pinned.
    roots: FxHashMap<SequenceId, NodeId>,
    /// The root node of the other sequences.
    root: NodeId,
    /// Length of the source at the start of sequences that set their own.
    n_source: FxHashMap<SequenceId, u32>,
    /// Length of the source of the other sequences.
    n_source_default: u32,
    /// The media of sequences.
    media: FxHashMap<SequenceId, Arc<SequenceMedia>>,
    /// Whether no result of a token depends on later tokens.
    pub(super) is_causal: bool,
    /// Number of homes of each pool, if the blocks of a sequence lie in one run; none if they may lie anywhere.
    pub(super) n_homes: Option<usize>,
    /// Whether a block after those of each pool takes what rows of no sequence write.
    pub(super) has_trash: bool,
    /// Whether a run may lie elsewhere than at a home.
    pub(super) is_crowded: bool,
    /// Whether a sequence has ended since runs were moved to homes.
    pub(super) has_ended: bool,
}

impl BlockManager {
    /// A manager for these groups, each with its own pool, and for `n_rows` states if the model has any.
    pub(crate) fn new(groups: Vec<KvGroup>, n_rows: Option<usize>) -> Self {
        let pool = |group: &KvGroup| BlockPool::new(group.n_slots / BLOCK);
        Self {
            pools: groups.iter().map(pool).collect(),
            rows: n_rows.map(BlockPool::new),
            tree: PrefixTree::new(groups.len() + 1),
            sequences: FxHashMap::default(),
            roots: FxHashMap::default(),
            root: ROOT,
            n_source: FxHashMap::default(),
            n_source_default: 0,
            media: FxHashMap::default(),
            is_causal: groups
                .iter()
                .filter(|group| group.keys == KeyTokens::Tokens)
                .all(|group| group.rule.causal),
            n_homes: None,
            has_trash: false,
            is_crowded: false,
            has_ended: false,
            groups,
        }
    }

    /// A manager that keeps the blocks of a sequence in one run; `n_seqs` runs have a home of their own.
    pub(crate) fn in_runs(groups: Vec<KvGroup>, n_rows: Option<usize>, n_seqs: usize) -> Self {
        Self {
            n_homes: Some(n_seqs.max(1)),
            ..Self::new(groups, n_rows)
        }
    }

    /// A manager whose passes may have rows of no sequence ([`NOBODY`]), which write to a block after those of each pool.
    pub(crate) fn with_trash(self) -> Self {
        Self {
            has_trash: true,
            ..self
        }
    }

    /// Whether a block of a pool takes what rows of no sequence write.
    pub(crate) fn is_trash(&self, (pool, block): PoolBlock) -> bool {
        block >= self.pools[pool].len()
    }

    /// Sets the prefix key and the source length of sequences that set none of their own. To be called before a
    /// sequence starts.
    pub(crate) fn set_default_key(&mut self, key: &[u32], n_source: u32) {
        let old = std::mem::replace(&mut self.root, self.tree.root_of(key));
        self.tree.pin(self.root);
        self.tree.unpin(old);
        self.n_source_default = n_source;
    }

    /// Sets the prefix key and the source length of later sequences with this id. They share only prefixes with the
    /// same key. Different sources have different keys.
    pub(crate) fn set_prefix_key(&mut self, id: SequenceId, key: &[u32], n_source: u32) {
        self.n_source.insert(id, n_source);
        let root = self.tree.root_of(key);
        self.tree.pin(root);
        if let Some(old) = self.roots.insert(id, root) {
            self.tree.unpin(old);
        }
    }

    /// Notes from now on which blocks become cached and which are not any more. To be called while nothing is cached. A block
    /// is cached while it has what every later token attends to; if there is no such group, what the first group has, or the
    /// state.
    pub(crate) fn log_events(&mut self) {
        let is_whole = |group: &KvGroup| {
            group.keys == KeyTokens::Tokens && group.rule.first_visible(u32::MAX - 1) == 0
        };
        let groups = self.groups.iter().enumerate();
        let parts = groups.filter(|(_, group)| is_whole(group));
        let parts: Vec<usize> = parts.map(|(part, _)| part).collect();
        let parts = if parts.is_empty() { vec![0] } else { parts };
        self.tree.log_events(parts);
    }

    pub(crate) fn logs_events(&self) -> bool {
        self.tree.logs_events()
    }

    /// Announces the blocks of texts with this prefix key, which are computed with these adapters and nothing else.
    pub(crate) fn announce(&mut self, key: &[u32], adapter: Option<BlockAdapter>) {
        let root = self.tree.root_of(key);
        self.tree.announce(root, adapter);
    }

    /// The changes since this was called before.
    pub(crate) fn take_events(&mut self) -> Vec<KvEvent> {
        self.tree.take_events()
    }

    /// The node where a sequence starts.
    pub(super) fn root(&self, id: SequenceId) -> NodeId {
        self.roots.get(&id).copied().unwrap_or(self.root)
    }

    /// The index of the state among the parts of a node.
    pub(super) fn state_part(&self) -> usize {
        self.groups.len()
    }

    /// Length of the source at the start of a sequence. Its tokens follow the source.
    pub(crate) fn n_source(&self, id: SequenceId) -> u32 {
        let own = self.n_source.get(&id).copied();
        own.unwrap_or(self.n_source_default)
    }

    /// The positions that the token at `position` attends to in a group, in a sequence of `len` positions. The token itself counts
    /// before it is read too.
    pub(super) fn visible(
        &self,
        group: usize,
        (id, position): TokenPosition,
        len: u32,
    ) -> Range<u32> {
        let (n, KvGroup { rule, keys, .. }) = (self.n_source(id), &self.groups[group]);
        let len = len.max(position.saturating_add(1));
        match keys {
            KeyTokens::Tokens => {
                let (position, len) = (position.saturating_sub(n), len.saturating_sub(n));
                let seen = rule.visible(position, len);
                let (start, end) = match self.around(group, id, position) {
                    None => (seen.start, seen.end),
                    Some(around) => (
                        seen.start.min(around.start),
                        seen.end.max(around.end.min(len)),
                    ),
                };
                start + n..end + n
            }
            KeyTokens::Source | KeyTokens::Pass => 0..n,
        }
    }

    /// The positions that a token of a medium attends to besides those of the rule of its group.
    pub(crate) fn around(&self, group: usize, id: SequenceId, position: u32) -> Option<Range<u32>> {
        let has_window = self.rule(group).size > 0;
        self.media.get(&id)?.around(position, has_window)
    }

    /// Sets or forgets the media of a sequence.
    pub(crate) fn set_media(&mut self, id: SequenceId, media: Option<Arc<SequenceMedia>>) {
        match media {
            Some(media) => self.media.insert(id, media),
            None => self.media.remove(&id),
        };
    }

    /// The rule for what the queries of a group attend to.
    pub(crate) fn rule(&self, group: usize) -> &Visibility {
        &self.groups[group].rule
    }

    pub(crate) fn keys(&self, group: usize) -> KeyTokens {
        self.groups[group].keys
    }

    pub(crate) fn n_groups(&self) -> usize {
        self.groups.len()
    }

    /// Number of positions that are available in every pool; none if there is no pool.
    #[cfg(test)]
    pub(crate) fn free(&self) -> Option<usize> {
        self.free_with(&[])
    }

    /// Whether results of a token depend on earlier tokens only, so that sequences can share them.
    pub(crate) fn is_shared(&self) -> bool {
        self.is_causal
    }

    /// The position of the next token of a sequence.
    pub(crate) fn next(&self, sequence: SequenceId) -> u32 {
        self.sequences
            .get(&sequence)
            .map_or(0, |s| s.tokens.len() as u32)
    }

    /// Commits the full blocks of a sequence to the prefix cache.
    fn commit(&mut self, id: SequenceId) {
        if !self.is_causal {
            return;
        }
        let Some(sequence) = self.sequences.get_mut(&id) else {
            return;
        };
        while let Some(key) = sequence.key(sequence.n_known) {
            let node = self.tree.grow(sequence.node, key);
            move_to(node, sequence, &mut self.tree, &mut self.pools);
        }
        self.commit_state(id);
    }

    pub(crate) fn token(&self, id: SequenceId, position: u32) -> Option<u32> {
        let tokens = &self.sequences.get(&id)?.tokens;
        tokens.get(position as usize).copied()
    }

    /// Commits the tokens after the last full block of a sequence that ends. Not with recurrent states: they are
    /// cached only at block ends, and a sequence cannot continue without one.
    fn commit_tail(&mut self, id: SequenceId) {
        let Some(sequence) = self.sequences.get_mut(&id) else {
            return;
        };
        let end = &sequence.tokens[sequence.n_known * BLOCK..];
        if self.is_causal && self.rows.is_none() && !end.is_empty() {
            let node = self.tree.grow_end(sequence.node, end);
            move_to(node, sequence, &mut self.tree, &mut self.pools);
        }
    }

    /// Commits the state after the last token of a sequence, if its block ends there.
    fn commit_state(&mut self, id: SequenceId) {
        let part = self.state_part();
        let (Some(rows), Some(sequence)) = (&mut self.rows, self.sequences.get_mut(&id)) else {
            return;
        };
        let Some(row) = sequence.row else { return };
        let node = sequence.node;
        let is_whole = sequence.n_known * BLOCK == sequence.tokens.len() && sequence.n_known > 0;
        if !is_whole || rows.node(row).is_some() || self.tree.part(node, part).is_some() {
            return;
        }
        rows.remember(row, node);
        self.tree.set(node, part, row);
        if !sequence.was_decode {
            return;
        }
        if let Some((old, node)) = sequence.mark.replace((row, node))
            && rows.node(old) == Some(node)
        {
            rows.forget(old, &mut self.tree, part);
        }
    }

    pub(super) fn commit_all(&mut self) {
        let ids: Vec<SequenceId> = self.sequences.keys().copied().collect();
        for id in ids {
            self.commit(id);
        }
    }

    /// Gives sequences the blocks for tokens at these places, or nothing if there is not room for all. Blocks that these
    /// and later tokens do not attend to are freed first.
    pub(crate) fn prepare(
        &mut self,
        places: &[(SequenceId, u32)],
    ) -> Result<AfterCopies<()>, Shortage> {
        self.prepare_with(places, |_, _| Some(()))
    }

    /// [`Self::prepare`] for sequences with their numbers of tokens, which get rows from `take_rows` once they exist.
    fn prepare_with<T>(
        &mut self,
        places: &[(SequenceId, u32)],
        take_rows: impl FnOnce(&mut Self, &[(SequenceId, usize)]) -> Option<T>,
    ) -> Result<AfterCopies<T>, Shortage> {
        let counts = counts(places);
        self.pass_on(&counts);
        self.give(places, &counts, take_rows)
    }

    /// Commits the full blocks of sequences, and frees those that no later token attends to.
    pub(super) fn pass_on(&mut self, counts: &[(SequenceId, usize)]) {
        for (id, _) in counts {
            self.commit(*id);
            self.free_unseen(*id);
        }
    }

    /// Gives sequences the blocks for their numbers of tokens, or nothing if there is not room for all.
    pub(super) fn give<T>(
        &mut self,
        places: &[(SequenceId, u32)],
        counts: &[(SequenceId, usize)],
        take_rows: impl FnOnce(&mut Self, &[(SequenceId, usize)]) -> Option<T>,
    ) -> Result<AfterCopies<T>, Shortage> {
        let missing = |this: &Self, (id, n): &(SequenceId, usize), pool: usize| {
            let end = (this.next(*id) as usize + n).div_ceil(BLOCK);
            let sequence = this.sequences.get(id);
            end.saturating_sub(sequence.map_or(0, |sequence| sequence.tables[pool].len()))
        };
        for pool in 0..self.pools.len() {
            let needed = counts.iter().map(|count| missing(self, count, pool));
            if self.pools[pool].available() < needed.sum() {
                return Err(Shortage::Slots);
            }
        }
        for (id, _) in counts {
            if !self.sequences.contains_key(id) {
                let root = self.root(*id);
                self.tree.pin(root);
                let new = CachedSequence::new(self.pools.len(), root);
                self.sequences.insert(*id, new);
            }
        }
        let Some(rows) = take_rows(self, counts) else {
            self.give_back(places);
            return Err(Shortage::Rows);
        };
        let mut copies = Vec::new();
        self.tidy(&mut copies).ok_or(Shortage::Slots)?;
        for count in counts {
            for pool in 0..self.pools.len() {
                let n = missing(self, count, pool);
                self.extend(pool, count.0, n, &mut copies)
                    .ok_or(Shortage::Slots)?;
            }
        }
        Ok(AfterCopies::new(rows, copies))
    }

    /// Allocates a slot for each token in every pool and a row for each sequence, or nothing if there is not room
    /// for all. The positions of each sequence must be consecutive.
    pub(crate) fn allocate(
        &mut self,
        places: &[(SequenceId, u32)],
        tokens: &[u32],
    ) -> Result<AfterCopies<Allocation>, Shortage> {
        let prepared = self.prepare_with(places, Self::take_rows)?;
        self.append(places, tokens);
        let slots = self.slots(places);
        Ok(prepared.map(|rows| Allocation { slots, rows }))
    }

    pub(super) fn append(&mut self, places: &[(SequenceId, u32)], tokens: &[u32]) {
        for ((id, _), token) in places.iter().zip(tokens) {
            if let Some(sequence) = self.sequences.get_mut(id) {
                sequence.tokens.push(*token);
            }
        }
    }

    /// The slot of each place in every pool. Sequences have the blocks for them.
    pub(crate) fn slots(&self, places: &[(SequenceId, u32)]) -> Vec<Vec<usize>> {
        let mut slots = vec![Vec::with_capacity(places.len()); self.pools.len()];
        for &(id, position) in places {
            let sequence = self.sequences.get(&id);
            for (i, (slots, group)) in slots.iter_mut().zip(&self.groups).enumerate() {
                // The row of nobody has a slot after all others.
                let nobody = group.n_slots + slots.len() % BLOCK;
                slots.push(sequence.map_or(nobody, |sequence| sequence.slot(i, position)));
            }
        }
        slots
    }

    /// Gives a sequence `n` more blocks of a pool. The caller has checked that so many are available.
    fn extend(
        &mut self,
        pool: usize,
        id: SequenceId,
        n: usize,
        copies: &mut Vec<SlotCopy>,
    ) -> Option<()> {
        if self.n_homes.is_some() {
            return self.extend_run(pool, id, n, copies);
        }
        let table = &mut self.sequences.get_mut(&id)?.tables[pool];
        for _ in 0..n {
            table.push(self.pools[pool].take(&mut self.tree, pool)?);
        }
        Some(())
    }

    /// Takes the rows that the sequences read and write; each sequence comes with its number of tokens. Nothing
    /// changes if there are not enough. A row that others depend on is only read, and another one is written.
    fn take_rows(&mut self, sequences: &[(SequenceId, usize)]) -> Option<PassStateRows> {
        let mut out = PassStateRows::default();
        let part = self.state_part();
        let Some(rows) = &mut self.rows else {
            return Some(out);
        };
        let nothing = rows.len();
        let row_of = |id: &SequenceId| self.sequences.get(id).and_then(|s| s.row);
        let needs_one =
            |rows: &BlockPool, row: Option<BlockId>| row.is_none_or(|row| rows.n_users(row) > 1);
        let ids = sequences.iter().map(|(id, _)| id);
        let needed = ids.clone().filter(|id| needs_one(rows, row_of(id))).count();
        if rows.available() < needed {
            return None;
        }
        for id in ids {
            let held = self.sequences.get_mut(id).and_then(|s| s.held.take());
            held.into_iter().for_each(|(row, _)| rows.leave(row));
        }
        let mut spare = rows.available().checked_sub(needed)?;
        for (id, n_tokens) in sequences {
            let sequence = self.sequences.get_mut(id)?;
            let old = sequence.row;
            let holds = std::mem::take(&mut sequence.holds);
            sequence.was_decode = *n_tokens == 1 || holds;
            // Without a spare row the pass cannot be taken back, but it can run.
            if let Some(row) = old.filter(|_| holds && (needs_one(rows, old) || spare > 0)) {
                spare -= usize::from(!needs_one(rows, old));
                let new = rows.take(&mut self.tree, part)?;
                sequence.held = Some((row, sequence.tokens.len()));
                sequence.row = Some(new);
                out.read.push(row as usize);
                out.write.push(new as usize);
                continue;
            }
            out.read.push(old.map_or(nothing, |row| row as usize));
            let row = match old {
                Some(row) if !rows.is_shared(row) => row,
                Some(row) if spare == 0 && !needs_one(rows, old) => {
                    rows.forget(row, &mut self.tree, part);
                    row
                }
                _ => {
                    spare -= usize::from(!needs_one(rows, old));
                    let new = rows.take(&mut self.tree, part)?;
                    old.into_iter().for_each(|row| rows.leave(row));
                    new
                }
            };
            sequence.row = Some(row);
            out.write.push(row as usize);
        }
        Some(out)
    }

    /// Frees the blocks that no query of a sequence attends to from its next position on.
    fn free_unseen(&mut self, id: SequenceId) {
        let Some(sequence) = self.sequences.get_mut(&id) else {
            return;
        };
        let next = sequence.tokens.len() as u32;
        for (i, pool) in self.pools.iter_mut().enumerate() {
            let first = self.groups[i].rule.first_visible(next) as usize / BLOCK;
            let table = &mut sequence.tables[i];
            for block in table
                .iter_mut()
                .take(first)
                .skip(sequence.n_out_of_window[i])
            {
                pool.leave(std::mem::replace(block, OUT_OF_WINDOW));
            }
            sequence.n_out_of_window[i] = sequence.n_out_of_window[i].max(first.min(table.len()));
        }
    }

    /// Rolls back the positions of a failed pass. Recurrent states of its sequences are lost.
    pub(crate) fn roll_back(&mut self, places: &[(SequenceId, u32)]) {
        for (id, n) in counts(places) {
            if self.rows.is_some() {
                self.drop_state(id);
                self.release(id);
            } else {
                let from = (self.next(id) as usize).saturating_sub(n);
                self.truncate(id, from);
                if from == 0 {
                    self.release(id);
                }
            }
        }
    }

    /// Frees the blocks of sequences that were given for tokens of these places and that no pass has filled.
    pub(crate) fn give_back(&mut self, places: &[(SequenceId, u32)]) {
        for (id, _) in counts(places) {
            match self.next(id) {
                0 => self.release(id),
                len => self.truncate(id, len as usize),
            }
        }
    }

    /// Drops the state of a sequence, which does not match its tokens.
    fn drop_state(&mut self, id: SequenceId) {
        let Some(sequence) = self.sequences.get_mut(&id) else {
            return;
        };
        sequence.tokens.truncate(sequence.n_known * BLOCK);
        let held = sequence.held.take().map(|(row, _)| row);
        if let Some(rows) = &mut self.rows {
            let both = sequence.row.take().into_iter().chain(held);
            both.for_each(|row| rows.leave(row));
        }
    }

    /// Shortens a sequence to `len` positions and frees the blocks after them. Committed blocks must stay whole.
    pub(crate) fn truncate(&mut self, id: SequenceId, len: usize) {
        let Some(sequence) = self.sequences.get_mut(&id) else {
            return;
        };
        sequence.tokens.truncate(len);
        for (table, pool) in sequence.tables.iter_mut().zip(&mut self.pools) {
            for block in table.drain(len.div_ceil(BLOCK).min(table.len())..) {
                if block != OUT_OF_WINDOW {
                    pool.leave(block);
                }
            }
        }
    }

    /// Gives up the blocks and the row of states of an ended sequence.
    pub(super) fn leave(&mut self, sequence: &CachedSequence) {
        for (table, pool) in sequence.tables.iter().zip(&mut self.pools) {
            for block in table.iter().filter(|block| **block != OUT_OF_WINDOW) {
                pool.leave(*block);
            }
        }
        let held = sequence.held.map(|(row, _)| row);
        if let Some(rows) = &mut self.rows {
            let both = sequence.row.into_iter().chain(held);
            both.for_each(|row| rows.leave(row));
        }
    }

    /// Keeps the state of a sequence before its next pass, so that the pass can be taken back ([`Self::forget`]), if a row is left.
    pub(crate) fn hold(&mut self, id: SequenceId) {
        if let Some(sequence) = self.sequences.get_mut(&id) {
            sequence.holds = self.rows.is_some();
        }
    }

    /// Takes the last pass of a sequence back, if its state before it is kept and all positions before `from` are older.
    pub(super) fn take_back(&mut self, id: SequenceId, from: usize) -> Option<usize> {
        let sequence = self.sequences.get_mut(&id)?;
        let (row, len) = sequence.held.filter(|(_, len)| *len <= from)?;
        sequence.held = None;
        let newer = sequence.row.replace(row);
        let rows = self.rows.as_mut()?;
        newer.into_iter().for_each(|row| rows.leave(row));
        self.truncate(id, len);
        Some(len)
    }

    /// Ends a sequence. Its blocks stay cached while there is room.
    pub(crate) fn release(&mut self, id: SequenceId) {
        self.commit(id);
        self.commit_tail(id);
        self.remember_again(id);
        let Some(sequence) = self.sequences.remove(&id) else {
            return;
        };
        self.has_ended = true;
        self.leave(&sequence);
        self.tree.touch(sequence.node);
        self.tree.unpin(sequence.node);
    }

    /// Ends all sequences and removes their blocks from the prefix cache, because the contents do not match the
    /// tokens.
    pub(crate) fn abandon(&mut self) {
        for (_, sequence) in std::mem::take(&mut self.sequences) {
            for (i, (table, pool)) in sequence.tables.iter().zip(&mut self.pools).enumerate() {
                for block in table.iter().filter(|block| **block != OUT_OF_WINDOW) {
                    pool.forget(*block, &mut self.tree, i);
                }
            }
            self.leave(&sequence);
            self.tree.unpin(sequence.node);
        }
    }

    /// The block tables of the sequences of a pass, in one pool.
    pub(crate) fn table(&self, pool: usize, queries: &[(SequenceId, u32)]) -> BlockTables {
        let mut out = BlockTables::default();
        let mut starts: Vec<(SequenceId, usize)> = Vec::new();
        for &(id, position) in queries {
            let Some(sequence) = self.sequences.get(&id) else {
                continue;
            };
            let start = match starts.iter().find(|(known, _)| *known == id) {
                Some((_, start)) => *start,
                None => {
                    let start = out.blocks.len();
                    let blocks = sequence.tables[pool].iter().map(|block| *block as i32);
                    out.blocks.extend(blocks);
                    starts.push((id, start));
                    start
                }
            };
            let len = sequence.tokens.len() as u32;
            let visible = self.visible(pool, (id, position), len);
            let [from, to] = [visible.start, visible.end].map(|p| p as i32);
            out.queries.push([start as i32, position as i32, from, to]);
        }
        out
    }
}

/// Moves a sequence to the node of its next block, which caches the blocks of the sequence.
fn move_to(
    node: NodeId,
    sequence: &mut CachedSequence,
    tree: &mut PrefixTree,
    pools: &mut [BlockPool],
) {
    tree.pin(node);
    for (i, pool) in pools.iter_mut().enumerate() {
        let block = sequence.tables[i][sequence.n_known];
        if block != OUT_OF_WINDOW && tree.part(node, i).is_none() {
            pool.remember(block, node);
            tree.set(node, i, block);
        }
    }
    tree.unpin(sequence.node);
    sequence.node = node;
    sequence.n_known += 1;
}

/// Number of tokens of each sequence, in the order of their first token.
pub(super) fn counts(places: &[(SequenceId, u32)]) -> Vec<(SequenceId, usize)> {
    let mut counts: Vec<(SequenceId, usize)> = Vec::new();
    let mut at_of: FxHashMap<SequenceId, usize> = FxHashMap::default();
    for (id, _) in places.iter().filter(|(id, _)| *id != NOBODY) {
        let at = *at_of.entry(*id).or_insert(counts.len());
        match counts.get_mut(at) {
            Some((_, n)) => *n += 1,
            None => counts.push((*id, 1)),
        }
    }
    counts
}
