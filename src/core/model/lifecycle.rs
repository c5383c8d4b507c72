//! The lifecycle of a model: loading, the memory that it takes, its graphs.

use std::collections::HashMap;
use std::sync::Arc;

use crate::models::lora::Adapter;
use crate::plan::{BLOCK_LEN, KeyTokens, Plan};
use lab_base::ggml::rpc::Worker;
use lab_base::ggml::{Executor, HostNumbers, Readback, WorkCounts};
use lab_base::weights::{FileBytes, Weights};

use super::adapters::{DeviceWeights, ModelAdapters};
use super::cache::states::States;
use super::cache::store::KvCache;
use super::cache::{BlockManager, KvGroup, SequenceId};
use super::devices;
use super::draft::DraftModel;
use super::draft_rows::DraftRows;
use super::error::{MemoryPurpose, Result};
use super::estimate::{Estimator, larger};
use super::graph;
use super::graph_cache::GraphCache;
use super::graph_shape::{GraphParts, GraphShape, TargetRows};
use super::interleave;
use super::lab::{CapturedRow, Lab};
use super::load::{self, LoadedWeights, ProgressFn};
use super::media::SequenceMedia;
use super::media_towers::MediaTowers;
use super::memory;
use super::memory_use::{DeviceUse, MemoryUse};
use super::options::Options;
use super::points::Points;
use super::prepared::Prepared;
use super::support;
use super::token_sources::TokenSources;
use super::top_rows::TopRows;
use super::versioned::Versioned;

impl PassCounts {
    /// What was done since an earlier state.
    pub fn since(&self, before: &Self) -> Self {
        let (now, then) = (&self.runs, &before.runs);
        Self {
            n_built: self.n_built - before.n_built,
            n_views: self.n_views - before.n_views,
            n_prepared: self.n_prepared - before.n_prepared,
            n_undone: self.n_undone - before.n_undone,
            n_ahead: self.n_ahead - before.n_ahead,
            runs: WorkCounts {
                n_runs: now.n_runs - then.n_runs,
                n_replayed: now.n_replayed - then.n_replayed,
                n_ops: now.n_ops - then.n_ops,
                bytes_in: now.bytes_in - then.bytes_in,
                bytes_out: now.bytes_out - then.bytes_out,
                n_waits: now.n_waits - then.n_waits,
            },
        }
    }
}

/// A loaded model.
pub struct Model {
    pub(super) plan: Plan,
    pub(super) options: Options,
    /// Whether attention reads block tables instead of runs.
    pub(super) is_paged: bool,
    pub(super) loaded: LoadedWeights,
    pub(super) adapters: ModelAdapters,
    pub(super) cache: KvCache,
    pub(super) states: States,
    pub(super) block_manager: Versioned<BlockManager>,
    /// The sources of sequences, if the model reads any.
    pub(super) sources: TokenSources,
    /// The towers of the model.
    pub(super) towers: Option<MediaTowers>,
    /// The media of sequences.
    pub(super) media: HashMap<SequenceId, Arc<SequenceMedia>>,
    /// The sequences whose media could not be read, each with the reason.
    pub(super) media_faults: HashMap<SequenceId, String>,
    /// Slots of each KV group.
    pub(super) n_slots: Vec<usize>,
    pub(super) graphs: GraphCache,
    pub(super) logits: HostNumbers,
    pub(super) hidden: Vec<f32>,
    /// The highest logits of the last pass.
    pub(super) top: TopRows,
    /// A row of logits that was read alone.
    pub(super) row: HostNumbers,
    pub(super) points: Arc<Points>,
    /// The captures and edits of sequences.
    pub(super) labs: HashMap<SequenceId, Arc<Lab>>,
    /// The rows that the last pass captured.
    pub(super) captured_rows: Vec<CapturedRow>,
    /// Number of further passes whose slots are checked, because a sequence disturbed others.
    pub(super) n_checked: usize,
    /// Scratch memory on each device, in bytes.
    pub(super) compute_bytes: Vec<u64>,
    pub(super) n_views: u64,
    /// The next pass, as far as it is known while devices compute.
    pub(super) prepared: Option<Prepared>,
    pub(super) n_prepared: u64,
    pub(super) n_undone: u64,
    pub(super) n_launched_ahead: u64,
    /// Number of passes that were launched ahead since one was not.
    pub(super) n_in_a_row: u32,
    /// Number of next passes that are not launched ahead.
    pub(super) n_resting: u32,
    /// What drafts its next tokens.
    pub(super) drafter: Option<Box<dyn DraftModel>>,
    /// What stands for the values of the target in its next pass, if it is a drafter.
    pub(super) draft_rows: DraftRows,
}

