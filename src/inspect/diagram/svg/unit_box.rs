//! Draws a block with all its contents, a norm as a single box, and either as a card without contents.

use std::collections::HashMap;

use super::fragment::{Fragment, Rect};
use super::overlay::{self, heat};
use super::shape::{MAX_ROW, drum, graph, label, sign};
use super::text::{TextStyle, cut, width, wrap};
use crate::diagram::boxes::dims;
use crate::diagram::{BoxNote, BoxWeight, Edge, EdgeSource, OpBox, OpShape, UnitBox, WeightCost};
use lab_base::util::wording::{bytes, count, percent};

/// Padding between a border and its contents.
const PAD: f64 = 12.0;
/// Minimum width of a block's heading.
const MIN_HEADING: f64 = 330.0;

/// A name with its dimensions, if they are known.
fn with_dims(name: &str, of: &[String]) -> String {
    match of.is_empty() {
        true => name.to_owned(),
        false => format!("{name}: {}", dims(of)),
    }
}

/// Number of elements, bytes, and share of the model.
pub(in crate::diagram) fn cost_text(cost: &WeightCost) -> String {
    let (n, size) = (count(cost.params), bytes(cost.bytes));
    format!("{n} \u{b7} {size} \u{b7} {}", percent(cost.share))
}

/// A part with its operations: a block with contents, or a norm as one box.
pub(in crate::diagram) fn opened(part: &UnitBox) -> Fragment {
    match part.kind {
        "norm" => single(part),
        _ => block(part),
    }
}

fn block(part: &UnitBox) -> Fragment {
    let inside = inside(part);
    let room = inside.w.max(MIN_HEADING);
    let heading = heading(part, room, true);
    let (w, top) = (room + 2.0 * PAD, heading.h + PAD);
    let left = PAD + ((room - inside.w) / 2.0).round();
    let mut fragment = Fragment::new(w, top + inside.h + 2.0 * PAD);
    fragment.frame(10.0, "frame");
    // If a measurement is shown, the heading has a band in the colour of its part.
    let mut band = Fragment::new(w, heading.h + 4.0);
    if !part.note.class.is_empty() {
        band.frame(10.0, "frame");
    }
    band.put(heading, PAD, 0.0);
    fragment.put(heat(band, part.note.class), 0.0, 0.0);
    let [into, out] = inside.ports().map(|port| (left + port).round());
    fragment.ports = Some([into, out]);
    fragment.line(&[(out, top + inside.h), (out, fragment.h)], "wire");
    fragment.put(inside, left, top);
    fragment.grouped(part.class, &part.id)
}

/// A norm, or another part with one operation, as one box with the name of the part.
pub(super) fn single(part: &UnitBox) -> Fragment {
    let Some(op) = part.ops.first() else {
        return Fragment::new(10.0, 0.0);
    };
    op_box(part, op, &part.id, None, &part.note).grouped(part.class, "")
}

/// A block without its contents: only its heading.
pub(super) fn card(part: &UnitBox, room: f64) -> Fragment {
    let heading = heading(part, room, false);
    let mut fragment = Fragment::new(room + 2.0 * PAD, heading.h + 8.0);
    fragment.frame(10.0, "frame");
    fragment.put(heading, PAD, 0.0);
    heat(fragment.grouped(part.class, &part.id), part.note.class)
}

/// A norm as a card: its name and its note.
pub(super) fn small(part: &UnitBox) -> Fragment {
    let mut rows = vec![(part.title.clone(), TextStyle::Line)];
    rows.extend(noted(&part.note));
    let fragment = boxed(rows, "frame");
    heat(fragment.grouped(part.class, &part.id), part.note.class)
}

fn noted(note: &BoxNote) -> impl Iterator<Item = (String, TextStyle)> {
    let lines = overlay::lines(note).into_iter();
    lines.map(|line| (line.to_owned(), TextStyle::Line))
}

/// The heading of a part: title, words, formula and numbers.
fn heading(part: &UnitBox, room: f64, is_full: bool) -> Fragment {
    let mut fragment = Fragment::new(room, 8.0);
    let cost = part.cost.as_ref().map(cost_text);
    let cost = cost.map(|text| text + &in_layers(part.paths.len()));
    let cost = cost.unwrap_or_default();
    fragment.write(0.0, TextStyle::Title, &part.title);
    let last = wrap(&part.title, TextStyle::Title, room).pop();
    let last = last.map_or(0.0, |name| width(&name, TextStyle::Title));
    match last + width(&cost, TextStyle::Small) + 12.0 <= room {
        true => fragment.end(room, fragment.h - 5.0, TextStyle::Small, &cost),
        false => fragment.write(0.0, TextStyle::Small, &cost),
    }
    for line in overlay::lines(&part.note) {
        fragment.write(0.0, TextStyle::Name, line);
    }
    fragment.write(0.0, TextStyle::Line, &part.line);
    fragment.write(0.0, TextStyle::Small, &part.formula);
    if is_full {
        fragment.write(0.0, TextStyle::Small, &part.facts.join(" \u{b7} "));
    }
    for text in part.kept.text.iter().chain(&part.kept.amounts()) {
        fragment.write(0.0, TextStyle::Small, text);
    }
    fragment.skip(2.0);
    fragment
}

fn in_layers(n: usize) -> String {
    match n {
        0 | 1 => String::new(),
        n => format!(" in {n} layers"),
    }
}

