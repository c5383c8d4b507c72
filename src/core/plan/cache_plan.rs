//! Groups of layers with the same attention view, and the capacity of their caches.

use super::Unit;

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

/// The tokens that keys belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyTokens {
    /// The tokens of the sequence.
    Tokens,
    /// The tokens of the source; the sequence's tokens attend to all of them.
    Source,
    /// The tokens of the source, in the layers that read it; nothing of them is stored after the pass.
    Pass,
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
    /// How the slots of a sequence lie.
    pub layout: SlotLayout,
}

/// How the slots of a sequence lie, which decides how many a cache has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotLayout {
    /// In blocks anywhere.
    Blocks,
    /// In runs at homes, which are of equal length.
    Runs,
    /// In runs, with one more block for rows of no sequence.
    PaddedRuns,
}

/// The length of a home is a multiple of this number of blocks, if it is as long: kernels of attention are made for
/// 256 keys.
pub const HOME_STEP: u64 = 256 / BLOCK_LEN;

impl CacheCapacity {
    /// Number of KV slots of a group of layers, in whole blocks. With a window it is enough for the window of each
    /// sequence, the tokens of a pass, and one more window of each sequence for the cached rows of ended sequences,
    /// however long the context is.
    pub fn slots(&self, cache: &CachePlan) -> u64 {
        if cache.keys == KeyTokens::Pass {
            return 0;
        }
        let in_runs = self.layout != SlotLayout::Blocks;
        let in_steps = |n: u64| match in_runs && n >= HOME_STEP {
            true => n.next_multiple_of(HOME_STEP),
            false => n,
        };
        let all = in_steps(self.n_ctx.div_ceil(BLOCK_LEN));
        let blocks = cache.window().map_or(all, |window| {
            // A window starts and ends anywhere in a block, and so do the tokens that a pass adds to it.
            let of_window = window.div_ceil(BLOCK_LEN).saturating_add(1);
            let kept = of_window.saturating_mul(2).saturating_add(1);
            // Homes of equal length for the windows, however small these are.
            let kept = match in_runs {
                true => kept.next_multiple_of(HOME_STEP),
                false => kept,
            };
            let kept = kept.saturating_mul(self.n_seqs);
            all.min(in_steps(
                kept.saturating_add(self.n_batch.div_ceil(BLOCK_LEN)),
            ))
        });
        let trash = u64::from(self.layout == SlotLayout::PaddedRuns);
        blocks.saturating_add(trash).saturating_mul(BLOCK_LEN)
    }
}

impl CachePlan {
    /// Number of positions of a block that has a key; none if blocks have no keys.
    pub fn span(&self) -> Option<u64> {
        self.unit.option_int("span").filter(|span| *span > 0)
    }

    /// The layout of the key rows.
    pub fn layout(&self) -> RowLayout {
        RowLayout {
            block: BLOCK_LEN,
            further: self.span().map_or(0, |span| (BLOCK_LEN / span).max(1)),
        }
    }
}

/// The layout of key rows in blocks: the rows of the positions, then further rows for whole blocks of positions. There
/// is one further row for every `block / further` positions, and it belongs to the last one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowLayout {
    /// Number of positions of a block.
    pub block: u64,
    /// Number of further rows of a block; 0: none.
    pub further: u64,
}

impl RowLayout {
    /// Number of rows of `n` positions, which are whole blocks.
    pub fn rows(self, n: u64) -> u64 {
        (n / self.block.max(1)).saturating_mul(self.block + self.further)
    }

    /// The row of a position.
    pub fn own(self, at: u64) -> u64 {
        self.rows(at) + at % self.block.max(1)
    }

    /// The further row for a position.
    pub fn further(self, at: u64) -> u64 {
        let block = self.block.max(1);
        self.rows(at) + block + at % block * self.further / block
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn further_rows_follow_those_of_the_positions_of_a_block() {
        let layout = |further| RowLayout { block: 16, further };
        for further in [1, 2, 4, 8] {
            let layout = layout(further);
            let mut rows: Vec<u64> = (0..64).map(|at| layout.own(at)).collect();
            let last = (0..64).filter(|at| (at + 1) % (16 / further) == 0);
            rows.extend(last.map(|at| layout.further(at)));
            rows.sort_unstable();
            assert_eq!(rows, (0..layout.rows(64)).collect::<Vec<u64>>());
        }
        assert_eq!(layout(0).own(37), 37);
        assert_eq!(layout(4).own(37), 45);
        assert_eq!(layout(4).further(39), 57);
        // For the tokens of a pass each token has a further row.
        let of_pass = RowLayout {
            block: 5,
            further: 5,
        };
        assert_eq!([of_pass.own(3), of_pass.further(3)], [3, 8]);
    }
}
