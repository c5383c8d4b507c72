//! Gated delta rule attention (Yang et al. 2024): each head has a matrix that decays, and that each position corrects
//! towards its value. The decay is a number for each head, or one for each element of its keys (arXiv 2510.26692).
//!
//! ```text
//! q|k|v  = silu(conv(qkv.h))                   q and k of unit length
//! beta   = sigmoid(beta.h)
//! g      = a * softplus(alpha.h + dt.bias)     the logarithm of the decay, negative
//! S(t)   = exp(g) S(t-1) + beta (v - exp(g) S(t-1) k) k^T
//! y      = out . (norm(S q / sqrt(d)) * act(gate.h))
//! ```
//! `[n_embd, n_tokens]` in and out. State of each sequence: the last columns before the convolution and
//! `S [d, d, heads]`.

use super::build::UnitBuilder;
use crate::arch::{ActRef, Contract, NormRef, StateSpec};
use crate::{choices, options, points, rules, weights};
use lab_base::ggml::{Result, Tensor, Unary};

choices! {
    /// The key head that a value head reads, if there are fewer key heads.
    pub(super) enum HeadMap {
        /// Head h reads head `h % k_heads`.
        Tiled = "tiled",
        /// Head h reads head `h / (heads / k_heads)`.
        Interleaved = "interleaved",
    }
}

choices! {
    /// The part of a head's matrix that has one decay.
    pub(super) enum Decay {
        /// The whole matrix of a head.
        Head = "head",
        /// A row of the matrix, one element of the keys.
        Element = "element",
    }
}

options! {
    pub(super) struct Config {
        heads: u64 = "ssm_dt_rank", "value heads";
        k_heads: u64 = "ssm_groups", "query and key heads";
        d: u64 = "ssm_state", "elements of a head of queries, keys or values";
        kernel: u64 => "ssm_kernel", "length of the convolution in tokens";
        head_map: HeadMap, "which key head a value head reads: `tiled` (h % k_heads) or `interleaved` (h / (heads / k_heads))";
        decay: Decay = "head", "decay: one for each `head`, or one for each `element` of its keys";
        decay_bound: f32 = "0", "lowest logarithm of the decay, which is this share of a sigmoid: `decay_bound * sigmoid(a * (alpha.h + dt.bias))`; 0: none";
        decay_sign: f32 = "1", when "decay_bound != 0", "factor of `a` in that sigmoid: -1 where files store it negated";
        gate_act: ActRef = "silu", "activation of the output gate, see `[act.NAME]`";
        norm: NormRef => "default", "kind and eps of the norm of each head";
        eps: f32 => "delta_eps", "added to the squared lengths of queries and keys";
    }
}

