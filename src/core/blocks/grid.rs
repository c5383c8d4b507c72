//! The grid of a tower's rows, and the lists of rows that follow from it.
//!
//! A tower computes the rows of several inputs at once, all with the same grid. The rows of one input follow those of another; within an
//! input, `before` further rows (learned ones) come first, then the cells of the grid: by time, then by height, then by width, then `after`
//! further rows.

use super::cache::{CacheOptions, Window};
use crate::choices;

/// The rows of the inputs of a tower.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowGrid {
    /// Number of inputs.
    pub inputs: u64,
    /// Number of rows before the grid of each input.
    pub before: u64,
    /// Cells of the grid of each input: time, height, width.
    pub cells: [u64; 3],
    /// Number of rows after the grid of each input.
    pub after: u64,
    /// Number of valid cells, the first ones of each grid: the others pad it, and are not part of the result.
    pub valid: u64,
}

impl RowGrid {
    /// The cells of inputs, all valid and without further rows.
    pub fn of_cells(inputs: u64, cells: [u64; 3]) -> Self {
        Self {
            inputs,
            before: 0,
            cells,
            after: 0,
            valid: cells.iter().product(),
        }
    }

    /// Whether there are rows besides the cells.
    pub(crate) fn has_further(&self) -> bool {
        self.before + self.after > 0
    }

    /// Number of cells of one input.
    pub(crate) fn n_cells(&self) -> u64 {
        self.cells.iter().product()
    }

    /// Number of rows of one input.
    pub fn n_of_input(&self) -> u64 {
        self.before + self.n_cells() + self.after
    }

    /// Number of rows of all inputs.
    pub fn n_rows(&self) -> u64 {
        self.inputs * self.n_of_input()
    }

    /// The cells of an input as (time, height, width), in the order of their rows.
    fn each_cell(&self) -> impl Iterator<Item = [u64; 3]> + use<> {
        let [n_t, n_h, n_w] = self.cells;
        (0..n_t).flat_map(move |t| (0..n_h).flat_map(move |h| (0..n_w).map(move |w| [t, h, w])))
    }

    /// The positions by which rows are rotated, i32 `[4 * n_rows]`: those by the three axes, then zeros. The first cell is at `start`, rows
    /// outside the grid are at zero.
    pub(crate) fn positions(&self, axes: [Axis; 3], start: u64) -> Vec<i32> {
        let mut all = Vec::with_capacity(4 * self.n_rows() as usize);
        for axis in axes {
            let of_cell =
                |cell: [u64; 3]| axis.index().map_or(0, |axis| (cell[axis] + start) as i32);
            for _ in 0..self.inputs {
                all.extend((0..self.before).map(|_| 0));
                all.extend(self.each_cell().map(of_cell));
                all.extend((0..self.after).map(|_| 0));
            }
        }
        all.resize(4 * self.n_rows() as usize, 0);
        all
    }

    /// The row of each row within its input, by one axis or by all, i32 `[n_rows]`.
    pub(crate) fn table_rows(&self, axis: Axis) -> Vec<i32> {
        let of_input: Vec<i32> = match axis.index() {
            None => (0..self.n_of_input() as i32).collect(),
            Some(axis) => {
                let before = (0..self.before).map(|_| 0);
                let cells = self.each_cell().map(|cell| cell[axis] as i32);
                before
                    .chain(cells)
                    .chain((0..self.after).map(|_| 0))
                    .collect()
            }
        };
        let n = of_input.len() * self.inputs as usize;
        of_input.into_iter().cycle().take(n).collect()
    }

    /// The axis of the frames of a sound: height where the grid has bands by width, else width.
    pub(crate) fn frames(&self) -> usize {
        if self.cells[1] > 1 { 1 } else { 2 }
    }

    /// The grid of so many frames at each time; the frames after the last one of the grid are missing. None if frames are in several times
    /// already.
    pub(crate) fn chunks(&self, size: u64) -> Option<Self> {
        if self.cells[0] != 1 || self.has_further() || size == 0 {
            return None;
        }
        let mut cells = self.cells;
        cells[0] = cells[self.frames()].div_ceil(size);
        cells[self.frames()] = size;
        Some(Self { cells, ..*self })
    }

    /// The rows of the valid cells, i32.
    pub(crate) fn valid_rows(&self) -> Vec<i32> {
        let of_input = |input: u64| {
            let first = input * self.n_of_input() + self.before;
            (first..first + self.valid).map(|row| row as i32)
        };
        (0..self.inputs).flat_map(of_input).collect()
    }

    /// The rows of each input at these places alone, i32.
    pub(crate) fn rows_at(&self, place: RowPlace) -> Vec<i32> {
        let first = match place {
            RowPlace::Before => 0,
            RowPlace::Cells => self.before,
            RowPlace::After => self.before + self.n_cells(),
        };
        let of_input = |input: u64| {
            let first = input * self.n_of_input() + first;
            (first..first + self.n_at(place)).map(|row| row as i32)
        };
        (0..self.inputs).flat_map(of_input).collect()
    }

