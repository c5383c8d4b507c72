//! What differs, as a list: what means most first, and what is the same at several places told once.
//!
//! What follows from something told is not told again: weights that a choice asks for, operations that
//! come with a choice or a weight.

use std::collections::{BTreeSet, HashMap};

use crate::blocks::REGISTRY;
use crate::diagram::{Op, Part, Weight, words};
use crate::wording::listed;

use super::pattern::pattern;
use super::phrases::{about, article, further, plain, predicate, present};
use super::places::{
    Places, Titles, most, norm_places, numbered, part_place, slots, stage_place, title, titles,
};
use super::words::gives;
use super::{
    Comparison, KindPair, Level, OptionPair, Pair, PartPair, Place, Role, Side, Sublayer, Wire,
    Wiring,
};

/// A difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How much it means.
    pub level: Level,
    /// Where it is; several places if it is the same there.
    pub places: Vec<String>,
    /// What it is.
    pub told: Told,
    rank: u8,
}

/// A difference in words.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Told {
    /// What only one side does, as a predicate.
    Only(Side, String),
    /// What each side does, as predicates.
    Does([String; 2]),
    /// What each side has for something: what, and the two values.
    Has(String, [String; 2]),
}

impl Told {
    /// With the sides exchanged.
    #[must_use]
    pub fn swapped(mut self) -> Self {
        self.swap();
        self
    }

    pub(super) fn swap(&mut self) {
        match self {
            Self::Only(side, _) => *side = side.other(),
            Self::Does(both) | Self::Has(_, both) => both.reverse(),
        }
    }
}

/// The order in which things are told.
mod rank {
    pub(super) const MODEL: u8 = 0;
    pub(super) const KIND: u8 = 10;
    pub(super) const PATTERN: u8 = 12;
    pub(super) const STAGE: u8 = 15;
    pub(super) const BESIDE: u8 = 18;
    pub(super) const BLOCK: u8 = 20;
    pub(super) const SUBLAYER: u8 = 25;
    pub(super) const ORDER: u8 = 28;
    pub(super) const WIRING: u8 = 30;
    pub(super) const NORM: u8 = 35;
    pub(super) const OPTION: u8 = 40;
    pub(super) const WEIGHT: u8 = 50;
    pub(super) const OP: u8 = 60;
}

/// Operations that are named, at most.
const NAMED: usize = 4;

#[derive(Default)]
struct Findings {
    all: Vec<Finding>,
    /// Where in `all` something is.
    known: HashMap<(Level, u8, Told), usize>,
    /// Where each of `all` is, in order, and in which kinds of layers.
    places: Vec<Vec<(String, BTreeSet<usize>)>>,
    /// Where in `places` a place of something is.
    placed: HashMap<(usize, String), usize>,
    /// By title: how many of such blocks a kind of layers of a side has at most.
    most: [HashMap<String, usize>; 2],
    /// The number of the kind that is told of.
    kind: Option<usize>,
}

pub(super) fn findings(comparison: &Comparison<'_>) -> Vec<Finding> {
    let mut out = Findings {
        most: [comparison.a, comparison.b].map(most),
        ..Findings::default()
    };
    out.model(comparison);
    for pair in &comparison.begin {
        out.stage(&comparison.begin, pair, "before the layers");
    }
    for (number, pair) in (1..).zip(&comparison.kinds) {
        out.kind = Some(number);
        out.kind(comparison, pair);
    }
    out.kind = None;
    for pair in &comparison.end {
        out.stage(&comparison.end, pair, "behind the layers");
    }
    out.sorted(comparison)
}

impl Findings {
    fn add(&mut self, level: Level, rank: u8, place: &str, told: Told) {
        let new = self.all.len();
        let at = *self.known.entry((level, rank, told.clone())).or_insert(new);
        if at == new {
            self.all.push(Finding {
                level,
                places: Vec::new(),
                told,
                rank,
            });
            self.places.push(Vec::new());
        }
        let places = &mut self.places[at];
        let of_place = self.placed.entry((at, place.to_owned()));
        let of_place = *of_place.or_insert_with(|| {
            places.push((place.to_owned(), BTreeSet::new()));
            places.len() - 1
        });
        places[of_place].1.extend(self.kind);
    }

