//! The prefix cache: a tree whose nodes are blocks of tokens.
//!
//! A node stands for all tokens from the root to it. Its parts are the blocks with its keys and values, one for
//! each pool, and the state after its last token. Any of them may have been evicted. A node without parts, children
//! and pins is removed. The node of a sequence that ended within a block has fewer tokens and no children.
//! Sequences that are computed differently (with other adapters) start at a node of their own.

use std::collections::HashMap;

use super::{BLOCK, BlockId};

pub(super) type NodeId = usize;

/// The node without tokens.
pub(super) const ROOT: NodeId = 0;

/// Pads the tokens of a sequence that ended within a block, and marks the blocks of a prefix key.
const NO_TOKEN: u32 = u32::MAX;

type Key = (NodeId, [u32; BLOCK]);

#[derive(Clone, Debug)]
struct Node {
    key: Key,
    parts: Vec<Option<BlockId>>,
    children: Vec<NodeId>,
    /// Number of sequences that end in this node.
    n_pins: u32,
    last_used: u64,
}

#[derive(Clone, Debug)]
pub(super) struct PrefixTree {
    nodes: Vec<Node>,
    unused: Vec<NodeId>,
    by_key: HashMap<Key, NodeId>,
    n_parts: usize,
    clock: u64,
}

impl PrefixTree {
    pub(super) fn new(n_parts: usize) -> Self {
        let root = Node {
            key: (ROOT, [0; BLOCK]),
            parts: vec![None; n_parts],
            children: Vec::new(),
            n_pins: 1,
            last_used: 0,
        };
        Self {
            nodes: vec![root],
            unused: Vec::new(),
            by_key: HashMap::new(),
            n_parts,
            clock: 0,
        }
    }

    /// The child of `node` for the next block of tokens.
    pub(super) fn child(&self, node: NodeId, tokens: &[u32; BLOCK]) -> Option<NodeId> {
        self.by_key.get(&(node, *tokens)).copied()
    }

    /// The child of `node` for the next block of tokens, created if it does not exist.
    pub(super) fn grow(&mut self, node: NodeId, tokens: &[u32; BLOCK]) -> NodeId {
        if let Some(child) = self.child(node, tokens) {
            return child;
        }
        self.clock += 1;
        let key = (node, *tokens);
        let new = Node {
            key,
            parts: vec![None; self.n_parts],
            children: Vec::new(),
            n_pins: 0,
            last_used: self.clock,
        };
        let id = match self.unused.pop() {
            Some(id) => {
                self.nodes[id] = new;
                id
            }
            None => {
                self.nodes.push(new);
                self.nodes.len() - 1
            }
        };
        self.nodes[node].children.push(id);
        self.by_key.insert(key, id);
        id
    }

    /// The child of `node` for the last tokens of a sequence, at most a block, created if it does not exist.
    pub(super) fn grow_end(&mut self, node: NodeId, tokens: &[u32]) -> NodeId {
        let mut key = [NO_TOKEN; BLOCK];
        key[..tokens.len()].copy_from_slice(tokens);
        self.grow(node, &key)
    }

    /// The node where sequences with this prefix key start; the root if the key is empty.
    pub(super) fn root_of(&mut self, key: &[u32]) -> NodeId {
        key.chunks(BLOCK - 1).fold(ROOT, |node, part| {
            let mut block = [NO_TOKEN; BLOCK];
            block[1..=part.len()].copy_from_slice(part);
            self.grow(node, &block)
        })
    }

    /// The child of `node` with the longest common start with `tokens`, among those that `is_usable` accepts, and
    /// the length of that start.
    pub(super) fn most_alike(
        &self,
        node: NodeId,
        tokens: &[u32],
        is_usable: impl Fn(NodeId, usize) -> bool,
    ) -> Option<(NodeId, usize)> {
        let alike = |child: &NodeId| {
            let pairs = self.nodes[*child].key.1.iter().zip(tokens);
            (*child, pairs.take_while(|(a, b)| a == b).count())
        };
        let children = self.nodes[node].children.iter().map(alike);
        children
            .filter(|(child, n)| *n > 0 && is_usable(*child, *n))
            .max_by_key(|(_, n)| *n)
    }

    pub(super) fn parent(&self, node: NodeId) -> NodeId {
        self.nodes[node].key.0
    }

    pub(super) fn n_tokens(&self, node: NodeId) -> usize {
        let key = &self.nodes[node].key.1;
        key.iter().take_while(|token| **token != NO_TOKEN).count()
    }

    pub(super) fn part(&self, node: NodeId, part: usize) -> Option<BlockId> {
        self.nodes[node].parts[part]
    }

    pub(super) fn set(&mut self, node: NodeId, part: usize, block: BlockId) {
        self.nodes[node].parts[part] = Some(block);
    }

    pub(super) fn clear(&mut self, node: NodeId, part: usize) {
        self.nodes[node].parts[part] = None;
        self.prune(node);
    }

    /// Keeps a node while a sequence ends in it. The root is always kept.
    pub(super) fn pin(&mut self, node: NodeId) {
        if node != ROOT {
            self.nodes[node].n_pins += 1;
        }
    }

    pub(super) fn unpin(&mut self, node: NodeId) {
        if node != ROOT {
            self.nodes[node].n_pins -= 1;
            self.prune(node);
        }
    }

    /// Removes a node without pins, children and parts, and then each ancestor that has become such a node.
    fn prune(&mut self, mut id: NodeId) {
        loop {
            let node = &self.nodes[id];
            let is_needed = node.n_pins > 0 || !node.children.is_empty();
            if is_needed || node.parts.iter().any(Option::is_some) {
                return;
            }
            let parent = node.key.0;
            self.by_key.remove(&node.key);
            self.unused.push(id);
            self.nodes[parent].children.retain(|child| *child != id);
            id = parent;
        }
    }

    pub(super) fn last_used(&self, node: NodeId) -> u64 {
        self.nodes[node].last_used
    }

    /// Marks a node and its ancestors as used now. Nodes nearer to the root get later times, so that the ends of
    /// texts are evicted first.
    pub(super) fn touch(&mut self, mut node: NodeId) {
        while node != ROOT {
            self.clock += 1;
            self.nodes[node].last_used = self.clock;
            node = self.nodes[node].key.0;
        }
    }

    /// Whether every node but the root has a pin, a child or a part.
    #[cfg(test)]
    pub(super) fn is_tidy(&self) -> bool {
        let says = |node: &Node| {
            node.n_pins > 0 || !node.children.is_empty() || node.parts.iter().any(Option::is_some)
        };
        let in_use = (1..self.nodes.len()).filter(|id| !self.unused.contains(id));
        self.by_key.len() == in_use.clone().count()
            && in_use.into_iter().all(|id| says(&self.nodes[id]))
    }
}