    /// Number of rows of one input at these places.
    pub(crate) fn n_at(&self, place: RowPlace) -> u64 {
        match place {
            RowPlace::Before => self.before,
            RowPlace::Cells => self.n_cells(),
            RowPlace::After => self.after,
        }
    }

    /// The rows of each input with `n` learned ones at its start or its end, which follow all rows: i32 `[n_rows + n * inputs]`.
    pub(crate) fn with_learned(&self, n: u64, at_start: bool) -> Vec<i32> {
        let of_input = |input: u64| {
            let learned = self.n_rows()..self.n_rows() + n;
            let own = input * self.n_of_input()..(input + 1) * self.n_of_input();
            let parts = if at_start {
                [learned, own]
            } else {
                [own, learned]
            };
            parts.into_iter().flatten().map(|row| row as i32)
        };
        (0..self.inputs).flat_map(of_input).collect()
    }

    /// A row for each input and window of the grid: the cells of a window are the cells of an input of its own.
    pub(crate) fn of_windows(&self, [height, width]: [u64; 2]) -> Self {
        let [time, h, w] = self.cells;
        let n = time * h.div_ceil(height.max(1)) * w.div_ceil(width.max(1));
        Self::of_cells(self.inputs * n, [1, height, width])
    }

    /// The row of each cell of [`Self::of_windows`], i32; the row after all others for a cell outside the grid.
    pub(crate) fn filled_rows(&self, window: [u64; 2]) -> Vec<i32> {
        let mut rows = vec![self.n_rows() as i32; self.of_windows(window).n_rows() as usize];
        for (row, place) in self.filled_places(window).into_iter().enumerate() {
            rows[place as usize] = row as i32;
        }
        rows
    }

    /// The cell of [`Self::of_windows`] of each row, i32 `[n_rows]`. There are no rows besides the cells.
    pub(crate) fn filled_places(&self, [height, width]: [u64; 2]) -> Vec<i32> {
        let [time, h, w] = self.cells;
        let [rows, columns] = [h.div_ceil(height.max(1)), w.div_ceil(width.max(1))];
        let place = |input: u64, [t, y, x]: [u64; 3]| {
            let window = ((input * time + t) * rows + y / height) * columns + x / width;
            ((window * height + y % height) * width + x % width) as i32
        };
        let of_input = |input: u64| self.each_cell().map(move |cell| place(input, cell));
        (0..self.inputs).flat_map(of_input).collect()
    }

    /// The rows of a table of distances for each pair of places along an axis: i32 `[n * n]`, those of the keys first. Row `n - 1` of the
    /// `2 n - 1` rows is distance 0, later rows are of keys before the query.
    pub(crate) fn distances(n: u64) -> Vec<i32> {
        (0..n)
            .flat_map(|q| (0..n).map(move |k| (q + n - 1 - k) as i32))
            .collect()
    }

    /// One for the height of each row and one for its width, `[height + width, n_rows]`; zeros elsewhere.
    pub(crate) fn indicators(&self) -> Vec<f32> {
        let [_, height, width] = self.cells;
        let mut all = vec![0.0; ((height + width) * self.n_rows()) as usize];
        let cells = (0..self.inputs).flat_map(|_| self.each_cell());
        for (row, [_, h, w]) in all.chunks_exact_mut((height + width) as usize).zip(cells) {
            row[h as usize] = 1.0;
            row[(height + w) as usize] = 1.0;
        }
        all
    }

    /// The interval of rows that each row attends to, with the rows of windows in the order of [`WindowOrder`]. i32 `[4, n_rows]`: see
    /// [`lab_base::ggml::KvBlocks::queries`].
    pub(crate) fn intervals(&self, rule: &GridRule) -> Vec<i32> {
        let n = self.n_of_input();
        let of_input: Vec<(u64, u64)> = match rule.cells {
            None => (0..n).map(|row| self.visible(rule, row)).collect(),
            Some(cells) => {
                let mut from = 0;
                let mut all = Vec::with_capacity(n as usize);
                for length in WindowOrder::new(self, cells).lengths {
                    all.extend((0..length).map(|_| (from, from + length)));
                    from += length;
                }
                all
            }
        };
        let rows = (0..self.inputs).flat_map(|input| {
            let first = input * n;
            (0..n).zip(&of_input).map(move |(row, (from, end))| {
                [0, first + row, first + from, first + end].map(|place| place as i32)
            })
        });
        rows.flatten().collect()
    }

    /// The interval of the rows of an input that row `q` attends to, without windows of the grid.
    fn visible(&self, rule: &GridRule, q: u64) -> (u64, u64) {
        let n = self.n_of_input();
        match rule.causal_after {
            true => (0, (q + 1).max(n - self.after)),
            false => rule.visible(q, n),
        }
    }

