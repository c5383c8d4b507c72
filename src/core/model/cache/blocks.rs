//! The blocks of one pool: their users, which of them are cached, and the order of eviction.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::BlockId;
use super::empty_runs::FreeRuns;
use super::prefix::{NodeId, PrefixTree};

#[derive(Clone, Debug)]
pub(super) struct BlockPool {
    users: Vec<u32>,
    /// The node of the prefix tree for which each block is cached.
    node: Vec<Option<NodeId>>,
    /// The blocks that are neither used nor cached. The lowest is taken first, so that used blocks stay together.
    empty: FreeRuns,
    /// Number of blocks in use.
    n_used: usize,
    /// Includes every block that is cached and not used, and may include others, each at most once, with a time not
    /// later than its last use.
    idle: BinaryHeap<Reverse<(u64, BlockId)>>,
    is_queued: Vec<bool>,
}

impl BlockPool {
    pub(super) fn new(n_blocks: usize) -> Self {
        Self {
            users: vec![0; n_blocks],
            node: vec![None; n_blocks],
            empty: FreeRuns::new(n_blocks),
            n_used: 0,
            idle: BinaryHeap::new(),
            is_queued: vec![false; n_blocks],
        }
    }

    pub(super) fn len(&self) -> usize {
        self.users.len()
    }

    /// Number of blocks that can be taken: free ones, and cached ones that nobody uses.
    pub(super) fn available(&self) -> usize {
        self.len() - self.n_used
    }

    /// Takes a block for a new user. If none is free, evicts the least recently used cached one. `part` is the
    /// index of this pool among the parts of a node.
    pub(super) fn take(&mut self, tree: &mut PrefixTree, part: usize) -> Option<BlockId> {
        let block = match self.empty.take_lowest() {
            Some(block) => block as BlockId,
            None => {
                let oldest = self.oldest(tree)?;
                self.forget(oldest, tree, part);
                oldest
            }
        };
        self.join(block);
        Some(block)
    }

    /// Takes an empty block, so that it is not taken otherwise. Returns false if it is not empty.
    pub(super) fn hide(&mut self, block: usize) -> bool {
        self.empty.take(block)
    }

    /// Takes the empty block in the middle of the longest run of empty ones.
    pub(super) fn hide_middle(&mut self) -> Option<usize> {
        self.empty.take_middle()
    }

    /// Gives back a block that was hidden.
    pub(super) fn show(&mut self, block: usize) {
        self.empty.give(block);
    }

    /// Whether no sequence uses a block. It may be cached.
    pub(super) fn is_unused(&self, block: BlockId) -> bool {
        self.users.get(block as usize) == Some(&0)
    }

    /// Gives an unused block to a user. Its cached contents are evicted.
    pub(super) fn claim(&mut self, block: BlockId, tree: &mut PrefixTree, part: usize) {
        self.forget(block, tree, part);
        self.join(block);
    }

    /// Replaces block `from` of a user by block `to`, which the user has claimed. If `from` is cached, `to` takes
    /// its place.
    pub(super) fn relocate(
        &mut self,
        from: BlockId,
        to: BlockId,
        tree: &mut PrefixTree,
        part: usize,
    ) {
        self.hand_over(from, to, tree, part);
        self.leave(from);
    }

    /// Caches `to` in place of `from`. Returns whether `from` was cached.
    fn hand_over(
        &mut self,
        from: BlockId,
        to: BlockId,
        tree: &mut PrefixTree,
        part: usize,
    ) -> bool {
        let Some(node) = self.node[from as usize].take() else {
            return false;
        };
        self.node[to as usize] = Some(node);
        tree.set(node, part, to);
        true
    }

    /// The least recently used block that is cached and not used.
    fn oldest(&mut self, tree: &PrefixTree) -> Option<BlockId> {
        loop {
            let Reverse((time, block)) = self.idle.pop()?;
            let at = block as usize;
            self.is_queued[at] = false;
            let Some(node) = self.node[at].filter(|_| self.users[at] == 0) else {
                continue;
            };
            let last_used = tree.last_used(node);
            if time == last_used {
                return Some(block);
            }
            self.enqueue(last_used, block);
        }
    }

    fn enqueue(&mut self, time: u64, block: BlockId) {
        if !std::mem::replace(&mut self.is_queued[block as usize], true) {
            self.idle.push(Reverse((time, block)));
        }
    }

    /// Moves the cached contents of `from` to the empty block `to`, so that `from` is empty. Nobody uses either
    /// block.
    pub(super) fn transfer(
        &mut self,
        from: BlockId,
        to: BlockId,
        tree: &mut PrefixTree,
        part: usize,
    ) {
        if self.hand_over(from, to, tree, part) {
            self.empty.take(to as usize);
            self.enqueue(0, to);
            self.empty.give(from as usize);
        }
    }

    /// Removes a block from the prefix cache.
    pub(super) fn forget(&mut self, block: BlockId, tree: &mut PrefixTree, part: usize) {
        let at = block as usize;
        let Some(node) = self.node[at].take() else {
            return;
        };
        tree.clear(node, part);
        if self.users[at] == 0 {
            self.empty.give(at);
        }
    }

    /// Adds a user to a block.
    pub(super) fn join(&mut self, block: BlockId) {
        let at = block as usize;
        if self.users[at] == 0 {
            self.n_used += 1;
            self.empty.take(at);
        }
        self.users[at] += 1;
    }

    /// Removes a user from a block.
    pub(super) fn leave(&mut self, block: BlockId) {
        let at = block as usize;
        self.users[at] -= 1;
        if self.users[at] > 0 {
            return;
        }
        self.n_used -= 1;
        if self.node[at].is_some() {
            self.enqueue(0, block);
        } else {
            self.empty.give(at);
        }
    }

    /// Notes that a block in use is cached for `node`.
    pub(super) fn remember(&mut self, block: BlockId, node: NodeId) {
        self.node[block as usize] = Some(node);
    }

    /// Whether a block has a second user or is cached.
    pub(super) fn is_shared(&self, block: BlockId) -> bool {
        self.users[block as usize] > 1 || self.node(block).is_some()
    }

    /// The node for which a block is cached.
    pub(super) fn node(&self, block: BlockId) -> Option<NodeId> {
        self.node[block as usize]
    }

    pub(super) fn n_users(&self, block: BlockId) -> u32 {
        self.users[block as usize]
    }
}
