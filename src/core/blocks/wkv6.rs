//! Time mixing with a decay of each element of the keys (Peng et al. 2024): the input of each projection is an
//! interpolation between a position and the previous one, with shares that follow from the inputs at both.
//!
//! ```text
//! d        = h(t-1) - h(t)
//! s        = shares + shift_up . tanh(shift_down . (h + shift * d))       five shares
//! k|v|r|g  = projections of h + s * d
//! w        = exp(-exp(decay + decay_up . tanh(decay_down . (h + s * d))))
//! o        = r (S + bonus k v);  S = w S + k v                            with a bonus
//! S        = w S + (1 - w) k v;  o = r S / sqrt(d)                        without
//! y        = out . (norm(o) * act(g))
//! ```
//! `[n_embd, n_tokens]` in and out. State of each sequence: the last input and `S [d, d, heads]`.

use super::build::UnitBuilder;
use crate::arch::{ActRef, Contract, NormRef, StateSpec};
use crate::{options, points, rules, weights};
use lab_base::ggml::{Result, Tensor, Unary};

options! {
    pub(super) struct Config {
        d: u64 => "wkv_d", "elements of a head";
        heads: u64 => "n_embd // d", "heads";
        k_heads: u64 = "n_embd // d", "key and value heads";
        rank: u64 => "shift_rank", "rank of the projections to the shares";
        decay_extra: u64 => "decay_extra", "rank of the projection to the decay";
        gate_act: ActRef = "silu", "activation of the output gate, see `[act.NAME]`";
        norm: NormRef = "none", "kind and eps of the norm of each head";
    }
}

pub(super) static CONTRACT: Contract = Contract {
    name: "wkv6",
    title: "Time mixing with decay",
    noun: "time mixing",
    phrase: "time mixing with {=heads} heads{heads != k_heads:  (key heads: {=k_heads})} of {=d} elements",
    summary: "RWKV-6 time mixing. Each head has a state matrix. Each token decays each row of the matrix at a rate of its own, and adds its key and value. Its inputs are mixed with those of the token before.",
    formula: concat!(
        "{has('bonus'): o = r . (S + bonus * k * v);  S = w * S + k * v",
        " | S = w * S + (1 - w) * k * v;  o = r . S};  y = out . ({norm -> norm: o} * {=gate_act}(gate))",
    ),
    options: Config::OPTIONS,
    weights: weights! {
        shift: Scale "time_mix_lerp_x.weight" ["n_embd"], "share of the position before in what the other shares follow from";
        shift_down: Matrix "time_mix_w1.weight" ["n_embd", "5 * rank"] never_quantised, "down-projections to the shares of decay, keys, values, queries and gate";
        shift_up: Matrix "time_mix_w2.weight" ["rank", "n_embd", "5"] never_quantised, "up-projections to these shares";
        shares: Scale "time_mix_lerp_fused.weight" ["n_embd", "1", "1", "5"], "what is added to these shares";
        decay: Bias "time_mix_decay.weight" ["n_embd"], "what is added to the exponents of the decay";
        decay_down: Matrix "time_mix_decay_w1.weight" ["n_embd", "decay_extra"] never_quantised, "down-projection to the exponents of the decay";
        decay_up: Matrix "time_mix_decay_w2.weight" ["decay_extra", "n_embd"] never_quantised, "up-projection to the exponents of the decay";
        r: Matrix "time_mix_receptance.weight" ["n_embd", "n_embd"], "query projection";
        r.bias: Bias "time_mix_receptance.bias" ["n_embd"] optional, "bias of the queries";
        k: Matrix "time_mix_key.weight" ["n_embd", "d * k_heads"], "key projection";
        k.bias: Bias "time_mix_key.bias" ["d * k_heads"] optional, "bias of the keys";
        v: Matrix "time_mix_value.weight" ["n_embd", "d * k_heads"], "value projection";
        v.bias: Bias "time_mix_value.bias" ["d * k_heads"] optional, "bias of the values";
        bonus: Scale "time_mix_first.weight" ["d", "heads"] optional, "factor of the token's own key and value in its result; if absent, keys are multiplied by 1 - decay";
        norm: Scale "time_mix_ln.weight" ["n_embd"] when("norm"), "weight of the norm of the heads";
        norm.bias: Bias "time_mix_ln.bias" ["n_embd"] optional when("norm"), "bias of the norm of the heads";
        gate: Matrix "time_mix_gate.weight" ["n_embd", "n_embd"], "projection to the output gate";
        out: Matrix "time_mix_output.weight" ["n_embd", "n_embd"], "output projection to the hidden state";
    },
    state: StateSpec::Recurrent(&[("shift", "n_embd"), ("matrix", "d * d * heads")]),
    points: points! {
        r: Heads ["d", "heads"], "receptances";
        k: Heads ["d", "heads"], "keys";
        v: Heads ["d", "heads"], "values";
        decay: Heads ["d", "heads"], "decays of the state";
        y: Neurons ["d * heads"], "results of the heads after their norm, before gate and output projection";
    },
    rules: rules! {
        "d * heads == n_embd", "`d` divides the width of the hidden state";
        "k_heads > 0 and heads % k_heads == 0", "`k_heads` divides the number of heads";
    },
    ..Contract::BLOCK
};

