//! The results of a request's lab plan: captured rows, lens logits, attributions.
//!
//! Each row is recorded once, in the order of positions, and only if its token is part of the sequence. Rows of
//! rejected draft tokens are dropped. Rows that are computed again after a preemption are not recorded again.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use crate::model::{
    Batch, CapturedRow, DirectHeads, DirectLogit, EncodedMedia, LOGITS, Lab, LabCapture, Point,
    Points, SequenceId,
};
use lab_sampling::{Logprobs, TokenLogprob};

use super::compute::LabCompute;
use super::event::Failure;
use super::lab::{CompiledLab, Reduction};
use super::lab_result::{
    AttributedRow, AttributionResult, CapturedPoint, LabResult, LensPoint, LensRow, MediumRows,
    OfMedium,
};
use crate::models::media::PromptMedia;

/// A hidden state whose lens logits are not computed yet.
struct PendingLens {
    /// Index of the point among those of the lens.
    at: usize,
    position: u32,
    row: Vec<f32>,
}

/// Records the results of a request's plan.
pub(super) struct Recorder {
    plan: CompiledLab,
    points: Arc<Points>,
    /// Tokens whose rows are recorded.
    n_taken: u32,
    result: LabResult,
    /// Numbers of elements of the rows that each capture has recorded.
    row_lens: Vec<Vec<usize>>,
    /// Hidden states whose lens logits are not computed yet.
    waiting: VecDeque<PendingLens>,
    /// The attributed logit, and the contributions of its heads, once they are known.
    direct: Option<(DirectLogit, Vec<DirectHeads>)>,
}

impl Recorder {
    pub(super) fn new(plan: CompiledLab, points: Arc<Points>) -> Self {
        let captures = plan
            .captures
            .iter()
            .map(|(of, name, capture, reduce)| CapturedPoint {
                of: *of,
                point: name.clone(),
                positions: Vec::new(),
                shape: match reduce {
                    Reduction::None | Reduction::Mean | Reduction::Max => {
                        points.all[capture.point].shape.clone()
                    }
                    Reduction::Norm => Vec::new(),
                    Reduction::TopK(k) => vec![(*k as u64).min(points.all[capture.point].width())],
                },
                reduce: *reduce,
                elements: Vec::new(),
                places: Vec::new(),
                of_medium: None,
            });
        let lens = plan.lens.iter().map(|(name, ..)| LensPoint {
            point: name.clone(),
            rows: Vec::new(),
        });
        Self {
            result: LabResult {
                captures: captures.collect(),
                lens: lens.collect(),
                attribution: None,
                tokens: Vec::new(),
                media: Vec::new(),
            },
            row_lens: vec![Vec::new(); plan.captures.len()],
            plan,
            points,
            n_taken: 0,
            waiting: VecDeque::new(),
            direct: None,
        }
    }

    /// The captures and edits that the model executes.
    pub(super) fn lab(&self) -> &Arc<Lab> {
        &self.plan.lab
    }

    /// The first position whose row is still wanted.
    pub(super) fn next_wanted(&self) -> Option<usize> {
        let next = self.plan.lab.next_captured(self.n_taken);
        next.map(|next| next as usize)
    }

    /// Requests an output row for the tokens of a batch, from index `from` on, of which a value in the head is
    /// captured.
    pub(super) fn want(&self, batch: &mut Batch, from: usize) {
        let of_head = |capture: &&LabCapture| self.point(capture).path.starts_with("head.");
        let captures = self.plan.lab.captures().iter().filter(of_head);
        for capture in captures {
            let places = batch.positions[from..].iter();
            for ((_, position), wanted) in places.zip(&mut batch.outputs[from..]) {
                *wanted |= capture.positions.contains(*position);
            }
        }
    }

    /// The row of a token's logits, if they are captured.
    pub(super) fn logits(&self, place: (SequenceId, u32), logits: &[f32]) -> Option<CapturedRow> {
        let (sequence, position) = place;
        let is_it =
            |c: &&LabCapture| self.point(c).path == LOGITS && c.positions.contains(position);
        let found = self.plan.lab.captures().iter().find(is_it)?;
        (position >= self.n_taken).then(|| CapturedRow {
            sequence,
            position,
            point: found.point,
            row: logits.to_vec(),
        })
    }

