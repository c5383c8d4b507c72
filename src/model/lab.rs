//! What sequences ask of the points of their passes: rows to capture, edits of rows.
//!
//! A sequence has one [`Lab`] from its start to its end, as it has scales of adapters. Sequences with and
//! without share a pass: an edit writes only the rows of its own tokens. What a pass asks is collected
//! point by point, so that all sequences that read a point share one operation.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::blocks::lab::{
    Asked, Lab as GraphLab, NODES_PER_CAPTURE, NODES_PER_STEP, Step, StepKind,
};
use crate::ggml::{Error as TensorError, Executor, Graph, Tensor};
use crate::weights::TensorType;

use super::batch::Batch;
use super::cache::SequenceId;
use super::points::{LOGITS, Points};

/// Positions of a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Positions {
    /// From the first number to before the second.
    Range(u32, u32),
    /// These, rising.
    List(Vec<u32>),
}

impl Positions {
    /// Whether a position is one of them.
    pub fn contains(&self, position: u32) -> bool {
        self.place(position).is_some()
    }

    /// Which of them a position is.
    pub fn place(&self, position: u32) -> Option<usize> {
        match self {
            Self::Range(from, to) => {
                let is_in = (*from..*to).contains(&position);
                is_in.then(|| (position - from) as usize)
            }
            Self::List(all) => all.binary_search(&position).ok(),
        }
    }

    /// The first of them from a position on.
    pub fn next(&self, from: u32) -> Option<u32> {
        match self {
            Self::Range(first, end) => Some(from.max(*first)).filter(|next| next < end),
            Self::List(all) => all.get(all.partition_point(|p| *p < from)).copied(),
        }
    }

    /// How many there are below a position.
    pub fn n_below(&self, end: u32) -> usize {
        match self {
            Self::Range(first, last) => end.min(*last).saturating_sub(*first) as usize,
            Self::List(all) => all.partition_point(|p| *p < end),
        }
    }
}

/// Rows of a point that are captured.
#[derive(Clone, Debug, PartialEq)]
pub struct LabCapture {
    /// Its place among the points of the model.
    pub point: usize,
    /// Of which tokens.
    pub positions: Positions,
}

/// What an edit makes of a row `x` of `width` numbers.
#[derive(Clone, Debug, PartialEq)]
pub enum LabOp {
    /// `x * factor + offset`; one offset for all positions, or one for each.
    Affine {
        /// By elements.
        factor: Vec<f32>,
        /// By elements.
        offsets: Vec<Vec<f32>>,
    },
    /// Chosen elements are bounded.
    Clamp {
        /// Which elements.
        chosen: Vec<bool>,
        /// The bounds.
        bounds: [f32; 2],
    },
    /// Takes out a share of what lies along a direction of length 1.
    Project {
        /// The direction.
        direction: Vec<f32>,
        /// The share; 1 takes out all.
        share: f32,
    },
    /// Adds a direction, as long as the row.
    Match {
        /// The direction, whose length is the factor.
        direction: Vec<f32>,
    },
}

impl LabOp {
    fn kind(&self) -> StepKind {
        match self {
            Self::Affine { .. } => StepKind::Affine,
            Self::Clamp { bounds, .. } => StepKind::Clamp(bounds[0].to_bits(), bounds[1].to_bits()),
            Self::Project { .. } => StepKind::Project,
            Self::Match { .. } => StepKind::Match,
        }
    }

    /// Its numbers for the position at a place among those of the edit.
    fn write(&self, place: usize, [p0, p1]: [&mut Vec<f32>; 2]) {
        match self {
            Self::Affine { factor, offsets } => {
                p0.extend(factor);
                let offset = offsets.get(place).or(offsets.first());
                p1.extend(offset.into_iter().flatten());
            }
            Self::Clamp { chosen, .. } => {
                p0.extend(chosen.iter().map(|c| if *c { 0.0 } else { 1.0 }));
                p1.extend(chosen.iter().map(|c| if *c { 1.0 } else { 0.0 }));
            }
            Self::Project { direction, share } => {
                p0.extend(direction);
                p1.extend(direction.iter().map(|e| e * share));
            }
            Self::Match { direction } => {
                p0.extend(direction);
                p1.extend(direction);
            }
        }
    }

    fn digest(&self, hash: &mut Sha256) {
        let mut numbers = [Vec::new(), Vec::new()];
        let n = match self {
            Self::Affine { offsets, .. } => offsets.len(),
            _ => 1,
        };
        for place in 0..n {
            let [p0, p1] = &mut numbers;
            self.write(place, [p0, p1]);
        }
        hash.update(format!("{:?} {n}", self.kind()));
        for numbers in numbers {
            hash.update(bytemuck::cast_slice::<f32, u8>(&numbers));
        }
    }
}

