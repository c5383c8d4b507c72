//! Finds the cached prefix of a prompt, and starts a sequence after it.

use crate::blocks::cache::CacheOptions as Visibility;

use super::block_manager::{BlockManager, CachedSequence, KvGroup, OUT_OF_WINDOW};
use super::blocks::BlockPool;
use super::prefix::{NodeId, ROOT};
use super::{AfterCopies, BLOCK, BlockId, PoolBlock, SequenceId, SlotCopy};

/// Maximum number of prefix keys under which a prefix is looked for to say why it was not found.
const N_ROOTS: usize = 64;

/// The reason why not more of a prompt was cached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheMiss {
    /// All full blocks before the last token are cached.
    #[default]
    None,
    /// No cached prefix starts with the first token.
    Nothing,
    /// The most similar cached prefix has another token at this position.
    Differs { at: usize },
    /// Of the most similar cached prefix, nothing is cached from this position on.
    Ends { at: usize },
    /// The tokens were cached, and their blocks were evicted.
    Evicted,
    /// More of the tokens is cached, computed with other adapters, edits or media.
    OtherComputation,
    /// The tokens are cached, but not the keys that the attention window had there.
    WindowPassed,
    /// The tokens are cached, but no recurrent state was stored after them.
    NoState,
    /// The model's keys depend on later tokens.
    NotCausal,
    /// The request does not read the prefix cache, or the model has none.
    Off,
}

impl CacheMiss {
    /// Its name in metrics and responses.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Nothing => "nothing",
            Self::Differs { .. } => "differs",
            Self::Ends { .. } => "ends",
            Self::Evicted => "evicted",
            Self::OtherComputation => "other_computation",
            Self::WindowPassed => "window_passed",
            Self::NoState => "no_state",
            Self::NotCausal => "not_causal",
            Self::Off => "off",
        }
    }

    /// The position from which on tokens are not cached, where the reason has one.
    pub fn at(self) -> Option<usize> {
        match self {
            Self::Differs { at } | Self::Ends { at } => Some(at),
            _ => None,
        }
    }

    /// The reason, with positions counted from `n` on.
    pub(in super::super) fn after(self, n: usize) -> Self {
        match self {
            Self::Differs { at } => Self::Differs {
                at: at.saturating_sub(n),
            },
            Self::Ends { at } => Self::Ends {
                at: at.saturating_sub(n),
            },
            other => other,
        }
    }
}

impl std::fmt::Display for CacheMiss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::None => f.write_str("all whole blocks are cached"),
            Self::Nothing => f.write_str("nothing like it is cached"),
            Self::Differs { at } => write!(f, "the cached prefix differs at token {at}"),
            Self::Ends { at } => write!(f, "the cached prefix ends at token {at}"),
            Self::Evicted => f.write_str("the prefix was cached, but its blocks were evicted"),
            Self::OtherComputation => {
                f.write_str("the prefix is cached with other adapters, edits or media")
            }
            Self::WindowPassed => {
                f.write_str("the prefix is cached, but the attention window has passed")
            }
            Self::NoState => {
                f.write_str("the prefix is cached, but no recurrent state was stored there")
            }
            Self::NotCausal => f.write_str("keys depend on later tokens"),
            Self::Off => f.write_str("the prefix cache is not read"),
        }
    }
}

/// The cached prefix of a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CachedPrefix {
    /// Tokens that need not be computed.
    pub n_cached: usize,
    /// Tokens that were read before, even if their blocks were evicted.
    pub n_known: usize,
    /// Whether the source of the sequence is cached, if it has one.
    pub has_source: bool,
    /// The reason why not more is cached.
    pub miss: CacheMiss,
}

/// The cached prefix of a sequence that starts.
struct PrefixMatch<'a> {
    /// The nodes of the full blocks.
    path: &'a [NodeId],
    /// The last of these nodes, or the root node of the sequence.
    node: NodeId,
    /// A node whose block starts with the next tokens, and the number of these tokens.
    start: Option<(NodeId, usize)>,
    /// The tokens of `path` and `start`.
    tokens: &'a [u32],
}

