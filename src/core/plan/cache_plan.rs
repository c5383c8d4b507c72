//! Groups of layers with the same attention view, and the capacity of their caches.

use super::{KeyTokens, Unit};

/// A KV group: the layers with the same attention view.
#[derive(Clone, Debug, PartialEq)]
pub struct CachePlan {
    /// Name in the definition.
    pub name: String,
    /// The options of the attention view, resolved.
    pub unit: Unit,
    /// The tokens that the keys belong to.
    pub keys: KeyTokens,
}

impl CachePlan {
    /// Maximum number of positions that later queries attend to; none if they attend to all positions.
    pub fn window(&self) -> Option<u64> {
        let size = self.unit.option_int("size").filter(|size| *size > 0);
        size.filter(|_| self.span().is_none())
    }
}

/// Number of positions of a KV block, which are stored, shared and freed together.
pub const BLOCK_LEN: u64 = 16;

/// Capacity of the caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheCapacity {
    /// Number of positions of all sequences together.
    pub n_ctx: u64,
    /// Maximum number of sequences at the same time.
    pub n_seqs: u64,
    /// Maximum number of tokens of a pass.
    pub n_batch: u64,
}

impl CacheCapacity {
    /// Number of KV slots of a group of layers, in whole blocks. With a window it is enough for the window of each
    /// sequence, the tokens of a pass, and one more window of each sequence for the cached rows of ended sequences,
    /// however long the context is.
    pub fn slots(&self, cache: &CachePlan) -> u64 {
        if cache.keys == KeyTokens::Pass {
            return 0;
        }
        let all = self.n_ctx.div_ceil(BLOCK_LEN);
        let blocks = cache.window().map_or(all, |window| {
            // A window starts and ends anywhere in a block, and so do the tokens that a pass adds to it.
            let of_window = window.div_ceil(BLOCK_LEN).saturating_add(1);
            let kept = of_window.saturating_mul(2).saturating_add(1);
            let kept = kept.saturating_mul(self.n_seqs);
            all.min(kept.saturating_add(self.n_batch.div_ceil(BLOCK_LEN)))
        });
        blocks.saturating_mul(BLOCK_LEN)
    }
}
