//! The MLP (feed-forward network), gated (Shazeer 2020) or plain.
//!
//! ```text
//! u = act(gate.h + gate.bias) * (up.h + up.bias)     with a gate
//! u = act(up.h + up.bias)                            without
//! u = act(gate.h + gate.bias) * side                 with a second input
//! y = sigmoid(out_gate . h) * (down . norm(u) + down.bias)
//! ```
//! `[n_embd, n_tokens]` in, `[out, n_tokens]` out. Whether there is a gate follows from the weights: a matrix of its
//! own, or `up` rows of twice the width, of which the first half is the gate.

use super::build::UnitBuilder;
use crate::arch::{ActRef, Contract, NormRef, RowWidth, SideInput};
use crate::{options, points, rules, weights};
use lab_base::ggml::{Result, Tensor, Unary};

options! {
    pub(super) struct Config {
        act: ActRef, "activation of the hidden layer: a kind or a declared name, see `[act.NAME]`";
        width: u64 = "n_ff", "elements of the hidden layer of the MLP";
        out: u64 = "n_embd", "elements of a row of the result";
        fused: bool = "not has('gate') and dim('up', 1) == 2 * width", "whether the rows of `up` hold the gate, then up";
        inner_norm: NormRef = "none", "norm of the hidden layer";
    }
}

pub(super) static CONTRACT: Contract = Contract {
    name: "ffn",
    title: "MLP",
    noun: "an MLP",
    phrase: "an MLP of width {=width}{has('up'): {has('gate') or fused: , gated by {=act} |  with {=act}} | , {=act} of the gate times its second input}{has('out_gate'): , sigmoid gate of the output}",
    summary: "Transforms each position by itself through a hidden layer.",
    formula: concat!(
        "y = {has('out_gate'): sigmoid(out_gate.h) * }down . ({inner_norm -> norm: ",
        "{has('up'): {has('gate') or fused: {=act}(gate.h) * up.h | {=act}(up.h)} | {=act}(gate.h) * side}}",
        "){has('down.bias'):  + down.bias}",
    ),
    options: Config::OPTIONS,
    weights: weights! {
        gate: Matrix "ffn_gate.weight" ["n_embd", "width"] unless_forbidden, "gate projection";
        gate.bias: Bias "ffn_gate.bias" ["width"] optional when("has('gate')"), "bias of the gate projection";
        up: Matrix "ffn_up.weight" ["n_embd", "if(fused, 2, 1) * width"], "up projection";
        up.bias: Bias "ffn_up.bias" ["if(fused, 2, 1) * width"] optional, "bias of the up projection";
        gate.clip: Bias "ffn_gate.clip" ["4"] optional when("has('gate')"), "bounds of the gate projection's input and of its result, lower and upper of each";
        up.clip: Bias "ffn_up.clip" ["4"] optional, "bounds of the up projection";
        down.clip: Bias "ffn_down.clip" ["4"] optional, "bounds of the down projection";
        act_scale: Scale "ffn.act.scales" ["width"] optional, "divisor of each activated element of the hidden layer";
        inner_norm: Scale "ffn_sub_norm.weight" ["width"] when("inner_norm"), "weight of the norm of the hidden layer";
        down: Matrix "ffn_down.weight" ["width", "out"], "down projection";
        down.bias: Bias "ffn_down.bias" ["out"] optional, "bias of the down projection";
        out_gate: Matrix "ffn_gate_inp_shexp.weight" ["n_embd"] optional, "projection to a gate of the result, one number for each token";
    },
    rows: RowWidth::To("out"),
    side: Some(SideInput {
        width: "width",
        doc: "factor of the activated gate, instead of `up`",
    }),
    points: points! {
        gate: Neurons ["width"] known_as("mlp.hook_pre"), "gate product before its activation";
        up: Neurons ["width"] known_as("mlp.hook_pre_linear"), "up product; before its activation where there is no gate";
        hidden: Neurons ["width"] known_as("mlp.hook_post"), "hidden layer: what the down projection reads, before its norm";
    },
    rules: rules! {
        "act", "a hidden layer has an activation";
    },
    ..Contract::BLOCK
};

pub(super) fn build(b: &mut UnitBuilder<'_, '_>, x: &Tensor) -> Result<Tensor> {
    let c = Config::read(&b.unit.options);
    let hidden = match b.side.clone() {
        Some(side) => {
            let gate = b.point("gate", b.linear("gate", x)?)?;
            b.activate_gate(c.act, &gate, &side)?
        }
        None => gated(b, &c, x)?,
    };
    let hidden = match b.weight("act_scale") {
        Some(scale) => b.g.div(&hidden, scale)?,
        None => hidden,
    };
    let hidden = b.point("hidden", hidden)?;
    let hidden = b.normalise_with(c.inner_norm, b.weight("inner_norm"), &hidden)?;
    let y = b.linear("down", &hidden)?;
    if b.weight("out_gate").is_none() {
        return Ok(y);
    }
    let gate = b.product("out_gate", x)?;
    let gate = b.g.unary(&gate, Unary::Sigmoid)?; // [1, n_tokens]
    b.g.mul(&y, &gate)
}

/// The hidden layer without a second input, `[width, n_tokens]`.
fn gated(b: &UnitBuilder<'_, '_>, c: &Config, x: &Tensor) -> Result<Tensor> {
    let up = b.linear("up", x)?;
    let (gate, up) = if b.weight("gate").is_some() {
        (Some(b.linear("gate", x)?), up)
    } else if c.fused {
        let (gate, up) = b.halves(&up)?;
        (Some(gate), up)
    } else {
        (None, up)
    };
    b.hidden(c.act, gate, up)
}
