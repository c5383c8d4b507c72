//! Kinds of layers in full detail: the hidden state as a vertical line, and branches that leave and rejoin it.

use super::fragment::{DrawItem, Fragment, PathSegment, Point};
use super::overlay::{self, heat};
use super::shape::{GAP, Link, arrow, chain, head, label, sign, spine_head, square, tip, toward};
use super::text::{TextStyle, cut, width};
use super::unit_box::{card, cost_text, opened, small};
use crate::diagram::words::tap;
use crate::diagram::{Branch, Drawing, Factor, LayerKind, Slot, UnitBox};
use lab_core::arch::Join;

/// Position of the hidden state's line.
pub(super) const SPINE: f64 = 24.0;
/// Position of the line of several hidden states, from the mix that makes one of them to the mix that writes them.
const HELD: f64 = 8.0;
/// Distance between the hidden state's line and the branches.
pub(super) const OUT: f64 = 44.0;
/// Gap between branches.
const BESIDE: f64 = 30.0;

/// A kind of layer. `layers` lists its layers, if the picture has several kinds.
pub(super) fn kind(kind: &LayerKind, layers: Option<&str>) -> Fragment {
    let slots = slots(kind);
    let mut fragment = Fragment::new(slots.w, 0.0);
    match layers {
        None => fragment.write(0.0, TextStyle::Title, &kind.label),
        Some(layers) => {
            let cost = kind.cost.as_ref().map(cost_text).unwrap_or_default();
            let lines = [
                (TextStyle::Line, layers.to_owned()),
                (TextStyle::Small, cost),
            ];
            fragment.add(0.0, heading(kind, 40.0, slots.w, &lines));
        }
    }
    fragment.skip(8.0);
    fragment.add(0.0, slots);
    fragment
}

/// The slots of a kind of layer along the hidden state, with operations and weights.
pub(in crate::diagram) fn slots(kind: &LayerKind) -> Fragment {
    let are_several = kind.slots.iter().any(|slot| slot.read.is_some());
    let (x, what) = match are_several {
        true => ("X", "hidden states"),
        false => ("x", "hidden state"),
    };
    let from = format!("{x}: the {what}, from the layer before");
    let mut fragment = stream(&from, false);
    for own in on_streams(&kind.slots, Detail::Full) {
        fragment.add(0.0, own);
    }
    fragment.add(0.0, stream(&format!("{x}: to the next layer"), true));
    fragment
}

/// Slots with the line of the hidden state behind everything else. If a slot reads one hidden state from several, these
/// have a separate line until they are written.
pub(super) fn on_streams(slots: &[Slot], detail: Detail) -> Vec<Fragment> {
    let mut is_held = false;
    let slots = slots.iter().map(|own| {
        is_held |= own.read.is_some();
        let inner = slot(own, detail);
        let mut fragment = Fragment::new(inner.w, inner.h);
        if is_held {
            // The line leads from the box that reads to the box that writes.
            let begin = own.read.as_ref().map_or(0.0, |_| GAP);
            let end = inner.h - own.write.as_ref().map_or(0.0, |_| GAP);
            fragment.line(&[(HELD, begin), (HELD, end)], "wire");
        }
        is_held &= own.write.is_none();
        fragment.line(&[(SPINE, 0.0), (SPINE, inner.h)], "spine");
        fragment.put(inner, 0.0, 0.0);
        fragment
    });
    slots.collect()
}

/// The stages before and after the layers, one below the other.
pub(super) fn stages(drawing: &Drawing) -> Fragment {
    let mut fragment = Fragment::new(420.0, 0.0);
    for (title, parts) in [
        ("Before the layers", &drawing.begin),
        ("After the layers", &drawing.end),
    ] {
        if parts.is_empty() {
            continue;
        }
        fragment.skip(if fragment.h > 0.0 { 40.0 } else { 0.0 });
        fragment.write(0.0, TextStyle::Title, title);
        fragment.skip(16.0);
        let parts = parts.iter().map(opened);
        fragment.add(0.0, chain(parts.collect(), Link::Wire));
    }
    fragment
}

