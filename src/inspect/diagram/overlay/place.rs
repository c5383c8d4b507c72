//! The box of each number, and what the numbers of a box come to.
//!
//! An operation belongs to the box that was drawn of it: the one at the same place of the same list of
//! operations. Where a pass ran another list than the one drawn, and where an operation is folded into
//! an edge, its part is its box. A value belongs to the operation whose result has its name in the drawn
//! graph, or, where the drawn graph has no such name, to the part or slot whose path it begins with.

use std::collections::HashMap;

use super::{Overlay, Rule, Spot};
use crate::ggml::Origin;
use crate::inspect::diagram::ops::root;
use crate::inspect::diagram::{Drawing, Part, Sample, Slot};

/// What the numbers of a box come to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sum {
    pub(super) value: f64,
    /// Where the largest is.
    pub(super) layer: Option<usize>,
}

impl Sum {
    /// This number and another one of the same box.
    fn with(self, rule: Rule, other: Self) -> Self {
        match rule {
            Rule::Time => Self {
                value: self.value + other.value,
                ..self
            },
            Rule::Largest if self.value >= other.value => self,
            Rule::Largest => other,
        }
    }
}

/// A box.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Home {
    /// An operation of a part.
    Op(usize, usize),
    /// A part, by its place in [`Drawing::parts`].
    Part(usize),
    /// What joins a slot to the hidden state: kind, slot.
    Slot(usize, usize),
    /// A kind of layers.
    Kind(usize),
    /// A layer as a whole.
    Layer(usize),
}

/// The innermost box of a number, and its layer.
type Place = (Home, Option<usize>);

/// A box and all that contain it.
pub(super) fn holders(drawing: &Drawing, (home, layer): Place) -> Vec<Home> {
    let mut all = vec![home];
    if let Home::Op(part, _) = home {
        all.push(Home::Part(part));
    }
    if let Some(at) = layer {
        all.extend([Home::Layer(at), Home::Kind(drawing.layers[at])]);
    }
    all.dedup();
    all
}

/// What the numbers of all boxes come to.
#[derive(Default)]
pub(super) struct Sums {
    /// Boxes with a number.
    pub(super) boxes: HashMap<Home, Sum>,
    /// Paths in no box with their numbers, in the order of the file.
    pub(super) outside: Vec<(String, f64)>,
    /// Numbers in boxes.
    pub(super) n_placed: usize,
    /// Units and places that ran other operations than are drawn.
    pub(super) n_otherwise: usize,
    /// Where the first difference is.
    pub(super) first: Option<Place>,
}

/// Adds up the numbers of every box.
pub(super) fn sums(overlay: &Overlay, drawing: &Drawing, sample: &Sample) -> Sums {
    let finder = Finder::new(drawing, sample);
    let mut sums = Sums::default();
    for number in &overlay.numbers {
        let value = number.value;
        let Some(place) = finder.find(&number.spot) else {
            sums.outside.push((number.spot.path().to_owned(), value));
            continue;
        };
        sums.n_placed += 1;
        sums.n_otherwise += usize::from(finder.ran_otherwise(&number.spot));
        let layer = place.1;
        let own = Sum { value, layer };
        for home in holders(drawing, place) {
            let sum = sums.boxes.get(&home).map(|sum| sum.with(overlay.rule, own));
            sums.boxes.insert(home, sum.unwrap_or(own));
        }
    }
    let first = overlay.first.as_ref();
    sums.first = first.and_then(|first| finder.of_path(&first.path));
    sums
}

/// A use of a unit or place: its kind, its path, and which use of both.
type Use<'a> = (&'a str, &'a str, u64);

