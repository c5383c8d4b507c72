//! Compares two drawings: matches their kinds of layers, slots and parts, and finds the differences.
//!
//! Kinds are matched by their labels and blocks, slots by their names, branches by their blocks. Only properties in the
//! definition are compared: options, weights, wiring. A weight that follows from an option is not a difference of its
//! own. A difference is reported once with all its places. Swapping the two drawings swaps the sides of each difference
//! and changes nothing else.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use super::overlay::{BoxId, annotate};
use super::{BoxNote, Drawing, Factor, LayerKind, Slot, UnitBox, UnitOption};
use crate::describe;
use lab_base::util::wording::{capital, escaped, listed, uncapital};
use lab_core::arch::Contract;
use lab_core::blocks::REGISTRY;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DifferenceLevel {
    /// The computation differs.
    Computation,
    /// The computation is the same with other numbers.
    Sizes,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrawingDifference {
    pub level: DifferenceLevel,
    /// Where the difference is: slots and parts, with the number of the kind of layers if there are several.
    pub places: Vec<String>,
    pub what: String,
    /// The value on each side; `None` if a side lacks the property.
    pub of: [Option<String>; 2],
}

impl DrawingDifference {
    /// The difference as a sentence.
    pub fn sentence(&self, [a, b]: [&str; 2]) -> String {
        const SHOWN: usize = 4;
        let mut places = self.places.clone();
        if places.len() > SHOWN + 1 {
            let more = places.split_off(SHOWN).len();
            places.push(format!("{more} more"));
        }
        let of = |name: &str, value: &str| match value {
            "" => format!("only in {name}"),
            value => format!("only in {name}: {value}"),
        };
        let values = match &self.of {
            [Some(in_a), Some(in_b)] => format!("{in_a} in {a}, {in_b} in {b}"),
            [Some(value), None] => of(a, value),
            [None, Some(value)] => of(b, value),
            [None, None] => String::new(),
        };
        format!("{}: {}: {values}", capital(&listed(&places)), self.what)
    }
}

/// The comparison of two drawings: their matching parts and their differences.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// Both drawings. Each part and slot that differs has a note with the numbers of its findings.
    pub drawings: [Drawing; 2],
    /// Pairs of matching parts, as indices in [`Drawing::parts`]; `None` if a side lacks the part.
    pub parts: Vec<[Option<usize>; 2]>,
    /// All differences, those in the computation first.
    pub findings: Vec<DrawingDifference>,
}

