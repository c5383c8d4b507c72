//! The box of each number, and what the numbers of a box come to.
//!
//! An operation belongs to the box that was drawn of it: the one at the same place of the same list of
//! operations. Where a pass ran another list than the one drawn, and where an operation is folded into
//! an edge, its part is its box. A value belongs to the operation whose result has its name in the drawn
//! graph, or, where the drawn graph has no such name, to the part or slot whose path it begins with.

use std::collections::HashMap;
use std::ops::Range;

use super::{Overlay, Rule, Spot};
use crate::ggml::Origin;
use crate::inspect::diagram::kinds::without_index;
use crate::inspect::diagram::ops::root;
use crate::inspect::diagram::{Drawing, Part, Sample, Slot};

/// What the numbers of a box come to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Sum {
    /// None if the box has no number.
    pub(super) value: Option<f64>,
    /// Where the largest is.
    pub(super) layer: Option<usize>,
}

impl Sum {
    fn add(&mut self, rule: Rule, value: f64, layer: Option<usize>) {
        let before = self.value;
        match (rule, before) {
            (Rule::Time, _) => self.value = Some(before.unwrap_or(0.0) + value),
            (Rule::Largest, Some(before)) if before >= value => {}
            (Rule::Largest, _) => {
                *self = Self {
                    value: Some(value),
                    layer,
                }
            }
        }
    }
}

/// The innermost box of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Home {
    /// A part, and the operation of it.
    Op(usize, usize),
    /// A part, by its place in [`Drawing::parts`].
    Part(usize),
    /// What joins a slot to the stream: kind, slot.
    Slot(usize, usize),
    /// A layer as a whole.
    Layer,
}

/// What the numbers of all boxes come to.
#[derive(Default)]
pub(super) struct Sums {
    /// In the order of [`Drawing::parts`], with all operations.
    pub(super) parts: Vec<Sum>,
    /// By part.
    pub(super) ops: Vec<Vec<Sum>>,
    /// By kind.
    pub(super) slots: Vec<Vec<Sum>>,
    pub(super) kinds: Vec<Sum>,
    pub(super) layers: Vec<Sum>,
    /// Paths in no box with their numbers, in the order of the file.
    pub(super) outside: Vec<(String, f64)>,
    /// Numbers in boxes.
    pub(super) n_placed: usize,
    /// Units and places that ran other operations than are drawn.
    pub(super) n_otherwise: usize,
    /// Where the first difference is.
    pub(super) first: Option<(Home, Option<usize>)>,
}

/// Adds up the numbers of every box.
pub(super) fn sums(overlay: &Overlay, drawing: &Drawing, sample: &Sample) -> Sums {
    let finder = Finder::new(drawing, sample);
    let parts = || finder.parts.iter();
    let mut sums = Sums {
        parts: vec![Sum::default(); finder.parts.len()],
        ops: parts().map(|p| vec![Sum::default(); p.ops.len()]).collect(),
        slots: drawing
            .kinds
            .iter()
            .map(|k| vec![Sum::default(); k.slots.len()])
            .collect(),
        kinds: vec![Sum::default(); drawing.kinds.len()],
        layers: vec![Sum::default(); drawing.layers.len()],
        ..Sums::default()
    };
    for number in &overlay.numbers {
        let Some((home, layer)) = finder.find(&number.spot) else {
            let path = number.spot.path().to_owned();
            sums.outside.push((path, number.value));
            continue;
        };
        sums.n_placed += 1;
        sums.n_otherwise += usize::from(finder.ran_otherwise(&number.spot));
        sums.add(overlay.rule, drawing, home, layer, number.value);
    }
    let first = overlay.first.as_ref();
    sums.first = first.and_then(|first| finder.of_path(&first.path));
    sums
}

