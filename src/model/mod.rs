//! A plan with its weights on devices: placement, graphs, caches, the forward pass.
//!
//! [`Model::forward`] takes tokens with (sequence, position) pairs and says which rows want logits.
//! One sequence is the simple case, not another path. A pass whose shape is as before replays the
//! graph that stands: inputs are written, nothing is built or allocated. Called by the engine and by
//! the tools that look at raw logits.

mod batch;
mod cache;
mod graph;
mod load;
mod measure;
mod memory;
mod split;
mod states;

use crate::arch::Mode;
use crate::ggml::{self, Executor};
use crate::plan::{CachePlan, Plan, Room};
use crate::weights::{TensorType, Weights};

pub use batch::Batch;
pub use cache::SequenceId;
pub use load::Progress;

use crate::blocks::cache::Cache as Visibility;
use cache::{KeyValues, Mask, Pools};
use graph::{Inputs, SequenceRows, Shape, Watched};
use load::Loaded;
use states::{Slots, States};

/// How a model is run.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Cells of the cache: positions of all sequences together. 0 keeps nothing between passes.
    pub n_ctx: usize,
    /// Positions that one sequence may reach, which decides between rope tables for short and for
    /// long contexts; 0: what the model was trained for.
    pub n_ctx_seq: usize,
    /// Sequences that may run at the same time, where something is kept of each beside keys and
    /// values; at least 1.
    pub n_seqs: usize,
    /// Most tokens of a pass.
    pub n_batch: usize,
    /// Threads that compute.
    pub n_threads: usize,
    /// Element type of cached keys.
    pub k_type: TensorType,
    /// Element type of cached values.
    pub v_type: TensorType,
    /// Whether attention runs without keeping its scores.
    pub flash_attn: bool,
    /// Whether vectors are wanted rather than logits: the stream behind the final norm.
    pub embeddings: bool,
    /// Whether every token sees the whole pass, whatever the definition says.
    pub non_causal: bool,
    /// Whether the values of a pass can be read behind it, which takes memory for all of them.
    pub watch: bool,
}

/// A value of the last pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// Its path, such as `layers.3.attn.q`.
    pub path: String,
    /// Its shape, fastest dimension first, without trailing ones.
    pub shape: Vec<u64>,
    /// Whether its last dimension is the tokens of the pass, one row for each.
    pub is_per_token: bool,
    /// Its elements.
    pub elements: Vec<f32>,
}

impl Options {
    fn room(&self) -> Room {
        Room {
            n_ctx: self.n_ctx as u64,
            n_seqs: self.n_seqs.max(1) as u64,
            n_batch: self.n_batch as u64,
        }
    }
}

/// Why a model could not be loaded or run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A weight cannot be used.
    #[error("tensor `{tensor}` {message}")]
    Weight {
        /// Its name.
        tensor: String,
        /// Why.
        message: String,
    },
    /// A cache of this type is impossible.
    #[error(
        "a cache of {ty} needs rows of whole blocks of {block}: the model's rows have {row} elements"
    )]
    CacheType {
        /// The type asked for.
        ty: TensorType,
        /// Its block.
        block: u64,
        /// The row or head that does not fit.
        row: u64,
    },
    /// More sequences at the same time than there is room for.
    #[error("more than {0} sequences at the same time")]
    Sequences(usize),
    /// It would not fit into memory.
    #[error("not enough memory for {what}: {}", memory::sentence(*needed, *available))]
    Memory {
        /// What for.
        what: &'static str,
        /// Bytes needed.
        needed: u64,
        /// Bytes available.
        available: u64,
    },
    /// No cell is left for a token.
    #[error("the cache is full: {needed} positions asked for, {free} of {n_ctx} free")]
    CacheFull {
        /// Cells asked for.
        needed: usize,
        /// Cells free.
        free: usize,
        /// Cells in all.
        n_ctx: usize,
    },
    /// The batch itself is wrong.
    #[error("a pass of {found}: {expected}")]
    Batch {
        /// What was passed.
        found: String,
        /// What is accepted.
        expected: String,
    },
    /// The tensor library refused or failed.
    #[error(transparent)]
    Ggml(#[from] ggml::Error),
}

/// What a loaded model takes, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    /// Weights used in the mapped file.
    pub mapped: u64,
    /// Weights copied.
    pub copied: u64,
    /// Caches.
    pub cache: u64,
    /// Scratch memory of the largest pass.
    pub compute: u64,
}

