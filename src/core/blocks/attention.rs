//! Attention (Vaswani et al. 2017) with grouped keys and values (Ainslie et al. 2023).
//!
//! ```text
//! q, k, v = clamp(q.h + q.bias), ...                      or the parts of qkv.h + qkv.bias
//! q, k    = rope(norm(q)), rope(norm(k))                  or norm(rope(..)); norms if set
//! v       = norm(v)
//! q       = temperature(pos) * q
//! K, V    = cache(k, v)                                   all visible keys and values
//! a       = concat over heads of softmax(cap(scale * q.(K + R)) + bias(pos_K - pos) + mask, sinks) . V
//! R       = rel_k[rel_zero + pos - pos_K]                 0 without such a table (Shaw et al. 2018)
//! y       = o . (norm(a) * act(gate)) + o.bias
//! ```
//! `[n_embd, n_tokens]` in and out; head h of the queries reads head `h / (heads / kv_heads)` of
//! the keys.

use super::attend::{self, KeyRows};
use super::attend_grid;
use super::build::UnitBuilder;
use super::gate::{O_IN_POINT, OutputGate};
use super::position_bias;
use super::selection::{self, IndexInputs};
use crate::arch::{
    ActRef, CacheRef, Contract, NormRef, RopeRef, RowWidth, SelectionRef, SideInput, StateSpec,
};
use crate::{choices, options, points, rules, weights};
use lab_base::ggml::{Result, Tensor};

choices! {
    /// How queries and keys are normalised.
    pub(super) enum QkNorm {
        /// Queries and keys are not normalised.
        None = "none",
        /// Each head by itself, with one weight for all heads.
        Head = "head",
        /// Each head by itself, with its own weight.
        Each = "each",
        /// Each head by itself, with one factor for all its elements.
        Factor = "factor",
        /// All heads together.
        Full = "full",
    }
}

choices! {
    /// Whether queries and keys are normalised before or after the rotation.
    pub(super) enum NormAt {
        /// Before the rotation.
        Before = "before",
        /// After the rotation.
        After = "after",
    }
}

choices! {
    /// The origin of the values.
    pub(super) enum Values {
        /// A separate projection.
        Proj = "proj",
        /// The projected keys, before their norm.
        Key = "key",
    }
}

options! {
    pub(super) struct Config {
        rope: RopeRef, "rotation of queries and keys, or `none`";
        cache: CacheRef = "full", "which keys a query attends to; `full`: all, or with causal attention all so far";
        heads: u64 = "n_head", "query heads";
        kv_heads: u64 = "n_head_kv", "key and value heads";
        dk: u64 = "d_head", "elements of a query or key head";
        dv: u64 = "d_head_v", "elements of a value head";
        out: u64 = "n_embd", "elements of a row of the result";
        qkv_rows: u64 = "(heads + kv_heads) * dk + kv_heads * dv", "rows of the projection `qkv`: queries, keys, values, and unused rows";
        v_row: u64 = "(heads + kv_heads) * dk", "first row of the values in the projection `qkv`";
        scale: f32 = "1 / sqrt(dk)", "factor of the scores";
        qk_norm: QkNorm = "none", "norm of queries and keys: `none`; over each `head` with one weight for all heads; over `each` head with a weight of its own; over each head with one `factor` of its own; over all heads together (`full`)";
        qk_norm_at: NormAt = "before", when "qk_norm != 'none'", "whether the norm is `before` or `after` the rotation";
        norm: NormRef = "default", when "qk_norm != 'none'", "kind and eps of the query and key norm";
        v_norm: NormRef = "none", "norm of each value head, without a weight";
        kv_layer: u64 = "depth", "layer whose keys and values are used: the layer itself (`depth`) or an earlier one";
        values: Values = "proj", "where values come from: a projection (`proj`), or the projected keys (`key`)";
        clamp: f32 = "0", "bound of the absolute value of projected queries, keys and values; 0: none";
        softcap: f32 = "0", "softcap of the scores: they become `c * tanh(score / c)`; 0: none";
        gate: OutputGate = "none", "output gate, which multiplies the heads' results: `none`, a number for each `element` or `head`, or one for each element that is projected together with the `query`";
        gate_act: ActRef = "sigmoid", when "gate != 'none'", "activation of the output gate, see `[act.NAME]`";
        inner_norm: NormRef = "none", "norm of the heads' results before the output projection";
        temp_scale: f32 => "temp_scale", when "temp_scale != 0", "temperature by position: queries are multiplied by `1 + temp_scale * ln(1 + floor((pos + temp_offset) / temp_floor))`; 0: off";
        temp_floor: f32 => "temp_floor", when "temp_scale != 0", "positions of one step in that formula, above 0";
        temp_offset: f32 => "temp_offset", when "temp_scale != 0", "positions added to `pos` in that formula";
        buckets: u64 => "if(has('rel_bias'), n_buckets, 0)", when "has('rel_bias')", "buckets of distances, each with a bias of its own";
        rel_zero: u64 = "0", when "has('rel_k')", "row of `rel_k` of distance 0; the rows after it are of keys before the query, those before it of keys after it";
        max_distance: u64 = "128", when "has('rel_bias')", "distance from which on all keys share the last bucket of `rel_bias`, in positions";
        selection: SelectionRef = "none", "which of the visible keys a query attends to, see `[selection.NAME]`; `none`: all";
        selects: bool => "true", when "selection", "the block computes the selection itself";
    }
}

