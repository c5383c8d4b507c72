//! The feed-forward network of a position, gated (Shazeer 2020) or plain.
//!
//! ```text
//! y = down . (act(gate.h + gate.bias) * (up.h + up.bias)) + down.bias     with a gate
//! y = down . act(up.h + up.bias) + down.bias                              without
//! ```
//! `[n_embd, n_tokens]` in and out. Whether there is a gate is told by the weight's presence.

use super::build::Build;
use crate::arch::{Contract, StateSpec, WeightRole, WeightSpec};
use crate::ggml::{Error, Tensor, Unary};
use crate::plan::Unit;
use crate::{choices, options};

choices! {
    /// The activation.
    pub(super) enum Act {
        /// `x * sigmoid(x)`.
        Silu = "silu",
        /// The tanh approximation of `x * Phi(x)`.
        Gelu = "gelu",
    }
}

options! {
    /// Options of a feed-forward block.
    pub(super) struct Config {
        act: Act, "activation: `silu` or `gelu` (tanh approximation)";
        width: u64 = "n_ff", "elements of the hidden layer";
    }
}

const fn weight(
    key: &'static str,
    tensor: &'static str,
    shape: &'static [&'static str],
    optional: bool,
    role: WeightRole,
) -> WeightSpec {
    WeightSpec {
        key,
        tensor,
        shape,
        when: "true",
        optional,
        role,
        doc: "feed-forward weight",
    }
}

/// The block.
pub(super) static CONTRACT: Contract = Contract {
    name: "ffn",
    summary: "Transforms each position by itself through a wider hidden layer.",
    formula: "y = down . (act(gate.h) * up.h)",
    options: Config::OPTIONS,
    weights: &[
        weight(
            "gate",
            "ffn_gate.weight",
            &["n_embd", "width"],
            true,
            WeightRole::Matrix,
        ),
        WeightSpec {
            when: "has('gate')",
            ..weight(
                "gate.bias",
                "ffn_gate.bias",
                &["width"],
                true,
                WeightRole::Bias,
            )
        },
        weight(
            "up",
            "ffn_up.weight",
            &["n_embd", "width"],
            false,
            WeightRole::Matrix,
        ),
        weight("up.bias", "ffn_up.bias", &["width"], true, WeightRole::Bias),
        weight(
            "down",
            "ffn_down.weight",
            &["width", "n_embd"],
            false,
            WeightRole::Matrix,
        ),
        weight(
            "down.bias",
            "ffn_down.bias",
            &["n_embd"],
            true,
            WeightRole::Bias,
        ),
    ],
    state: StateSpec::None,
    rules: &[],
};

pub(super) fn build(b: &mut Build<'_>, unit: &Unit, x: &Tensor) -> Result<Tensor, Error> {
    let c = Config::read(&unit.options);
    let up = b.linear(unit, "up", x)?;

    let hidden = if b.weight(unit, "gate").is_some() {
        let gate = b.linear(unit, "gate", x)?;
        match c.act {
            Act::Silu => b.g.swiglu(&gate, &up)?,
            Act::Gelu => b.g.mul(&b.g.unary(&gate, Unary::Gelu)?, &up)?,
        }
    } else {
        let act = match c.act {
            Act::Silu => Unary::Silu,
            Act::Gelu => Unary::Gelu,
        };
        b.g.unary(&up, act)?
    };
    b.name(&unit.path, "hidden", &hidden);

    b.linear(unit, "down", &hidden)
}
