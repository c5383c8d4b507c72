//! KV caches and recurrent states: which sequence holds which slots, what a query attends to, and the storage.
//!
//! Layers with the same attention view have a pool of blocks of slots, which all sequences share; a slot holds
//! one position in each of those layers. A sequence is a table of blocks ([`block_manager`]). Full blocks
//! are known by the tokens that lead to them ([`prefix`]), so that a later sequence that starts with
//! the same tokens goes on from them, and takes over a copy of what is alike at the start of the
//! block in which it goes another way; a block that nobody uses is kept until its space is needed.
//! Where only a window is attended to, a sequence frees a block when all of it has left the window.
//! The state of a recurrent layer is one row, known by the tokens read so far in the same way.
//!
//! Where attention is paged the blocks of a sequence lie anywhere, and sequences share them. Elsewhere they
//! lie in one run ([`runs`]), which attention reads as it is ([`views`]), and shared prefixes are copied.
//!
//! The block manager is pure; storage is one tensor of keys and one of values for each layer
//! ([`store`]) and one tensor for each part of a state ([`states`]).

mod block_manager;
mod blocks;
mod empty_runs;
mod mask;
mod prefix;
mod resume;
mod runs;
pub(super) mod states;
pub(super) mod store;
#[cfg(test)]
mod tests;
mod views;

pub(super) use block_manager::{Allocated, BlockManager, Group, Rows, Shortage, Table};
pub(super) use mask::Mask;
pub use resume::{Miss, Resumed};
pub(super) use views::MAX_VIEWS;

use crate::plan::BLOCK_LEN;

/// Id of a sequence.
pub type SequenceId = u32;

/// Slots of a pool whose rows are copied to other slots of it, in all layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotCopy {
    pub(super) pool: usize,
    /// The first slot that is read, and the first that is written; they do not overlap.
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) n: usize,
}

/// A block of a pool.
type BlockId = u32;

/// Positions of a block.
const BLOCK: usize = BLOCK_LEN as usize;