pub(super) static CONTRACT: Contract = Contract {
    name: "attention",
    title: "Attention",
    noun: "attention",
    phrase: "attention with {=heads} heads{heads != kv_heads:  (KV heads: {=kv_heads})} of {=dk} elements{dv != dk: , values of {=dv}}{qk_norm != 'none': , query and key norm}{softcap > 0: , score softcap {=softcap}}{temp_scale > 0: , temperature by position}{has('sinks'): , attention sinks}{has('rel_bias'): , bias by distance}{has('rel_k'): , keys of distances}{gate != 'none': , gated output}{values == 'key': , keys as values}",
    summary: "Self-attention: each position takes a weighted mean of the values that it attends to.",
    formula: concat!(
        "y = o . {gate != 'none': (}{inner_norm -> norm: softmax({softcap > 0 -> softcap: scale * {!temp_scale > 0: t(pos) * }",
        "{!qk_norm != 'none' and qk_norm_at == 'after' -> norm: {rope -> rope: {qk_norm != 'none' and qk_norm_at == 'before' -> norm: q.h}}}",
        " . ",
        "{!qk_norm != 'none' and qk_norm_at == 'after' -> norm: {rope -> rope: {qk_norm != 'none' and qk_norm_at == 'before' -> norm: k.h}}}",
        "}{has('rel_bias'):  + bias(pos_k - pos_q)}{has('rel_k'):  + q.rel_k(pos_q - pos_k)} + mask{has('sinks'):  with sinks}) . ({v_norm -> norm: {values == 'proj': v.h | k.h}})}",
        "{gate != 'none':  * {=gate_act}(gate.h))}",
    ),
    options: Config::OPTIONS,
    weights: weights! {
        qkv: Matrix "attn_qkv.weight" ["n_embd", "qkv_rows"] made_of(&["q", "k", "v"]) optional, "queries, keys and values in one projection";
        qkv.bias: Bias "attn_qkv.bias" ["qkv_rows"] optional when("has('qkv')"), "bias of `qkv`";
        q: Matrix "attn_q.weight" ["n_embd", "if(gate == 'query', 2, 1) * heads * dk"] when("not has('qkv')"), "query projection";
        q.bias: Bias "attn_q.bias" ["if(gate == 'query', 2, 1) * heads * dk"] optional when("not has('qkv')"), "bias of the query projection";
        k: Matrix "attn_k.weight" ["n_embd", "kv_heads * dk"] when("not has('qkv') and kv_layer == depth"), "key projection";
        k.bias: Bias "attn_k.bias" ["kv_heads * dk"] optional when("not has('qkv') and kv_layer == depth"), "bias of the key projection";
        v: Matrix "attn_v.weight" ["n_embd", "kv_heads * dv"] when("not has('qkv') and values == 'proj' and kv_layer == depth"), "value projection";
        v.bias: Bias "attn_v.bias" ["kv_heads * dv"] optional when("not has('qkv') and values == 'proj' and kv_layer == depth"), "bias of the value projection";
        q_norm: Scale "attn_q_norm.weight" ["if(qk_norm == 'full', heads, 1) * if(qk_norm == 'factor', 1, dk)", "if(qk_norm == 'each' or qk_norm == 'factor', heads, 1)"] when("qk_norm != 'none'"), "weight of the query norm";
        q_norm.bias: Bias "attn_q_norm.bias" ["if(qk_norm == 'full', heads, 1) * if(qk_norm == 'factor', 1, dk)"] optional when("qk_norm != 'none'"), "bias of the query norm";
        k_norm: Scale "attn_k_norm.weight" ["if(qk_norm == 'full', kv_heads, 1) * if(qk_norm == 'factor', 1, dk)", "if(qk_norm == 'each' or qk_norm == 'factor', kv_heads, 1)"] when("qk_norm != 'none' and kv_layer == depth"), "weight of the key norm";
        k_norm.bias: Bias "attn_k_norm.bias" ["if(qk_norm == 'full', kv_heads, 1) * if(qk_norm == 'factor', 1, dk)"] optional when("qk_norm != 'none' and kv_layer == depth"), "bias of the key norm";
        q.clip: Bias "attn_q.clip" ["4"] optional when("not has('qkv')"), "bounds of the query projection's input and of its result, lower and upper of each";
        k.clip: Bias "attn_k.clip" ["4"] optional when("not has('qkv') and kv_layer == depth"), "bounds of the key projection";
        v.clip: Bias "attn_v.clip" ["4"] optional when("not has('qkv') and values == 'proj' and kv_layer == depth"), "bounds of the value projection";
        o.clip: Bias "attn_output.clip" ["4"] optional, "bounds of the output projection";
        ..attend::SINKS;
        gate: Matrix "attn_gate.weight" ["n_embd", "if(gate == 'head', 1, dv) * heads"] when("gate == 'element' or gate == 'head'"), "projection to the gate of the heads' results";
        gate.bias: Bias "attn_gate.bias" ["if(gate == 'head', 1, dv) * heads"] optional when("gate == 'element' or gate == 'head'"), "bias of the gate projection";
        inner_norm: Scale "attn_sub_norm.weight" ["heads * dv"] when("inner_norm"), "weight of the norm before the output projection";
        o: Matrix "attn_output.weight" ["heads * dv", "out"], "output projection: the heads back to the hidden state";
        o.bias: Bias "attn_output.bias" ["out"] optional, "bias of the output projection";
        ..position_bias::TABLE_WEIGHT;
        rel_k: Table "attn_rel_k.weight" ["if(has('rel_proj'), n_embd, dk)", "if(dim('rel_k', 1) > 0, dim('rel_k', 1), 2 * rel_zero + 1)"] optional, "in a tower: a key for each distance of key and query, whose product with the query is added to its score";
        rel_proj: Matrix "attn_rel_proj.weight" ["n_embd", "heads * dk"] optional, "projection of `rel_k` to a key for each head";
        ..attend_grid::HEIGHTS_WEIGHT;
        ..attend_grid::WIDTHS_WEIGHT;
        ..selection::q_weight(&["n_embd", "n_head_index * d_head_index"]);
        ..selection::K_WEIGHT;
        ..selection::WEIGHTS_WEIGHT;
        ..selection::Q_NORM_WEIGHT;
        ..selection::K_NORM_WEIGHT;
        ..selection::K_NORM_BIAS;
        ..selection::GATE_WEIGHT;
        ..selection::OFFSET_WEIGHT;
    },
    side: Some(SideInput {
        width: "n_embd",
        doc: "input of the key and value projections. If layers that read the source save it, each token attends to the whole source",
    }),
    rows: RowWidth::To("out"),
    state: StateSpec::KeyValue {
        cache: "cache",
        k: "kv_heads * dk",
        v: "kv_heads * dv",
        heads: "kv_heads",
        v_in_k: "false",
        layer: Some("kv_layer"),
        index: selection::ROW,
        pooled: None,
    },
    points: points! {
        q_proj: Heads ["dk", "heads"] known_as("attn.hook_q"), "queries as they are projected, before norm and rotation";
        k_proj: Heads ["dk", "kv_heads"] known_as("attn.hook_k"), "keys as they are projected, before norm and rotation; not where the keys of another layer are read";
        q: Heads ["dk", "heads"] known_as("attn.hook_rot_q"), "queries as they meet the keys: after norm, rotation and temperature";
        k: Heads ["dk", "kv_heads"] known_as("attn.hook_rot_k"), "keys after norm and rotation, as they are stored";
        v: Heads ["dv", "kv_heads"] known_as("attn.hook_v"), "values as they are stored";
        ..attend::SCORES_POINT;
        ..attend::WEIGHTS_POINT;
        ..selection::K_POINT;
        ..selection::Q_POINT;
        ..selection::WEIGHTS_POINT;
        heads: Heads ["dv", "heads"] known_as("attn.hook_z"), "results of the heads, before norm, gate and output projection";
        ..O_IN_POINT;
    },
    rules: rules! {
        "cache", "an attention block names a cache";
        "heads > 0 and kv_heads > 0", "there is at least one head";
        "v_row >= (heads + kv_heads) * dk and qkv_rows >= v_row + kv_heads * dv", "`v_row` leaves room for queries and keys, and `qkv_rows` for values after it";
        "heads % kv_heads == 0", "`kv_heads` divides `heads`";
        "clamp >= 0 and softcap >= 0", "`clamp` and `softcap` are not negative";
        "kv_layer == depth or not (selection and selects)", "a block with the keys of another layer does not select by rows of its own";
        "max_distance > 0 and max_distance <= 4096", "`max_distance` is 1 to 4096";
        "not (has('rel_bias') and selection)", "a block with a bias by distance attends to all visible keys";
        "not has('rel_k') or kv_heads == heads and not selection", "with keys of distances each head has keys of its own, and attends to all visible ones";
        "not has('rel_proj') or has('rel_k')", "`rel_proj` projects `rel_k`";
        "temp_floor > 0", "`temp_floor` is positive";
        "gate != 'query' or dk == dv", "a gate projected with the query has the width of the values";
        "not (gate == 'query' and has('qkv'))", "a gate projected with the query comes with separate projections";
    },
    ..Contract::BLOCK
};

