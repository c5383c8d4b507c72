//! Compressed attention: a query attends to the rows of its last positions, and to one row for each earlier whole span
//! of positions.
//!
//! ```text
//! l    = norm(q_a . h),  q = rope(unit(q_b . l))       the last elements of each head are rotated
//! k    = rope(norm(kv . h))                            one row for all heads, key and value at once
//! c    = rope(norm(sum over a span of softmax(pool_gate . h + pool_offset) * pool . h))
//!        by elements, at the first position of the span
//!        with overlap: over the span before by the first halves of the projections, and over the span by the second
//! a    = concat over heads of softmax(scale * q . [K | C], sinks) . [K | C]
//! y    = o . concat over groups of o_a . rope_back(a)
//! ```
//! `[n_embd, n_tokens]` in and out. A selection chooses among the spans, by rows of an indexer that are made like
//! those of the spans. The caches hold the rows of all positions, the rows of spans, and the inputs of these rows as
//! far back as a span reaches.

use super::attend::{self, KeyRows};
use super::build::{RopePositions, UnitBuilder};
use super::context::{EndedSpans, SelectedKeys};
use super::selection::{self, IndexInputs, Selection};
use crate::arch::{CacheRef, Contract, NormRef, PooledSpec, RopeRef, SelectionRef, StateSpec};
use crate::{options, points, rules, weights};
use lab_base::ggml::{Result, Tensor};

options! {
    pub(super) struct Config {
        rope: RopeRef, "rotation of the last elements of queries, of keys, and of the results, back";
        cache: CacheRef, "which positions and spans a query attends to";
        pool_cache: CacheRef, "cache of the rows that are pooled into spans. Its window is at least one span, with `overlap` two. `none` if `span` is 0";
        span: u64 = "0", "positions of a span, as in `cache`; 0: no spans";
        overlap: bool = "false", when "span > 0", "whether the row of a span is pooled from the positions of the span before too, which have projections of their own";
        heads: u64 => "n_head", "query heads";
        d: u64 => "d_head", "elements of a query head, and of the row of a position or span";
        q_rank: u64 => "q_lora_rank", "rank of the queries: elements of their latent row";
        norm: NormRef => "default", "kind and eps of the norms of latent rows, queries and keys";
        scale: f32 => "1 / sqrt(d)", "factor of the scores";
        groups: u64 = "1", "groups of heads with an output projection of their own";
        o_rank: u64, "rank of the output: elements of the latent row of a group";
        selection: SelectionRef = "none", "which spans a query attends to, see `[selection.NAME]`, pooled and of the same span; `none`: all";
    }
}

