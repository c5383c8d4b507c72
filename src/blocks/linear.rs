//! A matrix product: `y = weight . h + bias`.
//!
//! `[n_embd, n_tokens]` in and out.

use super::build::Build;
use crate::arch::{Contract, Rows, StateSpec, WeightRole, WeightSpec};
use crate::ggml::{Error, Tensor};
use crate::plan::Unit;

/// The block.
pub(super) static CONTRACT: Contract = Contract {
    name: "linear",
    title: "Linear map",
    noun: "a linear map",
    phrase: "",
    summary: "Multiplies with a matrix.",
    formula: "y = weight . h{has('weight.bias'):  + bias}",
    options: &[],
    weights: &[
        WeightSpec::new(
            WeightRole::Matrix,
            "weight",
            "linear.weight",
            &["n_embd", "n_embd"],
            "the matrix",
        ),
        WeightSpec::new(
            WeightRole::Bias,
            "weight.bias",
            "linear.bias",
            &["n_embd"],
            "its bias",
        )
        .optional(),
    ],
    rows: Rows::Hidden,
    side: None,
    state: StateSpec::None,
    rules: &[],
};

pub(super) fn build(b: &mut Build<'_>, unit: &Unit, x: &Tensor) -> Result<Tensor, Error> {
    b.linear(unit, "weight", x)
}
