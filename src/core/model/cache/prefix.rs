//! The prefix cache: a tree whose nodes are blocks of tokens.
//!
//! A node stands for all tokens from the root to it. Its parts are the blocks with its keys and values, one for
//! each pool, and the state after its last token. Any of them may have been evicted. A node without parts, children
//! and pins is removed. The node of a sequence that ended within a block has fewer tokens and no children.
//! Sequences that are computed differently (with other adapters) start at a node of their own.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use super::kv_events::{Announced, BlockAdapter, KvEvent, KvEventLog};
use super::{BLOCK, BlockId};

/// Number of removed nodes that are remembered, so that a miss can say that they were evicted.
const N_REMOVED: usize = 1 << 16;

pub(super) type NodeId = usize;

/// The node without tokens.
pub(super) const ROOT: NodeId = 0;

/// Pads the tokens of a sequence that ended within a block, and marks the blocks of a prefix key.
const NO_TOKEN: u32 = u32::MAX;

type Key = (NodeId, [u32; BLOCK]);

/// The blocks of a prefix key, which no tokens have.
fn blocks_of_key(key: &[u32]) -> impl Iterator<Item = [u32; BLOCK]> {
    key.chunks(BLOCK - 1).map(|part| {
        let mut block = [NO_TOKEN; BLOCK];
        block[1..=part.len()].copy_from_slice(part);
        block
    })
}

#[derive(Clone, Debug)]
struct Node {
    key: Key,
    parts: Vec<Option<BlockId>>,
    children: Vec<NodeId>,
    /// Number of sequences that end in this node.
    n_pins: u32,
    last_used: u64,
    /// Of all tokens from the root to it.
    hash: u64,
    /// None if routers are not told of it.
    announced: Option<Announced>,
}

/// The hashes of the nodes that were removed last.
#[derive(Clone, Debug, Default)]
struct RemovedNodes {
    all: HashSet<u64>,
    in_order: VecDeque<u64>,
}

impl RemovedNodes {
    fn insert(&mut self, hash: u64) {
        if !self.all.insert(hash) {
            return;
        }
        self.in_order.push_back(hash);
        if self.in_order.len() > N_REMOVED
            && let Some(oldest) = self.in_order.pop_front()
        {
            self.all.remove(&oldest);
        }
    }
}

fn hash_of(parent: u64, tokens: &[u32; BLOCK]) -> u64 {
    let mut hash = DefaultHasher::new();
    (parent, tokens).hash(&mut hash);
    hash.finish()
}

#[derive(Clone, Debug)]
pub(super) struct PrefixTree {
    nodes: Vec<Node>,
    unused: Vec<NodeId>,
    by_key: HashMap<Key, NodeId>,
    n_parts: usize,
    clock: u64,
    removed: RemovedNodes,
    /// None if nobody wants to know of changes.
    log: Option<KvEventLog>,
}

impl PrefixTree {
    pub(super) fn new(n_parts: usize) -> Self {
        let root = Node {
            key: (ROOT, [0; BLOCK]),
            parts: vec![None; n_parts],
            children: Vec::new(),
            n_pins: 1,
            last_used: 0,
            hash: 0,
            announced: None,
        };
        Self {
            nodes: vec![root],
            unused: Vec::new(),
            by_key: HashMap::new(),
            n_parts,
            clock: 0,
            removed: RemovedNodes::default(),
            log: None,
        }
    }

    /// Notes from now on which blocks become cached, with all of these parts, and which are not any more. To be called while
    /// nothing is cached.
    pub(super) fn log_events(&mut self, parts: Vec<usize>) {
        self.log = Some(KvEventLog::new(parts));
    }

    pub(super) fn logs_events(&self) -> bool {
        self.log.is_some()
    }