/// Boxes by what belongs to them. A file has many more numbers than a drawing has boxes, so what a number
/// takes does not grow with the drawing.
struct Finder<'a> {
    drawing: &'a Drawing,
    sample: &'a Sample,
    parts: Vec<&'a Part>,
    layers: HashMap<&'a str, usize>,
    /// Kind, slot and layer of each slot.
    slots: HashMap<&'a str, (usize, usize, usize)>,
    /// Parts by the paths for which they stand; of several the last, which is a block rather than a norm.
    owners: HashMap<&'a str, usize>,
    /// Bytes of the longest path of a part or slot.
    longest: usize,
    /// Boxes of the operations of the graph, of every layer, that are drawn.
    homes: HashMap<usize, Place>,
    /// Operations of the graph that compute something.
    uses: HashMap<Use<'a>, Vec<usize>>,
    /// Boxes of named results, perhaps in another layout.
    names: HashMap<&'a str, Place>,
}

impl<'a> Finder<'a> {
    fn new(drawing: &'a Drawing, sample: &'a Sample) -> Self {
        let layers = sample.plan().layers.iter().enumerate();
        let slots = layers.clone().flat_map(|(at, layer)| {
            let slots = layer.slots.iter().enumerate();
            let kind = drawing.layers[at];
            slots.map(move |(nth, slot)| (slot.path.as_str(), (kind, nth, at)))
        });
        let parts: Vec<&Part> = drawing.parts().collect();
        let owners = parts.iter().enumerate();
        let owners = owners.flat_map(|(at, part)| part.paths.iter().map(move |p| (p.as_str(), at)));
        let mut finder = Self {
            layers: layers
                .map(|(at, layer)| (layer.path.as_str(), at))
                .collect(),
            slots: slots.collect(),
            owners: owners.collect(),
            longest: 0,
            homes: HashMap::new(),
            uses: HashMap::new(),
            names: HashMap::new(),
            drawing,
            sample,
            parts,
        };
        let paths = finder.slots.keys().chain(finder.owners.keys());
        finder.longest = paths.map(|path| path.len()).max().unwrap_or(0);
        finder.index_homes();
        finder.index_steps();
        finder
    }