impl BlockManager {
    /// Removes the positions of a sequence from `from` on. Returns the position at which the sequence continues. The
    /// position is earlier than `from` if others depend on the last block, if positions that `from` attends to are
    /// gone, or if a state would have to be rolled back.
    pub(crate) fn forget(&mut self, id: SequenceId, from: u32) -> AfterCopies<usize> {
        let Some(sequence) = self.sequences.get(&id) else {
            return AfterCopies::new(0, Vec::new());
        };
        let len = sequence.tokens.len();
        let from = (from as usize).min(len);
        if from == len {
            return AfterCopies::new(len, Vec::new());
        }
        let sees_all = |(pool, group): (usize, &KvGroup)| {
            group.rule.first_visible(from as u32) as usize / BLOCK >= sequence.n_out_of_window[pool]
        };
        let is_there = self.groups.iter().enumerate().all(sees_all);
        if from > 0 && is_there && self.rows.is_none() && from >= sequence.n_known * BLOCK {
            self.truncate(id, from);
            return AfterCopies::new(from, Vec::new());
        }
        if let Some(len) = self.take_back(id, from) {
            return AfterCopies::new(len, Vec::new());
        }
        let Some(sequence) = self.sequences.get(&id) else {
            return AfterCopies::new(0, Vec::new());
        };
        let tokens = sequence.tokens[..from].to_vec();
        self.release(id);
        self.resume(id, &tokens).map(|resumed| resumed.n_cached)
    }

    /// Ends a sequence whose cached rows are wrong. Its blocks and those of its prefix do not stay cached, except for
    /// blocks that other sequences use.
    pub(crate) fn discard(&mut self, id: SequenceId) {
        let Some(sequence) = self.sequences.remove(&id) else {
            return;
        };
        self.has_ended = true;
        self.leave(&sequence);
        // The node of the sequence is pinned, so every node up to the root exists.
        let mut node = sequence.node;
        while node != ROOT {
            for (part, pool) in self.pools.iter_mut().chain(&mut self.rows).enumerate() {
                let block = self.tree.part(node, part);
                if let Some(block) = block.filter(|block| pool.is_unused(*block)) {
                    pool.forget(block, &mut self.tree, part);
                }
            }
            node = self.tree.parent(node);
        }
        self.tree.unpin(sequence.node);
    }

    pub(crate) fn blocks_from(&self, id: SequenceId, position: u32) -> Vec<PoolBlock> {
        let Some(sequence) = self.sequences.get(&id) else {
            return Vec::new();
        };
        let of_pool = |(pool, table): (usize, &Vec<BlockId>)| {
            let own = table.iter().skip(position as usize / BLOCK);
            let own = own.filter(|block| **block != OUT_OF_WINDOW);
            own.map(|block| (pool, *block as usize)).collect::<Vec<_>>()
        };
        sequence
            .tables
            .iter()
            .enumerate()
            .flat_map(of_pool)
            .collect()
    }

    /// Ends the sequences that use one of these blocks, and removes the blocks from the prefix cache.
    pub(crate) fn drop_blocks(&mut self, blocks: &[PoolBlock]) {
        let ids: Vec<SequenceId> = self.sequences.keys().copied().collect();
        for id in ids {
            let own = self.blocks_from(id, 0);
            if own.iter().any(|block| blocks.contains(block)) {
                self.discard(id);
            }
        }
        for (pool, block) in blocks {
            if self.is_trash((*pool, *block)) {
                continue;
            }
            self.pools[*pool].forget(*block as BlockId, &mut self.tree, *pool);
        }
    }

