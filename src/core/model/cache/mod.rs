//! KV caches and recurrent states: the slots of each sequence, the positions that a query attends to, and the
//! storage.
//!
//! Layers with the same attention view have a pool of blocks, which all sequences share. A slot of a block holds
//! one position in each of these layers. A sequence is a table of blocks ([`block_manager`]). The prefix cache
//! finds full blocks by the tokens that lead to them ([`prefix`]). A later sequence that starts with the same
//! tokens uses these blocks, and copies the equal slots of the first block in which it differs. Blocks that nobody
//! uses stay cached until their space is needed. With an attention window, a sequence frees a block once the whole
//! block has left the window. The state of a recurrent layer is one row, cached by the tokens read so far.
//!
//! With paged attention, the blocks of a sequence lie anywhere, and sequences share them. Otherwise they lie in one
//! run ([`runs`]), which attention reads as it is ([`views`]), and shared prefixes are copied.
//!
//! The block manager does no I/O and calls no ggml. Storage is one tensor of keys and one of values for each layer
//! ([`store`]), and one tensor for each part of a state ([`states`]).

mod ahead;
mod block_manager;
mod blocks;
mod empty_runs;
mod kv_events;
mod mask;
mod prefix;
mod prefix_parts;
mod resume;
mod runs;
mod slots;
pub(super) mod states;
pub(super) mod store;
#[cfg(test)]
mod tests;
mod views;

pub(super) use block_manager::{
    Allocation, BlockManager, BlockTables, KvGroup, PassStateRows, Shortage,
};
pub use kv_events::{BlockAdapter, KvEvent};
pub(super) use mask::mask_of_tokens;
pub(super) use prefix_parts::PartPlace;
pub(super) use resume::usable_blocks;
pub use resume::{CacheMiss, CachedPrefix};
pub use slots::SequenceId;
pub(super) use slots::{AfterCopies, NOBODY, PoolBlock, SlotCopy};
use slots::{BLOCK, BlockId};
pub(super) use views::{MAX_VIEWS, PADDING};
