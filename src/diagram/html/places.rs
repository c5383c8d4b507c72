//! Names of what a page shows: pictures, data and the address in the browser meet by them.
//!
//! A name is the path that captures and messages use, with the letter of the kind in place of the layer's
//! index: `layers.A`, `layers.A.attn`, `layers.A.attn.q`, and `layers.A.attn@attn_q` for a weight. Names
//! are unique, and have no character that an address or a selector would have to quote.

use std::collections::BTreeSet;

use crate::diagram::{Drawing, Kind, Op, Part};

/// The name of the whole.
pub(super) const WHOLE: &str = "stack";

/// The names of all that a page shows.
pub(super) struct Places<'d> {
    /// Of each kind of layers.
    pub(super) kinds: Vec<String>,
    /// In the order of [`Drawing::parts`].
    pub(super) parts: Vec<Place<'d>>,
}

/// A part with its names.
pub(super) struct Place<'d> {
    /// What it is.
    pub(super) part: &'d Part,
    /// Its name.
    pub(super) at: String,
    /// The kind of layers and the slot in it that it belongs to; none before and behind the layers.
    pub(super) slot: Option<(usize, usize)>,
    /// Names of its operations.
    pub(super) ops: Vec<String>,
    /// Names of its weights.
    pub(super) weights: Vec<String>,
}

impl<'d> Places<'d> {
    /// Names everything.
    pub(super) fn new(drawing: &'d Drawing) -> Self {
        let mut names = Names::default();
        names.unique(WHOLE);
        let kinds = drawing
            .kinds
            .iter()
            .map(|kind| names.unique(&of_kind(kind)));
        let kinds: Vec<String> = kinds.collect();
        let mut parts: Vec<Place<'d>> = Vec::new();
        for part in &drawing.begin {
            parts.push(names.part(part, "", None));
        }
        for (at, kind) in drawing.kinds.iter().enumerate() {
            for (n, slot) in kind.slots.iter().enumerate() {
                for part in slot.parts() {
                    parts.push(names.part(part, &kind.letter, Some((at, n))));
                }
            }
        }
        for part in &drawing.end {
            parts.push(names.part(part, "", None));
        }
        // What is inside comes last, so that parts have their plain names.
        for place in &mut parts {
            let letter = place
                .slot
                .map_or("", |(kind, _)| &drawing.kinds[kind].letter);
            names.inside(place, letter);
        }
        Self { kinds, parts }
    }

    /// Places in `parts` of what belongs to a kind of layers, or to none, in order.
    pub(super) fn of_kind(&self, kind: Option<usize>) -> Vec<usize> {
        let is_of = |place: &Place<'_>| place.slot.map(|(own, _)| own) == kind;
        (0..self.parts.len())
            .filter(|at| is_of(&self.parts[*at]))
            .collect()
    }

    /// The same for one slot.
    pub(super) fn of_slot(&self, slot: (usize, usize)) -> Vec<usize> {
        let is_of = |place: &Place<'_>| place.slot == Some(slot);
        (0..self.parts.len())
            .filter(|at| is_of(&self.parts[*at]))
            .collect()
    }
}

/// Names that are taken.
#[derive(Default)]
struct Names(BTreeSet<String>);

impl Names {
    /// The plain form of a text, with a number behind it if that is taken.
    fn unique(&mut self, text: &str) -> String {
        let base = plain(text);
        let numbered = (2..).map(|n| format!("{base}~{n}"));
        let mut tried = [base.clone()].into_iter().chain(numbered);
        let free = tried.find(|name| !self.0.contains(name)).unwrap_or(base);
        self.0.insert(free.clone());
        free
    }

    fn part<'d>(
        &mut self,
        part: &'d Part,
        letter: &str,
        slot: Option<(usize, usize)>,
    ) -> Place<'d> {
        Place {
            part,
            at: self.unique(&part.path.replace("{il}", letter)),
            slot,
            ops: Vec::new(),
            weights: Vec::new(),
        }
    }

    fn inside(&mut self, place: &mut Place<'_>, letter: &str) {
        let (at, path) = (place.at.clone(), &place.part.path);
        let op = |op: &Op| match op.value.as_ref().filter(|value| *value != path) {
            Some(value) => self.unique(&value.replace("{il}", letter)),
            None => self.unique(&format!("{at}.{}", op.title)),
        };
        place.ops = place.part.ops.iter().map(op).collect();
        let weights = place.part.weights.iter();
        let weights = weights.map(|weight| self.unique(&format!("{at}@{}", weight.key)));
        place.weights = weights.collect();
    }
}

/// The path of a kind's layers, up to the index.
fn of_kind(kind: &Kind) -> String {
    let path = kind.slots.first().map_or("layers.{il}", |slot| &slot.path);
    let stack = path.split("{il}").next().unwrap_or("layers.");
    format!("{stack}{}", kind.letter)
}

/// A text with other characters than those of paths as single dashes.
fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '.' | '_' | '@' | '~' => out.push(c),
            _ if !out.ends_with('-') => out.push('-'),
            _ => {}
        }
    }
    match out.trim_matches('-') {
        "" => "unnamed".to_owned(),
        trimmed => trimmed.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain_and_unique() {
        let mut names = Names::default();
        assert_eq!(
            names.unique("layers.A.attn.cache_k (view)"),
            "layers.A.attn.cache_k-view"
        );
        assert_eq!(
            names.unique("layers.A.attn.cache_k [view"),
            "layers.A.attn.cache_k-view~2"
        );
        assert_eq!(names.unique("<\"&'>"), "unnamed");
        assert_eq!(names.unique(""), "unnamed~2");
    }
}