/// A title and its lines, each with the number of the difference that it describes, if any.
pub type SummarySection = (&'static str, Vec<(Option<usize>, String)>);

impl Comparison {
    /// Compares two drawings.
    pub fn new(a: &Drawing, b: &Drawing) -> Self {
        let mut comparer = Comparer::new([a, b]);
        let kinds = comparer.kinds();
        comparer.stages(|drawing| &drawing.begin, "before the layers");
        for (nth, pair) in kinds.iter().enumerate() {
            comparer.place = match kinds.len() {
                1 => String::new(),
                _ => format!("kind {}, ", nth + 1),
            };
            comparer.kind(*pair);
        }
        comparer.place.clear();
        comparer.stages(|drawing| &drawing.end, "after the layers");
        comparer.sizes();
        let mut found = comparer.found;
        found.sort_by_key(|(finding, _)| finding.level);
        let mut drawings = [a.clone(), b.clone()];
        for (side, drawing) in drawings.iter_mut().enumerate() {
            drawing.overlay = None;
            note(drawing, side, &found);
        }
        Self {
            drawings,
            parts: comparer.parts,
            findings: found.into_iter().map(|(finding, _)| finding).collect(),
        }
    }

    /// The names of the two drawings; equal names get a letter.
    pub fn names(&self) -> [String; 2] {
        let [a, b] = self.drawings.each_ref().map(|drawing| drawing.name.clone());
        match a == b {
            true => [format!("{a} (A)"), format!("{b} (B)")],
            false => [a, b],
        }
    }

    /// The differences by level: a title, and lines with the numbers of differences. A line without a number says that
    /// the computations are the same.
    pub fn sections(&self) -> Vec<SummarySection> {
        let names = self.names();
        let names = names.each_ref().map(String::as_str);
        let lines = |level: DifferenceLevel| {
            let numbered = (1..).zip(&self.findings).filter(|(_, f)| f.level == level);
            let lines = numbered.map(|(n, finding)| (Some(n), finding.sentence(names)));
            lines.collect::<Vec<_>>()
        };
        let [mut computation, sizes] =
            [DifferenceLevel::Computation, DifferenceLevel::Sizes].map(lines);
        if computation.is_empty() {
            computation.push((None, "Both compute the same.".to_owned()));
        }
        let mut sections = vec![("What is computed", computation), ("Sizes", sizes)];
        sections.retain(|(_, lines)| !lines.is_empty());
        sections
    }
}

/// The comparison as Markdown, with texts of files escaped.
pub fn summary(comparison: &Comparison) -> String {
    let text = |text: &str| escaped(text).replace('|', "\\|");
    let [a, b] = comparison.names().map(|name| text(&name));
    let mut out = format!("# {a} and {b}\n\n| | {a} | {b} |\n|---|---|---|\n");
    let [of_a, of_b] = comparison.drawings.each_ref();
    let mut row = |name: &str, values: [&str; 2]| {
        let [name, a, b] = [name, values[0], values[1]].map(text);
        let _ = writeln!(out, "| {name} | {a} | {b} |");
    };
    row("architecture", [&of_a.arch, &of_b.arch]);
    for (name, value) in &of_a.facts {
        let other = of_b.facts.iter().find(|(other, _)| other == name);
        row(name, [value, other.map_or("", |(_, value)| value)]);
    }
    for (title, lines) in comparison.sections() {
        let _ = write!(out, "\n## {title}\n\n");
        for (n, line) in lines {
            let n = n.map(|n| format!("{n}. ")).unwrap_or_default();
            let _ = writeln!(out, "{n}{}", escaped(&line));
        }
    }
    out
}

fn note(
    drawing: &mut Drawing,
    side: usize,
    found: &[(DrawingDifference, Vec<[Option<BoxId>; 2]>)],
) {
    let mut marks: HashMap<BoxId, (Vec<String>, bool)> = HashMap::new();
    for (n, (_, spots)) in (1..).zip(found) {
        for pair in spots {
            if let Some(spot) = pair[side] {
                let mark = marks.entry(spot).or_default();
                mark.0.push(n.to_string());
                mark.1 |= pair[1 - side].is_none();
            }
        }
    }
    annotate(drawing, |box_id, _| {
        let Some((numbers, is_alone)) = marks.get(&box_id) else {
            return BoxNote::default();
        };
        let (what, class) = match (is_alone, side) {
            (false, _) => ("differs", "hot ne"),
            (true, 0) => ("only here", "hot oa"),
            (true, _) => ("only here", "hot ob"),
        };
        BoxNote {
            text: format!("{what}: {}", numbers.join(", ")),
            class,
            ..BoxNote::default()
        }
    });
}

/// An item of each side; `None` if a side lacks it.
type Pair<T> = [Option<T>; 2];

struct Comparer<'d> {
    drawings: [&'d Drawing; 2],
    /// Whether one side has numbers and the other has symbols.
    is_mixed: bool,
    /// For each side, the index of a part by its address.
    of_part: [HashMap<*const UnitBox, usize>; 2],
    place: String,
    found: Vec<(DrawingDifference, Vec<Pair<BoxId>>)>,
    /// The index of the finding that was added last.
    last: usize,
    parts: Vec<Pair<usize>>,
}

/// A property that is compared only if the branches have equal blocks.
const BRANCHES: &str = "inputs and factors of the branches";

impl<'d> Comparer<'d> {
    fn new(drawings: [&'d Drawing; 2]) -> Self {
        let of_part =
            drawings.map(|drawing| drawing.parts().map(std::ptr::from_ref).zip(0..).collect());
        Self {
            drawings,
            is_mixed: drawings[0].is_symbolic != drawings[1].is_symbolic,
            of_part,
            place: String::new(),
            found: Vec::new(),
            last: 0,
            parts: Vec::new(),
        }
    }

    /// Pairs of matching kinds, in the order of the layers. They match by label, else by options, by blocks, by first
    /// block, and finally in order.
    fn kinds(&self) -> Vec<Pair<usize>> {
        let kinds = self.drawings.map(|drawing| drawing.kinds.as_slice());
        let all = |kind: &LayerKind| Vec::from_iter(kind.slots.iter().map(blocks)).join(" + ");
        let options = |kind: &LayerKind| {
            let parts = kind.slots.iter().flat_map(Slot::parts);
            let options = parts.flat_map(|part| &part.options);
            let options = options.map(|option| format!("{} = {}", option.name, option.value));
            options.collect::<Vec<_>>().join(", ")
        };
        let first = |kind: &LayerKind| kind.slots.first().map(blocks).unwrap_or_default();
        let label = |kind: &LayerKind| kind.label.clone();
        let mut pairs = matched(kinds, &[&label, &options, &all, &first, &|_| String::new()]);
        let sum = |[a, b]: &Pair<usize>| a.unwrap_or(0) + b.unwrap_or(0);
        pairs.sort_by_key(|pair| (pair.iter().flatten().min().copied(), sum(pair)));
        pairs
    }

    fn add(
        &mut self,
        level: DifferenceLevel,
        place: &str,
        what: &str,
        of: Pair<String>,
        spots: Pair<BoxId>,
    ) {
        let place = format!("{}{place}", self.place);
        let is_same = |f: &DrawingDifference| f.level == level && f.what == what && f.of == of;
        let known = self.found.iter().position(|(finding, _)| is_same(finding));
        self.last = known.unwrap_or(self.found.len());
        if known.is_none() {
            let (places, what) = (Vec::new(), what.to_owned());
            let finding = DrawingDifference {
                level,
                places,
                what,
                of,
            };
            self.found.push((finding, Vec::new()));
        }
        let (finding, all) = &mut self.found[self.last];
        if !finding.places.contains(&place) {
            finding.places.push(place);
        }
        all.push(spots);
    }

    fn differ(&mut self, place: &str, what: &str, of: Pair<String>, spots: Pair<BoxId>) {
        self.add(DifferenceLevel::Computation, place, what, of, spots);
    }

    fn stages(&mut self, of: fn(&Drawing) -> &Vec<UnitBox>, place: &str) {
        let parts = self.drawings.map(|drawing| of(drawing).as_slice());
        for pair in matched(parts, &[&|part| part.kind.to_owned(), &|_| String::new()]) {
            self.part(place, items(parts, pair));
        }
    }

    fn kind(&mut self, pair: Pair<usize>) {
        let kinds = self.drawings.map(|drawing| drawing.kinds.as_slice());
        let kinds = items(kinds, pair);
        let is_whole = kinds.iter().all(Option::is_some);
        if !is_whole {
            let of = kinds.map(|kind| kind.map(|kind| kind.label.clone()));
            self.differ("layers", "a further kind", of, [None, None]);
        }
        let slots = kinds.map(|kind| kind.map_or(&[][..], |kind| kind.slots.as_slice()));
        let order = |side: usize| -> Vec<&str> {
            let other: HashSet<&str> = slots[1 - side].iter().map(|s| s.name.as_str()).collect();
            let names = slots[side].iter().map(|slot| slot.name.as_str());
            names.filter(|name| other.contains(name)).collect()
        };
        if order(0) != order(1) {
            let of = [order(0), order(1)].map(|names| Some(names.join(", then ")));
            self.differ("layers", "order of the slots", of, [None, None]);
        }
        let name = |slot: &Slot| slot.name.clone();
        for both in matched(slots, &[&name, &blocks, &|_| String::new()]) {
            let spots = [0, 1].map(|side| Some(BoxId::Slot(pair[side]?, both[side]?)));
            self.slot(items(slots, both), spots, is_whole);
        }
    }

    /// Compares two slots. `is_whole`: both sides have the kind of layers.
    fn slot(&mut self, pair: Pair<&'d Slot>, spots: Pair<BoxId>, is_whole: bool) {
        let Some(name) = pair.iter().flatten().map(|slot| &slot.name).min() else {
            return;
        };
        match pair {
            [Some(a), Some(b)] => {
                let [of_a, of_b] = [a, b].map(|slot| wiring(slot, self.is_mixed));
                for ((what, in_a), (_, in_b)) in of_a.into_iter().zip(of_b) {
                    if in_a != in_b && (what != BRANCHES || blocks(a) == blocks(b)) {
                        self.differ(name, what, [Some(in_a), Some(in_b)], spots);
                    }
                }
            }
            _ if is_whole => {
                self.differ(name, "slot", pair.map(|slot| Some(blocks(slot?))), spots);
            }
            _ => {}
        }
        // If one side lacks the whole slot, kind or norm, everything in it is one difference.
        let known = self.last;
        let is_alone = pair.iter().any(Option::is_none);
        let of_sides = pair.map(|slot| slot.map_or_else(Vec::new, roles));
        let of_sides = of_sides.each_ref().map(Vec::as_slice);
        let role = |(name, ..): &Role<'_>| (*name).to_owned();
        let title = |(name, _, of): &Role<'_>| format!("{name}: {}", of.map_or("", |b| &b.title));
        let kind = |(name, _, of): &Role<'_>| format!("{name}: {}", of.map_or("", |b| b.kind));
        for both in matched(of_sides, &[&title, &kind, &role]) {
            let both = items(of_sides, both);
            let role = both.iter().flatten().next().map_or("", |(name, ..)| name);
            let parts = both.map(|own| own.map(|(_, part, _)| *part));
            let is_norm = !role.is_empty();
            if is_alone || is_norm && parts.iter().any(Option::is_none) {
                let spots = self.at(parts);
                let known = self.found.get_mut(known);
                known.into_iter().for_each(|(_, all)| all.push(spots));
                continue;
            }
            match is_norm {
                true => self.part(&format!("{name}, norm {role}"), parts),
                false => self.part(name, parts),
            }
        }
    }

    /// Records two matching parts, and returns their places.
    fn at(&mut self, pair: Pair<&'d UnitBox>) -> Pair<BoxId> {
        let at = [0, 1].map(|side| Some(self.of_part[side][&std::ptr::from_ref(pair[side]?)]));
        self.parts.push(at);
        at.map(|at| at.map(BoxId::Part))
    }

    fn part(&mut self, place: &str, pair: Pair<&'d UnitBox>) {
        let spots = self.at(pair);
        let (a, b) = match pair {
            [Some(a), Some(b)] if a.kind == b.kind => (a, b),
            _ => {
                let titles = pair.map(|part| part.map(|part| part.title.clone()));
                return self.differ(place, "block", titles, spots);
            }
        };
        let place = match a.kind {
            "norm" => place.to_owned(),
            _ => format!("{place}, {}", uncapital(&a.title).min(uncapital(&b.title))),
        };
        let mut changed: Vec<&str> = Vec::new();
        for option in &a.options {
            let other = b.options.iter().find(|other| other.name == option.name);
            let found = other.and_then(|other| Some((other, self.option(option, other)?)));
            let Some((other, level)) = found else {
                continue;
            };
            changed.push(&option.name);
            let name = option.name.rsplit('.').next().unwrap_or_default();
            // The description without the list of its values.
            let doc = option.doc.split([':', ';', '(']).next().unwrap_or_default();
            let what = format!("`{name}` ({})", doc.trim());
            let of = [option, other];
            let of = of.map(|o| Some(format!("`{}`", o.resource.as_ref().unwrap_or(&o.value))));
            self.add(level, &place, &what, of, spots);
        }
        let contract = REGISTRY.all().find(|contract| contract.name == a.kind);
        let keys = |own: &UnitBox, other: &UnitBox| {
            let keys = own.weights.iter().map(|weight| &weight.key);
            let new = keys.filter(|key| !other.weights.iter().any(|w| w.key == **key));
            let own = new.filter(|key| !follows(contract, key, &changed));
            let keys: Vec<String> = own.map(|key| format!("`{key}`")).collect();
            (!keys.is_empty()).then(|| listed(&keys))
        };
        let weights = [keys(a, b), keys(b, a)];
        let ops = [other_ops(a, b), other_ops(b, a)];
        if weights.iter().any(Option::is_some) {
            self.differ(&place, "weights", weights, spots);
        } else if changed.is_empty() && ops[0] != ops[1] {
            self.differ(&place, "operations", ops, spots);
        }
    }

    /// The level of the difference between two values of an option. Without a file, numbers are expressions, and each
    /// definition writes them differently, so only literals and values that turn something off can be compared.
    fn option(&self, a: &UnitOption, b: &UnitOption) -> Option<DifferenceLevel> {
        let is_number = a.is_number && b.is_number;
        let is_literal = [a, b].iter().all(|o| o.value.parse::<f64>().is_ok());
        match self.drawings.map(|drawing| drawing.is_symbolic) {
            _ if a.value == b.value => None,
            _ if is_number && a.is_off != b.is_off => Some(DifferenceLevel::Computation),
            [false, false] if is_number => Some(DifferenceLevel::Sizes),
            [true, true] if is_number && (is_literal || a.is_ruled) => {
                Some(DifferenceLevel::Computation)
            }
            _ if is_number || self.is_mixed && a.is_open != b.is_open => None,
            _ => Some(DifferenceLevel::Computation),
        }
    }

    /// Compares properties of the whole models, if both have numbers.
    fn sizes(&mut self) {
        let [a, b] = self.drawings;
        if a.mode != b.mode {
            let of = [a, b].map(|drawing| Some(describe::mode_phrase(drawing.mode).to_owned()));
            self.differ("model", "use", of, [None, None]);
        }
        for (name, value) in a.facts.iter().filter(|_| !a.is_symbolic && !b.is_symbolic) {
            let other = b.facts.iter().find(|(other, _)| other == name);
            if let Some((_, other)) = other.filter(|(_, other)| other != value) {
                let of = [value, other].map(|value| Some(value.clone()));
                self.add(DifferenceLevel::Sizes, "model", name, of, [None, None]);
            }
        }
    }
}

fn items<T>(lists: [&[T]; 2], at: Pair<usize>) -> Pair<&T> {
    [0, 1].map(|side| at[side].map(|at| &lists[side][at]))
}

/// Whether a weight is present because of one of the changed options.
fn follows(contract: Option<&'static Contract>, key: &str, changed: &[&str]) -> bool {
    let when = contract.and_then(|contract| contract.weight(key));
    let when = when.map_or("", |spec| spec.when);
    let mut words = when.split(|c: char| !c.is_alphanumeric() && c != '_');
    words.any(|word| changed.contains(&word))
}

/// Matches the items of two lists, in the order of the first: by equal first keys, then by equal second keys, and so
/// on; the others stay alone. Returns their places.
fn matched<T>([a, b]: [&[T]; 2], keys: &[&dyn Fn(&T) -> String]) -> Vec<Pair<usize>> {
    let mut of_a: Vec<Option<usize>> = vec![None; a.len()];
    let mut is_taken = vec![false; b.len()];
    for key in keys {
        let mut left: HashMap<String, Vec<usize>> = HashMap::new();
        for at in (0..b.len()).rev().filter(|at| !is_taken[*at]) {
            left.entry(key(&b[at])).or_default().push(at);
        }
        for (own, found) in a.iter().zip(&mut of_a).filter(|(_, found)| found.is_none()) {
            *found = left.get_mut(&key(own)).and_then(Vec::pop);
            if let Some(other) = *found {
                is_taken[other] = true;
            }
        }
    }
    let pairs = of_a.into_iter().enumerate();
    let pairs = pairs.map(|(at, other)| [Some(at), other]);
    let rest = (0..b.len()).filter(|at| !is_taken[*at]);
    pairs.chain(rest.map(|at| [None, Some(at)])).collect()
}

fn blocks(slot: &Slot) -> String {
    let titles = slot.branches.iter().map(|b| uncapital(&b.block.title));
    titles.collect::<Vec<String>>().join(" alongside ")
}

/// The wiring of a slot: compared properties and their values. With `is_mixed`, numbers are not compared with
/// expressions.
fn wiring(slot: &Slot, is_mixed: bool) -> [(&'static str, String); 5] {
    let from = |tap: Option<&String>| match tap.map(String::as_str) {
        None | Some("x") => "the hidden state".into(),
        Some(tap) => format!("`{tap}`"),
    };
    let number = |factor: Option<&Factor>| match factor {
        None => "none".to_owned(),
        Some(_) if is_mixed => "one".to_owned(),
        Some(factor) => factor.text.clone(),
    };
    let tap = |word: &str, tap: &Option<String>| {
        let text = tap.as_ref().map(|name| format!(", {word} `{name}`"));
        text.unwrap_or_default()
    };
    let branches = slot.branches.iter().map(|branch| {
        let taps = tap("and", &branch.side) + &tap("saved as", &branch.save);
        let factor = number(branch.factor.as_ref());
        format!("{}{taps}, factor {factor}", from(branch.from.as_ref()))
    });
    [
        ("the result is", slot.join.phrase().to_owned()),
        ("input", from(slot.from.as_ref())),
        ("scale of the result", number(slot.scale.as_ref())),
        (BRANCHES, branches.collect::<Vec<String>>().join("; ")),
        ("norms", norms(slot)),
    ]
}

/// The place of a norm in its slot, empty for a block; the part; the block of its branch.
type Role<'d> = (&'static str, &'d UnitBox, Option<&'d UnitBox>);

fn roles(slot: &Slot) -> Vec<Role<'_>> {
    let mut out = vec![
        ("before", slot.pre.as_ref(), None),
        ("after", slot.post.as_ref(), None),
        ("of the sum", slot.after.as_ref(), None),
        ("read", slot.read.as_ref(), None),
        ("write", slot.write.as_ref(), None),
    ];
    for branch in &slot.branches {
        let block = Some(&branch.block);
        out.extend([
            ("before the block", branch.pre.as_ref(), block),
            ("", block, block),
            ("after the block", branch.post.as_ref(), block),
        ]);
    }
    let known = out.into_iter();
    let known = known.filter_map(|(name, part, block)| Some((name, part?, block)));
    known.collect()
}

fn norms(slot: &Slot) -> String {
    let norms = roles(slot).into_iter().filter(|of| of.1.kind == "norm");
    let mut names: Vec<&str> = norms.map(|(name, ..)| name).collect();
    let mut once = HashSet::new();
    names.retain(|name| !name.is_empty() && once.insert(*name));
    match names.is_empty() {
        true => "none".into(),
        false => listed(&names),
    }
}

/// The operations that a part has more often than another.
fn other_ops(part: &UnitBox, other: &UnitBox) -> Option<String> {
    let names = |part: &UnitBox| -> Vec<String> {
        let ops = part.ops.iter().flat_map(|op| &op.ops);
        ops.map(|op| op.to_lowercase()).collect()
    };
    let (mut left, mut new) = (names(other), names(part));
    new.retain(|op| {
        let known = left.iter().position(|other| other == op);
        known.map(|at| left.remove(at)).is_none()
    });
    (!new.is_empty()).then(|| listed(&new))
}