pub(super) fn build(b: &mut UnitBuilder<'_, '_>, x: &Tensor) -> Result<Tensor> {
    let c = Config::read(&b.unit.options);
    let windows = b.enter_windows(c.cache, x)?;
    let Some((outer, rows)) = windows else {
        return attention(b, &c, x);
    };
    let y = attention(b, &c, &rows)?;
    b.leave_windows(outer, &y)
}

fn attention(b: &mut UnitBuilder<'_, '_>, c: &Config, x: &Tensor) -> Result<Tensor> {
    let mut projected = project(b, c, x)?;
    projected.q = b.point("q_proj", projected.q)?;
    if let Some((k, _)) = &mut projected.kv {
        *k = b.point("k_proj", k.clone())?;
    }
    let q = rotated(b, c, "q_norm", &projected.q)?;
    let q = b.tempered(q, [c.temp_scale, c.temp_floor, c.temp_offset])?;
    let q = b.point("q", q)?;
    let own = match &projected.kv {
        Some(kv) => Some(keys(b, c, kv)?),
        None => None,
    };
    let (q, own) = match own {
        Some((k, v)) => {
            let (q, k) = b.with_distances(c.scale, q, k)?;
            (q, Some((k, v)))
        }
        None => (q, None),
    };

    let rows = KeyRows {
        new: own.as_ref().map(|(k, v)| (k, Some(v))),
        heads: c.kv_heads,
        dv: c.dv,
        selected: b.select(c.selection, c.selects, IndexInputs { h: x, latent: x })?,
        bias: b.position_bias(c.max_distance)?,
        distances: b.distance_keys(c.rel_zero, c.dk)?,
        scale: c.scale,
        softcap: c.softcap,
        ..KeyRows::default()
    };
    let y = b.attend(&q, &rows)?;
    let by_head = b.g.reshape(&y, [c.dv, c.heads, b.n_tokens, 1])?;
    let by_head = b.point("heads", by_head)?;
    let y = b.g.reshape(&by_head, [c.dv * c.heads, b.n_tokens, 1, 1])?;
    let y = b.normalise_with(c.inner_norm, b.weight("inner_norm"), &y)?;
    let gate = match (c.gate, projected.gate) {
        (OutputGate::Element | OutputGate::Head, _) => Some(b.linear("gate", x)?),
        (_, gate) => gate,
    };
    let is_plain = gate.is_none() && c.inner_norm.0.is_none();
    let y = match gate {
        Some(gate) => b.gate_heads(c.gate_act, &y, &gate)?,
        None => y,
    };
    let y = match is_plain {
        true => y,
        false => b.heads_read(c.heads, &y)?,
    };
    b.linear("o", &y)
}

