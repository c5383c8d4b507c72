//! Attention over the keys that the store returns.

use crate::ggml::{Error, Graph, KvBlocks, Scores, Tensor};
use crate::plan::{BLOCK_LEN, KeyValuePlan, StatePlan, Unit};
use crate::weights::TensorType;

use super::build::{Build, softcap};
use super::cache::Cache;
use super::context::{AttentionView, VisibleKeyValues};

/// Keys and values of a pass.
pub struct KeyRows<'a> {
    /// `k [dk, heads, n_tokens]`, `v [dv, heads, n_tokens]` or none if values are the head of the
    /// keys; nothing if the rows of another unit are used.
    pub new: Option<(&'a Tensor, Option<&'a Tensor>)>,
    /// Heads of keys and values.
    pub heads: u64,
    /// Elements of a value head.
    pub dv: u64,
}

impl Build<'_> {
    /// Stores keys and values and computes the attention of each query.
    ///
    /// `q [dk, heads, n_tokens]`, `k [dk, kv_heads, n_tokens]`, `v [dv, kv_heads, n_tokens]` ->
    /// `[dv * heads, n_tokens]`. The cache says how far the linear position bias reaches.
    ///
    /// # Errors
    /// As the operations.
    pub fn attend(
        &mut self,
        unit: &Unit,
        q: &Tensor,
        rows: &KeyRows<'_>,
        scores: &Scores<'_>,
    ) -> Result<Tensor, Error> {
        let Some(StatePlan::KeyValue(state)) = &unit.state else {
            return Err(Error::Arguments {
                op: "attend",
                message: format!("{} keeps no keys", unit.path),
            });
        };
        let (g, n) = (self.g, self.n_tokens);
        let scores = Scores {
            max_bias: Cache::read(&self.plan.caches[state.cache].unit.options).alibi,
            ..*scores
        };
        let [dk, heads, ..] = q.shape();
        let (dv, kv_heads) = (rows.dv, rows.heads);
        let visible = self.visible(unit, state, dk, rows)?;
        let k = split_heads(g, &visible.k, dk, kv_heads)?; // [dk, kv_heads, n_kv]
        let v = match &visible.v {
            Some(v) => split_heads(g, v, dv, kv_heads)?, // [dv, kv_heads, n_kv]
            None => split_heads(g, &visible.k, dv, 1)?,  // [dv, 1, n_kv]: the head of each row
        };
        let y = match &visible.view {
            AttentionView::Blocks { queries, table } => {
                let blocks = KvBlocks {
                    k: &k,
                    v: &v,
                    queries,
                    table,
                    block_len: BLOCK_LEN,
                };
                g.paged_attention(q, &blocks, &scores)?
            }
            AttentionView::Mask(mask) => {
                let q = g.permute(q, [0, 2, 1, 3])?; // [dk, n_tokens, heads]
                let k = g.permute(&k, [0, 2, 1, 3])?; // [dk, n_kv, kv_heads]
                if self.flash_attn {
                    let v = g.permute(&v, [0, 2, 1, 3])?; // [dv, n_kv, kv_heads]
                    g.flash_attn(&q, &k, &v, Some(mask), &scores)?
                } else {
                    self.attend_plainly(unit, &q, &k, &v, mask, scores)?
                }
            }
        }; // [dv, heads, n_tokens]
        g.reshape(&y, [dv * heads, n, 1, 1])
    }

    /// The rows that a unit attends to: its own, which it stores, or those of another unit.
    fn visible(
        &mut self,
        unit: &Unit,
        state: &KeyValuePlan,
        dk: u64,
        rows: &KeyRows<'_>,
    ) -> Result<VisibleKeyValues, Error> {
        let (g, n) = (self.g, self.n_tokens);
        let row = |x: &Tensor, d: u64| g.reshape(x, [d * rows.heads, n, 1, 1]);
        match (&state.owner, rows.new) {
            (Some(owner), _) => self.store.stored(owner, state),
            (None, Some((k, v))) => {
                let v = v.map(|v| row(v, rows.dv)).transpose()?;
                self.store
                    .append(g, &unit.path, state, &row(k, dk)?, v.as_ref())
            }
            (None, None) => Err(Error::Arguments {
                op: "attend",
                message: format!("{} has no keys of its own and reads no others", unit.path),
            }),
        }
    }

    /// Attention without flash attention, step by step: `q [dk, n_tokens, heads]`, `k [dk, n_kv,
    /// kv_heads]`, `v [dv, kv_heads, n_kv]` -> `[dv, heads, n_tokens]`.
    fn attend_plainly(
        &self,
        unit: &Unit,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        mask: &Tensor,
        mut scores: Scores<'_>,
    ) -> Result<Tensor, Error> {
        let g = self.g;
        let mut product = g.mul_mat(k, q)?; // [n_kv, n_tokens, heads]
        g.exact(&product)?;
        self.name_pairs(&unit.path, "scores", &product);
        if scores.softcap != 0.0 {
            product = softcap(g, &product, scores.scale, scores.softcap)?;
            scores.scale = 1.0;
        }
        let weights = g.soft_max(&product, Some(mask), &scores)?;
        self.name_pairs(&unit.path, "weights", &weights);
        let v = if v.ty().is_plain() {
            v.clone()
        } else {
            g.cast(v, TensorType::F32)?
        };
        let v = g.cont(&g.permute(&v, [1, 2, 0, 3])?)?; // [n_kv, dv, kv_heads]
        let y = g.mul_mat(&v, &weights)?; // [dv, n_tokens, heads]
        g.cont(&g.permute(&y, [0, 2, 1, 3])?)
    }
}

/// Rows of at least `d * heads` elements as `[d, heads, n]`, in place.
fn split_heads(g: &Graph, rows: &Tensor, d: u64, heads: u64) -> Result<Tensor, Error> {
    let n = rows.shape()[1];
    let fault = || Error::Arguments {
        op: "split_heads",
        message: format!("{rows:?} into heads of {d}"),
    };
    let head = rows.ty().row_bytes(d).ok_or_else(fault)? as usize;
    let row = rows.strides()[1];
    g.view(rows, [d, heads, n, 1], [head, row, row * n as usize], 0)
}
