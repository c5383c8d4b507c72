//! The input, activated if so stated, times a stored scale, plus a stored vector: `y = scale * act(h) + bias`.
//!
//! `[n_embd, n_tokens]` in and out. With `join = "set"` a slot rescales the hidden state; with a tap as input, the slot
//! adds an earlier value once more. The vector `bias` makes a learned initial state.

use super::build::UnitBuilder;
use crate::arch::{ActRef, Contract, RowWidth};
use crate::{options, weights};
use lab_base::ggml::{Result, Tensor};

options! {
    pub(super) struct Config {
        act: ActRef = "none", "activation of the input, see `[act.NAME]`";
    }
}

pub(super) static CONTRACT: Contract = Contract {
    name: "identity",
    title: "Identity",
    noun: "an identity",
    phrase: "{act: {=act} of the input | {has('scale'): a stored factor | {has('bias'): a stored vector | the input itself}}}",
    summary: "Returns its input, times a stored scale and plus a stored vector if there are such.",
    formula: "y = {has('scale'): scale * }{act -> act: h}{has('bias'):  + bias}",
    options: Config::OPTIONS,
    weights: weights! {
        scale: Scale "layer_output_scale.weight" ["1"] optional, "factor of the input";
        bias: Bias "layer_output_scale.bias" ["n_embd"] optional, "vector that is added";
    },
    rows: RowWidth::Any,
    ..Contract::BLOCK
};

pub(super) fn build(b: &mut UnitBuilder<'_, '_>, x: &Tensor) -> Result<Tensor> {
    let act = Config::read(&b.unit.options).act;
    let x = match act.0 {
        Some(_) => b.activate(act, x)?,
        None => x.clone(),
    };
    let y = match b.weight("scale") {
        Some(scale) => b.g.mul(&x, scale)?,
        None => x,
    };
    b.with_bias("bias", y)
}
