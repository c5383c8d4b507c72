//! The cached prefix of a prompt, and a sequence that continues after it.

use super::block_manager::{BlockManager, EVICTED, Group, Sequence};
use super::prefix::NodeId;
use super::{BLOCK, BlockId, SequenceId};

/// Why no more of a prompt was cached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Miss {
    /// All of it but the last token is found, as far as whole blocks go.
    #[default]
    None,
    /// Its tokens are not known from here on.
    Unknown,
    /// They are known, but what was computed of them was evicted.
    Evicted,
    /// They are known, but no state was stored after them.
    NoState,
    /// The model's keys depend on later tokens.
    NotCausal,
}

impl std::fmt::Display for Miss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::None => "all whole blocks are cached",
            Self::Unknown => "the tokens from here on are not in the prefix cache",
            Self::Evicted => "the prefix was cached, but its blocks were evicted",
            Self::NoState => "the prefix is cached, but no state was stored there",
            Self::NotCausal => "keys depend on later tokens",
        })
    }
}

/// What was found of a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resumed {
    /// Tokens that need not be computed.
    pub n_cached: usize,
    /// Tokens that were read before, though what was computed of them may be gone.
    pub n_known: usize,
    /// Why it is not more.
    pub miss: Miss,
}

/// The slots at the start of a block that a sequence takes over into a block of its own, where a
/// cached prefix diverges within it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::model) struct BlockCopy {
    /// Block of each pool that is read; none where nothing of it is seen any more.
    pub(in crate::model) from: Vec<Option<BlockId>>,
    /// Block of each pool that is written.
    pub(in crate::model) to: Vec<BlockId>,
    /// Number of slots.
    pub(in crate::model) n_slots: usize,
}

impl BlockManager {
    /// Forgets the positions of a sequence from `from` on. Returns the position at which it goes on:
    /// an earlier one where others depend on the last block, where what `from` sees is gone, or where
    /// a state would have to be taken back. What is to be copied must be before the next pass.
    pub(in crate::model) fn forget(
        &mut self,
        id: SequenceId,
        from: u32,
    ) -> (u32, Option<BlockCopy>) {
        let Some(sequence) = self.sequences.get(&id) else {
            return (0, None);
        };
        let len = sequence.tokens.len();
        let from = (from as usize).min(len);
        if from == len {
            return (len as u32, None);
        }
        let sees_all = |(pool, group): (usize, &Group)| {
            group.rule.first_visible(from as u32) as usize / BLOCK >= sequence.n_evicted[pool]
        };
        let is_there = self.groups.iter().enumerate().all(sees_all);
        if from > 0 && is_there && self.rows.is_none() && from >= sequence.n_known * BLOCK {
            self.truncate(id, from);
            return (from as u32, None);
        }
        let tokens = sequence.tokens[..from].to_vec();
        self.release(id);
        let (resumed, copy) = self.resume(id, &tokens);
        (resumed.n_cached as u32, copy)
    }

    /// Starts a sequence with what is known of its tokens. A sequence that exists goes on as it is.
    /// What is to be copied must be before the next pass.
    pub(in crate::model) fn resume(
        &mut self,
        id: SequenceId,
        tokens: &[u32],
    ) -> (Resumed, Option<BlockCopy>) {
        if let Some(sequence) = self.sequences.get(&id) {
            let n_cached = sequence.tokens.len();
            let resumed = Resumed {
                n_cached,
                n_known: n_cached,
                miss: Miss::None,
            };
            return (resumed, None);
        }
        if !self.is_causal {
            let resumed = Resumed {
                miss: Miss::NotCausal,
                ..Resumed::default()
            };
            return (resumed, None);
        }
        self.commit_all();
        let root = self.root(id);
        let (path, mut miss) = self.walk(root, tokens);
        let n_blocks = self.usable(&path);
        if n_blocks < path.len() {
            let node = path[path.len() - 1];
            let is_there = |pool| self.tree.part(node, pool).is_some();
            miss = if (0..self.pools.len()).all(is_there) {
                Miss::NoState
            } else {
                Miss::Evicted
            };
        }
        let (read, rest) = tokens[..tokens.len().saturating_sub(1)].split_at(n_blocks * BLOCK);
        let node = path[..n_blocks].last().copied().unwrap_or(root);
        self.tree.touch(node);
        let mut sequence = self.adopt(&path[..n_blocks], node, read);
        let copy = match n_blocks == path.len() {
            true => self.copy_prefix(&mut sequence, rest),
            false => None,
        };
        let n_cached = sequence.tokens.len();
        if n_cached > 0 {
            self.sequences.insert(id, sequence);
        } else {
            self.tree.unpin(node);
        }
        let resumed = Resumed {
            n_cached,
            n_known: n_cached.max(path.len() * BLOCK),
            miss,
        };
        (resumed, copy)
    }

