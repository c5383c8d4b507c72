//! Attention over KV blocks, in an operation of this project.
//!
//! It differs from `flash_attn`: a query attends to an interval of its own sequence, so there is no mask and no
//! gathered copy, and no slot of another sequence is read. The bits of a result follow only from the query, its
//! interval and the rows of the interval, not from the rest of the pass.

use ggml_sys as sys;

use super::super::arena::Tensor;
use super::super::error::Error;
use super::attention::ScoreOptions;
use super::{Graph, fault, pointer};
use crate::weights::TensorType;

#[cfg(test)]
mod tests;

/// Keys and values of many sequences, and the interval that each query attends to.
#[derive(Clone, Copy, Debug)]
pub struct KvBlocks<'a> {
    /// `[dk, kv_heads, slots]`: f32, f16, bf16, q8_0 or q4_0; rows dense.
    pub k: &'a Tensor,
    /// `[dv, kv_heads, slots]`, as `k`; may be a view of the heads of `k`.
    pub v: &'a Tensor,
    /// i32 `[4, n]`, for each query: the place in `table` where the blocks of its sequence start, its position, and the
    /// first and the end of the positions that it attends to.
    pub queries: &'a Tensor,
    /// i32 `[m]`: position p of a sequence is in the slot `table[start + p / block_len] * block_len + p % block_len`.
    pub table: &'a Tensor,
    /// Number of slots of a block, a multiple of 16.
    pub block_len: u64,
    /// The selected blocks of positions of each query's interval; none: the whole interval.
    pub selected: Option<Selected<'a>>,
    /// The keys of whole blocks of positions, among which `selected` selects; none: blocks have no keys.
    pub whole: Option<WholeSpans>,
    /// f32 `[heads, 2 far + 1]`, dense: the bias of each head's scores for the distances from -far to far, the position
    /// of the key minus that of the query. Farther distances count as -far or far.
    pub bias: Option<&'a Tensor>,
}

/// Lists of the selected blocks of positions of queries.
#[derive(Clone, Copy, Debug)]
pub struct Selected<'a> {
    /// i32 `[m, 1 or kv_heads, n]`: blocks of positions, in ascending order and up to the first negative number; a list
    /// that starts with a negative number stands for all blocks.
    pub lists: &'a Tensor,
    /// Number of positions of a block.
    pub span: u64,
}

impl Selected<'_> {
    pub(super) fn check(&self, op: &'static str, kv_heads: u64, n: u64) -> Result<(), Error> {
        let [m, groups, of_queries, one] = self.lists.shape();
        let shaped = of_queries == n && one == 1 && m > 0 && (groups == 1 || groups == kv_heads);
        let typed = self.lists.ty() == TensorType::I32 && self.lists.has_dense_rows();
        match shaped && typed && (1..1 << 31).contains(&self.span) {
            true => Ok(()),
            false => fault(op, format!("{self:?} for {kv_heads} heads and {n} queries")),
        }
    }
}

/// Keys of whole blocks of positions, to which a query attends in addition to its last positions. A KV block has
/// further rows after those of its positions: [`Self::further`], one for each whole block that ends in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WholeSpans {
    /// Number of positions of a whole block, which starts at a multiple of it: a divisor or a multiple of `block_len`.
    pub span: u64,
    /// Number of positions whose own keys a query attends to, the last ones of its interval.
    pub near: u64,
}

impl WholeSpans {
    /// Number of further rows of a KV block of `block_len` positions; one if whole blocks are longer.
    pub fn further(span: u64, block_len: u64) -> u64 {
        (block_len / span.max(1)).max(1)
    }

    fn check(self, op: &'static str, block_len: u64) -> Result<(), Error> {
        let Self { span, near } = self;
        let fits = span > 0 && (block_len.is_multiple_of(span) || span.is_multiple_of(block_len));
        match fits && span < 1 << 31 && near > 0 {
            true => Ok(()),
            false => fault(op, format!("{self:?} in blocks of {block_len} slots")),
        }
    }
}

impl KvBlocks<'_> {
    /// Whether blocks can have this type and heads of `head` elements.
    pub fn can_hold(ty: TensorType, head: u64) -> bool {
        // SAFETY: the function returns a constant.
        let max_head = unsafe { sys::shim_paged_attention_max_head() } as u64;
        is_kv_type(ty) && head <= max_head
    }

    pub(super) fn check(&self, op: &'static str, q: &Tensor) -> Result<(), Error> {
        // SAFETY: the functions return constants.
        let (max_head, step) = unsafe {
            (
                sys::shim_paged_attention_max_head() as u64,
                sys::shim_paged_attention_block_step() as u64,
            )
        };
        let (sq, sk, sv) = (q.shape(), self.k.shape(), self.v.shape());
        let shapes = sq[0] == sk[0]
            && sk[1..] == sv[1..]
            && sq[1] % sk[1] == 0
            && [sq[3], sk[3]] == [1, 1]
            && self.queries.shape() == [4, sq[2], 1, 1]
            && self.table.shape()[1..] == [1, 1, 1];
        let counts = [sq[1], sq[2], sk[2], self.table.shape()[0]]
            .iter()
            .all(|count| *count < 1 << 31);
        let rows = |pool: &Tensor| is_kv_type(pool.ty()) && pool.has_dense_rows();
        let lists = [self.queries, self.table]
            .iter()
            .all(|list| list.ty() == TensorType::I32 && list.is_contiguous());
        if !shapes || !counts || !rows(self.k) || !rows(self.v) || !lists {
            return fault(op, format!("{q:?} with {self:?}"));
        }
        if sq[0] > max_head || sv[0] > max_head {
            return fault(op, format!("heads of {q:?}, {self:?}: at most {max_head}"));
        }
        if self.block_len == 0 || !self.block_len.is_multiple_of(step) || self.block_len > 1 << 16 {
            let message = format!(
                "blocks of {} slots: expected a multiple of {step}",
                self.block_len
            );
            return fault(op, message);
        }
        Ok(())
    }
}

