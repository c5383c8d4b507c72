//! The maths: one file per block, stage and resource, each with its contract.
//!
//! [`REGISTRY`] lists the contracts for the language and the planner, which know no block by
//! name. Called by the model when it assembles a graph.

mod attention;
pub(crate) mod cache;
mod embed;
mod ffn;
mod head;
mod norm;
mod rope;

use crate::arch::Registry;

/// All contracts of the language.
pub static REGISTRY: Registry = Registry {
    blocks: &[&attention::CONTRACT, &ffn::CONTRACT],
    embed: &embed::CONTRACT,
    head: &head::CONTRACT,
    norm: &norm::CONTRACT,
    rope: &rope::CONTRACT,
    cache: &cache::CONTRACT,
};
