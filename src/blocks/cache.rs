//! A group of layers that see the same keys: which earlier positions a query looks at.
//!
//! The storage is the model's affair; a definition states only what is visible.

use crate::arch::{Contract, StateSpec};
use crate::options;

options! {
    /// Options of a cache.
    pub(crate) struct Cache {
        causal: bool = "causal", "whether a query sees only its own and earlier positions";
    }
}

/// `[cache.NAME]`.
pub(super) static CONTRACT: Contract = Contract {
    name: "cache",
    summary: "Says which keys a query sees.",
    formula: "visible(q, k) = same sequence and (pos_k <= pos_q or not causal)",
    options: Cache::OPTIONS,
    weights: &[],
    state: StateSpec::None,
    rules: &[],
};
