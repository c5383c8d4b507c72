//! A short convolution over time, gated before and after.
//!
//! ```text
//! b|c|x = in . h
//! y     = out . (c * conv(b * x))
//! ```
//! `[n_embd, n_tokens]` in and out. State of each sequence: the last columns before the convolution.

use super::build::UnitBuilder;
use crate::arch::{Contract, StateSpec};
use crate::{options, points, rules, weights};
use lab_base::ggml::{Result, Tensor};

options! {
    pub(super) struct Config {
        kernel: u64 => "conv_kernel", "length of the convolution in tokens";
    }
}

pub(super) static CONTRACT: Contract = Contract {
    name: "short_conv",
    title: "Short convolution",
    noun: "a convolution",
    phrase: "a gated convolution over {=kernel} tokens",
    summary: "Mixes each channel with its last values, gated before and after.",
    formula: "b, c, x = in . h;  y = out . (c * conv(b * x))",
    options: Config::OPTIONS,
    weights: weights! {
        in: Matrix "shortconv.in_proj.weight" ["n_embd", "3 * n_embd"], "input projection to b, c and x";
        conv: Convolution "shortconv.conv.weight" ["kernel", "n_embd"], "convolution over time";
        out: Matrix "shortconv.out_proj.weight" ["n_embd", "n_embd"], "output projection to the hidden state";
    },
    state: StateSpec::Recurrent(&[("conv", "(kernel - 1) * n_embd")]),
    points: points! {
        conv: Neurons ["n_embd"], "result of the convolution, before the gate";
    },
    rules: rules! {
        "kernel > 1", "the convolution has at least two columns";
    },
    ..Contract::BLOCK
};

pub(super) fn build(b: &mut UnitBuilder<'_, '_>, x: &Tensor) -> Result<Tensor> {
    let (g, width) = (b.g, x.shape()[0]);
    let all = b.linear("in", x)?;
    let before = b.columns(&all, 0, width)?;
    let after = b.columns(&all, width, width)?;
    let x = g.mul(&before, &b.columns(&all, 2 * width, width)?)?;
    let conv = b.required_weight("conv")?;
    let y = b.convolve("conv", &conv, &x)?;
    let y = b.point("conv", y)?;
    b.linear("out", &g.mul(&after, &y)?)
}
