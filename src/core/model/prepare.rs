//! The next decoding pass, prepared while devices compute the one before: the slots of its tokens, its masks and all other inputs that
//! do not depend on which tokens these are. The tokens are written when they are known, and the pass is launched.
//!
//! A preparation is used for a batch of the same sequences at the same places. Rows of sequences that have ended since become rows of
//! nobody. Any other change to the cache, to sequences or to the loaded graph undoes it: the blocks that it took are given back, and the
//! batch is computed as if there had been none. Only the graph that is loaded serves it, so none is built or loaded for it.
//!
//! Where the best tokens of the pass before are expected, the device copies these to the inputs, and the pass is launched before the
//! host knows them. It is used if they are the tokens of the batch. What it has written to the cache otherwise lies after the ends of
//! sequences, and is written again before it is read.

use super::batch::Batch;
use super::cache::{Allocation, NOBODY, SequenceId};
use super::error::Result;
use super::lifecycle::Model;
use super::pass::{NextPass, PassSink, PassTokens, RowDestination};
use super::prepared::{InputVersions, Prepared};
use super::sub_batch::SubBatch;

/// Most passes in a row that are launched ahead. After the next one the devices have nothing to compute for a moment: some backends
/// keep what they have recorded until then.
const MOST_IN_A_ROW: u32 = 64;

/// Number of passes after one that has read other tokens than its batch before another is launched ahead.
const REST: u32 = 16;

impl Model {
    fn versions(&self) -> InputVersions {
        InputVersions {
            tables: self.block_manager.version(),
            graph: self.graphs.executor.n_changes(),
        }
    }

    /// Prepares the pass over a batch with one token of each sequence, whose id is not known, if the loaded graph serves it.
    pub(super) fn prepare(&mut self, batch: Batch) -> Result<()> {
        let batch = Batch {
            wants_top: true,
            ..batch
        };
        let places = batch.positions.as_slice();
        let can_begin = self.graphs.executor.runs_ahead()
            && self.drafter.is_none()
            && self.plan.target.is_none()
            && self.pads(&batch)
            && places.iter().all(|(id, _)| self.is_running(*id))
            && self.check(&batch).is_ok();
        if !can_begin {
            return Ok(());
        }
        let _span = tracing::trace_span!(target: "phase", "prepare").entered();
        let Some(given) = self.block_manager.prepare_ahead(places) else {
            return Ok(());
        };
        let ((), copied) = given.make(|copy| self.copy_slots(copy));
        copied.inspect_err(|_| self.block_manager.abandon())?;
        let Some((part, n_views)) = self.write_ahead(&batch)? else {
            self.block_manager.give_back(places);
            return Ok(());
        };
        self.n_prepared += 1;
        self.prepared = Some(Prepared {
            part,
            n_views,
            n_ahead: self.block_manager.n_ahead(places),
            places: batch.positions,
            versions: self.versions(),
            is_launched: false,
        });
        Ok(())
    }

    /// Launches the loaded graph for a pass over a batch. While devices compute, the next pass is prepared.
    pub(super) fn launch(&mut self, batch: &Batch, rows: &mut RowDestination<'_>) -> Result<()> {
        let (executor, _) = self.graphs.split()?;
        tracing::trace_span!(target: "phase", "compute").in_scope(|| executor.launch())?;
        self.launched(batch, rows)
    }

    /// The rest of [`Self::launch`], for a pass that was launched.
    fn launched(&mut self, batch: &Batch, rows: &mut RowDestination<'_>) -> Result<()> {
        let RowDestination::Top(sink, is_whole) = rows else {
            return Ok(());
        };
        let NextPass {
            batch: next,
            are_best,
        } = sink.launched();
        let (executor, pass) = self.graphs.split()?;
        if let Some(top) = &pass.top {
            self.top.begin_read(executor, top)?;
        }
        if *is_whole {
            self.prepare(next)?;
        }
        match are_best {
            true => self.launch_ahead(batch),
            false => Ok(()),
        }
    }

    /// Launches the prepared pass, if there is one, with the best tokens of the pass over `batch`, which was launched last.
    fn launch_ahead(&mut self, batch: &Batch) -> Result<()> {
        let Some(prepared) = self.prepared.as_ref().filter(|next| next.follows(batch)) else {
            return Ok(());
        };
        let (executor, pass) = self.graphs.split()?;
        let best = pass.top.as_ref().and_then(|top| top.best.as_ref());
        let (Some(best), Some(ids)) = (best, pass.inputs.tokens.only_ids()) else {
            return Ok(());
        };
        if !self.top.end_alone() || !executor.feeds(best, ids) {
            return Ok(());
        }
        if self.n_in_a_row == MOST_IN_A_ROW || self.n_resting > 0 {
            (self.n_in_a_row, self.n_resting) = (0, self.n_resting.saturating_sub(1));
            return Ok(());
        }
        self.n_in_a_row += 1;
        let _span = tracing::trace_span!(target: "phase", "compute").entered();
        executor.launch_fed(best, ids)?;
        self.n_views += prepared.n_views;
        self.n_launched_ahead += 1;
        let versions = self.versions();
        if let Some(prepared) = &mut self.prepared {
            (prepared.is_launched, prepared.versions) = (true, versions);
        }
        Ok(())
    }

