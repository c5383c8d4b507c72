//! The data that is written into the inputs of a pass.

use std::collections::HashMap;
use std::sync::Arc;

use super::super::adapters::ModelAdapters;
use super::super::batch::Batch;
use super::super::cache::{Allocation, BlockManager, SequenceId};
use super::super::draft_rows::DraftRows;
use super::super::lab::PassLab;
use super::super::media::{MediaOfPass, SequenceMedia};
use super::visible::VisibleKeys;

/// The data that is written into the inputs of a pass.
pub(crate) struct PassData<'a> {
    pub(crate) batch: &'a Batch,
    /// The row of each result, if the batch is padded; otherwise results are those of the rows that want one.
    pub(crate) rows: Option<&'a [usize]>,
    /// The tokens of sources that the pass reads.
    pub(crate) source: &'a Batch,
    /// The rows of these sources, if they are rows in the place of tokens.
    pub(crate) source_rows: &'a [f32],
    /// Slots and state rows of the pass.
    pub(crate) allocated: &'a Allocation,
    /// The keys that its queries attend to.
    pub(crate) keys: &'a [VisibleKeys],
    pub(crate) block_manager: &'a BlockManager,
    pub(crate) adapters: &'a ModelAdapters,
    /// The captures and edits of the pass.
    pub(crate) lab: &'a PassLab,
    /// The rows of media in the pass.
    pub(crate) media: &'a MediaOfPass,
    /// What stands for the values of the target, in a drafter.
    pub(crate) target: &'a DraftRows,
    /// The media of all sequences.
    pub(crate) of_sequences: &'a HashMap<SequenceId, Arc<SequenceMedia>>,
}
