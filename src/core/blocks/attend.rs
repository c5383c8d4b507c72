//! Attention over the keys that the store returns.

use crate::arch::{Mode, PointSpec, WeightSpec};
use crate::plan::{BLOCK_LEN, RowLayout};
use crate::{point, weight};
use lab_base::ggml::{Graph, KvBlocks, Result, ScoreOptions, Tensor, WholeSpans};
use lab_base::weights::TensorType;

use super::build::{UnitBuilder, softcap};
use super::cache::CacheOptions;
use super::context::{
    AttentionView, DerivedInput, KeyOwner, RunView, Runs, SelectedKeys, VisibleKeyValues,
};
use super::lab::AttentionCapture;
use super::position_bias::{DISTANCES, DistanceBuckets, TABLE};
use super::turn::Turns;
use super::{cast, joined, refused};

/// The sinks: a further score of each head in the denominator of the softmax, without a value.
pub(super) const SINKS: WeightSpec = weight!(sinks: Bias "attn_sinks.weight" ["heads"] optional, "attention sinks: a further score of each head, without a value");

pub(super) const SCORES_POINT: PointSpec = point!(scores: Pairs ["n_kv", "heads"], "products of queries and keys, before scale, softcap and mask");

pub(super) const WEIGHTS_POINT: PointSpec = point!(weights: Pairs ["n_kv", "heads"] known_as("attn.hook_pattern"), "attention weights: the softmax of the scores");

/// Maximum number of operations that attention adds for each further view of keys; an upper estimate.
pub(super) const NODES_PER_VIEW: usize = 20;

/// The keys and values of a pass.
#[derive(Default)]
pub struct KeyRows<'a> {
    /// `k [dk, heads, n_tokens]` and `v [dv, heads, n_tokens]`. `v` is none if the values are the head of the keys.
    /// None if the rows of another unit are used.
    pub new: Option<(&'a Tensor, Option<&'a Tensor>)>,
    /// Number of heads of the keys and values.
    pub heads: u64,
    /// Number of elements of a value head.
    pub dv: u64,
    /// Factor of the scores.
    pub scale: f32,
    /// Bound of the scores; 0: none.
    pub softcap: f32,
    /// The selected keys; none: all visible keys are attended to.
    pub(super) selected: Option<SelectedKeys>,
    /// The bias of the scores for each distance, `[heads, 2 far + 1]`.
    pub(super) bias: Option<Tensor>,
    /// Keys of distances, in a tower.
    pub(super) distances: Option<DistanceKeys>,
    /// The keys `[dk, 1, m]` of the whole blocks that end in the pass, where blocks have keys.
    pub(super) ended: Option<Tensor>,
}

/// Keys of distances, whose products with a query are added to its scores.
pub(super) struct DistanceKeys {
    /// `[dk * heads, rows]`, the same for all heads or one for each.
    pub(super) table: Tensor,
    /// The row of distance 0; each further row is of keys one position earlier.
    pub(super) zero: u64,
}

