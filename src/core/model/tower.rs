//! Towers: models whose rows are patches of pictures or frames of sounds, and whose results are rows for another model.
//!
//! A tower keeps nothing between runs. A run computes several inputs with the same grid; the rows of each attend to each
//! other alone, so no bit of an input depends on the others.

use std::time::Instant;

use crate::blocks::RowGrid;
use crate::plan::Plan;
use lab_base::ggml::Executor;
use lab_base::weights::Weights;

use super::adapters::DeviceWeights;
use super::cache::states::States;
use super::cache::store::KvCache;
use super::devices;
use super::error::{Error, MemoryPurpose, Result};
use super::graph::{self, CapturedValue, TowerGraph};
use super::graph_shape::GraphParts;
use super::load::{self, LoadedWeights, ProgressFn};
use super::memory;
use super::memory_use::{DeviceUse, TowerUse};
use super::named_value::NamedValue;
use super::options::Options;
use super::points::Points;

/// Maximum number of rows of a run, far above every picture: a guard against hostile sizes.
const MAX_ROWS: u64 = 1 << 20;

/// A loaded tower.
pub struct Tower {
    plan: Plan,
    options: Options,
    loaded: LoadedWeights,
    cache: KvCache,
    states: States,
    points: Points,
    executor: Executor,
    /// The grid of the loaded graph, the paths of the values that it captures, and its ends.
    built: Option<(RowGrid, Vec<String>, TowerGraph)>,
    /// The next node of a run that has begun.
    node: usize,
}

/// An input of a tower.
#[derive(Clone, Copy, Debug)]
pub struct TowerInput<'a> {
    /// The rows `[width, cells]`, by time, height and width.
    pub rows: &'a [f32],
    /// Cells of the grid: time, height, width.
    pub cells: [u64; 3],
    /// Number of valid frames of a sound, whose other frames pad it and give no rows; none: all.
    pub valid: Option<u64>,
}

/// The result of a tower for one input.
#[derive(Clone, Debug, PartialEq)]
pub struct TowerRows {
    /// The rows `[n_embd, cells]`.
    pub rows: Vec<f32>,
    /// Cells of the grid: time, height, width.
    pub cells: [u64; 3],
}

/// The elements of the valid rows of a captured value for one input, and their number.
pub(super) type CapturedInput = (Vec<f32>, usize);

impl Tower {
    /// Loads the weights of a tower's plan.
    ///
    /// # Errors
    /// The weights cannot be used, or memory is missing.
    pub fn load(
        plan: Plan,
        weights: &Weights,
        options: Options,
        progress: ProgressFn<'_>,
    ) -> Result<Self> {
        let devices = devices::of_plan(&plan)?;
        let loaded = load::load(&plan.tensors, &devices, weights, progress)?;
        let types = [options.k_type, options.v_type];
        let cache = KvCache::new(&plan, &devices, &vec![0; plan.caches.len()], types)?;
        let states = States::new(&plan, &devices, 0)?;
        let mut executor = Executor::new(&devices, options.n_threads, graph::capacity(&plan, 0))?;
        if options.deterministic {
            executor.set_batch_invariant();
        }
        if options.plain {
            executor.compute_plainly()?;
        }
        Ok(Self {
            plan,
            options,
            loaded,
            cache,
            states,
            points: Points::default(),
            executor,
            built: None,
            node: 0,
        })
    }

    /// The plan that the tower runs.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Elements of an input row.
    pub fn input_width(&self) -> usize {
        input_width(&self.plan)
    }

    /// The memory of the weights.
    pub(super) fn memory(&self) -> TowerUse {
        let LoadedWeights { mapped, taken, .. } = &self.loaded;
        TowerUse {
            mapped: mapped.iter().sum(),
            weights: self.loaded.copied_bytes,
            compute: 0,
            devices: DeviceUse::of_plan(&self.plan, mapped, taken, [0, 0], [&[], &[]], &[]),
        }
    }

