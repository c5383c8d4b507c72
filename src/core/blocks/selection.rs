//! Selection of keys by an indexer (arXiv 2512.02556, sparse attention): a query attends to those of its visible keys
//! that have the highest index scores.
//!
//! ```text
//! iq = rope(norm(index_q . l))            heads of d elements; l: the latent query row, or the input h
//! ik = rope(norm(index_k . h))            one head, cached for every position
//! s  = sum over heads of (index_weights . h) * max(iq . ik, 0)       one choice for all heads
//! s  = iq . ik                            without weights: a choice for each key head
//! s  = sum over heads of max(iq . ik, 0)      without weights, `together`
//! with pooled keys: ik of a whole span = sum over its positions of softmax(index_gate . h + index_offset) * ik,
//!                                         by elements
//!                   without gates:        rope(norm(mean over its positions of index_k . h)), at its first position
//! selected(q) = the top spans of span visible keys by their highest s, the last local ones always
//! ```
//! A common factor of all scores changes no choice, nor does an orthogonal transformation (Hadamard) of `iq` and `ik`:
//! neither is computed.

use super::attend::queries_of;
use super::build::{RopePositions, UnitBuilder};
use super::context::{AttentionView, KeyOwner, RunView, SelectedKeys, SpanView, VisibleKeyValues};
use super::{cast, refused};
use crate::arch::{
    Contract, NormRef, PointSpec, RopeRef, RowWidth, SelectionRef, WeightRole, WeightSpec,
};
use crate::plan::BLOCK_LEN;
use crate::{choices, options, point, rules, weight};
use lab_base::ggml::{KvBlocks, Result, Selector, Tensor, Unary};
use lab_base::weights::TensorType;

choices! {
    /// The rotated elements of an indexer's heads, where not all are rotated.
    pub(crate) enum RopeAt {
        /// The first elements.
        First = "first",
        /// The last elements.
        Last = "last",
    }
}

options! {
    /// Options of a selection.
    pub(crate) struct Selection {
        heads: u64 => "n_head_index", "heads of the indexer";
        d: u64 => "d_head_index", "elements of a head of the indexer";
        top: u64 => "index_top", "spans that a query attends to, above 0";
        span: u64 = "1", "positions of a span, the unit of the selection; spans start at multiples of it; 1: single keys";
        pooled: bool = "false", when "span > 1", "whether a whole span has one key of the indexer: the sum of its keys, weighted by the softmax of the gates for each element; without gates the mean of its keys before norm and rotation. The span that is not whole is always selected, in addition";
        together: bool = "false", "whether heads that have no weights select together, by the sum of their scores; if not, each selects for a key head";
        local: u64 = "0", when "span > 1 and not pooled", "number of spans that are always selected: the last ones";
        rope: RopeRef, "rotation of the indexer's queries and keys, or `none`";
        rope_at: RopeAt = "first", when "rope", "which elements of a head are rotated, where not all are: the `first` or the `last` ones";
        q_norm: NormRef = "none", "norm of each query head";
        k_norm: NormRef = "none", "norm of the keys";
    }
}

/// The contract of `[selection.NAME]`.
pub(super) static CONTRACT: Contract = Contract {
    name: "selection",
    title: "Selection",
    noun: "a selection",
    phrase: "the {=top} best {span > 1: spans of {=span} keys{pooled: , each with one key,} | keys} by {=heads} index heads of {=d} elements{local > 0: , the last {=local} always}",
    summary: "Chooses spans of the visible keys of a query, by the scores of an indexer. An attention block that names it has the weights of the indexer, and its KV cache holds a row of the indexer per position.",
    formula: "selected(q) = top of {span > 1: max over spans of }(sum over heads of {not together: (index_weights.h) * }max({rope -> rope: iq} . {rope -> rope: ik}, 0))",
    options: Selection::OPTIONS,
    rows: RowWidth::Any,
    rules: rules! {
        "heads > 0 and top > 0 and span > 0", "an indexer has heads, and selects at least one span of at least one key";
        "not pooled or local == 0 and (span == 2 or span == 4 or span == 8 or span == 16)", "spans with one key have 2, 4, 8 or 16 positions, and none is `local`";
    },
    ..Contract::BLOCK
};

