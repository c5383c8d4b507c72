//! What sequences ask of the points of their passes: rows to capture, edits of rows.
//!
//! A sequence has one [`Lab`] from its start to its end, as it has scales of adapters. Sequences with and
//! without share a pass: an edit writes only the rows of its own tokens. What a pass asks is collected
//! point by point, so that all sequences that read a point share one operation.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::arch::Parts;
use crate::blocks::lab::{EditKind, NODES_PER_CAPTURE, NODES_PER_EDIT};
use crate::ggml::{Error as TensorError, Executor, Tensor};
use crate::weights::TensorType;

mod pairs;
mod positions;

use pairs::{Keys, PairSet};
pub use positions::Positions;

use super::batch::Batch;
use super::cache::SequenceId;
use super::points::{LOGITS, Points};

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
    /// Puts an earlier value there, by the place of its point.
    Copy {
        /// That place.
        from: usize,
    },
    /// Bounds a feature: what it changes by is added along a direction.
    Feature {
        /// What the row is multiplied by to give the feature.
        encoder: Vec<f32>,
        /// The direction.
        decoder: Vec<f32>,
        /// What is added to the product.
        bias: f32,
        /// The feature is 0 unless it is above.
        threshold: f32,
        /// The bounds.
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

    /// Its numbers, of each row in turn if they differ: `places` are those of the rows among the positions
    /// of the edit.
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

    /// Whether each row has numbers of its own.
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

/// A change of rows of a point.
#[derive(Clone, Debug, PartialEq)]
pub struct LabEdit {
    /// Its place among the points of the model.
    pub point: usize,
    /// Of which positions.
    pub positions: Positions,
    /// Of these, the ones where a token with one of these ids is read, in rising order; none: any token.
    pub tokens: Option<Arc<[u32]>>,
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
pub struct CapturedRow {
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
    pub(super) edits: Vec<EditShape>,
    /// Tokens and keys of attention weights: group of layers, keys, tokens.
    pub(super) sets: Vec<(usize, usize, usize)>,
    /// Points of attention weights, each with its set.
    pub(super) pairs: Vec<(usize, usize)>,
}

/// An edit of a sequence: point, kind, rows, and whether each has numbers of its own.
pub(super) type EditShape = (usize, EditKind, usize, bool);

impl LabShape {
    pub(super) fn is_empty(&self) -> bool {
        self.captures.is_empty() && self.edits.is_empty() && self.pairs.is_empty()
    }

    /// Operations and inputs that it adds to a graph.
    pub(super) fn n_nodes(&self) -> usize {
        let n_captures = self.captures.len() + self.pairs.len() + self.sets.len();
        n_captures * NODES_PER_CAPTURE + self.edits.len() * NODES_PER_EDIT
    }
}

/// An edit of tokens of a sequence.
pub(super) struct PassEdit {
    lab: Arc<Lab>,
    /// Which of its edits.
    at: usize,
    pub(super) rows: Vec<i32>,
    /// The places of the rows among the positions of the edit.
    places: Vec<usize>,
}

impl PassEdit {
    fn edit(&self) -> &LabEdit {
        &self.lab.edits[self.at]
    }

    /// The numbers of its inputs.
    pub(super) fn numbers(&self) -> [Cow<'_, [f32]>; 2] {
        self.edit().op.numbers(&self.places)
    }
}

/// What a pass asks of its points.
#[derive(Default)]
pub(super) struct PassLab {
    pub(super) sets: Vec<PairSet>,
    /// Points of attention weights, each with its set.
    pairs: Vec<(usize, usize)>,
    /// Rows by point, by the places of their tokens in the batch.
    pub(super) captures: BTreeMap<usize, BTreeMap<usize, i32>>,
    /// Those of a sequence in their order; sequences have different rows.
    pub(super) edits: Vec<PassEdit>,
}

impl PassLab {
    /// What the sequences of a batch ask. Points after the head have rows for outputs alone.
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
        // Tokens of each sequence: their places in the batch and, if they have one, among the outputs.
        let mut tokens: BTreeMap<SequenceId, Vec<(usize, Option<i32>)>> = BTreeMap::new();
        let mut n_outputs = 0;
        for (at, (sequence, _)) in batch.places.iter().enumerate() {
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
            // The logits are a result of every pass.
            let captures = lab.captures.iter();
            let captures = captures.filter(|c| points.all[c.point].path != LOGITS);
            for capture in captures {
                let found = rows(capture.point);
                let found = found.filter(|(at, _)| capture.positions.contains(batch.places[*at].1));
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
                    let place = edit.positions.place(batch.places[at].1)?;
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

    /// Takes attention weights out of what is captured: points of one group and of the same tokens share
    /// their keys.
    fn set_apart(&mut self, points: &Points, batch: &Batch, keys: Keys<'_>) {
        let is_pairs = |at: &usize| points.all[*at].spec.parts == Parts::Pairs;
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

/// Captured rows of a graph by point.
pub(super) type CapturedTensors = Vec<(usize, Tensor)>;

/// Reads the rows that a pass captured.
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
        // Places in the batch, and in the value.
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
            // The value has the rows that are captured, or all.
            let row = if n_rows == tokens.len() { i } else { *row };
            let row = &numbers[row * width..(row + 1) * width];
            let (sequence, position) = batch.places[*at];
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
