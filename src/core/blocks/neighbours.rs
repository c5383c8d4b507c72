//! The cells of a window that moves over the grid of a tower's rows: side by side, their mean, or their sum by a kernel.
//!
//! ```text
//! concat    y[w] = x[c1], x[c2], ...              the cells of window w, by height and width
//! mean      y[w] = mean over the cells of x[c]
//! kernel    y[w] = sum over the cells of kernel[c] * x[c] + bias
//! ```
//! `[n_embd, n_rows]` in, a row for each window out. Windows side by side that leave a rest of the height or the width are refused. A convolution is `concat` and a matrix; a depthwise one is `kernel`. Cells outside
//! the grid are zeros.

use super::build::UnitBuilder;
use super::context::DerivedInput;
use super::grid::{GridWindow, RowGrid};
use super::refused;
use crate::arch::{Contract, RowWidth};
use crate::{choices, options, rules, weights};
use lab_base::ggml::{Result, Tensor};

choices! {
    /// What becomes of the cells of a window.
    pub(super) enum Kind {
        /// They stand side by side in one row.
        Concat = "concat",
        /// Their mean.
        Mean = "mean",
        /// The sum of their products with a kernel for each channel.
        Kernel = "kernel",
    }
}

options! {
    pub(super) struct Config {
        kind: Kind = "concat", "what becomes of the cells of a window: side by side (`concat`), their `mean`, or their sum by a `kernel` for each channel";
        height: u64 = "1", "cells of the window by height";
        width: u64 = "1", "cells of the window by width";
        step_height: u64 = "height", "cells from one window to the next by height";
        step_width: u64 = "width", "cells from one window to the next by width";
        pad_height: u64 = "0", "cells outside the grid at both ends by height";
        pad_width: u64 = "0", "cells outside the grid at both ends by width";
        end_width: u64 = "pad_width", "cells outside the grid at the end by width";
        drop_rest: bool = "false", "whether cells that fill no window at the end of the grid are left out, where windows are side by side; otherwise they are an error";
        masked: bool = "false", "whether cells after the valid ones of an input are zeros";
    }
}

pub(super) static CONTRACT: Contract = Contract {
    name: "neighbours",
    title: "Neighbours",
    noun: "neighbours",
    phrase: "windows of {=height} x {=width} cells, {kind == 'concat': side by side | {kind == 'mean': their mean | by a kernel}}",
    summary: "Makes one row of the cells of each window over the grid of a tower's rows.",
    formula: "y[w] = {kind == 'concat': x[c1], x[c2], .. | {kind == 'mean': mean(x[c]) | sum(kernel[c] * x[c]){has('kernel.bias'):  + bias}}}",
    options: Config::OPTIONS,
    weights: weights! {
        kernel: Convolution "neighbours.weight" ["n_embd", "height * width"] when("kind == 'kernel'"), "factor of each channel at each cell of a window";
        kernel.bias: Bias "neighbours.bias" ["n_embd"] optional when("kind == 'kernel'"), "vector that is added";
    },
    rows: RowWidth::To("if(kind == 'concat', height * width, 1) * n_embd"),
    is_of_towers: true,
    rules: rules! {
        "height > 0 and width > 0 and step_height > 0 and step_width > 0", "a window and its steps have at least one cell";
        "pad_height < height and pad_width < width and end_width < width", "a window has a cell of the grid";
    },
    ..Contract::BLOCK
};

pub(super) fn build(b: &mut UnitBuilder<'_, '_>, x: &Tensor) -> Result<Tensor> {
    let c = Config::read(&b.unit.options);
    let grid = b.grid()?;
    let window = GridWindow {
        size: [1, c.height, c.width],
        stride: [1, c.step_height, c.step_width],
        pad: [0, c.pad_height, c.pad_width],
        end: [0, c.pad_height, c.end_width],
        masked: c.masked,
    };
    // Blocks side by side are not a convolution, which may leave a rest.
    let rest = |axis: usize| {
        window.is_of_blocks(axis) && !grid.cells[axis].is_multiple_of(window.size[axis])
    };
    let fits = !grid.has_further() && (c.drop_rest || !rest(1) && !rest(2));
    let cells = window.result(grid.cells).filter(|_| fits);
    let Some((cells, valid)) = cells.zip(window.valid(&grid)) else {
        return Err(refused(
            "neighbours",
            format!("{}: {window:?} does not fit {grid:?}", b.unit.path),
        ));
    };
    let (g, len, n_embd) = (b.g, window.len(), x.shape()[0]);
    let result = RowGrid {
        cells,
        valid,
        ..grid
    };
    let n = result.n_rows();
    let padded;
    let all = match window.has_missing(&grid) {
        false => x,
        true => {
            padded = b.with_zeros(x)?;
            &padded
        }
    };
    let rows = b.input(DerivedInput::Neighbours(window, grid))?;
    let y = g.get_rows(all, &rows)?; // [n_embd, len * n]
    b.set_grid(result);
    match c.kind {
        Kind::Concat => g.reshape(&y, [n_embd * len, n, 1, 1]),
        Kind::Mean => {
            let y = summed(b, &g.reshape(&y, [n_embd, len, n, 1])?)?;
            g.scale(&y, 1.0 / len as f32)
        }
        Kind::Kernel => {
            let y = g.reshape(&y, [n_embd, len, n, 1])?;
            let y = g.mul(&y, &b.required_weight("kernel")?)?;
            b.with_bias("kernel.bias", summed(b, &y)?)
        }
    }
}

/// The sum over the cells of each window: `[n_embd, len, n]` to `[n_embd, n]`.
fn summed(b: &UnitBuilder<'_, '_>, x: &Tensor) -> Result<Tensor> {
    let (g, [n_embd, _, n, _]) = (b.g, x.shape());
    let by_cell = g.cont(&g.permute(x, [1, 0, 2, 3])?)?; // [len, n_embd, n]
    g.reshape(&g.sum_rows(&by_cell)?, [n_embd, n, 1, 1])
}