/// Number of elements of the indexer's row in the cache, for a block with the options `selection` and `selects`.
pub(super) const ROW: &str = "if(selection and selects, index_width, 0)";

/// The condition for a block to have weights of an indexer.
const WHEN: &str = "selection and selects";

/// Query projection of an indexer, from rows of the given shape.
pub(super) const fn q_weight(shape: &'static [&'static str]) -> WeightSpec {
    let doc = "query projection of the indexer";
    let name = "indexer.attn_q_b.weight";
    WeightSpec::new(WeightRole::Matrix, "index_q", name, shape, doc).when(WHEN)
}

pub(super) const K_WEIGHT: WeightSpec = weight!(index_k: Matrix "indexer.attn_k.weight" ["n_embd", "d_head_index"] when(WHEN), "key projection of the indexer");

pub(super) const WEIGHTS_WEIGHT: WeightSpec = weight!(index_weights: Matrix "indexer.proj.weight" ["n_embd", "n_head_index"] optional when(WHEN), "projection to the weights of the indexer's heads; without them each head selects for a key head");

pub(super) const Q_NORM_WEIGHT: WeightSpec = weight!(index_q_norm: Scale "indexer.q_norm.weight" ["d_head_index"] optional when(WHEN), "weight of the norm of the indexer's queries");

pub(super) const K_NORM_WEIGHT: WeightSpec = weight!(index_k_norm: Scale "indexer.k_norm.weight" ["d_head_index"] optional when(WHEN), "weight of the norm of the indexer's keys");

pub(super) const K_NORM_BIAS: WeightSpec = weight!(index_k_norm.bias: Bias "indexer.k_norm.bias" ["d_head_index"] optional when(WHEN), "bias of the norm of the indexer's keys");

pub(super) const GATE_WEIGHT: WeightSpec = weight!(index_gate: Matrix "indexer_compressor_gate.weight" ["n_embd", "d_head_index"] optional when(WHEN), "projection to the gates by which the indexer's keys of a span become one");

pub(super) const OFFSET_WEIGHT: WeightSpec = weight!(index_offset: Bias "indexer_compressor_ape.weight" ["d_head_index", "index_span"] optional when(WHEN), "offsets of the gates, one for each position of a span");

/// Maximum number of operations that a selection adds, and that each further view of keys adds; upper estimates.
pub(super) const NODES: usize = 80;
pub(super) const NODES_PER_VIEW: usize = 32;

impl UnitBuilder<'_, '_> {
    /// The selected keys, where a unit has a selection. A unit that does not select itself reuses the latest result of
    /// the layers before.
    pub(super) fn select(
        &mut self,
        selection: SelectionRef,
        selects: bool,
        of: IndexInputs<'_>,
    ) -> Result<Option<SelectedKeys>> {
        let (Some(at), Ok(own)) = (selection.0, self.key_owner()) else {
            return Ok(None);
        };
        if selects {
            let options = Selection::read(&self.plan.selections[at].options);
            let visible = self.index_rows(&options, own, of.h)?;
            let selected = self.select_among(&options, &visible, of)?;
            self.selected.0.insert(at, selected);
        }
        match self.selected.0.get(&at) {
            Some(selected) => Ok(Some(selected.clone())),
            None => Err(refused(
                "select",
                format!("nothing was selected before {}", self.unit.path),
            )),
        }
    }

    /// Stores the indexer's keys of the input `h [n_embd, n_tokens]`, and returns all visible ones.
    fn index_rows(
        &mut self,
        s: &Selection,
        own: KeyOwner<'_>,
        h: &Tensor,
    ) -> Result<VisibleKeyValues> {
        let (g, n) = (self.g, self.n_tokens);
        let k = self.linear("index_k", h)?;
        let is_mean = s.pooled && self.weight("index_gate").is_none();
        let k = match is_mean {
            true => g.reshape(&k, [s.d, 1, n, 1])?,
            false => self.index_keys(s, &k, 1)?,
        };
        let k = self.point("index_k", k)?;
        let rows = g.reshape(&k, [s.d, n, 1, 1])?;
        match s.pooled {
            true => self.append_pooled(s, own, h, &rows),
            false => self.store.append_index(g, own, &rows),
        }
    }

