//! Inputs that follow from tokens and positions, or from options alone, made when blocks ask for them.

use std::cell::RefCell;
use std::collections::HashMap;

use crate::blocks::position_bias::distance_rows;
use crate::blocks::{
    Axis, DerivedInput, DerivedInputs, RowGrid, SwitchCounts, WindowOrder, hadamard,
};
use lab_base::ggml::{Executor, Graph, Result, Tensor};
use lab_base::weights::TensorType;

use super::super::batch::Batch;
use super::super::cache::{NOBODY, SequenceId};

/// Knowledge of the sequences of a list of tokens.
pub(super) trait TokenLookup {
    /// The place from which the positions of a sequence count.
    fn first(&self, sequence: SequenceId) -> u32;
    /// The token at a place of a sequence, read in this pass or before it.
    fn token(&self, sequence: SequenceId, place: u32) -> Option<u32>;

    /// The positions by which a token at a position of a sequence is rotated: time, height, width.
    fn rotated(&self, _: SequenceId, position: u32) -> [u32; 3] {
        [position; 3]
    }
}

/// The derived inputs of a graph.
pub(crate) struct DerivedTensors {
    /// Prefix of the names of the tensors.
    prefix: &'static str,
    n_tokens: u64,
    /// The inputs that blocks have asked for.
    made: RefCell<Vec<(DerivedInput, Tensor)>>,
}

impl DerivedTensors {
    /// No inputs yet, for a pass of `n_tokens` tokens.
    pub(crate) fn new(prefix: &'static str, n_tokens: u64) -> Self {
        Self {
            prefix,
            n_tokens,
            made: RefCell::default(),
        }
    }

    /// Writes the inputs of a tower, which follow from its grid alone.
    pub(crate) fn write_of_grid(&self, executor: &mut Executor) -> Result<()> {
        struct NoTokens;
        impl TokenLookup for NoTokens {
            fn first(&self, _: SequenceId) -> u32 {
                0
            }

            fn token(&self, _: SequenceId, _: u32) -> Option<u32> {
                None
            }
        }
        self.write(executor, &Batch::default(), &NoTokens)
    }

    /// Whether any of them follows from tokens, and not from their places alone.
    pub(super) fn follow_from_tokens(&self) -> bool {
        self.made.borrow().iter().any(|(input, _)| {
            matches!(
                input,
                DerivedInput::Ngrams(..) | DerivedInput::Adapters(_) | DerivedInput::StandIns(..)
            )
        })
    }

    pub(super) fn write(
        &self,
        executor: &mut Executor,
        batch: &Batch,
        known: &dyn TokenLookup,
    ) -> Result<()> {
        let made = self.made.borrow();
        for (input, tensor) in made.iter().filter(|(_, t)| t.is_allocated()) {
            write(executor, input, tensor, (batch, known))?;
        }
        Ok(())
    }
}

impl DerivedInputs for DerivedTensors {
    fn get(&self, g: &Graph, input: DerivedInput) -> Result<Tensor> {
        let mut made = self.made.borrow_mut();
        if let Some((_, tensor)) = made.iter().find(|(known, _)| *known == input) {
            return Ok(tensor.clone());
        }
        let tensor = make(g, self.prefix, &input, self.n_tokens)?;
        made.push((input, tensor.clone()));
        Ok(tensor)
    }
}