/// What the passes of a model did since it was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassCounts {
    /// Graphs that were built.
    pub n_built: u64,
    /// Attention operations over runs, of a layer.
    pub n_views: u64,
    /// Passes that were prepared while devices computed the pass before.
    pub n_prepared: u64,
    /// Those of them that were not used, because the next batch was another.
    pub n_undone: u64,
    /// Prepared passes that were launched before the tokens of the pass before were read.
    pub n_ahead: u64,
    /// The runs of graphs.
    pub runs: WorkCounts,
}

impl Model {
    /// Loads the weights of a plan and takes the memory to run it.
    ///
    /// # Errors
    /// The weights cannot be used, or memory is missing, which is checked before it is taken.
    pub fn load(
        plan: Plan,
        weights: &Weights,
        options: Options,
        progress: ProgressFn<'_>,
    ) -> Result<Self> {
        Self::load_with(plan, weights, &[], options, progress)
    }

    /// [`Self::load`] with adapters, which apply with their own scales to sequences that set none.
    ///
    /// # Errors
    /// The errors of [`Self::load`], or an update of a weight that is used in other ways than in products.
    pub fn load_with(
        plan: Plan,
        weights: &Weights,
        adapters: &[Adapter],
        mut options: Options,
        progress: ProgressFn<'_>,
    ) -> Result<Self> {
        options.n_seqs = options.n_seqs.max(1);
        let options = support::usable(&plan, options)?;
        if options.deterministic {
            options.check_deterministic(&plan)?;
        }
        let cache_bytes = options.check_cache(&plan)?;
        match plan.devices.is_empty() {
            true => memory::check(MemoryPurpose::Cache, cache_bytes)?,
            false => Estimator::with(&plan, weights, adapters)?.check(&options)?,
        }
        let devices = devices::of_plan(&plan)?;
        let mut loaded = load::load(&plan.tensors, &devices, weights, progress)?;
        if options.interleave {
            loaded.interleaved_bytes = interleave::interleave(&plan, weights, &loaded.tensors)?;
        }
        let adapters = ModelAdapters::load(&plan, adapters)?;
        Self::of_loaded(plan, loaded, adapters, options)
    }