impl UnitBuilder<'_, '_> {
    /// Stores keys and values and computes the attention of each query.
    ///
    /// `q [dk, heads, n_tokens]`, `k [dk, kv_heads, n_tokens]`, `v [dv, kv_heads, n_tokens]` ->
    /// `[dv * heads, n_tokens]`. The options of the cache give the largest slope of the linear position bias.
    pub fn attend(&mut self, q: &Tensor, rows: &KeyRows<'_>) -> Result<Tensor> {
        let (g, n, own) = (self.g, self.n_tokens, self.key_owner()?);
        let cache = CacheOptions::read(&self.plan.caches[own.state.cache].unit.options);
        let scores = ScoreOptions {
            scale: rows.scale,
            softcap: rows.softcap,
            max_bias: cache.alibi,
            sinks: self.weight(SINKS.key),
        };
        if let Some(grid) = self.grid {
            return self.attend_grid(grid, q, rows, (&cache, &scores));
        }
        if rows.distances.is_some() {
            let message = format!(
                "{}: only the rows of a tower have keys of distances",
                own.path
            );
            return Err(refused("attend", message));
        }
        let [dk, heads, ..] = q.shape();
        let (dv, kv_heads) = (rows.dv, rows.heads);
        let turns = Turns::of(own.state, (dk, dv), self.is_quantised);
        let q = &self.turn(q, turns.keys)?;
        let visible = self.visible(own, dk, rows, turns)?;
        self.take_weights(q, &visible.k, kv_heads, &scores)?;
        let heads_of = KeyHeads {
            k: &visible.k,
            // Without separate values, the head of each key row is the value.
            v: visible.v.as_ref().unwrap_or(&visible.k),
            dk,
            dv,
            k_heads: kv_heads,
            v_heads: if visible.v.is_some() { kv_heads } else { 1 },
        };
        let y = match &visible.view {
            AttentionView::Blocks { queries, table } => {
                let all = Runs {
                    n_tokens: n as usize,
                    n_runs: 1,
                    first: 0,
                    stride: 0,
                    n_kv: visible.k.shape()[1] as usize,
                };
                let (k, v) =
                    heads_of.of(&all, |rows, shape, strides| g.view(rows, shape, strides, 0))?;
                let blocks = KvBlocks {
                    k: &k,
                    v: &v,
                    queries,
                    table,
                    block_len: BLOCK_LEN,
                    selected: match &rows.selected {
                        Some(SelectedKeys::Lists(Some(lists), span)) => {
                            Some(lab_base::ggml::Selected { lists, span: *span })
                        }
                        _ => None,
                    },
                    bias: rows.bias.as_ref(),
                    whole: (cache.span > 0).then(|| WholeSpans {
                        span: cache.span,
                        near: cache.near(),
                    }),
                };
                let y = match self.unit.device {
                    0 => g.paged_attention(q, &blocks, &scores)?,
                    _ => g.device_attention(q, &blocks, &scores)?,
                }; // [dv, heads, n_tokens]
                g.reshape(&y, [dv * heads, n, 1, 1])
            }
            AttentionView::Runs(views) => {
                let mut all: Option<(Tensor, usize)> = None;
                for (i, view) in views.iter().enumerate() {
                    let RunView { runs, mask, .. } = view;
                    let (before, first) = match all {
                        Some((y, first)) => (Some(y), first),
                        None => (None, 0),
                    };
                    let q = queries_of(g, q, runs, first)?; // [dk, n_tokens, heads, n_runs]
                    let (k, v) = heads_of.of(runs, |rows, shape, strides| {
                        let id = (own.state.cache, i);
                        g.movable_view(rows, (shape, strides), runs.first, id)
                    })?;
                    let masks = match &rows.selected {
                        Some(SelectedKeys::Masks(masks)) => masks[i].as_ref(),
                        _ => None,
                    };
                    let bias = rows.bias.as_ref();
                    let bias = bias.map(|bias| self.bias_of_view(bias, view));
                    let bias = bias.transpose()?;
                    let mut of = RunHeads {
                        i: Some(i),
                        q: &q,
                        k: &k,
                        v: &v,
                        mask,
                        bias: bias.as_ref().filter(|_| masks.is_none()),
                    };
                    let whole;
                    let y = match masks {
                        Some(masks) if let Some(layout) = view.layout => {
                            whole = self.mask_of_whole(mask, masks, layout)?;
                            of.mask = &whole;
                            self.attend_runs(of, scores)?
                        }
                        Some(masks) => self.attend_selected(of, masks, scores)?,
                        None => self.attend_runs(of, scores)?,
                    };
                    let n = runs.n_tokens * runs.n_runs;
                    let y = g.reshape(&y, [dv * heads, n as u64, 1, 1])?;
                    all = Some((joined(g, before.as_ref(), y, 1)?, first + n));
                }
                all.map(|(y, _)| y).ok_or_else(|| {
                    refused(
                        "attend",
                        format!("{}: the pass attends to nothing", own.path),
                    )
                })
            }
        }?;
        self.turn(&y, turns.values)
    }

