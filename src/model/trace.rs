//! The graph of a plan without its weights: what a pass computes, as data.
//!
//! Tensors are described and never allocated, so a plan of any size is walked in milliseconds, with
//! or without a file. The graph is the one that [`Model::forward`](super::Model::forward) runs with
//! its usual settings: a cache, and attention that does not keep its scores.

use crate::arch::WeightRole;
use crate::ggml::{Arena, Error, Step};
use crate::plan::{BLOCK_LEN, Plan, TensorPlan};
use crate::weights::TensorType;

use super::adapters::OnDevice;
use super::cache::states::States;
use super::cache::store::KeyValues;
use super::graph::{self, Shape};
use super::{Options, pass};

/// Positions for which the described cache has room.
const N_CTX: usize = 64;

/// The operations of a pass over `n_tokens` tokens of one sequence, all of which want a result, in the
/// order of execution. Weights are places in [`Plan::tensors`].
///
/// # Errors
/// Blocks that refuse their arguments.
pub fn trace(plan: &Plan, n_tokens: usize) -> Result<Vec<Step>, Error> {
    let options = Options {
        n_ctx: N_CTX,
        n_ctx_seq: 0,
        n_seqs: 1,
        n_checkpoints: 0,
        n_batch: n_tokens,
        n_outputs: 0,
        n_threads: 1,
        k_type: TensorType::F16,
        v_type: TensorType::F16,
        flash_attn: true,
        deterministic: false,
        embeddings: false,
        non_causal: false,
        watch: false,
    };
    let room = options.room();
    let n_cells: Vec<usize> = plan
        .caches
        .iter()
        .map(|group| room.cells(group) as usize)
        .collect();
    let n_kv = match options.is_paged(plan) {
        true => vec![pass::table_len(N_CTX / BLOCK_LEN as usize); n_cells.len()],
        false => n_cells.clone(),
    };
    let weights = Arena::new(plan.tensors.len(), 0)?;
    let tensors = plan
        .tensors
        .iter()
        .map(|tensor| weights.tensor(&tensor.name, type_in_memory(tensor), &tensor.shape))
        .collect::<Result<Vec<_>, _>>()?;
    let (cache, _) = KeyValues::describe(plan, &n_cells, options.k_type, options.v_type)?;
    let (states, _) = States::describe(plan, options.n_rows())?;
    let shape = Shape {
        n_tokens,
        n_outputs: n_tokens,
        n_kv,
        n_seqs: 1,
        wants_hidden: false,
        is_headless: false,
        adapters: Vec::new(),
    };
    let (graph, _) = graph::build(
        plan,
        &OnDevice::plain(&tensors),
        &cache,
        &states,
        &options,
        &n_cells,
        &shape,
    )?;
    Ok(graph.walk(&tensors))
}

/// As loading has it: vectors as f32, matrices as they are stored.
fn type_in_memory(tensor: &TensorPlan) -> TensorType {
    match tensor.role {
        WeightRole::Matrix | WeightRole::Table => tensor.ty.unwrap_or(TensorType::F32),
        _ => TensorType::F32,
    }
}