    /// Takes the memory to run a plan whose weights are loaded.
    pub(super) fn of_loaded(
        plan: Plan,
        loaded: LoadedWeights,
        adapters: ModelAdapters,
        options: Options,
    ) -> Result<Self> {
        let is_paged = options.is_paged(&plan);
        let n_slots = options.n_slots(&plan);
        let n_slots_of_all = n_slots.iter().copied().max().unwrap_or(0);
        let pads = options.pads(&plan);
        let trash = if pads { BLOCK_LEN as usize } else { 0 };
        let groups = plan
            .caches
            .iter()
            .zip(&n_slots)
            .map(|(cache, n_slots)| KvGroup {
                // Groups without stored keys count the slots of the others, and take no memory.
                n_slots: match cache.keys {
                    KeyTokens::Pass => n_slots_of_all,
                    _ => *n_slots - trash,
                },
                rule: options.visibility(&plan, cache),
                keys: cache.keys,
            });
        let groups = groups.collect();
        let devices = devices::of_plan(&plan)?;
        let types = [options.k_type, options.v_type];
        let cache = KvCache::new(&plan, &devices, &n_slots, types)?;
        let states = States::new(&plan, &devices, options.n_rows())?;
        let n_rows = (!states.is_empty()).then(|| options.n_rows());
        let mut block_manager = match is_paged {
            true => BlockManager::new(groups, n_rows),
            false => BlockManager::in_runs(groups, n_rows, options.n_seqs),
        };
        if pads {
            block_manager = block_manager.with_trash();
        }
        block_manager.set_default_key(&adapters.default_key(), 0);
        let points = Arc::new(Points::of(&plan)?);
        let capacity = graph::capacity(&plan, adapters.capacity());
        let head = plan.head.as_ref().and_then(|head| head.unit.as_ref());
        let device_of_head = devices[head.map_or(0, |unit| unit.device)];
        let mut executor = Executor::new(&devices, options.n_threads, capacity)?;
        let slots = plan.layers.iter().flat_map(|layer| &layer.slots);
        let mut blocks = slots
            .flat_map(|slot| &slot.branches)
            .map(|branch| &branch.block);
        if blocks.all(|block| block.device != 0) {
            executor.sleep_when_idle();
        }
        if options.deterministic {
            executor.set_batch_invariant();
        }
        if options.plain {
            executor.compute_plainly()?;
        }
        let n_vocab = plan.n_vocab as usize;
        let mut model = Self {
            plan,
            options,
            is_paged,
            loaded,
            adapters,
            cache,
            states,
            block_manager: Versioned::new(block_manager),
            sources: TokenSources::default(),
            towers: None,
            media: HashMap::new(),
            media_faults: HashMap::new(),
            n_slots,
            graphs: GraphCache::new(executor, pads),
            logits: HostNumbers::new(device_of_head),
            hidden: Vec::new(),
            top: TopRows::new(Readback::new(device_of_head), n_vocab),
            row: HostNumbers::new(device_of_head),
            points,
            labs: HashMap::new(),
            captured_rows: Vec::new(),
            n_checked: 0,
            compute_bytes: Vec::new(),
            n_views: 0,
            prepared: None,
            n_prepared: 0,
            n_undone: 0,
            n_launched_ahead: 0,
            n_in_a_row: 0,
            n_resting: 0,
            drafter: None,
            draft_rows: DraftRows::of_kind(TargetRows::Values),
        };
        model.reserve()?;
        Ok(model)
    }

    /// Loads an adapter, which is off for sequences that do not set its scale. It gets the next id.
    ///
    /// # Errors
    /// As [`Self::load_with`]. The model is as before.
    pub fn add_adapter(&mut self, adapter: &Adapter) -> Result<()> {
        let adapter = Adapter {
            scale: 0.0,
            ..adapter.clone()
        };
        let with = self.adapters.with(&self.plan, &adapter)?;
        let before = std::mem::replace(&mut self.adapters, with);
        let bytes = self.compute_bytes.clone();
        self.graphs.clear();
        self.reserve().inspect_err(|_| {
            self.graphs.clear();
            (self.adapters, self.compute_bytes) = (before, bytes);
        })
    }

    /// Frees the adapter of an id, which no sequence uses.
    pub fn remove_adapter(&mut self, id: usize) {
        self.graphs.clear();
        self.adapters.remove(&self.plan, id);
    }

    /// Measures the largest pass, checks that it fits, and takes its memory.
    fn reserve(&mut self) -> Result<()> {
        let mut shape = GraphShape::largest(&self.options, &self.plan, &self.n_slots);
        shape.adapters = self.adapters.present();
        let (graph, pass) = graph::build(&self.graph_parts(), &shape)?;
        self.adapters
            .check(&self.plan, &self.options, &pass.updated)?;
        let n_nodes = graph.n_nodes();
        self.compute_bytes = self.graphs.executor.measure(graph)?;
        let of_source = GraphShape::largest_source(&self.options, &self.plan);
        if let Some(shape) = &of_source {
            let (graph, _) = graph::build(&self.graph_parts(), shape)?;
            let bytes = self.graphs.executor.measure(graph)?;
            larger(&mut self.compute_bytes, &bytes);
        }
        memory::check(MemoryPurpose::Scratch, self.compute_bytes[0])?;
        for shape in [Some(shape), of_source].into_iter().flatten() {
            let (graph, _) = graph::build(&self.graph_parts(), &shape)?;
            self.graphs.executor.reserve(graph)?;
        }
        tracing::debug!(
            compute = self.compute_bytes.iter().sum::<u64>(),
            nodes = n_nodes,
            "reserved"
        );
        Ok(())
    }

