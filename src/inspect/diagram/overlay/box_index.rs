//! Finds the box of each number, and combines the numbers of each box.
//!
//! An operation belongs to the box that was drawn for it: the one at the same index of the same list of operations. If
//! a pass ran another list than the one drawn, or the operation is folded into an edge, it belongs to the box of its
//! part. A value belongs to the operation whose result has its name in the drawn graph. If the drawn graph has no such
//! name, it belongs to the part or slot with the longest matching path prefix.

use std::collections::HashMap;

use super::super::boxes::BoxNote;
use super::{Aggregation, Measurement, Overlay};
use crate::diagram::ops::root;
use crate::diagram::{Drawing, Slot, TracedPlan, UnitBox};
use lab_base::ggml::OpSource;

pub(super) struct BoxValue {
    pub(super) value: f64,
    /// The layer of the largest number.
    pub(super) layer: Option<usize>,
}

/// A box of a drawing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BoxId {
    /// An operation of a part: indices of the part and of the operation.
    Op(usize, usize),
    /// A part, as an index in [`Drawing::parts`].
    Part(usize),
    /// The wiring that joins a slot to the hidden state: indices of the kind and of the slot.
    Slot(usize, usize),
    Kind(usize),
    Layer(usize),
}

/// The innermost box of a number, and the layer of the number.
pub type BoxInLayer = (BoxId, Option<usize>);

pub(super) fn enclosing_boxes(drawing: &Drawing, (box_id, layer): BoxInLayer) -> Vec<BoxId> {
    let mut all = vec![box_id];
    if let BoxId::Op(part, _) = box_id {
        all.push(BoxId::Part(part));
    }
    if let Some(at) = layer {
        all.extend([BoxId::Layer(at), BoxId::Kind(drawing.layers[at])]);
    }
    all.dedup();
    all
}

/// Sets the note of each box. `of` gets the box and the number of layers that it represents.
pub(in crate::diagram) fn annotate(drawing: &mut Drawing, of: impl Fn(BoxId, usize) -> BoxNote) {
    for (at, part) in drawing.parts_mut().enumerate() {
        let n = part.paths.len();
        for (nth, op) in part.ops.iter_mut().enumerate() {
            op.note = of(BoxId::Op(at, nth), n);
        }
        part.note = of(BoxId::Part(at), n);
    }
    for (at, kind) in drawing.kinds.iter_mut().enumerate() {
        let n = kind.layers.len();
        for (nth, slot) in kind.slots.iter_mut().enumerate() {
            slot.note = of(BoxId::Slot(at, nth), n);
        }
        kind.note = of(BoxId::Kind(at), n);
    }
}

#[derive(Default)]
pub(super) struct BoxValues {
    pub(super) boxes: HashMap<BoxId, BoxValue>,
    /// The paths that are in no box, with their numbers, in the order of the file.
    pub(super) outside: Vec<(String, f64)>,
    pub(super) first: Option<BoxInLayer>,
}

pub(super) fn sums(overlay: &Overlay, drawing: &Drawing, sample: &TracedPlan) -> BoxValues {
    let finder = BoxIndex::new(drawing, sample);
    let mut sums = BoxValues::default();
    for number in &overlay.numbers {
        let value = number.value;
        let Some(place) = finder.find(number) else {
            sums.outside.push((number.path.clone(), value));
            continue;
        };
        let layer = place.1;
        for box_id in enclosing_boxes(drawing, place) {
            let known = sums
                .boxes
                .entry(box_id)
                .and_modify(|sum| match overlay.rule {
                    Aggregation::Time => sum.value += value,
                    Aggregation::Largest if sum.value >= value => {}
                    Aggregation::Largest => *sum = BoxValue { value, layer },
                });
            known.or_insert(BoxValue { value, layer });
        }
    }
    let first = overlay.first.as_ref();
    sums.first = first.and_then(|first| finder.of_path(&first.path));
    sums
}

