//! Learned rows before or after the grid of each input of a tower, such as a class row or queries, or in the place of the cells of each
//! time; and the choice of rows that remain.
//!
//! `[n_embd, n_rows]` in. With `rows` the result has further rows, which come first or last in each input; without it, it has the rows of
//! one place alone, as cells of a grid. With `each` the result is the learned rows, once for each time: queries that read its cells.

use super::build::UnitBuilder;
use super::context::DerivedInput;
use super::grid::{RowGrid, RowPlace};
use super::refused;
use crate::arch::Contract;
use crate::{options, rules, weights};
use lab_base::ggml::{Result, Tensor};

options! {
    pub(super) struct Config {
        each: bool = "false", "whether the learned rows stand in the place of the cells of each time";
        place: RowPlace = "if(has('rows'), 'before', 'cells')", "where the learned rows stand, `before` or `after` the grid; without learned rows, the rows that remain: those `before` or `after` the grid, or its `cells`";
    }
}

pub(super) static CONTRACT: Contract = Contract {
    name: "learned_rows",
    title: "Learned rows",
    noun: "learned rows",
    phrase: "{each: learned rows for each time | {has('rows'): learned rows {=place} the grid | the rows of the grid alone (`{=place}`)}}",
    summary: "Puts learned rows before or after the grid of each input of a tower or in its place, or removes all rows but those of one place.",
    formula: "y = {each: rows | {has('rows'): rows and x | x at {=place}}}",
    options: Config::OPTIONS,
    weights: weights! {
        rows: Table "class_embd.weight" ["n_embd", "max(dim('rows', 1), 1)"] unless_forbidden, "the learned rows";
        small: Table "class_embd_small.weight" ["n_embd", "max(dim('small', 1), 1)"] optional when("has('rows')"), "the learned rows where a grid has no more cells than these are";
    },
    is_of_towers: true,
    rules: rules! {
        "not each or has('rows')", "learned rows for each time are stored";
        "not has('rows') or place != 'cells'", "learned rows stand before or after the grid";
    },
    ..Contract::BLOCK
};

pub(super) fn build(b: &mut UnitBuilder<'_, '_>, x: &Tensor) -> Result<Tensor> {
    let c = Config::read(&b.unit.options);
    let (g, grid) = (b.g, b.grid()?);
    let small = b
        .weight("small")
        .filter(|rows| grid.n_cells() <= rows.shape()[1]);
    let Some(rows) = small.or_else(|| b.weight("rows")) else {
        let n = grid.n_at(c.place);
        if n == 0 {
            return Err(refused(
                "learned_rows",
                format!("{}: no rows remain", b.unit.path),
            ));
        }
        let rows = b.input(DerivedInput::RowsAt(grid, c.place))?;
        let cells = if c.place == RowPlace::Cells {
            grid.cells
        } else {
            [1, 1, n]
        };
        b.set_grid(RowGrid::of_cells(grid.inputs, cells));
        return g.get_rows(x, &rows);
    };
    if grid.n_at(c.place) > 0 {
        return Err(refused(
            "learned_rows",
            format!(
                "{}: there are rows {:?} the grid already",
                b.unit.path, c.place
            ),
        ));
    }
    let [n_embd, n, ..] = rows.shape();
    let rows = super::cast(g, rows, lab_base::weights::TensorType::F32)?;
    let rows = g.reshape(&rows, [n_embd, n, 1, 1])?;
    if c.each {
        let times = grid.inputs * grid.cells[0];
        let y = g.repeat(&rows, [n_embd, n, times, 1])?;
        // The rows of a time stand for its valid cells: a time without one gives none.
        let n_valid = grid.valid.div_ceil(grid.cells[1] * grid.cells[2]) * n;
        b.set_grid(RowGrid {
            valid: n_valid,
            ..RowGrid::of_cells(grid.inputs, [grid.cells[0], 1, n])
        });
        return g.reshape(&y, [n_embd, n * times, 1, 1]);
    }
    let all = g.concat(x, &rows, 1)?;
    let at_start = c.place == RowPlace::Before;
    let order = b.input(DerivedInput::Learned(grid, n, at_start))?;
    b.set_grid(match at_start {
        true => RowGrid { before: n, ..grid },
        false => RowGrid { after: n, ..grid },
    });
    g.get_rows(&all, &order)
}