    /// Selects among visible keys, with index queries from the rows `latent` and their weights from `h`.
    pub(super) fn select_among(
        &self,
        s: &Selection,
        visible: &VisibleKeyValues,
        IndexInputs { h, latent }: IndexInputs<'_>,
    ) -> Result<SelectedKeys> {
        let (g, n) = (self.g, self.n_tokens);
        let q = self.linear("index_q", latent)?;
        let q = g.reshape(&q, [s.d, s.heads, n, 1])?;
        let q = self.normalise_with(s.q_norm, self.weight("index_q_norm"), &q)?;
        let q = self.rope_index(s, &q, 1)?;
        let q = self.point("index_q", q)?;
        let weights = match self.weight("index_weights") {
            Some(_) => {
                let weights = self.linear("index_weights", h)?;
                Some(self.point("index_weights", weights)?)
            }
            None if s.together => {
                let of_heads = g.reshape(&g.sum_rows(&q)?, [s.heads, n, 1, 1])?;
                Some(g.fill(&of_heads, 1.0)?)
            }
            None => None,
        };
        let query = IndexQuery {
            q: &q,
            weights: weights.as_ref(),
        };
        match &visible.view {
            AttentionView::Blocks { queries, table } => {
                let row = visible.k.strides()[1];
                let shape = [s.d, 1, visible.k.shape()[1], 1];
                let k = g.view(&visible.k, shape, [row, row, row], 0)?;
                let blocks = KvBlocks {
                    k: &k,
                    v: &k,
                    queries,
                    table,
                    block_len: BLOCK_LEN,
                    selected: None,
                    bias: None,
                    whole: None,
                };
                let n_blocks = (table.shape()[0] * BLOCK_LEN).div_ceil(s.span);
                let lists = match s.top < n_blocks {
                    true => Some(g.select(&q, query.weights, &blocks, s.selector())?),
                    false => None,
                };
                Ok(SelectedKeys::Lists(lists, s.span))
            }
            AttentionView::Runs(views) => {
                let (mut first, group) = (0, self.key_owner()?.state.cache);
                let masks = views.iter().enumerate().map(|(i, view)| {
                    let id = (group, i);
                    let mask = self.selected_run(s, &query, visible, (view, id), first);
                    first += view.runs.n_tokens * view.runs.n_runs;
                    mask
                });
                Ok(SelectedKeys::Masks(masks.collect::<Result<_, _>>()?))
            }
        }
    }

    /// Stores keys `[d, n_tokens]` with the gates of `h [n_embd, n_tokens]`, and the one key of a block at each of its
    /// positions. Returns the keys of spans, `[d, n_rows]`. A row is the span's key, the key of its position, and the
    /// gates. A pass that reaches further into a block computes its key again; nothing reads the key before the block
    /// is whole.
    fn append_pooled(
        &mut self,
        s: &Selection,
        own: KeyOwner<'_>,
        h: &Tensor,
        keys: &Tensor,
    ) -> Result<VisibleKeyValues> {
        let (g, n, d) = (self.g, self.n_tokens, s.d);
        let is_gated = self.weight("index_gate").is_some();
        let mut rows = g.concat(keys, keys, 0)?;
        if is_gated {
            rows = g.concat(&rows, &self.product("index_gate", h)?, 0)?;
        }
        let mut visible = self.store.append_index(g, own, &rows)?;
        let blocks = self.store.span_rows(own.state)?;
        let read = g.get_rows(&visible.k, &blocks.read)?; // [3d or 2d, span * n]
        // Positions are the fastest dimension, so that sums of rows are sums over positions.
        let part = |nth: u64| {
            let part = g.reshape(&self.columns(&read, nth * d, d)?, [d, s.span, n, 1])?;
            g.cont(&g.permute(&part, [1, 0, 2, 3])?)
        };
        let key = if is_gated {
            let offsets = self.required_weight("index_offset")?;
            let offsets = g.cont(&g.permute(&offsets, [1, 0, 2, 3])?)?; // [span, d]
            let missing = g.reshape(&blocks.missing, [s.span, 1, n, 1])?;
            let gates = g.add(&g.add(&part(2)?, &offsets)?, &missing)?;
            let weighted = g.mul(&part(1)?, &self.softmax(&gates)?)?;
            g.reshape(&g.sum_rows(&weighted)?, [d, 1, n, 1])?
        } else {
            let sum = g.reshape(&g.sum_rows(&part(1)?)?, [d, n, 1, 1])?;
            self.index_keys(s, &g.scale(&sum, 1.0 / s.span as f32)?, s.span)?
        };
        let all = g.repeat(&key, [d, s.span, n, 1])?;
        let all = g.reshape(&all, [d, s.span * n, 1, 1])?;
        let row = visible.k.strides()[1];
        let first = g.view(&visible.k, [d, visible.k.shape()[1], 1, 1], [row; 3], 0)?;
        visible.k = g.set_rows(&first, &all, &blocks.write)?;
        Ok(visible)
    }