/// Two rows about a weight: its name; its dimensions, types and bytes.
fn weight_rows(weight: &BoxWeight) -> [String; 2] {
    let mut what = vec![dims(&weight.shape), weight.types.join("/")];
    let cost = weight.cost.as_ref().map(|cost| bytes(cost.bytes));
    what.extend(cost.map(|size| size + &in_layers(weight.tensors.len())));
    what.extend(weight.is_shared.then(|| "shared".into()));
    what.retain(|text| !text.is_empty());
    [weight.name.clone(), what.join(" \u{b7} ")]
}

/// The box of an operation. `result` is written below its name, if there is one.
fn op_box(
    part: &UnitBox,
    op: &OpBox,
    id: &str,
    result: Option<String>,
    note: &BoxNote,
) -> Fragment {
    let mut rows = vec![(op.title.clone(), TextStyle::Name)];
    rows.extend(noted(note));
    let weights = op.weights.iter().map(|at| &part.weights[*at]);
    rows.extend(
        weights
            .flat_map(weight_rows)
            .map(|row| (row, TextStyle::Small)),
    );
    rows.extend(result.map(|result| (format!("gives {result}"), TextStyle::Small)));
    let fragment = match op.shape {
        OpShape::Sign(text) => signed(text, note),
        OpShape::RetainedMemory => boxed(rows, "drum"),
        OpShape::Weighted => boxed(rows, "wbox"),
        OpShape::Plain => boxed(rows, "pill"),
    };
    heat(fragment.grouped("op", id), note.class)
}

/// A circle in the middle of its room, with its note on the right.
fn signed(text: &str, note: &BoxNote) -> Fragment {
    let lines = overlay::lines(note);
    let widths = lines.iter().map(|line| 5.0 + width(line, TextStyle::Small));
    let x = (12.0 + widths.fold(0.0, f64::max)).ceil();
    let mut fragment = Fragment::new(2.0 * x, 24.0);
    sign(&mut fragment, (x, 12.0), text);
    let mut y = 16.0 - 6.5 * lines.len().saturating_sub(1) as f64;
    for line in lines {
        fragment.start(x + 17.0, y, TextStyle::Small, line);
        y += 13.0;
    }
    fragment
}

/// A box of lines, with the class of its frame.
fn boxed(mut rows: Vec<(String, TextStyle)>, frame: &'static str) -> Fragment {
    for (text, style) in &mut rows {
        *text = cut(text, *style, MAX_ROW);
    }
    let widths = rows.iter().map(|(text, style)| width(text, *style));
    let w = (widths.fold(0.0, f64::max) + 20.0).ceil();
    let dip = if frame == "drum" { 6.0 } else { 0.0 };
    let texts: f64 = rows.iter().map(|(_, style)| style.leading()).sum();
    let mut fragment = Fragment::new(w, texts + 7.0 + 2.0 * dip);
    match frame {
        "drum" => drum(&mut fragment, dip),
        "wbox" => fragment.frame(6.0, frame),
        _ => fragment.frame(12.0, frame),
    }
    let mut y = 2.0 + 1.5 * dip;
    for (text, style) in rows {
        y += style.leading();
        fragment.middle(w / 2.0, y - 3.0, style, &text);
    }
    fragment
}

/// The operations of a part between its inputs and its result, and a line from the result to the bottom.
fn inside(part: &UnitBox) -> Fragment {
    let (mut fragments, mut arrows) = (Vec::new(), Vec::new());
    let mut inputs: HashMap<&str, usize> = HashMap::new();
    for edge in &part.edges {
        if let EdgeSource::Outside(name) = &edge.from {
            inputs.entry(name).or_insert_with(|| {
                fragments.push(label(&with_dims(name, &edge.shape), "in"));
                fragments.len() - 1
            });
        }
    }
    let mut of_op = Vec::new();
    for (at, op) in part.ops.iter().enumerate() {
        let edges: Vec<&Edge> = part.edges.iter().filter(|edge| edge.to == at).collect();
        let mut into = Vec::new();
        for edge in &edges {
            let mut from = match &edge.from {
                EdgeSource::Op(from) => of_op[*from],
                EdgeSource::Outside(name) => inputs[name.as_str()],
            };
            if edge.is_part {
                arrows.push((from, fragments.len()));
                from = fragments.len();
                fragments.push(label(&with_dims("part", &edge.shape), "cutout"));
            }
            into.push(from);
        }
        into.dedup();
        arrows.extend(into.into_iter().map(|from| (from, fragments.len())));
        of_op.push(fragments.len());
        fragments.push(op_box(part, op, &op.id, result(op, &edges), &op.note));
    }
    let (mut fragment, boxes) = graph(fragments, &arrows);
    let is_end = |at: &usize| {
        let is_read = part
            .edges
            .iter()
            .any(|edge| edge.from == EdgeSource::Op(*at));
        !is_read && part.ops[*at].shape != OpShape::RetainedMemory
    };
    let end = (0..part.ops.len()).rev().find(is_end).map(|at| of_op[at]);
    let middle = |r: &Rect| r.x + r.w / 2.0;
    if let (Some(first), Some(last)) = (boxes.first(), boxes.get(end.unwrap_or(0))) {
        let out = middle(last);
        fragment.ports = Some([middle(first), out]);
        fragment.line(&[(out, last.y + last.h), (out, fragment.h)], "wire");
    }
    fragment
}

/// Dimensions of a result, if they differ from those of the inputs.
fn result(op: &OpBox, into: &[&Edge]) -> Option<String> {
    let is_same = into.iter().any(|edge| edge.shape == op.result);
    let is_shown = match op.shape {
        OpShape::Weighted => true,
        OpShape::Plain => !is_same,
        OpShape::Sign(_) | OpShape::RetainedMemory => false,
    };
    (is_shown && !op.result.is_empty()).then(|| dims(&op.result))
}