    /// Starts a sequence with the cached prefix of its tokens. A sequence that exists continues unchanged.
    pub(crate) fn resume(&mut self, id: SequenceId, tokens: &[u32]) -> AfterCopies<CachedPrefix> {
        if let Some(sequence) = self.sequences.get(&id) {
            let n_cached = sequence.tokens.len();
            let resumed = CachedPrefix {
                n_cached,
                n_known: n_cached,
                miss: CacheMiss::None,
                ..CachedPrefix::default()
            };
            return AfterCopies::new(resumed, Vec::new());
        }
        if !self.is_causal {
            let resumed = CachedPrefix {
                miss: CacheMiss::NotCausal,
                ..CachedPrefix::default()
            };
            return AfterCopies::new(resumed, Vec::new());
        }
        self.commit_all();
        let root = self.root(id);
        let path = self.walk(root, tokens);
        let n_blocks = self.usable(&path);
        let mut miss = self.reason(root, tokens, &path, n_blocks);
        let (read, rest) = tokens[..tokens.len().saturating_sub(1)].split_at(n_blocks * BLOCK);
        let node = path[..n_blocks].last().copied().unwrap_or(root);
        let start = match n_blocks == path.len() {
            true => self.known_start(node, read.len(), rest),
            false => None,
        };
        let known = PrefixMatch {
            path: &path[..n_blocks],
            node,
            start,
            tokens: &tokens[..read.len() + start.map_or(0, |(_, n)| n)],
        };
        self.tree.touch(start.map_or(node, |(start, _)| start));
        let adopted = match known.tokens.is_empty() {
            true => None,
            false => self.adopt(id, &known),
        };
        let (n_cached, copies) = match adopted {
            Some((sequence, copies)) => {
                let n_cached = sequence.tokens.len();
                self.sequences.insert(id, sequence);
                (n_cached, copies)
            }
            None => (0, Vec::new()),
        };
        if n_cached < read.len() {
            miss = CacheMiss::Evicted;
        }
        let resumed = CachedPrefix {
            n_cached,
            n_known: n_cached.max(path.len() * BLOCK),
            has_source: false,
            miss,
        };
        AfterCopies::new(resumed, copies)
    }

    /// The node after `node`, which ends at position `len`, whose block starts with tokens of `rest`, and their
    /// number. None with recurrent states, which belong to the end of a block.
    fn known_start(&self, node: NodeId, len: usize, rest: &[u32]) -> Option<(NodeId, usize)> {
        if self.rows.is_some() {
            return None;
        }
        let is_seen = |pool: usize, n: usize| {
            self.groups[pool].rule.first_visible((len + n) as u32) < (len + n) as u32
        };
        let is_usable = |node, n| {
            let mut pools = 0..self.pools.len();
            pools.all(|pool| self.tree.part(node, pool).is_some() || !is_seen(pool, n))
        };
        self.tree.most_alike(node, rest, is_usable)
    }

    /// The nodes of the full blocks of `tokens` after `root`, as far as they exist. At least one token is left
    /// after them.
    pub(super) fn walk(&self, root: NodeId, tokens: &[u32]) -> Vec<NodeId> {
        let (blocks, _) = tokens[..tokens.len().saturating_sub(1)].as_chunks::<BLOCK>();
        let mut node = root;
        let path = blocks.iter().map_while(|block| {
            node = self.tree.child(node, block)?;
            Some(node)
        });
        path.collect()
    }

    /// Why no more than the first `n_blocks` of the nodes of a path are reused, or why the path is not longer.
    fn reason(&self, root: NodeId, tokens: &[u32], path: &[NodeId], n_blocks: usize) -> CacheMiss {
        if n_blocks < path.len() {
            return self.reason_of_path(path);
        }
        let rest = &tokens[n_blocks * BLOCK..tokens.len().saturating_sub(1).max(n_blocks * BLOCK)];
        let Some((next, _)) = rest.split_first_chunk::<BLOCK>() else {
            return CacheMiss::None;
        };
        let node = path.last().copied().unwrap_or(root);
        if self.tree.was_removed(node, next) {
            return CacheMiss::Evicted;
        }
        let mut others = self.tree.roots(N_ROOTS).into_iter();
        if others.any(|other| other != root && self.walk(other, tokens).len() > path.len()) {
            return CacheMiss::OtherComputation;
        }
        let len = n_blocks * BLOCK;
        match self.tree.most_alike(node, rest, |_, _| true) {
            Some((child, n)) if n == self.tree.n_tokens(child) => CacheMiss::Ends { at: len + n },
            Some((_, n)) => CacheMiss::Differs { at: len + n },
            None if len == 0 => CacheMiss::Nothing,
            None if self.tree.has_children(node) => CacheMiss::Differs { at: len },
            None => CacheMiss::Ends { at: len },
        }
    }

