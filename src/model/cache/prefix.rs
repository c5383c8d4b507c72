//! What is remembered of earlier sequences: a tree whose nodes are blocks of tokens.
//!
//! A node stands for all tokens from the root to it. Its parts are the blocks that hold its keys and
//! values, one for each pool, and the state behind its last token; any of them may have been
//! forgotten. A node without parts, children and pins is removed.

use std::collections::HashMap;

use super::BLOCK;
use super::blocks::BlockId;

/// A node of the tree.
pub(super) type NodeId = usize;

/// The node of no tokens.
pub(super) const ROOT: NodeId = 0;

type Key = (NodeId, [u32; BLOCK]);

#[derive(Clone, Debug)]
struct Node {
    key: Key,
    parts: Vec<Option<BlockId>>,
    n_children: u32,
    /// Sequences that end in this node.
    n_pins: u32,
    last_used: u64,
}

/// The tree.
#[derive(Clone, Debug)]
pub(super) struct PrefixTree {
    nodes: Vec<Node>,
    unused: Vec<NodeId>,
    children: HashMap<Key, NodeId>,
    n_parts: usize,
    clock: u64,
}

impl PrefixTree {
    pub(super) fn new(n_parts: usize) -> Self {
        let root = Node {
            key: (ROOT, [0; BLOCK]),
            parts: vec![None; n_parts],
            n_children: 0,
            n_pins: 1,
            last_used: 0,
        };
        Self {
            nodes: vec![root],
            unused: Vec::new(),
            children: HashMap::new(),
            n_parts,
            clock: 0,
        }
    }

    /// The node behind `node` for the next block of tokens.
    pub(super) fn child(&self, node: NodeId, tokens: &[u32; BLOCK]) -> Option<NodeId> {
        self.children.get(&(node, *tokens)).copied()
    }

    /// The same, made if there is none.
    pub(super) fn grow(&mut self, node: NodeId, tokens: &[u32; BLOCK]) -> NodeId {
        if let Some(child) = self.child(node, tokens) {
            return child;
        }
        self.clock += 1;
        let key = (node, *tokens);
        let new = Node {
            key,
            parts: vec![None; self.n_parts],
            n_children: 0,
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
        self.nodes[node].n_children += 1;
        self.children.insert(key, id);
        id
    }

    pub(super) fn part(&self, node: NodeId, part: usize) -> Option<BlockId> {
        self.nodes[node].parts[part]
    }

    pub(super) fn set(&mut self, node: NodeId, part: usize, block: BlockId) {
        self.nodes[node].parts[part] = Some(block);
    }

    /// Takes note that a part is gone.
    pub(super) fn clear(&mut self, node: NodeId, part: usize) {
        self.nodes[node].parts[part] = None;
        self.prune(node);
    }

    /// Keeps a node while a sequence ends in it; the root is always kept.
    pub(super) fn pin(&mut self, node: NodeId) {
        self.nodes[node].n_pins += 1;
    }

    pub(super) fn unpin(&mut self, node: NodeId) {
        if node != ROOT {
            self.nodes[node].n_pins -= 1;
            self.prune(node);
        }
    }

    /// Removes a node that says nothing, and what becomes of its parents by that.
    fn prune(&mut self, mut id: NodeId) {
        loop {
            let node = &self.nodes[id];
            let is_needed = node.n_pins > 0 || node.n_children > 0;
            if is_needed || node.parts.iter().any(Option::is_some) {
                return;
            }
            self.children.remove(&node.key);
            self.unused.push(id);
            id = node.key.0;
            self.nodes[id].n_children -= 1;
        }
    }

    pub(super) fn last_used(&self, node: NodeId) -> u64 {
        self.nodes[node].last_used
    }

    /// Marks a node and those it stands behind as used now, the nearer to the root the later, so that
    /// the ends of texts are forgotten first.
    pub(super) fn touch(&mut self, mut node: NodeId) {
        while node != ROOT {
            self.clock += 1;
            self.nodes[node].last_used = self.clock;
            node = self.nodes[node].key.0;
        }
    }

    /// Whether every node but the root says something.
    #[cfg(test)]
    pub(super) fn is_tidy(&self) -> bool {
        let says = |node: &Node| {
            node.n_pins > 0 || node.n_children > 0 || node.parts.iter().any(Option::is_some)
        };
        let in_use = (1..self.nodes.len()).filter(|id| !self.unused.contains(id));
        self.children.len() == in_use.clone().count()
            && in_use.into_iter().all(|id| says(&self.nodes[id]))
    }
}