/// The letter and label of a kind of layer, its note, and further lines.
pub(super) fn heading(
    kind: &LayerKind,
    side: f64,
    room: f64,
    lines: &[(TextStyle, String)],
) -> Fragment {
    let (mut fragment, left) = (Fragment::new(room, 0.0), side + 14.0);
    fragment.put(badge(kind, side), 0.0, 0.0);
    fragment.write(left, TextStyle::Title, &kind.label);
    for line in overlay::lines(&kind.note) {
        fragment.write(left, TextStyle::Name, line);
    }
    for (style, text) in lines {
        fragment.write(left, *style, text);
    }
    fragment.h = fragment.h.max(side) + 8.0;
    fragment
}

/// The detail in which the parts of a slot are drawn.
#[derive(Clone, Copy)]
pub(super) enum Detail {
    /// Parts are drawn with operations and weights.
    Full,
    /// Parts are drawn as cards; the number is the width of all branches together.
    Cards(f64),
}

impl Detail {
    /// Cards in a slot of the given width.
    pub(super) fn cards(room: f64) -> Self {
        Self::Cards(room - SPINE - OUT)
    }

    /// The fragment of a block. A card gets its share of the width.
    fn block(self, part: &UnitBox, n: usize) -> Fragment {
        match self {
            Self::Full => opened(part),
            Self::Cards(room) => {
                let each = (room - BESIDE * (n as f64 - 1.0)) / n as f64;
                card(part, each - 24.0)
            }
        }
    }

    fn norm(self, part: Option<&UnitBox>) -> Option<Fragment> {
        part.map(|part| match self {
            Self::Full => opened(part),
            Self::Cards(_) => small(part),
        })
    }
}

fn tapped(verb: &str, name: Option<&String>) -> Option<Fragment> {
    name.map(|name| label(&tap(verb, name), "tap"))
}

fn factor(factor: Option<&Factor>) -> Option<Fragment> {
    factor.map(|factor| label(&format!("\u{d7} {}", factor.text), "pill"))
}

fn branch(branch: &Branch, n: usize, detail: Detail) -> Fragment {
    let save = branch.save.as_ref();
    let column = [
        tapped("reads", branch.from.as_ref()),
        detail.norm(branch.pre.as_ref()),
        tapped("and", branch.side.as_ref()),
        Some(detail.block(&branch.block, n)),
        detail.norm(branch.post.as_ref()),
        factor(branch.factor.as_ref()),
        save.map(|name| label(&format!("saved as {name}"), "tap")),
    ];
    chain(column.into_iter().flatten().collect(), Link::Wire)
}

/// Branches side by side, and the circles that sum them.
fn branches(slot: &Slot, detail: Detail) -> Fragment {
    let n = slot.branches.len();
    let all = slot.branches.iter().map(|own| branch(own, n, detail));
    let mut all: Vec<Fragment> = all.collect();
    if all.len() == 1 {
        return all.remove(0);
    }
    let h = all.iter().map(|b| b.h).fold(0.0, f64::max);
    let w = all.iter().map(|b| b.w + BESIDE).sum::<f64>() - BESIDE;
    let (top, sum) = (GAP, GAP + h + GAP + 12.0);
    let mut fragment = Fragment::new(w, sum + 12.0);
    let begin = (w / 2.0).round();
    let (mut x, mut last) = (0.0, None);
    for (branch, own) in all.into_iter().zip(&slot.branches) {
        let [from, to] = branch.ports().map(|port| x + port);
        if own.from.is_none() {
            let ends = [(begin, 0.0), (begin, 0.0), (from, top), (from, top)];
            arrow(&mut fragment, &ends);
        }
        let below = (to, top + branch.h);
        match last {
            None => fragment.line(&[below, (to, sum)], "wire"),
            // The sums run from left to right, in the order of computation.
            Some(before) => {
                fragment.line(&[(before, sum), (to, sum)], "wire");
                fragment.line(&[below, (to, sum - 12.0)], "wire");
                head(&mut fragment, (to, sum - 12.0));
                sign(&mut fragment, (to, sum), "+");
            }
        }
        last = Some(to);
        x += branch.w + BESIDE;
        let left = x - branch.w - BESIDE;
        fragment.put(branch, left, top);
    }
    fragment.ports = Some([begin, last.unwrap_or(begin)]);
    fragment
}