/// The keys `[dk, kv_heads, n]` and values `[dv, kv_heads, n]` that tokens of the sequence attend to, made of rows of
/// the source `[n_embd, n]`.
pub(super) fn keys_of_source(b: &UnitBuilder<'_, '_>, x: &Tensor) -> Result<(Tensor, Tensor)> {
    let c = Config::read(&b.unit.options);
    let (k, v) = project_keys(b, &c, x)?;
    let k = b.point("k_proj", k)?;
    keys(b, &c, &(k, v))
}

/// Projected keys `[dk, kv_heads, n]` and values `[dv, kv_heads, n]`; without values, the keys are the values.
type Keys = (Tensor, Option<Tensor>);

/// The keys and values after their norms and the rotation of the keys.
fn keys(b: &UnitBuilder<'_, '_>, c: &Config, (k, v): &Keys) -> Result<(Tensor, Tensor)> {
    let v = b.normalise_with(c.v_norm, None, v.as_ref().unwrap_or(k))?;
    let k = b.point("k", rotated(b, c, "k_norm", k)?)?;
    Ok((k, b.point("v", v)?))
}

/// Queries or keys `[dk, heads, n]` after their norm and the rotation.
fn rotated(b: &UnitBuilder<'_, '_>, c: &Config, key: &str, x: &Tensor) -> Result<Tensor> {
    match c.qk_norm_at {
        NormAt::Before => b.rope(c.rope, &normalise(b, c, key, x)?),
        NormAt::After => normalise(b, c, key, &b.rope(c.rope, x)?),
    }
}