pub(super) static CONTRACT: Contract = Contract {
    name: "compressed_attention",
    title: "Compressed attention",
    noun: "compressed attention",
    phrase: "attention with {=heads} heads of {=d} elements, one row as key and value{span > 0:  of a position, and one of {=span} positions{overlap:  and the {=span} before}}{has('sinks'): , attention sinks}{groups > 1: , output in {=groups} groups}",
    summary: "Attention to the last positions, and to one pooled row for each whole span of positions before. A row is key and value at once, for all heads.",
    formula: concat!(
        "y = o . concat over groups of o_a . rope_back(softmax(scale * {rope -> rope: unit(q_b.l)} . K + mask{has('sinks'):  with sinks}) . K);  ",
        "K = {rope -> rope: norm(kv.h)}{span > 0:  | {rope -> rope: norm(sum of softmax(pool_gate.h + pool_offset) * pool.h)}}",
    ),
    options: Config::OPTIONS,
    weights: weights! {
        q_a: Matrix "attn_q_a.weight" ["n_embd", "q_rank"], "query down-projection to the latent row";
        q_a_norm: Scale "attn_q_a_norm.weight" ["q_rank"], "weight of the norm of the latent query row";
        q_b: Matrix "attn_q_b.weight" ["q_rank", "heads * d"], "query up-projection of the latent row";
        kv: Matrix "attn_kv.weight" ["n_embd", "d"], "projection to the row of a position";
        kv_norm: Scale "attn_kv_a_norm.weight" ["d"], "weight of the norm of the row of a position";
        ..attend::SINKS;
        o_a: Matrix "attn_output_a.weight" ["heads * d / groups", "if(has('o_a') and dim('o_a', 2) == 1, groups, 1) * o_rank", "if(has('o_a') and dim('o_a', 2) == 1, 1, groups)"], "output projection of each group of heads to its latent row";
        o: Matrix "attn_output_b.weight" ["groups * o_rank", "n_embd"], "output projection: the latent rows of all groups back to the hidden state";
        pool: Matrix "attn_compressor_kv.weight" ["n_embd", "if(overlap, 2, 1) * d"] when("span > 0"), "projection to the rows that are pooled into the row of a span; with `overlap` the first half is pooled into the span after";
        pool_gate: Matrix "attn_compressor_gate.weight" ["n_embd", "if(overlap, 2, 1) * d"] when("span > 0"), "projection to the gates of the rows that are pooled";
        pool_offset: Bias "attn_compressor_ape.weight" ["if(overlap, 2, 1) * d", "span"] when("span > 0"), "offsets of the gates, one for each position of a span";
        pool_norm: Scale "attn_compressor_norm.weight" ["d"] when("span > 0"), "weight of the norm of the row of a span";
        ..selection::q_weight(&["q_rank", "n_head_index * d_head_index"]).when("selection");
        ..selection::WEIGHTS_WEIGHT.when("selection");
        index_pool: Matrix "indexer_compressor_kv.weight" ["n_embd", "if(overlap, 2, 1) * d_head_index"] when("selection"), "projection to the indexer's rows that are pooled into its key of a span; halves as in `pool`";
        index_pool_gate: Matrix "indexer_compressor_gate.weight" ["n_embd", "if(overlap, 2, 1) * d_head_index"] when("selection"), "projection to the gates of the indexer's rows that are pooled";
        index_pool_offset: Bias "indexer_compressor_ape.weight" ["if(overlap, 2, 1) * d_head_index", "span"] when("selection"), "offsets of these gates, one for each position of a span";
        index_pool_norm: Scale "indexer_compressor_norm.weight" ["d_head_index"] when("selection"), "weight of the norm of the indexer's key of a span";
    },
    state: StateSpec::KeyValue {
        cache: "cache",
        k: "d",
        v: "d",
        heads: "1",
        v_in_k: "true",
        layer: None,
        index: "if(selection, d_head_index, 0)",
        pooled: Some(PooledSpec {
            cache: "pool_cache",
            width: "if(overlap, 4, 2) * (d + if(selection, d_head_index, 0))",
            span: "span",
            reach: "if(overlap, 2, 1) * span",
        }),
    },
    points: points! {
        q_proj: Heads ["d", "heads"] known_as("attn.hook_q"), "queries as they are projected, before norm and rotation";
        q: Heads ["d", "heads"] known_as("attn.hook_rot_q"), "queries as they meet the keys: after norm and rotation";
        k: Neurons ["d", "1"] known_as("attn.hook_rot_k"), "rows of positions after norm and rotation, as they are stored";
        pool: Neurons ["if(overlap, 2, 1) * d"], "rows that are pooled into rows of spans";
        pool_gate: Neurons ["if(overlap, 2, 1) * d"], "gates of the pooled rows, before their offsets";
        ..selection::Q_POINT;
        ..selection::WEIGHTS_POINT;
        mixed: Heads ["d", "heads"] known_as("attn.hook_z"), "results of the heads, rotated back, before the output projections";
    },
    rules: rules! {
        "cache and rope", "compressed attention names a cache and a rotation";
        "(span > 0) == pool_cache", "spans need a cache of the rows that are pooled, and only spans have one";
        "heads > 0 and groups > 0 and heads % groups == 0", "`groups` divides `heads`";
        "span > 0 or not selection", "a selection chooses spans, so `span` is above 0";
    },
    ..Contract::BLOCK
};

