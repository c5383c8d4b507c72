//! Learned positions of a tower's rows: `y = table[row]`, where the table is resampled to the size of the grid.
//!
//! `[n_embd, n_rows]` in and out. The table `[n_embd, n]` has a row for each row before the grid, then one for each cell, or one for each
//! place along an axis. With `resize` it is a square, resampled along each axis; the weights follow from the sizes alone.

use super::build::UnitBuilder;
use super::context::DerivedInput;
use super::grid::{Axis, Resampling, Resize, RowGrid};
use super::refused;
use crate::arch::Contract;
use crate::{choices, options, rules, weights};
use lab_base::ggml::{Result, Tensor};

choices! {
    /// What a row of a table belongs to.
    pub(super) enum TableAxis {
        /// A row of an input.
        All = "all",
        /// A place along the height of the grid.
        Height = "height",
        /// A place along its width.
        Width = "width",
    }
}

impl TableAxis {
    fn of_grid(self) -> Axis {
        match self {
            Self::All => Axis::All,
            Self::Height => Axis::Height,
            Self::Width => Axis::Width,
        }
    }
}

options! {
    pub(super) struct Config {
        axis: TableAxis = "all", "what a row of the table belongs to: a row of an input (`all`), or a place along `height` or `width`";
        resize: Resize = "none", "how a square table is resampled to the grid: `none`, `nearest`, `bilinear` or `bicubic`";
        aligned: bool = "false", when "resize != 'none'", "whether the first and last cells of table and grid coincide";
        antialias: bool = "false", when "resize != 'none'", "whether the kernel is widened where the grid is smaller than the table";
        cells: u64 = "0", when "resize != 'none'", "cells of a side of the square table";
    }
}

pub(super) static CONTRACT: Contract = Contract {
    name: "grid_positions",
    title: "Grid positions",
    noun: "learned positions",
    phrase: "learned positions{resize != 'none': , resampled (`{=resize}`) | {axis != 'all':  by {=axis}}}",
    summary: "Returns the learned position of each row of a tower.",
    formula: "y = {resize != 'none': resample(table)[row] | table[row]}",
    options: Config::OPTIONS,
    weights: weights! {
        table: Table "position_embd.weight" ["n_embd", "if(dim('table', 1) > 0, dim('table', 1), if(cells > 0, cells * cells, 64))"], "position embeddings";
    },
    is_of_towers: true,
    rules: rules! {
        "resize == 'none' or axis == 'all' and cells > 0", "a table that is resampled is a square for all axes";
        "resize == 'none' or dim('table', 1) == 0 or dim('table', 1) == cells * cells", "the table has `cells * cells` rows";
    },
    ..Contract::BLOCK
};

pub(super) fn build(b: &mut UnitBuilder<'_, '_>, x: &Tensor) -> Result<Tensor> {
    let c = Config::read(&b.unit.options);
    let grid = b.grid()?;
    if c.resize == Resize::None {
        let n = b.required_weight("table")?.shape()[1];
        let of_axis = grid.table_rows(c.axis.of_grid());
        let n_needed = of_axis
            .into_iter()
            .max()
            .map_or(0, |last| i64::from(last) + 1);
        if n_needed > n as i64 {
            return Err(refused(
                "grid_positions",
                format!(
                    "{}: the picture or sound needs {n_needed} positions, and the table has {n}",
                    b.unit.path
                ),
            ));
        }
        let rows = b.input(DerivedInput::GridRows(grid, c.axis.of_grid(), n))?;
        return b.table_rows("table", &rows);
    }
    if grid.has_further() {
        return Err(refused(
            "grid_positions",
            format!("{}: rows outside the grid have no cells", b.unit.path),
        ));
    }
    let y = resampled(b, &c, &grid)?; // [n_embd, h * w]
    let repeats = grid.inputs * grid.cells[0];
    b.g.repeat(&y, [x.shape()[0], y.shape()[1], repeats, 1])
        .and_then(|y| b.g.reshape(&y, [x.shape()[0], grid.n_rows(), 1, 1]))
}

/// The table resampled to the cells of a grid, `[n_embd, height * width]`.
fn resampled(b: &UnitBuilder<'_, '_>, c: &Config, grid: &RowGrid) -> Result<Tensor> {
    let (g, side) = (b.g, c.cells);
    let [_, height, width] = grid.cells;
    let along = |to: u64| {
        b.input(DerivedInput::Resampling(Resampling {
            from: side,
            to,
            kind: c.resize,
            aligned: c.aligned,
            antialias: c.antialias,
        }))
    };
    let table = b.required_weight("table")?;
    let n_embd = table.shape()[0];
    let table = super::cast(g, &table, lab_base::weights::TensorType::F32)?;
    let table = g.reshape(&table, [n_embd, side, side, 1])?; // [n_embd, w, h]
    let by_width = g.cont(&g.permute(&table, [1, 0, 2, 3])?)?; // [w, n_embd, h]
    let y = g.mul_mat(&along(width)?, &by_width)?; // [width, n_embd, h]
    g.exact(&y)?;
    let by_height = g.cont(&g.permute(&y, [1, 2, 0, 3])?)?; // [h, width, n_embd]
    let y = g.mul_mat(&along(height)?, &by_height)?; // [height, width, n_embd]
    g.exact(&y)?;
    let y = g.cont(&g.permute(&y, [2, 1, 0, 3])?)?; // [n_embd, width, height]
    g.reshape(&y, [n_embd, width * height, 1, 1])
}
