//! What the groups of a picture show: pieces open groups by path, here they get the names of `places`.
//!
//! Paths alone do not tell parts apart (a norm may have that of its block), so order does: every piece
//! opens the parts of a slot in the order of [`crate::diagram::Slot::parts`], and operations in that of
//! [`crate::diagram::Part::ops`].

use std::collections::VecDeque;

use super::places::Places;
use crate::diagram::Drawing;
use crate::diagram::svg::{Item, Piece};

/// What a group of a picture shows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Shown {
    /// A kind of layers, a place in [`Places::kinds`].
    Kind(usize),
    /// A part, a place in [`Places::parts`].
    Part(usize),
    /// An operation of a part.
    Op(usize, usize),
    /// Nothing with a name.
    Nothing,
}

/// A group that is open.
struct Open {
    shown: Shown,
    /// Parts that may come in it, if it says so.
    parts: Option<VecDeque<usize>>,
    /// Operations that came in it.
    n_ops: usize,
}

/// What each group of a picture shows, in order; `own` are the parts outside of all kinds of layers.
pub(super) fn shown(
    piece: &Piece,
    drawing: &Drawing,
    places: &Places<'_>,
    own: Vec<usize>,
) -> Vec<Shown> {
    let mut all = Vec::new();
    let mut open = vec![Open {
        shown: Shown::Nothing,
        parts: Some(own.into()),
        n_ops: 0,
    }];
    for item in &piece.items {
        let (shown, parts) = match item {
            Item::Open("kind", letter, _) => kind(letter, drawing, places),
            Item::Open("op", ..) => (op(&mut open), None),
            Item::Open(class, path, _) => (part(class, path, places, &mut open), None),
            Item::Close => {
                open.pop();
                continue;
            }
            _ => continue,
        };
        let n_ops = 0;
        open.push(Open {
            shown,
            parts,
            n_ops,
        });
        all.push(shown);
    }
    all
}

fn kind(letter: &str, drawing: &Drawing, places: &Places<'_>) -> (Shown, Option<VecDeque<usize>>) {
    let at = drawing.kinds.iter().position(|kind| kind.letter == letter);
    let parts = places.of_kind(at);
    (at.map_or(Shown::Nothing, Shown::Kind), Some(parts.into()))
}

/// The next operation of the innermost part.
fn op(open: &mut [Open]) -> Shown {
    let part = open.iter_mut().rev().find_map(|group| match group.shown {
        Shown::Part(at) => Some((at, &mut group.n_ops)),
        _ => None,
    });
    part.map_or(Shown::Nothing, |(at, n)| {
        *n += 1;
        Shown::Op(at, *n - 1)
    })
}

/// The first part with a path that did not come yet.
fn part(class: &str, path: &str, places: &Places<'_>, open: &mut [Open]) -> Shown {
    let is_norm = class.ends_with(" nrm");
    let is_it = |at: &usize| {
        let part = places.parts[*at].part;
        part.path == path && (part.kind == "norm") == is_norm
    };
    let left = open.iter_mut().rev().find_map(|group| group.parts.as_mut());
    let Some(left) = left.filter(|_| class.starts_with("part")) else {
        return Shown::Nothing;
    };
    let at = left.iter().position(is_it);
    let at = at.and_then(|at| left.remove(at));
    at.map_or(Shown::Nothing, Shown::Part)
}

/// Attributes of each group. A part that is a single box has its name there, and not its operation.
pub(super) fn attributes(piece: &Piece, places: &Places<'_>, shown: &[Shown]) -> Vec<String> {
    let groups = piece.items.windows(2).filter_map(|pair| match pair {
        [Item::Open(class, ..), next] => Some((*class, matches!(next, Item::Open("op", ..)))),
        _ => None,
    });
    let mut out = Vec::new();
    let mut outer = None;
    for ((class, is_around), shown) in groups.zip(shown) {
        let name = match (shown, outer.take()) {
            (Shown::Part(at), _) if is_around => {
                outer = Some(*at);
                None
            }
            (_, Some(part)) => Some(&places.parts[part].at),
            (Shown::Kind(at), None) => Some(&places.kinds[*at]),
            (Shown::Part(at), None) => Some(&places.parts[*at].at),
            (Shown::Op(at, n), None) => places.parts[*at].ops.get(*n),
            (Shown::Nothing, None) => None,
        };
        let name = name.map_or_else(String::new, |name| format!(" data-at=\"{name}\""));
        out.push(format!(" class=\"{class}\"{name}"));
    }
    out
}

/// Attributes of groups without names.
pub(super) fn unnamed(piece: &Piece) -> Vec<String> {
    let classes = piece.items.iter().filter_map(|item| match item {
        Item::Open(class, ..) => Some(format!(" class=\"{class}\"")),
        _ => None,
    });
    classes.collect()
}