    /// 0 where a row of an input attends to another one, less than any score elsewhere: `[n_of_input, n_of_input]`, keys first.
    pub(crate) fn mask(&self, rule: &GridRule) -> Vec<f32> {
        let n = self.n_of_input();
        let window: Vec<usize> = match rule.cells {
            None => Vec::new(),
            Some(cells) => {
                let order = WindowOrder::new(self, cells);
                let lengths = order.lengths.iter().enumerate();
                let windows = lengths.flat_map(|(at, n)| std::iter::repeat_n(at, *n as usize));
                let mut of_row = vec![0; n as usize];
                for (row, window) in order.rows.iter().zip(windows) {
                    of_row[*row as usize] = window;
                }
                of_row
            }
        };
        let mut all = Vec::with_capacity((n * n) as usize);
        for q in 0..n {
            let (from, end) = self.visible(rule, q);
            all.extend((0..n).map(|k| {
                let is_near = match rule.cells {
                    None => (from..end).contains(&k),
                    Some(_) => window[q as usize] == window[k as usize],
                };
                if is_near { 0.0 } else { f32::NEG_INFINITY }
            }));
        }
        all
    }
}

/// Rows that attend to each other in equal parts: those of a time of each input, or of windows of it, the last of which may be smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowParts {
    /// Number of rows of a part.
    pub(crate) len: u64,
    /// Number of rows that are cut into parts, those of a time.
    pub(crate) n: u64,
    /// Number of such cuts.
    pub(crate) cuts: u64,
}

impl RowParts {
    /// The parts of a grid by windows of `[time, height, width]` cells; none if the windows are no runs of rows of one length.
    pub(crate) fn of(grid: &RowGrid, window: [u64; 3]) -> Option<Self> {
        let [n_t, height, width] = grid.cells;
        let all = |size: u64, n: u64| size == 0 || size >= n;
        let len = match (window[0], height) {
            (1, _) if all(window[1], height) && all(window[2], width) => height * width,
            (1, 1) => window[2],
            _ => return None,
        };
        let cuts = grid.inputs * n_t;
        (!grid.has_further()).then_some(Self {
            len,
            n: height * width,
            cuts,
        })
    }

    /// Number of parts of a cut.
    pub(crate) fn count(&self) -> u64 {
        self.n.div_ceil(self.len.max(1))
    }

    /// Number of rows of the parts of a cut, with missing ones.
    pub(crate) fn padded(&self) -> u64 {
        self.count() * self.len
    }

    /// 0 where a row of a part is attended to, less than any score where it is missing: `[len, len, 1, count * cuts]`, keys first.
    pub(crate) fn mask(&self) -> Vec<f32> {
        let of_part = |part: u64| {
            let present = self.n - part * self.len;
            let key = move |k: u64| if k < present { 0.0 } else { f32::NEG_INFINITY };
            (0..self.len).flat_map(move |_| (0..self.len).map(key))
        };
        let of_cut = |_| (0..self.count()).flat_map(of_part);
        (0..self.cuts).flat_map(of_cut).collect()
    }
}

/// The rows of an input that a row attends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GridRule {
    /// Whether a row attends only to its own and earlier rows.
    pub(crate) causal: bool,
    /// Rows of a window in the order of the rows; 0: none.
    pub(crate) size: u64,
    pub(crate) window: Window,
    /// Cells of a window of the grid: time, height, width; 0: all of that axis. None: no such windows.
    pub(crate) cells: Option<[u64; 3]>,
    /// Whether rows after the grid are visible to themselves and to later rows alone.
    pub(crate) causal_after: bool,
}

impl GridRule {
    /// The rows that a row attends to in a cache with these options.
    pub(super) fn of(options: &CacheOptions) -> Self {
        // A filled window is an input of its own.
        let has_sides = options.grid_height > 0 || options.grid_width > 0;
        let has_windows = has_sides && !options.grid_filled;
        Self {
            causal: options.causal,
            size: options.size,
            window: options.window,
            // Frames attend to those of their own time.
            cells: has_windows.then_some([1, options.grid_height, options.grid_width]),
            causal_after: options.causal_after,
        }
    }

    /// Whether all rows of an input attend to each other.
    pub(crate) fn is_whole(&self) -> bool {
        !self.causal && !self.causal_after && self.size == 0 && self.cells.is_none()
    }

    /// The interval of the `n` rows of an input that row `q` attends to, without windows of the grid.
    fn visible(&self, q: u64, n: u64) -> (u64, u64) {
        let options = CacheOptions {
            causal: self.causal,
            size: self.size,
            window: self.window,
            span: 0,
            alibi: 0.0,
            grid_height: 0,
            grid_width: 0,
            grid_filled: false,
            causal_after: false,
        };
        let range = options.visible(q as u32, n as u32);
        (u64::from(range.start), u64::from(range.end))
    }
}

