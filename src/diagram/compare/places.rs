//! What places of a comparison are called: the same whichever side comes first.

use std::collections::BTreeSet;

use crate::diagram::Part;

use super::phrases::plain;
use super::{Comparison, Pair, PartPair, Role, Sublayer};

/// The block of a sublayer; of two the order of the sides does not matter.
pub(super) fn title(sublayer: &Sublayer<'_>) -> String {
    either_of(sublayer.at.map(|place| plain(&place.branch.block.title)))
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
