//! Multi-head latent attention (Liu et al. 2024, arXiv 2405.04434): the keys and values of all heads are projections of
//! one short row, and the cache holds that row.
//!
//! ```text
//! q       = q.h                             or q_b . norm(q_a . h)
//! c, r    = kv_a . h                        the latent row and the rotated part, one for all heads; r = norm(r) if set
//! c       = norm(c)
//! absorbed: Q = [k_b . q_nope | rope(q_rope)],  K = [c | rope(r)],  V = c
//!           y = o . concat over heads of v_b . attend(Q, K, V)
//! expanded: k_nope, v = kv_b . c
//!           Q = [q_nope | rope(q_rope)],  K = [k_nope | rope(r)]
//!           y = o . concat over heads of attend(Q, K, v)
//! ```
//! `[n_embd, n_tokens]` in and out. Both forms compute the same; the weights decide which one is used.
//! Absorbed, a position costs `kv_rank + n_rope` elements for all heads together.

use super::attend::{self, KeyRows};
use super::build::UnitBuilder;
use super::gate::{O_IN_POINT, OutputGate};
use super::selection::{self, IndexInputs};
use crate::arch::{ActRef, CacheRef, Contract, NormRef, RopeRef, SelectionRef, StateSpec};
use crate::{options, points, rules, weights};
use lab_base::ggml::{Result, Tensor};

options! {
    pub(super) struct Config {
        rope: RopeRef, "rotation of the rotated parts, or `none`";
        cache: CacheRef = "full", "which keys a query attends to; `full`: all, or with causal attention all so far";
        heads: u64 => "n_head", "query heads";
        q_rank: u64 => "q_lora_rank", when "has('q_a')", "rank of the queries: elements of their latent row, if they have one";
        kv_rank: u64 => "kv_lora_rank", "rank of keys and values: elements of their latent row";
        dq: u64 = "d_head_mla", "elements of a query head, rotated part included";
        n_rope: u64 => "n_rot", "elements of a query head that are rotated: the last ones";
        dv: u64 = "d_head_v_mla", "elements of a value head";
        scale: f32 = "1 / sqrt(dq)", "factor of the scores";
        norm: NormRef = "default", "kind and eps of the norms of latent rows";
        gate: OutputGate = "none", "output gate, as in `attention`, without `query`";
        gate_act: ActRef => "sigmoid", when "gate != 'none'", "activation of the output gate";
        temp_scale: f32 => "temp_scale", when "temp_scale != 0", "temperature by position, as in `attention`; 0: off";
        temp_floor: f32 => "temp_floor", when "temp_scale != 0", "as in the formula of `attention`";
        temp_offset: f32 => "temp_offset", when "temp_scale != 0", "as in the formula of `attention`";
        selection: SelectionRef = "none", "which of the visible keys a query attends to, see `[selection.NAME]`; `none`: all";
        selects: bool = "true", when "selection", "whether the block computes the selection; `false`: it uses the latest selection of an earlier layer";
    }
}

