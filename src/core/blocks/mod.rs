//! The maths of the models: one file per block, stage and resource, each with its contract.
//!
//! [`REGISTRY`] lists the contracts for the language and the planner, which refer to no block by name; [`build_block`]
//! calls the code of a planned unit. The model calls it when it assembles a graph.

mod act;
mod adapter_switches;
mod attend;
mod attend_grid;
mod attention;
mod build;
pub mod cache;
mod channel_mix;
mod chunks;
mod compressed_attention;
mod context;
mod delta_net;
pub mod embed;
mod ffn;
mod gate;
mod grid;
mod grid_positions;
pub mod head;
mod identity;
mod input;
pub mod lab;
mod learned_rows;
mod linear;
mod linear_attention;
mod low_rank;
mod mamba;
mod mamba2;
mod media_rows;
pub mod mix;
mod mla;
mod moe;
mod neighbours;
mod ngram_hashes;
mod ngram_memory;
mod nodes;
mod norm;
pub mod per_layer;
pub mod points;
pub mod pool;
pub mod position_bias;
mod recurrent;
mod rope;
pub mod selection;
mod short_conv;
mod source_keys;
mod sparse_mixer;
#[cfg(test)]
mod toy;
mod turn;
mod wkv6;
mod wkv7;

pub use adapter_switches::SwitchCounts;
pub use attend::KeyRows;
pub use build::{GraphBuilder, MediaTensors, Selections, UnitBuilder};
pub use context::{
    AttentionView, DerivedInput, DerivedInputs, EndedSpans, KeyOwner, KeyValueStore, RunView, Runs,
    SequenceGroup, SpanRows, SpanView, StateStore, VisibleKeyValues,
};
pub use grid::RowGrid;
pub(crate) use grid::{Axis, WindowOrder};
pub use lab::NamedTensor;
pub use low_rank::{ActiveAdapters, LowRankUpdate, LowRankUpdates, MAX_NODES as MAX_UPDATE_NODES};
pub use nodes::max_nodes;
pub use position_bias::DistanceBuckets;
pub(crate) use turn::hadamard;

use crate::arch::Registry;
use lab_base::ggml::{Error, Graph, Result, Tensor};
use lab_base::weights::TensorType;

/// An error of the operation or helper `op`, whose arguments do not fit.
fn refused(op: &'static str, message: impl Into<String>) -> Error {
    Error::Arguments {
        op,
        message: message.into(),
    }
}

/// `part` after the parts before it, along dimension `dim`.
fn joined(g: &Graph, before: Option<&Tensor>, part: Tensor, dim: usize) -> Result<Tensor> {
    match before {
        Some(before) => g.concat(before, &part, dim),
        None => Ok(part),
    }
}

fn cast(g: &Graph, x: &Tensor, ty: TensorType) -> Result<Tensor> {
    match x.ty() == ty {
        true => Ok(x.clone()),
        false => g.cast(x, ty),
    }
}

/// The blocks that a branch may run, one line each.
macro_rules! blocks {
    ($($(#[$of:meta])* $block:ident),* $(,)?) => {
        /// All contracts of the language.
        pub static REGISTRY: Registry = Registry {
            blocks: &[$($(#[$of])* &$block::CONTRACT),*],
            embed: &embed::CONTRACT,
            input: &input::CONTRACT,
            per_layer: &per_layer::CONTRACT,
            head: &head::CONTRACT,
            pool: &pool::CONTRACT,
            norm: &norm::CONTRACT,
            act: &act::CONTRACT,
            rope: &rope::CONTRACT,
            cache: &cache::CONTRACT,
            selection: &selection::CONTRACT,
            mix: &mix::CONTRACT,
            wiring: points::WIRING,
        };

        /// Adds the operations of a planned block to the graph: `[n_embd, n_tokens]` in and out.
        pub fn build_block(b: &mut UnitBuilder<'_, '_>, x: &Tensor) -> Result<Tensor> {
            let (name, unit) = (b.unit.contract.0.name, b.unit);
            let _scope = b.g.scope_on(name, &unit.path, unit.device);
            match name {
                $($(#[$of])* stringify!($block) => $block::build(b, x),)*
                other => Err(refused("block", format!("there is no block `{other}`"))),
            }
        }
    };
}

blocks! {
    attention, channel_mix, chunks, compressed_attention, delta_net, ffn, grid_positions, identity, learned_rows, linear, linear_attention, mamba, mamba2, media_rows, mla, moe,
    neighbours, ngram_memory, short_conv, wkv6, wkv7,
    #[cfg(test)] toy,
}
