//! Time mixing with a generalised delta rule (Peng et al. 2025): at each position the elements of a matrix decay, the
//! value of one key is removed, and that of another is added. Projections read the previous position too.
//!
//! ```text
//! d       = h(t-1) - h(t)
//! r|k|v   = projections of h + shares * d
//! w       = exp(-e^(-1/2) sigmoid(decay + decay_up . tanh(decay_down . (h + shares * d))))
//! a       = sigmoid(rate + rate_up . rate_down . (h + shares * d))
//! v       = v + (side - v) * sigmoid(first + first_up . first_down . (h + shares * d))
//! c       = unit(removal * k);  k = k * (1 + (a - 1) * rate_k)
//! S       = S diag(w) - (S c) (a * c)^T + v k^T
//! y       = out . ((norm(S r) + (r . (bonus * k)) v) * g)
//! g       = gate_up . sigmoid(gate_down . (h + shares * d))
//! ```
//! `[n_embd, n_tokens]` in and out. State of each sequence: the last input and `S [d, d, heads]`. `side` is the values
//! of an earlier layer: a branch without `side` saves its own values instead of its result.

use super::build::UnitBuilder;
use crate::arch::{Contract, NormRef, SideInput, StateSpec};
use crate::{options, points, rules, weights};
use lab_base::ggml::{Result, Tensor, Unary};

options! {
    pub(super) struct Config {
        d: u64 => "wkv_d", "elements of a head, 64 or 128";
        heads: u64 => "n_embd // d", "heads";
        decay_rank: u64 => "decay_rank", "rank of the projection to the decay";
        rate_rank: u64 => "rate_rank", "rank of the projection to the learning rate";
        first_rank: u64 = "first_rank", when "has('first_down')", "rank of the projection to the share of the values of `side`";
        gate_rank: u64 => "gate_rank", when "has('gate_down')", "rank of the projection to the output gate";
        norm: NormRef = "none", "kind and eps of the norm of each head";
    }
}

/// The logarithm of the strongest decay: `-e^(-1/2)`, as models were trained with.
const STRONGEST: f32 = -0.606_531;

/// Lower bound of a vector's length in the normalisation to length 1.
const LEAST: f32 = 1e-12;

pub(super) static CONTRACT: Contract = Contract {
    name: "wkv7",
    title: "Time mixing with a delta rule",
    noun: "time mixing",
    phrase: "time mixing with {=heads} heads of {=d} elements{has('gate_down'): , gated}",
    summary: "RWKV-7 time mixing. Each head has a state matrix. Each token decays the matrix and corrects the value that it stores for the token's key. Its inputs are mixed with those of the token before.",
    formula: concat!(
        "S = w * S - (S . c) * (a * c) + v * k;  ",
        "y = out . (({norm -> norm: S . r} + (r . (bonus * k)) * v){has('gate_down'):  * gate})",
    ),
    options: Config::OPTIONS,
    weights: weights! {
        shares: Scale "time_mix_lerp_fused.weight" ["n_embd", "1", "1", "if(has('gate_down'), 6, 5)"], "shares of the position before in the inputs of queries, decay, keys, values, learning rate and gate";
        r: Matrix "time_mix_receptance.weight" ["n_embd", "n_embd"], "query projection";
        k: Matrix "time_mix_key.weight" ["n_embd", "n_embd"], "key projection";
        v: Matrix "time_mix_value.weight" ["n_embd", "n_embd"], "value projection";
        decay_down: Matrix "time_mix_w1.weight" ["n_embd", "decay_rank"] never_quantised, "down-projection to the decay";
        decay_up: Matrix "time_mix_w2.weight" ["decay_rank", "n_embd"] never_quantised, "up-projection to the decay";
        decay: Bias "time_mix_w0.weight" ["n_embd"], "what is added to the decay";
        rate_down: Matrix "time_mix_a1.weight" ["n_embd", "rate_rank"] never_quantised, "down-projection to the learning rate";
        rate_up: Matrix "time_mix_a2.weight" ["rate_rank", "n_embd"] never_quantised, "up-projection to the learning rate";
        rate: Bias "time_mix_a0.weight" ["n_embd"], "what is added to the learning rate";
        first_down: Matrix "time_mix_v1.weight" ["n_embd", "first_rank"] never_quantised unless_forbidden, "down-projection to the share of the values of `side`";
        first_up: Matrix "time_mix_v2.weight" ["first_rank", "n_embd"] never_quantised when("has('first_down')"), "up-projection to this share";
        first: Bias "time_mix_v0.weight" ["n_embd"] when("has('first_down')"), "what is added to this share";
        gate_down: Matrix "time_mix_g1.weight" ["n_embd", "gate_rank"] never_quantised optional, "down-projection to the output gate";
        gate_up: Matrix "time_mix_g2.weight" ["gate_rank", "n_embd"] never_quantised when("has('gate_down')"), "up-projection to the output gate";
        removal: Scale "time_mix_k_k.weight" ["n_embd"], "factor of the keys at which the state is corrected";
        rate_k: Scale "time_mix_k_a.weight" ["n_embd"], "share of the learning rate in the scale of the keys";
        bonus: Scale "time_mix_r_k.weight" ["n_embd"], "factor of the token's own key and value in its result";
        norm: Scale "time_mix_ln.weight" ["n_embd"] when("norm"), "weight of the norm of the heads";
        norm.bias: Bias "time_mix_ln.bias" ["n_embd"] optional when("norm"), "bias of the norm of the heads";
        out: Matrix "time_mix_output.weight" ["n_embd", "n_embd"], "output projection to the hidden state";
    },
    side: Some(SideInput {
        width: "n_embd",
        doc: "values of an earlier layer, with which the values of this layer are mixed. `save` of a branch without `side` saves the values of its layer, not its result",
    }),
    state: StateSpec::Recurrent(&[("shift", "n_embd"), ("matrix", "d * d * heads")]),
    points: points! {
        r: Neurons ["d * heads"], "receptances";
        k: Neurons ["d * heads"], "keys, after their rates";
        v: Neurons ["d * heads"], "values";
        decay: Neurons ["d * heads"], "decays of the state";
        y: Neurons ["d * heads"], "results of the heads with the bonus of the token itself, before gate and output projection";
    },
    rules: rules! {
        "d == 64 or d == 128", "heads have 64 or 128 elements";
        "d * heads == n_embd", "`d` divides the width of the hidden state";
    },
    ..Contract::BLOCK
};

