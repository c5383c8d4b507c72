//! Names of everything in a drawing, by which pictures, the data of a page and the address in the browser refer to each
//! other.
//!
//! A name is the path that captures and messages use, with the letter of the kind instead of the layer's index:
//! `layers.A`, `layers.A.attn`, `layers.A.attn.q`, and `layers.A.attn@attn_q` for a weight. Names are unique, and
//! contain no character that would have to be quoted in an address or a selector.

use std::collections::BTreeSet;

use super::{Drawing, Slot, UnitBox};

/// The name of the whole drawing.
pub(super) const WHOLE: &str = "stack";

/// Sets the names of everything in a drawing.
pub(super) fn name(drawing: &mut Drawing) {
    let mut names = UniqueIds::default();
    names.unique(WHOLE);
    for kind in &mut drawing.kinds {
        let path = kind.slots.first().map_or("layers.{il}", |slot| &slot.path);
        let stack = path.split("{il}").next().unwrap_or("layers.");
        kind.id = names.unique(&format!("{stack}{}", kind.letter));
    }
    let begin = drawing.begin.iter_mut().map(|part| ("", part));
    let inner = drawing.kinds.iter_mut().flat_map(|kind| {
        let parts = kind.slots.iter_mut().flat_map(Slot::parts_mut);
        parts.map(|part| (kind.letter.as_str(), part))
    });
    let end = drawing.end.iter_mut().map(|part| ("", part));
    let mut parts: Vec<(&str, &mut UnitBox)> = begin.chain(inner).chain(end).collect();
    for (letter, part) in &mut parts {
        part.id = names.unique(&part.path.replace("{il}", letter));
    }
    // Contents of parts are named last, so that parts get their plain names.
    for (letter, part) in parts {
        for op in &mut part.ops {
            op.id = match op.value.as_ref().filter(|value| **value != part.path) {
                Some(value) => names.unique(&value.replace("{il}", letter)),
                None => names.unique(&format!("{}.{}", part.id, op.title)),
            };
        }
        for weight in &mut part.weights {
            weight.id = names.unique(&format!("{}@{}", part.id, weight.key));
        }
    }
}

/// Puts a name before those of everything in a drawing, which is then part of another one.
pub(super) fn within(drawing: &mut Drawing, name: &str) {
    let put = |id: &mut String| *id = format!("{name}.{id}");
    drawing.kinds.iter_mut().for_each(|kind| put(&mut kind.id));
    for part in drawing.parts_mut() {
        put(&mut part.id);
        part.ops.iter_mut().for_each(|op| put(&mut op.id));
        part.weights
            .iter_mut()
            .for_each(|weight| put(&mut weight.id));
    }
}

#[derive(Default)]
struct UniqueIds(BTreeSet<String>);

impl UniqueIds {
    /// A unique name: the plain form of a text, with a number appended if it is in use.
    fn unique(&mut self, text: &str) -> String {
        let mut base = String::with_capacity(text.len());
        for c in text.chars() {
            match c {
                'a'..='z' | 'A'..='Z' | '0'..='9' | '.' | '_' | '@' | '~' => base.push(c),
                _ if !base.ends_with('-') => base.push('-'),
                _ => {}
            }
        }
        let base = match base.trim_matches('-') {
            "" => "unnamed",
            trimmed => trimmed,
        };
        let numbered = (2..).map(|n| format!("{base}~{n}"));
        let mut tried = [base.to_owned()].into_iter().chain(numbered);
        let free = tried.find(|name| self.0.insert(name.clone()));
        free.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain_and_unique() {
        let mut names = UniqueIds::default();
        let mut check = |text: &str, name: &str| assert_eq!(names.unique(text), name);
        check("layers.A.cache_k (view)", "layers.A.cache_k-view");
        check("layers.A.cache_k [view", "layers.A.cache_k-view~2");
        check("<\"&'>", "unnamed");
        check("", "unnamed~2");
    }
}