/// The rows of a grid, window by window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WindowOrder {
    /// The row at each place of the order, i32 `[n_rows]`.
    pub(crate) rows: Vec<i32>,
    /// The place of each row in the order, i32 `[n_rows]`.
    pub(crate) places: Vec<i32>,
    /// Number of rows of each window of an input.
    pub(crate) lengths: Vec<u64>,
}

impl WindowOrder {
    /// The order of windows of `[time, height, width]` cells; windows at the ends of the grid are smaller. Rows before the grid are a
    /// window of their own, and so are those after it.
    pub(crate) fn new(grid: &RowGrid, window: [u64; 3]) -> Self {
        let window = [0, 1, 2].map(|axis| match window[axis] {
            0 => grid.cells[axis].max(1),
            n => n,
        });
        let steps = |axis: usize| grid.cells[axis].div_ceil(window[axis]);
        let (mut of_input, mut lengths) = (Vec::new(), Vec::new());
        if grid.before > 0 {
            of_input.extend(0..grid.before);
            lengths.push(grid.before);
        }
        for t in 0..steps(0) {
            for h in 0..steps(1) {
                for w in 0..steps(2) {
                    let from = [t * window[0], h * window[1], w * window[2]];
                    let end =
                        [0, 1, 2].map(|axis| (from[axis] + window[axis]).min(grid.cells[axis]));
                    let before = of_input.len();
                    for t in from[0]..end[0] {
                        for h in from[1]..end[1] {
                            let row = |w| grid.before + (t * grid.cells[1] + h) * grid.cells[2] + w;
                            of_input.extend((from[2]..end[2]).map(row));
                        }
                    }
                    lengths.push((of_input.len() - before) as u64);
                }
            }
        }
        if grid.after > 0 {
            of_input.extend(grid.n_of_input() - grid.after..grid.n_of_input());
            lengths.push(grid.after);
        }
        let mut rows = Vec::with_capacity(grid.n_rows() as usize);
        for input in 0..grid.inputs {
            rows.extend(
                of_input
                    .iter()
                    .map(|row| (input * grid.n_of_input() + row) as i32),
            );
        }
        let mut places = vec![0; rows.len()];
        for (place, row) in rows.iter().enumerate() {
            places[*row as usize] = place as i32;
        }
        Self {
            rows,
            places,
            lengths,
        }
    }
}

/// The axes of a grid by which a table is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// All: the row within its input.
    All,
    Time,
    Height,
    Width,
}

impl Axis {
    fn index(self) -> Option<usize> {
        match self {
            Self::All => None,
            Self::Time => Some(0),
            Self::Height => Some(1),
            Self::Width => Some(2),
        }
    }
}

/// A window that moves over a grid, as that of a convolution, by axis: time, height, width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GridWindow {
    /// Cells of the window.
    pub size: [u64; 3],
    /// Cells from one window to the next.
    pub stride: [u64; 3],
    /// Missing cells before the first cell.
    pub pad: [u64; 3],
    /// Missing cells after the last cell.
    pub end: [u64; 3],
    /// Whether cells that are not valid are missing too.
    pub masked: bool,
}

impl GridWindow {
    /// The cells of the grid of windows; none if a window does not fit.
    pub(crate) fn result(&self, cells: [u64; 3]) -> Option<[u64; 3]> {
        let mut out = [0; 3];
        for axis in 0..3 {
            out[axis] = self.along(axis, cells[axis])?;
        }
        Some(out)
    }

    /// Number of windows along an axis of so many cells; none if a window does not fit.
    fn along(&self, axis: usize, cells: u64) -> Option<u64> {
        let padded = cells + self.pad[axis] + self.end[axis];
        let rest = padded.checked_sub(self.size[axis])?;
        Some(rest / self.stride[axis].max(1) + 1)
    }

    /// Number of windows whose cells count as valid: those of a grid that ends with its last valid cell. None if valid cells end within a
    /// row of the grid, or within a time of which windows have several.
    pub(crate) fn valid(&self, grid: &RowGrid) -> Option<u64> {
        let out = self.result(grid.cells)?;
        let [_, height, width] = grid.cells;
        if grid.valid == grid.cells.iter().product::<u64>() {
            return Some(out.iter().product());
        }
        if (self.size[0], self.stride[0]) != (1, 1) || self.pad[0] + self.end[0] > 0 {
            return None;
        }
        let (times, rest) = (grid.valid / (height * width), grid.valid % (height * width));
        let windows = |axis: usize, n: u64| match n {
            0 => 0,
            n => self.along(axis, n).unwrap_or(0),
        };
        let rest = match grid.frames() {
            1 if rest % width == 0 => windows(1, rest / width) * out[2],
            2 => windows(2, rest) * out[1],
            _ => return None,
        };
        Some(times * out[1] * out[2] + rest)
    }