impl Sums {
    fn add(&mut self, rule: Rule, drawing: &Drawing, home: Home, layer: Option<usize>, value: f64) {
        let add = |sum: &mut Sum| sum.add(rule, value, layer);
        match home {
            Home::Op(part, op) => {
                add(&mut self.parts[part]);
                add(&mut self.ops[part][op]);
            }
            Home::Part(part) => add(&mut self.parts[part]),
            Home::Slot(kind, slot) => add(&mut self.slots[kind][slot]),
            Home::Layer => {}
        }
        if let Some(layer) = layer {
            add(&mut self.layers[layer]);
            add(&mut self.kinds[drawing.layers[layer]]);
        }
    }
}

/// Boxes by what belongs to them. A file has many more numbers than a drawing has boxes, so what a number
/// takes does not grow with the drawing.
struct Finder<'a> {
    drawing: &'a Drawing,
    sample: &'a Sample,
    parts: Vec<&'a Part>,
    /// Of each kind, its parts.
    of_kind: Vec<Range<usize>>,
    layers: HashMap<&'a str, usize>,
    /// Parts by kind, path and use, with the layer.
    units: HashMap<(&'a str, &'a str, u64), (usize, Option<usize>)>,
    /// Of blocks and stages, the last part with a path in a layer.
    owners: HashMap<(Option<usize>, &'a str), usize>,
    slots: HashMap<&'a str, (usize, usize, usize)>,
    /// What goes into a slot, comes out of it, and leaves it as the stream, by kind and path.
    joins: HashMap<(usize, &'a str), [Home; 3]>,
    /// Bytes of the longest path of a part or slot.
    longest: usize,
    /// The part that makes the further inputs of layers.
    per_layer: Option<usize>,
    /// Operations of the drawn graph that compute something, by kind, path and use.
    steps: HashMap<(&'a str, &'a str, u64), Vec<usize>>,
    /// By part and operation of the drawn graph, the operation that is drawn of it.
    ops: HashMap<(usize, usize), usize>,
    /// Boxes of the operations of the drawn graph that are drawn.
    homes: HashMap<usize, Home>,
    /// Boxes of named results, perhaps in another layout.
    names: HashMap<&'a str, Home>,
}

impl<'a> Finder<'a> {
    fn new(drawing: &'a Drawing, sample: &'a Sample) -> Self {
        let parts: Vec<&Part> = drawing.parts().collect();
        let mut start = drawing.begin.len();
        let of_kind = drawing.kinds.iter().map(|kind| {
            let n: usize = kind.slots.iter().map(|slot| slot.parts().count()).sum();
            let range = start..start + n;
            start += n;
            range
        });
        let layers = &sample.plan().layers;
        let mut finder = Self {
            of_kind: of_kind.collect(),
            layers: (0..)
                .zip(layers)
                .map(|(at, l)| (l.path.as_str(), at))
                .collect(),
            owners: HashMap::new(),
            slots: HashMap::new(),
            joins: HashMap::new(),
            longest: 0,
            // Taking the input of one layer is part of making those of all.
            per_layer: parts.iter().position(|part| part.kind == "per_layer_input"),
            units: HashMap::new(),
            steps: HashMap::new(),
            ops: HashMap::new(),
            homes: HashMap::new(),
            names: HashMap::new(),
            drawing,
            sample,
            parts,
        };
        finder.index_parts();
        finder.index_slots();
        finder.index_homes();
        finder.index_steps();
        finder
    }

    fn index_parts(&mut self) {
        let mut uses: HashMap<(&str, &str), u64> = HashMap::new();
        for (at, part) in self.parts.iter().enumerate() {
            let kind = self.of_kind.iter().position(|range| range.contains(&at));
            let layers = kind.map(|kind| &self.drawing.kinds[kind].layers);
            for (nth, path) in part.paths.iter().enumerate() {
                let times = uses.entry((part.kind, path)).or_default();
                let layer = layers.and_then(|layers| layers.get(nth)).copied();
                self.units.insert((part.kind, path, *times), (at, layer));
                *times += 1;
                // A stage has one path; of a block each layer has one.
                if layer.is_some() || kind.is_none() && nth == 0 {
                    self.owners.insert((layer, path), at);
                    self.longest = self.longest.max(path.len());
                }
            }
        }
    }

    fn index_slots(&mut self) {
        for (at, layer) in self.sample.plan().layers.iter().enumerate() {
            for (slot, plan) in layer.slots.iter().enumerate() {
                let place = (self.drawing.layers[at], slot, at);
                self.slots.insert(&plan.path, place);
                self.longest = self.longest.max(plan.path.len());
            }
        }
        for (kind, range) in self.of_kind.iter().enumerate() {
            let mut start = range.start;
            for (nth, slot) in self.drawing.kinds[kind].slots.iter().enumerate() {
                let makers = [slot.pre.as_ref(), out(slot), slot.after.as_ref()];
                let homes = makers.map(|maker| {
                    let is_it = |part: &Part| maker.is_some_and(|maker| std::ptr::eq(part, maker));
                    let at = slot.parts().position(is_it);
                    at.map_or(Home::Slot(kind, nth), |at| self.last(start + at))
                });
                let key = (kind, slot.path.as_str());
                self.joins.entry(key).or_insert(homes);
                start += slot.parts().count();
            }
        }
    }

    fn index_homes(&mut self) {
        for (part, drawn) in self.parts.iter().enumerate() {
            for (op, steps) in drawn.ops.iter().map(|op| &op.steps).enumerate() {
                let home = Home::Op(part, op);
                self.homes.extend(steps.iter().map(|at| (*at, home)));
                self.ops.extend(steps.iter().map(|at| ((part, *at), op)));
            }
        }
        for (kind, drawn) in self.drawing.kinds.iter().enumerate() {
            for (nth, slot) in drawn.slots.iter().enumerate() {
                let home = Home::Slot(kind, nth);
                self.homes.extend(slot.wiring().map(|at| (at, home)));
            }
        }
    }

    fn index_steps(&mut self) {
        let steps = self.sample.steps();
        for (at, step) in steps.iter().enumerate() {
            let home = match root(steps, &Origin::Step(at)) {
                Origin::Step(at) => self.homes.get(&at).copied(),
                _ => None,
            };
            // Of equal names the last result counts.
            match home {
                Some(home) => self.names.insert(&step.name, home),
                None => self.names.remove(step.name.as_str()),
            };
            if !step.is_view {
                let key = (step.kind, step.path.as_str(), u64::from(step.nth));
                self.steps.entry(key).or_default().push(at);
            }
        }
    }

    fn find(&self, spot: &Spot) -> Option<(Home, Option<usize>)> {
        match spot {
            Spot::Path(path) => self.of_path(path),
            Spot::Operation { kind, path, at, .. } => {
                if let Some((part, layer)) = self.unit(spot) {
                    let op = self.drawn(spot).and_then(|steps| {
                        let step = steps.get(*at)?;
                        self.ops.get(&(part, *step))
                    });
                    let home = op.map_or(Home::Part(part), |op| Home::Op(part, *op));
                    return Some((home, layer));
                }
                let (of, slot, layer) =
                    self.slots.get(path.as_str()).filter(|_| kind == "wiring")?;
                Some((Home::Slot(*of, *slot), Some(*layer)))
            }
        }
    }

    /// The part of which an operation is.
    fn unit(&self, spot: &Spot) -> Option<(usize, Option<usize>)> {
        let Spot::Operation {
            kind, path, nth, ..
        } = spot
        else {
            return None;
        };
        if kind == "per_layer" {
            return Some((self.per_layer?, None));
        }
        self.units
            .get(&(kind.as_str(), path.as_str(), *nth))
            .copied()
    }

    /// The operations of a spot as they are drawn, if they are those that ran.
    fn drawn<'s>(&'s self, spot: &'s Spot) -> Option<&'s [usize]> {
        let Spot::Operation { kind, nth, all, .. } = spot else {
            return None;
        };
        let (part, _) = self.unit(spot)?;
        let path = self.parts[part].paths.first()?;
        let steps = self.steps.get(&(kind.as_str(), path.as_str(), *nth))?;
        let drawn = steps.iter().map(|at| &self.sample.steps()[*at].op);
        let are_those = steps.len() == all.len() && drawn.eq(all.iter());
        are_those.then_some(steps.as_slice())
    }

    /// Whether this is the first operation of a unit that ran other ones than are drawn.
    fn ran_otherwise(&self, spot: &Spot) -> bool {
        let is_first = matches!(spot, Spot::Operation { at: 0, path, .. } if path != "ple");
        is_first && self.unit(spot).is_some() && self.drawn(spot).is_none()
    }

    fn of_path(&self, path: &str) -> Option<(Home, Option<usize>)> {
        let end = path
            .match_indices('.')
            .nth(1)
            .map_or(path.len(), |(at, _)| at);
        let Some(layer) = self.layers.get(&path[..end]).copied() else {
            return Some((self.of_stage(path)?, None));
        };
        if end == path.len() {
            return Some((Home::Layer, Some(layer)));
        }
        Some((self.of_layer(path, layer)?, Some(layer)))
    }

    /// The box of a value outside the layers.
    fn of_stage(&self, path: &str) -> Option<Home> {
        let named = self.names.get(path).copied();
        named.or_else(|| self.within(None, path))
    }

    /// The box of a value of a layer.
    fn of_layer(&self, path: &str, layer: usize) -> Option<Home> {
        let kind = self.drawing.layers[layer];
        let layers = &self.sample.plan().layers;
        // Of a kind the first layer is drawn.
        let drawn = &layers[self.drawing.kinds[kind].layers[0]].path;
        let drawn = format!("{drawn}{}", &path[layers[layer].path.len()..]);
        let named = self.names.get(drawn.as_str()).copied();
        named
            .or_else(|| self.joins(kind, &without_index(path, layers[layer].il)))
            .or_else(|| self.within(Some(layer), path))
            .or_else(|| {
                let mut slots = self.above(path).filter_map(|path| self.slots.get(path));
                let (kind, slot, _) = slots.next()?;
                Some(Home::Slot(*kind, *slot))
            })
    }

    /// The part with the longest path above a value; of equal ones the last, which is a block rather than
    /// the norm before it.
    fn within(&self, layer: Option<usize>, path: &str) -> Option<Home> {
        let mut parts = self
            .above(path)
            .filter_map(|path| self.owners.get(&(layer, path)));
        parts.next().map(|part| Home::Part(*part))
    }

    /// A path and those above it, longest first, as far as they may be of a part or slot.
    fn above<'s>(&self, path: &'s str) -> impl Iterator<Item = &'s str> + use<'s> {
        let is_end = move |at: &usize| path.as_bytes().get(*at).is_none_or(|c| *c == b'.');
        let ends = (0..=path.len().min(self.longest)).rev().filter(is_end);
        ends.map(|end| &path[..end])
    }

    /// The box of what goes into a slot, comes out of it, and leaves it as the stream.
    fn joins(&self, kind: usize, path: &str) -> Option<Home> {
        let (above, value) = path.rsplit_once('.')?;
        let [into, out, stream] = self.joins.get(&(kind, above))?;
        match value {
            "in" => Some(*into),
            "out" => Some(*out),
            "x" => Some(*stream),
            _ => None,
        }
    }

    /// The operation that makes the result of a part.
    fn last(&self, part: usize) -> Home {
        match self.parts[part].ops.len() {
            0 => Home::Part(part),
            n => Home::Op(part, n - 1),
        }
    }
}

/// The part whose result a slot gives, if it is one part's.
fn out(slot: &Slot) -> Option<&Part> {
    if slot.post.is_some() || slot.scale.is_some() {
        return slot.post.as_ref().filter(|_| slot.scale.is_none());
    }
    let [branch] = slot.branches.as_slice() else {
        return None;
    };
    let end = branch.post.as_ref().unwrap_or(&branch.block);
    Some(end).filter(|_| branch.factor.is_none())
}
