//! The memory that loading and running a model takes, computed without taking it.
//!
//! An estimate takes the same steps as [`Model::load`](super::Model::load) in the same order and with the same
//! code, up to the point where memory would be taken: weights are laid out, caches are described, the graph of the
//! largest pass is built and measured. Nothing is approximated. Called by `inspect`.

use crate::arch::Mode;
use crate::blocks::RowGrid;
use crate::blocks::cache::CacheOptions;
use crate::blocks::selection::Selection;
use crate::models::lora::Adapter;
use crate::plan::{KeyTokens, Plan};
use lab_base::ggml::{Device, Executor, Graph, MisplacedOp};
use lab_base::weights::{TensorType, Weights};

use super::adapters::{DeviceWeights, ModelAdapters};
use super::cache::states::States;
use super::cache::store::KvCache;
use super::devices;
use super::error::{MemoryPurpose, Result};
use super::graph;
use super::graph_shape::{GraphParts, GraphShape};
use super::interleave;
use super::load::{self, PlannedTensors, WeightLayout};
use super::memory;
use super::memory_use::{DeviceUse, MemoryUse, TowerUse};
use super::options::Options;
use super::points::Points;
use super::support;

/// A model that is laid out but not loaded.
pub struct Estimator<'p> {
    plan: &'p Plan,
    laid_out: PlannedTensors,
    adapters: ModelAdapters,
    executor: Executor,
    devices: Vec<Device>,
    /// Free bytes of each device at the start; none if the device does not report them.
    free: Vec<Option<u64>>,
}

impl<'p> Estimator<'p> {
    /// Lays out the weights of a plan without reading their data.
    pub fn new(plan: &'p Plan, weights: &Weights) -> Result<Self> {
        Self::with(plan, weights, &[])
    }

    /// [`Self::new`] with adapters, all of which are on.
    pub fn with(plan: &'p Plan, weights: &Weights, adapters: &[Adapter]) -> Result<Self> {
        let devices = devices::of_plan(plan)?;
        // Read first, because memory that a device uses in place may count as taken from here on.
        let free = devices.iter().map(|device| device.free_memory()).collect();
        let layout = WeightLayout::new(&plan.tensors, &devices, weights, &mut |_, _| {})?;
        let laid_out = layout.stand_in(&plan.tensors, &devices)?;
        let adapters = ModelAdapters::stand_in(plan, adapters)?;
        let capacity = graph::capacity(plan, adapters.capacity());
        Ok(Self {
            plan,
            laid_out,
            adapters,
            executor: Executor::new(&devices, 1, capacity)?,
            devices,
            free,
        })
    }

    /// The memory that the model takes with these options, in bytes.
    ///
    /// # Errors
    /// The errors of [`Model::load`](super::Model::load) for these options, except missing memory.
    pub fn memory(&mut self, options: &Options) -> Result<MemoryUse> {
        let options = &support::usable(self.plan, options.clone())?;
        if options.deterministic {
            options.check_deterministic(self.plan)?;
        }
        options.check_cache(self.plan)?;
        let n_slots = options.n_slots(self.plan);
        let types = [options.k_type, options.v_type];
        let (_, rows) = KvCache::describe(self.plan, &self.devices, &n_slots, types)?;
        let (_, states) = States::describe(self.plan, &self.devices, options.n_rows())?;
        let caches = [rows.bytes(), states.bytes()];
        let graph = self.graph(options, &GraphShape::largest(options, self.plan, &n_slots))?;
        let mut compute = self.executor.measure(graph)?;
        if let Some(shape) = GraphShape::largest_source(options, self.plan) {
            let of_source = self.graph(options, &shape)?;
            let of_source = self.executor.measure(of_source)?;
            larger(&mut compute, &of_source);
        }
        let total = |parts: &[u64]| parts.iter().copied().fold(0, u64::saturating_add);
        let interleaved = match options.interleave {
            true => interleave::bytes(self.plan, &self.laid_out.tensors),
            false => 0,
        };
        let used = MemoryUse {
            mapped: total(&self.laid_out.mapped) + self.adapters.mapped_bytes,
            copied: self.laid_out.copied_bytes + self.adapters.copied_bytes,
            cache: total(&caches[0]).saturating_add(total(&caches[1])),
            compute: total(&compute),
            devices: DeviceUse::of_plan(
                self.plan,
                &self.laid_out.mapped,
                &self.laid_out.taken,
                [self.adapters.mapped_bytes, self.adapters.copied_bytes],
                caches.each_ref().map(Vec::as_slice),
                &compute,
            ),
        };
        Ok(used.with_interleaved(interleaved))
    }