    /// Computes inputs, which have the same grid. Returns the result of each.
    ///
    /// # Errors
    /// An input has another size than its grid, or does not fit the tower; memory is missing; a computation fails.
    pub fn run(&mut self, inputs: &[TowerInput<'_>]) -> Result<Vec<TowerRows>> {
        self.begin(inputs, &[])?;
        self.advance(None)?;
        self.results(inputs.len())
    }

    /// Begins a run of inputs, which have the same grid, after which the values of these paths can be read. A run that has begun is given up.
    ///
    /// # Errors
    /// An input has another size than its grid, or does not fit the tower; memory is missing.
    pub(super) fn begin(&mut self, inputs: &[TowerInput<'_>], paths: &[String]) -> Result<()> {
        self.node = 0;
        let grid = grid_of(&self.plan, inputs)?;
        let is_other =
            |(of, captured, _): &(RowGrid, Vec<String>, _)| *of != grid || captured != paths;
        if self.built.as_ref().is_none_or(is_other) {
            self.build(grid, paths)?;
        }
        let Some((_, _, graph)) = &self.built else {
            return Err(Error::Internal("no graph is built".into()));
        };
        let rows: Vec<f32> = inputs
            .iter()
            .flat_map(|input| input.rows)
            .copied()
            .collect();
        self.executor.write(&graph.rows, &rows)?;
        Ok(graph.inputs.write_of_grid(&mut self.executor)?)
    }

    /// Computes a part of the run that has begun, until a time is over; all of the rest without one. Returns whether it is complete.
    ///
    /// # Errors
    /// The computation fails.
    pub(super) fn advance(&mut self, end: Option<Instant>) -> Result<bool> {
        match self.executor.run_until(self.node, end)? {
            Some(node) => {
                self.node = node;
                Ok(false)
            }
            None => Ok(true),
        }
    }

    /// Lets the threads sleep until the next run.
    pub(super) fn rest(&self) {
        self.executor.rest();
    }

    /// The result of each input of a complete run of as many.
    ///
    /// # Errors
    /// No run was begun.
    pub(super) fn results(&mut self, n_inputs: usize) -> Result<Vec<TowerRows>> {
        let Some((_, _, graph)) = &self.built else {
            return Err(Error::Internal("no graph is built".into()));
        };
        let mut result = vec![0.0; graph.result.elements() as usize];
        self.executor.read(&graph.result, &mut result)?;
        let of_input = (result.len() / n_inputs.max(1)).max(1);
        let end = &graph.grid;
        let width = graph.result.shape()[0];
        let (n_valid, cells) = match end.valid == end.n_cells() {
            true => (end.n_of_input(), end.cells),
            false => (end.before + end.valid, [1, 1, end.valid]),
        };
        let rows = result.chunks_exact(of_input).map(|rows| TowerRows {
            rows: rows[..(n_valid * width) as usize].to_vec(),
            cells,
        });
        Ok(rows.collect())
    }

    /// The values of the last run in the order of computation. Empty unless values are captured.
    pub fn values(&self) -> Result<Vec<NamedValue>> {
        let captured = self.built.iter().flat_map(|(_, _, graph)| &graph.captured);
        captured
            .map(|value| NamedValue::read(&self.executor, value))
            .collect()
    }

    /// The rows of the values that a complete run captured: their paths, and the rows of each input.
    ///
    /// # Errors
    /// A value cannot be read.
    pub(super) fn captured(&self) -> Result<Vec<(String, Vec<CapturedInput>)>> {
        let values = self.built.iter().flat_map(|(_, _, graph)| &graph.captured);
        let of_value = |value: &CapturedValue| {
            let grid = value
                .grid
                .ok_or_else(|| Error::Internal("a value without a grid".into()))?;
            let NamedValue { path, elements, .. } = NamedValue::read(&self.executor, value)?;
            let n_of_input = grid.n_of_input() as usize;
            let n_valid = match grid.valid == grid.n_cells() {
                true => n_of_input,
                false => (grid.before + grid.valid) as usize,
            };
            let of_input = (elements.len() / grid.inputs.max(1) as usize).max(1);
            let inputs = elements.chunks_exact(of_input).map(|rows| {
                let width = rows.len() / n_of_input.max(1);
                (rows[..n_valid * width].to_vec(), n_valid)
            });
            Ok((path, inputs.collect()))
        };
        values.map(of_value).collect()
    }

    /// Builds and loads the graph of a grid that captures the values of these paths, if there is memory for it.
    fn build(&mut self, grid: RowGrid, paths: &[String]) -> Result<()> {
        self.built = None;
        let (graph, _) = graph::build_tower(&self.graph_parts(), grid, paths)?;
        let bytes = self.executor.measure(graph)?;
        let processor = bytes.first().copied().unwrap_or(0);
        memory::check(MemoryPurpose::Scratch, processor)?;
        let (graph, _) = graph::build_tower(&self.graph_parts(), grid, paths)?;
        self.executor.reserve(graph)?;
        let (graph, ends) = graph::build_tower(&self.graph_parts(), grid, paths)?;
        self.executor.load(graph)?;
        self.built = Some((grid, paths.to_vec(), ends));
        Ok(())
    }

    fn graph_parts(&self) -> GraphParts<'_> {
        GraphParts {
            plan: &self.plan,
            weights: DeviceWeights {
                tensors: &self.loaded.tensors,
                updates: None,
                update_nodes: 0,
            },
            cache: &self.cache,
            states: &self.states,
            options: &self.options,
            n_slots: &[],
            points: &self.points,
        }
    }
}

/// Elements of an input row of a tower.
pub(super) fn input_width(plan: &Plan) -> usize {
    plan.embed.option_int("width").unwrap_or(0) as usize
}

/// The grid that inputs of a tower have in common.
///
/// # Errors
/// There is no input, or one has another grid or size than the first.
pub(super) fn grid_of(plan: &Plan, inputs: &[TowerInput<'_>]) -> Result<RowGrid> {
    let fault = |found: String, expected: String| Err(Error::Tower { found, expected });
    let Some(first) = inputs.first() else {
        return fault("no input".into(), "at least one".into());
    };
    let n_cells = first
        .cells
        .iter()
        .try_fold(1u64, |n, cells| n.checked_mul(*cells));
    let n_all = n_cells.and_then(|n| n.checked_mul(inputs.len() as u64));
    let Some(n_cells) = n_cells.filter(|n| *n > 0 && n_all.is_some_and(|n| n <= MAX_ROWS)) else {
        let found = format!("{} grids of {:?} cells", inputs.len(), first.cells);
        return fault(found, format!("1 to {MAX_ROWS} rows"));
    };
    let n_elements = n_cells as usize * input_width(plan);
    for input in inputs {
        if (input.cells, input.valid) != (first.cells, first.valid) {
            let found = format!("grids of {:?} and {:?} cells", first.cells, input.cells);
            return fault(found, "inputs of one grid".into());
        }
        if input.rows.len() != n_elements {
            let found = format!("{} numbers", input.rows.len());
            let width = input_width(plan);
            return fault(found, format!("{n_cells} rows of {width}"));
        }
    }
    let mut grid = RowGrid::of_cells(inputs.len() as u64, first.cells);
    if let Some(valid) = first.valid {
        let n_frames = first.cells[grid.frames()];
        if valid == 0 || valid > n_frames || first.cells[0] > 1 {
            return fault(format!("{valid} valid frames"), format!("1 to {n_frames}"));
        }
        grid.valid = n_cells / n_frames * valid;
    }
    Ok(grid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::Library;
    use crate::blocks::REGISTRY;
    use crate::models::synth::{SynthRequest, synth};
    use lab_base::weights;

    /// A tower of rows of four numbers. Branches of layers stand before blocks of 2 x 2 rows and a projection to eight numbers.
    fn definition(layers: &str) -> String {
        format!(
            r#"
            name = "small"
            mode = "tower"

            [params]
            n_wide = 16

            [input]
            media = "image"
            width = "4"

            [[stack]]
            name   = "embed"
            count  = 1
            prefix = "embed.{{il}}."

            [[stack.slot]]
            name   = "wide"
            join   = "set"
            branch = [{{ block = "linear", out = "n_wide", weights = {{ weight = "/wide.weight" }} }}]

            {layers}

            [[stack]]
            name   = "blocks"
            count  = 1
            prefix = "mm.{{il}}."

            [[stack.slot]]
            name   = "blocks"
            join   = "set"
            branch = [{{ block = "neighbours", height = 2, width = 2 }}]

            [[stack.slot]]
            name   = "linear"
            join   = "set"
            branch = [{{ block = "linear", out = 8, weights = {{ weight = "/mm.weight" }} }}]
            "#
        )
    }

    const NO_LAYERS: &str = "";

    fn tower(layers: &str, with: &[&str], flash_attn: bool) -> Tower {
        let library =
            Library::towers(&REGISTRY, &[]).expect("the built-in definitions are readable");
        let def = library.check("small.tower.toml", &definition(layers));
        let def = def.unwrap_or_else(|problems| panic!("{problems}"));
        let scratch = tempfile::tempdir().expect("a folder");
        let path = scratch.path().join("small.gguf");
        let request = SynthRequest {
            with: with.iter().map(|name| (*name).to_owned()).collect(),
            ..SynthRequest::default()
        };
        synth(&def, &request, &path).unwrap_or_else(|e| panic!("{e}"));
        let weights = weights::open(&path).expect("it opens");
        let plan = Plan::new(&def, weights.metadata(), &weights).expect("it fits");
        let options = Options {
            flash_attn,
            ..Options::plain(0, 1)
        };
        Tower::load(plan, &weights, options, &mut |_, _| {}).expect("it loads")
    }

    fn numbers(n: u64) -> Vec<f32> {
        (0..n)
            .map(|i| ((i * i * 7 + i) % 23) as f32 / 11.0 - 1.0)
            .collect()
    }

    #[test]
    fn a_run_in_pieces_has_the_bits_of_a_whole_one() {
        let mut tower = tower(WINDOWS, &[], true);
        let (cells, rows) = ([1, 4, 4], numbers(64));
        let input = TowerInput {
            rows: &rows,
            cells,
            valid: None,
        };
        let whole = tower.run(&[input]).expect("it fits");
        tower.begin(&[input], &[]).expect("it fits");
        let mut n_pieces = 1;
        while !tower.advance(Some(Instant::now())).expect("it runs") {
            n_pieces += 1;
        }
        assert!(n_pieces > 2, "{n_pieces}");
        assert_eq!(tower.results(1).expect("it ran"), whole);
    }

    #[test]
    fn inputs_do_not_see_each_other() {
        let mut tower = tower(NO_LAYERS, &[], true);
        let (cells, rows) = ([1, 2, 4], numbers(64));
        let input = |rows| TowerInput {
            rows,
            cells,
            valid: None,
        };
        let both = tower
            .run(&[input(&rows[..32]), input(&rows[32..])])
            .expect("they fit");
        let second = tower.run(&[input(&rows[32..])]).expect("it fits");
        assert_eq!(both[1], second[0]);
        assert_ne!(both[0].rows, both[1].rows);
        assert_eq!((second[0].cells, second[0].rows.len()), ([1, 1, 2], 16));
    }

    #[test]
    fn a_grid_that_does_not_fit_is_refused() {
        let mut tower = tower(NO_LAYERS, &[], true);
        for cells in [[1, 3, 2], [1, 2, 5], [1, 1, 1]] {
            let rows = numbers(4 * cells.iter().product::<u64>());
            let error = tower
                .run(&[TowerInput {
                    rows: &rows,
                    cells,
                    valid: None,
                }])
                .expect_err("a rest");
            assert!(error.to_string().contains("does not fit"), "{error}");
        }
        // The tower is usable afterwards.
        let rows = numbers(16);
        let cells = [1, 2, 2];
        tower
            .run(&[TowerInput {
                rows: &rows,
                cells,
                valid: None,
            }])
            .expect("it fits");
    }

    #[test]
    fn sizes_are_checked_before_anything_is_made() {
        let mut tower = tower(NO_LAYERS, &[], true);
        let rows = numbers(16);
        let of = |cells| TowerInput {
            rows: &rows,
            cells,
            valid: None,
        };
        let cases: [(&[TowerInput<'_>], &str); 6] = [
            (&[], "no input"),
            (&[of([1, 0, 4])], "cells"),
            (&[of([u64::MAX, u64::MAX, 2])], "cells"),
            (&[of([1, 1 << 11, 1 << 10])], "1048576 rows"),
            (&[of([1, 2, 4])], "16 numbers"),
            (&[of([1, 2, 2]), of([1, 4, 1])], "one grid"),
        ];
        for (inputs, expected) in cases {
            let error = tower.run(inputs).expect_err("refused").to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    const WINDOWS: &str = r#"
            [cache.window]
            causal      = false
            grid_height = 2
            grid_width  = 3
            grid_filled = true

            [[stack]]

            [[stack.slot]]
            name   = "attn"
            branch = [{ block = "attention", rope = "none", cache = "window" }]"#;

    const QUERIES: &str = r#"
            [cache.later]
            causal       = false
            causal_after = true

            [[stack]]

            [[stack.slot]]
            name   = "queries"
            join   = "set"
            when   = "il == 0"
            branch = [{ block = "learned_rows", place = "after", weights = { rows = "/query.weight" } }]

            [[stack.slot]]
            name   = "attn"
            branch = [{ block = "attention", rope = "none", cache = "later" }]

            [[stack.slot]]
            name   = "cells"
            join   = "set"
            when   = "il == 1"
            branch = [{ block = "learned_rows", weights = { rows = false } }]"#;

    /// The largest difference of the results of attention in one operation and of products one after another.
    fn difference(layers: &str, with: &[&str]) -> f32 {
        let (cells, rows) = ([1, 4, 4], numbers(2 * 64));
        let inputs: Vec<TowerInput<'_>> = rows
            .chunks(64)
            .map(|rows| TowerInput {
                rows,
                cells,
                valid: None,
            })
            .collect();
        let [paged, plain] = [true, false].map(|flash_attn| {
            let all = tower(layers, with, flash_attn)
                .run(&inputs)
                .expect("it runs");
            all.into_iter().flat_map(|of| of.rows).collect::<Vec<f32>>()
        });
        assert!(
            plain.iter().any(|v| v.abs() > 1e-3),
            "the results are not zero"
        );
        paged
            .iter()
            .zip(&plain)
            .map(|(a, b)| (a - b).abs())
            .fold(0.0, f32::max)
    }

    #[test]
    fn both_ways_of_attention_agree() {
        let distances = ["attn_distance_height.weight", "attn_distance_width.weight"];
        for (layers, with) in [(WINDOWS, &[][..]), (WINDOWS, &distances), (QUERIES, &[])] {
            let difference = difference(layers, with);
            assert!(difference < 1e-5, "{difference}: {layers} {with:?}");
        }
    }

    #[test]
    fn rows_that_queries_read_do_not_see_them() {
        let cells = [1, 4, 4];
        let rows = numbers(64);
        let alone = QUERIES
            .replace("il == 0", "il == 99")
            .replace("il == 1", "il == 99");
        let [with, without] = [QUERIES, alone.as_str()].map(|layers| {
            let mut tower = tower(layers, &[], false);
            tower
                .run(&[TowerInput {
                    rows: &rows,
                    cells,
                    valid: None,
                }])
                .expect("it runs")[0]
                .rows
                .clone()
        });
        for (with, without) in with.iter().zip(&without) {
            assert!((with - without).abs() < 1e-5, "{with} and {without}");
        }
    }
}
