//! The maths: one file per block, stage and resource, each with its contract.
//!
//! [`REGISTRY`] lists the contracts for the language and the planner, which know no block by name;
//! [`build_block`] finds the code of a planned unit. Called by the model when it assembles a graph.

mod act;
mod attend;
mod attention;
mod build;
pub mod cache;
mod channel_mix;
mod compressed_attention;
mod context;
mod delta_net;
pub mod embed;
mod ffn;
mod gate;
pub mod head;
mod identity;
pub mod lab;
mod linear;
mod linear_attention;
mod low_rank;
mod mamba;
mod mamba2;
pub mod mix;
mod mla;
mod moe;
mod ngram_memory;
mod norm;
pub mod per_layer;
pub mod points;
pub mod pool;
pub mod position_bias;
mod recurrent;
mod rope;
pub mod selection;
mod short_conv;
mod sparse_mixer;
#[cfg(test)]
mod toy;
mod wkv6;
mod wkv7;

pub use attend::KeyRows;
pub use build::{Build, Named, Selections};
pub use context::{
    AttentionView, DerivedInput, DerivedInputs, EndedSpans, KeyValueStore, Ngrams, RunView, Runs,
    SpanRows, SpanView, StateStore, Switched, Switches, VisibleKeyValues,
};
pub use low_rank::{AtWork, MAX_NODES as MAX_UPDATE_NODES, Update, Updates};
pub use position_bias::Buckets;
pub use recurrent::SequenceGroup;

use crate::arch::{Registry, Resolved};
use crate::ggml::{Error, Tensor};
use crate::plan::{StatePlan, Unit};

/// No block adds more operations to the graph of a pass with so many groups of sequences and so many views
/// of keys than this.
///
/// Besides a fixed number, a mixture adds the results of its experts one by one, a block with a
/// recurrent state runs its operators for each group, and one with keys for each view.
pub fn max_nodes(unit: &Unit, n_groups: usize, n_views: usize) -> usize {
    const FIXED: usize = 96;
    let experts = unit.option_int("used").unwrap_or(0);
    let groups = match &unit.state {
        Some(StatePlan::Recurrent(_)) => n_groups * recurrent::NODES_PER_GROUP,
        Some(StatePlan::KeyValue(rows)) => {
            let (own, per_view) = match rows.index {
                0 => (0, 0),
                _ => (selection::NODES, selection::NODES_PER_VIEW),
            };
            // With selections of their own, the key heads attend one after another.
            let parts = match unit.option("selection") {
                Some(Resolved::Resource(Some(_))) => usize::try_from(rows.heads).unwrap_or(1),
                _ => 1,
            };
            let own = own
                + rows
                    .pooled
                    .as_ref()
                    .map_or(0, |_| compressed_attention::NODES);
            own + n_views.saturating_sub(1) * per_view
                + (n_views * parts).saturating_sub(1) * attend::NODES_PER_VIEW
        }
        None => 0,
    };
    let updates = low_rank::NODES_OF_SWITCHED * unit.updates.len();
    FIXED + groups + updates + 2 * usize::try_from(experts).unwrap_or(usize::MAX / 4)
}

/// The keys and values that a block makes of rows of the source.
fn keys_of_source(build: &Build<'_>, unit: &Unit, x: &Tensor) -> Result<(Tensor, Tensor), Error> {
    match unit.contract.0.takes_source() {
        true => attention::keys_of_source(build, unit, x),
        false => Err(Error::Arguments {
            op: "block",
            message: format!("`{}` makes no keys of a source", unit.contract.0.name),
        }),
    }
}

/// Every block a branch may run: one line each.
macro_rules! blocks {
    ($($(#[$of:meta])* $block:ident),* $(,)?) => {
        /// All contracts of the language.
        pub static REGISTRY: Registry = Registry {
            blocks: &[$($(#[$of])* &$block::CONTRACT),*],
            embed: &embed::CONTRACT,
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
        ///
        /// # Errors
        /// As the operations.
        pub fn build_block(build: &mut Build<'_>, unit: &Unit, x: &Tensor) -> Result<Tensor, Error> {
            let _scope = build.g.scope_on(unit.contract.0.name, &unit.path, unit.device);
            match unit.contract.0.name {
                $($(#[$of])* stringify!($block) => $block::build(build, unit, x),)*
                other => Err(Error::Arguments { op: "block", message: format!("there is no block `{other}`") }),
            }
        }
    };
}

blocks! {
    attention, channel_mix, compressed_attention, delta_net, ffn, identity, linear, linear_attention, mamba, mamba2, mla, moe, ngram_memory, short_conv, wkv6, wkv7,
    #[cfg(test)] toy,
}