    /// Lets a sequence that ends with a whole block go on with those of the tokens `rest` that some
    /// known block starts with.
    fn copy_prefix(&mut self, sequence: &mut Sequence, rest: &[u32]) -> Option<BlockCopy> {
        // A state belongs to the end of a block.
        if self.rows.is_some() {
            return None;
        }
        let len = sequence.tokens.len();
        let is_seen = |pool: usize, n: usize| {
            self.groups[pool].rule.first_visible((len + n) as u32) < (len + n) as u32
        };
        let pools = 0..self.pools.len();
        let is_usable = |node, n| {
            let mut pools = pools.clone();
            pools.all(|pool| self.tree.part(node, pool).is_some() || !is_seen(pool, n))
        };
        let (node, n) = self.tree.most_alike(sequence.node, rest, is_usable)?;
        if self.pools.iter().any(|pool| pool.available() < 2) {
            return None;
        }
        self.tree.touch(node);
        self.tree.pin(node);
        let mut copy = BlockCopy {
            n_slots: n,
            ..BlockCopy::default()
        };
        for (i, pool) in self.pools.iter_mut().enumerate() {
            let from = self.tree.part(node, i);
            // Used meanwhile, it does not be evicted for its own copy.
            from.into_iter().for_each(|block| pool.join(block));
            let to = pool.take(&mut self.tree, i)?;
            from.into_iter().for_each(|block| pool.leave(block));
            sequence.tables[i].push(to);
            copy.from.push(from);
            copy.to.push(to);
        }
        self.tree.unpin(node);
        sequence.tokens.extend_from_slice(&rest[..n]);
        Some(copy)
    }

    /// The nodes of the whole blocks of `tokens` after `root`, as far as they are known. At least one token is
    /// left over.
    fn walk(&self, root: NodeId, tokens: &[u32]) -> (Vec<NodeId>, Miss) {
        let mut path = Vec::new();
        let mut node = root;
        let (blocks, _) = tokens[..tokens.len().saturating_sub(1)].as_chunks::<BLOCK>();
        for block in blocks {
            let Some(child) = self.tree.child(node, block) else {
                return (path, Miss::Unknown);
            };
            path.push(child);
            node = child;
        }
        (path, Miss::None)
    }

    /// How many nodes of a path can be gone on from: all that the next query sees is there.
    fn usable(&self, path: &[NodeId]) -> usize {
        // Blocks without a gap that end with each node.
        let mut runs = vec![0usize; self.pools.len()];
        let mut usable = 0;
        for (i, node) in path.iter().enumerate() {
            let n = i + 1;
            let mut is_usable = true;
            for (pool, run) in runs.iter_mut().enumerate() {
                *run = self.tree.part(*node, pool).map_or(0, |_| *run + 1);
                let first = self.groups[pool].rule.first_visible((n * BLOCK) as u32);
                is_usable &= *run >= n - first as usize / BLOCK;
            }
            let has_state = self.tree.part(*node, self.state_part()).is_some();
            if is_usable && (self.rows.is_none() || has_state) {
                usable = n;
            }
        }
        usable
    }

    /// A sequence that continues after a path.
    fn adopt(&mut self, path: &[NodeId], node: NodeId, tokens: &[u32]) -> Sequence {
        let mut sequence = Sequence::new(self.pools.len(), node);
        sequence.tokens.extend_from_slice(tokens);
        for (i, pool) in self.pools.iter_mut().enumerate() {
            let first = self.groups[i].rule.first_visible(tokens.len() as u32) as usize / BLOCK;
            sequence.n_evicted[i] = first;
            for (at, node) in path.iter().enumerate() {
                let block = self.tree.part(*node, i).filter(|_| at >= first);
                if let Some(block) = block {
                    pool.join(block);
                }
                sequence.tables[i].push(block.unwrap_or(EVICTED));
            }
        }
        sequence.row = self.tree.part(node, self.state_part());
        if let (Some(rows), Some(row)) = (&mut self.rows, sequence.row) {
            rows.join(row);
        }
        sequence.n_known = path.len();
        self.tree.pin(node);
        sequence
    }
}