    /// Computes the captured attention weights, for the chosen tokens alone: attention itself may not store them.
    /// `q [dk, heads, n_tokens]`, `k [dk * kv_heads, n_rows]`; the weights are `[n_keys * heads, m]`.
    pub(super) fn take_weights(
        &self,
        q: &Tensor,
        k: &Tensor,
        kv_heads: u64,
        scores: &ScoreOptions<'_>,
    ) -> Result<()> {
        let path = format!("{}.{}", self.unit.path, WEIGHTS_POINT.name);
        let Some(AttentionCapture { rows, keys, mask }) = self.lab.pairs.get(&path) else {
            return Ok(());
        };
        let g = self.g;
        let [dk, heads, n, _] = q.shape();
        let [n_keys, m, ..] = mask.shape();
        let q = g.get_rows(&g.reshape(&g.cont(q)?, [dk * heads, n, 1, 1])?, rows)?;
        let q = g.permute(&g.reshape(&q, [dk, heads, m, 1])?, [0, 2, 1, 3])?;
        let k = g.reshape(&g.get_rows(k, keys)?, [dk, kv_heads, n_keys, 1])?;
        let k = g.cont(&g.permute(&k, [0, 2, 1, 3])?)?;
        let mut product = g.mul_mat(&k, &q)?; // [n_keys, m, heads]
        g.exact(&product)?;
        let mut scores = *scores;
        if scores.softcap != 0.0 {
            product = softcap(g, &product, scores.scale, scores.softcap)?;
            scores.scale = 1.0;
        }
        let weights = g.soft_max(&product, Some(mask), &scores)?;
        let weights = g.cont(&g.permute(&weights, [0, 2, 1, 3])?)?;
        let weights = g.reshape(&weights, [n_keys * heads, m, 1, 1])?;
        g.expand(&weights)?;
        self.lab.captured.borrow_mut().insert(path, weights);
        Ok(())
    }

    /// The bias of a unit's scores for each distance, `[heads, 2 far + 1]`; none if the unit has no bias.
    pub(super) fn position_bias(&self, far: u64) -> Result<Option<Tensor>> {
        let Some(table) = self.weight(TABLE) else {
            return Ok(None);
        };
        let cache = self.unit.key_values().map(|rows| rows.cache);
        let rule = cache.map(|cache| CacheOptions::read(&self.plan.caches[cache].unit.options));
        let buckets = self.input(DerivedInput::Buckets(DistanceBuckets {
            n: table.shape()[1],
            far,
            is_causal: rule.is_some_and(|rule| rule.causal) && self.plan.mode == Mode::Causal,
        }))?;
        self.g.get_rows(table, &buckets).map(Some)
    }

    /// The keys of distances of a unit; none if it has no such table.
    pub(super) fn distance_keys(&self, zero: u64, dk: u64) -> Result<Option<DistanceKeys>> {
        let Some(table) = self.weight(DISTANCES) else {
            return Ok(None);
        };
        let table = match self.weight("rel_proj") {
            Some(_) => {
                let rows = cast(self.g, table, TensorType::F32)?;
                self.g.mul_mat(&self.required_weight("rel_proj")?, &rows)?
            }
            None => table.clone(),
        };
        debug_assert!(table.shape()[0].is_multiple_of(dk), "{table:?}");
        Ok(Some(DistanceKeys { table, zero }))
    }

    /// The bias of each key and query of a view, `[n_kv, n_tokens, heads, n_runs]`, looked up in the bias of each
    /// distance `[heads, 2 far + 1]`.
    fn bias_of_view(&self, bias: &Tensor, view: &RunView) -> Result<Tensor> {
        let (g, runs) = (self.g, &view.runs);
        let Some(distances) = &view.distances else {
            return Err(refused(
                "attend",
                format!("{}: the view knows no distances", self.unit.path),
            ));
        };
        let rows = g.get_rows(bias, distances)?; // [heads, n_kv * n_tokens * n_runs]
        let [n_kv, n_tokens, n_runs] = [runs.n_kv, runs.n_tokens, runs.n_runs].map(|n| n as u64);
        let rows = g.reshape(&rows, [bias.shape()[0], n_kv, n_tokens, n_runs])?;
        g.cont(&g.permute(&rows, [2, 0, 1, 3])?)
    }

    /// The attention of some runs: `[dv, heads, n_tokens, n_runs]`. Flash attention is not used with a bias of the
    /// scores.
    fn attend_runs(&self, of: RunHeads<'_>, scores: ScoreOptions<'_>) -> Result<Tensor> {
        let g = self.g;
        let k = g.permute(of.k, [0, 2, 1, 3])?; // [dk, n_kv, kv_heads, n_runs]
        if self.flash_attn && of.bias.is_none() {
            let v = g.permute(of.v, [0, 2, 1, 3])?; // [dv, n_kv, kv_heads, n_runs]
            g.flash_attn(of.q, &k, &v, Some(of.mask), &scores)
        } else {
            self.attend_plainly(of, &k, scores)
        }
    }

