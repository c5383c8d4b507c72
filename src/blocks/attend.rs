//! Queries to mixed values, over whatever keys the store lets them see.

use crate::ggml::{Error, Graph, Pages, Scores, Tensor};
use crate::plan::{BLOCK_LEN, StatePlan, Unit};
use crate::weights::TensorType;

use super::build::{Build, softcap};
use super::cache::Cache;
use super::store::Sight;

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
    /// Stores keys and values and mixes the values that each query sees.
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
        let seen = match (&state.owner, rows.new) {
            (Some(owner), _) => self.store.stored(owner, state)?,
            (None, Some((k, v))) => {
                let k = g.reshape(k, [dk * kv_heads, n, 1, 1])?;
                let v = match v {
                    Some(v) => Some(g.reshape(v, [dv * kv_heads, n, 1, 1])?),
                    None => None,
                };
                self.store.append(g, &unit.path, state, &k, v.as_ref())?
            }
            (None, None) => {
                return Err(Error::Arguments {
                    op: "attend",
                    message: format!("{} has no keys of its own and reads no others", unit.path),
                });
            }
        };
        let k = split_heads(g, &seen.k, dk, kv_heads)?; // [dk, kv_heads, n_kv]
        let v = match &seen.v {
            Some(v) => split_heads(g, v, dv, kv_heads)?, // [dv, kv_heads, n_kv]
            None => split_heads(g, &seen.k, dv, 1)?,     // [dv, 1, n_kv]: the head of each row
        };
        let mask = match &seen.sight {
            Sight::Mask(mask) => mask,
            Sight::Pages { queries, table } => {
                let pages = Pages {
                    k: &k,
                    v: &v,
                    queries,
                    table,
                    page: BLOCK_LEN,
                };
                let y = g.paged_attention(q, &pages, &scores)?; // [dv, heads, n_tokens]
                return g.reshape(&y, [dv * heads, n, 1, 1]);
            }
        };
        let q = g.permute(q, [0, 2, 1, 3])?; // [dk, n_tokens, heads]
        let k = g.permute(&k, [0, 2, 1, 3])?; // [dk, n_kv, kv_heads]
        if self.flash_attn {
            let v = g.permute(&v, [0, 2, 1, 3])?; // [dv, n_kv, kv_heads]
            let y = g.flash_attn(&q, &k, &v, Some(mask), &scores)?; // [dv, heads, n_tokens]
            return g.reshape(&y, [dv * heads, n, 1, 1]);
        }
        let product = g.mul_mat(&k, &q)?; // [n_kv, n_tokens, heads]
        g.exact(&product)?;
        self.name_pairs(&unit.path, "scores", &product);
        let (product, scores) = if scores.softcap == 0.0 {
            (product, scores)
        } else {
            let capped = softcap(g, &product, scores.scale, scores.softcap)?;
            let scores = Scores {
                scale: 1.0,
                ..scores
            };
            (capped, scores)
        };
        let weights = g.soft_max(&product, Some(mask), &scores)?;
        self.name_pairs(&unit.path, "pattern", &weights);
        let v = if v.ty().is_plain() {
            v
        } else {
            g.cast(&v, TensorType::F32)?
        };
        let v = g.cont(&g.permute(&v, [1, 2, 0, 3])?)?; // [n_kv, dv, kv_heads]
        let y = g.mul_mat(&v, &weights)?; // [dv, n_tokens, heads]
        let y = g.cont(&g.permute(&y, [0, 2, 1, 3])?)?; // [dv, heads, n_tokens]
        g.reshape(&y, [dv * heads, n, 1, 1])
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
