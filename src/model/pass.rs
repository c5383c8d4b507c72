//! One pass: the rows it takes, the graph it replays or builds, what is written and read.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::arch::Mode;
use crate::blocks::Sight;
use crate::blocks::cache::Cache as Visibility;
use crate::ggml;
use crate::plan::{CachePlan, Plan};

use super::cache::{Mask, Rows, Shortage, Table, Taken};
use super::graph::Shape;
use super::stage::{self, StageEnds};
use super::{Batch, Error, Model, Options, SequenceId, split};

/// Takes rows of results as they are computed: the index of the first, and the rows.
pub type EachRows<'a> = &'a mut dyn FnMut(usize, &[f32]);

impl Model {
    /// Runs one pass. Returns the logits `[n_vocab, n_outputs]` of the tokens that want them, in
    /// their order.
    ///
    /// # Errors
    /// A batch that does not fit the model, a full cache, a failed computation. The cache then
    /// holds none of the batch's tokens.
    pub fn forward(&mut self, batch: &Batch) -> Result<&[f32], Error> {
        self.check(batch)?;
        if self.states.is_empty() {
            self.pass(batch, 1, None)?;
            return Ok(&self.logits);
        }
        let parts = split::by_sequence(batch);
        if let [part] = parts.as_slice()
            && part.is_in_order()
        {
            self.pass(&part.batch, part.n_seqs, None)?;
            return Ok(&self.logits);
        }
        let width = self.row_width();
        let mut logits = vec![0.0; width * batch.n_outputs()];
        for part in &parts {
            self.pass(&part.batch, part.n_seqs, None)?;
            for (row, at) in self.logits.chunks_exact(width).zip(&part.outputs) {
                logits[at * width..(at + 1) * width].copy_from_slice(row);
            }
        }
        self.logits = logits;
        Ok(&self.logits)
    }

    /// [`Self::forward`] without keeping all logits: `each` gets some rows at a time, in order, as
    /// long as they are there.
    ///
    /// # Errors
    /// As [`Self::forward`]; rows may have been handed out before.
    pub fn forward_each(&mut self, batch: &Batch, each: EachRows<'_>) -> Result<(), Error> {
        if self.states.is_empty() {
            self.check(batch)?;
            return self.pass(batch, 1, Some(each));
        }
        each(0, self.forward(batch)?);
        Ok(())
    }

    fn check(&self, batch: &Batch) -> Result<(), Error> {
        batch.check(self.options.n_batch, self.plan.n_vocab)?;
        if self.options.n_ctx > 0 || !self.states.is_empty() {
            split::check_order(batch, |sequence| self.next(sequence))?;
        }
        Ok(())
    }