pub(super) fn build(b: &mut UnitBuilder<'_, '_>, x: &Tensor) -> Result<Tensor> {
    let c = Config::read(&b.unit.options);
    let (g, n, width) = (b.g, b.n_tokens, c.d * c.heads);
    let change = b.change_from_previous("shift", x)?;
    let by = shares(b, &c, x, &change)?;
    let [for_w, for_k, for_v, for_r, for_g] = b.interpolate(x, &change, &by)?;

    let w = b.linear("decay_down", &for_w)?;
    let w = b.linear("decay_up", &g.unary(&w, Unary::Tanh)?)?;
    let w = g.unary(&g.add(&w, &b.required_weight("decay")?)?, Unary::Exp)?;
    let w = g.unary(&g.scale(&w, -1.0)?, Unary::Exp)?;
    let shape = [c.d, c.heads, n, 1];
    let w = g.reshape(&w, shape)?;
    let k = b.repeat_heads(&b.linear("k", &for_k)?, c.d, c.heads)?;
    let v = b.repeat_heads(&b.linear("v", &for_v)?, c.d, c.heads)?;
    let r = g.reshape(&b.linear("r", &for_r)?, shape)?;
    let bonus = b.weight("bonus").cloned();
    let k = match bonus {
        Some(_) => k,
        None => g.sub(&k, &g.mul(&k, &w)?)?,
    };
    let r = b.point("r", r)?;
    let k = b.point("k", k)?;
    let v = b.point("v", v)?;
    let w = b.point("decay", w)?;

    let y = b.over_time("matrix", |b, group| {
        let of = |x: &Tensor| group.of(g, x, [c.d, c.heads, group.n_steps * group.n_seqs, 1]);
        let values = [&of(&k)?, &of(&v)?, &of(&r)?, &of(&w)?];
        let state = group.read_state(b, "matrix")?;
        let y = match &bonus {
            Some(bonus) => g.wkv6(values, bonus, &state)?,
            None => g.gated_linear_attention(values, &state, 1.0 / (c.d as f32).sqrt())?,
        };
        group.scanned(g, &y, width, c.d * width)
    })?;
    let y = b.normalise_heads(c.norm, c.heads, &y)?;
    let y = b.point("y", y)?;
    let gate = b.linear("gate", &for_g)?;
    b.linear("out", &b.gate_heads(c.gate_act, &y, &gate)?)
}

/// The shares of the interpolation between a position and the previous one, for the input of each projection:
/// `[n_embd, n_tokens, 5]`.
fn shares(b: &UnitBuilder<'_, '_>, c: &Config, x: &Tensor, change: &Tensor) -> Result<Tensor> {
    let g = b.g;
    let mixed = g.add(&g.mul(change, &b.required_weight("shift")?)?, x)?;
    let narrow = g.unary(&b.linear("shift_down", &mixed)?, Unary::Tanh)?;
    let narrow = g.reshape(&narrow, [c.rank, 5, b.n_tokens, 1])?;
    let narrow = g.cont(&g.permute(&narrow, [0, 2, 1, 3])?)?; // [rank, n_tokens, 5]
    let by = b.product_by_head("shift_up", &narrow)?;
    let fixed = g.reshape(&b.required_weight("shares")?, [x.shape()[0], 1, 5, 1])?;
    g.add(&by, &fixed)
}