    fn computes(&mut self, rank: u8, place: &str, told: Told) {
        self.add(Level::Computation, rank, place, told);
    }

    fn sorted(mut self, comparison: &Comparison<'_>) -> Vec<Finding> {
        let norms = norm_places(comparison);
        let known = Places::new(comparison);
        for (finding, places) in self.all.iter_mut().zip(&self.places) {
            let places = places.iter();
            let places = places.map(|(place, kinds)| known.told(place, kinds, &finding.told));
            finding.places = places.filter(|place| !place.is_empty()).collect();
            // Places are there once each.
            let own = finding.places.iter().filter(|place| norms.contains(*place));
            if norms.len() > 1 && own.count() == norms.len() {
                finding.places.retain(|place| !norms.contains(place));
                finding.places.insert(0, "every norm".into());
            }
        }
        self.all
            .sort_by_key(|finding| (std::cmp::Reverse(finding.level), finding.rank));
        self.all
    }

    fn model(&mut self, comparison: &Comparison<'_>) {
        let (a, b) = (comparison.a, comparison.b);
        if a.mode != b.mode {
            let does = [a.mode, b.mode].map(|mode| words::mode(mode).to_owned());
            self.computes(rank::MODEL, "", Told::Does(does));
        }
        let is_whole = comparison
            .kinds
            .iter()
            .all(|pair| pair.kind.matched().is_some());
        let shapes = [Side::A, Side::B].map(|side| pattern(comparison, side, false));
        if is_whole && shapes[0] != shapes[1] {
            let full = [Side::A, Side::B].map(|side| pattern(comparison, side, true));
            let what = "order of the kinds of layers".to_owned();
            self.computes(rank::PATTERN, "", Told::Has(what, full));
        }
    }

    fn kind(&mut self, comparison: &Comparison<'_>, pair: &KindPair<'_>) {
        let Some((side, kind)) = pair.kind.only() else {
            let slots = [Side::A, Side::B].map(|side| order(&pair.sublayers, side));
            if pair.sublayers.iter().any(|sublayer| sublayer.is_moved) {
                let what = "order of the sublayers".to_owned();
                self.computes(rank::ORDER, "", Told::Has(what, slots));
            }
            let known = titles(&pair.sublayers);
            for sublayer in &pair.sublayers {
                self.sublayer(sublayer, &known);
            }
            return;
        };
        self.kind = None;
        let text = match unlike(comparison, side, pair) {
            Some(words) => format!("has a further kind of layers, {}: {words}", kind.label),
            None => format!("has a further kind of layers, {}", kind.label),
        };
        self.computes(rank::KIND, "", Told::Only(side, text));
    }

    /// A block that only one side has; `known` are all of its kind of layers.
    fn alone(&mut self, side: Side, place: &Place<'_>, known: &Titles<'_>) {
        let others = place.slot.branches.iter();
        let others = others.filter(|other| !std::ptr::eq(*other, place.branch));
        let others: Vec<String> = others.map(|other| plain(&other.block.title)).collect();
        let beside = match others.is_empty() {
            true => String::new(),
            false => format!(" beside the {}", listed(&others)),
        };
        let block = &place.branch.block;
        let title = block.title.as_str();
        let n_others = known[side.other() as usize].get(title).copied();
        let n_others = n_others.unwrap_or(0);
        let called = match n_others {
            0 => article(&block.title),
            _ => further(&block.title),
        };
        let told = Told::Only(
            side,
            format!("has {called}{beside}: {}", plain(&block.line)),
        );
        // In other layers the other side may have what it has not in these.
        let most = self.most[side.other() as usize].get(title).copied();
        let kind = self.kind.take();
        let place = kind.filter(|_| most.unwrap_or(0) > n_others);
        let place = place.map_or_else(String::new, |kind| numbered(&[kind].into()));
        self.computes(rank::SUBLAYER, &place, told);
        self.kind = kind;
    }

