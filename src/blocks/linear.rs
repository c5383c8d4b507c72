//! A matrix product: `y = weight . h + bias`.
//!
//! `[n_in, n_tokens]` in, `[n_out, n_tokens]` out.

use super::build::Build;
use crate::arch::{Contract, StateSpec, WeightRole, WeightSpec};
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
    summary: "Multiplies with a matrix.",
    formula: "y = weight . h + bias",
    options: Config::OPTIONS,
    weights: &[
        WeightSpec {
            key: "weight",
            tensor: "linear.weight",
            shape: &["n_in", "n_out"],
            when: "true",
            optional: false,
            role: WeightRole::Matrix,
            doc: "the matrix",
        },
        WeightSpec {
            key: "weight.bias",
            tensor: "linear.bias",
            shape: &["n_out"],
            when: "true",
            optional: true,
            role: WeightRole::Bias,
            doc: "the offset",
        },
    ],
    side: None,
    state: StateSpec::None,
    rules: &[],
};

pub(super) fn build(b: &mut Build<'_>, unit: &Unit, x: &Tensor) -> Result<Tensor, Error> {
    b.linear(unit, "weight", x)
}