    /// Checks that loading finds enough memory on every device, by the loader's own checks in the same order. At
    /// the loader's last check the copied weights are in memory already. Here they are added to what the check
    /// needs.
    pub fn check(&mut self, options: &Options) -> Result<()> {
        if self.plan.devices.is_empty() {
            memory::check(MemoryPurpose::Cache, options.check_cache(self.plan)?)?;
        }
        let used = self.memory(options)?.devices;
        for (free, used) in self.free.iter().zip(&used).skip(1) {
            memory::check_device(used, *free)?;
        }
        let processor = &used[0];
        if !self.plan.devices.is_empty() {
            memory::check(MemoryPurpose::Cache, processor.cache)?;
        }
        load::check(processor.weights)?;
        let compute = processor.weights.saturating_add(processor.compute);
        memory::check(MemoryPurpose::Scratch, compute)
    }

    /// Bytes of weights that a pass over one token of one sequence reads, without a cache together with a source of
    /// one token. Of tables it reads the token's row, of experts at most the selected number.
    pub fn weight_bytes_read(&self, options: &Options) -> Result<u64> {
        let one = Options {
            n_batch: 1,
            ..options.clone()
        };
        // Most tokens do not end a block that has a key.
        let shape = GraphShape {
            n_ended: vec![0; self.plan.caches.len()],
            ..GraphShape::largest(&one, self.plan, &options.n_slots(self.plan))
        };
        Ok(self
            .graph(options, &shape)?
            .bytes_read(&self.laid_out.tensors))
    }

    /// Operations of the largest pass that cannot run on the devices where their units are placed. They run on the
    /// processor instead.
    pub fn lacking(&self, options: &Options) -> Result<Vec<MisplacedOp>> {
        options.check_cache(self.plan)?;
        let shape = GraphShape::largest(options, self.plan, &options.n_slots(self.plan));
        let graph = self.graph(options, &shape)?;
        let others = self.devices.iter().enumerate().skip(1);
        Ok(others
            .flat_map(|(at, device)| graph.lacking(*device, at))
            .collect())
    }

    /// Scratch memory of a run of a tower over a grid on each device, in bytes.
    ///
    /// # Errors
    /// The grid does not fit the tower.
    pub(super) fn tower_scratch(&mut self, grid: RowGrid, options: &Options) -> Result<Vec<u64>> {
        let plan = self.plan;
        let types = [options.k_type, options.v_type];
        let no_slots = vec![0; plan.caches.len()];
        let (cache, rows) = KvCache::describe(plan, &self.devices, &no_slots, types)?;
        rows.stand_in()?;
        let (states, rows) = States::describe(plan, &self.devices, 0)?;
        rows.stand_in()?;
        let parts = GraphParts {
            plan,
            weights: DeviceWeights {
                tensors: &self.laid_out.tensors,
                updates: None,
                update_nodes: 0,
            },
            cache: &cache,
            states: &states,
            options,
            n_slots: &[],
            points: &Points::default(),
        };
        let (graph, _) = graph::build_tower(&parts, grid, &[])?;
        Ok(self.executor.measure(graph)?)
    }