    /// A sublayer; `known` are all of its kind of layers.
    fn sublayer(&mut self, sublayer: &Sublayer<'_>, known: &Titles<'_>) {
        if let Some((side, place)) = sublayer.at.only() {
            self.alone(side, place, known);
            return;
        }
        let title = title(sublayer);
        let blocks = sublayer.at.map(|place| &place.branch.block);
        if let Some((a, b)) = blocks.matched()
            && a.kind != b.kind
        {
            let has = [a, b].map(|part| format!("has {}", article(&part.title)));
            self.computes(rank::BLOCK, &slots(sublayer), Told::Does(has));
        }
        for wire in &sublayer.wiring {
            self.wire(wire, &title);
        }
        for pair in &sublayer.parts {
            let is_replaced = pair.role.either() == Some(&Role::Block);
            match pair.part.only() {
                Some((side, part)) if !is_replaced => {
                    let role = pair.role.either().copied().unwrap_or(Role::Block);
                    let text = format!("normalises {} ({})", normed(role), part.title);
                    self.computes(rank::NORM, &title, Told::Only(side, text));
                }
                Some(_) => {}
                None => self.part(pair, &part_place(pair, &title)),
            }
            if let Some((a, b)) = pair.role.matched()
                && a != b
            {
                let does = [a, b].map(|role| format!("normalises {}", normed(*role)));
                self.computes(rank::NORM, &title, Told::Does(does));
            }
        }
    }

    fn wire(&mut self, wire: &Wire, title: &str) {
        let sides = [&wire.a, &wire.b];
        let told = match wire.what {
            Wiring::Input | Wiring::Join | Wiring::Beside => {
                let other = if wire.a.is_empty() { &wire.b } else { &wire.a };
                Told::Does(sides.map(|text| match (wire.what, text.is_empty()) {
                    (Wiring::Beside, true) => format!("reads what the {other} left"),
                    _ => gives(wire.what, text),
                }))
            }
            Wiring::Side => one_or_both("reads besides", "its second input", sides),
            Wiring::Factor => {
                one_or_both("multiplies the result by", "factor of the result", sides)
            }
            Wiring::Saved => one_or_both("saves the result as", "name of the saved result", sides),
        };
        let rank = if wire.what == Wiring::Beside {
            rank::BESIDE
        } else {
            rank::WIRING
        };
        self.add(wire.level, rank, title, told);
    }