/// The tensor of an input in a pass of `n` tokens.
fn make(g: &Graph, prefix: &str, input: &DerivedInput, n: u64) -> Result<Tensor> {
    let (f32, i32) = (TensorType::F32, TensorType::I32);
    let input_of = |name: &str, ty, shape: &[u64]| g.input(&format!("{prefix}{name}"), ty, shape);
    let index_of = |name: &str, shape: &[u64], bound| {
        g.index_input(&format!("{prefix}{name}"), i32, shape, bound)
    };
    match input {
        DerivedInput::Positions(1) => input_of("positions", i32, &[n]),
        DerivedInput::Positions(span) => input_of(&format!("positions_of_{span}"), i32, &[n]),
        DerivedInput::Back => input_of("positions_back", i32, &[n]),
        DerivedInput::Temperature { .. } => input_of("temperature", f32, &[1, 1, n]),
        DerivedInput::Rows(rows) => index_of("position_rows", &[n], *rows),
        DerivedInput::Sections(1) => input_of("sections", i32, &[4 * n]),
        DerivedInput::Sections(span) => input_of(&format!("sections_of_{span}"), i32, &[4 * n]),
        DerivedInput::Axes([0, ..]) => input_of("sections", i32, &[4 * n]),
        DerivedInput::Axes(_) => input_of("turns", i32, &[4 * n]),
        DerivedInput::Ngrams(ngrams, rows) => index_of("ngrams", &[ngrams.count() * n], *rows),
        DerivedInput::Adapters(switches) => index_of("switched", &[1, n], switches.count()),
        DerivedInput::StandIns(_, rows) => index_of("stand_ins", &[n], *rows),
        DerivedInput::Types(rows) => index_of("token_types", &[n], *rows),
        DerivedInput::Divisors(mixture) => input_of("divisors", f32, &[mixture.n_pairs()]),
        DerivedInput::Buckets(buckets) => index_of("buckets", &[2 * buckets.far + 1], buckets.n),
        DerivedInput::Hadamard(n) => input_of(&format!("hadamard_{n}"), f32, &[*n, *n]),
        DerivedInput::Decay { heads, .. } => input_of("decay", f32, &[1, *heads]),
        DerivedInput::GridPositions(grid, ..) => {
            input_of("places_in_grid", i32, &[4 * grid.n_rows()])
        }
        DerivedInput::RowPositions(grid) => input_of("row_positions", i32, &[grid.n_rows()]),
        DerivedInput::GridRows(grid, _, rows) => index_of("grid_rows", &[grid.n_rows()], *rows),
        DerivedInput::Neighbours(window, grid) => {
            // The row after all others exists where windows reach over the ends.
            let n_rows = grid.n_rows() + u64::from(window.has_missing(grid));
            index_of("cells_of_windows", &[window.n_cells(grid)], n_rows)
        }
        DerivedInput::Learned(grid, n, _) => {
            let n_rows = grid.n_rows() + n * grid.inputs;
            index_of("learned", &[n_rows], grid.n_rows() + n)
        }
        DerivedInput::RowsAt(grid, place) => {
            index_of("rows_at", &[grid.inputs * grid.n_at(*place)], grid.n_rows())
        }
        DerivedInput::FilledRows(grid, window) => index_of(
            "filled_rows",
            &[grid.of_windows(*window).n_rows()],
            grid.n_rows() + 1,
        ),
        DerivedInput::FilledPlaces(grid, window) => {
            let n_rows = grid.of_windows(*window).n_rows();
            index_of("filled_places", &[grid.n_rows()], n_rows)
        }
        DerivedInput::Distances(n) => index_of("distances", &[n * n], 2 * n - 1),
        DerivedInput::Indicators(grid) => {
            let [_, height, width] = grid.cells;
            input_of("indicators", f32, &[height + width, grid.n_rows()])
        }
        DerivedInput::Valid(grid) => index_of("valid", &[grid.inputs * grid.valid], grid.n_rows()),
        DerivedInput::PartMask(parts) => {
            let n = parts.count() * parts.cuts;
            input_of("part_mask", f32, &[parts.len, parts.len, 1, n])
        }
        DerivedInput::DistanceRows(n, rows, _) => index_of("distance_rows", &[2 * n - 1], *rows),
        DerivedInput::Resampling(of) => input_of("resampling", f32, &[of.from, of.to]),
        DerivedInput::WindowRows(grid, _) => {
            index_of("window_rows", &[grid.n_rows()], grid.n_rows())
        }
        DerivedInput::WindowPlaces(grid, _) => {
            index_of("window_places", &[grid.n_rows()], grid.n_rows())
        }
        DerivedInput::Intervals(grid, _) => input_of("intervals", i32, &[4, grid.n_rows()]),
        DerivedInput::GridMask(grid, _) => {
            let n = grid.n_of_input();
            input_of("grid_mask", f32, &[n, n])
        }
        DerivedInput::BlockTable(n) => input_of("block_table", i32, &[*n]),
    }
}