    /// Whether some window has a missing cell.
    pub(crate) fn has_missing(&self, grid: &RowGrid) -> bool {
        let is_cut = self.masked && grid.valid < grid.cells.iter().product();
        is_cut || self.pad != [0; 3] || self.end != [0; 3]
    }

    /// Whether the windows stand side by side along an axis.
    pub(crate) fn is_of_blocks(&self, axis: usize) -> bool {
        self.size[axis] == self.stride[axis] && (self.pad[axis], self.end[axis]) == (0, 0)
    }

    /// Number of cells of a window.
    pub(crate) fn len(&self) -> u64 {
        self.size.iter().product()
    }

    /// Number of cells of all windows over a grid.
    pub(crate) fn n_cells(&self, grid: &RowGrid) -> u64 {
        let windows = self.result(grid.cells).unwrap_or_default();
        grid.inputs * windows.iter().product::<u64>() * self.len()
    }

    /// The rows of the cells of each window, window by window; the row after all others stands for a missing cell. i32
    /// `[len * windows]`.
    pub(crate) fn rows(&self, grid: &RowGrid) -> Vec<i32> {
        let windows = RowGrid::of_cells(1, self.result(grid.cells).unwrap_or_default());
        let cells = RowGrid::of_cells(1, self.size);
        let n_present = if self.masked { grid.valid } else { u64::MAX };
        let missing = grid.n_rows() as i32;
        let mut all = Vec::with_capacity((grid.inputs * windows.n_rows() * self.len()) as usize);
        for input in 0..grid.inputs {
            let first = input * grid.n_of_input() + grid.before;
            for at in windows.each_cell() {
                for inner in cells.each_cell() {
                    let place = [0, 1, 2].map(|axis| {
                        let place = at[axis] * self.stride[axis] + inner[axis];
                        let place = place.checked_sub(self.pad[axis])?;
                        (place < grid.cells[axis]).then_some(place)
                    });
                    all.push(match place {
                        [Some(t), Some(h), Some(w)] => {
                            let cell = (t * grid.cells[1] + h) * grid.cells[2] + w;
                            if cell < n_present {
                                (first + cell) as i32
                            } else {
                                missing
                            }
                        }
                        _ => missing,
                    });
                }
            }
        }
        all
    }
}

choices! {
    /// Rows of an input.
    pub enum RowPlace {
        /// The rows before the grid.
        Before = "before",
        /// The cells of the grid.
        Cells = "cells",
        /// The rows after the grid.
        After = "after",
    }
}

choices! {
    /// How a table of positions is made to fit a grid of another size.
    pub(crate) enum Resize {
        /// Not at all: the grid has the size of the table.
        None = "none",
        /// Each cell has the position of the nearest cell at or before its place.
        Nearest = "nearest",
        /// Linear in both directions.
        Bilinear = "bilinear",
        /// Cubic in both directions (Keys 1981, a = -0.75).
        Bicubic = "bicubic",
    }
}

/// The weights by which one axis of a table is resampled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Resampling {
    /// Number of cells of the table.
    pub from: u64,
    /// Number of cells of the grid.
    pub to: u64,
    pub(crate) kind: Resize,
    /// Whether the first and last cells of both coincide.
    pub(crate) aligned: bool,
    /// Whether the kernel is widened where the grid is smaller than the table.
    pub(crate) antialias: bool,
}

