//! Learned rows before the grid of each input of a tower, such as a class row, and their removal.
//!
//! `[n_embd, n_rows]` in. With `rows` the result has further rows, which come first in each input; without it, it has the cells of the
//! grid alone.

use super::build::UnitBuilder;
use super::context::DerivedInput;
use super::grid::RowGrid;
use super::refused;
use crate::arch::Contract;
use crate::weights;
use lab_base::ggml::{Result, Tensor};

pub(super) static CONTRACT: Contract = Contract {
    name: "learned_rows",
    title: "Learned rows",
    noun: "learned rows",
    phrase: "{has('rows'): learned rows before the grid | the rows of the grid alone}",
    summary: "Puts learned rows before the grid of each input of a tower, or removes all rows before the grid.",
    formula: "y = {has('rows'): rows, x | x without the rows before the grid}",
    weights: weights! {
        rows: Table "class_embd.weight" ["n_embd", "max(dim('rows', 1), 1)"] unless_forbidden, "the learned rows";
    },
    is_of_towers: true,
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
    let all = g.concat(x, &g.reshape(&rows, [n_embd, n, 1, 1])?, 1)?;
    let order = b.input(DerivedInput::Learned(grid, n))?;
    b.set_grid(RowGrid { before: n, ..grid });
    g.get_rows(&all, &order)
}
