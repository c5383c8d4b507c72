//! Attention among the rows of a tower: each row attends to the rows of its input, or to those of its window of the grid.

use super::attend::KeyRows;
use super::build::UnitBuilder;
use super::cache::CacheOptions;
use super::context::DerivedInput;
use super::grid::{GridRule, RowGrid};
use crate::plan::BLOCK_LEN;
use lab_base::ggml::{KvBlocks, Result, ScoreOptions, Tensor};

impl UnitBuilder<'_, '_> {
    /// The attention of the rows of a grid: `q [dk, heads, n]` and new keys and values of all rows -> `[dv * heads, n]`.
    pub(super) fn attend_grid(
        &self,
        grid: RowGrid,
        q: &Tensor,
        rows: &KeyRows<'_>,
        (cache, scores): (&CacheOptions, &ScoreOptions<'_>),
    ) -> Result<Tensor> {
        let (g, n) = (self.g, grid.n_rows());
        let Some((k, v)) = rows.new else {
            return Err(super::refused(
                "attend",
                format!("{}: the rows of a tower have keys of their own", self.unit.path),
            ));
        };
        let v = v.unwrap_or(k);
        let rule = cache.grid_rule();
        let window = rule.cells;
        if !self.flash_attn || self.unit.device > 0 {
            return self.attend_inputs(grid, q, [k, v], (rule, scores));
        }
        let order = |x: &Tensor| match window {
            None if x.is_contiguous() => Ok(x.clone()),
            None => g.cont(x),
            Some(window) => {
                let places = self.input(DerivedInput::WindowRows(grid, window))?;
                self.in_order(x, &places)
            }
        };
        let (q, k, v) = (order(q)?, self.whole_blocks(&order(k)?)?, self.whole_blocks(&order(v)?)?);
        let blocks = KvBlocks {
            k: &k,
            v: &v,
            queries: &self.input(DerivedInput::Intervals(grid, rule))?,
            table: &self.input(DerivedInput::BlockTable(n.div_ceil(BLOCK_LEN)))?,
            block_len: BLOCK_LEN,
            selected: None,
            bias: None,
            whole: None,
        };
        let y = g.paged_attention(&q, &blocks, scores)?; // [dv, heads, n]
        let y = match window {
            None => y,
            Some(window) => {
                let places = self.input(DerivedInput::WindowPlaces(grid, window))?;
                self.in_order(&y, &places)?
            }
        };
        g.reshape(&y, [y.shape()[0] * y.shape()[1], n, 1, 1])
    }

    /// The rows of `x [d, heads, n]` at `places [n]`.
    fn in_order(&self, x: &Tensor, places: &Tensor) -> Result<Tensor> {
        let (g, [d, heads, n, _]) = (self.g, x.shape());
        let x = if x.is_contiguous() { x.clone() } else { g.cont(x)? };
        let rows = g.get_rows(&g.reshape(&x, [d * heads, n, 1, 1])?, places)?;
        g.reshape(&rows, [d, heads, n, 1])
    }

    /// `x [d, heads, n]` with rows of zeros up to a whole number of KV blocks, which attention reads whole.
    fn whole_blocks(&self, x: &Tensor) -> Result<Tensor> {
        let (g, [d, heads, n, _]) = (self.g, x.shape());
        let missing = n.next_multiple_of(BLOCK_LEN) - n;
        if missing == 0 {
            return Ok(x.clone());
        }
        let steps = x.strides();
        let first = g.view(x, [d, heads, 1, 1], [steps[1], steps[2], steps[3]], 0)?;
        let zeros = g.fill(&g.cont(&first)?, 0.0)?;
        let zeros = g.repeat(&zeros, [d, heads, missing, 1])?;
        g.concat(x, &zeros, 2)
    }

    /// [`Self::attend_grid`] by products of all rows of an input, with a mask where there are windows.
    fn attend_inputs(
        &self,
        grid: RowGrid,
        q: &Tensor,
        [k, v]: [&Tensor; 2],
        (rule, scores): (GridRule, &ScoreOptions<'_>),
    ) -> Result<Tensor> {
        let (g, n) = (self.g, grid.n_of_input());
        let of_inputs = |x: &Tensor, axes: [usize; 4]| {
            let x = if x.is_contiguous() { x.clone() } else { g.cont(x)? };
            let [d, heads, ..] = x.shape();
            let x = g.reshape(&x, [d, heads, n, grid.inputs])?;
            g.cont(&g.permute(&x, axes)?)
        };
        let mask = match rule.is_whole() {
            true => None,
            false => Some(self.input(DerivedInput::GridMask(grid, rule))?),
        };
        let (q, k) = (of_inputs(q, [0, 2, 1, 3])?, of_inputs(k, [0, 2, 1, 3])?); // [dk, n, heads, inputs]
        let v = of_inputs(v, [1, 2, 0, 3])?; // [n, dv, heads, inputs]
        let products = g.mul_mat(&k, &q)?; // [n, n, heads, inputs]
        let weights = g.soft_max(&products, mask.as_ref(), scores)?;
        let y = g.mul_mat(&v, &weights)?; // [dv, n, heads, inputs]
        let y = g.cont(&g.permute(&y, [0, 2, 1, 3])?)?;
        g.reshape(&y, [y.shape()[0] * y.shape()[1], grid.n_rows(), 1, 1])
    }
}
