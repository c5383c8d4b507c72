//! The graph of a plan without its weights: the operations of a pass, as data.
//!
//! Tensors are described and never allocated, so a plan of any size takes milliseconds, with or without a file. The
//! graph is the one that [`Model::forward`](super::Model::forward) runs with a cache and flash attention.

use crate::arch::{BranchTokens, WeightRole};
use crate::blocks::RowGrid;
use crate::plan::{Plan, TensorPlan};
use lab_base::ggml::{Arena, Graph, GraphOp, Result, Tensor};
use lab_base::weights::TensorType;

use super::adapters::DeviceWeights;
use super::cache::states::States;
use super::cache::store::KvCache;
use super::devices;
use super::graph::{self, PassGraph, TowerGraph};
use super::graph_shape::{self, GraphParts, GraphShape};
use super::options::Options;
use super::points::Points;

/// Number of positions of the described cache.
const N_CTX: usize = 64;

/// The operations of a pass over `n_tokens` tokens of one sequence, all of which want a result, in the order of
/// execution. If the model reads a source, those of a pass over as many source tokens come first. Weights are
/// indices of [`Plan::tensors`].
pub fn trace(plan: &Plan, n_tokens: usize) -> Result<Vec<GraphOp>> {
    let options = Options::plain(N_CTX, n_tokens);
    let mut steps = match GraphShape::largest_source(&options, plan) {
        Some(shape) => {
            let source_is_rows = plan.source.as_ref().is_some_and(|source| source.is_rows);
            let shape = GraphShape {
                source_is_rows,
                ..shape
            };
            walked(plan, &options, &shape)?
        }
        None => Vec::new(),
    };
    let n = steps.len();
    let of_tokens = trace_tokens(plan, n_tokens)?.into_iter();
    steps.extend(of_tokens.map(|step| step.after(n)));
    Ok(steps)
}

/// [`trace`] without reading a source: the operations of a pass whose source was read before.
pub fn trace_tokens(plan: &Plan, n_tokens: usize) -> Result<Vec<GraphOp>> {
    let options = Options::plain(N_CTX, n_tokens);
    // Where layers add parts of media or have branches for them, all tokens are of media: else these would be empty.
    let has_parts = plan.units().any(|unit| unit.contract.0.is_of_media);
    let slots = plan.layers.iter().flat_map(|layer| &layer.slots);
    let mut branches = slots.flat_map(|slot| &slot.branches);
    let has_branches = branches.any(|branch| branch.tokens == BranchTokens::Media);
    let largest = GraphShape::largest(&options, plan, &options.n_slots(plan));
    // The blocks that end among these tokens, the first of a sequence. Which operations there are may depend on whether
    // one or several do.
    let places: Vec<_> = (0..n_tokens as u32).map(|at| (0, at)).collect();
    let ended = graph_shape::n_ended(plan, &places).into_iter();
    let n_ended = ended.zip(&largest.n_ended);
    let shape = GraphShape {
        n_ended: n_ended.map(|(n, most)| n.max(1.min(*most))).collect(),
        n_media: if has_parts { n_tokens } else { 0 },
        n_media_tokens: if has_branches { n_tokens } else { 0 },
        n_outputs: n_tokens,
        ..largest
    };
    walked(plan, &options, &shape)
}

/// The operations of a run of a tower over a grid of cells: time, height, width.
///
/// # Errors
/// The grid does not fit the tower.
pub fn trace_tower(plan: &Plan, cells: [u64; 3]) -> Result<Vec<GraphOp>> {
    let (graph, _, tensors) = described_tower(plan, &Options::plain(0, 1), cells)?;
    Ok(graph.walk(&tensors))
}

/// The graph of a run of a tower over a grid of cells, as [`described`].
pub(super) fn described_tower(
    plan: &Plan,
    options: &Options,
    cells: [u64; 3],
) -> Result<(Graph, TowerGraph, Vec<Tensor>)> {
    let grid = RowGrid::of_cells(1, cells);
    let build = |parts: &GraphParts<'_>| graph::build_tower(parts, grid, &[]);
    described_with(plan, options, build)
}

fn walked(plan: &Plan, options: &Options, shape: &GraphShape) -> Result<Vec<GraphOp>> {
    let (graph, _, tensors) = described(plan, options, shape)?;
    Ok(graph.walk(&tensors))
}

/// The graph of a pass over tensors that are only described, its inputs and outputs, and the weights.
pub(super) fn described(
    plan: &Plan,
    options: &Options,
    shape: &GraphShape,
) -> Result<(Graph, PassGraph, Vec<Tensor>)> {
    described_with(plan, options, |parts| graph::build(parts, shape))
}

/// A graph over tensors that are only described, what `build` gives with it, and the weights.
fn described_with<T>(
    plan: &Plan,
    options: &Options,
    build: impl FnOnce(&GraphParts<'_>) -> Result<(Graph, T)>,
) -> Result<(Graph, T, Vec<Tensor>)> {
    let n_slots = options.n_slots(plan);
    let weights = Arena::new(plan.tensors.len(), 0)?;
    let tensors = plan
        .tensors
        .iter()
        .map(|tensor| match tensor.below {
            Some(below) => weights.indices(&tensor.name, TensorType::I32, &tensor.shape, below),
            None => weights.tensor(&tensor.name, type_in_memory(tensor), &tensor.shape),
        })
        .collect::<Result<Vec<_>, _>>()?;
    let devices = devices::of_plan(plan)?;
    let types = [options.k_type, options.v_type];
    let (cache, _) = KvCache::describe(plan, &devices, &n_slots, types)?;
    let (states, _) = States::describe(plan, &devices, options.n_rows())?;
    let parts = GraphParts {
        plan,
        weights: DeviceWeights::plain(&tensors),
        cache: &cache,
        states: &states,
        options,
        n_slots: &n_slots,
        points: &Points::default(),
    };
    let (graph, ends) = build(&parts)?;
    Ok((graph, ends, tensors))
}

/// The type after loading: vectors as f32, matrices and tables as they are stored.
fn type_in_memory(tensor: &TensorPlan) -> TensorType {
    match tensor.role {
        WeightRole::Matrix | WeightRole::Table => tensor.ty.unwrap_or(TensorType::F32),
        _ => TensorType::F32,
    }
}