    /// Why not all nodes of a path are reused.
    fn reason_of_path(&self, path: &[NodeId]) -> CacheMiss {
        let has = |pool: usize| move |node: &&NodeId| self.tree.part(**node, pool).is_some();
        for (pool, group) in self.groups.iter().enumerate() {
            let first = group.rule.first_visible((path.len() * BLOCK) as u32) as usize / BLOCK;
            let n_there = path[first.min(path.len())..]
                .iter()
                .filter(has(pool))
                .count();
            if n_there + first < path.len() {
                return match first {
                    0 => CacheMiss::Evicted,
                    _ => CacheMiss::WindowPassed,
                };
            }
        }
        CacheMiss::NoState
    }

    /// The tokens that are cached in the place of the first ones of `tokens` that are not cached: those of the most similar
    /// block. None if nothing is cached there.
    pub(crate) fn cached_instead(&self, id: SequenceId, tokens: &[u32]) -> Option<&[u32]> {
        let root = self.root(id);
        let path = self.walk(root, tokens);
        let node = path.last().copied().unwrap_or(root);
        let rest = &tokens[path.len() * BLOCK..];
        let (child, _) = self.tree.most_alike(node, rest, |_, _| true)?;
        Some(self.tree.tokens(child))
    }

    /// How many nodes of a path can be reused: all positions that the next query attends to, and the state, are
    /// cached.
    fn usable(&self, path: &[NodeId]) -> usize {
        let has_part = |at: usize, part: usize| self.tree.part(path[at], part).is_some();
        let rules = self.groups.iter().map(|group| &group.rule);
        usable_blocks(rules, self.rows.is_some(), path.len(), has_part)
    }

    /// A sequence with the cached prefix; none if there is no room for it.
    fn adopt(
        &mut self,
        id: SequenceId,
        known: &PrefixMatch<'_>,
    ) -> Option<(CachedSequence, Vec<SlotCopy>)> {
        let mut sequence = CachedSequence::new(self.pools.len(), known.node);
        sequence.n_known = known.path.len();
        // Pinned nodes stay when blocks are evicted for the sequence.
        self.tree.pin(known.node);
        known
            .start
            .iter()
            .for_each(|(start, _)| self.tree.pin(*start));
        let copies = match self.n_homes {
            None => self.share_blocks(&mut sequence, known),
            Some(_) => self.take_over(id, &mut sequence, known),
        };
        known
            .start
            .iter()
            .for_each(|(start, _)| self.tree.unpin(*start));
        let Some(copies) = copies else {
            self.tree.unpin(known.node);
            return None;
        };
        sequence.row = self.tree.part(known.node, self.state_part());
        if let (Some(rows), Some(row)) = (&mut self.rows, sequence.row) {
            rows.join(row);
        }
        Some((sequence, copies))
    }

    /// Lets a sequence use the cached full blocks, and a copy of the start of the next one if there is room.
    fn share_blocks(
        &mut self,
        sequence: &mut CachedSequence,
        known: &PrefixMatch<'_>,
    ) -> Option<Vec<SlotCopy>> {
        let n_read = known.path.len() * BLOCK;
        sequence.tokens.extend_from_slice(&known.tokens[..n_read]);
        for (i, pool) in self.pools.iter_mut().enumerate() {
            let first = self.groups[i].rule.first_visible(n_read as u32) as usize / BLOCK;
            sequence.n_out_of_window[i] = first;
            for (at, node) in known.path.iter().enumerate() {
                let block = self.tree.part(*node, i).filter(|_| at >= first);
                if let Some(block) = block {
                    pool.join(block);
                }
                sequence.tables[i].push(block.unwrap_or(OUT_OF_WINDOW));
            }
        }
        let mut copies = Vec::new();
        let Some((start, n)) = known.start else {
            return Some(copies);
        };
        if self.pools.iter().any(|pool| pool.available() < 2) {
            return (!sequence.tokens.is_empty()).then_some(copies);
        }
        for (i, pool) in self.pools.iter_mut().enumerate() {
            let from = self.tree.part(start, i);
            // A block in use cannot be evicted for its own copy.
            from.into_iter().for_each(|block| pool.join(block));
            let to = pool.take(&mut self.tree, i)?;
            from.into_iter().for_each(|block| pool.leave(block));
            sequence.tables[i].push(to);
            copies.extend(from.map(|from| of_block(i, from, to, n)));
        }
        sequence.tokens.extend_from_slice(&known.tokens[n_read..]);
        Some(copies)
    }