    /// Runs tokens of `n_seqs` sequences, as many of each where something is kept of each.
    fn pass(
        &mut self,
        batch: &Batch,
        n_seqs: usize,
        each: Option<EachRows<'_>>,
    ) -> Result<(), Error> {
        let taken = self.take(batch, n_seqs)?;
        // Nothing is left half done: what the pass took is given back below.
        let compute = AssertUnwindSafe(|| self.compute(batch, &taken, n_seqs, each));
        let result = catch_unwind(compute).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            Err(Error::Internal(text.unwrap_or_default()))
        });
        if result.is_err() {
            // A graph that failed half-way is not replayed, and its rows are not believed.
            self.current = None;
            if self.options.n_ctx > 0 {
                self.ledger.give_back(&batch.places);
            }
        }
        result
    }

    /// What the tokens of a pass are given of what is kept.
    fn take(&mut self, batch: &Batch, n_seqs: usize) -> Result<Taken, Error> {
        if self.options.n_ctx == 0 {
            let read = match self.states.is_empty() {
                true => Vec::new(),
                false => vec![self.options.n_rows(); n_seqs],
            };
            let rows = Rows {
                read,
                write: Vec::new(),
            };
            let cells = Vec::new();
            return Ok(Taken { cells, rows });
        }
        let taken = self.ledger.take(&batch.places, &batch.tokens);
        taken.map_err(|shortage| match shortage {
            Shortage::Rows => Error::Sequences(self.options.n_seqs),
            Shortage::Cells => Error::CacheFull {
                needed: batch.len(),
                free: self.free_cells(),
                n_ctx: self.options.n_ctx,
            },
        })
    }

    fn compute(
        &mut self,
        batch: &Batch,
        taken: &Taken,
        n_seqs: usize,
        each: Option<EachRows<'_>>,
    ) -> Result<(), Error> {
        let n_outputs = batch.n_outputs();
        let is_headless = n_outputs > self.n_outputs();
        let is_cached = self.options.n_ctx > 0;
        let tables: Vec<Table> = match self.is_paged {
            true => self.ledger.tables(&batch.places),
            false => Vec::new(),
        };
        let n_kv = if !tables.is_empty() {
            tables.iter().map(|t| table_len(t.blocks.len())).collect()
        } else if is_cached {
            self.ledger.views(&batch.places)
        } else {
            vec![batch.len(); self.plan.caches.len()]
        };
        let shape = Shape {
            n_tokens: batch.len(),
            n_outputs,
            n_kv,
            n_seqs,
            wants_hidden: batch.wants_hidden || is_headless,
            is_headless,
            adapters: self.adapters.on(&sequences(batch)),
        };
        if self
            .current
            .as_ref()
            .is_none_or(|(current, _)| *current != shape)
        {
            let _span = tracing::trace_span!(target: "phase", "build").entered();
            self.current = None;
            let (graph, inputs) = self.build(&shape)?;
            self.executor.load(graph)?;
            self.current = Some((shape, inputs));
            self.n_graphs += 1;
        }
        let Some((shape, inputs)) = &self.current else {
            return Err(ggml::Error::Compute("no graph is loaded".into()).into());
        };
        let writing = tracing::trace_span!(target: "phase", "inputs").entered();
        inputs.write(&mut self.executor, batch, &taken.cells, &taken.rows)?;
        for (id, tensor) in inputs.scales.iter().filter(|(_, t)| t.is_allocated()) {
            let of_token = |(sequence, _): &(_, _)| self.adapters.scale(*id, *sequence);
            let scales: Vec<f32> = batch.places.iter().map(of_token).collect();
            self.executor.write(tensor, &scales)?;
        }
        for (i, sight) in inputs.sights.iter().enumerate() {
            let mask = match sight {
                Sight::Pages { queries, table } => {
                    let of_pass = &tables[i];
                    let mut blocks = of_pass.blocks.clone();
                    blocks.resize(shape.n_kv[i], NO_BLOCK);
                    self.executor
                        .write(queries, of_pass.queries.as_flattened())?;
                    self.executor.write(table, &blocks)?;
                    continue;
                }
                Sight::Mask(mask) => mask,
            };
            let values = if is_cached {
                self.ledger.mask(i, shape.n_kv[i], &batch.places)
            } else {
                let rule = visibility(&self.plan, &self.options, &self.plan.caches[i]);
                Mask::of_tokens(&batch.places, &rule)
            };
            if self.options.flash_attn {
                self.executor.write(mask, &values.to_f16())?;
            } else {
                self.executor.write(mask, values.as_f32())?;
            }
        }
        drop(writing);
        tracing::trace_span!(target: "phase", "compute").in_scope(|| self.executor.run())?;
        self.hidden.clear();
        if let Some(hidden) = &inputs.hidden {
            self.hidden
                .resize(n_outputs * self.plan.n_embd as usize, 0.0);
            self.executor.read(hidden, &mut self.hidden)?;
        }
        if is_headless {
            let sequences = batch.places.iter().zip(&batch.outputs);
            let sequences = sequences.filter(|(_, wanted)| **wanted);
            let sequences: Vec<_> = sequences.map(|((sequence, _), _)| *sequence).collect();
            return self.project(&sequences, each);
        }
        self.logits.resize(n_outputs * self.row_width(), 0.0);
        if let Some(logits) = &inputs.logits {
            self.executor.read(logits, &mut self.logits)?;
        }
        if let Some(each) = each {
            each(0, &self.logits);
        }
        Ok(())
    }

    /// Makes logits of the rows of the stream that the pass left, each of a sequence, some at a time;
    /// all are kept unless somebody takes each.
    fn project(
        &mut self,
        sequences: &[SequenceId],
        mut each: Option<EachRows<'_>>,
    ) -> Result<(), Error> {
        let n_rows = sequences.len();
        let adapters = self.adapters.on(sequences);
        let (width, n_embd) = (self.row_width(), self.plan.n_embd as usize);
        let at_once = self.n_outputs();
        let is_kept = each.is_none();
        self.logits
            .resize(width * if is_kept { n_rows } else { at_once }, 0.0);
        self.current = None;
        let mut loaded: Option<(usize, StageEnds)> = None;
        for at in (0..n_rows).step_by(at_once) {
            let n = at_once.min(n_rows - at);
            let ends = match &loaded {
                Some((len, ends)) if *len == n => ends.clone(),
                _ => {
                    let weights = self.on_device();
                    let built =
                        stage::build_head(&self.plan, &weights, &self.states, n, &adapters)?;
                    let Some((graph, ends)) = built else {
                        return Err(Error::Internal("there is no head".into()));
                    };
                    self.executor.load(graph)?;
                    loaded = Some((n, ends.clone()));
                    ends
                }
            };
            let rows = &self.hidden[at * n_embd..(at + n) * n_embd];
            self.executor.write(&ends.hidden, rows)?;
            for (id, tensor) in ends.scales.iter().filter(|(_, t)| t.is_allocated()) {
                let of_row = |sequence: &SequenceId| self.adapters.scale(*id, *sequence);
                let scales: Vec<f32> = sequences[at..at + n].iter().map(of_row).collect();
                self.executor.write(tensor, &scales)?;
            }
            tracing::trace_span!(target: "phase", "compute").in_scope(|| self.executor.run())?;
            let begin = if is_kept { at } else { 0 };
            let rows = &mut self.logits[begin * width..(begin + n) * width];
            self.executor.read(&ends.result, rows)?;
            if let Some(each) = &mut each {
                each(at, rows);
            }
        }
        Ok(())
    }
}

/// The sequences of a batch.
fn sequences(batch: &Batch) -> Vec<SequenceId> {
    let mut sequences: Vec<SequenceId> = batch.places.iter().map(|(id, _)| *id).collect();
    sequences.sort_unstable();
    sequences.dedup();
    sequences
}

/// Tables have a multiple of so many blocks, so that a graph serves many steps.
const TABLE_STEP: usize = 64;

/// What stands behind the end of a table.
const NO_BLOCK: i32 = -1;

/// Length of the table of a graph that holds `n_blocks`.
pub(super) fn table_len(n_blocks: usize) -> usize {
    n_blocks.max(1).next_multiple_of(TABLE_STEP)
}

/// What queries of a group of layers see.
pub(super) fn visibility(plan: &Plan, options: &Options, group: &CachePlan) -> Visibility {
    let rule = Visibility::read(&group.unit.options);
    Visibility {
        causal: rule.causal && !options.non_causal && plan.mode == Mode::Causal,
        ..rule
    }
}