impl Resampling {
    /// The weights `[from, to]`: a row for each cell of the grid.
    pub(crate) fn weights(&self) -> Vec<f32> {
        let (from, to) = (self.from as usize, self.to as usize);
        let mut out = vec![0.0f32; from * to];
        if self.kind == Resize::Nearest {
            for (cell, row) in out.chunks_exact_mut(from.max(1)).enumerate() {
                row[cell * from / to] = 1.0;
            }
            return out;
        }
        let scale = match self.aligned {
            true if to > 1 => (from as f64 - 1.0) / (to as f64 - 1.0),
            true => 0.0,
            false => from as f64 / to as f64,
        };
        let spread = if self.antialias { scale.max(1.0) } else { 1.0 };
        let kernel = |x: f64| -> f64 {
            let x = x.abs();
            match self.kind {
                Resize::None | Resize::Nearest => f64::from(u8::from(x < 0.5)),
                Resize::Bilinear => (1.0 - x).max(0.0),
                Resize::Bicubic => {
                    // With a widened kernel the usual choice is a = -0.5.
                    let a = if self.antialias { -0.5 } else { -0.75 };
                    match x {
                        x if x <= 1.0 => ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0,
                        x if x < 2.0 => a * (((x - 5.0) * x + 8.0) * x - 4.0),
                        _ => 0.0,
                    }
                }
            }
        };
        let reach = match self.kind {
            Resize::Bicubic => 2.0,
            _ => 1.0,
        } * spread;
        for (cell, row) in out.chunks_exact_mut(from.max(1)).enumerate() {
            let at = match self.aligned {
                true => scale * cell as f64,
                false => scale * (cell as f64 + 0.5) - 0.5,
            };
            // Linear interpolation does not reach before the first cell.
            let at = match self.kind {
                Resize::Bilinear if !self.antialias => at.max(0.0),
                _ => at,
            };
            let (first, last) = ((at - reach).ceil() as i64, (at + reach).floor() as i64);
            let weights = |place: i64| kernel((place as f64 - at) / spread);
            let inside = |place: i64| (0..from as i64).contains(&place);
            // A widened kernel is cut at the ends and sums to one; otherwise the end cells are repeated.
            let sum: f64 = match self.antialias {
                true => (first..=last).filter(|p| inside(*p)).map(weights).sum(),
                false => 1.0,
            };
            for place in first..=last {
                if self.antialias && !inside(place) {
                    continue;
                }
                let target = place.clamp(0, from as i64 - 1) as usize;
                row[target] += (weights(place) / sum) as f32;
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(before: u64, after: u64) -> RowGrid {
        RowGrid {
            before,
            after,
            ..RowGrid::of_cells(2, [1, 2, 3])
        }
    }

    const WHOLE: GridRule = GridRule {
        causal: false,
        size: 0,
        window: Window::Standard,
        cells: None,
        causal_after: false,
    };

    #[test]
    fn rows_outside_the_grid_are_at_zero_and_cells_at_their_places() {
        let positions = grid(1, 1).positions([Axis::Time, Axis::Width, Axis::Height], 1);
        let [by_time, by_width, by_height, rest] =
            [0, 1, 2, 3].map(|i| &positions[i * 16..i * 16 + 8]);
        assert_eq!(by_time, [0, 1, 1, 1, 1, 1, 1, 0]);
        assert_eq!(by_width, [0, 1, 2, 3, 1, 2, 3, 0]);
        assert_eq!(by_height, [0, 1, 1, 1, 2, 2, 2, 0]);
        assert_eq!(rest, [0; 8]);
        // The second input has the same positions.
        assert_eq!(positions[24..32], positions[16..24]);
    }

    #[test]
    fn learned_rows_come_first_or_last_in_each_input() {
        let plain = grid(0, 0);
        assert_eq!(
            plain.with_learned(1, true),
            [12, 0, 1, 2, 3, 4, 5, 12, 6, 7, 8, 9, 10, 11]
        );
        let at_end = [0, 1, 2, 3, 4, 5, 12, 13, 6, 7, 8, 9, 10, 11, 12, 13];
        assert_eq!(plain.with_learned(2, false), at_end);
    }

    #[test]
    fn the_rows_of_a_place_are_those_of_each_input() {
        let grid = grid(1, 2);
        assert_eq!(grid.rows_at(RowPlace::Before), [0, 9]);
        assert_eq!(
            grid.rows_at(RowPlace::Cells),
            [1, 2, 3, 4, 5, 6, 10, 11, 12, 13, 14, 15]
        );
        assert_eq!(grid.rows_at(RowPlace::After), [7, 8, 16, 17]);
    }

    #[test]
    fn a_row_after_the_grid_is_visible_to_itself_and_to_later_rows_alone() {
        let (grid, rule) = (
            RowGrid {
                inputs: 2,
                ..grid(0, 2)
            },
            GridRule {
                causal_after: true,
                ..WHOLE
            },
        );
        let ends = [6, 6, 6, 6, 6, 6, 7, 8];
        let intervals = grid.intervals(&rule);
        for (row, interval) in intervals.chunks_exact(4).enumerate() {
            let first = row / 8 * 8;
            let expected = [0, row, first, first + ends[row % 8]];
            assert_eq!(interval, expected.map(|n| n as i32), "row {row}");
        }
        let mask = grid.mask(&rule);
        for (row, of_row) in mask.chunks_exact(8).enumerate() {
            let visible = of_row.iter().filter(|v| **v == 0.0).count();
            assert_eq!(visible, ends[row], "row {row}");
        }
        assert!(!rule.is_whole() && WHOLE.is_whole());
    }

    #[test]
    fn windows_are_filled_up_and_emptied_again() {
        let grid = RowGrid::of_cells(2, [1, 3, 3]);
        let windows = grid.of_windows([2, 2]);
        assert_eq!(windows, RowGrid::of_cells(8, [1, 2, 2]));
        let rows = grid.filled_rows([2, 2]);
        assert_eq!(
            rows[..16],
            [0, 1, 3, 4, 2, 18, 5, 18, 6, 7, 18, 18, 8, 18, 18, 18]
        );
        let places = grid.filled_places([2, 2]);
        for (row, place) in places.iter().enumerate() {
            assert_eq!(rows[*place as usize], row as i32);
        }
    }

    #[test]
    fn windows_of_the_grid_are_one_after_another_and_smaller_at_its_ends() {
        let grid = RowGrid {
            after: 1,
            ..RowGrid::of_cells(1, [1, 3, 3])
        };
        let order = WindowOrder::new(&grid, [1, 2, 2]);
        assert_eq!(order.rows, [0, 1, 3, 4, 2, 5, 6, 7, 8, 9]);
        assert_eq!(order.lengths, [4, 2, 2, 1, 1]);
    }

    #[test]
    fn distances_and_places_of_an_axis() {
        assert_eq!(RowGrid::distances(3), [2, 1, 0, 3, 2, 1, 4, 3, 2]);
        let ones = RowGrid::of_cells(1, [1, 2, 2]).indicators();
        let rows: Vec<&[f32]> = ones.chunks_exact(4).collect();
        assert_eq!(
            rows,
            [
                [1., 0., 1., 0.],
                [1., 0., 0., 1.],
                [0., 1., 1., 0.],
                [0., 1., 0., 1.]
            ]
        );
    }

    #[test]
    fn a_window_reads_the_row_after_all_others_outside_the_grid() {
        let window = GridWindow {
            size: [1, 3, 1],
            stride: [1, 2, 1],
            pad: [0, 1, 0],
            end: [0, 1, 0],
            masked: false,
        };
        let grid = RowGrid::of_cells(1, [1, 4, 1]);
        assert_eq!(window.result(grid.cells), Some([1, 2, 1]));
        assert_eq!(window.rows(&grid), [4, 0, 1, 1, 2, 3]);
        let large = GridWindow {
            size: [1, 7, 1],
            ..window
        };
        assert_eq!(large.result(grid.cells), None);
    }

    /// The weights of `torch.nn.functional.interpolate` (2.15, in double precision), cell by cell of the result.
    #[test]
    fn resampling_has_the_weights_of_torch() {
        let of = |from, to, kind, aligned, antialias| Resampling {
            from,
            to,
            kind,
            aligned,
            antialias,
        };
        use Resize::{Bicubic, Bilinear, Nearest};
        let cases: [(Resampling, &[f32]); 8] = [
            (
                of(5, 3, Bilinear, false, false),
                &[
                    0.6666667, 0.3333333, 0., 0., 0., 0., 0., 1., 0., 0., 0., 0., 0., 0.3333333,
                    0.6666667,
                ],
            ),
            (
                of(3, 5, Bilinear, false, false),
                &[
                    1., 0., 0., 0.6, 0.4, 0., 0., 1., 0., 0., 0.4, 0.6, 0., 0., 1.,
                ],
            ),
            (
                of(3, 5, Bilinear, true, false),
                &[
                    1., 0., 0., 0.5, 0.5, 0., 0., 1., 0., 0., 0.5, 0.5, 0., 0., 1.,
                ],
            ),
            (
                of(5, 3, Bilinear, false, true),
                &[
                    0.5714286, 0.4285714, 0., 0., 0., 0., 0.2222222, 0.5555556, 0.2222222, 0., 0.,
                    0., 0., 0.4285714, 0.5714286,
                ],
            ),
            (
                of(3, 5, Bicubic, false, false),
                &[
                    1.096, -0.096, 0., 0.612, 0.46, -0.072, 0., 1., 0., -0.072, 0.46, 0.612, 0.,
                    -0.096, 1.096,
                ],
            ),
            (
                of(6, 4, Bicubic, false, false),
                &[
                    0.7734375, 0.2617188, -0.0351562, 0., 0., 0., -0.0351562, 0.2617188, 0.8789062,
                    -0.1054688, 0., 0., 0., 0., -0.1054688, 0.8789062, 0.2617188, -0.0351562, 0.,
                    0., 0., -0.0351562, 0.2617188, 0.7734375,
                ],
            ),
            (
                of(6, 4, Bicubic, false, true),
                &[
                    0.6553398, 0.3932039, -0.0404531, -0.0080906, 0., 0., -0.0382848, 0.3721286,
                    0.6202144, 0.0872894, -0.0413476, 0., 0., -0.0413476, 0.0872894, 0.6202144,
                    0.3721286, -0.0382848, 0., 0., -0.0080906, -0.0404531, 0.3932039, 0.6553398,
                ],
            ),
            // The cell at or before the place: 0, 5/3 and 10/3 of 5.
            (
                of(5, 3, Nearest, false, false),
                &[1., 0., 0., 0., 0., 0., 1., 0., 0., 0., 0., 0., 0., 1., 0.],
            ),
        ];
        for (of, expected) in cases {
            let found = of.weights();
            assert_eq!(found.len(), expected.len(), "{of:?}");
            for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
                assert!(
                    (found - expected).abs() < 2e-7,
                    "{of:?} at {at}: {found} and {expected}"
                );
            }
        }
    }

    /// A convolution along one axis.
    fn along(axis: usize, size: u64, stride: u64, pad: u64) -> GridWindow {
        let of = |n: u64, otherwise: u64| {
            let mut all = [otherwise; 3];
            all[axis] = n;
            all
        };
        GridWindow {
            size: of(size, 1),
            stride: of(stride, 1),
            pad: of(pad, 0),
            end: of(pad, 0),
            masked: false,
        }
    }

    #[test]
    fn as_many_windows_are_valid_as_the_valid_frames_alone_have() {
        for n in 1..=20 {
            for valid in 1..=n {
                for (axis, cells) in [(2, [1, 1, n]), (1, [1, n, 4])] {
                    let alone = |n: u64| {
                        RowGrid::of_cells(2, if axis == 2 { [1, 1, n] } else { [1, n, 4] })
                    };
                    let grid = RowGrid {
                        valid: alone(valid).valid,
                        ..RowGrid::of_cells(2, cells)
                    };
                    if grid.frames() != axis {
                        continue;
                    }
                    for (size, stride, pad) in [(3, 1, 1), (3, 2, 1), (2, 2, 0), (4, 4, 0)] {
                        let window = along(axis, size, stride, pad);
                        let expected = window.result(alone(valid).cells);
                        let expected = expected.map_or(0, |cells| cells.iter().product());
                        if window.result(cells).is_some() {
                            assert_eq!(window.valid(&grid), Some(expected), "{grid:?} {window:?}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn valid_windows_of_chunks_are_those_of_whole_chunks_and_of_the_rest() {
        // 2 chunks of 100 frames and 26 of a third one, then three convolutions that halve: 13 + 13 + 4.
        let frames = RowGrid {
            valid: 226 * 8,
            ..RowGrid::of_cells(1, [1, 300, 8])
        };
        let mut grid = frames.chunks(100).expect("a run of frames");
        assert_eq!((grid.cells, grid.valid), ([3, 100, 8], 226 * 8));
        for _ in 0..3 {
            let window = GridWindow {
                size: [1, 3, 3],
                stride: [1, 2, 2],
                pad: [0, 1, 1],
                end: [0, 1, 1],
                masked: false,
            };
            grid = RowGrid {
                cells: window.result(grid.cells).expect("it fits"),
                valid: window.valid(&grid).expect("it fits"),
                ..grid
            };
        }
        assert_eq!((grid.cells, grid.valid), ([3, 13, 1], 30));
        assert_eq!(grid.valid_rows(), (0..30).collect::<Vec<i32>>());
        assert_eq!(grid.chunks(2), None);
    }

    #[test]
    fn masked_windows_read_no_cell_after_the_valid_ones() {
        let grid = RowGrid {
            valid: 3,
            ..RowGrid::of_cells(2, [1, 1, 5])
        };
        let open = along(2, 3, 2, 1);
        assert!(open.has_missing(&grid));
        assert_eq!(open.rows(&grid)[..9], [10, 0, 1, 1, 2, 3, 3, 4, 10]);
        let masked = GridWindow {
            masked: true,
            ..open
        };
        assert_eq!(masked.rows(&grid)[..9], [10, 0, 1, 1, 2, 10, 10, 10, 10]);
        assert_eq!(masked.rows(&grid)[9..], [10, 5, 6, 6, 7, 10, 10, 10, 10]);
        let inner = GridWindow {
            masked: true,
            ..along(2, 1, 1, 0)
        };
        assert!(inner.has_missing(&grid) && !inner.has_missing(&RowGrid::of_cells(2, [1, 1, 5])));
    }

    #[test]
    fn parts_are_the_windows_of_rows_that_follow_each_other() {
        let grid = RowGrid::of_cells(2, [3, 1, 5]);
        let parts = RowParts::of(&grid, [1, 0, 2]).expect("runs of rows");
        assert_eq!(
            (parts.len, parts.count(), parts.cuts, parts.padded()),
            (2, 3, 6, 6)
        );
        let order = WindowOrder::new(&grid, [1, 0, 2]);
        let lengths: Vec<u64> = order.lengths.iter().copied().take(3).collect();
        let mask = parts.mask();
        assert_eq!(mask.len(), 2 * 2 * 18);
        for (part, n) in (0..18).zip(lengths.iter().cycle()) {
            let keys: Vec<bool> = mask[part * 4..][..4].iter().map(|x| *x == 0.0).collect();
            assert_eq!(keys, [true, *n == 2, true, *n == 2], "{part}");
        }
        let all = RowParts::of(&grid, [1, 0, 0]).expect("times");
        assert_eq!((all.len, all.count(), all.cuts), (5, 1, 6));
        assert_eq!(
            RowParts::of(&RowGrid::of_cells(1, [1, 4, 4]), [1, 2, 2]),
            None
        );
    }
}
