//! One pass: its slots, its graph, the inputs that are written and the results that are read.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::blocks::SequenceGroup;
use crate::plan::{KeyTokens, Plan};
use lab_base::weights::FileBytes;
use lab_sampling::RowLogits;

use super::batch::Batch;
use super::buckets::prompt_bucket;
use super::cache::{Allocation, MAX_VIEWS, NOBODY, PassStateRows, SequenceId, Shortage, SlotCopy};
use super::error::{Error, Result};
use super::finite::is_finite;
use super::graph;
use super::graph_shape::{self, GraphShape, TargetRows};
use super::inputs::{PassData, VisibleKeys, apart};
use super::key_shape::KeyShape;
use super::lab::{self, CapturedRow, PassLab};
use super::lifecycle::Model;
use super::media::{FIRST_MEDIA_ID, MediaOfPass};
use super::named_value::NamedValue;
use super::padding;
use super::stage::{self, StageTensors};
use super::sub_batch::{self, MAX_GROUPS, SubBatch};

/// Maximum number of rows that the output head reads at once for a lens.
const MAX_LENS_ROWS: usize = 64;

/// Receives rows of results as they are computed: the index of the first row, and the rows.
pub type RowsCallback<'a> = &'a mut dyn FnMut(usize, &[f32]);

/// The results of a pass for one token.
#[derive(Clone, Copy)]
pub struct PassRow<'a> {
    pub logits: RowLogits<'a>,
    /// The hidden state `[n_embd]` after the final norm; empty where the batch does not want it.
    pub hidden: &'a [f32],
}

impl<'a> PassRow<'a> {
    /// A row of logits alone.
    pub fn of(logits: &'a [f32]) -> Self {
        Self {
            logits: RowLogits::All(logits),
            hidden: &[],
        }
    }
}

/// What the pass after this one will probably read.
#[derive(Debug, Default)]
pub struct NextPass {
    /// One token of each sequence, whose id is not known yet; none if nothing is known.
    pub batch: Batch,
    /// Whether the tokens are the best ones of this pass: those with the highest logits of all that are not banned.
    pub are_best: bool,
}

/// Receives the results of a pass.
pub trait PassSink {
    /// Devices compute while the host is free until this returns. Returns what the next pass will probably read, so that it is prepared
    /// meanwhile.
    fn launched(&mut self) -> NextPass {
        NextPass::default()
    }

    /// Receives rows, each with its index among the outputs of the batch. Returns those of which it needs all logits, by their numbers
    /// in the slice, and then receives each of these again.
    fn rows(&mut self, rows: &[(usize, PassRow<'_>)]) -> Vec<usize>;
}

/// The tokens of a pass.
#[derive(Clone, Copy)]
pub(super) enum PassTokens<'b> {
    /// Tokens of sequences.
    Texts {
        batch: &'b Batch,
        /// The sources that they read, computed in the same pass. Empty with a cache, which has their keys.
        source: &'b Batch,
        /// The sequences of the batch, of a model with recurrent states; empty for others.
        groups: &'b [SequenceGroup],
        /// The row of each result, if the batch is padded.
        rows: Option<&'b [usize]>,
    },
    /// A source alone, whose keys the cache keeps.
    Source(&'b Batch),
}

/// What a pass reads besides its tokens.
pub(super) struct PassReads {
    /// The keys of each KV group.
    keys: Vec<VisibleKeys>,
    media: MediaOfPass,
    lab: PassLab,
    /// The rows of its sources, if they are rows in the place of tokens.
    source_rows: Vec<f32>,
}

impl PassReads {
    /// Attention operations over runs, of a layer.
    pub(super) fn n_views(&self) -> u64 {
        let views = self.keys.iter().map(|keys| keys.shape().n_views());
        views.max().unwrap_or(0) as u64
    }
}

impl<'b> PassTokens<'b> {
    /// The tokens of texts and those of sources; `none` where there are none.
    fn lists<'n>(self, none: &'n Batch) -> (&'n Batch, &'n Batch)
    where
        'b: 'n,
    {
        match self {
            Self::Texts { batch, source, .. } => (batch, source),
            Self::Source(source) => (none, source),
        }
    }

    /// The tokens that get slots of the cache.
    pub(super) fn stored(self) -> &'b Batch {
        match self {
            Self::Texts { batch, .. } => batch,
            Self::Source(source) => source,
        }
    }

    fn groups(self) -> &'b [SequenceGroup] {
        match self {
            Self::Texts { groups, .. } => groups,
            Self::Source(_) => &[],
        }
    }

