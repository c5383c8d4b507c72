//! What places of a comparison are called: the same whichever side comes first.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::diagram::{Drawing, Part};
use crate::wording::listed;

use super::phrases::plain;
use super::{Comparison, Pair, PartPair, Role, Sublayer, Told};

/// Kinds of layers that are named, at most.
const KINDS: usize = 3;

/// The block of a sublayer; of two the order of the sides does not matter.
pub(super) fn title(sublayer: &Sublayer<'_>) -> String {
    let titles = sublayer.at.map(|place| plain(&place.branch.block.title));
    let split = titles.matched().map(|(a, b)| [apart(a), apart(b)]);
    match split {
        // The same block in other roles.
        Some([(a, role_a), (b, role_b)]) if a == b && role_a != role_b => {
            // What has no role comes first.
            let roles: BTreeSet<&str> = [role_a, role_b].into();
            let roles: Vec<&str> = roles.into_iter().collect();
            match roles[..] {
                ["", role] => format!("{a} ({role} or not)"),
                _ => format!("{a} ({})", roles.join(" or ")),
            }
        }
        _ => either_of(titles),
    }
}

/// A title and the role behind it.
fn apart(title: &str) -> (&str, &str) {
    let role = title.split_once(" (");
    let role = role.and_then(|(title, role)| Some((title, role.strip_suffix(')')?)));
    role.unwrap_or((title, ""))
}

/// The slots of a sublayer.
pub(super) fn slots(sublayer: &Sublayer<'_>) -> String {
    either_of(
        sublayer
            .at
            .map(|place| format!("slot `{}`", place.slot.name)),
    )
}

/// In which kinds of layers there is a place, by their numbers.
#[derive(Default)]
struct Kinds {
    both: BTreeSet<usize>,
    only: [BTreeSet<usize>; 2],
}

/// Where places are.
#[derive(Default)]
pub(super) struct Places(BTreeMap<String, Kinds>);

impl Places {
    pub(super) fn new(comparison: &Comparison<'_>) -> Self {
        let mut all = Self::default();
        for (number, pair) in (1..).zip(&comparison.kinds) {
            let side = pair.kind.only().map(|(side, _)| side);
            for sublayer in &pair.sublayers {
                let title = title(sublayer);
                let parts = sublayer.parts.iter().map(|pair| part_place(pair, &title));
                for place in parts.chain([slots(sublayer), title.clone()]) {
                    let kinds = all.0.entry(place).or_default();
                    let kinds = match side {
                        None => &mut kinds.both,
                        Some(side) => &mut kinds.only[side as usize],
                    };
                    kinds.insert(number);
                }
            }
            // The whole kind.
            if side.is_none() {
                let whole = all.0.entry(String::new()).or_default();
                whole.both.insert(number);
            }
        }
        all
    }

    /// A place in words, with the kinds of layers in which something is said of it, unless those are all
    /// of which it can be said: what only one side does is not done in what only the other side has.
    pub(super) fn told(&self, place: &str, kinds: &BTreeSet<usize>, told: &Told) -> String {
        let Some(all) = self.0.get(place).filter(|_| !kinds.is_empty()) else {
            return place.to_owned();
        };
        let others = match told {
            Told::Only(side, _) => !all.only[side.other() as usize].is_empty(),
            Told::Does(_) | Told::Has(..) => false,
        };
        match *kinds == all.both && !others {
            true => place.to_owned(),
            false if place.is_empty() => numbered(kinds),
            false => format!("{place} of {}", numbered(kinds)),
        }
    }
}

/// Kinds of layers by their numbers.
pub(super) fn numbered(kinds: &BTreeSet<usize>) -> String {
    let all: Vec<String> = kinds.iter().map(usize::to_string).collect();
    match all.len() {
        1 => format!("kind {}", all[0]),
        n if n > KINDS => format!("{n} kinds of layers"),
        _ => format!("kinds {}", listed(&all)),
    }
}

/// One text, or both if they differ, whichever is of which side.
pub(super) fn either_of(texts: Pair<String>) -> String {
    let all: BTreeSet<String> = texts.a.into_iter().chain(texts.b).collect();
    let all: Vec<String> = all.into_iter().collect();
    all.join(" or ")
}

/// Where a pair of parts of a sublayer stands.
pub(super) fn part_place(pair: &PartPair<'_>, title: &str) -> String {
    let roles: BTreeSet<Role> = pair.role.a.into_iter().chain(pair.role.b).collect();
    match roles.first() {
        _ if roles.len() > 1 => format!("norm at the {title}"),
        Some(Role::Before) => format!("norm before the {title}"),
        Some(Role::Behind) => format!("norm behind the {title}"),
        Some(Role::Stream) => format!("norm of the stream behind the {title}"),
        _ => title.to_owned(),
    }
}

/// Where a pair of stages stands.
pub(super) fn stage_place(pair: &PartPair<'_>, place: &str) -> String {
    match pair.part.either() {
        Some(part) if part.kind == "norm" => format!("norm {place}"),
        Some(part) => plain(&part.title),
        None => String::new(),
    }
}

/// The places of all norms that both sides have.
pub(super) fn norm_places(comparison: &Comparison<'_>) -> BTreeSet<String> {
    let is_norm = |pair: &&PartPair<'_>| {
        let both: Option<(&&Part, &&Part)> = pair.part.matched();
        both.is_some_and(|(a, _)| a.kind == "norm")
    };
    let mut out = BTreeSet::new();
    for sublayer in comparison.kinds.iter().flat_map(|kind| &kind.sublayers) {
        let title = title(sublayer);
        let norms = sublayer.parts.iter().filter(is_norm);
        out.extend(norms.map(|pair| part_place(pair, &title)));
    }
    let end = comparison.end.iter().filter(is_norm);
    out.extend(end.map(|pair| stage_place(pair, "behind the layers")));
    out
}

/// How many blocks of a title a kind of layers has at most.
pub(super) fn most(drawing: &Drawing) -> HashMap<String, usize> {
    let mut most = HashMap::new();
    for kind in &drawing.kinds {
        let mut own: HashMap<&str, usize> = HashMap::new();
        for branch in kind.slots.iter().flat_map(|slot| &slot.branches) {
            *own.entry(&branch.block.title).or_default() += 1;
        }
        for (title, n) in own {
            let known: &mut usize = most.entry(title.to_owned()).or_default();
            *known = n.max(*known);
        }
    }
    most
}

/// By title, how many of such blocks each side has.
pub(super) type Titles<'d> = [HashMap<&'d str, usize>; 2];

/// The blocks of the sublayers of a kind of layers.
pub(super) fn titles<'d>(all: &[Sublayer<'d>]) -> Titles<'d> {
    let mut titles = Titles::default();
    for sublayer in all {
        for (side, place) in [sublayer.at.a, sublayer.at.b].into_iter().enumerate() {
            if let Some(place) = place {
                *titles[side].entry(&place.branch.block.title).or_default() += 1;
            }
        }
    }
    titles
}
