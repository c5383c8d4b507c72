//! The data that is written into the inputs of a pass.

use super::super::adapters::ModelAdapters;
use super::super::batch::Batch;
use super::super::cache::{Allocation, BlockManager};
use super::super::lab::PassLab;
use super::visible::VisibleKeys;

/// The data that is written into the inputs of a pass.
pub(in crate::model) struct PassData<'a> {
    pub(in crate::model) batch: &'a Batch,
    /// The tokens of sources that the pass reads.
    pub(in crate::model) source: &'a Batch,
    /// Slots and state rows of the pass.
    pub(in crate::model) allocated: &'a Allocation,
    /// The keys that its queries attend to.
    pub(in crate::model) keys: &'a [VisibleKeys],
    pub(in crate::model) block_manager: &'a BlockManager,
    pub(in crate::model) adapters: &'a ModelAdapters,
    /// The captures and edits of the pass.
    pub(in crate::model) lab: &'a PassLab,
}
