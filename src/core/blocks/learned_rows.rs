//! Learned rows before the grid of each input of a tower, such as a class row, and their removal; or in the place of the cells of a time.
//!
//! `[n_embd, n_rows]` in. With `rows` the result has further rows, which come first in each input; without it, it has the cells of the
//! grid alone. With `each` the result is the learned rows, once for each time of the grid: queries that read its cells.

use super::build::UnitBuilder;
use super::context::DerivedInput;
use super::grid::RowGrid;
use super::refused;
use crate::arch::Contract;
use crate::{options, rules, weights};
use lab_base::ggml::{Result, Tensor};

options! {
    pub(super) struct Config {
        each: bool = "false", "whether the learned rows stand in the place of the cells of each time";
    }
}

pub(super) static CONTRACT: Contract = Contract {
    name: "learned_rows",
    title: "Learned rows",
    noun: "learned rows",
    phrase: "{each: learned rows for each time | {has('rows'): learned rows before the grid | the rows of the grid alone}}",
    summary: "Puts learned rows before the grid of each input of a tower, or removes all rows before the grid.",
    formula: "y = {each: rows | {has('rows'): rows, x | x without the rows before the grid}}",
    options: Config::OPTIONS,
    weights: weights! {
        rows: Table "class_embd.weight" ["n_embd", "max(dim('rows', 1), 1)"] unless_forbidden, "the learned rows";
    },
    is_of_towers: true,
    rules: rules! {
        "not each or has('rows')", "learned rows for each time are stored";
    },
    ..Contract::BLOCK
};

pub(super) fn build(b: &mut UnitBuilder<'_, '_>, x: &Tensor) -> Result<Tensor> {
    let (g, grid) = (b.g, b.grid()?);
    let Some(rows) = b.weight("rows") else {
        let cells = b.input(DerivedInput::Cells(grid))?;
        b.set_grid(RowGrid { before: 0, ..grid });
        return g.get_rows(x, &cells);
    };
    if grid.before > 0 {
        return Err(refused(
            "learned_rows",
            format!("{}: there are rows before the grid already", b.unit.path),
        ));
    }
    let [n_embd, n, ..] = rows.shape();
    let rows = super::cast(g, rows, lab_base::weights::TensorType::F32)?;
    let rows = g.reshape(&rows, [n_embd, n, 1, 1])?;
    if Config::read(&b.unit.options).each {
        let times = grid.inputs * grid.cells[0];
        let y = g.repeat(&rows, [n_embd, n, times, 1])?;
        // The rows of a time stand for its valid cells: a time without one gives none.
        let n_valid = grid.valid.div_ceil(grid.cells[1] * grid.cells[2]) * n;
        b.set_grid(RowGrid {
            cells: [grid.cells[0], 1, n],
            valid: n_valid,
            ..grid
        });
        return g.reshape(&y, [n_embd, n * times, 1, 1]);
    }
    let all = g.concat(x, &rows, 1)?;
    let order = b.input(DerivedInput::Learned(grid, n))?;
    b.set_grid(RowGrid { before: n, ..grid });
    g.get_rows(&all, &order)
}