/// Maximum number of operations that the rows of spans add; an upper estimate.
pub(super) const NODES: usize = 128;

pub(super) fn build(b: &mut UnitBuilder<'_, '_>, x: &Tensor) -> Result<Tensor> {
    let c = Config::read(&b.unit.options);
    let (g, n) = (b.g, b.n_tokens);
    let latent = b.linear("q_a", x)?;
    let latent = b.normalise_with(c.norm, b.weight("q_a_norm"), &latent)?;
    let q = g.reshape(&b.linear("q_b", &latent)?, [c.d, c.heads, n, 1])?;
    let q = b.point("q_proj", q)?;
    let q = b.normalise_with(c.norm, None, &q)?;
    let q = b.point("q", b.rope_last(c.rope, &q, RopePositions::SpanStarts(1))?)?;

    let k = b.linear("kv", x)?;
    let k = b.normalise_with(c.norm, b.weight("kv_norm"), &k)?;
    let k = g.reshape(&k, [c.d, 1, n, 1])?;
    let k = b.point("k", b.rope_last(c.rope, &k, RopePositions::SpanStarts(1))?)?;

    let (mut ended, mut selected) = (None, None);
    if c.span > 0 {
        let blocks = pool(b, &c, x)?;
        selected = select(
            b,
            &c,
            IndexInputs {
                h: x,
                latent: &latent,
            },
            blocks.index.as_ref(),
        )?;
        ended = blocks.keys;
    }
    let rows = KeyRows {
        new: Some((&k, None)),
        heads: 1,
        dv: c.d,
        selected,
        ended,
        scale: c.scale,
        ..KeyRows::default()
    };
    let y = b.attend(&q, &rows)?;
    let y = g.reshape(&y, [c.d, c.heads, n, 1])?;
    let y = b.point("mixed", b.rope_last(c.rope, &y, RopePositions::Negated)?)?;
    let by_group = g.reshape(&y, [c.d * c.heads / c.groups, c.groups, n, 1])?;
    let by_group = g.permute(&by_group, [0, 2, 1, 3])?;
    let rows = b.product_by_head("o_a", &by_group)?; // [o_rank, n, groups]
    let rows = g.cont(&g.permute(&rows, [0, 2, 1, 3])?)?;
    b.linear("o", &g.reshape(&rows, [c.o_rank * c.groups, n, 1, 1])?)
}

/// The rows of the m blocks that end in a pass; none if no block does.
struct Blocks {
    /// `[d, 1, m]`.
    keys: Option<Tensor>,
    /// `[d_head_index, 1, m]`.
    index: Option<Tensor>,
}

/// Stores the inputs of the rows of blocks, and computes the rows of the blocks that end.
fn pool(b: &mut UnitBuilder<'_, '_>, c: &Config, x: &Tensor) -> Result<Blocks> {
    let own = b.key_owner()?;
    let values = b.point("pool", b.product("pool", x)?)?;
    let gate = b.point("pool_gate", b.product("pool_gate", x)?)?;
    let mut rows = vec![values, gate];
    if c.selection.0.is_some() {
        // The indexer's parts come first: the stateless store makes its index rows in the shape of the start of a row.
        rows.insert(0, b.product("index_pool", x)?);
        rows.insert(1, b.product("index_pool_gate", x)?);
    }
    let mut all = rows[0].clone();
    for part in &rows[1..] {
        all = b.g.concat(&all, part, 0)?;
    }
    let g = b.g;
    let kept = b.store.append_pooled(g, own, &all)?;
    let Some(ended) = b.store.ended(own.state) else {
        b.g.expand(&kept)?;
        return Ok(Blocks {
            keys: None,
            index: None,
        });
    };
    let read = b.g.get_rows(&kept, &ended.read)?; // [width, reach * m]
    let width = |rows: &Tensor| rows.shape()[0];
    let (index, first) = match c.selection.0 {
        Some(at) => {
            let s = Selection::read(&b.plan.selections[at].options);
            let pooled = Pooled {
                first: 0,
                d: s.d,
                key: "index_pool",
                rope: s.rope,
                norm: s.k_norm,
            };
            let keys = pooled.keys(b, c, (&read, &ended))?;
            (Some(keys), width(&rows[0]) + width(&rows[1]))
        }
        None => (None, 0),
    };
    let pooled = Pooled {
        first,
        d: c.d,
        key: "pool",
        rope: c.rope,
        norm: c.norm,
    };
    let keys = Some(pooled.keys(b, c, (&read, &ended))?);
    Ok(Blocks { keys, index })
}

