//! The captures and edits of sequences at the points of their passes.
//!
//! A sequence has one [`Lab`] from its start to its end, as it has scales of adapters. Sequences with and without
//! one share a pass, because an edit writes only the rows of its own tokens. Captures and edits of a pass are
//! collected by point, so that all sequences that capture a point share one operation.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::arch::PointParts;
use crate::blocks::lab::{EditKind, NODES_PER_CAPTURE, NODES_PER_EDIT};
use lab_base::ggml::{Error as TensorError, Executor, Tensor};
use lab_base::weights::TensorType;

mod pairs;
mod positions;

use pairs::{Keys, PairSet};
pub use positions::Positions;

use super::batch::Batch;
use super::cache::SequenceId;
use super::points::{LOGITS, Points};

/// A capture of rows of a point.
#[derive(Clone, Debug, PartialEq)]
pub struct LabCapture {
    /// Index of the point among those of the model.
    pub point: usize,
    /// The positions whose rows are captured.
    pub positions: Positions,
}

/// The operation of an edit on a row `x` of `width` elements.
#[derive(Clone, Debug, PartialEq)]
pub enum LabOp {
    /// `x * factor + offset`, with one offset for all positions or one for each.
    Affine {
        /// A factor for each element.
        factor: Vec<f32>,
        /// Rows of offsets, with an offset for each element.
        offsets: Vec<Vec<f32>>,
    },
    /// Clamps chosen elements.
    Clamp {
        /// For each element, whether it is clamped.
        chosen: Vec<bool>,
        /// The lower and the upper bound.
        bounds: [f32; 2],
    },
    /// Subtracts a share of the component along a direction of norm 1.
    Project {
        direction: Vec<f32>,
        /// The share; 1 removes the whole component.
        share: f32,
    },
    /// Adds a direction, scaled by the norm of the row.
    Match {
        /// The direction. Its norm is the factor.
        direction: Vec<f32>,
    },
    /// Replaces the row with that of an earlier point.
    Copy {
        /// Index of that point.
        from: usize,
    },
    /// Clamps a feature. Its change is added along a direction.
    Feature {
        /// The vector whose product with the row gives the feature.
        encoder: Vec<f32>,
        /// The direction along which the change is added.
        decoder: Vec<f32>,
        /// The bias of the product.
        bias: f32,
        /// The feature is 0 unless it is above this.
        threshold: f32,
        /// The lower and the upper bound.
        bounds: [f32; 2],
    },
}

impl LabOp {
    fn kind(&self) -> EditKind {
        match self {
            Self::Affine { .. } => EditKind::Affine,
            Self::Clamp { bounds, .. } => EditKind::Clamp(bounds[0].to_bits(), bounds[1].to_bits()),
            Self::Project { .. } => EditKind::Project,
            Self::Match { .. } => EditKind::Match,
            Self::Copy { from } => EditKind::Copy(*from),
            Self::Feature {
                bias,
                threshold,
                bounds,
                ..
            } => EditKind::Feature {
                bias: bias.to_bits(),
                threshold: threshold.to_bits(),
                bounds: bounds.map(f32::to_bits),
            },
        }
    }

    /// The numbers that the operation reads, row by row if rows differ; `places` are the indices of the rows among
    /// the positions of the edit.
    fn numbers(&self, places: &[usize]) -> [Cow<'_, [f32]>; 2] {
        let number = |is: bool| if is { 1.0 } else { 0.0 };
        match self {
            Self::Affine { factor, offsets } => {
                let of_each = match offsets.as_slice() {
                    [one] => Cow::Borrowed(one.as_slice()),
                    all => {
                        let rows = places.iter().filter_map(|at| all.get(*at));
                        Cow::Owned(rows.flatten().copied().collect())
                    }
                };
                [Cow::Borrowed(factor), of_each]
            }
            Self::Clamp { chosen, .. } => [
                chosen.iter().map(|c| number(!*c)).collect(),
                chosen.iter().map(|c| number(*c)).collect(),
            ],
            Self::Project { direction, share } => [
                Cow::Borrowed(direction),
                direction.iter().map(|e| e * share).collect(),
            ],
            Self::Match { direction } => [Cow::Borrowed(direction), Cow::Borrowed(direction)],
            Self::Copy { .. } => [Cow::Borrowed(&[]), Cow::Borrowed(&[])],
            Self::Feature {
                encoder, decoder, ..
            } => [Cow::Borrowed(encoder), Cow::Borrowed(decoder)],
        }
    }

    /// Whether each row has its own numbers.
    fn is_of_rows(&self) -> bool {
        matches!(self, Self::Affine { offsets, .. } if offsets.len() != 1)
    }

    fn digest(&self, hash: &mut Sha256) {
        let n = match self {
            Self::Affine { offsets, .. } => offsets.len(),
            _ => 1,
        };
        let places: Vec<usize> = (0..n).collect();
        hash.update(format!("{:?} {n}", self.kind()));
        for numbers in self.numbers(&places) {
            hash.update(bytemuck::cast_slice::<f32, u8>(&numbers));
        }
    }
}

