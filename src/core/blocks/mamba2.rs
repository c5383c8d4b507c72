//! The state space layer of Mamba 2 (Dao and Gu 2024): one decay for each head.
//!
//! ```text
//! z|x|B|C|dt = in . h
//! x|B|C      = silu(conv(x|B|C) + conv.bias)
//! s(t)       = exp(softplus(dt + dt.bias) a) s(t-1) + softplus(dt + dt.bias) B x
//! y          = out . norm(silu(z) * (C . s + d x))        normalised within groups
//! ```
//! `[n_embd, n_tokens]` in and out. State of each sequence: the last columns before the convolution
//! and `s [n_state, n_inner / heads, heads]`.

use super::build::UnitBuilder;
use crate::arch::{Contract, NormRef, StateSpec};
use crate::{options, points, rules, weights};
use lab_base::ggml::{Glu, Result, Tensor, Unary};

options! {
    pub(super) struct Config {
        n_inner: u64 => "ssm_inner", "channels of all heads";
        n_state: u64 => "ssm_state", "elements of each channel's state";
        kernel: u64 => "ssm_kernel", "length of the convolution in tokens";
        heads: u64 => "ssm_dt_rank", "heads";
        groups: u64 => "ssm_groups", "groups of heads that share B and C";
        norm: NormRef => "default", when "has('norm')", "kind and eps of the norm before the output projection";
    }
}

pub(super) static CONTRACT: Contract = Contract {
    name: "mamba2",
    title: "State-space scan",
    noun: "a state-space scan",
    phrase: "a state-space scan with {=heads} heads{heads != groups:  in {=groups} groups} over {=n_inner} channels",
    summary: "Selective state-space model (Mamba-2). Each channel has a state, and each head one decay, which follows from the token.",
    formula: "s = exp(dt * a) * s + dt * B * x;  y = out . {has('norm') -> norm: silu(z) * (C . s + d * x)}",
    options: Config::OPTIONS,
    weights: weights! {
        in: Matrix "ssm_in.weight" ["n_embd", "2 * n_inner + 2 * groups * n_state + heads"], "input projection to the gate z, x, B, C and dt";
        conv: Convolution "ssm_conv1d.weight" ["kernel", "n_inner + 2 * groups * n_state"], "convolution over time";
        conv.bias: Bias "ssm_conv1d.bias" ["n_inner + 2 * groups * n_state"] optional, "bias of the convolution";
        dt.bias: Bias "ssm_dt.bias" ["heads"], "bias of the step sizes";
        a: Decay "ssm_a" ["1", "heads"], "decay of each head, negative";
        d: Scale "ssm_d" ["1", "heads"], "skip connection: factor of the input that is added to the result";
        norm: Scale "ssm_norm.weight" ["n_inner / groups", "groups"] optional, "weight of the norm before the output projection; if absent, there is no norm";
        out: Matrix "ssm_out.weight" ["n_inner", "n_embd"], "output projection to the hidden state";
    },
    state: StateSpec::Recurrent(&[
        ("conv", "(kernel - 1) * (n_inner + 2 * groups * n_state)"),
        ("scan", "n_state * n_inner"),
    ]),
    points: points! {
        conv: Neurons ["n_inner / heads", "heads"], "input of the scan, after convolution and activation";
        y: Neurons ["n_inner"], "result of the scan with its skip connection, before gate and norm";
    },
    rules: rules! {
        "kernel > 1", "the convolution has at least two columns";
        "heads > 0 and n_inner % heads == 0", "`heads` divides `n_inner`";
        "groups > 0 and heads % groups == 0 and n_inner % groups == 0", "`groups` divides `heads`";
    },
    ..Contract::BLOCK
};

pub(super) fn build(b: &mut UnitBuilder<'_, '_>, x: &Tensor) -> Result<Tensor> {
    let c = Config::read(&b.unit.options);
    let (g, n) = (b.g, b.n_tokens);
    let (d, shared) = (c.n_inner / c.heads, c.groups * c.n_state);
    let channels = c.n_inner + 2 * shared;
    let all = b.linear("in", x)?;
    let z = b.columns(&all, 0, c.n_inner)?;
    let xbc = b.columns(&all, c.n_inner, channels)?;
    let dt = b.columns(&all, c.n_inner + channels, c.heads)?;
    let conv = b.required_weight("conv")?;
    let xbc = b.convolve("conv", &conv, &xbc)?;
    let xbc = g.unary(&b.with_bias("conv.bias", xbc)?, Unary::Silu)?;

    let x = g.reshape(&b.columns(&xbc, 0, c.n_inner)?, [d, c.heads, n, 1])?;
    let x = b.point("conv", x)?;
    let input = b.columns(&xbc, c.n_inner, shared)?;
    let output = b.columns(&xbc, c.n_inner + shared, shared)?;
    let dt = b.with_bias("dt.bias", dt)?;

    let a = b.required_weight("a")?;
    let y = b.over_time("scan", |b, group| {
        let (steps, seqs) = (group.n_steps, group.n_seqs);
        let (table, rows) = group.rows(b, "scan")?;
        let n_rows = table.shape()[1];
        let shape = [c.n_state, c.groups, steps, seqs];
        let y = g.ssm_scan(
            &g.reshape(&table, [c.n_state, d, c.heads, n_rows])?,
            &group.of(g, &x, [d, c.heads, steps, seqs])?,
            &group.of(g, &dt, [c.heads, steps, seqs, 1])?,
            &a,
            &group.of(g, &input, shape)?,
            &group.of(g, &output, shape)?,
            &rows,
        )?;
        group.scanned(g, &y, c.n_inner, c.n_state * c.n_inner)
    })?;

    let y = g.reshape(&y, [d, c.heads, n, 1])?;
    let y = g.add(&y, &g.mul(&x, &b.required_weight("d")?)?)?;
    let y = g.reshape(&y, [c.n_inner, n, 1, 1])?;
    let y = b.point("y", y)?;
    let y = g.glu(Glu::Silu, &z, &y)?;
    let y = match b.weight("norm") {
        Some(weight) => {
            let groups = g.reshape(&y, [c.n_inner / c.groups, c.groups, n, 1])?;
            let y = b.normalise_with(c.norm, Some(weight), &groups)?;
            g.reshape(&y, [c.n_inner, n, 1, 1])?
        }
        None => y,
    };
    b.linear("out", &y)
}