/// A change of rows of a point.
#[derive(Clone, Debug, PartialEq)]
pub struct LabEdit {
    /// Its place among the points of the model.
    pub point: usize,
    /// Of which tokens.
    pub positions: Positions,
    /// What it does.
    pub op: LabOp,
}

/// What a sequence asks of points.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lab {
    captures: Vec<LabCapture>,
    edits: Vec<LabEdit>,
    key: Vec<u32>,
}

impl Lab {
    /// Most edits of points: an edit of a value in every layer is one for each.
    pub const MAX_EDITS: usize = 512;

    /// What these ask.
    pub fn new(captures: Vec<LabCapture>, edits: Vec<LabEdit>) -> Self {
        let mut hash = Sha256::new();
        for edit in &edits {
            hash.update(format!("{} {:?} ", edit.point, edit.positions));
            edit.op.digest(&mut hash);
        }
        let digest = hash.finalize();
        // The first bit keeps them apart from what stands for no token.
        let word = |bytes: &[u8]| bytes.iter().fold(0, |n, byte| n << 8 | u32::from(*byte)) >> 1;
        let key = match edits.is_empty() {
            true => Vec::new(),
            false => digest.chunks(4).map(word).collect(),
        };
        Self {
            captures,
            edits,
            key,
        }
    }

    /// What tells apart what is computed with its edits; nothing without.
    pub fn key(&self) -> &[u32] {
        &self.key
    }

    /// The first position from `from` on of which something is captured.
    pub fn next_captured(&self, from: u32) -> Option<u32> {
        let all = self.captures.iter();
        all.filter_map(|c| c.positions.next(from)).min()
    }

    /// The points and positions that are captured.
    pub fn captures(&self) -> &[LabCapture] {
        &self.captures
    }
}

/// A captured row.
#[derive(Clone, Debug, PartialEq)]
pub struct TakenRow {
    /// Its sequence.
    pub sequence: SequenceId,
    /// Its position.
    pub position: u32,
    /// The place of its point among those of the model.
    pub point: usize,
    /// Its numbers.
    pub row: Vec<f32>,
}

/// What the graph of a pass is built for: points in order, each with a number of rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LabShape {
    pub(super) captures: Vec<(usize, usize)>,
    steps: Vec<(usize, StepKind, usize)>,
}

impl LabShape {
    pub(super) fn is_empty(&self) -> bool {
        self.captures.is_empty() && self.steps.is_empty()
    }

    /// Operations and inputs that it adds to a graph.
    pub(super) fn n_nodes(&self) -> usize {
        self.captures.len() * NODES_PER_CAPTURE + self.steps.len() * NODES_PER_STEP
    }
}

/// Operations and inputs that graphs have room for.
pub(super) fn capacity(points: &Points) -> usize {
    points.all.len() * NODES_PER_CAPTURE + Lab::MAX_EDITS * NODES_PER_STEP
}

/// Edits of one kind at one point, of several tokens.
#[derive(Default)]
struct PassStep {
    rows: Vec<i32>,
    numbers: [Vec<f32>; 2],
}

/// What a pass asks of its points.
#[derive(Default)]
pub(super) struct PassLab {
    /// Rows by point, with their places in the batch.
    captures: BTreeMap<usize, (Vec<i32>, Vec<usize>)>,
    /// By point, by which edit of a row it is, and by kind.
    steps: BTreeMap<(usize, usize), Vec<(StepKind, PassStep)>>,
}

impl PassLab {
    /// What the sequences of a batch ask. Points behind the head have rows for outputs alone.
    pub(super) fn of(labs: &HashMap<SequenceId, Arc<Lab>>, points: &Points, batch: &Batch) -> Self {
        let mut this = Self::default();
        if labs.is_empty() {
            return this;
        }
        let mut n_outputs = 0;
        for (at, (sequence, position)) in batch.places.iter().enumerate() {
            let output = batch.outputs[at].then_some(n_outputs);
            n_outputs += i32::from(batch.outputs[at]);
            let Some(lab) = labs.get(sequence) else {
                continue;
            };
            let row = |point: usize| match points.all[point].is_of_head() {
                true => output,
                false => Some(at as i32),
            };
            let captures = lab.captures.iter();
            for capture in captures.filter(|c| c.positions.contains(*position)) {
                // The logits are a result of every pass.
                if points.all[capture.point].path == LOGITS {
                    continue;
                }
                let Some(row) = row(capture.point) else {
                    continue;
                };
                let (rows, places) = this.captures.entry(capture.point).or_default();
                // Several captures of a request may want it.
                if places.last() != Some(&at) {
                    rows.push(row);
                    places.push(at);
                }
            }
            let mut n_of_point: HashMap<usize, usize> = HashMap::new();
            for edit in &lab.edits {
                let Some(place) = edit.positions.place(*position) else {
                    continue;
                };
                let Some(row) = row(edit.point) else { continue };
                let round = n_of_point.entry(edit.point).or_default();
                let kinds = this.steps.entry((edit.point, *round)).or_default();
                *round += 1;
                let kind = edit.op.kind();
                let found = kinds.iter().position(|(known, _)| *known == kind);
                let found = found.unwrap_or_else(|| {
                    kinds.push((kind, PassStep::default()));
                    kinds.len() - 1
                });
                let step = &mut kinds[found].1;
                step.rows.push(row);
                let [p0, p1] = &mut step.numbers;
                edit.op.write(place, [p0, p1]);
            }
        }
        this
    }