/// An edit of rows of a point.
#[derive(Clone, Debug, PartialEq)]
pub struct LabEdit {
    /// Index of the point among those of the model.
    pub point: usize,
    /// The positions whose rows are edited.
    pub positions: Positions,
    /// Only those positions whose token has one of these ids, in ascending order; none: any token.
    pub tokens: Option<Arc<[u32]>>,
    /// The operation.
    pub op: LabOp,
}

/// The captures and edits of a sequence.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lab {
    captures: Vec<LabCapture>,
    edits: Vec<LabEdit>,
    key: Vec<u32>,
}

impl Lab {
    /// Maximum number of edits. An edit of a value in every layer counts once for each layer.
    pub const MAX_EDITS: usize = 512;

    pub fn new(captures: Vec<LabCapture>, edits: Vec<LabEdit>) -> Self {
        let mut hash = Sha256::new();
        for edit in &edits {
            let LabEdit {
                point,
                positions,
                tokens,
                op: _,
            } = edit;
            hash.update(format!("{point} {positions:?} {tokens:?} "));
            edit.op.digest(&mut hash);
        }
        let digest = hash.finalize();
        // The first bit is 0, so that no word is the padding token of the prefix cache.
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

    /// Identifies the edits, so that only results with equal edits are shared; empty without edits.
    pub fn key(&self) -> &[u32] {
        &self.key
    }

    /// The first captured position from `from` on.
    pub fn next_captured(&self, from: u32) -> Option<u32> {
        let all = self.captures.iter();
        all.filter_map(|c| c.positions.next(from)).min()
    }

    /// The captured points and positions.
    pub fn captures(&self) -> &[LabCapture] {
        &self.captures
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct CapturedRow {
    pub sequence: SequenceId,
    pub position: u32,
    /// Index of the point among those of the model.
    pub point: usize,
    /// The elements.
    pub row: Vec<f32>,
}

/// The captures and edits for which a graph is built: points in order, each with a number of rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LabShape {
    pub(super) captures: Vec<(usize, usize)>,
    pub(super) edits: Vec<EditShape>,
    /// Sets of attention weights: KV group, number of keys, number of tokens.
    pub(super) sets: Vec<(usize, usize, usize)>,
    /// Points of attention weights, each with the index of its set.
    pub(super) pairs: Vec<(usize, usize)>,
}

/// An edit in a graph: point, kind, number of rows, and whether each row has its own numbers.
pub(super) type EditShape = (usize, EditKind, usize, bool);

impl LabShape {
    pub(super) fn is_empty(&self) -> bool {
        self.captures.is_empty() && self.edits.is_empty() && self.pairs.is_empty()
    }

    /// Maximum number of operations and inputs that the captures and edits add to a graph.
    pub(super) fn n_nodes(&self) -> usize {
        let n_captures = self.captures.len() + self.pairs.len() + self.sets.len();
        n_captures * NODES_PER_CAPTURE + self.edits.len() * NODES_PER_EDIT
    }
}

/// An edit of a sequence, for its tokens in a pass.
pub(super) struct PassEdit {
    lab: Arc<Lab>,
    /// Index of the edit in the lab.
    at: usize,
    pub(super) rows: Vec<i32>,
    /// Indices of the rows among the positions of the edit.
    places: Vec<usize>,
}

impl PassEdit {
    fn edit(&self) -> &LabEdit {
        &self.lab.edits[self.at]
    }

    /// The numbers that the operation reads.
    pub(super) fn numbers(&self) -> [Cow<'_, [f32]>; 2] {
        self.edit().op.numbers(&self.places)
    }
}

/// The captures and edits of a pass.
#[derive(Default)]
pub(super) struct PassLab {
    pub(super) sets: Vec<PairSet>,
    /// Points of attention weights, each with the index of its set.
    pairs: Vec<(usize, usize)>,
    /// Captured rows by point, then by the index of the token in the batch.
    pub(super) captures: BTreeMap<usize, BTreeMap<usize, i32>>,
    /// Edits; those of one sequence are in their order. Different sequences edit different rows.
    pub(super) edits: Vec<PassEdit>,
}

impl PassLab {
    /// The captures and edits of the sequences of a batch. Points of the output head have rows only for tokens that
    /// want a result.
    pub(super) fn of(
        labs: &HashMap<SequenceId, Arc<Lab>>,
        points: &Points,
        batch: &Batch,
        keys: Keys<'_>,
    ) -> Self {
        let mut this = Self::default();
        if labs.is_empty() {
            return this;
        }
        // Tokens of each sequence: their indices in the batch, and among the outputs if they want a result.
        let mut tokens: BTreeMap<SequenceId, Vec<(usize, Option<i32>)>> = BTreeMap::new();
        let mut n_outputs = 0;
        for (at, (sequence, _)) in batch.positions.iter().enumerate() {
            let output = batch.outputs[at].then_some(n_outputs);
            n_outputs += i32::from(batch.outputs[at]);
            if labs.contains_key(sequence) {
                tokens.entry(*sequence).or_default().push((at, output));
            }
        }
        for (sequence, tokens) in &tokens {
            let lab = &labs[sequence];
            let rows = |point: usize| {
                let is_of_head = points.all[point].is_of_head();
                tokens
                    .iter()
                    .filter_map(move |(at, output)| match is_of_head {
                        true => Some((*at, (*output)?)),
                        false => Some((*at, *at as i32)),
                    })
            };
            // Every pass returns the logits anyway.
            let captures = lab.captures.iter();
            let captures = captures.filter(|c| points.all[c.point].path != LOGITS);
            for capture in captures {
                let found = rows(capture.point);
                let found =
                    found.filter(|(at, _)| capture.positions.contains(batch.positions[*at].1));
                let mut found = found.peekable();
                if found.peek().is_some() {
                    this.captures
                        .entry(capture.point)
                        .or_default()
                        .extend(found);
                }
            }
            for (at, edit) in lab.edits.iter().enumerate() {
                let is_of = |token: &u32| {
                    let tokens = edit.tokens.as_ref();
                    tokens.is_none_or(|all| all.binary_search(token).is_ok())
                };
                let found = rows(edit.point).filter(|(at, _)| is_of(&batch.tokens[*at]));
                let found = found.filter_map(|(at, row)| {
                    let place = edit.positions.index_of(batch.positions[at].1)?;
                    Some((row, place))
                });
                let (rows, places): (Vec<i32>, Vec<usize>) = found.unzip();
                if !rows.is_empty() {
                    let lab = Arc::clone(lab);
                    this.edits.push(PassEdit {
                        lab,
                        at,
                        rows,
                        places,
                    });
                }
            }
        }
        this.set_apart(points, batch, keys);
        this
    }

    /// Moves captured attention weights to sets. Points of one KV group with the same tokens share their keys.
    fn set_apart(&mut self, points: &Points, batch: &Batch, keys: Keys<'_>) {
        let is_pairs = |at: &usize| points.all[*at].spec.parts == PointParts::Pairs;
        let of_pairs: Vec<usize> = self.captures.keys().copied().filter(is_pairs).collect();
        for point in of_pairs {
            let rows = self.captures.remove(&point).unwrap_or_default();
            let Some(group) = points.all[point].group else {
                continue;
            };
            let tokens: Vec<usize> = rows.into_keys().collect();
            let mut sets = self.sets.iter();
            let found = sets.position(|set| set.group == group && set.tokens == tokens);
            let found = found.unwrap_or_else(|| {
                self.sets.push(PairSet::new(group, tokens, batch, keys));
                self.sets.len() - 1
            });
            self.pairs.push((point, found));
        }
    }

    pub(super) fn shape(&self) -> LabShape {
        let captures = self.captures.iter();
        let step = |step: &PassEdit| {
            let LabEdit { point, op, .. } = step.edit();
            (*point, op.kind(), step.rows.len(), op.is_of_rows())
        };
        LabShape {
            captures: captures.map(|(point, rows)| (*point, rows.len())).collect(),
            edits: self.edits.iter().map(step).collect(),
            sets: self
                .sets
                .iter()
                .map(|set| (set.group, set.keys.len(), set.tokens.len()))
                .collect(),
            pairs: self.pairs.clone(),
        }
    }
}

/// The tensors of captured rows, by point.
pub(super) type CapturedTensors = Vec<(usize, Tensor)>;

pub(super) fn read(
    executor: &Executor,
    captured: &CapturedTensors,
    pass: &PassLab,
    batch: &Batch,
    out: &mut Vec<CapturedRow>,
) -> Result<(), TensorError> {
    let mut numbers: Vec<f32> = Vec::new();
    for (point, tensor) in captured {
        let set = pass.pairs.iter().find(|(own, _)| own == point);
        let set = set.map(|(_, set)| &pass.sets[*set]);
        // Indices in the batch and in the value.
        let tokens: Vec<(usize, usize)> = match (set, pass.captures.get(point)) {
            (Some(set), _) => set.tokens.iter().copied().zip(0..).collect(),
            (None, Some(rows)) => rows.iter().map(|(at, row)| (*at, *row as usize)).collect(),
            (None, None) => continue,
        };
        let n = tensor.elements() as usize;
        let n_rows = tensor.shape()[1] as usize;
        numbers.resize(n, 0.0);
        if tensor.ty() == TensorType::I32 {
            let mut ids = vec![0i32; n];
            executor.read(tensor, &mut ids)?;
            numbers.clear();
            numbers.extend(ids.into_iter().map(|id| id as f32));
        } else {
            executor.read(tensor, &mut numbers)?;
        }
        let width = n / n_rows.max(1);
        for (i, (at, row)) in tokens.iter().enumerate() {
            // The value has only the captured rows, or all rows.
            let row = if n_rows == tokens.len() { i } else { *row };
            let row = &numbers[row * width..(row + 1) * width];
            let (sequence, position) = batch.positions[*at];
            out.push(CapturedRow {
                sequence,
                position,
                point: *point,
                row: match set {
                    Some(set) => set.row(i, row),
                    None => row.to_vec(),
                },
            });
        }
    }
    Ok(())
}
