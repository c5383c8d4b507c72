//! What comes in, times a stored gain: `y = gain * h`.
//!
//! `[n_embd, n_tokens]` in and out. With `join = "set"` a slot rescales the hidden state; reading a tap,
//! it adds an earlier value once more.

use super::build::Build;
use crate::arch::{Contract, StateSpec, WeightRole, WeightSpec};
use crate::ggml::{Error, Tensor};
use crate::plan::Unit;

/// The block.
pub(super) static CONTRACT: Contract = Contract {
    name: "identity",
    title: "Stored factor",
    noun: "a stored factor",
    phrase: "",
    summary: "Passes on what comes in, times a stored gain if there is one.",
    formula: "y = {has('gain'): gain * }h",
    options: &[],
    weights: &[WeightSpec::new(
        WeightRole::Gain,
        "gain",
        "layer_output_scale.weight",
        &["1"],
        "factor of what comes in",
    )
    .optional()],
    rows: None,
    side: None,
    state: StateSpec::None,
    rules: &[],
};

pub(super) fn build(b: &mut Build<'_>, unit: &Unit, x: &Tensor) -> Result<Tensor, Error> {
    match b.weight(unit, "gain") {
        Some(gain) => b.g.mul(x, gain),
        None => Ok(x.clone()),
    }
}
