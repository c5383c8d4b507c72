//! Linear attention with a decay of each head (Sun et al. 2023, Qin et al. 2024): each head has a matrix that decays at
//! its own rate, and to which each position adds.
//!
//! ```text
//! q|k|v = act(qkv.h)                                 one after the other for each head
//! S(t)  = exp(-slope * 2^(-8 (i + 1) / heads)) S(t-1) + v k^T     for head i
//! y     = out . (norm(S q) * gate_act(gate.h))
//! ```
//! `[n_embd, n_tokens]` in and out. State of each sequence: `S [d, d, heads]`. The recurrence is the scan of
//! state-space layers, with keys, queries and values as its inputs, outputs and channels, and steps of 1.

use super::build::UnitBuilder;
use super::context::DerivedInput;
use crate::arch::{ActRef, Contract, NormRef, StateSpec};
use crate::{options, points, rules, weights};
use lab_base::ggml::{Result, Tensor};

options! {
    pub(super) struct Config {
        heads: u64 => "n_head", "heads";
        d: u64 => "d_head", "elements of a head";
        slope: f32 = "1", "decay rate: each token multiplies the state matrix of head i (from 0) by `exp(-slope * 2^(-8 (i + 1) / heads))`; 0: no decay";
        act: ActRef, "activation of queries, keys and values: a kind or a declared name, see `[act.NAME]`";
        gate_act: ActRef, "activation of the output gate";
        norm: NormRef => "default", "kind and eps of the norm of all heads together";
    }
}

pub(super) static CONTRACT: Contract = Contract {
    name: "linear_attention",
    title: "Linear attention",
    noun: "linear attention",
    phrase: "linear attention with {=heads} heads of {=d} elements",
    summary: "Linear attention with a fixed decay. Each head has a state matrix. Each token decays the matrix and adds the product of its value and key.",
    formula: "q, k, v = {=act}(qkv.h);  S = decay * S + v * k;  y = out . ({norm -> norm: S . q} * {=gate_act}(gate.h))",
    options: Config::OPTIONS,
    weights: weights! {
        qkv: Matrix "attn_qkv.weight" ["n_embd", "3 * d * heads"], "for each head its query, key and value";
        norm: Scale "attn_norm_2.weight" ["d * heads"], "weight of the norm of all heads together";
        gate: Matrix "attn_gate.weight" ["n_embd", "d * heads"], "projection to the output gate";
        out: Matrix "attn_output.weight" ["d * heads", "n_embd"], "output projection to the hidden state";
    },
    state: StateSpec::Recurrent(&[("matrix", "d * d * heads")]),
    points: points! {
        q: Heads ["d", "heads"], "queries";
        k: Heads ["d", "heads"], "keys";
        v: Heads ["d", "heads"], "values";
        y: Neurons ["d * heads"], "results of the heads after their norm, before the gate";
    },
    rules: rules! {
        "slope >= 0", "a state does not grow: `slope` is not negative";
    },
    ..Contract::BLOCK
};

/// The input whose softplus is a step of 1: ln(e - 1).
const STEP: f32 = 0.541_324_85;

pub(super) fn build(b: &mut UnitBuilder<'_, '_>, x: &Tensor) -> Result<Tensor> {
    let c = Config::read(&b.unit.options);
    let (g, n, width) = (b.g, b.n_tokens, c.d * c.heads);
    let qkv = b.activate(c.act, &b.linear("qkv", x)?)?;
    let qkv = g.reshape(&qkv, [3 * c.d, c.heads, n, 1])?;
    let part = |i: u64| b.columns(&qkv, i * c.d, c.d);
    let (q, k, v) = (part(0)?, part(1)?, part(2)?);
    let q = b.point("q", q)?;
    let k = b.point("k", k)?;
    let v = b.point("v", v)?;
    let decay = b.input(DerivedInput::Decay {
        heads: c.heads,
        slope: c.slope,
    })?;
    let steps = g.fill(&g.cont(&b.columns(&q, 0, 1)?)?, STEP)?;

    let y = b.over_time("matrix", |b, group| {
        let (table, rows) = group.rows(b, "matrix")?;
        let n_rows = table.shape()[1];
        let shape = [c.d, c.heads, group.n_steps, group.n_seqs];
        let y = g.ssm_scan(
            &g.reshape(&table, [c.d, c.d, c.heads, n_rows])?,
            &group.of(g, &v, shape)?,
            &group.of(g, &steps, [c.heads, group.n_steps, group.n_seqs, 1])?,
            &decay,
            &group.of(g, &k, shape)?,
            &group.of(g, &q, shape)?,
            &rows,
        )?;
        group.scanned(g, &y, width, c.d * width)
    })?;
    let y = b.normalise_with(c.norm, b.weight("norm"), &y)?;
    let y = b.point("y", y)?;
    let gate = b.linear("gate", x)?;
    b.linear("out", &b.gate_heads(c.gate_act, &y, &gate)?)
}