/// Writes the values of an input for the tokens of a batch.
fn write(
    executor: &mut Executor,
    input: &DerivedInput,
    tensor: &Tensor,
    (batch, known): (&Batch, &dyn TokenLookup),
) -> Result<()> {
    let position = |(id, position): &(SequenceId, u32)| position.saturating_sub(known.first(*id));
    let positions = batch.positions.iter().map(position);
    let as_i32 = || positions.clone().map(|p| p as i32);
    let of_blocks = |span: u64| as_i32().map(move |p| p - p % (span as i32).max(1));
    match input {
        DerivedInput::Positions(span) => {
            executor.write(tensor, &of_blocks(*span).collect::<Vec<i32>>())
        }
        DerivedInput::Back => executor.write(tensor, &as_i32().map(|p| -p).collect::<Vec<i32>>()),
        DerivedInput::Temperature {
            scale,
            floor,
            offset,
        } => {
            let factor = |p: u32| 1.0 + scale * (1.0 + ((p as f32 + offset) / floor).floor()).ln();
            executor.write(tensor, &positions.map(factor).collect::<Vec<f32>>())
        }
        DerivedInput::Rows(_) => executor.write_indices(tensor, &as_i32().collect::<Vec<i32>>()),
        DerivedInput::Ngrams(ngrams, _) => {
            let tokens = batch.tokens.iter().zip(&batch.positions);
            let rows = tokens.flat_map(|(token, (id, place))| {
                ngrams.rows(*token, |back| known.token(*id, place.checked_sub(back)?))
            });
            executor.write_indices(tensor, &rows.map(|row| row as i32).collect::<Vec<i32>>())
        }
        input @ (DerivedInput::Sections(1) | DerivedInput::Axes(_)) => {
            let axes: &[usize] = match input {
                DerivedInput::Axes(axes) => axes,
                _ => &[0, 1, 2],
            };
            let places = batch.positions.iter().zip(positions.clone());
            let of_tokens: Vec<[u32; 3]> = places
                .map(|((id, _), position)| known.rotated(*id, position))
                .collect();
            let of_axis = |axis: usize| of_tokens.iter().map(move |of| of[axis] as i32);
            let mut sections: Vec<i32> = axes.iter().copied().flat_map(of_axis).collect();
            sections.resize(4 * batch.len(), 0);
            executor.write(tensor, &sections)
        }
        DerivedInput::Sections(span) => {
            let mut sections: Vec<i32> = of_blocks(*span).cycle().take(3 * batch.len()).collect();
            sections.resize(4 * batch.len(), 0);
            executor.write(tensor, &sections)
        }
        DerivedInput::Adapters(switches) => {
            // A sequence is read once, however many of its tokens are in the batch.
            let mut read: HashMap<SequenceId, (u32, SwitchCounts)> = HashMap::new();
            let adapter = |(token, &(id, place)): (&u32, &(SequenceId, u32))| {
                if id == NOBODY {
                    return 0;
                }
                let of_text = read.entry(id).or_default();
                if of_text.0 > place {
                    *of_text = (0, SwitchCounts::default());
                }
                let (next, seen) = of_text;
                let before = (*next..place).filter_map(|place| known.token(id, place));
                for token in before.chain([*token]) {
                    switches.read(seen, token);
                }
                *next = place + 1;
                switches.adapter(seen) as i32
            };
            let tokens = batch.tokens.iter().zip(&batch.positions);
            executor.write_indices(tensor, &tokens.map(adapter).collect::<Vec<i32>>())
        }
        DerivedInput::StandIns(switches, _) => {
            let rows = batch.tokens.iter().map(|id| switches.stand_in(*id) as i32);
            executor.write_indices(tensor, &rows.collect::<Vec<i32>>())
        }
        DerivedInput::Types(_) => {
            let types = batch.types.iter().map(|of_type| *of_type as i32);
            executor.write_indices(tensor, &types.collect::<Vec<i32>>())
        }
        DerivedInput::Divisors(mixture) => executor.write(tensor, &mixture.values()),
        DerivedInput::Buckets(buckets) => executor.write_indices(tensor, &buckets.of_distances()),
        DerivedInput::Hadamard(n) => executor.write(tensor, &hadamard(*n)),
        DerivedInput::Decay { heads, slope } => {
            let of_head = |i: u64| -slope * (-8.0 * (i + 1) as f32 / *heads as f32).exp2();
            executor.write(tensor, &(0..*heads).map(of_head).collect::<Vec<f32>>())
        }
        DerivedInput::GridPositions(grid, axes, start) => {
            executor.write(tensor, &grid.positions(*axes, *start))
        }
        DerivedInput::RowPositions(grid) => executor.write(tensor, &grid.table_rows(Axis::All)),
        DerivedInput::GridRows(grid, axis, _) => {
            executor.write_indices(tensor, &grid.table_rows(*axis))
        }
        DerivedInput::Neighbours(window, grid) => {
            executor.write_indices(tensor, &window.rows(grid))
        }
        DerivedInput::Valid(grid) => executor.write_indices(tensor, &grid.valid_rows()),
        DerivedInput::PartMask(parts) => executor.write(tensor, &parts.mask()),
        DerivedInput::DistanceRows(n, rows, zero) => {
            executor.write_indices(tensor, &distance_rows(*n, *rows, *zero))
        }
        DerivedInput::Learned(grid, n, at_start) => {
            executor.write_indices(tensor, &grid.with_learned(*n, *at_start))
        }
        DerivedInput::RowsAt(grid, place) => executor.write_indices(tensor, &grid.rows_at(*place)),
        DerivedInput::FilledRows(grid, window) => {
            executor.write_indices(tensor, &grid.filled_rows(*window))
        }
        DerivedInput::FilledPlaces(grid, window) => {
            executor.write_indices(tensor, &grid.filled_places(*window))
        }
        DerivedInput::Distances(n) => executor.write_indices(tensor, &RowGrid::distances(*n)),
        DerivedInput::Indicators(grid) => executor.write(tensor, &grid.indicators()),
        DerivedInput::Resampling(of) => executor.write(tensor, &of.weights()),
        DerivedInput::WindowRows(grid, window) => {
            executor.write_indices(tensor, &WindowOrder::new(grid, *window).rows)
        }
        DerivedInput::WindowPlaces(grid, window) => {
            executor.write_indices(tensor, &WindowOrder::new(grid, *window).places)
        }
        DerivedInput::Intervals(grid, rule) => executor.write(tensor, &grid.intervals(rule)),
        DerivedInput::GridMask(grid, rule) => executor.write(tensor, &grid.mask(rule)),
        DerivedInput::BlockTable(n) => {
            executor.write(tensor, &(0..*n as i32).collect::<Vec<i32>>())
        }
    }
}