fn is_kv_type(ty: TensorType) -> bool {
    use TensorType::{BF16, F16, F32, Q4_0, Q8_0};
    matches!(ty, F32 | F16 | BF16 | Q8_0 | Q4_0)
}

impl Graph {
    /// `softmax(q . k * scale) . v` over the positions that each query attends to: `q [dk, heads, n]` f32, rows dense
    /// -> `[dv, heads, n]` f32, computed in f32. A linear position bias lowers scores by the distance of the positions;
    /// a bias by distance is read from a table.
    ///
    /// The operation checks the lists when it reads them: a query gets zeros if its interval is empty, or if its blocks
    /// are outside the table or the slots. The online softmax is that of Milakov and Gimelshein 2018.
    ///
    /// # Errors
    /// The shapes do not fit each other, a type is not supported, or a head has more than 1024 elements.
    pub fn paged_attention(
        &self,
        q: &Tensor,
        blocks: &KvBlocks<'_>,
        scores: &ScoreOptions<'_>,
    ) -> Result<Tensor, Error> {
        const OP: &str = "paged_attention";
        self.float(OP, q, false)?;
        scores.check(OP, q.shape()[1], true)?;
        blocks.check(OP, q)?;
        if let Some(selected) = &blocks.selected {
            selected.check(OP, blocks.k.shape()[1], q.shape()[2])?;
        }
        if let Some(whole) = blocks.whole {
            whole.check(OP, blocks.block_len)?;
            if blocks
                .selected
                .is_some_and(|selected| selected.span != whole.span)
            {
                return fault(OP, format!("{:?} of {whole:?}", blocks.selected));
            }
        }
        let is_gathered = blocks.selected.is_some() || blocks.whole.is_some();
        if is_gathered && (scores.max_bias > 0.0 || blocks.bias.is_some()) {
            return fault(OP, format!("{blocks:?} with a position bias"));
        }
        if let Some(bias) = blocks.bias {
            let [heads, distances, more @ ..] = bias.shape();
            let fits = heads == q.shape()[1] && distances % 2 == 1 && more == [1, 1];
            let is_dense = bias.ty() == TensorType::F32 && bias.is_contiguous();
            if !fits || !is_dense || distances >= 1 << 31 {
                return fault(OP, format!("the bias {bias:?} of {q:?}"));
            }
        }
        let ctx = self.arena.reserve()?;
        let lists = blocks.selected.map(|selected| selected.lists);
        let span = blocks.whole.map(|whole| whole.span);
        let span = span.or(blocks.selected.map(|selected| selected.span));
        let near = blocks
            .whole
            .map_or(0, |whole| whole.near.min(i32::MAX as u64));
        // SAFETY: types, shapes and layout were checked; no lists, no bias and no sinks are null. The operation checks
        // the values of the two lists.
        let ptr = unsafe {
            sys::shim_paged_attention(
                ctx,
                q.as_ptr(),
                blocks.k.as_ptr(),
                blocks.v.as_ptr(),
                blocks.queries.as_ptr(),
                blocks.table.as_ptr(),
                pointer(lists),
                pointer(blocks.bias),
                pointer(scores.sinks),
                scores.scale,
                scores.softcap,
                scores.max_bias,
                blocks.block_len as i32,
                span.unwrap_or(0) as i32,
                near as i32,
            )
        };
        let sources = [q, blocks.k, blocks.v, blocks.queries, blocks.table];
        let sources = sources.into_iter().map(Some);
        let sources: Vec<_> = sources.chain([lists, blocks.bias, scores.sinks]).collect();
        self.node(OP, ptr, &sources)
    }

    /// [`Self::paged_attention`] as an operation of a device that reads block tables. **Other devices, the processor
    /// included, compute something else**: before it is run, [`KeptOp::runs_on`](crate::ggml::KeptOp::runs_on) must
    /// say that its device has it.
    ///
    /// # Errors
    /// Those of [`Self::paged_attention`]; keys are selected, blocks of positions have keys, or there is a bias.
    pub fn device_attention(
        &self,
        q: &Tensor,
        blocks: &KvBlocks<'_>,
        scores: &ScoreOptions<'_>,
    ) -> Result<Tensor, Error> {
        const OP: &str = "device_attention";
        self.float(OP, q, false)?;
        scores.check(OP, q.shape()[1], true)?;
        blocks.check(OP, q)?;
        if blocks.selected.is_some() || blocks.whole.is_some() || blocks.bias.is_some() {
            return fault(OP, format!("no device attends to {blocks:?}"));
        }
        let by_head = |x: &Tensor| self.permute(x, [0, 2, 1, 3]);
        let (q, k, v) = (by_head(q)?, by_head(blocks.k)?, by_head(blocks.v)?);
        let ctx = self.arena.reserve()?;
        // SAFETY: types, shapes and layout were checked; no sinks are null. The device checks the values of the lists.
        let ptr = unsafe {
            sys::shim_device_attention(
                ctx,
                q.as_ptr(),
                k.as_ptr(),
                v.as_ptr(),
                blocks.queries.as_ptr(),
                blocks.table.as_ptr(),
                pointer(scores.sinks),
                scores.scale,
                scores.softcap,
                scores.max_bias,
                blocks.block_len as i32,
            )
        };
        let sources = [&q, &k, &v, blocks.queries, blocks.table].map(Some);
        self.node(OP, ptr, &[&sources[..], &[scores.sinks]].concat())
    }
}
