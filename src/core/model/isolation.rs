//! Keeps numbers that are not finite out of the results of other sequences.
//!
//! Attention over runs reads slots as they lie, those of other sequences too, and gives these a weight of zero. Zero
//! times NaN or infinity is NaN. So every slot holds finite numbers between passes. A pass whose results are not finite
//! is not used if more than one sequence may be the cause; slots with such numbers are cleared, and the sequences that
//! own them start anew. Edits can hide such numbers from the results, so the slots that an edited sequence writes are
//! read back. Paged attention and passes without a cache read no slot of another sequence.
//!
//! Not here: which request ends because of its numbers.

use super::batch::Batch;
use super::cache::{PoolBlock, SequenceId};
use super::error::{Error, Result};
use super::finite::is_finite;
use super::lifecycle::Model;
use super::pass::sequences;

/// Number of passes whose slots are checked after a sequence disturbed others.
const N_CHECKED: usize = 256;

impl Model {
    /// Whether attention reads slots of other sequences.
    pub(super) fn reads_other_slots(&self) -> bool {
        self.options.n_ctx > 0 && !self.is_paged
    }

    /// Whether values of a sequence are edited.
    pub(super) fn is_edited(&self, sequence: SequenceId) -> bool {
        let lab = self.labs.get(&sequence);
        lab.is_some_and(|lab| !lab.key().is_empty())
    }

    /// [`Self::verify`] after the logits of a batch were stored.
    pub(super) fn verify_logits(&mut self, batch: &Batch) -> Result<()> {
        let is_sound = !self.reads_other_slots() || is_finite(&self.logits);
        self.verify(batch, is_sound)
    }

    /// Checks the results of the passes over a batch; `is_sound` says whether its logits are finite. A single sequence
    /// whose own tokens in this batch are the cause keeps its logits, whose user reports them.
    pub(super) fn verify(&mut self, batch: &Batch, is_sound: bool) -> Result<()> {
        if !self.reads_other_slots() || batch.is_empty() {
            return Ok(());
        }
        let ids = sequences(batch);
        let mut captured = self.captured_rows.iter();
        let has_sound_rows = is_sound && captured.all(|row| is_finite(&row.row));
        let hidden = match has_sound_rows {
            true => self.not_finite_of(batch, &ids),
            false => Ok(Vec::new()),
        };
        self.n_checked = self.n_checked.saturating_sub(1);
        let mut error = match hidden {
            Ok(hidden) if has_sound_rows && hidden.is_empty() => return Ok(()),
            Ok(_) => Error::Disturbed,
            Err(error) => error,
        };
        self.undo_prepared();
        self.graphs.executor.wait();
        let mut found = self.cache.not_finite().unwrap_or_default();
        // What rows of nobody have written is read by none.
        found.retain(|block| !self.block_manager.is_trash(*block));
        if let ([id], Error::Disturbed) = (ids.as_slice(), &error) {
            let own = self
                .block_manager
                .blocks_from(*id, self.first_of(batch, *id));
            if found.iter().all(|block| own.contains(block)) {
                if !is_sound || found.is_empty() {
                    return Ok(());
                }
                error = Error::NotFinite;
            }
        }
        self.block_manager.roll_back(&batch.positions);
        self.block_manager.drop_blocks(&found);
        self.cache.clear(&found)?;
        // A sequence whose first tokens have no results is found by its slots.
        self.n_checked = N_CHECKED;
        Err(error)
    }

    /// The blocks with numbers that are not finite among those that a batch wrote and that its results may hide.
    fn not_finite_of(&self, batch: &Batch, ids: &[SequenceId]) -> Result<Vec<PoolBlock>> {
        let mut found = Vec::new();
        for id in ids {
            if self.n_checked > 0 || self.is_edited(*id) {
                let written = self
                    .block_manager
                    .blocks_from(*id, self.first_of(batch, *id));
                self.graphs.executor.wait();
                found.extend(self.cache.not_finite_among(&written)?);
            }
        }
        Ok(found)
    }

    /// Clears the slots of a sequence that is discarded, because others read them.
    pub(super) fn clear_slots(&mut self, sequence: SequenceId) {
        if !self.reads_other_slots() {
            return;
        }
        let blocks = self.block_manager.blocks_from(sequence, 0);
        self.graphs.executor.wait();
        if let Err(error) = self.cache.clear(&blocks) {
            tracing::error!(%error, sequence, "the slots of a sequence are not cleared");
        }
    }

    /// The first position of a sequence that is computed with a batch: that of its source, if the batch has its first
    /// token.
    fn first_of(&self, batch: &Batch, id: SequenceId) -> u32 {
        let own = batch.positions.iter().find(|(of, _)| *of == id);
        match own.map_or(0, |(_, position)| *position) {
            first if first == self.block_manager.n_source(id) => 0,
            first => first,
        }
    }
}