pub(super) static CONTRACT: Contract = Contract {
    name: "delta_net",
    title: "Gated delta net",
    noun: "a delta net",
    phrase: "a gated delta net with {=heads} heads{heads != k_heads:  (key heads: {=k_heads})} of {=d} elements",
    summary: "Linear attention with the gated delta rule. Each head has a state matrix. Each token decays the matrix and corrects the value that it stores for the token's key.",
    formula: "S = exp(g) * S + beta * (v - exp(g) * S . k) * k^T;  y = out . ({norm -> norm: S . q} * {=gate_act}(gate.h))",
    options: Config::OPTIONS,
    weights: weights! {
        q: Matrix "attn_q.weight" ["n_embd", "k_heads * d"] optional, "query projection";
        k: Matrix "attn_k.weight" ["n_embd", "k_heads * d"] when("has('q')"), "key projection";
        v: Matrix "attn_v.weight" ["n_embd", "heads * d"] when("has('q')"), "value projection";
        qkv: Matrix "attn_qkv.weight" ["n_embd", "2 * k_heads * d + heads * d"] when("not has('q')"), "queries, keys and values in one projection";
        gate_down: Matrix "ssm_g_a.weight" ["n_embd", "d"] optional, "down-projection of the output gate";
        gate: Matrix "attn_gate.weight" ["if(has('gate_down'), d, n_embd)", "heads * d"], "projection to the output gate";
        conv_q: Convolution "ssm_conv1d_q.weight" ["kernel", "1", "k_heads * d"] optional, "convolution of the queries over time";
        conv_k: Convolution "ssm_conv1d_k.weight" ["kernel", "1", "k_heads * d"] when("has('conv_q')"), "convolution of the keys over time";
        conv_v: Convolution "ssm_conv1d_v.weight" ["kernel", "1", "heads * d"] when("has('conv_q')"), "convolution of the values over time";
        conv: Convolution "ssm_conv1d.weight" ["kernel", "2 * k_heads * d + heads * d"] when("not has('conv_q')"), "convolution of queries, keys and values over time";
        conv.bias: Bias "ssm_conv1d.bias" ["2 * k_heads * d + heads * d"] optional, "bias of the convolution";
        ba: Matrix "ssm_ba.weight" ["n_embd", "2 * heads"] optional, "beta and alpha in one projection, grouped by key head";
        beta: Matrix "ssm_beta.weight" ["n_embd", "heads"] when("not has('ba')"), "projection to beta, the strength of the correction";
        alpha_down: Matrix "ssm_f_a.weight" ["n_embd", "d"] optional when("not has('ba')"), "down-projection of the decay";
        alpha: Matrix "ssm_alpha.weight" ["if(has('alpha_down'), d, n_embd)", "if(decay == 'element', d, 1) * heads"] when("not has('ba')"), "projection to the decay";
        dt.bias: Bias "ssm_dt.bias" ["if(decay == 'element', d, 1) * heads"], "bias of the decay";
        a: Decay "ssm_a" ["if(decay == 'element' and decay_sign > 0, 1, heads)", "if(decay == 'element' and decay_sign > 0, heads, 1)"], "factor that makes the logarithm of the decay, negative";
        norm: Scale "ssm_norm.weight" ["d"], "weight of the norm of each head";
        out: Matrix "ssm_out.weight" ["heads * d", "n_embd"], "output projection to the hidden state";
    },
    state: StateSpec::Recurrent(&[
        ("conv", "(kernel - 1) * (2 * k_heads * d + heads * d)"),
        ("matrix", "d * d * heads"),
    ]),
    points: points! {
        q: Heads ["d", "k_heads"], "queries after convolution and norm";
        k: Heads ["d", "k_heads"], "keys after convolution and norm";
        v: Heads ["d", "heads"], "values after convolution";
        y: Neurons ["d * heads"], "results of the heads after their norm, before gate and output projection";
    },
    rules: rules! {
        "kernel > 1", "the convolution has at least two columns";
        "k_heads > 0 and heads % k_heads == 0", "`k_heads` divides `heads`";
        "decay_sign == 1 or decay_sign == -1", "`decay_sign` is 1 or -1";
        "decay_bound <= 0", "`decay_bound` is a logarithm, so not positive";
    },
    ..Contract::BLOCK
};