    /// Boxes of all operations: of a kind the first layer is drawn, and its others do the same in order.
    fn index_homes(&mut self) {
        let mut drawn: HashMap<usize, Home> = HashMap::new();
        for (part, own) in self.parts.iter().enumerate() {
            for (op, own) in own.ops.iter().enumerate() {
                drawn.extend(own.steps.iter().map(|at| (*at, Home::Op(part, op))));
            }
        }
        for (kind, own) in self.drawing.kinds.iter().enumerate() {
            for (nth, slot) in own.slots.iter().enumerate() {
                drawn.extend(slot.wiring().map(|at| (at, Home::Slot(kind, nth))));
            }
        }
        let mut of_layer = vec![Vec::new(); self.drawing.layers.len()];
        for (at, step) in self.sample.steps().iter().enumerate() {
            match self.layer_of(&step.path) {
                Some((layer, _)) => of_layer[layer].push(at),
                None => self
                    .homes
                    .extend(drawn.get(&at).map(|home| (at, (*home, None)))),
            }
        }
        for (layer, steps) in of_layer.iter().enumerate() {
            let first = &self.drawing.kinds[self.drawing.layers[layer]].layers[0];
            let likes = of_layer[*first].iter().zip(steps);
            let homes =
                likes.filter_map(|(like, at)| Some((*at, (*drawn.get(like)?, Some(layer)))));
            self.homes.extend(homes);
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
                self.uses.entry(key).or_default().push(at);
            }
        }
    }

    /// The layer of a path, and where the layer's own path ends in it.
    fn layer_of(&self, path: &str) -> Option<(usize, usize)> {
        let end = path
            .match_indices('.')
            .nth(1)
            .map_or(path.len(), |(at, _)| at);
        Some((*self.layers.get(&path[..end])?, end))
    }

    fn find(&self, spot: &Spot) -> Option<Place> {
        let Spot::Operation { kind, path, at, .. } = spot else {
            return self.of_path(spot.path());
        };
        // Taking the input of one layer is part of making those of all.
        if kind == "per_layer" {
            let is_it = |part: &&Part| part.kind == "per_layer_input";
            return Some((Home::Part(self.parts.iter().position(is_it)?), None));
        }
        let steps = self.steps(spot)?;
        let drawn = steps.get(*at).filter(|_| self.is_drawn(spot));
        let home = drawn.and_then(|at| self.homes.get(at));
        let mut any = steps.iter().filter_map(|at| self.homes.get(at));
        home.copied().or_else(|| {
            let layer = self.layer_of(path).map(|(layer, _)| layer);
            match any.next() {
                Some((Home::Op(part, _), layer)) => Some((Home::Part(*part), *layer)),
                Some(other) => Some(*other),
                None => Some((Home::Part(*self.owners.get(path.as_str())?), layer)),
            }
        })
    }

    /// The operations of the graph that are of the use that a spot is of.
    fn steps<'s>(&'s self, spot: &'s Spot) -> Option<&'s [usize]> {
        let Spot::Operation {
            kind, path, nth, ..
        } = spot
        else {
            return None;
        };
        let steps = self.uses.get(&(kind.as_str(), path.as_str(), *nth));
        steps.map(Vec::as_slice)
    }

    /// Whether the operations of a spot's use are those that are drawn.
    fn is_drawn(&self, spot: &Spot) -> bool {
        let (Spot::Operation { all, .. }, Some(steps)) = (spot, self.steps(spot)) else {
            return false;
        };
        let drawn = steps.iter().map(|at| &self.sample.steps()[*at].op);
        drawn.eq(all.iter())
    }

    /// Whether this is the first operation of a unit that ran other ones than are drawn.
    fn ran_otherwise(&self, spot: &Spot) -> bool {
        let is_first = matches!(spot, Spot::Operation { kind, at: 0, .. } if !matches!(kind.as_str(), "wiring" | "per_layer"));
        is_first && !self.is_drawn(spot)
    }

    fn of_path(&self, path: &str) -> Option<Place> {
        if let Some(place) = self.names.get(path) {
            return Some(*place);
        }
        let layer = self.layer_of(path);
        let home = match layer {
            Some((layer, end)) if end == path.len() => Some(Home::Layer(layer)),
            _ => self.join(path).or_else(|| self.within(path)),
        };
        Some((home?, layer.map(|(layer, _)| layer)))
    }

    /// The part or slot with the longest path above a value.
    fn within(&self, path: &str) -> Option<Home> {
        let is_end = |at: &usize| path.as_bytes().get(*at).is_none_or(|c| *c == b'.');
        let ends = (0..=path.len().min(self.longest)).rev().filter(is_end);
        let mut above = ends.map(|end| &path[..end]);
        above.find_map(|path| match (self.owners.get(path), self.slots.get(path)) {
            (Some(part), _) => Some(Home::Part(*part)),
            (_, Some((kind, slot, _))) => Some(Home::Slot(*kind, *slot)),
            _ => None,
        })
    }

    /// The box of what goes into a slot, comes out of it, and leaves it as the hidden state.
    fn join(&self, path: &str) -> Option<Home> {
        let (above, value) = path.rsplit_once('.')?;
        let (kind, nth, _) = self.slots.get(above)?;
        let slot = &self.drawing.kinds[*kind].slots[*nth];
        let maker = match value {
            "in" => slot.pre.as_ref(),
            "out" => out(slot),
            "x" => slot.after.as_ref(),
            _ => return None,
        };
        let is_it = |part: &&Part| maker.is_some_and(|maker| std::ptr::eq(*part, maker));
        Some(match self.parts.iter().position(is_it) {
            // The operation that makes its result.
            Some(part) => match self.parts[part].ops.len() {
                0 => Home::Part(part),
                n => Home::Op(part, n - 1),
            },
            None => Home::Slot(*kind, *nth),
        })
    }
}

/// The part whose result a slot gives, if it is one part's.
fn out(slot: &Slot) -> Option<&Part> {
    match (slot.branches.as_slice(), &slot.post, &slot.scale) {
        (_, _, Some(_)) => None,
        (_, Some(post), None) => Some(post),
        ([branch], None, None) if branch.factor.is_none() => {
            Some(branch.post.as_ref().unwrap_or(&branch.block))
        }
        _ => None,
    }
}