    /// A stage, one of `all` before or behind the layers.
    fn stage(&mut self, all: &[PartPair<'_>], pair: &PartPair<'_>, place: &str) {
        let is_further = |side: Side, part: &Part| {
            let others = all.iter().filter_map(|pair| match side {
                Side::A => pair.part.b,
                Side::B => pair.part.a,
            });
            others.into_iter().any(|other| other.kind == part.kind)
        };
        match pair.part.only() {
            Some((side, part)) if part.kind == "norm" => {
                let again = if is_further(side, part) {
                    " once more"
                } else {
                    ""
                };
                let text = format!("normalises the stream {place}{again} ({})", part.title);
                self.computes(rank::NORM, "", Told::Only(side, text));
            }
            Some((side, part)) => {
                let what = if is_further(side, part) {
                    "a further"
                } else {
                    "a"
                };
                let text = format!(
                    "has {what} stage {place}: {}, {}",
                    plain(&part.title),
                    plain(&part.line)
                );
                self.computes(rank::STAGE, "", Told::Only(side, text));
            }
            None => self.part(pair, &stage_place(pair, place)),
        }
    }

    fn part(&mut self, pair: &PartPair<'_>, place: &str) {
        for option in &pair.options {
            self.add(option.level, rank::OPTION, place, option_told(option));
        }
        self.weights(pair, place);
        self.ops(pair, place);
    }

    fn weights(&mut self, pair: &PartPair<'_>, place: &str) {
        let Some(part) = pair.part.either() else {
            return;
        };
        let told = |weight: &&Weight| !follows(part.kind, &weight.key, &pair.options);
        let own = |side: Side| -> Vec<&Weight> {
            let only = pair.weights.iter().filter_map(|row| row.weight.only());
            let mine = only
                .filter(|(of, _)| *of == side)
                .map(|(_, weight)| *weight);
            mine.filter(told).collect()
        };
        let (a, b) = (own(Side::A), own(Side::B));
        match (a.is_empty(), b.is_empty()) {
            (true, true) => {}
            (false, false) => {
                let has = [a, b].map(|all| format!("has {}", keys(&all)));
                self.computes(rank::WEIGHT, place, Told::Does(has));
            }
            (_, only_a) => {
                let (side, all) = if only_a { (Side::A, a) } else { (Side::B, b) };
                self.computes(rank::WEIGHT, place, Told::Only(side, has_weights(&all)));
            }
        }
        for row in &pair.weights {
            let Some((a, b)) = row.weight.matched() else {
                continue;
            };
            if a.is_shared != b.is_shared {
                let does = [a, b].map(|weight| match weight.is_shared {
                    true => format!("shares `{}` with another part", weight.key),
                    false => format!("has a `{}` of its own", weight.key),
                });
                self.computes(rank::WEIGHT, place, Told::Does(does));
            }
            if a.name != b.name {
                let names = [a, b].map(|weight| format!("`{}`", weight.name));
                self.add(
                    Level::Names,
                    rank::WEIGHT,
                    place,
                    Told::Has("tensor".into(), names),
                );
            }
            if row.level >= Level::Numbers && a.types != b.types {
                let types = [a, b].map(|weight| weight.types.join(" and "));
                self.add(
                    Level::Numbers,
                    rank::WEIGHT,
                    place,
                    Told::Has("stored as".into(), types),
                );
            }
        }
    }

    /// Operations, where neither a choice nor a weight says why they differ.
    fn ops(&mut self, pair: &PartPair<'_>, place: &str) {
        let options = pair.options.iter().map(|option| option.level);
        let weights = pair
            .weights
            .iter()
            .filter(|row| row.weight.matched().is_none());
        let is_told = |level: Level| {
            options.clone().any(|other| other >= level) || weights.clone().next().is_some()
        };
        let own = |side: Side| -> String {
            let only = pair.ops.iter().filter_map(|row| row.op.only());
            let mine: Vec<&Op> = only
                .filter(|(of, _)| *of == side)
                .map(|(_, op)| *op)
                .collect();
            let mut titles: Vec<String> =
                mine.iter().take(NAMED).map(|op| op.title.clone()).collect();
            if mine.len() > NAMED {
                titles.push(format!("{} more", mine.len() - NAMED));
            }
            listed(&titles)
        };
        let differs = pair.ops.iter().any(|row| row.level == Level::Computation);
        if (differs || pair.is_rewired) && !is_told(Level::Computation) {
            let told = match (own(Side::A), own(Side::B)) {
                (a, b) if a.is_empty() && b.is_empty() => Told::Has(
                    "order in which the same operations are connected".into(),
                    ["one".into(), "another".into()],
                ),
                (a, b) if b.is_empty() => Told::Only(Side::A, format!("computes {a}")),
                (a, b) if a.is_empty() => Told::Only(Side::B, format!("computes {b}")),
                (a, b) => Told::Does([a, b].map(|titles| format!("computes {titles}"))),
            };
            self.computes(rank::OP, place, told);
        }
        for row in pair.ops.iter().filter(|row| row.level == Level::Numbers) {
            if let (Some((a, b)), false) = (row.op.matched(), is_told(Level::Numbers)) {
                let titles = [a.title.clone(), b.title.clone()];
                self.add(
                    Level::Numbers,
                    rank::OP,
                    place,
                    Told::Has("operation".into(), titles),
                );
            }
        }
    }
}

fn option_told(option: &OptionPair<'_>) -> Told {
    let (a, b) = (option.a, option.b);
    match (a.is_off, b.is_off) {
        (true, false) => return Told::Only(Side::B, present(b)),
        (false, true) => return Told::Only(Side::A, present(a)),
        _ => {}
    }
    if let (Some(a), Some(b)) = (predicate(a), predicate(b)) {
        return Told::Does([a.to_owned(), b.to_owned()]);
    }
    let what = match option.level {
        Level::Numbers | Level::Names => about(a.doc).to_owned(),
        _ => format!("{} (`{}`)", about(a.doc), a.name),
    };
    Told::Has(what, [a, b].map(|option| format!("`{}`", option.value)))
}

/// What only one side has, or what both have.
fn one_or_both(verb: &str, what: &str, [a, b]: [&String; 2]) -> Told {
    match (a.is_empty(), b.is_empty()) {
        (false, true) => Told::Only(Side::A, format!("{verb} {a}")),
        (true, false) => Told::Only(Side::B, format!("{verb} {b}")),
        _ => Told::Has(what.to_owned(), [a, b].map(|text| format!("`{text}`"))),
    }
}

/// Whether a weight is there because of a choice that differs.
fn follows(kind: &str, key: &str, options: &[OptionPair<'_>]) -> bool {
    let known = [
        REGISTRY.embed,
        REGISTRY.head,
        REGISTRY.per_layer,
        REGISTRY.norm,
    ];
    let mut contracts = REGISTRY.blocks.iter().copied().chain(known);
    let Some(contract) = contracts.find(|contract| contract.name == kind) else {
        return false;
    };
    let Some(spec) = contract.weight(key) else {
        // Not of the contract but of a resource that it names.
        return options
            .iter()
            .any(|option| ["rope", "cache"].contains(&option.a.name.as_str()));
    };
    let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
    let words: BTreeSet<&str> = spec.when.split(|c| !is_word(c)).collect();
    options
        .iter()
        .any(|option| words.contains(option.a.name.as_str()))
}

fn keys(weights: &[&Weight]) -> String {
    let keys: Vec<String> = weights
        .iter()
        .map(|weight| format!("`{}`", weight.key))
        .collect();
    listed(&keys)
}

fn has_weights(weights: &[&Weight]) -> String {
    let keys = keys(weights);
    let docs: BTreeSet<&str> = weights.iter().map(|weight| about(weight.doc)).collect();
    match docs.first() {
        _ if weights.iter().all(|weight| weight.key.ends_with("bias")) => {
            format!("adds offsets: {keys}")
        }
        Some(doc) if docs.len() == 1 && !doc.is_empty() => format!("has {keys}: {doc}"),
        _ => format!("has {keys}"),
    }
}

/// What a norm of a role normalises.
fn normed(role: Role) -> &'static str {
    match role {
        Role::Before | Role::Block => "what goes in",
        Role::Behind => "what comes out",
        Role::Stream => "the stream behind the addition",
    }
}

/// Blocks of a side in the order of its layer.
fn order(sublayers: &[Sublayer<'_>], side: Side) -> String {
    let of_side = |pair: Pair<super::Place<'_>>| match side {
        Side::A => pair
            .a
            .map(|place| (place.slot_at, plain(&place.branch.block.title))),
        Side::B => pair
            .b
            .map(|place| (place.slot_at, plain(&place.branch.block.title))),
    };
    let mut all: Vec<(usize, String)> = sublayers
        .iter()
        .filter_map(|sublayer| of_side(sublayer.at))
        .collect();
    all.sort_by_key(|(at, _)| *at);
    let titles: Vec<String> = all.into_iter().map(|(_, title)| title).collect();
    titles.join(", then ")
}

/// How a kind that only one side has differs from the one that is most like it.
fn unlike(comparison: &Comparison<'_>, side: Side, pair: &KindPair<'_>) -> Option<String> {
    let near = pair.unlike.iter().find_map(|sublayer| sublayer.at.a);
    let kinds = &comparison.drawing(side).kinds;
    let slot = near?.slot;
    let near = kinds
        .iter()
        .position(|kind| kind.slots.iter().any(|own| std::ptr::eq(own, slot)))?;
    let number = comparison.number(side, near);
    let mut own = Findings::default();
    let known = titles(&pair.unlike);
    for sublayer in &pair.unlike {
        own.sublayer(sublayer, &known);
    }
    own.all
        .retain(|finding| finding.level == Level::Computation);
    own.all.sort_by_key(|finding| finding.rank);
    let short = |text: &str| text.split(": ").next().unwrap_or_default().to_owned();
    let (mut here, mut there) = (Vec::new(), Vec::new());
    for finding in own.all.iter().take(NAMED) {
        match &finding.told {
            Told::Only(Side::B, text) | Told::Does([_, text]) => here.push(short(text)),
            Told::Only(Side::A, text) => there.push(short(text)),
            Told::Has(what, [_, text]) => here.push(format!("has {text} as {what}")),
        }
    }
    let here = (!here.is_empty()).then(|| format!("unlike kind {number} it {}", here.join("; ")));
    let there = (!there.is_empty()).then(|| format!("only kind {number} {}", there.join("; ")));
    let words: Vec<String> = here.into_iter().chain(there).collect();
    (!words.is_empty()).then(|| words.join(", and "))
}