    /// Whether devices compute a pass whose batch is still to come.
    pub fn is_ahead(&self) -> bool {
        self.prepared.as_ref().is_some_and(|prepared| {
            let mut places = prepared.places.iter();
            prepared.is_launched
                && prepared.versions == self.versions()
                && places.any(|(id, _)| *id != NOBODY)
        })
    }

    /// Reads the highest logits of the pass, once they are there.
    pub(super) fn read_top(&mut self) -> Result<()> {
        let (executor, pass) = self.graphs.split()?;
        match &pass.top {
            Some(_) => Ok(self.top.end_read(executor)?),
            None => Ok(()),
        }
    }

    fn is_running(&self, sequence: SequenceId) -> bool {
        self.block_manager.next(sequence) > 0
    }

    /// Writes the inputs of a pass over a batch with the loaded graph. None if the batch needs several passes, or another graph.
    fn write_ahead(&mut self, batch: &Batch) -> Result<Option<(SubBatch, u64)>> {
        let mut parts = self.split(batch);
        let (Some(part), true) = (parts.pop(), parts.is_empty()) else {
            return Ok(None);
        };
        let source = Batch::default();
        let tokens = PassTokens::Texts {
            batch: &part.batch,
            source: &source,
            groups: &[],
            rows: part.rows.as_deref(),
        };
        let (shape, reads) = self.reads_of(tokens, &part.batch, false)?;
        if self.graphs.loaded_shape() != Some(&shape) {
            return Ok(None);
        }
        let allocated = Allocation {
            slots: self.block_manager.slots(&part.batch.positions),
            ..Allocation::default()
        };
        self.write_inputs(tokens, &allocated, &reads)?;
        Ok(Some((part, reads.n_views())))
    }

    /// Takes the preparation if it serves a batch; otherwise it is undone.
    pub(super) fn take_prepared(&mut self, batch: &Batch) -> Option<Prepared> {
        let serves = |prepared: &&Prepared| {
            prepared.versions == self.versions() && self.pads(batch) && prepared.serves(batch)
        };
        let serving = self.prepared.as_ref().filter(serves);
        let has_read = |of: &Prepared| !of.is_launched || of.has_read(batch, self.top.best());
        let is_right = serving.is_none_or(has_read);
        let is_served = serving.is_some() && is_right;
        if !is_right {
            self.n_resting = REST;
        }
        if !is_served || self.graphs.loaded_shape().is_none() {
            self.undo_prepared();
        }
        self.prepared.take()
    }

    /// Gives back what was prepared.
    pub(super) fn undo_prepared(&mut self) {
        if let Some(prepared) = self.prepared.take() {
            self.n_undone += 1;
            self.block_manager.give_back(&prepared.places);
        }
    }

    /// Computes a batch with the pass that was prepared for it, and hands out its rows.
    pub(super) fn forward_prepared(
        &mut self,
        prepared: Prepared,
        batch: &Batch,
        sink: &mut dyn PassSink,
    ) -> Result<()> {
        let (n_views, is_launched) = (prepared.n_views, prepared.is_launched);
        let (part, results) = prepared.over(batch);
        self.block_manager.accept(&batch.positions, &batch.tokens);
        self.guarded(&batch.positions, |this| {
            let rows = &mut RowDestination::Top(&mut *sink, true);
            if is_launched {
                this.launched(&part.batch, rows)?;
            } else {
                this.n_views += n_views;
                let (executor, pass) = this.graphs.split()?;
                let of_sequences = (&*this.block_manager, &this.media);
                pass.inputs
                    .write_tokens(executor, &part.batch, &this.adapters, of_sequences)?;
                this.launch(&part.batch, rows)?;
            }
            tracing::trace_span!(target: "phase", "read").in_scope(|| this.read_top())
        })?;
        self.verify(batch, self.top.are_finite())?;
        let handed_out = self.hand_out(results.into_iter().zip(0..), sink);
        handed_out.inspect_err(|_| {
            self.undo_prepared();
            self.block_manager.roll_back(&batch.positions);
        })
    }

    /// Ends a sequence. In a prepared pass it has a row of nobody.
    pub(super) fn release_prepared(&mut self, sequence: SequenceId) {
        let is_current = |prepared: &Prepared| prepared.versions == self.versions();
        let is_current = self.prepared.as_ref().is_some_and(is_current);
        self.block_manager.release(sequence);
        let versions = self.versions();
        if let Some(prepared) = &mut self.prepared {
            let own = prepared.places.iter_mut().filter(|(id, _)| *id == sequence);
            own.for_each(|place| *place = (NOBODY, 0));
            prepared.n_ahead = self.block_manager.n_ahead(&prepared.places);
            if is_current {
                prepared.versions = versions;
            }
        }
    }

    /// Blocks of each pool that a prepared pass took.
    pub(super) fn n_ahead(&self) -> &[usize] {
        self.prepared
            .as_ref()
            .map_or(&[], |prepared| &prepared.n_ahead)
    }
}