    /// Announces the blocks of texts that start after a node, which are computed with these adapters.
    pub(super) fn announce(&mut self, start: NodeId, adapter: Option<BlockAdapter>) {
        if self.log.is_some() && self.nodes[start].announced.is_none() {
            self.nodes[start].announced = Some(Announced::start(adapter));
        }
    }

    /// The changes since this was called before.
    pub(super) fn take_events(&mut self) -> Vec<KvEvent> {
        self.log.as_mut().map(KvEventLog::take).unwrap_or_default()
    }

    /// Changes a part of a node, and notes it if the node becomes cached or is not any more.
    fn change(&mut self, id: NodeId, part: usize, block: Option<BlockId>) {
        let is_cached = |node: &Node, log: &KvEventLog| {
            let mut parts = log.parts.iter();
            parts.all(|part| node.parts[*part].is_some())
        };
        let log = self.log.as_mut();
        let Some(log) = log.filter(|_| self.nodes[id].announced.is_some()) else {
            self.nodes[id].parts[part] = block;
            return;
        };
        let was_cached = is_cached(&self.nodes[id], log);
        self.nodes[id].parts[part] = block;
        let node = &self.nodes[id];
        let Some(own) = &node.announced else { return };
        match (was_cached, is_cached(node, log)) {
            (false, true) => {
                let (parent, tokens) = &node.key;
                if let Some(parent) = &self.nodes[*parent].announced {
                    log.stored(parent, own, tokens);
                }
            }
            (true, false) => log.removed(own),
            _ => {}
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
            hash: hash_of(self.nodes[node].hash, tokens),
            announced: match tokens.contains(&NO_TOKEN) {
                true => None,
                false => self.nodes[node]
                    .announced
                    .as_ref()
                    .map(|of| of.next(tokens)),
            },
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
        blocks_of_key(key).fold(ROOT, |node, block| self.grow(node, &block))
    }

    /// [`Self::root_of`], if it exists.
    pub(super) fn find_root(&self, key: &[u32]) -> Option<NodeId> {
        blocks_of_key(key).try_fold(ROOT, |node, block| self.child(node, &block))
    }

    /// The nodes where sequences start, at most `n_most` of them.
    pub(super) fn roots(&self, n_most: usize) -> Vec<NodeId> {
        let mut found = vec![ROOT];
        let mut at = 0;
        while at < found.len() && found.len() < n_most {
            let children = self.nodes[found[at]].children.iter().copied();
            let is_key = |child: &NodeId| self.nodes[*child].key.1[0] == NO_TOKEN;
            found.extend(children.filter(is_key).take(n_most - found.len()));
            at += 1;
        }
        found
    }

    /// Whether the child of `node` for these tokens was there and was removed.
    pub(super) fn was_removed(&self, node: NodeId, tokens: &[u32; BLOCK]) -> bool {
        let hash = hash_of(self.nodes[node].hash, tokens);
        self.removed.all.contains(&hash)
    }

    /// The tokens of a node; fewer than a block where a sequence ended within it.
    pub(super) fn tokens(&self, node: NodeId) -> &[u32] {
        &self.nodes[node].key.1[..self.n_tokens(node)]
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

    pub(super) fn has_children(&self, node: NodeId) -> bool {
        !self.nodes[node].children.is_empty()
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
        self.change(node, part, Some(block));
    }

    pub(super) fn clear(&mut self, node: NodeId, part: usize) {
        self.change(node, part, None);
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
            self.removed.insert(node.hash);
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

    /// The hashes of the blocks that are cached, among those that are announced.
    #[cfg(test)]
    pub(super) fn announced(&self) -> HashSet<u64> {
        let log = self.log.as_ref().expect("events are logged");
        let is_cached = |node: &Node| log.parts.iter().all(|part| node.parts[*part].is_some());
        let nodes = self.by_key.values().map(|id| &self.nodes[*id]);
        let cached = nodes.filter(|node| is_cached(node));
        let announced = cached.filter_map(|node| node.announced.as_ref());
        announced.map(Announced::name).collect()
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
