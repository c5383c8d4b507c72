//! Numbers of sequences, blocks and slots.

use crate::plan::BLOCK_LEN;

pub type SequenceId = u32;

/// Stands for the sequence of rows that pad a pass. Its results are not read.
pub(crate) const NOBODY: SequenceId = SequenceId::MAX;

/// A copy of slots of a pool to other slots of it, in all layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotCopy {
    pub(crate) pool: usize,
    /// The first slot to read, and the first slot to write. The ranges do not overlap.
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) n: usize,
}

/// A change of the block tables that holds once copies have been made: its result is only given with them.
#[must_use = "the copies have to be made before the next pass"]
pub(crate) struct AfterCopies<T> {
    result: T,
    copies: Vec<SlotCopy>,
}

impl<T> AfterCopies<T> {
    pub(super) fn new(result: T, copies: Vec<SlotCopy>) -> Self {
        Self { result, copies }
    }

    pub(super) fn map<U>(self, f: impl FnOnce(T) -> U) -> AfterCopies<U> {
        AfterCopies::new(f(self.result), self.copies)
    }

    /// Makes the copies in their order, up to the first one that fails.
    pub(crate) fn make<E>(
        self,
        copy: impl FnMut(&SlotCopy) -> Result<(), E>,
    ) -> (T, Result<(), E>) {
        (self.result, self.copies.iter().try_for_each(copy))
    }
}

/// A block of a pool.
pub(super) type BlockId = u32;

pub(crate) type PoolBlock = (usize, usize);

/// Positions of a block.
pub(super) const BLOCK: usize = BLOCK_LEN as usize;