    /// [`Self::attend_runs`] with masks of a selection, `[n_kv, n_tokens, n_runs, 1 or kv_heads]`. If each key head has
    /// its own mask, the key heads attend one after another.
    fn attend_selected(
        &self,
        of: RunHeads<'_>,
        masks: &Tensor,
        scores: ScoreOptions<'_>,
    ) -> Result<Tensor> {
        let g = self.g;
        let ([n_kv, n, n_runs, parts], strides) = (masks.shape(), masks.strides());
        let mut all: Option<Tensor> = None;
        for at in 0..parts {
            // The part of the heads for mask `at`, along dimension `dim`.
            let part = |x: &Tensor, dim: usize| {
                let (mut shape, steps) = (x.shape(), x.strides());
                shape[dim] /= parts;
                let offset = at as usize * shape[dim] as usize * steps[dim];
                g.view(x, shape, [steps[1], steps[2], steps[3]], offset)
            };
            let steps = [strides[1], strides[2], strides[2]];
            let mask = g.view(masks, [n_kv, n, 1, n_runs], steps, at as usize * strides[3])?;
            let sinks = scores.sinks.map(|sinks| part(sinks, 0)).transpose()?;
            let scores = ScoreOptions {
                sinks: sinks.as_ref(),
                ..scores
            };
            let of = RunHeads {
                // The values of a part of the heads get no name.
                i: of.i.filter(|_| parts == 1),
                q: &part(of.q, 2)?,
                k: &part(of.k, 1)?,
                v: &part(of.v, 1)?,
                mask: &mask,
                bias: None,
            };
            let y = self.attend_runs(of, scores)?;
            all = Some(joined(g, all.as_ref(), y, 1)?);
        }
        all.ok_or_else(|| refused("attend", format!("{} selects nothing", self.unit.path)))
    }

    /// The mask `[n_rows, n_tokens, 1, n_runs]` of the rows of positions and of whole blocks, restricted to the blocks
    /// that the mask of positions `[n_kv, n_tokens, n_runs, 1]` selects.
    fn mask_of_whole(&self, mask: &Tensor, selected: &Tensor, layout: RowLayout) -> Result<Tensor> {
        let g = self.g;
        let selected = cast(g, selected, TensorType::F32)?;
        let ([n_kv, n, n_runs, _], element) = (selected.shape(), selected.strides()[0]);
        let RowLayout { block, further } = layout;
        let (n_blocks, step) = (n_kv / block, block / further);
        let shape = [1, further, n_blocks * n * n_runs, 1];
        let steps = [step as usize * element, block as usize * element, 0];
        let last = g.view(&selected, shape, steps, (step - 1) as usize * element)?;
        let last = g.reshape(&g.cont(&last)?, [further, n_blocks * n * n_runs, 1, 1])?;
        let own = g.reshape(&selected, [block, n_blocks * n * n_runs, 1, 1])?;
        let all = g.concat(&g.fill(&own, 0.0)?, &last, 0)?;
        let all = g.reshape(&all, mask.shape())?;
        let all = g.add(&all, &cast(g, mask, TensorType::F32)?)?;
        cast(g, &all, mask.ty())
    }

    /// The rows that a unit attends to: its own, which this stores, or those of another unit.
    fn visible(
        &mut self,
        own: KeyOwner<'_>,
        dk: u64,
        rows: &KeyRows<'_>,
        turns: Turns,
    ) -> Result<VisibleKeyValues> {
        let (g, n, unit) = (self.g, self.n_tokens, self.unit);
        // The heads of a token as one row. It is a view, never a reshape: backends rotate and store the rows of a view
        // at once.
        let row = |x: &Tensor, d: u64| {
            let x = match x.strides()[1] == d as usize * x.strides()[0] || rows.heads == 1 {
                true => x.clone(),
                false => g.cont(x)?,
            };
            let step = x.strides()[2];
            g.view(&x, [d * rows.heads, n, 1, 1], [step, step, step], 0)
        };
        match (&own.state.owner, rows.new) {
            (Some(path), _) => self.store.stored(KeyOwner { path, ..own }),
            (None, None) if self.keys_are_of_source(unit) => self.store.stored(own),
            (None, Some((k, None))) if own.state.pooled.is_some() => {
                let ended = rows.ended.as_ref().map(|keys| {
                    let keys = self.turn(keys, turns.keys)?;
                    g.reshape(&keys, [dk, keys.shape()[2], 1, 1])
                });
                let (k, ended) = (row(&self.turn(k, turns.keys)?, dk)?, ended.transpose()?);
                self.store.append_with_ended(g, own, &k, ended.as_ref())
            }
            (None, Some((k, v))) => {
                let v = v.map(|v| row(&self.turn(v, turns.values)?, rows.dv));
                let (k, v) = (row(&self.turn(k, turns.keys)?, dk)?, v.transpose()?);
                self.store.append(g, own, &k, v.as_ref())
            }
            (None, None) => Err(refused(
                "attend",
                format!("{} has no keys of its own and reads no others", unit.path),
            )),
        }
    }