/// Queries or keys `[dk, heads, n]`, rows dense, after their norm.
fn normalise(b: &UnitBuilder<'_, '_>, c: &Config, key: &str, x: &Tensor) -> Result<Tensor> {
    let shape = x.shape();
    let rows = match c.qk_norm {
        QkNorm::None => return Ok(x.clone()),
        QkNorm::Full => {
            b.g.reshape(&b.g.cont(x)?, [shape[0] * shape[1], shape[2], 1, 1])?
        }
        QkNorm::Head | QkNorm::Each | QkNorm::Factor => x.clone(),
    };
    let y = b.normalise_with(c.norm, b.weight(key), &rows)?;
    let y = b.with_bias(&format!("{key}.bias"), y)?;
    match c.qk_norm {
        QkNorm::Full => b.g.reshape(&b.g.cont(&y)?, shape),
        _ => Ok(y),
    }
}

/// The projections of the input. Queries, keys and values may be parts of the rows of one product: norms, rotations,
/// attention and the writing of rows read such parts on every backend.
struct Projected {
    /// `[dk, heads, n]`, rows dense.
    q: Tensor,
    /// None if the keys of another layer or of the source are used.
    kv: Option<Keys>,
    /// `[dv * heads, n]`, if the gate is projected together with the queries.
    gate: Option<Tensor>,
}