/// One of the two kinds of rows of blocks.
struct Pooled {
    /// The first element of their inputs in the stored rows: the elements, then their gates.
    first: u64,
    /// Number of elements of a row.
    d: u64,
    /// The prefix of the keys of their weights.
    key: &'static str,
    rope: RopeRef,
    norm: NormRef,
}

impl Pooled {
    /// The rows `[d, 1, m]` of the blocks that end, computed from the stored rows `read [width, reach * m]`.
    fn keys(
        &self,
        b: &UnitBuilder<'_, '_>,
        c: &Config,
        (read, ended): (&Tensor, &EndedSpans),
    ) -> Result<Tensor> {
        let (g, d) = (b.g, self.d);
        let [reach, m, ..] = ended.missing.shape();
        let offsets = b.required_weight(&format!("{}_offset", self.key))?;
        let parts = if c.overlap { 2 } else { 1 };
        // Elements [from + part * d, ..) of the positions of each part, one part after another: [d, reach, n].
        let apart = |rows: &Tensor, from: u64, step: u64, n: u64| {
            let [element, row, ..] = rows.strides();
            let part = |at: u64| {
                let first = (from + at * d) as usize * element + (at * step) as usize * row;
                let block = row * (step * parts).max(c.span) as usize;
                g.cont(&g.view(
                    rows,
                    [d, c.span, n, 1],
                    [row, block, block * n as usize],
                    first,
                )?)
            };
            match parts {
                1 => part(0),
                _ => g.concat(&part(0)?, &part(1)?, 1),
            }
        };
        let by_element = |rows: &Tensor| g.cont(&g.permute(rows, [1, 0, 2, 3])?);
        let values = by_element(&apart(read, self.first, c.span, m)?)?; // [reach, d, m]
        let gates = by_element(&apart(read, self.first + parts * d, c.span, m)?)?;
        let offsets = by_element(&apart(&offsets, 0, 0, 1)?)?; // [reach, d]
        let missing = g.reshape(&ended.missing, [reach, 1, m, 1])?;
        let gates = g.add(&g.add(&gates, &offsets)?, &missing)?;
        let sums = g.sum_rows(&g.mul(&values, &b.softmax(&gates)?)?)?;
        let rows = g.reshape(&sums, [d, 1, m, 1])?;
        let weight = b.required_weight(&format!("{}_norm", self.key))?;
        let rows = b.normalise_with(self.norm, Some(&weight), &rows)?;
        b.rope_last(self.rope, &rows, RopePositions::Given(&ended.positions))
    }
}

/// The blocks that queries attend to, chosen by the indexer's rows `[d_head_index, 1, m]`; none without a selection:
/// all of them.
fn select(
    b: &mut UnitBuilder<'_, '_>,
    c: &Config,
    of: IndexInputs<'_>,
    ended: Option<&Tensor>,
) -> Result<Option<SelectedKeys>> {
    let Some(at) = c.selection.0 else {
        return Ok(None);
    };
    let s = Selection::read(&b.plan.selections[at].options);
    let g = b.g;
    let flat = |keys: &Tensor| g.reshape(keys, [s.d, keys.shape()[2], 1, 1]);
    let ended = ended.map(flat).transpose()?;
    let own = b.key_owner()?;
    let visible = b.store.append_index_of_ended(g, own, ended.as_ref())?;
    b.select_among(&s, &visible, of).map(Some)
}