    /// Keys `[d, n_tokens]` of an indexer, normalised and rotated: `[d, 1, n_tokens]`.
    fn index_keys(&self, s: &Selection, k: &Tensor, span: u64) -> Result<Tensor> {
        let k = self.normalise_with(s.k_norm, self.weight("index_k_norm"), k)?;
        let k = self.with_bias("index_k_norm.bias", k)?;
        self.rope_index(s, &self.g.reshape(&k, [s.d, 1, self.n_tokens, 1])?, span)
    }

    /// Rotates the heads of an indexer `[d, heads, n_tokens]` by the first position of each token's block of `span`
    /// positions.
    fn rope_index(&self, s: &Selection, x: &Tensor, span: u64) -> Result<Tensor> {
        match s.rope_at {
            RopeAt::First => self.rope_by(s.rope, x, RopePositions::SpanStarts(span)),
            RopeAt::Last => self.rope_last(s.rope, x, RopePositions::SpanStarts(span)),
        }
    }

    /// The selection masks of some runs, whose queries start at `first`; none if everything is selected.
    fn selected_run(
        &self,
        s: &Selection,
        query: &IndexQuery<'_>,
        visible: &VisibleKeyValues,
        (view, id): (&RunView, (usize, usize)),
        first: usize,
    ) -> Result<Option<Tensor>> {
        let RunView {
            runs, mask, spans, ..
        } = view;
        let [n_kv, n, _, n_runs] = mask.shape();
        if s.top >= n_kv.div_ceil(s.span) {
            return Ok(None);
        }
        let g = self.g;
        let row = visible.k.strides()[1];
        let shape = [s.d, n_kv, 1, n_runs];
        let run = row * runs.stride;
        let strides = [row, run, run];
        let k = g.movable_view(&visible.k, (shape, strides), runs.first, id)?;
        let q = queries_of(g, query.q, runs, first)?; // [d, n, heads, n_runs]
        let product = g.mul_mat(&k, &q)?; // [n_kv, n, heads, n_runs]
        g.exact(&product)?;
        let scores = match query.weights {
            None => product,
            Some(weights) => {
                let heads = g.reshape(weights, [1, s.heads, self.n_tokens, 1])?;
                let weights = g.cont(&queries_of(g, &heads, runs, first)?)?; // [1, n, heads, n_runs]
                let scores = g.mul(&g.unary(&product, Unary::Relu)?, &weights)?;
                let by_head = g.cont(&g.permute(&scores, [1, 2, 0, 3])?)?; // [heads, n_kv, n, n_runs]
                g.reshape(&g.sum_rows(&by_head)?, [n_kv, n, 1, n_runs])?
            }
        };
        let mask_f32 = cast(g, mask, TensorType::F32)?;
        let scores = g.add(&scores, &mask_f32)?;
        // Unselected keys get as low a score as invisible ones.
        let hidden = match (spans, s.span) {
            (_, 1) => {
                let [.., groups, _] = scores.shape();
                let rows = g.reshape(&scores, [n_kv, n * groups * n_runs, 1, 1])?;
                let hidden =
                    g.reshape(&g.largest(&rows, s.top, NEVER)?, [n_kv, n, groups, n_runs])?;
                g.cont(&g.permute(&hidden, [0, 1, 3, 2])?)?
            }
            (Some(spans), _) => self.hidden_blocks(s, &scores, spans)?,
            (None, _) => {
                return Err(refused(
                    "select",
                    format!("there are no spans of {} positions", s.span),
                ));
            }
        };
        let visible = g.reshape(&mask_f32, [n_kv, n, n_runs, 1])?;
        let all = g.add(&hidden, &visible)?;
        cast(g, &all, mask.ty()).map(Some)
    }