/// A loaded model.
pub struct Model {
    plan: Plan,
    options: Options,
    loaded: Loaded,
    cache: KeyValues,
    pools: Pools,
    /// Cells of each group of layers.
    n_cells: Vec<usize>,
    states: States,
    slots: Slots,
    executor: Executor,
    /// Inputs and result of the graph that is loaded, and its shape.
    current: Option<(Shape, Inputs)>,
    logits: Vec<f32>,
    compute_bytes: u64,
    n_graphs: u64,
}

impl Model {
    /// Loads the weights of a plan and takes the memory for running it.
    ///
    /// # Errors
    /// Weights that cannot be used, or memory that is not there: refused before it is taken.
    pub fn load(
        plan: Plan,
        weights: &Weights,
        mut options: Options,
        progress: Progress<'_>,
    ) -> Result<Self, Error> {
        ggml::install_log();
        options.n_seqs = options.n_seqs.max(1);
        let cache_bytes = Self::check_cache(&plan, &options)?;
        memory::check("the key/value cache", cache_bytes)?;
        let loaded = load::load(&plan, weights, progress)?;
        let room = options.room();
        let n_cells: Vec<usize> = plan
            .caches
            .iter()
            .map(|group| room.cells(group) as usize)
            .collect();
        let rules = plan
            .caches
            .iter()
            .map(|group| visibility(&plan, &options, group));
        let pools = Pools::new(n_cells.iter().copied().zip(rules));
        let cache = KeyValues::new(&plan, &n_cells, options.k_type, options.v_type)?;
        let states = States::new(&plan, options.n_seqs)?;
        let capacity = graph::capacity(&plan);
        let executor = Executor::new(&[], options.n_threads, capacity)?;
        let slots = Slots::new(options.n_seqs);
        let mut model = Self {
            plan,
            options,
            loaded,
            cache,
            pools,
            n_cells,
            states,
            slots,
            executor,
            current: None,
            logits: Vec::new(),
            compute_bytes: 0,
            n_graphs: 0,
        };
        model.reserve()?;
        Ok(model)
    }

    fn check_cache(plan: &Plan, options: &Options) -> Result<u64, Error> {
        let states = plan
            .recurrent_bytes(options.n_seqs as u64 + 1)
            .unwrap_or(u64::MAX);
        if options.n_ctx == 0 {
            return Ok(states);
        }
        for (_, rows) in plan.key_values() {
            for (ty, row) in [(options.k_type, rows.k), (options.v_type, rows.v)] {
                // A head is read by itself, so it too must be a whole number of blocks. Values that
                // lie in the keys have the keys' type.
                let ty = if rows.v_in_k { options.k_type } else { ty };
                let head = row / rows.heads;
                if ty.row_bytes(head).is_none() {
                    return Err(Error::CacheType {
                        ty,
                        block: ty.block_len(),
                        row: head,
                    });
                }
            }
        }
        let rows = plan.cache_bytes(options.room(), options.k_type, options.v_type);
        Ok(rows.unwrap_or(u64::MAX).saturating_add(states))
    }

    /// Measures the largest pass, checks that it fits and takes its memory.
    fn reserve(&mut self) -> Result<(), Error> {
        let n_tokens = self.options.n_batch.max(1);
        let n_kv = match self.options.n_ctx {
            0 => vec![n_tokens; self.n_cells.len()],
            _ => self.n_cells.clone(),
        };
        let shape = Shape {
            n_tokens,
            n_outputs: n_tokens,
            n_kv,
            n_seqs: 1,
        };
        let (graph, _) = graph::build(
            &self.plan,
            &self.loaded.tensors,
            &self.cache,
            &self.states,
            &self.options,
            &self.n_cells,
            &shape,
        )?;
        let sizes = self.executor.measure(&graph)?;
        self.compute_bytes = sizes.iter().map(|(_, bytes)| *bytes as u64).sum();
        memory::check("scratch memory", self.compute_bytes)?;
        self.executor.reserve(&graph)?;
        tracing::debug!(
            compute = self.compute_bytes,
            nodes = graph.n_nodes(),
            "reserved"
        );
        Ok(())
    }

    /// The plan it runs.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Elements of a row of results: the vocabulary for logits, the stream for vectors.
    pub fn row_width(&self) -> usize {
        let head = self.plan.head.as_ref().and_then(|head| head.unit.as_ref());
        let n = match head {
            Some(_) if !self.options.embeddings => self.plan.n_vocab,
            _ => self.plan.n_embd,
        };
        n as usize
    }

