//! Numbers of sequences, blocks and slots.

use crate::plan::BLOCK_LEN;

pub type SequenceId = u32;

/// A copy of slots of a pool to other slots of it, in all layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::model) struct SlotCopy {
    pub(in crate::model) pool: usize,
    /// The first slot to read, and the first slot to write. The ranges do not overlap.
    pub(in crate::model) from: usize,
    pub(in crate::model) to: usize,
    pub(in crate::model) n: usize,
}

/// A block of a pool.
pub(super) type BlockId = u32;

pub(in crate::model) type PoolBlock = (usize, usize);

/// Positions of a block.
pub(super) const BLOCK: usize = BLOCK_LEN as usize;