    fn point(&self, capture: &LabCapture) -> &Point {
        &self.points.all[capture.point]
    }

    /// Records the rows of tokens before position `n`; at each point their positions ascend. The model
    /// computes the logits of the attribution. The hidden states of the lens wait for [`Self::run_lens`].
    pub(super) fn take<'a>(
        &mut self,
        rows: impl Iterator<Item = &'a CapturedRow>,
        n: u32,
        sequence: SequenceId,
        model: &mut impl LabCompute,
    ) -> Result<(), Failure> {
        let mut new: HashMap<usize, Vec<&CapturedRow>> = HashMap::new();
        for row in rows.filter(|row| (self.n_taken..n).contains(&row.position)) {
            new.entry(row.point).or_default().push(row);
        }
        let of = |capture: &LabCapture| new.get(&capture.point).into_iter().flatten().copied();
        for (at, (_, _, capture, reduce)) in self.plan.captures.iter().enumerate() {
            for row in of(capture).filter(|row| capture.positions.contains(row.position)) {
                let out = &mut self.result.captures[at];
                out.positions.push(row.position);
                self.row_lens[at].push(row.row.len());
                add(out, *reduce, &row.row);
            }
        }
        for (at, (_, capture, _)) in self.plan.lens.iter().enumerate() {
            let own = of(capture).filter(|row| capture.positions.contains(row.position));
            self.waiting.extend(own.map(|row| PendingLens {
                at,
                position: row.position,
                row: row.row.clone(),
            }));
        }
        self.attribute(new.values().flatten().copied(), sequence, model)?;
        self.n_taken = self.n_taken.max(n);
        Ok(())
    }

    /// Whether hidden states wait for their logits.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Runs the lens on at most the first `most` waiting hidden states, all in one product. Returns how many it
    /// read.
    pub(super) fn run_lens(
        &mut self,
        most: usize,
        sequence: SequenceId,
        model: &mut impl LabCompute,
    ) -> Result<usize, Failure> {
        let width = self.waiting.front().map_or(0, |first| first.row.len());
        let own = self.waiting.iter().take(most);
        let n = own.take_while(|next| next.row.len() == width).count();
        if n == 0 {
            return Ok(0);
        }
        let rows: Vec<PendingLens> = self.waiting.drain(..n).collect();
        let mut hidden = Vec::with_capacity(n * width);
        for waiting in &rows {
            let layer = self.plan.lens[waiting.at].2;
            match (&self.plan.translators, layer) {
                (Some(all), Some(layer)) => hidden.extend(all.translated(layer, &waiting.row)),
                _ => hidden.extend(&waiting.row),
            }
        }
        let logits = model.lens(sequence, (&hidden, width))?;
        for (waiting, logits) in rows
            .iter()
            .zip(logits.chunks_exact((logits.len() / n).max(1)))
        {
            let logprobs = Logprobs::new(logits)?;
            let target = |id: &u32| {
                let (logprob, rank) = (logprobs.of(*id)?, logprobs.rank(*id)?);
                Some((TokenLogprob { id: *id, logprob }, rank))
            };
            self.result.lens[waiting.at].rows.push(LensRow {
                position: waiting.position,
                top: logprobs.top(self.plan.top_k),
                targets: self.plan.targets.iter().filter_map(target).collect(),
            });
        }
        Ok(n)
    }

    /// Attributes the logit to its parts at the positions of new tokens.
    fn attribute<'a>(
        &mut self,
        new: impl Iterator<Item = &'a CapturedRow>,
        sequence: SequenceId,
        model: &mut impl LabCompute,
    ) -> Result<(), Failure> {
        let Some(asked) = &self.plan.attribution else {
            return Ok(());
        };
        let positions = asked.states.first().map(|capture| &capture.positions);
        let mut by_position: BTreeMap<u32, HashMap<usize, &[f32]>> = BTreeMap::new();
        for row in new {
            if positions.is_some_and(|all| all.contains(row.position)) {
                let own = by_position.entry(row.position).or_default();
                own.insert(row.point, &row.row);
            }
        }
        by_position.retain(|_, rows| asked.captures().all(|c| rows.contains_key(&c.point)));
        let Some(end) = asked.states.last().filter(|_| !by_position.is_empty()) else {
            return Ok(());
        };
        let last = by_position.values().filter_map(|rows| rows.get(&end.point));
        let last: Vec<f32> = last.flat_map(|x| x.to_vec()).collect();
        // All rows at once, because a single row reads as many weights.
        let logits = model.lens(sequence, (&last, last.len() / by_position.len()))?;
        let width = logits.len() / by_position.len();
        if self.direct.is_none() {
            let direct = model.direct_logit(asked.of)?;
            let of_heads = asked.heads.iter();
            let of_heads = of_heads.map(|of| model.direct_heads(of.at, &direct.direction));
            let of_heads = of_heads.collect::<Result<_, _>>()?;
            self.direct = Some((direct, of_heads));
        }
        let Some((direct, of_heads)) = &self.direct else {
            return Ok(());
        };
        let out = self
            .result
            .attribution
            .get_or_insert_with(|| AttributionResult {
                of: asked.of,
                parts: asked.parts.clone(),
                rows: Vec::new(),
            });
        let logits = logits.chunks_exact(width.max(1));
        for ((position, rows), logits) in by_position.into_iter().zip(logits) {
            let row = |capture: &LabCapture| rows.get(&capture.point).copied().unwrap_or_default();
            let by = direct.divisor_of(row(end));
            let mut values = Vec::with_capacity(asked.parts.len());
            let mut before = 0.0;
            for (state, capture) in asked.states.iter().enumerate() {
                let all = product(row(capture), &direct.direction) / by;
                let mut rest = all - std::mem::replace(&mut before, all);
                let heads = asked.heads.iter().zip(of_heads);
                for (own, linear) in heads.filter(|(own, _)| own.state == state) {
                    let norms = linear.divisors.iter().zip(&own.normed);
                    let norms = norms.map(|(norm, read)| norm.of(row(read)));
                    let by = norms.fold(by, |by, norm| by * norm);
                    let results = row(&own.results);
                    let size = (results.len() / own.n.max(1)).max(1);
                    let heads = results.chunks(size).zip(linear.direction.chunks(size));
                    for (head, along) in heads {
                        let value = product(head, along) / by;
                        rest -= value;
                        values.push(value);
                    }
                }
                values.push(rest);
            }
            out.rows.push(AttributedRow {
                position,
                logit: logits.get(asked.of as usize).copied().unwrap_or(f32::NAN),
                constant: direct.constant,
                values,
            });
        }
        Ok(())
    }

    /// The points of towers that are captured.
    pub(super) fn of_towers(&self) -> impl Iterator<Item = &Point> {
        let captured = self
            .plan
            .captures
            .iter()
            .map(|(_, _, capture, _)| self.point(capture));
        captured.filter(|point| point.tower.is_some())
    }

    /// Puts the rows of each medium in the place of a captured value of a tower.
    fn add_towers(&mut self, media: &PromptMedia, encoded: &EncodedMedia) {
        let empty = std::mem::take(&mut self.result.captures);
        for (own, (_, _, capture, reduce)) in empty.into_iter().zip(&self.plan.captures) {
            let point = &self.points.all[capture.point];
            let Some(tower) = point.tower else {
                self.result.captures.push(own);
                continue;
            };
            let of_kind = media.media.iter().enumerate();
            let of_kind = of_kind.filter(|(_, medium)| medium.media == tower.media);
            for (medium, _) in of_kind {
                let Some(captured) = encoded.captured(medium, point) else {
                    continue;
                };
                let mut out = CapturedPoint::like(&own);
                for row in captured
                    .elements
                    .chunks_exact(point.width().max(1) as usize)
                {
                    out.positions.push(out.positions.len() as u32);
                    add(&mut out, *reduce, row);
                }
                if *reduce == Reduction::Mean {
                    let n = out.positions.len().max(1) as f32;
                    out.elements.iter_mut().for_each(|e| *e /= n);
                }
                out.of_medium = Some(OfMedium {
                    medium,
                    n_of_views: captured.n_of_views.clone(),
                });
                self.result.captures.push(out);
            }
        }
        self.result.media = MediumRows::of(media, encoded);
    }

    /// The results, with the tokens of the sequence and the media of its prompt.
    pub(super) fn finish(
        mut self,
        tokens: Vec<u32>,
        media: Option<(&PromptMedia, &EncodedMedia)>,
    ) -> LabResult {
        self.result.tokens = tokens;
        self.complete_rows();
        if let Some((media, encoded)) = media {
            self.add_towers(media, encoded);
        }
        self.result
    }

    fn complete_rows(&mut self) {
        let result = &mut self.result;
        for (captured, lens) in result.captures.iter_mut().zip(&self.row_lens) {
            let n = lens.len();
            if let [n_kv @ 0, heads] = captured.shape.as_mut_slice() {
                let heads = (*heads).max(1) as usize;
                let most = lens.iter().max().map_or(0, |len| len / heads);
                *n_kv = most as u64;
                captured.elements = padded(&captured.elements, lens, heads, most);
            }
            if captured.reduce == Reduction::Mean && n > 0 {
                captured.elements.iter_mut().for_each(|e| *e /= n as f32);
            }
        }
    }
}

