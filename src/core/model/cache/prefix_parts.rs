//! The blocks and rows of states that the nodes of a prefix have: where they lie, and blocks for those that come from elsewhere.
//!
//! What is put in place so becomes part of the prefix cache, as if a sequence had ended there. A sequence starts after it as
//! after any other cached prefix.

use super::block_manager::BlockManager;
use super::blocks::BlockPool;
use super::prefix::NodeId;
use super::{BLOCK, BlockId};

/// A part of a node, and the block or row in which it lies. The parts of a node are its blocks, one of each pool, and its state.
pub(crate) type PartPlace = (usize, BlockId);

/// Blocks and rows that were taken for parts of nodes, and are not cached before they are written.
#[must_use = "they have to be kept or dropped"]
pub(crate) struct TakenParts {
    /// For each block of tokens, the parts that were taken for it.
    pub(crate) places: Vec<Vec<PartPlace>>,
    /// The node of each block of tokens from the first one on that has such parts.
    nodes: Vec<NodeId>,
    /// Blocks and rows of the path that must not be evicted meanwhile.
    held: Vec<PartPlace>,
    /// The last node, which is pinned.
    end: NodeId,
}

impl BlockManager {
    fn pool_of_part(&mut self, part: usize) -> Option<&mut BlockPool> {
        match part == self.state_part() {
            true => self.rows.as_mut(),
            false => self.pools.get_mut(part),
        }
    }

    /// The parts of the nodes of the full blocks of `tokens`, as far as the nodes exist, under this prefix key.
    pub(crate) fn parts(&mut self, key: &[u32], tokens: &[u32]) -> Vec<Vec<PartPlace>> {
        self.commit_all();
        let Some(root) = self.tree.find_root(key) else {
            return Vec::new();
        };
        let mut node = root;
        let (blocks, _) = tokens.as_chunks::<BLOCK>();
        let nodes = blocks.iter().map_while(|block| {
            node = self.tree.child(node, block)?;
            Some(node)
        });
        nodes.map(|node| self.parts_of_node(node)).collect()
    }

    fn parts_of_node(&self, node: NodeId) -> Vec<PartPlace> {
        let parts = 0..=self.state_part();
        let place = |part| Some((part, self.tree.part(node, part)?));
        parts.filter_map(place).collect()
    }

    /// Takes blocks and rows for parts that the nodes of `tokens` lack: those in `wanted`, a set of bits for each block of
    /// tokens from the block `first` on. Cached blocks of others are evicted for them, those of the same prefix are not. Fewer
    /// are taken if there is no room, those of the first blocks of tokens.
    pub(crate) fn take_parts(
        &mut self,
        key: &[u32],
        tokens: &[u32],
        first: usize,
        wanted: &[u64],
    ) -> TakenParts {
        self.commit_all();
        let mut node = self.tree.root_of(key);
        self.tree.pin(node);
        let (blocks, _) = tokens.as_chunks::<BLOCK>();
        let mut path = Vec::with_capacity(blocks.len());
        for block in blocks {
            let child = self.tree.grow(node, block);
            // A pinned node stays while its first child is made.
            self.tree.pin(child);
            self.tree.unpin(node);
            path.push(child);
            node = child;
        }
        let held = path.iter().flat_map(|node| self.parts_of_node(*node));
        let held: Vec<PartPlace> = held.collect();
        for (part, block) in &held {
            if let Some(pool) = self.pool_of_part(*part) {
                pool.join(*block);
            }
        }
        let nodes = path.split_off(first.min(path.len()));
        let places = nodes.iter().zip(wanted).map(|(node, wanted)| {
            let parts = (0..=self.state_part()).filter(|part| wanted >> part & 1 == 1);
            let lacking = parts.filter(|part| self.tree.part(*node, *part).is_none());
            let lacking: Vec<usize> = lacking.collect();
            let taken = lacking.into_iter().map_while(|part| {
                let pool = match part == self.groups.len() {
                    true => self.rows.as_mut()?,
                    false => &mut self.pools[part],
                };
                Some((part, pool.take(&mut self.tree, part)?))
            });
            taken.collect()
        });
        TakenParts {
            places: places.collect(),
            nodes,
            held,
            end: node,
        }
    }

    /// Caches what was taken, once it is written. Without success it is free again.
    pub(crate) fn keep_parts(&mut self, taken: TakenParts, is_written: bool) {
        let TakenParts {
            places,
            nodes,
            held,
            end,
        } = taken;
        for (node, places) in nodes.into_iter().zip(places) {
            for (part, block) in places {
                let Some(pool) = self.pool_of_part(part) else {
                    continue;
                };
                if is_written {
                    pool.remember(block, node);
                }
                pool.leave(block);
                if is_written {
                    self.tree.set(node, part, block);
                }
            }
        }
        for (part, block) in held {
            if let Some(pool) = self.pool_of_part(part) {
                pool.leave(block);
            }
        }
        self.tree.touch(end);
        self.tree.unpin(end);
    }

    /// Removes a prefix from the cache, except for what sequences use. Returns the number of tokens that it had.
    pub(crate) fn erase(&mut self, key: &[u32], tokens: &[u32]) -> usize {
        let all = self.parts(key, tokens);
        let state_part = self.state_part();
        for (part, block) in all.iter().rev().flatten() {
            let pool = match *part == state_part {
                true => self.rows.as_mut(),
                false => self.pools.get_mut(*part),
            };
            if let Some(pool) = pool.filter(|pool| pool.is_unused(*block)) {
                pool.forget(*block, &mut self.tree, *part);
            }
        }
        all.len() * BLOCK
    }
}
