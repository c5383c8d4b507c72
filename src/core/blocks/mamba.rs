//! The selective state space layer of Mamba (Gu and Dao 2023).
//!
//! ```text
//! x | z    = in . h
//! x        = silu(conv(x) + conv.bias)
//! dt|B|C   = x_proj . x                          each normalised, if there is a norm
//! dt       = dt_proj . dt + dt.bias
//! s(t)     = exp(softplus(dt) a) s(t-1) + softplus(dt) B x
//! y        = out . ((C . s + d x) * silu(z))
//! ```
//! `[n_embd, n_tokens]` in and out. State of each sequence: the last columns before the convolution and
//! `s [n_state, n_inner]`. With fewer heads than channels, dt, a and d have one number for each head.

use super::build::UnitBuilder;
use crate::arch::{Contract, NormRef, StateSpec};
use crate::{options, points, rules, weights};
use lab_base::ggml::{Glu, Result, Tensor, Unary};

options! {
    pub(super) struct Config {
        n_inner: u64 => "ssm_inner", "channels";
        n_state: u64 => "ssm_state", "elements of each channel's state";
        kernel: u64 => "ssm_kernel", "length of the convolution in tokens";
        heads: u64 = "ssm_inner", "heads with one step and one decay each; as many as channels: each element of the state has its own decay. Fewer: `in` gives for each head the gate z, then x, and `x` gives B, C, then dt";
        rank: u64 = "ssm_dt_rank", "rank of the projection to the step sizes";
        norm: NormRef = "none", "kind and eps of the norms of dt, B and C";
    }
}

pub(super) static CONTRACT: Contract = Contract {
    name: "mamba",
    title: "Selective scan",
    noun: "a selective scan",
    phrase: "a selective scan over {=n_inner} channels{heads != n_inner:  in {=heads} heads}",
    summary: "Selective state-space model (Mamba). Each channel has a state. Step sizes, inputs and outputs of the scan follow from the token.",
    formula: concat!(
        "{norm: dt, B, C = norm(dt), norm(B), norm(C);  }",
        "s = exp(dt * a) * s + dt * B * x;  y = out . ((C . s + d * x) * silu(z))",
    ),
    options: Config::OPTIONS,
    weights: weights! {
        in: Matrix "ssm_in.weight" ["n_embd", "2 * n_inner"], "input projection to x and the gate z";
        conv: Convolution "ssm_conv1d.weight" ["kernel", "n_inner"], "convolution over time";
        conv.bias: Bias "ssm_conv1d.bias" ["n_inner"] optional, "bias of the convolution";
        x: Matrix "ssm_x.weight" ["n_inner", "rank + 2 * n_state"], "projection to dt, B and C";
        dt_norm: Scale "ssm_dt_norm.weight" ["rank"] optional when("norm"), "weight of the norm of dt";
        b_norm: Scale "ssm_b_norm.weight" ["n_state"] optional when("norm"), "weight of the norm of B";
        c_norm: Scale "ssm_c_norm.weight" ["n_state"] optional when("norm"), "weight of the norm of C";
        dt: Matrix "ssm_dt.weight" ["rank", "heads"], "projection to the step sizes";
        dt.bias: Bias "ssm_dt.bias" ["heads"], "bias of the step sizes";
        a: Decay "ssm_a" ["if(heads == n_inner, n_state, heads)", "if(heads == n_inner, n_inner, 1)"], "decay of each element of the state, or of each head, negative";
        d: Scale "ssm_d" ["heads"], "skip connection: factor of the input that is added to the result";
        out: Matrix "ssm_out.weight" ["n_inner", "n_embd"], "output projection to the hidden state";
    },
    state: StateSpec::Recurrent(&[
        ("conv", "(kernel - 1) * n_inner"),
        ("scan", "n_state * n_inner"),
    ]),
    points: points! {
        conv: Neurons ["n_inner"], "input of the scan, after convolution and activation";
        y: Neurons ["n_inner"], "result of the scan with its skip connection, before the gate";
    },
    rules: rules! {
        "kernel > 1", "the convolution has at least two columns";
        "heads > 0 and n_inner % heads == 0", "`heads` divides `n_inner`";
    },
    ..Contract::BLOCK
};

pub(super) fn build(b: &mut UnitBuilder<'_, '_>, x: &Tensor) -> Result<Tensor> {
    let c = Config::read(&b.unit.options);
    let (g, n) = (b.g, b.n_tokens);
    let (d, by_head) = (c.n_inner / c.heads, c.heads != c.n_inner);
    let xz = b.linear("in", x)?;
    let (x, z) = match by_head {
        true => {
            let (z, x) = b.halves(&g.reshape(&xz, [2 * d, c.heads, n, 1])?)?;
            let joined = |part: &Tensor| g.reshape(&g.cont(part)?, [c.n_inner, n, 1, 1]);
            (joined(&x)?, joined(&z)?)
        }
        false => b.halves(&xz)?,
    };
    // What runs over time reads contiguous elements.
    let x = g.cont(&x)?;
    let conv = b.required_weight("conv")?;
    let x = b.convolve("conv", &conv, &x)?;
    let x = g.unary(&b.with_bias("conv.bias", x)?, Unary::Silu)?;
    let x = b.point("conv", x)?;

    let parts = b.linear("x", &x)?;
    let norm = |b: &UnitBuilder<'_, '_>, key: &str, start: u64, width: u64| {
        let part = b.columns(&parts, start, width)?;
        b.normalise_with(c.norm, b.weight(key), &part)
    };
    let (dt_at, b_at) = match by_head {
        true => (2 * c.n_state, 0),
        false => (0, c.rank),
    };
    let dt = norm(b, "dt_norm", dt_at, c.rank)?;
    let input = norm(b, "b_norm", b_at, c.n_state)?;
    let output = norm(b, "c_norm", b_at + c.n_state, c.n_state)?;
    let dt = b.linear("dt", &dt)?;

    let (a, skip) = (b.required_weight("a")?, b.required_weight("d")?);
    let a = match by_head {
        true => g.reshape(&a, [1, c.heads, 1, 1])?,
        false => a,
    };
    let y = b.over_time("scan", |b, group| {
        let (steps, seqs) = (group.n_steps, group.n_seqs);
        let (table, rows) = group.rows(b, "scan")?;
        let n_rows = table.shape()[1];
        let y = g.ssm_scan(
            &g.reshape(&table, [c.n_state, d, c.heads, n_rows])?,
            &group.of(g, &x, [d, c.heads, steps, seqs])?,
            &group.of(g, &dt, [c.heads, steps, seqs, 1])?,
            &a,
            &group.of(g, &input, [c.n_state, 1, steps, seqs])?,
            &group.of(g, &output, [c.n_state, 1, steps, seqs])?,
            &rows,
        )?;
        group.scanned(g, &y, c.n_inner, c.n_state * c.n_inner)
    })?;
    let skipped = match by_head {
        true => {
            let x = g.reshape(&x, [d, c.heads, n, 1])?;
            let x = g.mul(&x, &g.reshape(&skip, [1, c.heads, 1, 1])?)?;
            g.reshape(&x, [c.n_inner, n, 1, 1])?
        }
        false => g.mul(&x, &skip)?,
    };
    let y = g.add(&y, &skipped)?;
    let y = b.point("y", y)?;
    let y = g.glu(Glu::Silu, &z, &y)?;
    b.linear("out", &y)
}
