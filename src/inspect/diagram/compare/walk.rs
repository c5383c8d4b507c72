//! The walk over two drawings that finds what differs.

use std::collections::{HashMap, HashSet};

use super::{Finding, Level, Spot};
use crate::arch::{Contract, Join};
use crate::blocks::REGISTRY;
use crate::common::wording::listed;
use crate::inspect::describe;
use crate::inspect::diagram::{Branch, Drawing, Factor, Kind, Part, PartOption, Slot};

pub(super) struct Comparer<'d> {
    drawings: [&'d Drawing; 2],
    /// Parts of each side by their address.
    of_part: [HashMap<*const Part, usize>; 2],
    pub(super) place: String,
    pub(super) found: Vec<(Finding, Vec<[Option<Spot>; 2]>)>,
    /// The finding that was added last.
    last: usize,
    pub(super) parts: Vec<[Option<usize>; 2]>,
}

/// More pairs of kinds than this are matched by their order.
const MOST_PAIRS: usize = 64;

impl<'d> Comparer<'d> {
    pub(super) fn new(drawings: [&'d Drawing; 2]) -> Self {
        let of_part = drawings.map(|drawing| {
            let parts = drawing.parts().enumerate();
            parts
                .map(|(at, part)| (std::ptr::from_ref(part), at))
                .collect()
        });
        Self {
            drawings,
            of_part,
            place: String::new(),
            found: Vec::new(),
            last: 0,
            parts: Vec::new(),
        }
    }

    /// Pairs of kinds, those that differ least first taken, in the order of the layers.
    pub(super) fn kinds(&mut self) -> Vec<[Option<usize>; 2]> {
        let [a, b] = self.drawings.map(|drawing| drawing.kinds.as_slice());
        let mut pairs: Vec<(usize, usize, usize, usize)> = Vec::new();
        if a.len() * b.len() <= MOST_PAIRS {
            for (i, j) in (0..a.len()).flat_map(|i| (0..b.len()).map(move |j| (i, j))) {
                self.kind([Some(i), Some(j)]);
                pairs.push((self.found.len(), i.abs_diff(j), i, j));
                self.found.clear();
                self.parts.clear();
            }
            pairs.sort_by_key(|(n, apart, i, j)| (*n, *apart, i + j));
        } else {
            pairs.extend((0..a.len().min(b.len())).map(|at| (0, 0, at, at)));
        }
        let mut out: Vec<[Option<usize>; 2]> = Vec::new();
        let is_taken = |out: &[[Option<usize>; 2]], side: usize, at: usize| {
            out.iter().any(|pair| pair[side] == Some(at))
        };
        for (_, _, i, j) in pairs {
            if !is_taken(&out, 0, i) && !is_taken(&out, 1, j) {
                out.push([Some(i), Some(j)]);
            }
        }
        for (side, n) in [a.len(), b.len()].into_iter().enumerate() {
            let left: Vec<usize> = (0..n).filter(|at| !is_taken(&out, side, *at)).collect();
            out.extend(left.into_iter().map(|at| {
                let mut pair = [None; 2];
                pair[side] = Some(at);
                pair
            }));
        }
        out.sort_by_key(|[a, b]| {
            let first = (*a).min(*b).or(*a).or(*b);
            (first, a.unwrap_or(0) + b.unwrap_or(0))
        });
        out
    }

    fn add(
        &mut self,
        level: Level,
        place: &str,
        what: impl Into<String>,
        of: [Option<String>; 2],
        spots: [Option<Spot>; 2],
    ) {
        let place = format!("{}{place}", self.place);
        let what = what.into();
        let same = |f: &Finding| f.level == level && f.what == what && f.of == of;
        let known = self.found.iter().position(|(finding, _)| same(finding));
        self.last = known.unwrap_or(self.found.len());
        match known.map(|at| &mut self.found[at]) {
            Some((finding, all)) => {
                if !finding.places.contains(&place) {
                    finding.places.push(place);
                }
                all.push(spots);
            }
            None => {
                let places = vec![place];
                let finding = Finding {
                    level,
                    places,
                    what,
                    of,
                };
                self.found.push((finding, vec![spots]));
            }
        }
    }

    fn at(&self, pair: [Option<&'d Part>; 2]) -> [Option<usize>; 2] {
        let at = |side: usize| {
            self.of_part[side]
                .get(&std::ptr::from_ref(pair[side]?))
                .copied()
        };
        [at(0), at(1)]
    }

    pub(super) fn stages(&mut self, of: fn(&Drawing) -> &Vec<Part>, place: &str) {
        let [a, b] = self.drawings.map(|drawing| of(drawing).as_slice());
        for pair in matched(
            a,
            b,
            |part| part.kind.to_owned(),
            |part| part.kind.to_owned(),
        ) {
            self.part(place, pair);
        }
    }

    pub(super) fn kind(&mut self, pair: [Option<usize>; 2]) {
        let kind = |side: usize| pair[side].map(|at| &self.drawings[side].kinds[at]);
        let kinds: [Option<&'d Kind>; 2] = [kind(0), kind(1)];
        if let Some(side) = (0..2).find(|side| kinds[1 - side].is_none()) {
            let mut of = [None, None];
            of[side] = kinds[side].map(|kind| kind.label.clone());
            self.add(
                Level::Computation,
                "layers",
                "a further kind",
                of,
                [None, None],
            );
        }
        let slots = kinds.map(|kind| kind.map_or(&[][..], |kind| kind.slots.as_slice()));
        let is_whole = kinds.iter().all(Option::is_some);
        let order = |side: usize| -> Vec<&str> {
            let other: HashSet<&str> = slots[1 - side].iter().map(|s| s.name.as_str()).collect();
            let names = slots[side].iter().map(|slot| slot.name.as_str());
            names.filter(|name| other.contains(name)).collect()
        };
        if order(0) != order(1) {
            let of = [order(0), order(1)].map(|names| Some(names.join(", then ")));
            self.add(
                Level::Computation,
                "layers",
                "order of the slots",
                of,
                [None, None],
            );
        }
        let number = |side: usize, slot: Option<&Slot>| {
            let at = slots[side]
                .iter()
                .position(|own| slot.is_some_and(|s| std::ptr::eq(own, s)));
            Some(Spot::Slot(pair[side]?, at?))
        };
        for both in matched(slots[0], slots[1], |slot| slot.name.clone(), blocks) {
            let spots = [number(0, both[0]), number(1, both[1])];
            self.slot(both, spots, is_whole);
        }
    }

    /// Compares two slots; `is_whole` says that both sides have the kind of layers.
    fn slot(&mut self, pair: [Option<&'d Slot>; 2], spots: [Option<Spot>; 2], is_whole: bool) {
        let Some(name) = pair.iter().flatten().map(|slot| slot.name.clone()).min() else {
            return;
        };
        if let [Some(a), Some(b)] = pair {
            let is_mixed = self.is_mixed();
            let number = |factor: Option<&Factor>| match factor {
                None => "none".to_owned(),
                Some(_) if is_mixed => "one".to_owned(),
                Some(factor) => factor.text.clone(),
            };
            let wires = |slot: &Slot| {
                let each = slot.branches.iter().map(|branch| {
                    let tap = |word: &str, tap: &Option<String>| {
                        tap.as_ref()
                            .map(|name| format!(", {word} `{name}`"))
                            .unwrap_or_default()
                    };
                    let factor = number(branch.factor.as_ref());
                    let taps = tap("and", &branch.side) + &tap("saved as", &branch.save);
                    format!("{}{taps}, factor {factor}", from(branch.from.as_ref()))
                });
                each.collect::<Vec<String>>().join("; ")
            };
            let join = |slot: &Slot| match slot.join {
                Join::Add => "added to the hidden state".to_owned(),
                Join::Set => "in place of the hidden state".to_owned(),
            };
            let mut all = vec![
                ("the result is", [join(a), join(b)]),
                ("input", [a, b].map(|slot| from(slot.from.as_ref()))),
                (
                    "scale of the result",
                    [a, b].map(|slot| number(slot.scale.as_ref())),
                ),
            ];
            if blocks(a) == blocks(b) {
                all.push(("inputs and factors of the branches", [wires(a), wires(b)]));
            }
            all.push(("norms", [norms(a), norms(b)]));
            for (what, of) in all.into_iter().filter(|(_, of)| of[0] != of[1]) {
                self.add(Level::Computation, &name, what, of.map(Some), spots);
            }
        } else if is_whole {
            let of = pair.map(|slot| Some(blocks(slot?)));
            self.add(Level::Computation, &name, "slot", of, spots);
        }
        let told = self.last;
        let is_alone = pair.iter().any(Option::is_none);
        for (what, norm) in SLOT_NORMS {
            self.norm(
                &format!("{name}, norm {what}"),
                pair.map(|slot| norm(slot?)),
                told,
            );
        }
        let branches = pair.map(|slot| slot.map_or(&[][..], |slot| slot.branches.as_slice()));
        let block = |branch: &Branch| branch.block.title.clone();
        let kind = |branch: &Branch| branch.block.kind.to_owned();
        for both in matched(branches[0], branches[1], block, kind) {
            let blocks = both.map(|branch| Some(&branch?.block));
            match is_alone {
                true => self.alone(blocks, told),
                false => self.part(&name, blocks),
            }
            for (what, norm) in BRANCH_NORMS {
                self.norm(
                    &format!("{name}, norm {what}"),
                    both.map(|b| norm(b?)),
                    told,
                );
            }
        }
    }

    /// A norm of a slot: that one side has none was told of the slot.
    fn norm(&mut self, place: &str, pair: [Option<&'d Part>; 2], told: usize) {
        match pair.iter().all(Option::is_some) {
            true => self.part(place, pair),
            false => self.alone(pair, told),
        }
    }

    /// A part of one side, of which the finding `told` speaks.
    fn alone(&mut self, pair: [Option<&'d Part>; 2], told: usize) {
        let at = self.at(pair);
        if at.iter().any(Option::is_some) {
            self.parts.push(at);
            if let Some((_, spots)) = self.found.get_mut(told) {
                spots.push(at.map(|at| at.map(Spot::Part)));
            }
        }
    }

    fn part(&mut self, place: &str, pair: [Option<&'d Part>; 2]) {
        let at = self.at(pair);
        let spots = at.map(|at| at.map(Spot::Part));
        if at.iter().any(Option::is_some) {
            self.parts.push(at);
        }
        let titles = pair.map(|part| part.map(|part| part.title.clone()));
        match pair {
            [Some(a), Some(b)] if a.kind == b.kind => self.same_kind(place, [a, b], spots),
            [Some(a), Some(b)] => {
                let of = [a, b].map(|part| Some(part.title.clone()));
                self.add(Level::Computation, place, "block", of, spots);
            }
            [None, None] => {}
            _ => {
                let what = if place.contains("norm") {
                    "norm"
                } else {
                    "block"
                };
                self.add(Level::Computation, place, what, titles, spots);
            }
        }
    }

    fn is_mixed(&self) -> bool {
        let [a, b] = self.drawings.map(|drawing| drawing.is_symbolic);
        a != b
    }

    fn same_kind(&mut self, place: &str, [a, b]: [&'d Part; 2], spots: [Option<Spot>; 2]) {
        let place = match a.kind {
            "norm" => place.to_owned(),
            _ => format!(
                "{place}, {}",
                a.title.to_lowercase().min(b.title.to_lowercase())
            ),
        };
        let before = self
            .found
            .iter()
            .map(|(f, _)| f.places.len())
            .sum::<usize>();
        let mut changed: Vec<&str> = Vec::new();
        let others: HashMap<&str, &PartOption> = b
            .options
            .iter()
            .map(|option| (option.name.as_str(), option))
            .collect();
        for option in &a.options {
            let Some(other) = others.get(option.name.as_str()) else {
                continue;
            };
            let Some(level) = self.option(option, other) else {
                continue;
            };
            changed.push(&option.name);
            let name = option.name.rsplit('.').next().unwrap_or_default();
            // What it is, without the list of its values.
            let doc = option.doc.split([':', ';', '(']).next().unwrap_or_default();
            let what = format!("`{name}` ({})", doc.trim());
            let of = [option, *other].map(|o| Some(format!("`{}`", o.value)));
            self.add(level, &place, what, of, spots);
        }
        let contract = REGISTRY.all().find(|contract| contract.name == a.kind);
        let keys = |own: &Part, other: &Part| -> Vec<String> {
            let keys = own.weights.iter().map(|weight| &weight.key);
            let new = keys.filter(|key| !other.weights.iter().any(|w| w.key == **key));
            let own = new.filter(|key| !follows(contract, key, &changed));
            own.map(|key| format!("`{key}`")).collect()
        };
        let [in_a, in_b] = [keys(a, b), keys(b, a)].map(|k| (!k.is_empty()).then(|| listed(&k)));
        if in_a.is_some() || in_b.is_some() {
            self.add(Level::Computation, &place, "weights", [in_a, in_b], spots);
        }
        let after = self
            .found
            .iter()
            .map(|(f, _)| f.places.len())
            .sum::<usize>();
        let of = [other_ops(a, b), other_ops(b, a)];
        if before == after && changed.is_empty() && of[0] != of[1] {
            self.add(Level::Computation, &place, "operations", of, spots);
        }
        self.names([a, b], spots);
    }

    /// How much two values of an option differ. Without a file numbers are expressions that no two
    /// definitions write alike, so only literals and what switches something off can be compared.
    fn option(&self, a: &PartOption, b: &PartOption) -> Option<Level> {
        let is_number = a.is_number && b.is_number;
        let is_literal = [a, b].iter().all(|o| o.value.parse::<f64>().is_ok());
        let symbolic = self.drawings.map(|drawing| drawing.is_symbolic);
        match symbolic {
            _ if a.value == b.value => None,
            _ if is_number && a.is_off != b.is_off => Some(Level::Computation),
            [false, false] if is_number => Some(Level::Sizes),
            [true, true] if is_number && (is_literal || a.is_ruled) => Some(Level::Computation),
            _ if is_number => None,
            [a_symbolic, b_symbolic] if a_symbolic != b_symbolic && a.is_open != b.is_open => None,
            _ => Some(Level::Computation),
        }
    }

    /// Weights of one key under other names.
    fn names(&mut self, [a, b]: [&Part; 2], spots: [Option<Spot>; 2]) {
        for weight in &a.weights {
            let other = b.weights.iter().find(|other| other.key == weight.key);
            if let Some(other) =
                other.filter(|other| other.name != weight.name && a.title == b.title)
            {
                let of = [weight, other].map(|weight| Some(weight.name.clone()));
                self.add(Level::Names, "tensors", "name", of, spots);
            }
        }
    }

    /// What holds for the whole models, where both have numbers.
    pub(super) fn sizes(&mut self) {
        let [a, b] = self.drawings;
        let modes = [a, b].map(|drawing| describe::mode(drawing.mode).to_owned());
        if a.mode != b.mode {
            self.add(
                Level::Computation,
                "model",
                "use",
                modes.map(Some),
                [None, None],
            );
        }
        if a.is_symbolic || b.is_symbolic {
            return;
        }
        for (name, value) in &a.facts {
            let other = b.facts.iter().find(|(other, _)| other == name);
            if let Some((_, other)) = other.filter(|(_, other)| other != value) {
                let of = [value, other].map(|value| Some(value.clone()));
                self.add(Level::Sizes, "model", name.as_str(), of, [None, None]);
            }
        }
    }
}

/// Whether a weight is there because of one of the options that changed.
fn follows(contract: Option<&'static Contract>, key: &str, changed: &[&str]) -> bool {
    let when = contract
        .and_then(|contract| contract.weight(key))
        .map_or("", |spec| spec.when);
    let mut words = when.split(|c: char| !c.is_alphanumeric() && c != '_');
    words.any(|word| changed.contains(&word))
}

/// Items of two lists that belong together: those of one name, then those of one `likeness`, then the rest
/// in order; what is left is alone.
fn matched<'t, T>(
    a: &'t [T],
    b: &'t [T],
    name: impl Fn(&T) -> String,
    likeness: impl Fn(&T) -> String,
) -> Vec<[Option<&'t T>; 2]> {
    let mut of_a: Vec<Option<usize>> = vec![None; a.len()];
    let mut is_taken = vec![false; b.len()];
    let passes: [&dyn Fn(&T) -> String; 3] = [&name, &likeness, &|_| String::new()];
    for key in passes {
        let mut left: HashMap<String, Vec<usize>> = HashMap::new();
        for at in (0..b.len()).rev().filter(|at| !is_taken[*at]) {
            left.entry(key(&b[at])).or_default().push(at);
        }
        for (at, found) in of_a
            .iter_mut()
            .enumerate()
            .filter(|(_, found)| found.is_none())
        {
            if let Some(other) = left.get_mut(&key(&a[at])).and_then(Vec::pop) {
                *found = Some(other);
                is_taken[other] = true;
            }
        }
    }
    let pairs = a
        .iter()
        .zip(&of_a)
        .map(|(own, other)| [Some(own), other.map(|at| &b[at])]);
    let rest = b.iter().zip(&is_taken).filter(|(_, is_taken)| !**is_taken);
    pairs
        .chain(rest.map(|(other, _)| [None, Some(other)]))
        .collect()
}

/// The blocks of a slot.
fn blocks(slot: &Slot) -> String {
    let titles = slot
        .branches
        .iter()
        .map(|branch| branch.block.title.to_lowercase());
    titles.collect::<Vec<String>>().join(" alongside ")
}

/// A norm of a place, if it has it.
type Norm<T> = fn(&T) -> Option<&Part>;

/// The norms of a slot and of its branches.
const SLOT_NORMS: [(&str, Norm<Slot>); 3] = [
    ("before", |slot| slot.pre.as_ref()),
    ("after", |slot| slot.post.as_ref()),
    ("of the sum", |slot| slot.after.as_ref()),
];
const BRANCH_NORMS: [(&str, Norm<Branch>); 2] = [
    ("before the block", |branch| branch.pre.as_ref()),
    ("after the block", |branch| branch.post.as_ref()),
];

/// Which norms a slot has.
fn norms(slot: &Slot) -> String {
    let own = SLOT_NORMS.iter().filter(|(_, norm)| norm(slot).is_some());
    let mut names: Vec<&str> = own.map(|(name, _)| *name).collect();
    for (name, norm) in BRANCH_NORMS {
        names.extend(
            slot.branches
                .iter()
                .any(|branch| norm(branch).is_some())
                .then_some(name),
        );
    }
    match names.is_empty() {
        true => "none".into(),
        false => listed(&names),
    }
}

/// Operations of a part that another one does not have, or not as often.
fn other_ops(part: &Part, other: &Part) -> Option<String> {
    fn names(part: &Part) -> Vec<&String> {
        part.ops.iter().flat_map(|op| &op.ops).collect()
    }
    let mut left = names(other);
    let mut new = names(part);
    new.retain(|op| match left.iter().position(|other| other == op) {
        Some(at) => {
            left.remove(at);
            false
        }
        None => true,
    });
    let text = new.iter().map(|op| op.to_lowercase()).collect::<Vec<_>>();
    (!text.is_empty()).then(|| listed(&text))
}

fn from(tap: Option<&String>) -> String {
    match tap.map(String::as_str) {
        None | Some("x") => "the hidden state".into(),
        Some(tap) => format!("`{tap}`"),
    }
}
