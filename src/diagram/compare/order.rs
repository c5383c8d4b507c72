//! An order of drawings in which two stand alike only if an alignment cannot tell them apart.
//!
//! It reads what alignments read, field by field, and stops at the first that differs: drawings of one
//! model mostly differ in their names, and a large one is never written out.

use std::cmp::Ordering;

use crate::diagram::{
    Branch, Drawing, Edge, End, Factor, Kind, Op, OpShape, Part, PartOption, Slot, Weight,
};

/// Which of two drawings is the first of an alignment.
pub(super) fn order(a: &Drawing, b: &Drawing) -> Ordering {
    let of_model = |of: &Drawing| (of.is_symbolic, of.mode as u8);
    (&a.arch, &a.name)
        .cmp(&(&b.arch, &b.name))
        .then_with(|| of_model(a).cmp(&of_model(b)))
        .then_with(|| (&a.facts, &a.layers).cmp(&(&b.facts, &b.layers)))
        .then_with(|| each(&a.kinds, &b.kinds, kind))
        .then_with(|| each(&a.begin, &b.begin, part))
        .then_with(|| each(&a.end, &b.end, part))
}

/// The shorter first, then the one whose first other item comes first.
fn each<T>(a: &[T], b: &[T], item: impl Fn(&T, &T) -> Ordering) -> Ordering {
    let items = || {
        let mut all = a.iter().zip(b).map(|(a, b)| item(a, b));
        all.find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
    };
    a.len().cmp(&b.len()).then_with(items)
}

fn kind(a: &Kind, b: &Kind) -> Ordering {
    fn own(kind: &Kind) -> [&str; 2] {
        [&kind.label, &kind.letter]
    }
    own(a)
        .cmp(&own(b))
        .then_with(|| each(&a.slots, &b.slots, slot))
}

fn slot(a: &Slot, b: &Slot) -> Ordering {
    fn own(slot: &Slot) -> (&str, Option<&str>, Option<&str>, u8) {
        let scale = slot.scale.as_ref().map(text);
        (&slot.name, slot.from.as_deref(), scale, slot.join as u8)
    }
    own(a)
        .cmp(&own(b))
        .then_with(|| each(a.pre.as_slice(), b.pre.as_slice(), part))
        .then_with(|| each(&a.branches, &b.branches, branch))
        .then_with(|| each(a.post.as_slice(), b.post.as_slice(), part))
        .then_with(|| each(a.after.as_slice(), b.after.as_slice(), part))
}

fn branch(a: &Branch, b: &Branch) -> Ordering {
    fn own(branch: &Branch) -> [Option<&str>; 4] {
        let taps = [&branch.from, &branch.side, &branch.save];
        let [from, side, save] = taps.map(Option::as_deref);
        [from, side, save, branch.gain.as_ref().map(text)]
    }
    own(a)
        .cmp(&own(b))
        .then_with(|| part(&a.block, &b.block))
        .then_with(|| each(a.pre.as_slice(), b.pre.as_slice(), part))
        .then_with(|| each(a.post.as_slice(), b.post.as_slice(), part))
}

fn text(factor: &Factor) -> &str {
    &factor.text
}

fn part(a: &Part, b: &Part) -> Ordering {
    let own = |part: &Part| (part.kind, part.ops.len(), part.weights.len());
    fn words(part: &Part) -> [&str; 4] {
        [&part.title, &part.line, &part.formula, &part.path]
    }
    own(a)
        .cmp(&own(b))
        .then_with(|| words(a).cmp(&words(b)))
        .then_with(|| each(&a.options, &b.options, option))
        .then_with(|| each(&a.weights, &b.weights, weight))
        .then_with(|| each(&a.ops, &b.ops, op))
        .then_with(|| each(&a.edges, &b.edges, edge))
}

fn option(a: &PartOption, b: &PartOption) -> Ordering {
    fn own(option: &PartOption) -> (&str, &str, [bool; 3]) {
        let is = [option.is_number, option.is_off, option.is_open];
        (&option.name, &option.value, is)
    }
    own(a).cmp(&own(b))
}

fn weight(a: &Weight, b: &Weight) -> Ordering {
    fn own(weight: &Weight) -> (&str, &str, bool, &[String], &[&'static str]) {
        let Weight { key, name, .. } = weight;
        (key, name, weight.is_shared, &weight.shape, &weight.types)
    }
    own(a).cmp(&own(b))
}

fn op(a: &Op, b: &Op) -> Ordering {
    fn own(op: &Op) -> (&str, &[String], Option<&str>, &[usize], &[String]) {
        let sign = match op.shape {
            OpShape::Sign(sign) => Some(sign),
            _ => None,
        };
        (&op.title, &op.ops, sign, &op.weights, &op.result)
    }
    own(a).cmp(&own(b))
}

fn edge(a: &Edge, b: &Edge) -> Ordering {
    fn own(edge: &Edge) -> (usize, Result<usize, &str>, &[String], bool) {
        let from = match &edge.from {
            End::Op(at) => Ok(*at),
            End::Outside(name) => Err(name.as_str()),
        };
        (edge.to, from, &edge.shape, edge.is_part)
    }
    own(a).cmp(&own(b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::Library;
    use crate::blocks::REGISTRY;
    use crate::diagram::{Sample, variants};

    fn last(drawing: &mut Drawing) -> &mut Part {
        let kind = drawing.kinds.last_mut().expect("a kind");
        let slot = kind.slots.last_mut().expect("a slot");
        let branch = slot.branches.last_mut().expect("a branch");
        &mut branch.block
    }

    #[test]
    fn two_that_differ_in_one_thing_have_an_order() {
        let library = Library::open(&REGISTRY, &[]).expect("sound");
        let (name, _) = library.sources().next().expect("a definition");
        let def = library.get(name).expect("sound");
        let (_, request) = variants(&def).expect("a model").remove(0);
        let sample = Sample::of_definition("m", &def, &request).expect("a graph");
        let plain = Drawing::new(&def, "", &sample);
        assert_eq!(order(&plain, &plain.clone()), Ordering::Equal);
        let edits: [fn(&mut Drawing); 14] = [
            |d| d.is_symbolic = !d.is_symbolic,
            |d| d.layers.push(0),
            |d| d.end.last_mut().expect("one").title.push('1'),
            |d| d.begin[0].formula.push('1'),
            |d| d.kinds.last_mut().expect("one").label.push('1'),
            |d| d.kinds.last_mut().expect("one").slots[0].from = Some("1".into()),
            |d| last(d).options.last_mut().expect("one").value.push('1'),
            |d| last(d).weights.last_mut().expect("one").shape[1].push('1'),
            |d| last(d).weights.last_mut().expect("one").types.push("f16"),
            |d| last(d).ops.last_mut().expect("one").title.push('1'),
            |d| last(d).ops.last_mut().expect("one").ops.push("MUL".into()),
            |d| last(d).ops.last_mut().expect("one").shape = OpShape::Sign("+"),
            |d| last(d).edges.last_mut().expect("one").to += 1,
            |d| last(d).edges.last_mut().expect("one").from = End::Outside("1".into()),
        ];
        for (at, edit) in edits.into_iter().enumerate() {
            let mut other = plain.clone();
            edit(&mut other);
            let found = order(&plain, &other);
            assert_eq!(order(&other, &plain), found.reverse(), "{at}");
            assert_ne!(found, Ordering::Equal, "{at}");
        }
    }
}
