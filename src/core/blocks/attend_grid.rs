//! Attention among the rows of a tower: each row attends to the rows of its input, or to those of its window of the grid.

use super::attend::{DistanceKeys, KeyRows};
use super::build::{UnitBuilder, softcap};
use super::cache::CacheOptions;
use super::context::DerivedInput;
use super::grid::{GridRule, Resampling, Resize, RowGrid, RowParts};
use crate::arch::{CacheRef, WeightSpec};
use crate::plan::BLOCK_LEN;
use crate::weight;
use lab_base::ggml::{KvBlocks, Result, ScoreOptions, Tensor};
use lab_base::weights::TensorType;

/// The vectors of distances by height, whose product with the query is added to the score.
pub(super) const HEIGHTS_WEIGHT: WeightSpec = weight!(distance_height: Table "attn_distance_height.weight" ["dk", "max(dim('distance_height', 1), 1)"] optional, "in a tower: vectors of the distances by height, from the farthest key below to the farthest above; their products with the query are added to the scores");

/// The vectors of distances by width.
pub(super) const WIDTHS_WEIGHT: WeightSpec = weight!(distance_width: Table "attn_distance_width.weight" ["dk", "max(dim('distance_width', 1), 1)"] optional when("has('distance_height')"), "in a tower: vectors of the distances by width, as `distance_height`");

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
                format!(
                    "{}: the rows of a tower have keys of their own",
                    self.unit.path
                ),
            ));
        };
        let v = v.unwrap_or(k);
        let rule = GridRule::of(cache);
        let window = rule.cells;
        let distances = rows.distances.as_ref();
        let by_products = distances.is_some() || k.shape()[2] != n;
        if !self.flash_attn || self.unit.device > 0 || by_products {
            return self.attend_inputs(grid, [q, k, v], (rule, scores), distances);
        }
        let order = |x: &Tensor| match window {
            None => g.cont(x),
            Some(window) => {
                let places = self.input(DerivedInput::WindowRows(grid, window))?;
                self.in_order(x, &places)
            }
        };
        let (q, k, v) = (
            order(q)?,
            self.whole_blocks(&order(k)?)?,
            self.whole_blocks(&order(v)?)?,
        );
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

    /// The rows of a grid as those of windows, each an input of its own, if the cache has windows that are filled up: the grid, and the rows
    /// `[n_embd, n]` of the windows, with zeros where the grid has none.
    pub(super) fn enter_windows(
        &mut self,
        cache: CacheRef,
        x: &Tensor,
    ) -> Result<Option<(RowGrid, Tensor)>> {
        let (Some(at), Some(grid)) = (cache.0, self.grid) else {
            return Ok(None);
        };
        let cache = CacheOptions::read(&self.plan.caches[at].unit.options);
        if !cache.grid_filled {
            return Ok(None);
        }
        let window = [cache.grid_height, cache.grid_width];
        if grid.has_further() || window.contains(&0) {
            return Err(super::refused(
                "attend",
                format!(
                    "{}: windows of {window:?} do not fit {grid:?}",
                    self.unit.path
                ),
            ));
        }
        let rows = self.input(DerivedInput::FilledRows(grid, window))?;
        let filled = self.g.get_rows(&self.with_zeros(x)?, &rows)?;
        self.set_grid(grid.of_windows(window));
        Ok(Some((grid, filled)))
    }

    /// The rows `[n_embd, n]` of windows back at their places in a grid, without those that fill windows up.
    pub(super) fn leave_windows(&mut self, grid: RowGrid, y: &Tensor) -> Result<Tensor> {
        let [_, height, width] = self.grid()?.cells;
        let places = self.input(DerivedInput::FilledPlaces(grid, [height, width]))?;
        self.set_grid(grid);
        self.g.get_rows(y, &places)
    }

    /// `x [n_embd, n]` with a further row of zeros.
    pub(super) fn with_zeros(&self, x: &Tensor) -> Result<Tensor> {
        let (g, n_embd) = (self.g, x.shape()[0]);
        let first = g.view(
            x,
            [n_embd, 1, 1, 1],
            x.strides()[1..].try_into().expect("three"),
            0,
        )?;
        g.concat(x, &g.fill(&g.cont(&first)?, 0.0)?, 1)
    }

    /// Queries `[dk, heads, n]` and keys `[dk, kv_heads, n]`, lengthened so that their product times `scale` has the addend by distance
    /// (Li et al. 2022, decomposed relative positions). A query gets the addend of each height and of each width, a key ones at its own.
    pub(super) fn with_distances(
        &self,
        scale: f32,
        q: Tensor,
        k: Tensor,
    ) -> Result<(Tensor, Tensor)> {
        let (Some(heights), Some(widths)) = (
            self.weight(HEIGHTS_WEIGHT.key),
            self.weight(WIDTHS_WEIGHT.key),
        ) else {
            return Ok((q, k));
        };
        let (g, grid) = (self.g, self.grid()?);
        if grid.has_further() {
            return Err(super::refused(
                "attend",
                format!(
                    "{}: rows outside the grid have no distances",
                    self.unit.path
                ),
            ));
        }
        let [time, height, width] = grid.cells;
        let ([dk, heads, n, _], kv_heads) = (q.shape(), k.shape()[1]);
        let of_heights = self.distances(heights, height)?;
        let of_widths = self.distances(widths, width)?;
        let q = g.cont(&q)?;
        let rows = g.reshape(&q, [dk, heads * width, height, time * grid.inputs])?;
        let by_height = g.mul_mat(&of_heights, &rows)?; // [height, heads * width, height, ..]
        let rows = g.reshape(&q, [dk, heads, width, height * time * grid.inputs])?;
        let by_width = g.mul_mat(&of_widths, &rows)?; // [width, heads, width, ..]
        let by_height = g.reshape(&by_height, [height, heads, n, 1])?;
        let by_width = g.reshape(&by_width, [width, heads, n, 1])?;
        let addends = g.scale(&g.concat(&by_height, &by_width, 0)?, 1.0 / scale)?;
        let ones = self.input(DerivedInput::Indicators(grid))?;
        let ones = g.reshape(&ones, [height + width, 1, n, 1])?;
        let ones = g.repeat(&ones, [height + width, kv_heads, n, 1])?;
        Ok((g.concat(&q, &addends, 0)?, g.concat(&k, &ones, 0)?))
    }

    /// The vectors of each key and query of an axis of `n` places, `[dk, n, n]`, of a table `[dk, distances]`, which is resampled if it is
    /// for another number of places.
    fn distances(&self, table: &Tensor, n: u64) -> Result<Tensor> {
        let (g, [dk, from, ..]) = (self.g, table.shape());
        let mut table = super::cast(g, table, TensorType::F32)?;
        if from != 2 * n - 1 {
            let weights = self.input(DerivedInput::Resampling(Resampling {
                from,
                to: 2 * n - 1,
                kind: Resize::Bilinear,
                aligned: false,
                antialias: false,
            }))?;
            let by_distance = g.cont(&g.permute(&table, [1, 0, 2, 3])?)?; // [from, dk]
            table = g.mul_mat(&by_distance, &weights)?; // [dk, 2 n - 1]
            g.exact(&table)?;
        }
        let rows = self.input(DerivedInput::Distances(n))?;
        g.reshape(&g.get_rows(&table, &rows)?, [dk, n, n, 1])
    }

    /// The rows of `x [d, heads, n]` at `places [n]`.
    fn in_order(&self, x: &Tensor, places: &Tensor) -> Result<Tensor> {
        let (g, [d, heads, n, _]) = (self.g, x.shape());
        let rows = g.get_rows(&g.reshape(&g.cont(x)?, [d * heads, n, 1, 1])?, places)?;
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

    /// [`Self::attend_grid`] by products of all rows of an input, or of each of its windows where these are runs of rows, with a mask where
    /// rows do not attend to all. Keys of another grid are attended to by the rows of their time.
    fn attend_inputs(
        &self,
        grid: RowGrid,
        [q, k, v]: [&Tensor; 3],
        (rule, scores): (GridRule, &ScoreOptions<'_>),
        distances: Option<&DistanceKeys>,
    ) -> Result<Tensor> {
        let (g, [_, heads, n, _]) = (self.g, q.shape());
        let of_input = RowParts {
            len: grid.n_of_input(),
            n: grid.n_of_input(),
            cuts: grid.inputs,
        };
        let is_cross = k.shape()[2] != n;
        let windows = rule.cells.and_then(|cells| RowParts::of(&grid, cells));
        let (parts, mask) = match (is_cross, windows) {
            (true, _) => {
                let cuts = grid.inputs * grid.cells[0];
                let len = n / cuts.max(1);
                (RowParts { len, n: len, cuts }, None)
            }
            (false, Some(parts)) if parts.n % parts.len.max(1) == 0 => (parts, None),
            (false, Some(parts)) => (parts, Some(self.input(DerivedInput::PartMask(parts))?)),
            (false, None) if rule.is_whole() => (of_input, None),
            (false, None) => (
                of_input,
                Some(self.input(DerivedInput::GridMask(grid, rule))?),
            ),
        };
        let by_part = |x: &Tensor, axes: [usize; 4]| {
            let [d, heads, rows, _] = x.shape();
            let x = g.reshape(&g.cont(x)?, [d * heads, rows, 1, 1])?;
            let (n, padded) = (
                rows / parts.cuts,
                rows / parts.cuts * parts.padded() / parts.n,
            );
            let x = self.lengthened(&x, n, padded)?;
            let n_parts = parts.count() * parts.cuts;
            let x = g.reshape(&x, [d, heads, padded * parts.cuts / n_parts, n_parts])?;
            g.cont(&g.permute(&x, axes)?)
        };
        let (q, k) = (by_part(q, [0, 2, 1, 3])?, by_part(k, [0, 2, 1, 3])?); // [dk, len, heads, parts]
        let v = by_part(v, [1, 2, 0, 3])?; // [len, dv, heads, parts]
        let mut products = g.mul_mat(&k, &q)?; // [keys, len, heads, parts]
        if let Some(distances) = distances {
            products = g.add(&products, &self.distance_products(distances, &q)?)?;
        }
        let mut scores = *scores;
        if scores.softcap != 0.0 {
            products = softcap(g, &products, scores.scale, scores.softcap)?;
            (scores.scale, scores.softcap) = (1.0, 0.0);
        }
        let weights = g.soft_max(&products, mask.as_ref(), &scores)?;
        let y = g.mul_mat(&v, &weights)?; // [dv, len, heads, parts]
        let y = g.cont(&g.permute(&y, [0, 2, 1, 3])?)?;
        let width = y.shape()[0] * heads;
        let y = g.reshape(&y, [width, parts.padded(), parts.cuts, 1])?;
        let y = match parts.padded() == parts.n {
            true => y,
            false => {
                let steps = y.strides();
                let own = [width, parts.n, parts.cuts, 1];
                g.cont(&g.view(&y, own, [steps[1], steps[2], steps[3]], 0)?)?
            }
        };
        g.reshape(&y, [width, n, 1, 1])
    }

    /// The products of queries `q [dk, n, heads, parts]` with the key of the distance of each key of their part: `[n, n, heads, parts]`.
    fn distance_products(&self, distances: &DistanceKeys, q: &Tensor) -> Result<Tensor> {
        let (g, [dk, n, heads, parts]) = (self.g, q.shape());
        let [width, rows, ..] = distances.table.shape();
        let n_all = 2 * n - 1;
        let ids = self.input(DerivedInput::DistanceRows(n, rows, distances.zero))?;
        let keys = g.get_rows(&distances.table, &ids)?; // [dk * heads, 2 n - 1]
        let keys = g.reshape(&keys, [dk, width / dk, n_all, 1])?;
        let keys = g.cont(&g.permute(&keys, [0, 2, 1, 3])?)?;
        let all = g.mul_mat(&keys, q)?; // [2 n - 1, n, heads, parts]
        // Key k of query q has element n - 1 + k - q of the query's row, so each row starts one element earlier.
        let element = size_of::<f32>();
        let row = (n_all as usize - 1) * element;
        let steps = [row, all.strides()[2], all.strides()[3]];
        let skewed = g.view(
            &all,
            [n, n, heads, parts],
            steps,
            (n as usize - 1) * element,
        )?;
        g.cont(&skewed)
    }

    /// `x [width, n_rows]` with rows of zeros after each `n` rows, up to `padded`.
    pub(super) fn lengthened(&self, x: &Tensor, n: u64, padded: u64) -> Result<Tensor> {
        if n == padded {
            return Ok(x.clone());
        }
        let (g, [width, rows, ..]) = (self.g, x.shape());
        let cuts = rows / n;
        let x = g.reshape(
            &if x.is_contiguous() {
                x.clone()
            } else {
                g.cont(x)?
            },
            [width, n, cuts, 1],
        )?;
        let steps = x.strides();
        let first = g.view(&x, [width, 1, cuts, 1], [steps[1], steps[2], steps[3]], 0)?;
        let zeros = g.fill(&g.cont(&first)?, 0.0)?;
        let zeros = g.repeat(&zeros, [width, padded - n, cuts, 1])?;
        let all = g.concat(&x, &zeros, 1)?;
        g.reshape(&all, [width, padded * cuts, 1, 1])
    }
}