/// Pads rows of these lengths so that each head has `most` elements. Later tokens attend to more keys. Keys that a
/// token does not attend to have weight zero.
fn padded(elements: &[f32], lens: &[usize], heads: usize, most: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(lens.len() * heads * most);
    let mut rest = elements;
    for len in lens {
        let (row, after) = rest.split_at(*len);
        rest = after;
        for head in row.chunks((len / heads).max(1)) {
            out.extend(head);
            out.extend(std::iter::repeat_n(0.0, most - head.len()));
        }
    }
    out
}

fn product(row: &[f32], direction: &[f64]) -> f64 {
    let pairs = row.iter().zip(direction);
    pairs.map(|(x, d)| f64::from(*x) * d).sum()
}

/// Adds a row to the reduced rows.
fn add(out: &mut CapturedPoint, reduce: Reduction, row: &[f32]) {
    match reduce {
        Reduction::None => out.elements.extend(row),
        Reduction::Norm => {
            let squares = row.iter().map(|e| f64::from(*e).powi(2));
            out.elements.push(squares.sum::<f64>().sqrt() as f32);
        }
        Reduction::Mean | Reduction::Max if out.elements.is_empty() => out.elements.extend(row),
        Reduction::Mean => {
            let pairs = out.elements.iter_mut().zip(row);
            pairs.for_each(|(sum, e)| *sum += e);
        }
        Reduction::Max => {
            let pairs = out.elements.iter_mut().zip(row);
            pairs.for_each(|(most, e)| *most = most.max(*e));
        }
        Reduction::TopK(k) => out.push_top(k, row),
    }
}

impl CapturedPoint {
    /// The same value without elements.
    pub fn like(other: &Self) -> Self {
        Self {
            of: other.of,
            point: other.point.clone(),
            positions: other.positions.clone(),
            shape: other.shape.clone(),
            reduce: other.reduce,
            elements: Vec::new(),
            places: Vec::new(),
            of_medium: other.of_medium.clone(),
        }
    }

    /// Adds the `k` largest elements of a row, with their indices.
    pub fn push_top(&mut self, k: usize, row: &[f32]) {
        let mut places: Vec<u32> = (0..row.len() as u32).collect();
        let larger = |a: &u32, b: &u32| {
            let order = row[*b as usize].total_cmp(&row[*a as usize]);
            order.then(a.cmp(b))
        };
        if (1..places.len()).contains(&k) {
            places.select_nth_unstable_by(k - 1, larger);
            places.truncate(k);
        }
        places.sort_unstable_by(larger);
        places.truncate(k);
        let elements = places.iter().map(|at| row[*at as usize]);
        self.elements.extend(elements);
        self.places.extend(places);
    }
}
