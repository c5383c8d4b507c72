//! Runs the graphs of decoding sequences before there are any: devices record them, and the first requests wait for none.

use super::batch::Batch;
use super::buckets::buckets_to;
use super::cache::SequenceId;
use super::error::Result;
use super::lifecycle::Model;
use super::pass::{PassRow, PassSink};

/// Number of times that a graph runs: devices record one that did not change since its last run.
const N_RUNS: u32 = 3;

/// Takes rows as they come.
struct NoRows;

impl PassSink for NoRows {
    fn rows(&mut self, _: &[(usize, PassRow<'_>)]) -> Vec<usize> {
        Vec::new()
    }
}

impl Model {
    /// Runs passes of as many short sequences as graphs are padded to, if passes are padded. No sequence may have begun.
    ///
    /// # Errors
    /// A pass failed. The model is as before.
    pub fn warm_up(&mut self) -> Result<()> {
        if !self.options.pads(&self.plan) {
            return Ok(());
        }
        let most = self.options.n_seqs.min(self.options.n_batch).max(1);
        let result = buckets_to(most).try_for_each(|n| self.decode_first(n as SequenceId));
        (0..most as SequenceId).for_each(|id| self.discard(id));
        result
    }

    /// The first passes of `n` sequences.
    fn decode_first(&mut self, n: SequenceId) -> Result<()> {
        for _ in 0..N_RUNS {
            let mut batch = Batch {
                wants_top: true,
                ..Batch::default()
            };
            (0..n).for_each(|id| batch.push(0, id, self.next(id), true));
            self.forward_rows(&batch, &mut NoRows)?;
        }
        Ok(())
    }
}