    /// The memory of a tower whose largest run takes so much scratch memory on each device.
    pub(super) fn of_tower(&self, compute: &[u64]) -> TowerUse {
        let total = |parts: &[u64]| parts.iter().copied().fold(0, u64::saturating_add);
        TowerUse {
            mapped: total(&self.laid_out.mapped),
            weights: self.laid_out.copied_bytes,
            compute: total(compute),
            devices: DeviceUse::of_plan(
                self.plan,
                &self.laid_out.mapped,
                &self.laid_out.taken,
                [0, 0],
                [&[], &[]],
                compute,
            ),
        }
    }

    /// The graph of a pass over caches without memory.
    fn graph(&self, options: &Options, shape: &GraphShape) -> Result<Graph> {
        let plan = self.plan;
        let n_slots = options.n_slots(plan);
        let types = [options.k_type, options.v_type];
        let (cache, rows) = KvCache::describe(plan, &self.devices, &n_slots, types)?;
        rows.stand_in()?;
        let (states, rows) = States::describe(plan, &self.devices, options.n_rows())?;
        rows.stand_in()?;
        let weights = DeviceWeights {
            tensors: &self.laid_out.tensors,
            updates: Some(&self.adapters.updates),
            update_nodes: self.adapters.capacity(),
        };
        let parts = GraphParts {
            plan,
            weights,
            cache: &cache,
            states: &states,
            options,
            n_slots: &n_slots,
            points: &Points::default(),
        };
        let shape = GraphShape {
            adapters: (0..self.adapters.all.len()).collect(),
            ..shape.clone()
        };
        let (graph, _) = graph::build(&parts, &shape)?;
        Ok(graph)
    }
}

/// Replaces each number by that of `other` if that is larger.
pub(super) fn larger(bytes: &mut [u64], other: &[u64]) {
    for (bytes, other) in bytes.iter_mut().zip(other) {
        *bytes = (*bytes).max(*other);
    }
}

impl Plan {
    /// Bytes of keys and values that the token at `position`, the last one so far, attends to, over all layers,
    /// with keys and values of these types.
    ///
    /// `None` if a row is not a whole number of blocks of its type, or no sequence is as long.
    pub fn cache_bytes_read(&self, position: u64, k: TensorType, v: TensorType) -> Option<u64> {
        let position = u32::try_from(position).ok()?;
        let len = position.checked_add(1)?;
        let mut rows = self
            .units()
            .filter_map(|unit| Some((unit, unit.key_values()?)))
            .filter(|(_, rows)| self.caches[rows.cache].keys != KeyTokens::Pass);
        rows.try_fold(0u64, |sum, (unit, rows)| {
            let values = if rows.v_in_k { 0 } else { v.row_bytes(rows.v)? };
            let row = k.row_bytes(rows.k)?.checked_add(values)?;
            let rule = CacheOptions::read(&self.caches[rows.cache].unit.options);
            let rule = CacheOptions {
                causal: rule.causal && self.mode == Mode::Causal,
                ..rule
            };
            let seen = rule.visible(position, len).len() as u64;
            // A selection reads the index rows of all positions.
            let selection = self.selection(unit);
            let selection = selection.map(|of| Selection::read(&of.options));
            let few = selection.and_then(|of| Some((of.of_seen(seen)?, of.d)));
            if let Some(whole) = seen.checked_div(rule.span) {
                // The last positions, and whole blocks: all blocks, or the selected ones.
                let near = rule.near().min(seen);
                let top = few.map_or(whole, |(few, _)| few / rule.span);
                let judged = few.map_or(0, |_| whole * rule.span);
                let sum = sum.checked_add(k.row_bytes(rows.index)?.checked_mul(judged)?)?;
                return sum.checked_add(row.checked_mul(near.checked_add(top)?)?);
            }
            let (read, index) = match few {
                Some((few, d)) => (few, k.row_bytes(d.min(rows.index))?),
                None => (seen, 0),
            };
            let sum = sum.checked_add(index.checked_mul(seen)?)?;
            sum.checked_add(row.checked_mul(read)?)
        })
    }
}
