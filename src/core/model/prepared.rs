//! A pass that was prepared before its tokens are known. Not here: how, and when it is used (`prepare.rs`).

use super::batch::Batch;
use super::cache::{NOBODY, SequenceId};
use super::sub_batch::SubBatch;

/// A pass whose inputs are written but for its tokens.
pub(super) struct Prepared {
    /// The place of each token of the batch. [`NOBODY`] stands for sequences that have ended.
    pub(super) places: Vec<(SequenceId, u32)>,
    /// The padded pass over them. The tokens are not known.
    pub(super) part: SubBatch,
    pub(super) n_views: u64,
    /// Blocks of each pool that it took.
    pub(super) n_ahead: Vec<usize>,
    /// What the inputs were made of and written to.
    pub(super) versions: InputVersions,
}

/// Differs after each change of block tables, and of the loaded graph and its inputs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct InputVersions {
    pub(super) tables: u64,
    pub(super) graph: u64,
}

impl Prepared {
    /// Whether it serves a batch, if nothing has changed but that sequences have ended.
    pub(super) fn serves(&self, batch: &Batch) -> bool {
        let left = self.places.iter().filter(|(id, _)| *id != NOBODY);
        batch.wants_top
            && !batch.wants_hidden
            && batch.outputs.iter().all(|wanted| *wanted)
            && batch.types.iter().all(|of_type| *of_type == 0)
            && left.eq(&batch.positions)
    }

    /// The pass over a batch that it serves, and the number of each of its results.
    pub(super) fn over(self, batch: &Batch) -> (SubBatch, Vec<usize>) {
        let mut part = self.part;
        let rows = part.rows.as_deref().unwrap_or(&[]);
        let mut tokens = batch.tokens.iter();
        let mut results = Vec::with_capacity(batch.len());
        for (number, ((id, _), row)) in self.places.iter().zip(rows).enumerate() {
            match (*id, tokens.as_slice()) {
                (NOBODY, _) => part.batch.positions[*row] = (NOBODY, 0),
                (_, [token, ..]) => {
                    part.batch.tokens[*row] = *token;
                    results.push(number);
                    tokens.next();
                }
                _ => {}
            }
        }
        (part, results)
    }
}