    /// 0 for the rows of selected blocks, else [`NEVER`]: `scores [n_kv, n, groups, n_runs]` -> `[n_kv, n, n_runs,
    /// groups]`.
    fn hidden_blocks(&self, s: &Selection, scores: &Tensor, spans: &SpanView) -> Result<Tensor> {
        let (g, [n_kv, n, groups, n_runs]) = (self.g, scores.shape());
        let (n_all, n_blocks) = (n * n_runs, spans.bonus.shape()[0]);
        let by_group = g.cont(&g.permute(scores, [1, 2, 0, 3])?)?;
        let by_row = g.reshape(&by_group, [groups, n_kv, n_all, 1])?;
        let by_position = g.get_rows(&by_row, &spans.rows)?; // [groups, n_blocks * span, n_all]
        let positions = g.cont(&g.permute(&by_position, [1, 0, 2, 3])?)?;
        let best = g.max_of(&positions, s.span)?; // [n_blocks, groups, n_all]
        let best = g.add(&best, &g.reshape(&spans.bonus, [n_blocks, 1, n_all, 1])?)?;
        let best = g.reshape(&best, [n_blocks, groups * n_all, 1, 1])?;
        let hidden = g.largest(&best, s.top.min(n_blocks), NEVER)?;
        let mut hidden = g.reshape(&hidden, [n_blocks, groups, n_all, 1])?;
        if s.pooled {
            // Blocks that are not whole have scores below all others, and are always selected.
            let counts = g.affine(&spans.bonus, -1.0 / TAIL, 1.0)?;
            hidden = g.mul(&hidden, &g.reshape(&counts, [n_blocks, 1, n_all, 1])?)?;
        }
        let by_block = g.cont(&g.permute(&hidden, [1, 0, 2, 3])?)?;
        let rows = g.get_rows(&by_block, &spans.spans)?; // [groups, n_kv, n_all]
        let rows = g.reshape(&rows, [groups, n_kv, n, n_runs])?;
        g.cont(&g.permute(&rows, [3, 0, 1, 2])?)
    }
}

/// The indexer's keys.
pub(super) const K_POINT: PointSpec =
    point!(index_k: Neurons ["d_head_index", "1"], "keys of the indexer, if the block selects");
/// The indexer's queries.
pub(super) const Q_POINT: PointSpec =
    point!(index_q: Heads ["d_head_index", "n_head_index"], "queries of the indexer");
pub(super) const WEIGHTS_POINT: PointSpec = point!(index_weights: Neurons ["n_head_index"], "weights of the indexer's heads, where the file has them");

/// A mask value that no score outweighs; it is minus infinity in f16.
const NEVER: f32 = -1e30;

/// The addend of the score of a block that is not whole, where keys are pooled: lower than any score, a power of two.
pub(crate) const TAIL: f32 = -1.267_650_6e30;

/// What an indexer computes its keys, queries and weights from.
#[derive(Clone, Copy)]
pub(super) struct IndexInputs<'a> {
    /// The input of the block `[n_embd, n_tokens]`.
    pub(super) h: &'a Tensor,
    /// The rows that queries are projected from.
    pub(super) latent: &'a Tensor,
}

/// The indexer's queries and the weights of its heads.
struct IndexQuery<'a> {
    /// `[d, heads, n]`.
    q: &'a Tensor,
    /// `[heads, n]`.
    weights: Option<&'a Tensor>,
}

impl Selection {
    fn selector(&self) -> Selector {
        Selector {
            top: self.top,
            span: self.span,
            local: self.local,
            tail: self.pooled,
        }
    }

    /// Number of positions that a query attends to among `n_seen` visible ones; none if it attends to all.
    pub(crate) fn of_seen(&self, n_seen: u64) -> Option<u64> {
        let (n_best, tail) = (self.top.saturating_mul(self.span), n_seen % self.span);
        let (judged, tail) = match self.pooled {
            true => (n_seen - tail, tail),
            false => (n_seen, 0),
        };
        (judged > n_best).then(|| n_best + tail)
    }
}