pub(super) fn build(b: &mut UnitBuilder<'_, '_>, x: &Tensor) -> Result<Tensor> {
    let c = Config::read(&b.unit.options);
    let (g, n) = (b.g, b.n_tokens);
    let (keys, values) = (c.k_heads * c.d, c.heads * c.d);
    let (qkv, conv) = projected(b, x)?;
    let qkv = b.convolve("conv", &conv, &qkv)?;
    let qkv = g.unary(&b.with_bias("conv.bias", qkv)?, Unary::Silu)?;
    let unit_length = |b: &UnitBuilder<'_, '_>, start: u64| {
        let rows = b.columns(&qkv, start, keys)?;
        let rows = g.reshape(&rows, [c.d, c.k_heads, n, 1])?;
        // x / sqrt(sum of x^2 + eps): a root mean square with eps / d, over the root of d.
        let rows = g.rms_norm(&rows, c.eps / c.d as f32)?;
        let rows = g.scale(&rows, 1.0 / (c.d as f32).sqrt())?;
        match c.head_map {
            HeadMap::Interleaved if c.heads != c.k_heads => b.repeat_heads(&rows, c.d, c.heads),
            _ => Ok(rows),
        }
    };
    let (q, k) = (unit_length(b, 0)?, unit_length(b, keys)?);
    let v = b.columns(&qkv, 2 * keys, values)?;
    let v = g.reshape(&v, [c.d, c.heads, n, 1])?;
    let q = b.point("q", q)?;
    let k = b.point("k", k)?;
    let v = b.point("v", v)?;

    let (beta, alpha) = strengths(b, &c, x)?;
    let beta = g.unary(&beta, Unary::Sigmoid)?;
    let width = match c.decay {
        Decay::Head => 1,
        Decay::Element => c.d,
    };
    let alpha = b.with_bias("dt.bias", alpha)?;
    let alpha = g.reshape(&alpha, [width, c.heads, n, 1])?;
    let a = g.reshape(&b.required_weight("a")?, [1, c.heads, 1, 1])?;
    let decay = if c.decay_bound == 0.0 {
        g.mul(&g.unary(&alpha, Unary::Softplus)?, &a)?
    } else {
        let share = g.mul(&alpha, &a)?;
        let share = match c.decay_sign {
            1.0 => share,
            sign => g.scale(&share, sign)?,
        };
        let share = g.unary(&share, Unary::Sigmoid)?;
        g.scale(&share, c.decay_bound)?
    };

    let y = b.over_time("matrix", |b, group| {
        let of = |x: &Tensor, width: u64, heads: u64| {
            group.of(g, x, [width, heads, group.n_steps, group.n_seqs])
        };
        let k_heads = k.shape()[1];
        let state = group.read_state(b, "matrix")?;
        let y = g.gated_delta_net(
            &of(&q, c.d, k_heads)?,
            &of(&k, c.d, k_heads)?,
            &of(&v, c.d, c.heads)?,
            &of(&decay, width, c.heads)?,
            &of(&beta, 1, c.heads)?,
            &g.reshape(&state, [c.d, c.d, c.heads, group.n_seqs])?,
        )?;
        group.scanned(g, &y, values, c.d * values)
    })?;

    let y = g.reshape(&y, [c.d, c.heads, n, 1])?;
    let y = b.normalise_with(c.norm, b.weight("norm"), &y)?;
    let y = g.reshape(&y, [values, n, 1, 1])?;
    let y = b.point("y", y)?;
    let gate = narrowed(b, "gate_down", "gate", x)?;
    b.linear("out", &b.gate_heads(c.gate_act, &y, &gate)?)
}

/// Queries, keys and values in a row, `[2 * k_heads * d + heads * d, n_tokens]`, and the weight of their convolution
/// `[kernel, the same]`.
fn projected(b: &UnitBuilder<'_, '_>, x: &Tensor) -> Result<(Tensor, Tensor)> {
    let g = b.g;
    let qkv = if b.weight("q").is_some() {
        let (q, k) = (b.linear("q", x)?, b.linear("k", x)?);
        g.concat(&g.concat(&q, &k, 0)?, &b.linear("v", x)?, 0)?
    } else {
        b.linear("qkv", x)?
    };
    if b.weight("conv_q").is_none() {
        return Ok((qkv, b.required_weight("conv")?));
    }
    let (q, k) = (b.required_weight("conv_q")?, b.required_weight("conv_k")?);
    let conv = g.concat(&g.concat(&q, &k, 2)?, &b.required_weight("conv_v")?, 2)?;
    let [kernel, _, channels, _] = conv.shape();
    Ok((qkv, g.reshape(&conv, [kernel, channels, 1, 1])?))
}

/// A projection, of low rank if the file has two matrices for it.
fn narrowed(b: &UnitBuilder<'_, '_>, down: &str, key: &str, x: &Tensor) -> Result<Tensor> {
    match b.weight(down) {
        Some(_) => b.linear(key, &b.linear(down, x)?),
        None => b.linear(key, x),
    }
}

/// The inputs of beta and of the decay, `[heads, n_tokens]` each. The input of the decay is `[d * heads, n_tokens]` if
/// each element has its own decay.
fn strengths(b: &UnitBuilder<'_, '_>, c: &Config, x: &Tensor) -> Result<(Tensor, Tensor)> {
    if b.weight("ba").is_none() {
        let alpha = narrowed(b, "alpha_down", "alpha", x)?;
        return Ok((b.linear("beta", x)?, alpha));
    }
    // Each key head has the beta of its value heads, then their alpha.
    let (g, n) = (b.g, b.n_tokens);
    let times = c.heads / c.k_heads;
    let rows = b.linear("ba", x)?;
    let rows = g.reshape(&rows, [2 * times, c.k_heads, n, 1])?;
    let part = |start: u64| {
        let part = b.columns(&rows, start, times)?;
        g.reshape(&part, [c.heads, n, 1, 1])
    };
    Ok((part(0)?, part(times)?))
}
