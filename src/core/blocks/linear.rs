//! A matrix product `y = act(weight . h + bias)`, a gated one `y = (weight . h + bias) * act(gate . h + gate.bias)`, or one of low rank
//! `y = up . (down . h)`.
//!
//! `[n_embd, n_tokens]` in, `[out, n_tokens]` out.

use super::build::UnitBuilder;
use crate::arch::{ActRef, Contract, RowWidth};
use crate::{options, rules, weights};
use lab_base::ggml::{Result, Tensor};

options! {
    pub(super) struct Config {
        out: u64 = "n_embd", "elements of a row of the result";
        act: ActRef = "none", "activation of the result, or of the gate if there is one, see `[act.NAME]`";
        rank: u64 = "0", "elements between two matrices in the place of one; 0: one matrix";
    }
}

pub(super) static CONTRACT: Contract = Contract {
    name: "linear",
    title: "Linear map",
    noun: "a linear map",
    phrase: "a linear map{rank > 0:  of low rank}{has('gate'): , gated by {=act} | {act: , {=act}}}",
    summary: "Multiplies with a matrix, or with two of low rank.",
    formula: "y = {has('gate'): act(gate . h{has('gate.bias'):  + gate.bias}) * (weight . h{has('weight.bias'):  + bias}) | {act -> act: {rank > 0: up . (down . h) | weight . h}{has('weight.bias'):  + bias}}}",
    options: Config::OPTIONS,
    weights: weights! {
        weight: Matrix "linear.weight" ["n_embd", "out"] when("rank == 0"), "the matrix";
        weight.bias: Bias "linear.bias" ["out"] optional when("rank == 0"), "bias of the matrix";
        weight.clip: Bias "linear.clip" ["4"] optional when("rank == 0"), "bounds of the matrix's input and of its result, lower and upper of each";
        gate: Matrix "linear_gate.weight" ["n_embd", "out"] optional when("rank == 0"), "projection to the gate of the result";
        gate.bias: Bias "linear_gate.bias" ["out"] optional when("has('gate')"), "bias of the gate projection";
        gate.clip: Bias "linear_gate.clip" ["4"] optional when("has('gate')"), "bounds of the gate projection";
        down: Matrix "linear_down.weight" ["n_embd", "rank"] never_quantised when("rank > 0"), "the first matrix of low rank";
        up: Matrix "linear_up.weight" ["rank", "out"] never_quantised when("rank > 0"), "the second matrix of low rank";
    },
    rows: RowWidth::To("out"),
    rules: rules! {
        "not has('gate') or act", "a gate has an activation";
    },
    ..Contract::BLOCK
};

pub(super) fn build(b: &mut UnitBuilder<'_, '_>, x: &Tensor) -> Result<Tensor> {
    let c = Config::read(&b.unit.options);
    let y = match c.rank {
        0 => b.linear("weight", x)?,
        _ => b.product("up", &b.product("down", x)?)?,
    };
    match b.weight("gate") {
        Some(_) => b.activate_gate(c.act, &b.linear("gate", x)?, &y),
        None => b.activate(c.act, &y),
    }
}
