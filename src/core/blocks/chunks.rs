//! The frames of a sound in chunks, which become the times of a tower's grid, and back.
//!
//! ```text
//! size > 0    [1, frames, bands] -> [chunks, size, bands]     frames after the last one are zeros
//! size == 0   [times, height, width] -> [1, 1, valid]         the valid cells alone, one after another
//! ```
//! `[n_embd, n_rows]` in and out. Without bands the frames lie by width. A row keeps its elements.

use super::build::UnitBuilder;
use super::context::DerivedInput;
use super::grid::RowGrid;
use super::refused;
use crate::arch::Contract;
use crate::options;
use lab_base::ggml::{Result, Tensor};

options! {
    pub(super) struct Config {
        size: u64 = "0", "frames of a chunk; 0: chunks are joined, without cells that are not valid";
    }
}

pub(super) static CONTRACT: Contract = Contract {
    name: "chunks",
    title: "Chunks",
    noun: "chunks",
    phrase: "{size > 0: chunks of {=size} frames | the valid rows of all chunks}",
    summary: "Cuts the frames of a sound into chunks, or joins them.",
    formula: "y = {size > 0: x in chunks | the valid rows of x}",
    options: Config::OPTIONS,
    is_of_towers: true,
    ..Contract::BLOCK
};

pub(super) fn build(b: &mut UnitBuilder<'_, '_>, x: &Tensor) -> Result<Tensor> {
    let size = Config::read(&b.unit.options).size;
    let (g, grid) = (b.g, b.grid()?);
    if size == 0 {
        let rows = b.input(DerivedInput::Valid(grid))?;
        b.set_grid(RowGrid::of_cells(grid.inputs, [1, 1, grid.valid]));
        return g.get_rows(x, &rows);
    }
    let Some(result) = grid.chunks(size) else {
        let message = format!("{}: {grid:?} is not one run of frames", b.unit.path);
        return Err(refused("chunks", message));
    };
    b.set_grid(result);
    let (n, padded) = (grid.n_of_input(), result.n_of_input());
    b.lengthened(x, n, padded)
}
