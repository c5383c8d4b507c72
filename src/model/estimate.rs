//! What loading and running a model would take, without taking it.
//!
//! The same steps as [`Model::load`](super::Model::load) in the same order, with the same code, up to
//! where it would take memory: weights are laid out, caches described, the graph of the largest pass
//! built and measured. Nothing here guesses. Called by `inspect`.

use crate::ggml::{Arena, Device, Executor, Graph, Tensor};
use crate::plan::Plan;
use crate::weights::Weights;

use super::cache::states::States;
use super::cache::store::KeyValues;
use super::graph::{self, Shape};
use super::load::{self, Layout};
use super::{Error, MemoryUse, Model, Options, memory, pass};

/// A model that is laid out and not loaded.
pub struct Estimator<'p> {
    plan: &'p Plan,
    tensors: Vec<Tensor>,
    mapped: u64,
    copied: u64,
    executor: Executor,
}

impl<'p> Estimator<'p> {
    /// Lays out the weights of a plan; none of their data is read.
    ///
    /// # Errors
    /// Weights that cannot be used.
    pub fn new(plan: &'p Plan, weights: &Weights) -> Result<Self, Error> {
        let layout = Layout::new(plan, weights, &mut |_, _| {})?;
        let mapped = layout.mapped_bytes;
        let (tensors, copied) = layout.stand_in(plan)?;
        Ok(Self {
            plan,
            tensors,
            mapped,
            copied,
            executor: Executor::new(&[], 1, graph::capacity(plan))?,
        })
    }

    /// What the model would take with these settings, in bytes; caches without what rounds their parts up
    /// to the machine's boundaries.
    ///
    /// # Errors
    /// What [`Model::load`](super::Model::load) says of the settings, but for memory that is not there.
    pub fn memory(&mut self, options: &Options) -> Result<MemoryUse, Error> {
        if options.deterministic {
            options.check_deterministic(self.plan)?;
        }
        let cache = Model::check_cache(self.plan, options)?;
        let shape = options.largest_shape(self.plan, &options.n_cells(self.plan));
        let graph = self.graph(options, &shape)?;
        let sizes = self.executor.measure(&graph)?;
        Ok(MemoryUse {
            mapped: self.mapped,
            copied: self.copied,
            cache,
            compute: sizes.iter().map(|(_, bytes)| *bytes as u64).sum(),
        })
    }

    /// Whether loading would find the memory that it takes, by the same looks at the machine in the same
    /// order. Where the loader looks for the last time the copied weights lie in memory already; here they
    /// are asked for along with what it looks for.
    ///
    /// # Errors
    /// What [`Model::load`](super::Model::load) would say.
    pub fn check(&mut self, options: &Options) -> Result<(), Error> {
        memory::check(
            "the key/value cache",
            Model::check_cache(self.plan, options)?,
        )?;
        load::check(self.copied)?;
        let compute = self.memory(options)?.compute;
        memory::check("scratch memory", self.copied.saturating_add(compute))
    }

    /// Bytes of weights that a pass of one token of one sequence reads: rows of tables as far as they are
    /// asked for, and of experts at most as many as are asked for.
    ///
    /// # Errors
    /// Blocks that refuse their arguments.
    pub fn weight_bytes_read(&self, options: &Options) -> Result<u64, Error> {
        let one = Options {
            n_batch: 1,
            ..options.clone()
        };
        let shape = one.largest_shape(self.plan, &options.n_cells(self.plan));
        Ok(self.graph(options, &shape)?.bytes_read(&self.tensors))
    }

    /// The graph of a pass, over caches without memory.
    fn graph(&self, options: &Options, shape: &Shape) -> Result<Graph, Error> {
        let plan = self.plan;
        let n_cells = options.n_cells(plan);
        let (cache, rows) = KeyValues::describe(plan, &n_cells, options.k_type, options.v_type)?;
        stand_in(&rows, &cache.tensors())?;
        let (states, rows) = States::describe(plan, options.n_rows())?;
        stand_in(&rows, &states.tensors())?;
        let (graph, _) = graph::build(
            plan,
            &self.tensors,
            &cache,
            &states,
            options,
            &n_cells,
            shape,
        )?;
        Ok(graph)
    }
}

fn stand_in(arena: &Arena, tensors: &[&Tensor]) -> Result<(), Error> {
    Ok(Device::cpu()?.stand_in(arena, tensors)?)
}

impl Options {
    /// Whether sequences of a plan share what is known of their tokens.
    pub fn shares(&self, plan: &Plan) -> bool {
        let rules = plan.caches.iter();
        self.n_ctx > 0
            && rules
                .map(|group| pass::visibility(plan, self, group))
                .all(|rule| rule.causal)
    }
}