pub(super) static CONTRACT: Contract = Contract {
    name: "mla",
    title: "Latent attention",
    noun: "latent attention",
    phrase: "latent attention with {=heads} heads of {=dq} elements, latent row of {=kv_rank}{n_rope > 0:  + {=n_rope}}{has('sinks'): , attention sinks}{gate != 'none': , gated output}",
    summary: "Multi-head latent attention: keys and values of a position share one latent row of low rank.",
    formula: concat!(
        "y = o . {gate != 'none': (}v_b . softmax(scale * {!temp_scale > 0: t(pos) * }[k_b.q_nope | {rope -> rope: q_rope}] . ",
        "[c | {rope -> rope: r}] + mask{has('sinks'):  with sinks}) . c{gate != 'none':  * {=gate_act}(gate.h))}",
    ),
    options: Config::OPTIONS,
    weights: weights! {
        q_a: Matrix "attn_q_a.weight" ["n_embd", "q_rank"] optional, "query down-projection to the latent row";
        q_a_norm: Scale "attn_q_a_norm.weight" ["q_rank"] when("has('q_a')"), "weight of the norm of the latent query row";
        q_b: Matrix "attn_q_b.weight" ["q_rank", "heads * dq"] when("has('q_a')"), "query up-projection of the latent row";
        q: Matrix "attn_q.weight" ["n_embd", "heads * dq"] when("not has('q_a')"), "query projection without a latent row";
        kv_a: Matrix "attn_kv_a_mqa.weight" ["n_embd", "kv_rank + n_rope"], "down-projection to the latent row of keys and values, and to the rotated part of the keys";
        kv_a_norm: Scale "attn_kv_a_norm.weight" ["kv_rank"], "weight of the norm of the latent row of keys and values";
        k_norm: Scale "attn_k_norm.weight" ["n_rope"] optional when("n_rope > 0"), "weight of the norm of the keys' rotated part, before the rotation; without it there is none";
        kv_b: Matrix "attn_kv_b.weight" ["kv_rank", "heads * (dq - n_rope + dv)"] optional, "up-projection of the latent row to keys and values";
        k_b: Matrix "attn_k_b.weight" ["dq - n_rope", "kv_rank", "heads"] when("not has('kv_b')"), "key up-projection of each head, absorbed into its queries";
        v_b: Matrix "attn_v_b.weight" ["kv_rank", "dv", "heads"] when("not has('kv_b')"), "value up-projection of each head, applied to the mixed latent row";
        gate: Matrix "attn_gate.weight" ["n_embd", "if(gate == 'head', 1, dv) * heads"] when("gate != 'none'"), "projection to the gate of the heads' results";
        ..attend::SINKS;
        o: Matrix "attn_output.weight" ["heads * dv", "n_embd"], "output projection: the heads back to the hidden state";
        ..selection::q_weight(&["if(has('q_a'), q_rank, n_embd)", "n_head_index * d_head_index"]);
        ..selection::K_WEIGHT;
        ..selection::WEIGHTS_WEIGHT;
        ..selection::Q_NORM_WEIGHT;
        ..selection::K_NORM_WEIGHT;
        ..selection::K_NORM_BIAS;
        ..selection::GATE_WEIGHT;
        ..selection::OFFSET_WEIGHT;
    },
    state: StateSpec::KeyValue {
        cache: "cache",
        k: "if(has('kv_b'), heads * dq, kv_rank + n_rope)",
        v: "if(has('kv_b'), heads * dv, kv_rank)",
        heads: "if(has('kv_b'), heads, 1)",
        v_in_k: "not has('kv_b')",
        layer: None,
        index: selection::ROW,
        pooled: None,
    },
    points: points! {
        q_proj: Heads ["dq", "heads"] known_as("attn.hook_q"), "queries as they are projected, before rotation";
        k_rope: Neurons ["n_rope", "1"], "rotated part of the keys, one for all heads";
        latent: Neurons ["kv_rank", "1"], "latent row of keys and values after its norm, as it is stored";
        ..attend::SCORES_POINT;
        ..attend::WEIGHTS_POINT;
        ..selection::K_POINT;
        ..selection::Q_POINT;
        ..selection::WEIGHTS_POINT;
        heads: Heads ["dv", "heads"] known_as("attn.hook_z"), "results of the heads, before gate and output projection";
        ..O_IN_POINT;
    },
    rules: rules! {
        "cache", "latent attention names a cache";
        "n_rope < dq", "a part of each query head is not rotated";
        "temp_floor > 0", "`temp_floor` is positive";
        "gate != 'query'", "a gate of latent attention has a projection of its own";
    },
    ..Contract::BLOCK
};

