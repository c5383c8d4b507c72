//! Towers: models whose rows are patches of pictures or frames of sounds, and whose results are rows for another model.
//!
//! A tower keeps nothing between runs. A run computes several inputs with the same grid; the rows of each attend to each
//! other alone, so no bit of an input depends on the others.

use crate::blocks::RowGrid;
use crate::plan::Plan;
use lab_base::ggml::Executor;
use lab_base::weights::Weights;

use super::adapters::DeviceWeights;
use super::cache::states::States;
use super::cache::store::KvCache;
use super::devices;
use super::error::{Error, MemoryPurpose, Result};
use super::graph::{self, TowerGraph};
use super::graph_shape::GraphParts;
use super::load::{self, LoadedWeights, ProgressFn};
use super::memory;
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
    /// The grid of the loaded graph, and the ends of that graph.
    built: Option<(RowGrid, TowerGraph)>,
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
        })
    }

    /// The plan that the tower runs.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Elements of an input row.
    pub fn input_width(&self) -> usize {
        self.plan.embed.option_int("width").unwrap_or(0) as usize
    }

    /// Computes inputs, which have the same grid. Returns the result of each.
    ///
    /// # Errors
    /// An input has another size than its grid, or does not fit the tower; memory is missing; a computation fails.
    pub fn run(&mut self, inputs: &[TowerInput<'_>]) -> Result<Vec<TowerRows>> {
        let grid = self.grid_of(inputs)?;
        if self.built.as_ref().is_none_or(|(of, _)| *of != grid) {
            self.build(grid)?;
        }
        let Some((_, graph)) = &self.built else {
            return Err(Error::Internal("no graph is built".into()));
        };
        let rows: Vec<f32> = inputs
            .iter()
            .flat_map(|input| input.rows)
            .copied()
            .collect();
        self.executor.write(&graph.rows, &rows)?;
        graph.inputs.write_of_grid(&mut self.executor)?;
        self.executor.run()?;
        let mut result = vec![0.0; graph.result.elements() as usize];
        self.executor.read(&graph.result, &mut result)?;
        let of_input = (result.len() / inputs.len()).max(1);
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
        let captured = self.built.iter().flat_map(|(_, graph)| &graph.captured);
        captured
            .map(|value| NamedValue::read(&self.executor, value))
            .collect()
    }

    fn grid_of(&self, inputs: &[TowerInput<'_>]) -> Result<RowGrid> {
        let fault = |found: String, expected: String| Err(Error::Tower { found, expected });
        let Some(first) = inputs.first() else {
            return fault("no input".into(), "at least one".into());
        };
        let n_cells = first
            .cells
            .iter()
            .try_fold(1u64, |n, cells| n.checked_mul(*cells));
        let n_all = n_cells.and_then(|n| n.checked_mul(inputs.len() as u64));
        let Some(n_cells) = n_cells.filter(|n| *n > 0 && n_all.is_some_and(|n| n <= MAX_ROWS))
        else {
            let found = format!("{} grids of {:?} cells", inputs.len(), first.cells);
            return fault(found, format!("1 to {MAX_ROWS} rows"));
        };
        let n_elements = n_cells as usize * self.input_width();
        for input in inputs {
            if (input.cells, input.valid) != (first.cells, first.valid) {
                let found = format!("grids of {:?} and {:?} cells", first.cells, input.cells);
                return fault(found, "inputs of one grid".into());
            }
            if input.rows.len() != n_elements {
                let found = format!("{} numbers", input.rows.len());
                let width = self.input_width();
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

    /// Builds and loads the graph of a grid, if there is memory for it.
    fn build(&mut self, grid: RowGrid) -> Result<()> {
        self.built = None;
        let (graph, _) = graph::build_tower(&self.graph_parts(), grid)?;
        let bytes = self.executor.measure(graph)?;
        memory::check(MemoryPurpose::Scratch, bytes[0])?;
        let (graph, _) = graph::build_tower(&self.graph_parts(), grid)?;
        self.executor.reserve(graph)?;
        let (graph, ends) = graph::build_tower(&self.graph_parts(), grid)?;
        self.executor.load(graph)?;
        self.built = Some((grid, ends));
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