/// An index from paths and operations to boxes. A file has many more numbers than a drawing has boxes, so the cost of a
/// lookup does not grow with the drawing.
pub(super) struct BoxIndex<'a> {
    sample: &'a TracedPlan,
    layers: HashMap<&'a str, usize>,
    /// Boxes of slots, of parts, of inputs and outputs of slots, and of named results.
    paths: HashMap<String, BoxInLayer>,
    /// Size of the longest of these paths, in bytes.
    longest: usize,
    /// Boxes of the drawn operations, for every layer of the graph.
    boxes_of_ops: HashMap<usize, BoxInLayer>,
    /// Operations of the graph that compute something, by kind, path and use.
    uses: HashMap<(&'a str, &'a str, u64), Vec<usize>>,
    /// The part that computes the further inputs of all layers.
    per_layer: Option<BoxId>,
}

impl<'a> BoxIndex<'a> {
    pub(super) fn new(drawing: &Drawing, sample: &'a TracedPlan) -> Self {
        let layers = sample.plan().layers.iter().enumerate();
        let layers = layers.map(|(at, layer)| (layer.path.as_str(), at));
        let mut of_kind = drawing.parts().map(|part| part.kind);
        let per_layer = of_kind.position(|kind| kind == "per_layer_input");
        let mut finder = Self {
            sample,
            layers: layers.collect(),
            paths: HashMap::new(),
            longest: 0,
            boxes_of_ops: HashMap::new(),
            uses: HashMap::new(),
            per_layer: per_layer.map(BoxId::Part),
        };
        // A later entry replaces an equal path: a block replaces a norm, and a named result replaces all others. A slot
        // replaces none.
        let drawn = finder.index_drawing(drawing);
        finder.index_homes(drawing, &drawn);
        finder.index_results();
        finder.longest = finder.paths.keys().map(String::len).max().unwrap_or(0);
        finder
    }

    /// Indexes the boxes by path. Returns the boxes of the drawn operations.
    fn index_drawing(&mut self, drawing: &Drawing) -> HashMap<usize, BoxId> {
        let mut drawn: HashMap<usize, BoxId> = HashMap::new();
        let parts: Vec<&UnitBox> = drawing.parts().collect();
        for (at, part) in parts.iter().enumerate() {
            for path in &part.paths {
                let place = (BoxId::Part(at), self.layer_of(path));
                self.paths.insert(path.clone(), place);
            }
            for (nth, op) in part.ops.iter().enumerate() {
                drawn.extend(op.steps.iter().map(|step| (*step, BoxId::Op(at, nth))));
            }
        }
        for (kind, own) in drawing.kinds.iter().enumerate() {
            for (nth, slot) in own.slots.iter().enumerate() {
                let box_id = BoxId::Slot(kind, nth);
                drawn.extend(slot.wiring().map(|at| (at, box_id)));
                // The input of a slot, its output, and the hidden state after it.
                let makers = [
                    ("in", slot.pre.as_ref()),
                    ("out", out(slot)),
                    ("x", slot.after.as_ref()),
                ];
                let results = makers.map(|(value, maker)| {
                    let is_maker =
                        |part: &&UnitBox| maker.is_some_and(|own| std::ptr::eq(*part, own));
                    let made = parts.iter().position(is_maker);
                    // The last operation of a part computes its result.
                    let result = made.map(|at| match parts[at].ops.len().checked_sub(1) {
                        None => BoxId::Part(at),
                        Some(last) => BoxId::Op(at, last),
                    });
                    (value, result.unwrap_or(box_id))
                });
                for at in &own.layers {
                    let path = &self.sample.plan().layers[*at].slots[nth].path;
                    self.paths
                        .entry(path.clone())
                        .or_insert((box_id, Some(*at)));
                    let named = |(value, box_id)| (format!("{path}.{value}"), (box_id, Some(*at)));
                    self.paths.extend(results.map(named));
                }
            }
        }
        drawn
    }