pub(super) fn build(b: &mut UnitBuilder<'_, '_>, x: &Tensor) -> Result<Tensor> {
    let c = Config::read(&b.unit.options);
    let (g, n) = (b.g, b.n_tokens);
    let n_plain = c.dq - c.n_rope;

    let (q, latent_q) = if b.weight("q_a").is_some() {
        let latent = b.linear("q_a", x)?;
        let latent = b.normalise_with(c.norm, b.weight("q_a_norm"), &latent)?;
        (b.linear("q_b", &latent)?, latent)
    } else {
        (b.linear("q", x)?, x.clone())
    };
    let selected = b.select(
        c.selection,
        c.selects,
        IndexInputs {
            h: x,
            latent: &latent_q,
        },
    )?;
    let q = b.point("q_proj", g.reshape(&q, [c.dq, c.heads, n, 1])?)?;
    let q_plain = b.window(&q, 0, n_plain)?;
    let q_rope = match c.n_rope {
        0 => None,
        d => Some(b.rope(c.rope, &b.window(&q, n_plain, d)?)?),
    };

    let row = b.linear("kv_a", x)?;
    let row = g.reshape(&row, [c.kv_rank + c.n_rope, 1, n, 1])?;
    let k_rope = match c.n_rope {
        0 => None,
        d => {
            let k = b.window(&row, c.kv_rank, d)?;
            let k = match b.weight("k_norm") {
                Some(weight) => b.normalise_with(c.norm, Some(weight), &k)?,
                None => k,
            };
            Some(b.point("k_rope", b.rope(c.rope, &k)?)?)
        }
    };
    let with = |plain: Tensor, rotated: Option<&Tensor>| match rotated {
        Some(rotated) => g.concat(&plain, rotated, 0),
        None => Ok(plain),
    };
    let latent = b.window(&row, 0, c.kv_rank)?;
    let latent = b.normalise_with(c.norm, b.weight("kv_a_norm"), &latent)?;
    let latent = b.point("latent", latent)?;

    let temperature = |b: &UnitBuilder<'_, '_>, q: Tensor| {
        b.tempered(q, [c.temp_scale, c.temp_floor, c.temp_offset])
    };

    let y = if b.weight("kv_b").is_some() {
        let kv = b.linear("kv_b", &g.reshape(&g.cont(&latent)?, [c.kv_rank, n, 1, 1])?)?;
        let kv = g.reshape(&kv, [n_plain + c.dv, c.heads, n, 1])?;
        let v = b.columns(&kv, n_plain, c.dv)?;
        let k_rope = k_rope.map(|k| g.repeat(&k, [c.n_rope, c.heads, n, 1]));
        let k_plain = b.window(&kv, 0, n_plain)?;
        let k = with(k_plain, k_rope.transpose()?.as_ref())?;
        let q = temperature(b, with(q_plain, q_rope.as_ref())?)?;
        let rows = KeyRows {
            new: Some((&k, Some(&v))),
            heads: c.heads,
            dv: c.dv,
            selected,
            scale: c.scale,
            ..KeyRows::default()
        };
        let y = b.attend(&q, &rows)?;
        g.reshape(&y, [c.dv, c.heads, n, 1])?
    } else {
        let absorbed = per_head(b, "k_b", &q_plain)?;
        let q = temperature(b, with(absorbed, q_rope.as_ref())?)?;
        let k = with(latent, k_rope.as_ref())?;
        let rows = KeyRows {
            new: Some((&k, None)),
            heads: 1,
            dv: c.kv_rank,
            selected,
            scale: c.scale,
            ..KeyRows::default()
        };
        let mixed = b.attend(&q, &rows)?;
        let mixed = g.reshape(&mixed, [c.kv_rank, c.heads, n, 1])?;
        g.cont(&per_head(b, "v_b", &mixed)?)?
    };
    let y = b.point("heads", y)?;
    let y = g.reshape(&y, [c.dv * c.heads, n, 1, 1])?;
    let y = match c.gate {
        OutputGate::None => y,
        _ => {
            let y = b.gate_heads(c.gate_act, &y, &b.linear("gate", x)?)?;
            b.heads_read(c.heads, &y)?
        }
    };
    b.linear("o", &y)
}

/// The product of each head of `x [d, heads, n]` with its own matrix `[d, m, heads]`: `[m, heads, n]`, rows dense.
fn per_head(b: &UnitBuilder<'_, '_>, key: &str, x: &Tensor) -> Result<Tensor> {
    let by_head = b.g.permute(x, [0, 2, 1, 3])?; // [d, n, heads]
    let y = b.product_by_head(key, &by_head)?; // [m, n, heads]
    b.g.permute(&y, [0, 2, 1, 3])
}
