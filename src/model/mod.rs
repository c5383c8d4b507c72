//! A plan with its weights on devices: placement, graphs, caches, the forward pass.
//!
//! [`Model::forward`] takes tokens with (sequence, position) pairs and says which rows want logits.
//! One sequence is the simple case, not another path. A pass whose shape is as before replays the
//! graph that stands: inputs are written, nothing is built or allocated. Called by the engine and by
//! the tools that look at raw logits.

mod adapters;
mod batch;
mod cache;
mod estimate;
mod finite;
mod graph;
mod load;
mod measure;
mod memory;
mod pass;
mod pool;
mod split;
mod stage;
mod trace;

use crate::ggml::{self, Executor, Pages};
use crate::lora::Adapter;
use crate::plan::{BLOCK_LEN, KeyValuePlan, Plan, Room};
use crate::weights::{self, TensorType, Weights};

pub use adapters::LoadedAdapter;
pub use batch::Batch;
pub use cache::{Miss, Resumed, SequenceId};
pub use estimate::Estimator;
pub use finite::{NotFinite, is_finite};
pub use load::Progress;
pub use memory::{Purpose, available as available_memory};
pub use pass::EachRows;
pub use trace::trace;

use adapters::Adapters;
use cache::states::States;
use cache::store::KeyValues;
use cache::{BlockCopy, Group, Ledger};
use graph::{Inputs, Shape, Watched};
use load::Loaded;

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
    /// States of ended sequences, and of places within running ones, that are remembered so that a
    /// later sequence can go on from there; only of models that keep states.
    pub n_checkpoints: usize,
    /// Most tokens of a pass.
    pub n_batch: usize,
    /// Most rows of logits that are computed at a time, in turn with what reads them; 0: as many as
    /// take 64 MB.
    pub n_outputs: usize,
    /// Threads that compute.
    pub n_threads: usize,
    /// Element type of cached keys.
    pub k_type: TensorType,
    /// Element type of cached values.
    pub v_type: TensorType,
    /// Whether attention runs without keeping its scores.
    pub flash_attn: bool,
    /// Whether the bits of a sequence's results must not depend on what else is in its passes. Holds
    /// for the process: it slows products of some types in other models as well.
    pub deterministic: bool,
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
    /// Most tokens of a pass where nobody asks for another number.
    pub const N_BATCH: usize = 512;

    fn room(&self) -> Room {
        Room {
            n_ctx: self.n_ctx as u64,
            n_seqs: self.n_seqs.max(1) as u64,
            n_batch: self.n_batch as u64,
        }
    }

    /// The largest context, in whole blocks, whose caches take at most `bytes`.
    pub fn n_ctx_within(&self, plan: &Plan, bytes: u64) -> usize {
        let states = plan.recurrent_bytes(self.n_rows() as u64 + 1);
        let left = bytes.saturating_sub(states.unwrap_or(u64::MAX));
        let fits = |n_blocks: u64| {
            let room = Room {
                n_ctx: n_blocks * BLOCK_LEN,
                ..self.room()
            };
            plan.cache_bytes(room, self.k_type, self.v_type)
                .is_some_and(|needed| needed <= left)
        };
        let (mut fitting, mut too_many) = (0, i32::MAX as u64 / BLOCK_LEN);
        while fitting + 1 < too_many {
            let middle = fitting.midpoint(too_many);
            if fits(middle) {
                fitting = middle;
            } else {
                too_many = middle;
            }
        }
        (fitting * BLOCK_LEN) as usize
    }

    /// Whether results are logits.
    fn projects(&self, plan: &Plan) -> bool {
        let head = plan.head.as_ref().and_then(|head| head.unit.as_ref());
        head.is_some() && !self.embeddings
    }

    /// Elements of a row of results.
    fn row_width(&self, plan: &Plan) -> usize {
        let n = match self.projects(plan) {
            true => plan.n_vocab,
            false => plan.n_embd,
        };
        n as usize
    }

    /// Rows of results that are computed at a time.
    fn outputs_at_once(&self, plan: &Plan) -> usize {
        const BYTES: usize = 64 << 20;
        match self.n_outputs {
            _ if !self.projects(plan) || self.watch => usize::MAX,
            0 => (BYTES / (size_of::<f32>() * self.row_width(plan).max(1))).max(1),
            n => n,
        }
    }

    /// Cells of each group of layers.
    fn n_cells(&self, plan: &Plan) -> Vec<usize> {
        let room = self.room();
        let groups = plan.caches.iter();
        groups.map(|group| room.cells(group) as usize).collect()
    }

    /// The shape of the largest pass.
    fn largest_shape(&self, plan: &Plan, n_cells: &[usize]) -> Shape {
        let n_tokens = self.n_batch.max(1);
        let n_kv = match self.n_ctx {
            0 => vec![n_tokens; n_cells.len()],
            n_ctx if self.is_paged(plan) => {
                let n_blocks = n_ctx.div_ceil(BLOCK_LEN as usize);
                vec![pass::table_len(n_blocks * self.n_seqs.max(1)); n_cells.len()]
            }
            _ => n_cells.to_vec(),
        };
        Shape {
            n_tokens,
            n_outputs: n_tokens.min(self.outputs_at_once(plan)),
            n_kv,
            n_seqs: 1,
            wants_hidden: false,
            is_headless: false,
            adapters: Vec::new(),
        }
    }

    /// Whether attention looks at pages rather than through masks.
    fn is_paged(&self, plan: &Plan) -> bool {
        let fits = |rows: &KeyValuePlan| {
            let (k, v) = (rows.k / rows.heads, rows.v / rows.heads);
            let v_type = if rows.v_in_k {
                self.k_type
            } else {
                self.v_type
            };
            Pages::can_hold(self.k_type, k) && Pages::can_hold(v_type, v)
        };
        self.flash_attn && self.n_ctx > 0 && plan.key_values().all(|(_, rows)| fits(rows))
    }

    fn check_deterministic(&self, plan: &Plan) -> Result<(), Error> {
        match self.n_ctx > 0 && !self.is_paged(plan) {
            true => Err(Error::NotDeterministic),
            false => Ok(()),
        }
    }

    /// States that are kept, where a model has any.
    fn n_rows(&self) -> usize {
        match self.n_ctx {
            0 => 0,
            _ => self.n_seqs.saturating_add(self.n_checkpoints),
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
    /// Attention through masks adds up in an order that depends on the batch.
    #[error(
        "not deterministic with these settings: flash attention on, and keys and values of f32, \
         f16, bf16, q8_0 or q4_0, are needed"
    )]
    NotDeterministic,
    /// It would not fit into memory.
    #[error("not enough memory for {what}: {}", memory::sentence(*what, *needed, *available))]
    Memory {
        /// What for.
        what: Purpose,
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
    /// A fault of this program, which the pass ended with.
    #[error("internal error: {0}")]
    Internal(String),
    /// The data of a weight could not be had.
    #[error(transparent)]
    Data(#[from] weights::Error),
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
    /// Whether attention looks at pages rather than through masks.
    is_paged: bool,
    loaded: Loaded,
    adapters: Adapters,
    cache: KeyValues,
    states: States,
    ledger: Ledger,
    /// Cells of each group of layers.
    n_cells: Vec<usize>,
    executor: Executor,
    /// Inputs and result of the graph that is loaded, and its shape.
    current: Option<(Shape, Inputs)>,
    logits: Vec<f32>,
    hidden: Vec<f32>,
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
        options: Options,
        progress: Progress<'_>,
    ) -> Result<Self, Error> {
        Self::load_with(plan, weights, &[], options, progress)
    }

    /// The same with adapters, which are on with their own scales for sequences that have no others.
    ///
    /// # Errors
    /// As [`Self::load`], and updates of weights that are used in another way than in products.
    pub fn load_with(
        plan: Plan,
        weights: &Weights,
        adapters: &[Adapter],
        mut options: Options,
        progress: Progress<'_>,
    ) -> Result<Self, Error> {
        ggml::install_log();
        options.n_seqs = options.n_seqs.max(1);
        if options.deterministic {
            options.check_deterministic(&plan)?;
            ggml::set_batch_invariant(true);
        }
        let cache_bytes = Self::check_cache(&plan, &options)?;
        memory::check(Purpose::Cache, cache_bytes)?;
        let loaded = load::load(&plan.tensors, weights, progress)?;
        let adapters = Adapters::load(&plan, adapters)?;
        Self::of_loaded(plan, loaded, adapters, options)
    }

    /// Takes the memory for running a plan whose weights are there.
    fn of_loaded(
        plan: Plan,
        loaded: Loaded,
        adapters: Adapters,
        options: Options,
    ) -> Result<Self, Error> {
        let is_paged = options.is_paged(&plan);
        let n_cells = options.n_cells(&plan);
        let groups = plan
            .caches
            .iter()
            .zip(&n_cells)
            .map(|(cache, n_cells)| Group {
                n_cells: *n_cells,
                rule: pass::visibility(&plan, &options, cache),
            });
        let groups = groups.collect();
        let cache = KeyValues::new(&plan, &n_cells, options.k_type, options.v_type)?;
        let states = States::new(&plan, options.n_rows())?;
        let n_rows = (!states.is_empty()).then(|| options.n_rows());
        let mut ledger = Ledger::new(groups, n_rows);
        ledger.set_usual(&adapters.usual_key());
        let capacity = graph::capacity(&plan, adapters.capacity());
        let executor = Executor::new(&[], options.n_threads, capacity)?;
        let mut model = Self {
            plan,
            options,
            is_paged,
            loaded,
            adapters,
            cache,
            states,
            ledger,
            n_cells,
            executor,
            current: None,
            logits: Vec::new(),
            hidden: Vec::new(),
            compute_bytes: 0,
            n_graphs: 0,
        };
        model.reserve()?;
        Ok(model)
    }

    fn check_cache(plan: &Plan, options: &Options) -> Result<u64, Error> {
        let states = plan
            .recurrent_bytes((options.n_rows() as u64).saturating_add(1))
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
        let mut shape = self.options.largest_shape(&self.plan, &self.n_cells);
        shape.adapters = (0..self.adapters.all.len()).collect();
        let (graph, inputs) = self.build(&shape)?;
        self.adapters
            .check(&self.plan, &self.options, &inputs.updated)?;
        let sizes = self.executor.measure(&graph)?;
        self.compute_bytes = sizes.iter().map(|(_, bytes)| *bytes as u64).sum();
        memory::check(Purpose::Scratch, self.compute_bytes)?;
        self.executor.reserve(&graph)?;
        tracing::debug!(
            compute = self.compute_bytes,
            nodes = graph.n_nodes(),
            "reserved"
        );
        Ok(())
    }

    /// The graph of passes of a shape.
    fn build(&self, shape: &Shape) -> Result<(ggml::Graph, Inputs), Error> {
        Ok(graph::build(
            &self.plan,
            &self.on_device(),
            &self.cache,
            &self.states,
            &self.options,
            &self.n_cells,
            shape,
        )?)
    }

    /// The plan it runs.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Elements of a row of results: the vocabulary for logits, the stream for vectors.
    pub fn row_width(&self) -> usize {
        self.options.row_width(&self.plan)
    }

    /// Rows of results that are computed at a time.
    fn n_outputs(&self) -> usize {
        self.options.outputs_at_once(&self.plan)
    }

    /// Results of the last pass: logits `[n_vocab, n_outputs]`, and the stream behind the final norm
    /// `[n_embd, n_outputs]` if the batch wanted it of a model without states.
    pub fn results(&self) -> (&[f32], &[f32]) {
        (&self.logits, &self.hidden)
    }

    /// How it is run.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// What it takes.
    pub fn memory(&self) -> MemoryUse {
        MemoryUse {
            mapped: self.loaded.mapped_bytes + self.adapters.mapped_bytes,
            copied: self.loaded.copied_bytes + self.adapters.copied_bytes,
            cache: (self.cache.bytes() + self.states.bytes()) as u64,
            compute: self.compute_bytes,
        }
    }

    /// Positions for which there is room in the cache of every layer, what is only remembered not
    /// counted: whole blocks. Layers with a window free theirs as a sequence goes on.
    pub fn free_cells(&self) -> usize {
        self.ledger.free().unwrap_or(self.options.n_ctx)
    }

    /// Graphs built so far; a step that replays the standing graph adds none.
    pub fn n_graphs(&self) -> u64 {
        self.n_graphs
    }

    /// Whether a state is kept of each sequence, which cannot be taken back.
    pub fn has_states(&self) -> bool {
        !self.states.is_empty()
    }

    /// Whether sequences share what is known of their tokens.
    pub fn is_shared(&self) -> bool {
        self.options.n_ctx > 0 && self.ledger.is_shared()
    }

    /// Begins a sequence with what is known of its tokens from others, short of the last token; where
    /// states are kept, as far as a block ends. A sequence that runs goes on where it is.
    pub fn resume(&mut self, sequence: SequenceId, tokens: &[u32]) -> Resumed {
        let (resumed, copy) = self.ledger.resume(sequence, tokens);
        Resumed {
            n_cached: self.copied(sequence, resumed.n_cached, copy),
            ..resumed
        }
    }

    /// Takes over the begin of a block; without it the sequence goes on where the block begins.
    fn copied(&mut self, sequence: SequenceId, next: usize, copy: Option<BlockCopy>) -> usize {
        let Some(copy) = copy else { return next };
        let Err(error) = self.cache.copy(&copy) else {
            return next;
        };
        tracing::error!(%error, "a block is not copied");
        self.ledger.truncate(sequence, next - copy.n_cells);
        next - copy.n_cells
    }

    /// The position at which a sequence goes on; 0 if nothing is kept of it.
    pub fn next(&self, sequence: SequenceId) -> u32 {
        self.ledger.next(sequence)
    }

    /// Forgets the positions of a sequence from `from` on, and earlier ones where what is kept cannot
    /// be cut there: a state, a window that has moved on. Returns the
    /// position at which the sequence goes on.
    pub fn forget(&mut self, sequence: SequenceId, from: u32) -> u32 {
        let (next, copy) = self.ledger.forget(sequence, from);
        self.copied(sequence, next as usize, copy) as u32
    }

    /// Ends a sequence. What was computed of it is remembered while there is room.
    pub fn release(&mut self, sequence: SequenceId) {
        self.ledger.release(sequence);
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
}