    /// Indexes the boxes of all operations. Of each kind, the first layer is drawn; its other layers have the same
    /// operations in the same order.
    fn index_homes(&mut self, drawing: &Drawing, drawn: &HashMap<usize, BoxId>) {
        let mut of_layer = vec![Vec::new(); drawing.layers.len()];
        let mut boxes_of_ops = HashMap::new();
        for (at, step) in self.sample.steps().iter().enumerate() {
            match self.layer_of(&step.path) {
                Some(layer) => of_layer[layer].push(at),
                None => boxes_of_ops.extend(drawn.get(&at).map(|box_id| (at, (*box_id, None)))),
            }
        }
        for (layer, steps) in of_layer.iter().enumerate() {
            let first = drawing.kinds[drawing.layers[layer]].layers[0];
            let likes = of_layer[first].iter().zip(steps);
            let box_id =
                |(like, at): (&usize, &usize)| Some((*at, (*drawn.get(like)?, Some(layer))));
            boxes_of_ops.extend(likes.filter_map(box_id));
        }
        self.boxes_of_ops = boxes_of_ops;
    }

    /// Indexes operations by their use, and boxes by named result, possibly in another layout.
    fn index_results(&mut self) {
        let steps = self.sample.steps();
        let mut names: HashMap<&str, Option<BoxInLayer>> = HashMap::new();
        for (at, step) in steps.iter().enumerate() {
            let box_id = match root(steps, &OpSource::Op(at)) {
                OpSource::Op(at) => self.boxes_of_ops.get(&at).copied(),
                _ => None,
            };
            names.insert(&step.name, box_id);
            if !step.is_view {
                let key = (step.kind, step.path.as_str(), u64::from(step.nth));
                self.uses.entry(key).or_default().push(at);
            }
        }
        let known = names.into_iter();
        let known = known.filter_map(|(name, place)| Some((name.to_owned(), place?)));
        self.paths.extend(known);
    }

    fn layer_of(&self, path: &str) -> Option<usize> {
        let end = path.match_indices('.').nth(1);
        let end = end.map_or(path.len(), |(at, _)| at);
        self.layers.get(&path[..end]).copied()
    }

    pub(super) fn find(&self, number: &Measurement) -> Option<BoxInLayer> {
        let Some(op) = &number.op else {
            return self.of_path(&number.path);
        };
        // Taking one layer's input belongs to the part that computes the inputs of all layers.
        if op.kind == "per_layer" {
            return Some((self.per_layer?, None));
        }
        let use_of = (op.kind.as_str(), number.path.as_str(), op.nth);
        let steps = self.uses.get(&use_of)?;
        let names = steps.iter().map(|at| &self.sample.steps()[*at].op);
        let drawn = steps.get(op.at).filter(|_| names.eq(op.all.iter()));
        let box_id = drawn.and_then(|at| self.boxes_of_ops.get(at)).copied();
        let any = || match steps.iter().find_map(|at| self.boxes_of_ops.get(at))? {
            (BoxId::Op(part, _), layer) => Some((BoxId::Part(*part), *layer)),
            other => Some(*other),
        };
        box_id
            .or_else(any)
            .or_else(|| self.paths.get(&number.path).copied())
    }

    /// The box of a value, a unit, a slot or a layer: its own, or that of the longest path above it.
    fn of_path(&self, path: &str) -> Option<BoxInLayer> {
        if let Some(layer) = self.layers.get(path) {
            return Some((BoxId::Layer(*layer), Some(*layer)));
        }
        let above = std::iter::successors(Some(path), |path| Some(path.rsplit_once('.')?.0));
        let mut known = above.filter(|path| path.len() <= self.longest);
        known.find_map(|path| self.paths.get(path).copied())
    }
}

/// The part that computes the output of a slot, if it is a single part.
fn out(slot: &Slot) -> Option<&UnitBox> {
    match (slot.branches.as_slice(), &slot.post, &slot.scale) {
        (_, _, Some(_)) => None,
        (_, Some(post), None) => Some(post),
        ([branch], None, None) if branch.factor.is_none() => {
            Some(branch.post.as_ref().unwrap_or(&branch.block))
        }
        _ => None,
    }
}