    /// Gives a sequence its own blocks with the cached prefix: the cached blocks themselves if nobody uses them,
    /// otherwise copies; none if there is no room.
    fn take_over(
        &mut self,
        id: SequenceId,
        sequence: &mut CachedSequence,
        known: &PrefixMatch<'_>,
    ) -> Option<Vec<SlotCopy>> {
        let sources: Vec<Vec<BlockId>> = (0..self.pools.len())
            .map(|pool| self.sources_of(pool, known))
            .collect::<Option<_>>()?;
        let n: Vec<usize> = sources.iter().map(Vec::len).collect();
        let home = self.choose_home(id, &n, Some(&sources), 0..self.n_whole_homes());
        if home.is_none() && self.has_trash {
            // The prefix lies across the homes that are left. To read it again costs less than a run apart from the others.
            let is_left = self.choose_home(id, &n, None, 0..self.n_whole_homes());
            is_left.is_none().then_some(())?;
        }
        self.is_crowded |= home.is_none();
        let mut places = Vec::with_capacity(sources.len());
        for (pool, sources) in sources.into_iter().enumerate() {
            let place = match home {
                Some(home) => home * self.home_len(pool),
                None if self.is_windowed(pool) => {
                    let home = self.least_used_home(pool);
                    sequence.home = Some(home);
                    home * self.home_len(pool)
                }
                None => self.place(pool, sources.len(), &sources)?,
            };
            places.push((sources, place));
        }
        sequence.home = sequence.home.or(home);
        let mut copies = Vec::new();
        for (pool, (sources, place)) in places.into_iter().enumerate() {
            let n_blocks = known.tokens.len().div_ceil(BLOCK);
            let first = n_blocks - sources.len();
            sequence.n_out_of_window[pool] = first.min(known.path.len());
            sequence.tables[pool].resize(first, OUT_OF_WINDOW);
            let copy_of = |at: usize, from: BlockId, to: BlockId| {
                let n = (known.tokens.len() - at * BLOCK).min(BLOCK);
                of_block(pool, from, to, n)
            };
            let targets = self.take_places(pool, place, &sources, &mut copies)?;
            for (at, (from, to)) in (first..).zip(sources.into_iter().zip(targets)) {
                if from != OUT_OF_WINDOW && from != to {
                    copies.push(copy_of(at, from, to));
                }
                if from == to && at >= known.path.len() {
                    // The sequence continues with other tokens within this block.
                    self.pools[pool].forget(to, &mut self.tree, pool);
                }
                sequence.tables[pool].push(to);
            }
        }
        sequence.tokens.extend_from_slice(known.tokens);
        Some(joined(copies))
    }

    /// The cached blocks of a pool that the sequence attends to, in order; none if there is no room for its own.
    fn sources_of(&self, pool: usize, known: &PrefixMatch<'_>) -> Option<Vec<BlockId>> {
        let n = known.tokens.len();
        let first = self.groups[pool].rule.first_visible(n as u32) as usize / BLOCK;
        let nodes = known
            .path
            .iter()
            .copied()
            .chain(known.start.map(|(start, _)| start));
        let sources = nodes.skip(first).map(|node| self.tree.part(node, pool));
        let sources: Vec<BlockId> = sources
            .map(|block| block.unwrap_or(OUT_OF_WINDOW))
            .collect();
        // Blocks that are read must not be evicted for those that are written.
        let is_idle = |block: &&BlockId| self.pools[pool].is_unused(**block);
        let n_idle = sources.iter().filter(is_idle).count();
        let needed = sources.len() + n_idle;
        let has_room = !self.is_windowed(pool) || self.pools[pool].available() >= needed;
        has_room.then_some(sources)
    }