    fn steps(&self) -> impl Iterator<Item = (usize, StepKind, &PassStep)> {
        let all = self.steps.iter();
        all.flat_map(|((point, _), kinds)| kinds.iter().map(|(kind, step)| (*point, *kind, step)))
    }

    pub(super) fn shape(&self) -> LabShape {
        let captures = self.captures.iter();
        LabShape {
            captures: captures
                .map(|(point, (rows, _))| (*point, rows.len()))
                .collect(),
            steps: self
                .steps()
                .map(|(point, kind, s)| (point, kind, s.rows.len()))
                .collect(),
        }
    }
}

/// The inputs and outputs of a graph for what is asked of points.
#[derive(Default)]
pub(super) struct LabTensors {
    captures: Vec<(usize, Tensor)>,
    steps: Vec<(Tensor, [Tensor; 2])>,
}

impl LabTensors {
    /// Makes the inputs of a graph, and what its points are asked.
    pub(super) fn new(
        g: &Graph,
        points: &Points,
        shape: &LabShape,
        (n_tokens, n_outputs): (usize, usize),
    ) -> Result<(Self, GraphLab), TensorError> {
        let mut this = Self::default();
        let mut asked: HashMap<String, Asked> = HashMap::new();
        let rows = |point: usize, what: &str, n: usize| {
            let point = &points.all[point];
            let bound = if point.is_of_head() {
                n_outputs
            } else {
                n_tokens
            };
            let name = format!("lab.{what}.{}", point.path);
            g.index_input(&name, TensorType::I32, &[n as u64], bound as u64)
        };
        for (point, kind, n) in &shape.steps {
            let (path, width) = (&points.all[*point].path, points.all[*point].width());
            let rows = rows(*point, "edit", *n)?;
            let numbers = || g.input(&format!("lab.{path}"), TensorType::F32, &[width, *n as u64]);
            let numbers = [numbers()?, numbers()?];
            this.steps.push((rows.clone(), numbers.clone()));
            let of_point = asked.entry(path.clone()).or_default();
            of_point.steps.push(Step {
                kind: *kind,
                rows,
                numbers,
            });
        }
        for (point, n) in &shape.captures {
            let rows = rows(*point, "rows", *n)?;
            this.captures.push((*point, rows.clone()));
            let of_point = asked.entry(points.all[*point].path.clone()).or_default();
            of_point.rows = Some(rows);
        }
        let lab = GraphLab {
            asked,
            ..GraphLab::default()
        };
        Ok((this, lab))
    }

    /// Writes the rows and numbers of a pass of this shape.
    pub(super) fn write(&self, executor: &mut Executor, pass: &PassLab) -> Result<(), TensorError> {
        for ((_, tensor), (rows, _)) in self.captures.iter().zip(pass.captures.values()) {
            if tensor.is_allocated() {
                executor.write_indices(tensor, rows)?;
            }
        }
        for ((rows, numbers), (_, _, step)) in self.steps.iter().zip(pass.steps()) {
            if rows.is_allocated() {
                executor.write_indices(rows, &step.rows)?;
            }
            for (tensor, numbers) in numbers.iter().zip(&step.numbers) {
                if tensor.is_allocated() {
                    executor.write(tensor, numbers)?;
                }
            }
        }
        Ok(())
    }
}

/// Captured rows of a graph by point.
pub(super) type TakenTensors = Vec<(usize, Tensor)>;

/// Reads the rows that a pass captured.
pub(super) fn read(
    executor: &Executor,
    taken: &TakenTensors,
    pass: &PassLab,
    batch: &Batch,
    out: &mut Vec<TakenRow>,
) -> Result<(), TensorError> {
    for (point, tensor) in taken {
        let Some((_, places)) = pass.captures.get(point) else {
            continue;
        };
        let n = tensor.elements() as usize;
        let mut numbers = vec![0.0f32; n];
        if tensor.ty() == TensorType::I32 {
            let mut ids = vec![0i32; n];
            executor.read(tensor, &mut ids)?;
            numbers = ids.into_iter().map(|id| id as f32).collect();
        } else {
            executor.read(tensor, &mut numbers)?;
        }
        let width = n / places.len().max(1);
        for (row, at) in numbers.chunks_exact(width.max(1)).zip(places) {
            let (sequence, position) = batch.places[*at];
            out.push(TakenRow {
                sequence,
                position,
                point: *point,
                row: row.to_vec(),
            });
        }
    }
    Ok(())
}