    /// The parts from which its graphs are built.
    pub(super) fn graph_parts(&self) -> GraphParts<'_> {
        GraphParts {
            plan: &self.plan,
            weights: DeviceWeights {
                tensors: &self.loaded.tensors,
                updates: Some(&self.adapters.updates),
                update_nodes: self.adapters.capacity(),
            },
            cache: &self.cache,
            states: &self.states,
            options: &self.options,
            n_slots: &self.n_slots,
            points: &self.points,
        }
    }

    pub fn points(&self) -> &Arc<Points> {
        &self.points
    }

    /// The plan that the model runs.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Elements of a row of results: the vocabulary size for logits, the width of the hidden state for vectors.
    pub fn row_width(&self) -> usize {
        self.options.row_width(&self.plan)
    }

    /// Maximum number of rows of results that are computed at a time.
    pub(super) fn max_outputs(&self) -> usize {
        self.options.outputs_at_once(&self.plan)
    }

    /// Results of the last pass: logits `[n_vocab, n_outputs]`, and the hidden state after the final norm
    /// `[n_embd, n_outputs]` if the batch wanted it.
    pub fn results(&self) -> (&[f32], &[f32]) {
        (&self.logits, &self.hidden)
    }

    /// The options with which the model runs.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The files that are used in place as weights.
    pub fn files(&self) -> &[FileBytes] {
        &self.loaded.files
    }

    /// The workers on other machines that compute parts of the model.
    pub fn workers(&self) -> &[Arc<Worker>] {
        self.graphs.executor.workers()
    }

    /// The memory that the model takes, with the weights of its towers, and with its drafter.
    pub fn memory(&self) -> MemoryUse {
        let caches = [self.cache.bytes(), self.states.bytes()];
        let on_processor = [self.adapters.mapped_bytes, self.adapters.copied_bytes];
        let own = MemoryUse {
            mapped: self.loaded.mapped.iter().sum::<u64>() + on_processor[0],
            copied: self.loaded.copied_bytes + on_processor[1],
            cache: caches.iter().copied().flatten().sum(),
            compute: self.compute_bytes.iter().sum(),
            devices: DeviceUse::of_plan(
                &self.plan,
                &self.loaded.mapped,
                &self.loaded.taken,
                on_processor,
                caches,
                &self.compute_bytes,
            ),
        }
        .with_interleaved(self.loaded.interleaved_bytes);
        let own = match &self.drafter {
            Some(drafter) => own.with_model(&drafter.memory()),
            None => own,
        };
        let towers = self.towers.iter().flat_map(MediaTowers::memory);
        towers.fold(own, |all, tower| all.with_tower(&tower))
    }

    /// Number of positions that fit into the cache of every layer, in full blocks. Blocks that are only cached
    /// count as free, and so do those of a prepared pass. Layers with a window free blocks as a sequence continues.
    pub fn free_slots(&self) -> usize {
        let free = self.block_manager.free_with(self.n_ahead());
        free.unwrap_or(self.options.n_ctx)
    }

    /// Number of graphs of passes built so far. A pass of a recently used shape adds none.
    pub fn n_graphs(&self) -> u64 {
        self.graphs.n_built()
    }

    /// What the passes did so far.
    pub fn work(&self) -> PassCounts {
        PassCounts {
            n_built: self.graphs.n_built(),
            n_views: self.n_views,
            n_prepared: self.n_prepared,
            n_undone: self.n_undone,
            n_ahead: self.n_launched_ahead,
            runs: self.graphs.executor.counts(),
        }
    }

    /// Whether each sequence has a recurrent state, which cannot be rolled back.
    pub fn has_states(&self) -> bool {
        !self.states.is_empty()
    }

    /// Whether sequences share cached prefixes.
    pub fn is_shared(&self) -> bool {
        self.options.n_ctx > 0 && self.block_manager.is_shared()
    }

    /// Lets the threads sleep until the next pass.
    pub fn park_threads(&self) {
        self.graphs.executor.rest();
    }
}

impl Drop for Model {
    /// Devices may still read weights and write to caches.
    fn drop(&mut self) {
        self.graphs.executor.wait();
    }
}