    /// Takes a block for each of `sources`: the source itself if it lies in place and nobody uses it.
    fn take_places(
        &mut self,
        pool: usize,
        place: usize,
        sources: &[BlockId],
        copies: &mut Vec<SlotCopy>,
    ) -> Option<Vec<BlockId>> {
        let is_windowed = self.is_windowed(pool);
        let home = place as BlockId..(place + self.home_len(pool)) as BlockId;
        let is_own = |blocks: &BlockPool, at: usize, block: BlockId| {
            let lies_there = match is_windowed {
                true => home.contains(&block),
                false => block as usize == place + at,
            };
            lies_there && blocks.is_unused(block)
        };
        let of_pool = &mut self.pools[pool];
        let kept = sources.iter().enumerate();
        let kept: Vec<bool> = kept.map(|(at, b)| is_own(of_pool, at, *b)).collect();
        let read = || {
            sources
                .iter()
                .copied()
                .filter(|block| *block != OUT_OF_WINDOW)
        };
        read().for_each(|block| of_pool.join(block));
        if !is_windowed {
            self.clear(pool, place..place + sources.len(), copies);
        }
        let mut taken = Vec::with_capacity(sources.len());
        for (at, (source, is_kept)) in sources.iter().zip(&kept).enumerate() {
            taken.push(match (is_kept, is_windowed) {
                (true, _) => *source,
                (false, true) => self.take_near(pool, place)?,
                (false, false) => {
                    let to = (place + at) as BlockId;
                    self.pools[pool].claim(to, &mut self.tree, pool);
                    to
                }
            });
        }
        let of_pool = &mut self.pools[pool];
        let copied = sources.iter().zip(&kept).filter(|(_, is_kept)| !**is_kept);
        let copied = copied
            .map(|(block, _)| *block)
            .filter(|block| *block != OUT_OF_WINDOW);
        copied.for_each(|block| of_pool.leave(block));
        Some(taken)
    }
}

/// How many of `n` blocks can be reused: for a sequence that continues after them, the keys of all positions that it attends
/// to are there, and the state. The state is the part after those of the groups.
pub(in super::super) fn usable_blocks<'r>(
    rules: impl Iterator<Item = &'r Visibility>,
    has_states: bool,
    n: usize,
    has_part: impl Fn(usize, usize) -> bool,
) -> usize {
    let rules: Vec<&Visibility> = rules.collect();
    // Number of consecutive blocks up to each one that have the part of each group.
    let mut runs = vec![0usize; rules.len()];
    let mut usable = 0;
    for at in 0..n {
        let mut is_usable = true;
        for (part, (run, rule)) in runs.iter_mut().zip(&rules).enumerate() {
            *run = if has_part(at, part) { *run + 1 } else { 0 };
            let first = rule.first_visible(((at + 1) * BLOCK) as u32);
            is_usable &= *run >= at + 1 - first as usize / BLOCK;
        }
        if is_usable && (!has_states || has_part(at, rules.len())) {
            usable = at + 1;
        }
    }
    usable
}

/// The copy of the first `n` slots of a block.
fn of_block(pool: usize, from: BlockId, to: BlockId, n: usize) -> SlotCopy {
    let [from, to] = [from, to].map(|block| block as usize * BLOCK);
    SlotCopy { pool, from, to, n }
}

/// The copies, with those of consecutive slots merged.
fn joined(copies: Vec<SlotCopy>) -> Vec<SlotCopy> {
    let mut out: Vec<SlotCopy> = Vec::new();
    for copy in copies {
        match out.last_mut() {
            Some(last)
                if last.pool == copy.pool
                    && last.from + last.n == copy.from
                    && last.to + last.n == copy.to
                    && last.from.abs_diff(last.to) >= last.n + copy.n =>
            {
                last.n += copy.n;
            }
            _ => out.push(copy),
        }
    }
    out
}
