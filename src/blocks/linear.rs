//! A matrix product: `y = weight . h + bias`.
//!
//! `[n_in, n_tokens]` in, `[n_out, n_tokens]` out.

use super::build::Build;
use crate::arch::{Contract, Rows, StateSpec, WeightRole, WeightSpec};
use crate::ggml::{Error, Tensor};
use crate::options;
use crate::plan::Unit;

options! {
    /// Options of a matrix product.
    pub(super) struct Config {
        n_in: u64 = "n_embd", "elements of a row that goes in";
        n_out: u64 = "n_embd", "elements of a row that comes out";
    }
}

/// The block.
pub(super) static CONTRACT: Contract = Contract {
    name: "linear",
    title: "Linear map",
    noun: "a linear map",
    phrase: "",
    summary: "Multiplies with a matrix.",
    formula: "y = weight . h{has('weight.bias'):  + bias}",
    options: Config::OPTIONS,
    weights: &[
        WeightSpec::new(
            WeightRole::Matrix,
            "weight",
            "linear.weight",
            &["n_in", "n_out"],
            "the matrix",
        ),
        WeightSpec::new(
            WeightRole::Bias,
            "weight.bias",
            "linear.bias",
            &["n_out"],
            "its bias",
        )
        .optional(),
    ],
    rows: Some(Rows {
        takes: "n_in",
        gives: "n_out",
        side: None,
    }),
    side: None,
    state: StateSpec::None,
    rules: &[],
};

pub(super) fn build(b: &mut Build<'_>, unit: &Unit, x: &Tensor) -> Result<Tensor, Error> {
    b.linear(unit, "weight", x)
}