    /// How it is run.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// What it takes.
    pub fn memory(&self) -> MemoryUse {
        MemoryUse {
            mapped: self.loaded.mapped_bytes,
            copied: self.loaded.copied_bytes,
            cache: (self.cache.bytes() + self.states.bytes()) as u64,
            compute: self.compute_bytes,
        }
    }

    /// Positions that are free in the cache of every layer; layers with a window free theirs as a
    /// sequence goes on.
    pub fn free_cells(&self) -> usize {
        self.pools.free().unwrap_or(self.options.n_ctx)
    }

    /// Graphs built so far; a step that replays the standing graph adds none.
    pub fn n_graphs(&self) -> u64 {
        self.n_graphs
    }

    /// Forgets the positions of a sequence from `from` on. Where something is kept of the whole
    /// sequence, which cannot be taken back, or a window has moved on, all of it is forgotten.
    /// Returns the position at which the sequence goes on.
    pub fn forget(&mut self, sequence: SequenceId, from: u32) -> u32 {
        let from = if self.slots.next(sequence) > from {
            0
        } else {
            from
        };
        let from = self.pools.release(sequence, from);
        if self.slots.next(sequence) > from {
            self.slots.release(sequence);
        }
        from
    }

    /// The values of the last pass in the order of computation; none unless they are watched.
    ///
    /// # Errors
    /// The tensor library refuses to read one.
    pub fn values(&self) -> Result<Vec<Value>, Error> {
        let Some((_, inputs)) = &self.current else {
            return Ok(Vec::new());
        };
        let read = |watched: &Watched| {
            let shape = watched.tensor.shape();
            let n = shape.iter().product::<u64>() as usize;
            let mut elements = vec![0.0f32; n];
            if watched.tensor.ty() == TensorType::I32 {
                let mut ids = vec![0i32; n];
                self.executor.read(&watched.tensor, &mut ids)?;
                elements
                    .iter_mut()
                    .zip(ids)
                    .for_each(|(e, id)| *e = id as f32);
            } else {
                self.executor.read(&watched.tensor, &mut elements)?;
            }
            let rank = shape.iter().rposition(|n| *n != 1).map_or(1, |at| at + 1);
            Ok(Value {
                path: watched.path.clone(),
                shape: shape[..rank].to_vec(),
                is_per_token: watched.is_per_token,
                elements,
            })
        };
        inputs.watched.iter().map(read).collect()
    }

    /// Lets the threads sleep until the next pass.
    pub fn rest(&self) {
        self.executor.rest();
    }

    /// Runs one pass. Returns the logits `[n_vocab, n_outputs]` of the tokens that want them, in
    /// their order.
    ///
    /// # Errors
    /// A batch that does not fit the model, a full cache, a failed computation. The cache then
    /// holds none of the batch's tokens.
    pub fn forward(&mut self, batch: &Batch) -> Result<&[f32], Error> {
        batch.check(self.options.n_batch, self.plan.n_vocab)?;
        if self.states.is_empty() {
            self.pass(batch, 1)?;
            return Ok(&self.logits);
        }
        let parts = split::by_sequence(batch, |sequence| match self.options.n_ctx {
            0 => 0,
            _ => self.slots.next(sequence),
        })?;
        if let [part] = parts.as_slice()
            && part.is_in_order()
        {
            self.pass(&part.batch, part.n_seqs)?;
            return Ok(&self.logits);
        }
        let width = self.row_width();
        let mut logits = vec![0.0; width * batch.n_outputs()];
        for part in &parts {
            self.pass(&part.batch, part.n_seqs)?;
            for (row, at) in self.logits.chunks_exact(width).zip(&part.outputs) {
                logits[at * width..(at + 1) * width].copy_from_slice(row);
            }
        }
        self.logits = logits;
        Ok(&self.logits)
    }

