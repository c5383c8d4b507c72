//! An MLP of each position and the one before it, with the square of a ReLU (Peng et al. 2023).
//!
//! ```text
//! d = h(t-1) - h(t)
//! y = sigmoid(receptance . (h + r * d)) * (value . relu(key . (h + k * d))^2)
//! ```
//! `[n_embd, n_tokens]` in and out. State of each sequence: the last input. Without the weight `receptance`
//! the result has no gate.

use super::build::UnitBuilder;
use crate::arch::{Contract, StateSpec};
use crate::{options, points, weights};
use lab_base::ggml::{Result, Tensor, Unary};

options! {
    pub(super) struct Config {
        width: u64 => "n_ff", "elements of the hidden layer";
    }
}

pub(super) static CONTRACT: Contract = Contract {
    name: "channel_mix",
    title: "Channel mixing",
    noun: "channel mixing",
    phrase: "channel mixing of width {=width}{has('receptance'): , gated}",
    summary: "RWKV channel mixing: an MLP that reads each token mixed with the token before.",
    formula: concat!(
        "d = h(t-1) - h;  y = {has('receptance'): sigmoid(receptance . (h + r * d)) * }",
        "(value . relu(key . (h + k * d))^2)",
    ),
    options: Config::OPTIONS,
    weights: weights! {
        k: Scale "channel_mix_lerp_k.weight" ["n_embd"], "share of the position before in the input of the hidden layer";
        key: Matrix "channel_mix_key.weight" ["n_embd", "width"], "projection to the hidden layer";
        value: Matrix "channel_mix_value.weight" ["width", "n_embd"], "projection of the hidden layer to the result";
        receptance: Matrix "channel_mix_receptance.weight" ["n_embd", "n_embd"] optional, "projection to the gate of the result";
        r: Scale "channel_mix_lerp_r.weight" ["n_embd"] when("has('receptance')"), "share of the position before in the input of the gate";
    },
    state: StateSpec::Recurrent(&[("shift", "n_embd")]),
    points: points! {
        hidden: Neurons ["width"] known_as("mlp.hook_post"), "hidden layer";
    },
    ..Contract::BLOCK
};

pub(super) fn build(b: &mut UnitBuilder<'_, '_>, x: &Tensor) -> Result<Tensor> {
    let g = b.g;
    let change = b.change_from_previous("shift", x)?;
    let mixed = |share: &str| g.add(&g.mul(&change, &b.required_weight(share)?)?, x);
    let hidden = g.unary(&b.linear("key", &mixed("k")?)?, Unary::Relu)?;
    let hidden = g.unary(&hidden, Unary::Square)?;
    let hidden = b.point("hidden", hidden)?;
    let y = b.linear("value", &hidden)?;
    if b.weight("receptance").is_none() {
        return Ok(y);
    }
    let gate = b.linear("receptance", &mixed("r")?)?;
    g.mul(&g.unary(&gate, Unary::Sigmoid)?, &y)
}