    /// Attention without flash attention, one operation after another, with keys `k [dk, n_kv, kv_heads, n_runs]`.
    fn attend_plainly(
        &self,
        of: RunHeads<'_>,
        k: &Tensor,
        mut scores: ScoreOptions<'_>,
    ) -> Result<Tensor> {
        let g = self.g;
        let name = |point: &'static PointSpec, tensor: &Tensor| match of.i {
            None => {}
            Some(i) => self.name_pairs(&self.unit.path, point, i, tensor),
        };
        let mut product = g.mul_mat(k, of.q)?; // [n_kv, n_tokens, heads, n_runs]
        g.exact(&product)?;
        name(&SCORES_POINT, &product);
        if scores.softcap != 0.0 {
            product = softcap(g, &product, scores.scale, scores.softcap)?;
            scores.scale = 1.0;
        }
        if let Some(bias) = of.bias {
            product = g.add(&g.scale(&product, scores.scale)?, bias)?;
            scores.scale = 1.0;
        }
        let weights = g.soft_max(&product, Some(of.mask), &scores)?;
        name(&WEIGHTS_POINT, &weights);
        let v = if of.v.ty().is_plain() {
            of.v.clone()
        } else {
            g.cast(of.v, TensorType::F32)?
        };
        let v = g.cont(&g.permute(&v, [1, 2, 0, 3])?)?; // [n_kv, dv, kv_heads, n_runs]
        let y = g.mul_mat(&v, &weights)?; // [dv, n_tokens, heads, n_runs]
        g.cont(&g.permute(&y, [0, 2, 1, 3])?)
    }
}

/// The inputs of attention over some runs.
#[derive(Clone, Copy)]
struct RunHeads<'a> {
    /// The index of the runs in the pass; none if their values get no name.
    i: Option<usize>,
    /// `[dk, n_tokens, heads, n_runs]`.
    q: &'a Tensor,
    /// `[dk, kv_heads, n_kv, n_runs]`.
    k: &'a Tensor,
    /// `[dv, kv_heads, n_kv, n_runs]`.
    v: &'a Tensor,
    /// `[n_kv, n_tokens, 1, n_runs]`.
    mask: &'a Tensor,
    /// `[n_kv, n_tokens, heads, n_runs]`.
    bias: Option<&'a Tensor>,
}

/// The rows of all keys and values, and their numbers of heads.
struct KeyHeads<'a> {
    k: &'a Tensor,
    v: &'a Tensor,
    dk: u64,
    dv: u64,
    k_heads: u64,
    v_heads: u64,
}

impl KeyHeads<'_> {
    /// The keys `[dk, k_heads, n_kv, n_runs]` and values `[dv, v_heads, n_kv, n_runs]` of some runs. `view` makes views of
    /// rows with a shape and strides.
    fn of(
        &self,
        runs: &Runs,
        view: impl Fn(&Tensor, [u64; 4], [usize; 3]) -> Result<Tensor>,
    ) -> Result<(Tensor, Tensor)> {
        let heads = |rows: &Tensor, d: u64, heads: u64| {
            let Some(head) = rows.ty().row_bytes(d) else {
                return Err(refused("heads", format!("{rows:?} into heads of {d}")));
            };
            let row = rows.strides()[1];
            let shape = [d, heads, runs.n_kv as u64, runs.n_runs as u64];
            let strides = [head as usize, row, row * runs.stride];
            view(rows, shape, strides)
        };
        let k = heads(self.k, self.dk, self.k_heads)?;
        Ok((k, heads(self.v, self.dv, self.v_heads)?))
    }
}

/// The queries of some runs, from token `first` of `q [dk, heads, n]` on: `[dk, n_tokens, heads, n_runs]`, as a view.
pub(super) fn queries_of(g: &Graph, q: &Tensor, runs: &Runs, first: usize) -> Result<Tensor> {
    let ([dk, heads, n, _], [_, head, token, _]) = (q.shape(), q.strides());
    if runs.n_tokens as u64 == n {
        return g.permute(q, [0, 2, 1, 3]);
    }
    let shape = [dk, heads, runs.n_tokens as u64, runs.n_runs as u64];
    let strides = [head, token, token * runs.n_tokens];
    let own = g.view(q, shape, strides, token * first)?;
    g.permute(&own, [0, 2, 1, 3])
}