fn project(b: &UnitBuilder<'_, '_>, c: &Config, x: &Tensor) -> Result<Projected> {
    let (g, n) = (b.g, b.n_tokens);
    let part = |rows: &Tensor, d: u64, heads: u64, step: u64, start: u64| {
        let size = size_of::<f32>() as u64;
        let row = rows.shape()[0] * size;
        let strides = [(step * size) as usize, row as usize, (row * n) as usize];
        g.view(rows, [d, heads, n, 1], strides, (start * size) as usize)
    };
    if b.weight("qkv").is_some() {
        // One row holds queries, then keys, then values.
        let rows = clamped(b, c, b.linear("qkv", x)?)?;
        return Ok(Projected {
            q: part(&rows, c.dk, c.heads, c.dk, 0)?,
            kv: Some((
                part(&rows, c.dk, c.kv_heads, c.dk, c.dk * c.heads)?,
                Some(part(&rows, c.dv, c.kv_heads, c.dv, c.v_row)?),
            )),
            gate: None,
        });
    }
    let rows = clamped(b, c, b.linear("q", x)?)?;
    let (q, gate) = if c.gate == OutputGate::Query {
        // Each head holds its query, then its gate.
        let gate = part(&rows, c.dk, c.heads, 2 * c.dk, c.dk)?;
        // Activations read contiguous elements alone.
        let gate = g.reshape(&g.cont(&gate)?, [c.dk * c.heads, n, 1, 1])?;
        (part(&rows, c.dk, c.heads, 2 * c.dk, 0)?, Some(gate))
    } else {
        (g.reshape(&rows, [c.dk, c.heads, n, 1])?, None)
    };
    let kv = match b.weight("k") {
        Some(_) if !b.keys_are_of_source(b.unit) => {
            let side = b.side.clone();
            Some(project_keys(b, c, side.as_ref().unwrap_or(x))?)
        }
        _ => None,
    };
    Ok(Projected { q, kv, gate })
}

/// Keys and values of rows `[n_embd, n]`, by the separate projections `k` and `v`.
fn project_keys(b: &UnitBuilder<'_, '_>, c: &Config, x: &Tensor) -> Result<Keys> {
    // A second input of a tower may have another grid.
    let (g, n) = (b.g, x.shape()[1]);
    let k = clamped(b, c, b.linear("k", x)?)?;
    let v = match c.values {
        Values::Proj => {
            let v = clamped(b, c, b.linear("v", x)?)?;
            Some(g.reshape(&v, [c.dv, c.kv_heads, n, 1])?)
        }
        Values::Key => None,
    };
    Ok((g.reshape(&k, [c.dk, c.kv_heads, n, 1])?, v))
}

fn clamped(b: &UnitBuilder<'_, '_>, c: &Config, x: Tensor) -> Result<Tensor> {
    match c.clamp == 0.0 {
        true => Ok(x),
        false => b.g.clamp(&x, -c.clamp, c.clamp),
    }
}