pub(super) fn build(b: &mut UnitBuilder<'_, '_>, x: &Tensor) -> Result<Tensor> {
    let c = Config::read(&b.unit.options);
    let (g, n, width) = (b.g, b.n_tokens, c.d * c.heads);
    let change = b.change_from_previous("shift", x)?;
    let shares = b.required_weight("shares")?;
    let n_shares = shares.elements() / width;
    let by = g.reshape(&shares, [width, 1, n_shares, 1])?;
    let by = g.repeat(&by, [width, n, n_shares, 1])?;
    let [for_r, for_w, for_k, for_v, for_a] = b.interpolate(x, &change, &by)?;

    let r = b.linear("r", &for_r)?;
    let w = g.unary(&b.linear("decay_down", &for_w)?, Unary::Tanh)?;
    let w = g.scale(&sigmoid(b, "decay", &w)?, STRONGEST)?;
    let w = g.unary(&w, Unary::Exp)?;
    let k = b.linear("k", &for_k)?;
    let v = values(b, &for_v)?;
    let a = sigmoid(b, "rate", &b.linear("rate_down", &for_a)?)?;

    let shape = [c.d, c.heads, n, 1];
    let removed = g.mul(&k, &b.required_weight("removal")?)?;
    let removed = g.l2_norm(&g.reshape(&removed, shape)?, LEAST)?;
    let scaled = g.mul(&k, &b.required_weight("rate_k")?)?;
    let k = g.add(&k, &g.sub(&g.mul(&scaled, &a)?, &scaled)?)?;
    let learnt = g.mul(&removed, &g.reshape(&a, shape)?)?;
    let removed = g.scale(&removed, -1.0)?;
    let r = b.point("r", r)?;
    let k = b.point("k", k)?;
    let v = b.point("v", v)?;
    let w = b.point("decay", w)?;

    let y = b.over_time("matrix", |b, group| {
        let of = |x: &Tensor| group.of(g, x, [c.d, c.heads, group.n_steps * group.n_seqs, 1]);
        let state = group.read_state(b, "matrix")?;
        let values = [
            &of(&r)?,
            &of(&w)?,
            &of(&k)?,
            &of(&v)?,
            &of(&removed)?,
            &of(&learnt)?,
        ];
        let y = g.wkv7(values, &state)?;
        group.scanned(g, &y, width, c.d * width)
    })?;
    let y = b.normalise_heads(c.norm, c.heads, &y)?;
    let own = g.mul(&g.mul(&k, &r)?, &b.required_weight("bonus")?)?;
    let own = g.sum_rows(&g.reshape(&own, shape)?)?; // [1, heads, n_tokens]
    let own = g.mul(&g.reshape(&v, shape)?, &own)?;
    let y = g.add(&y, &g.reshape(&own, [width, n, 1, 1])?)?;
    let y = b.point("y", y)?;
    let y = match b.weight("gate_down") {
        Some(_) => {
            let [.., for_g] = b.interpolate::<6>(x, &change, &by)?;
            let gate = g.unary(&b.linear("gate_down", &for_g)?, Unary::Sigmoid)?;
            g.mul(&y, &b.linear("gate_up", &gate)?)?
        }
        None => y,
    };
    b.linear("out", &y)
}

/// `sigmoid(key + key_up . x)`.
fn sigmoid(b: &UnitBuilder<'_, '_>, key: &str, x: &Tensor) -> Result<Tensor> {
    let up = b.linear(&format!("{key}_up"), x)?;
    b.g.unary(&b.g.add(&up, &b.required_weight(key)?)?, Unary::Sigmoid)
}

/// The values `[n_embd, n_tokens]`: interpolated towards those of `side`, or saved for other layers.
fn values(b: &mut UnitBuilder<'_, '_>, x: &Tensor) -> Result<Tensor> {
    let g = b.g;
    let v = b.linear("v", x)?;
    let Some(first) = b.side.clone() else {
        b.saved = Some(v.clone());
        return Ok(v);
    };
    let share = sigmoid(b, "first", &b.linear("first_down", x)?)?;
    g.add(&v, &g.mul(&g.sub(&first, &v)?, &share)?)
}