/// A slot: its branches lead to the right of the hidden state, and back.
pub(super) fn slot(slot: &Slot, detail: Detail) -> Fragment {
    let tapped = slot.from.as_ref().filter(|name| *name != "x");
    let column = [
        self::tapped("reads", tapped),
        detail.norm(slot.pre.as_ref()),
        Some(branches(slot, detail)),
        detail.norm(slot.post.as_ref()),
        factor(slot.scale.as_ref()),
    ];
    let inner = chain(column.into_iter().flatten().collect(), Link::Wire);
    let left = SPINE + OUT;
    let [start, back] = inner.ports().map(|port| left + port);
    let (top, begin) = (18.0, 18.0 + GAP);
    let mut fragment = Fragment::new(left + inner.w, begin);
    if tapped.is_none() {
        turn(&mut fragment, [(SPINE, top), (start, top), (start, begin)]);
        fragment.push(DrawItem::Circle(SPINE, top, 4.0, "tip"));
    }
    fragment.add(left, inner);
    let end = fragment.h + GAP;
    let from = (back, fragment.h);
    turn(&mut fragment, [from, (back, end), (SPINE + 12.0, end)]);
    let words = slot.join.phrase();
    let text = match slot.join {
        Join::Add => "+",
        Join::Set => "=",
        Join::Append => "&",
        Join::Keep => ".",
    };
    let mut joint = Fragment::default();
    sign(&mut joint, (SPINE, end), text);
    fragment.put(heat(joint, slot.note.class), 0.0, 0.0);
    let noted = overlay::lines(&slot.note).join(": ");
    let noted = cut(&noted, TextStyle::Line, fragment.w - SPINE - 24.0);
    fragment.start(SPINE + 24.0, end + 14.0, TextStyle::Line, &noted);
    if width(words, TextStyle::Small) <= back - SPINE - 40.0 {
        fragment.start(SPINE + 24.0, end - 5.0, TextStyle::Small, words);
    }
    fragment.h = end + 18.0;
    // The parts on the line of the hidden state, before and after the slot.
    let on_line = |fragment: &mut Fragment, part: Option<&UnitBox>| {
        if let Some(part) = detail.norm(part) {
            fragment.skip(8.0);
            fragment.add(0.0, part);
            fragment.skip(8.0);
        }
    };
    let mut whole = Fragment::new(fragment.w, 0.0);
    on_line(&mut whole, slot.read.as_ref());
    whole.add(0.0, fragment);
    on_line(&mut whole, slot.after.as_ref());
    on_line(&mut whole, slot.write.as_ref());
    whole.grouped("slot", "")
}

/// An arrow with a rounded corner between two points.
fn turn(fragment: &mut Fragment, [from, corner, to]: [Point; 3]) {
    let near = |end: Point| {
        let (dx, dy) = toward(corner, end);
        (corner.0 + 8.0 * dx, corner.1 + 8.0 * dy)
    };
    let path = vec![
        PathSegment('M', vec![from]),
        PathSegment('L', vec![near(from)]),
        PathSegment('Q', vec![corner, near(to)]),
        PathSegment('L', vec![to]),
    ];
    fragment.push(DrawItem::Path(path, "wire"));
    tip(fragment, to, toward(corner, to));
}

/// The start or the end of the hidden state in a layer.
pub(super) fn stream(text: &str, is_end: bool) -> Fragment {
    let mut fragment = Fragment::new(420.0, if text.is_empty() { 20.0 } else { 30.0 });
    let end = fragment.h - if is_end { 10.0 } else { 0.0 };
    fragment.line(&[(SPINE, 0.0), (SPINE, end)], "spine");
    if is_end {
        spine_head(&mut fragment, (SPINE, end + 8.0));
    }
    fragment.start(SPINE + 14.0, 13.0, TextStyle::Small, text);
    fragment
}

/// The letter of a kind of layers, in a box.
pub(super) fn badge(kind: &LayerKind, side: f64) -> Fragment {
    let mut fragment = Fragment::new(side, side);
    fragment.push(DrawItem::Box(square(0.0, 0.0, side), side / 5.0, "badge"));
    fragment.middle(
        side / 2.0,
        side / 2.0 + 7.0,
        TextStyle::Heading,
        &kind.letter,
    );
    heat(fragment, kind.note.class)
}