    fn rows(self) -> Option<&'b [usize]> {
        match self {
            Self::Texts { rows, .. } => rows,
            Self::Source(_) => None,
        }
    }
}

/// Where the output rows go.
pub(super) enum RowDestination<'a> {
    /// Row `i` is kept as row `places[i]` of the model's logits, which have room for it.
    Kept(&'a [usize]),
    /// The highest logits are kept, and all stay where they were computed. The sink is told when devices compute; the next pass is
    /// prepared then if this one reads the whole batch.
    Top(&'a mut dyn PassSink, bool),
    /// Rows are handed out.
    Each(RowsCallback<'a>),
    /// Hidden states are the results, from which logits are computed later.
    Hidden,
}

impl Model {
    /// Runs a batch: in one pass, or in several where its sequences cannot be computed together. Returns the logits `[n_vocab, n_outputs]` of the tokens that want them, in order.
    ///
    /// # Errors
    /// The batch does not fit the model, the cache is full, or a computation fails. The cache then holds none of
    /// the batch's tokens.
    pub fn forward(&mut self, batch: &Batch) -> Result<&[f32]> {
        self.undo_prepared();
        let with_media = self.batch_with_media(batch);
        let batch = with_media.as_ref().unwrap_or(batch);
        self.check(batch)?;
        self.captured_rows.clear();
        let (placed, source) = self.placed(batch)?;
        let batch = placed.as_ref().unwrap_or(batch);
        self.logits.resize(self.row_width() * batch.n_outputs())?;
        self.run_parts(batch, &source, None)?;
        self.verify_logits(batch)?;
        Ok(&self.logits)
    }

    /// Runs a batch in the passes that it takes. Its results become the logits of the model, or go to `each`.
    fn run_parts(
        &mut self,
        batch: &Batch,
        source: &Batch,
        mut each: Option<RowsCallback<'_>>,
    ) -> Result<()> {
        let n_outputs = batch.n_outputs();
        let in_order: Vec<usize> = (0..n_outputs).collect();
        if self.states.is_empty() && !self.is_split(batch) {
            let tokens = PassTokens::Texts {
                batch,
                source,
                groups: &[],
                rows: None,
            };
            let rows = match each {
                Some(each) => RowDestination::Each(each),
                None => RowDestination::Kept(&in_order),
            };
            return self.pass(tokens, rows);
        }
        let parts = self.parts(batch)?;
        let is_whole = parts.len() == 1 && parts[0].outputs == in_order;
        // So many logits do not fit: the head runs after all passes.
        let is_headless = n_outputs > self.max_outputs();
        let n_hidden = match batch.wants_hidden || is_headless {
            true => n_outputs,
            false => 0,
        };
        let mut hidden = vec![0.0; self.plan.n_embd as usize * n_hidden];
        if each.is_some() && !is_whole && !is_headless {
            self.logits.resize(self.row_width() * n_outputs)?;
        }
        for (n, part) in parts.iter().enumerate() {
            let rows = match &mut each {
                _ if is_headless => RowDestination::Hidden,
                Some(each) if is_whole => RowDestination::Each(each),
                _ => RowDestination::Kept(&part.outputs),
            };
            if let Err(error) = self.pass_part(part, rows) {
                self.undo(batch, &parts[..n]);
                return Err(error);
            }
            scatter(
                &self.hidden,
                &part.outputs,
                self.plan.n_embd as usize,
                &mut hidden,
            );
        }
        self.hidden = hidden;
        match each {
            each if is_headless => {
                let wanted = batch.positions.iter().zip(&batch.outputs);
                let wanted = wanted.filter(|(_, wanted)| **wanted);
                let of_rows: Vec<_> = wanted.map(|((sequence, _), _)| *sequence).collect();
                let rows = match each {
                    Some(each) => RowDestination::Each(each),
                    None => RowDestination::Kept(&in_order),
                };
                self.project(&of_rows, rows)
            }
            Some(each) if !is_whole => {
                each(0, &self.logits);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Removes what the passes of a batch stored that were done before one failed.
    fn undo(&mut self, batch: &Batch, done: &[SubBatch]) {
        if self.options.n_ctx > 0 {
            let done = done.iter();
            done.for_each(|part| self.block_manager.roll_back(&part.batch.positions));
            self.block_manager.give_back(&batch.positions);
        }
    }

    /// The passes that a batch takes. Sequences have the blocks for their tokens then.
    fn parts(&mut self, batch: &Batch) -> Result<Vec<SubBatch>> {
        if self.options.n_ctx > 0 {
            // Where runs lie decides what is read together.
            let prepared = self.block_manager.prepare(&batch.positions);
            let prepared = prepared.map_err(|shortage| self.shortage(shortage, batch))?;
            let ((), copied) = prepared.make(|copy| self.copy_slots(copy));
            copied.inspect_err(|_| self.block_manager.abandon())?;
        }
        Ok(self.split(batch))
    }

    /// [`Self::parts`] of sequences that have the blocks for their tokens.
    pub(super) fn split(&self, batch: &Batch) -> Vec<SubBatch> {
        let (has_states, is_cached) = (!self.states.is_empty(), self.options.n_ctx > 0);
        let n_groups = match (has_states, is_cached) {
            (true, _) => MAX_GROUPS,
            (false, false) => MAX_VIEWS,
            (false, true) => usize::MAX,
        };
        let pads = self.pads(batch);
        let place = |id, n| {
            let class = if pads { prompt_bucket(n) } else { n };
            (class, self.block_manager.order(id))
        };
        let alone = |id| match is_cached {
            false => self.has_spans(),
            true => self.reads_other_slots() && self.is_edited(id),
        };
        let parts = sub_batch::by_sequence(batch, n_groups, place, alone);
        if has_states || !self.reads_other_slots() {
            return parts;
        }
        let largest = self.options.rows_of_pass(&self.plan);
        let (mut out, mut left) = (Vec::new(), parts);
        left.reverse();
        while let Some(part) = left.pop() {
            let padded = match pads {
                true => Some(padding::padded(&part, &self.block_manager, largest)),
                false => None,
            };
            let run = padded.as_ref().unwrap_or(&part);
            match part.halves().filter(|_| !self.fits(&run.batch.positions)) {
                Some([before, after]) => left.extend([after, before]),
                None => out.push(padded.unwrap_or(part)),
            }
        }
        out
    }

    /// Whether rows of nobody pad a pass over a batch. Captures, edits and media have rows of their own in a graph, so their
    /// passes have the shape of the batch.
    pub(super) fn pads(&self, batch: &Batch) -> bool {
        self.options.pads(&self.plan)
            && batch
                .positions
                .iter()
                .all(|(id, _)| !self.labs.contains_key(id) && !self.media.contains_key(id))
    }

    /// Whether one pass can read tokens at these places: its attention operations and masks are bounded.
    fn fits(&self, places: &[(SequenceId, u32)]) -> bool {
        let fits = |(group, n_slots): (usize, &usize)| {
            let views = self.block_manager.views_of(group, places);
            let read = views
                .iter()
                .map(|view| view.n_tokens * view.n_runs * view.n_kv);
            let is_narrow = read.sum::<usize>() <= self.options.most_scores(&self.plan, *n_slots);
            views.len() <= MAX_VIEWS && is_narrow
        };
        let groups = self.n_slots.iter().enumerate();
        let mut read = groups.filter(|(i, _)| self.plan.caches[*i].keys != KeyTokens::Pass);
        read.all(fits)
    }

    /// [`Self::forward`] that hands out each row: the highest logits where the batch wants no more and the device of the head selects
    /// them, all of them otherwise.
    ///
    /// # Errors
    /// The errors of [`Self::forward`]. Some rows may have been handed out before.
    pub fn forward_rows(&mut self, batch: &Batch, sink: &mut dyn PassSink) -> Result<()> {
        if !batch.wants_top || self.n_top(batch) == 0 {
            let (width, n_outputs) = (self.row_width(), batch.n_outputs());
            self.forward(batch)?;
            let n_embd = self.hidden.len() / n_outputs.max(1);
            let rows = self.logits.chunks_exact(width).enumerate();
            let rows = rows.map(|(at, row)| {
                let hidden = &self.hidden[at * n_embd..(at + 1) * n_embd];
                let logits = RowLogits::All(row);
                (at, PassRow { logits, hidden })
            });
            sink.rows(&rows.collect::<Vec<_>>());
            return Ok(());
        }
        let with_media = self.batch_with_media(batch);
        let batch = with_media.as_ref().unwrap_or(batch);
        self.check(batch)?;
        self.captured_rows.clear();
        let (placed, _) = self.placed(batch)?;
        let batch = placed.as_ref().unwrap_or(batch);
        if let Some(prepared) = self.take_prepared(batch) {
            return self.forward_prepared(prepared, batch, sink);
        }
        let parts = self.parts(batch)?;
        let mut is_sound = true;
        for (n, part) in parts.iter().enumerate() {
            let rows = RowDestination::Top(&mut *sink, parts.len() == 1);
            if let Err(error) = self.pass_part(part, rows) {
                self.undo(batch, &parts[..n]);
                return Err(error);
            }
            is_sound &= part.outputs.is_empty() || self.top.are_finite();
            if parts.len() == 1 {
                self.verify(batch, is_sound)?;
            }
            let handed_out = self.hand_out(part.outputs.iter().copied().enumerate(), sink);
            if let Err(error) = handed_out {
                self.undo_prepared();
                self.undo(batch, &parts[..=n]);
                return Err(error);
            }
        }
        match parts.len() {
            1 => Ok(()),
            _ => self.verify(batch, is_sound),
        }
    }

    /// Whether devices compute while the host is free, where a batch wants the highest logits.
    pub fn computes_elsewhere(&self) -> bool {
        self.options.n_ctx > 0 && self.options.n_top(&self.plan) > 0
    }

    /// Number of highest logits that a pass over a batch gives for its rows. Not where logits are computed in parts, or where passes
    /// keep nothing.
    fn n_top(&self, batch: &Batch) -> usize {
        match self.options.n_ctx > 0 && batch.n_outputs() <= self.max_outputs() {
            true => self.options.n_top(&self.plan),
            false => 0,
        }
    }

    /// Hands out rows of the last pass by their highest logits. `places` has the number of each result, and its index among the
    /// outputs of the batch.
    pub(super) fn hand_out(
        &mut self,
        places: impl Iterator<Item = (usize, usize)>,
        sink: &mut dyn PassSink,
    ) -> Result<()> {
        let (executor, pass) = self.graphs.split()?;
        let Some(logits) = &pass.logits else {
            return Ok(());
        };
        let places: Vec<(usize, usize)> = places.collect();
        let top = places.iter().map(|(i, at)| {
            let row = PassRow {
                logits: RowLogits::Top(self.top.row(*i)),
                hidden: &[],
            };
            (*at, row)
        });
        for needed in sink.rows(&top.collect::<Vec<_>>()) {
            if !self.top.is_last(executor) {
                // The next pass has begun, and its logits take the place of these.
                return Err(Error::Disturbed);
            }
            let (i, at) = places[needed];
            self.row.resize(self.plan.n_vocab as usize)?;
            executor.read_row(logits, i, &mut self.row)?;
            sink.rows(&[(at, PassRow::of(&self.row))]);
        }
        Ok(())
    }

    /// The batch with its positions shifted by the length of each sequence's source, and the sources that this pass
    /// computes. The batch is none if the model reads no source.
    fn placed(&mut self, batch: &Batch) -> Result<(Option<Batch>, Batch)> {
        if !self.reads_source() {
            return Ok((None, Batch::default()));
        }
        let (placed, source) = self.after_sources(batch)?;
        Ok((Some(placed), source))
    }

    /// Whether a batch of a model without recurrent states takes several passes, or has to be ordered: attention over
    /// runs reads runs of equal length at equal distances together, and without a cache it reads each sequence by
    /// itself.
    fn is_split(&self, batch: &Batch) -> bool {
        let places = batch.positions.as_slice();
        let is_one = places.windows(2).all(|pair| pair[0].0 == pair[1].0);
        match self.options.n_ctx {
            _ if is_one => self.options.pads(&self.plan),
            // The sources of the pass are not split.
            0 if self.reads_source() => false,
            0 => self.has_spans() || apart(places, places).is_none(),
            _ => !self.is_paged,
        }
    }

    /// Whether whole spans have keys. Without a cache, these lie after the keys of all tokens of the pass.
    fn has_spans(&self) -> bool {
        self.plan.caches.iter().any(|group| group.span().is_some())
    }

    fn pass_part(&mut self, part: &SubBatch, rows: RowDestination<'_>) -> Result<()> {
        let tokens = PassTokens::Texts {
            batch: &part.batch,
            source: &Batch::default(),
            groups: match self.states.is_empty() {
                true => &[],
                false => &part.groups,
            },
            rows: part.rows.as_deref(),
        };
        self.pass(tokens, rows)
    }

    /// [`Self::forward`] without storing all logits: `each` receives some rows at a time, in order.
    ///
    /// # Errors
    /// The errors of [`Self::forward`]. Some rows may have been handed out before.
    pub fn forward_each(&mut self, batch: &Batch, each: RowsCallback<'_>) -> Result<()> {
        let with_media = self.batch_with_media(batch);
        let batch = with_media.as_ref().unwrap_or(batch);
        self.undo_prepared();
        // Where attention reads slots of others, an edited sequence has a pass of its own.
        let mut ids = batch.positions.iter().map(|(id, _)| *id);
        let is_mixed = self.reads_other_slots() && ids.any(|id| self.is_edited(id));
        let is_one_pass = match self.options.n_ctx {
            0 => !self.is_split(batch),
            _ => !is_mixed,
        };
        if self.states.is_empty() && is_one_pass {
            self.check(batch)?;
            self.captured_rows.clear();
            let (placed, source) = self.placed(batch)?;
            let batch = placed.as_ref().unwrap_or(batch);
            let mut is_sound = true;
            let each: RowsCallback<'_> = &mut |at, rows| {
                is_sound &= is_finite(rows);
                each(at, rows);
            };
            self.run_parts(batch, &source, Some(each))?;
            return self.verify(batch, is_sound);
        }
        each(0, self.forward(batch)?);
        Ok(())
    }

    pub(super) fn check(&self, batch: &Batch) -> Result<()> {
        let is_medium = |token: u32| token >= FIRST_MEDIA_ID;
        batch.check(self.options.n_batch, self.plan.n_vocab, is_medium)?;
        if self.options.n_ctx > 0 || !self.states.is_empty() {
            sub_batch::check_order(batch, |sequence| self.next(sequence))?;
        }
        Ok(())
    }

    /// Runs one pass.
    pub(super) fn pass(&mut self, tokens: PassTokens<'_>, rows: RowDestination<'_>) -> Result<()> {
        let stored = tokens.stored();
        let allocated = self.allocate(stored, tokens.groups())?;
        self.guarded(&stored.positions, |this| {
            this.compute(tokens, &allocated, rows)
        })
    }

    /// Computes a pass over these places. If that fails, they are rolled back.
    pub(super) fn guarded(
        &mut self,
        places: &[(SequenceId, u32)],
        compute: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        // A panic leaves nothing half done: the slots of the pass are freed below.
        let result = catch_unwind(AssertUnwindSafe(|| compute(self)));
        let result = result.map(|result| result.and_then(|()| self.check_files()));
        let result = result.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            Err(Error::Internal(text.unwrap_or_default()))
        });
        if result.is_err() {
            // A graph that failed is not run again, and its results are not used.
            self.graphs.forget_loaded();
            self.undo_prepared();
            if self.options.n_ctx > 0 {
                self.block_manager.roll_back(places);
            }
        }
        result
    }

    /// Refuses results if a file of the weights was changed.
    fn check_files(&self) -> Result<()> {
        let mut files = self.loaded.files.iter();
        files.try_for_each(FileBytes::check).map_err(Error::Changed)
    }

    /// Allocates slots and state rows for the tokens of a pass.
    fn allocate(&mut self, batch: &Batch, groups: &[SequenceGroup]) -> Result<Allocation> {
        if self.options.n_ctx == 0 {
            let n_seqs = groups.iter().map(|group| group.n_seqs).sum();
            let rows = PassStateRows {
                read: vec![self.options.n_rows(); n_seqs],
                write: Vec::new(),
            };
            return Ok(Allocation {
                rows,
                ..Allocation::default()
            });
        }
        let allocated = self.block_manager.allocate(&batch.positions, &batch.tokens);
        let allocated = allocated.map_err(|shortage| self.shortage(shortage, batch))?;
        let (allocated, copied) = allocated.make(|copy| self.copy_slots(copy));
        // Runs that were not copied do not hold the keys and values of their tokens.
        copied.inspect_err(|_| self.block_manager.abandon())?;
        Ok(allocated)
    }

    /// Copies slots within the cache, after the passes that write or read them.
    pub(super) fn copy_slots(&self, copy: &SlotCopy) -> Result<()> {
        self.graphs.executor.wait();
        Ok(self.cache.copy(copy)?)
    }

    fn shortage(&self, shortage: Shortage, batch: &Batch) -> Error {
        match shortage {
            Shortage::Rows => Error::Sequences(self.options.n_seqs),
            Shortage::Slots => Error::CacheFull {
                needed: batch.len(),
                free: self.free_slots(),
                n_ctx: self.options.n_ctx,
            },
        }
    }

    fn compute(
        &mut self,
        tokens: PassTokens<'_>,
        allocated: &Allocation,
        mut rows: RowDestination<'_>,
    ) -> Result<()> {
        let none = Batch::default();
        let (batch, _) = tokens.lists(&none);
        let n_outputs = batch.n_outputs();
        // So many logits do not fit: the head runs in parts, after the pass.
        let is_headless = n_outputs > self.max_outputs() || matches!(rows, RowDestination::Hidden);
        let of_tokens = self.of_tokens(batch);
        let asked = of_tokens.as_ref().unwrap_or(batch);
        let (shape, reads) = self.reads_of(tokens, asked, is_headless)?;
        self.n_views += reads.n_views();
        self.load_graph(shape)?;
        self.write_inputs(tokens, allocated, &reads)?;
        self.launch(batch, &mut rows)?;
        let (executor, pass) = self.graphs.split()?;
        lab::read(
            executor,
            &pass.captured_rows,
            &reads.lab,
            asked,
            &mut self.captured_rows,
        )?;
        if let (Some(values), Some(drafter)) = (&pass.values, &mut self.drafter) {
            let width = values.shape()[0] as usize;
            let mut rows = vec![0.0; width * batch.len()];
            let places: Vec<usize> = (0..batch.len()).collect();
            executor.read_rows(values, (&places, width), &mut rows)?;
            drafter.keep(&asked.positions, &rows);
        }
        self.hidden.clear();
        if let Some(hidden) = &pass.hidden {
            self.hidden
                .resize(n_outputs * self.plan.n_embd as usize, 0.0);
            let places: Vec<usize> = (0..n_outputs).collect();
            let width = self.plan.n_embd as usize;
            executor.read_rows(hidden, (&places, width), &mut self.hidden)?;
        }
        if let RowDestination::Hidden = rows {
            return Ok(());
        }
        if is_headless {
            let sequences = batch.positions.iter().zip(&batch.outputs);
            let sequences = sequences.filter(|(_, wanted)| **wanted);
            let sequences: Vec<_> = sequences.map(|((sequence, _), _)| *sequence).collect();
            return self.project(&sequences, rows);
        }
        let width = self.options.row_width(&self.plan);
        let Some(logits) = &pass.logits else {
            // Nothing is read: devices may compute this pass while the next one is made.
            if !executor.runs_ahead() {
                executor.wait();
            }
            return Ok(executor.check_workers()?);
        };
        let _span = tracing::trace_span!(target: "phase", "read").entered();
        match rows {
            RowDestination::Kept(places) => {
                executor.read_rows(logits, (places, width), &mut self.logits)?
            }
            RowDestination::Each(each) => {
                self.logits.resize(n_outputs * width)?;
                let places: Vec<usize> = (0..n_outputs).collect();
                executor.read_rows(logits, (&places, width), &mut self.logits)?;
                each(0, &self.logits);
            }
            RowDestination::Hidden => {}
            RowDestination::Top(..) => self.read_top()?,
        }
        Ok(())
    }

    /// What a pass reads, and the shape of its graph. `asked` has the tokens for which values are captured.
    pub(super) fn reads_of(
        &self,
        tokens: PassTokens<'_>,
        asked: &Batch,
        is_headless: bool,
    ) -> Result<(GraphShape, PassReads)> {
        let none = Batch::default();
        let (batch, source) = tokens.lists(&none);
        let (n_outputs, is_cached) = (batch.n_outputs(), self.options.n_ctx > 0);
        let keys = VisibleKeys::of(
            &self.block_manager,
            (batch, source),
            is_cached,
            self.is_paged,
        );
        let media = self.media_of(batch)?;
        let lab = PassLab::of(
            &self.labs,
            &self.points,
            asked,
            (&*self.block_manager, is_cached),
        );
        let source_rows = self.sources.rows(&source.positions);
        let shape = GraphShape {
            n_tokens: batch.len(),
            n_source: source.len(),
            source_is_rows: !source_rows.is_empty(),
            n_media: media.places.len(),
            n_media_tokens: media.tokens.len(),
            n_outputs: match tokens.rows() {
                Some(_) => padding::n_results(batch),
                None => n_outputs,
            },
            is_padded: tokens.rows().is_some(),
            keys: self.shapes_of(&keys),
            n_ended: graph_shape::n_ended(&self.plan, &batch.positions),
            groups: tokens.groups().to_vec(),
            wants_hidden: batch.wants_hidden || is_headless,
            is_headless,
            n_top: if n_outputs > 0 { self.n_top(batch) } else { 0 },
            adapters: self.adapters.on(&sequences(tokens.stored())),
            lab: lab.shape(),
            gives_values: self.drafter.is_some() && self.options.for_drafter.is_some(),
            target: match self.plan.target {
                Some(_) => self.draft_rows.kind,
                None => TargetRows::None,
            },
        };
        let reads = PassReads {
            keys,
            media,
            lab,
            source_rows,
        };
        Ok((shape, reads))
    }

    /// Writes the inputs of the loaded graph, which has the shape of the pass.
    pub(super) fn write_inputs(
        &mut self,
        tokens: PassTokens<'_>,
        allocated: &Allocation,
        reads: &PassReads,
    ) -> Result<()> {
        let none = Batch::default();
        let (batch, source) = tokens.lists(&none);
        let (executor, pass) = self.graphs.split()?;
        for (group, keys) in reads.keys.iter().enumerate() {
            let runs = keys.runs().iter().enumerate();
            for (i, runs) in runs.filter(|_| moves_runs(&self.plan, group)) {
                executor.move_views((group, i), runs.first)?;
            }
        }
        let data = PassData {
            batch,
            rows: tokens.rows(),
            source,
            source_rows: &reads.source_rows,
            allocated,
            keys: &reads.keys,
            block_manager: &self.block_manager,
            adapters: &self.adapters,
            lab: &reads.lab,
            media: &reads.media,
            target: &self.draft_rows,
            of_sequences: &self.media,
        };
        let span = tracing::trace_span!(target: "phase", "inputs");
        Ok(span.in_scope(|| pass.inputs.write(executor, &data))?)
    }

    /// The shapes of the keys of each KV group. Views of cached runs can be moved, so a graph serves them wherever they
    /// lie.
    fn shapes_of(&self, keys: &[VisibleKeys]) -> Vec<KeyShape> {
        let shape = |(group, keys): (usize, &VisibleKeys)| match (keys, keys.shape()) {
            (VisibleKeys::Runs(_), KeyShape::Runs(mut runs)) if moves_runs(&self.plan, group) => {
                runs.iter_mut().for_each(|runs| runs.first = 0);
                KeyShape::Runs(runs)
            }
            (_, shape) => shape,
        };
        keys.iter().enumerate().map(shape).collect()
    }

    /// Loads the graph of a shape: a kept one, or a new one.
    fn load_graph(&mut self, shape: GraphShape) -> Result<()> {
        if self.graphs.holds(&shape) {
            return Ok(self.graphs.reload(&shape)?);
        }
        let _span = tracing::trace_span!(target: "phase", "build").entered();
        let (graph, pass) = graph::build(&self.graph_parts(), &shape)?;
        Ok(self.graphs.add(shape, graph, pass)?)
    }

    /// The values of the last pass in the order of computation, after those of sources that were read before it.
    /// Empty unless values are captured.
    pub fn values(&self) -> Result<Vec<NamedValue>> {
        let of_source = self.sources.values.iter().cloned();
        Ok(of_source.chain(self.values_of_pass()?).collect())
    }

    pub(super) fn values_of_pass(&self) -> Result<Vec<NamedValue>> {
        let Some(pass) = self.graphs.loaded() else {
            return Ok(Vec::new());
        };
        let executor = &self.graphs.executor;
        let captured = pass.captured.iter();
        captured
            .map(|value| NamedValue::read(executor, value))
            .collect()
    }

    /// Takes the rows that the last pass captured, in the order of points, then of tokens.
    pub fn captured_rows(&mut self) -> Vec<CapturedRow> {
        std::mem::take(&mut self.captured_rows)
    }

    /// The logits `[n_vocab, n]` that the final norm and the output head make of hidden states `[n_embd, n]` of a
    /// sequence. If the head reads several states of a token, `rows` may have all of them: `[size, n]`.
    ///
    /// # Errors
    /// The model has no output head, the rows have another width, or a computation fails.
    pub fn lens(
        &mut self,
        sequence: SequenceId,
        (rows, size): (&[f32], usize),
    ) -> Result<Vec<f32>> {
        let width = self.plan.n_vocab as usize;
        let n_embd = self.plan.n_embd as usize;
        let is_read = size == n_embd || Some(size) == self.points.read_width();
        if rows.is_empty() || !is_read || !rows.len().is_multiple_of(size) {
            let n = rows.len();
            return Err(Error::Internal(format!("{n} numbers for rows of {size}")));
        }
        let adapters = self.adapters.on(&[sequence]);
        let mut logits = vec![0.0; rows.len() / size * width];
        let at_once = self.max_outputs().min(MAX_LENS_ROWS);
        let parts = rows.chunks(at_once * size);
        for (rows, logits) in parts.zip(logits.chunks_mut(at_once * width)) {
            let n = rows.len() / size;
            let built = stage::build_lens(&self.graph_parts(), (size as u64, n), &adapters)?;
            let Some((graph, ends)) = built else {
                return Err(Error::Internal("there is no head".into()));
            };
            self.graphs.load(graph)?;
            let executor = &mut self.graphs.executor;
            executor.write(&ends.hidden, rows)?;
            let of_rows = std::iter::repeat_n(sequence, n);
            ends.scales.write(executor, &self.adapters, &of_rows)?;
            executor.run()?;
            executor.read(&ends.result, logits)?;
        }
        Ok(logits)
    }

    /// Computes the logits of the hidden states of the pass, some rows at a time. `sequences` has the sequence of
    /// each row.
    fn project(&mut self, sequences: &[SequenceId], mut rows: RowDestination<'_>) -> Result<()> {
        let n_rows = sequences.len();
        let adapters = self.adapters.on(sequences);
        let (width, n_embd) = (self.row_width(), self.plan.n_embd as usize);
        let at_once = self.max_outputs();
        let mut loaded: Option<(usize, StageTensors)> = None;
        for at in (0..n_rows).step_by(at_once) {
            let n = at_once.min(n_rows - at);
            let ends = match &loaded {
                Some((len, ends)) if *len == n => ends.clone(),
                _ => {
                    let built = stage::build_head(&self.graph_parts(), n, &adapters)?;
                    let Some((graph, ends)) = built else {
                        return Err(Error::Internal("there is no head".into()));
                    };
                    self.graphs.load(graph)?;
                    loaded = Some((n, ends.clone()));
                    ends
                }
            };
            let hidden = &self.hidden[at * n_embd..(at + n) * n_embd];
            let executor = &mut self.graphs.executor;
            executor.write(&ends.hidden, hidden)?;
            let of_rows = sequences[at..at + n].iter().copied();
            ends.scales.write(executor, &self.adapters, &of_rows)?;
            tracing::trace_span!(target: "phase", "compute").in_scope(|| executor.run())?;
            match &mut rows {
                RowDestination::Kept(places) => {
                    let places = (&places[at..at + n], width);
                    executor.read_rows(&ends.result, places, &mut self.logits)?;
                }
                RowDestination::Each(each) => {
                    self.logits.resize(n * width)?;
                    executor.read(&ends.result, &mut self.logits)?;
                    each(at, &self.logits);
                }
                RowDestination::Hidden => {}
                // So many rows have no highest logits.
                RowDestination::Top(..) => {}
            }
        }
        Ok(())
    }
}

/// Whether the views of the runs of a KV group can be moved: not where whole spans have rows of their own.
fn moves_runs(plan: &Plan, group: usize) -> bool {
    plan.caches[group].span().is_none()
}

/// Copies rows of `width` elements to their places in `out`. Places beyond its end are skipped.
fn scatter(rows: &[f32], places: &[usize], width: usize, out: &mut [f32]) {
    for (row, at) in rows.chunks_exact(width).zip(places) {
        if let Some(out) = out.get_mut(at * width..(at + 1) * width) {
            out.copy_from_slice(row);
        }
    }
}

/// The sequences of a batch, each once.
pub(super) fn sequences(batch: &Batch) -> Vec<SequenceId> {
    let ids = batch.positions.iter().map(|(id, _)| *id);
    let mut sequences: Vec<SequenceId> = ids.filter(|id| *id != NOBODY).collect();
    sequences.sort_unstable();
    sequences.dedup();
    sequences
}