    /// Runs tokens of `n_seqs` sequences, as many of each where something is kept of each.
    fn pass(&mut self, batch: &Batch, n_seqs: usize) -> Result<(), Error> {
        let cells = if self.options.n_ctx == 0 {
            None
        } else {
            if let Some((sequence, position)) = self.pools.unreachable(&batch.places) {
                return Err(Error::Batch {
                    found: format!("position {position} of sequence {sequence}"),
                    expected: "a later one: the window has moved on".into(),
                });
            }
            let cells = self
                .pools
                .take(&batch.places)
                .ok_or_else(|| Error::CacheFull {
                    needed: batch.len(),
                    free: self.free_cells(),
                    n_ctx: self.options.n_ctx,
                })?;
            Some(cells)
        };
        let result = self
            .sequence_rows(batch, n_seqs)
            .and_then(|rows| self.compute(batch, cells.as_deref(), n_seqs, &rows));
        let kept = cells.is_some();
        if let Err(error) = result {
            // A graph that failed half-way is not replayed, and its rows are not believed.
            self.current = None;
            if kept {
                self.pools.give_back(&batch.places);
            }
            for &(sequence, _) in batch.places.iter().filter(|_| kept) {
                if !self.states.is_empty() {
                    self.forget(sequence, 0);
                }
            }
            return Err(error);
        }
        if kept && !self.states.is_empty() {
            for &(sequence, position) in &batch.places {
                self.slots.advance(sequence, position + 1);
            }
        }
        Ok(())
    }

    /// The rows of what is kept that the sequences of a pass read and write.
    fn sequence_rows(&mut self, batch: &Batch, n_seqs: usize) -> Result<SequenceRows, Error> {
        let mut rows = SequenceRows::default();
        if self.states.is_empty() {
            return Ok(rows);
        }
        for &(sequence, position) in batch.places.iter().step_by(batch.len() / n_seqs) {
            if self.options.n_ctx == 0 {
                rows.read.push(self.slots.nothing());
                continue;
            }
            let row = self
                .slots
                .take(sequence)
                .ok_or(Error::Sequences(self.options.n_seqs))?;
            let read = if position == 0 {
                self.slots.nothing()
            } else {
                row
            };
            rows.read.push(read);
            rows.write.push(row);
        }
        Ok(rows)
    }

    fn compute(
        &mut self,
        batch: &Batch,
        cells: Option<&[Vec<usize>]>,
        n_seqs: usize,
        rows: &SequenceRows,
    ) -> Result<(), Error> {
        let n_outputs = batch.n_outputs();
        let n_kv = if cells.is_some() {
            self.pools.views()
        } else {
            vec![batch.len(); self.plan.caches.len()]
        };
        let shape = Shape {
            n_tokens: batch.len(),
            n_outputs,
            n_kv,
            n_seqs,
        };
        if self
            .current
            .as_ref()
            .is_none_or(|(current, _)| *current != shape)
        {
            self.current = None;
            let _span = tracing::trace_span!(target: "phase", "build").entered();
            let (graph, inputs) = graph::build(
                &self.plan,
                &self.loaded.tensors,
                &self.cache,
                &self.states,
                &self.options,
                &self.n_cells,
                &shape,
            )?;
            self.executor.load(graph)?;
            self.current = Some((shape, inputs));
            self.n_graphs += 1;
        }
        let Some((shape, inputs)) = &self.current else {
            return Err(ggml::Error::Compute("no graph is loaded".into()).into());
        };
        let writing = tracing::trace_span!(target: "phase", "inputs").entered();
        inputs.write(&mut self.executor, batch, cells.unwrap_or(&[]), rows)?;
        for (i, mask) in inputs.masks.iter().enumerate() {
            let values = match cells {
                Some(_) => self.pools.mask(i, shape.n_kv[i], &batch.places),
                None => {
                    let rule = visibility(&self.plan, &self.options, &self.plan.caches[i]);
                    Mask::of_tokens(&batch.places, &rule)
                }
            };
            if self.options.flash_attn {
                self.executor.write(mask, &values.to_f16())?;
            } else {
                self.executor.write(mask, values.as_f32())?;
            }
        }
        drop(writing);
        tracing::trace_span!(target: "phase", "compute").in_scope(|| self.executor.run())?;
        self.logits.resize(n_outputs * self.row_width(), 0.0);
        if let Some(logits) = &inputs.logits {
            self.executor.read(logits, &mut self.logits)?;
        }
        Ok(())
    }
}

/// What queries of a group of layers see.
fn visibility(plan: &Plan, options: &Options, group: &CachePlan) -> Visibility {
    let rule = Visibility::read(&group.unit.options);
    Visibility {
        causal: rule.causal && !options.non_causal && plan.mode == Mode::Causal,
        ..rule
    }
}
