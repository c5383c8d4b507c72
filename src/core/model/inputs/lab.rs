//! The inputs of captures and edits of points: rows, numbers of edits, queries and keys of attention weights.

use std::collections::{HashMap, HashSet};

use crate::blocks::lab::{AttentionCapture, EditKind, GraphLab, PointActions, RowEdits};
use lab_base::ggml::{Executor, Graph, Result, Tensor};
use lab_base::weights::TensorType;

use super::super::graph_shape::{GraphParts, GraphShape};
use super::super::lab::{LabShape, PassLab};
use super::super::points::Points;

/// The inputs of a graph, in the order of its [`LabShape`].
pub(super) struct LabInputs {
    /// i32 `[n]`: the captured rows of each point.
    captures: Vec<Tensor>,
    /// i32 `[n]`: the rows of each edit; f32 `[width, 1]` and `[width, 1 or n]`: its numbers.
    edits: Vec<(Tensor, [Tensor; 2])>,
    sets: Vec<AttentionCapture>,
}

impl LabInputs {
    pub(super) fn new(g: &Graph, parts: &GraphParts<'_>, of: &GraphShape) -> Result<Self> {
        let (points, shape) = (parts.points, &of.lab);
        let n_tokens = of.n_tokens as u64;
        let rows = |point: usize, what: &str, n: usize| {
            let point = &points.all[point];
            let bound = match point.is_of_head() {
                true => of.n_outputs as u64,
                false => n_tokens,
            };
            let name = format!("lab.{what}.{}", point.path);
            g.index_input(&name, TensorType::I32, &[n as u64], bound)
        };
        let edits = shape.edits.iter().map(|(point, _, n, is_of_rows)| {
            let (path, width) = (&points.all[*point].path, points.all[*point].width());
            let rows = rows(*point, "edit", *n)?;
            let n_last = if *is_of_rows { *n as u64 } else { 1 };
            let numbers = |n: u64| g.input(&format!("lab.{path}"), TensorType::F32, &[width, n]);
            Ok((rows, [numbers(1)?, numbers(n_last)?]))
        });
        let edits = edits.collect::<Result<_>>()?;
        let captures = shape.captures.iter();
        let captures = captures.map(|(point, n)| rows(*point, "rows", *n));
        let captures = captures.collect::<Result<_, _>>()?;
        let sets = shape.sets.iter().map(|(group, n_keys, n)| {
            let bound = match parts.n_slots[*group] {
                0 => n_tokens,
                n_slots => n_slots as u64,
            };
            let (n_keys, n) = (*n_keys as u64, *n as u64);
            Ok(AttentionCapture {
                rows: g.index_input("lab.queries", TensorType::I32, &[n], n_tokens)?,
                keys: g.index_input("lab.keys", TensorType::I32, &[n_keys], bound)?,
                mask: g.input("lab.mask", TensorType::F32, &[n_keys, n])?,
            })
        });
        Ok(Self {
            captures,
            edits,
            sets: sets.collect::<Result<_>>()?,
        })
    }

    /// The captures and edits of the graph at each point, which read these inputs.
    pub(super) fn uses(&self, points: &Points, shape: &LabShape) -> GraphLab {
        let mut uses: HashMap<String, PointActions> = HashMap::new();
        let mut copied = HashSet::new();
        for ((point, kind, ..), (rows, numbers)) in shape.edits.iter().zip(&self.edits) {
            let from = match kind {
                EditKind::Copy(from) => Some(points.all[*from].path.clone()),
                _ => None,
            };
            copied.extend(from.clone());
            let of_point = uses.entry(points.all[*point].path.clone()).or_default();
            of_point.edits.push(RowEdits {
                kind: *kind,
                rows: rows.clone(),
                numbers: numbers.clone(),
                from,
            });
        }
        for ((point, _), rows) in shape.captures.iter().zip(&self.captures) {
            let of_point = uses.entry(points.all[*point].path.clone()).or_default();
            of_point.rows = Some(rows.clone());
        }
        let pairs = shape.pairs.iter().map(|(point, set)| {
            let path = points.all[*point].path.clone();
            (path, self.sets[*set].clone())
        });
        GraphLab {
            pairs: pairs.collect(),
            uses,
            copied,
            ..GraphLab::default()
        }
    }

    /// Writes the rows and numbers of a pass of this shape.
    pub(super) fn write(&self, executor: &mut Executor, pass: &PassLab) -> Result<()> {
        for (tensor, rows) in self.captures.iter().zip(pass.captures.values()) {
            if tensor.is_allocated() {
                executor.write_indices(tensor, &rows.values().copied().collect::<Vec<i32>>())?;
            }
        }
        for (tensors, set) in self.sets.iter().zip(&pass.sets) {
            if tensors.rows.is_allocated() {
                let rows: Vec<i32> = set.tokens.iter().map(|at| *at as i32).collect();
                executor.write_indices(&tensors.rows, &rows)?;
                executor.write_indices(&tensors.keys, &set.keys)?;
                executor.write(&tensors.mask, &set.mask)?;
            }
        }
        for ((rows, tensors), edit) in self.edits.iter().zip(&pass.edits) {
            if rows.is_allocated() {
                executor.write_indices(rows, &edit.rows)?;
            }
            for (tensor, numbers) in tensors.iter().zip(&edit.numbers()) {
                if tensor.is_allocated() {
                    executor.write(tensor, numbers)?;
                }
            }
        }
        Ok(())
    }
}
