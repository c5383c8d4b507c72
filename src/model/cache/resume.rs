//! What is known of a text, and a sequence that goes on behind it.

use super::ledger::{GONE, Ledger, Sequence};
use super::prefix::{NodeId, ROOT};
use super::{BLOCK, SequenceId};

/// Why no more of a text was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Miss {
    /// There is no more of it than is found, as far as whole blocks go.
    #[default]
    None,
    /// Its tokens are not known from here on.
    Unknown,
    /// They are known, but what was computed of them had to make room.
    Evicted,
    /// They are known, but the state behind them was not kept.
    NoState,
    /// The model's keys depend on later tokens.
    NotCausal,
}

impl std::fmt::Display for Miss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::None => "all whole blocks of it are known",
            Self::Unknown => "the text was not seen before from here on",
            Self::Evicted => "the text is known, but had to make room",
            Self::NoState => "the text is known, but no state was kept there",
            Self::NotCausal => "keys depend on later tokens",
        })
    }
}

/// What was found of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resumed {
    /// Tokens that need not be computed.
    pub n_cached: usize,
    /// Tokens that were read before, though what was computed of them may be gone.
    pub n_known: usize,
    /// Why it is not more.
    pub miss: Miss,
}

impl Ledger {
    /// Begins a sequence with what is known of its tokens. A sequence that exists goes on as it is.
    pub(in crate::model) fn resume(&mut self, id: SequenceId, tokens: &[u32]) -> Resumed {
        if let Some(sequence) = self.sequences.get(&id) {
            let n_cached = sequence.tokens.len();
            return Resumed {
                n_cached,
                n_known: n_cached,
                miss: Miss::None,
            };
        }
        if !self.is_causal {
            return Resumed {
                miss: Miss::NotCausal,
                ..Resumed::default()
            };
        }
        self.publish_all();
        let (path, mut miss) = self.walk(tokens);
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
        let n_known = path.len() * BLOCK;
        let path = &path[..n_blocks];
        if let Some(node) = path.last() {
            self.tree.touch(*node);
            let sequence = self.adopt(path, *node, &tokens[..n_blocks * BLOCK]);
            self.sequences.insert(id, sequence);
        }
        Resumed {
            n_cached: n_blocks * BLOCK,
            n_known,
            miss,
        }
    }

    /// The nodes of the whole blocks of `tokens`, as far as they are known. At least one token is
    /// left over.
    fn walk(&self, tokens: &[u32]) -> (Vec<NodeId>, Miss) {
        let mut path = Vec::new();
        let mut node = ROOT;
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

    /// A sequence that goes on behind a path.
    fn adopt(&mut self, path: &[NodeId], node: NodeId, tokens: &[u32]) -> Sequence {
        let mut sequence = Sequence::new(self.pools.len());
        sequence.tokens.extend_from_slice(tokens);
        for (i, pool) in self.pools.iter_mut().enumerate() {
            let first = self.groups[i].rule.first_visible(tokens.len() as u32) as usize / BLOCK;
            sequence.n_gone[i] = first;
            for (at, node) in path.iter().enumerate() {
                let block = self.tree.part(*node, i).filter(|_| at >= first);
                if let Some(block) = block {
                    pool.join(block);
                }
                sequence.tables[i].push(block.unwrap_or(GONE));
            }
        }
        sequence.row = self.tree.part(node, self.state_part());
        if let (Some(rows), Some(row)) = (&mut self.rows, sequence.row) {
            rows.join(row);
        }
        sequence.node = node;
        sequence.n_known = path.len();
        self.tree.pin(node);
        sequence
    }
}
