//! Draws a block with all its contents, a norm as a single box, and either as a card without contents.

use std::collections::HashMap;

use super::overlay::{self, heat};
use super::scene::{Piece, Rect};
use super::shape::{MAX_ROW, drum, graph, label, sign};
use super::text::{Style, cut, width, wrap};
use crate::diagram::boxes::dims;
use crate::diagram::{Cost, Edge, End, Note, Op, OpShape, Part, Weight};
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
pub(in crate::diagram) fn cost_text(cost: &Cost) -> String {
    let (n, size) = (count(cost.params), bytes(cost.bytes));
    format!("{n} \u{b7} {size} \u{b7} {}", percent(cost.share))
}

/// A part with its operations: a block with contents, or a norm as one box.
pub(in crate::diagram) fn opened(part: &Part) -> Piece {
    match part.kind {
        "norm" => single(part),
        _ => block(part),
    }
}

/// A block with its operations.
fn block(part: &Part) -> Piece {
    let inside = inside(part);
    let room = inside.w.max(MIN_HEADING);
    let heading = heading(part, room, true);
    let (w, top) = (room + 2.0 * PAD, heading.h + PAD);
    let left = PAD + ((room - inside.w) / 2.0).round();
    let mut piece = Piece::new(w, top + inside.h + 2.0 * PAD);
    piece.frame(10.0, "frame");
    // If a measurement is shown, the heading has a band in the colour of its part.
    let mut band = Piece::new(w, heading.h + 4.0);
    if !part.note.class.is_empty() {
        band.frame(10.0, "frame");
    }
    band.put(heading, PAD, 0.0);
    piece.put(heat(band, part.note.class), 0.0, 0.0);
    let [into, out] = inside.ports().map(|port| (left + port).round());
    piece.ports = Some([into, out]);
    piece.line(&[(out, top + inside.h), (out, piece.h)], "wire");
    piece.put(inside, left, top);
    piece.grouped(part.class, &part.id)
}

/// A norm, or another part with one operation, as one box with the name of the part.
pub(super) fn single(part: &Part) -> Piece {
    let Some(op) = part.ops.first() else {
        return Piece::new(10.0, 0.0);
    };
    let inner = op_box(part, op, &part.id, None, &part.note);
    inner.grouped(part.class, "")
}

/// A block without its contents: only its heading.
pub(super) fn card(part: &Part, room: f64) -> Piece {
    let heading = heading(part, room, false);
    let mut piece = Piece::new(room + 2.0 * PAD, heading.h + 8.0);
    piece.frame(10.0, "frame");
    piece.put(heading, PAD, 0.0);
    heat(piece.grouped(part.class, &part.id), part.note.class)
}

/// A norm as a card: its name and its note.
pub(super) fn small(part: &Part) -> Piece {
    let mut rows = vec![(part.title.clone(), Style::Line)];
    rows.extend(noted(&part.note));
    let piece = boxed(rows, "frame");
    heat(piece.grouped(part.class, &part.id), part.note.class)
}

/// The note of a box, as lines.
fn noted(note: &Note) -> impl Iterator<Item = (String, Style)> {
    let lines = overlay::lines(note).into_iter();
    lines.map(|line| (line.to_owned(), Style::Line))
}

/// The heading of a part: title, words, formula and numbers.
fn heading(part: &Part, room: f64, is_full: bool) -> Piece {
    let mut piece = Piece::new(room, 8.0);
    let cost = part.cost.as_ref().map(cost_text);
    let cost = cost.map(|text| text + &in_layers(part.paths.len()));
    let cost = cost.unwrap_or_default();
    piece.write(0.0, Style::Title, &part.title);
    let last = wrap(&part.title, Style::Title, room).pop();
    let last = last.map_or(0.0, |name| width(&name, Style::Title));
    match last + width(&cost, Style::Small) + 12.0 <= room {
        true => piece.end(room, piece.h - 5.0, Style::Small, &cost),
        false => piece.write(0.0, Style::Small, &cost),
    }
    for line in overlay::lines(&part.note) {
        piece.write(0.0, Style::Name, line);
    }
    piece.write(0.0, Style::Line, &part.line);
    piece.write(0.0, Style::Small, &part.formula);
    if is_full {
        piece.write(0.0, Style::Small, &part.facts.join(" \u{b7} "));
    }
    for text in part.kept.text.iter().chain(&part.kept.amounts()) {
        piece.write(0.0, Style::Small, text);
    }
    piece.skip(2.0);
    piece
}

/// The number of layers that a number is the sum of, in words.
fn in_layers(n: usize) -> String {
    match n {
        0 | 1 => String::new(),
        n => format!(" in {n} layers"),
    }
}

/// Two rows about a weight: its name; its dimensions, types and bytes.
fn weight_rows(weight: &Weight) -> [String; 2] {
    let mut what = vec![dims(&weight.shape), weight.types.join("/")];
    let cost = weight.cost.as_ref().map(|cost| bytes(cost.bytes));
    what.extend(cost.map(|size| size + &in_layers(weight.tensors.len())));
    what.extend(weight.is_shared.then(|| "shared".into()));
    what.retain(|text| !text.is_empty());
    [weight.name.clone(), what.join(" \u{b7} ")]
}

/// The box of an operation. `result` is written below its name, if there is one.
fn op_box(part: &Part, op: &Op, id: &str, result: Option<String>, note: &Note) -> Piece {
    let mut rows = vec![(op.title.clone(), Style::Name)];
    rows.extend(noted(note));
    let weights = op.weights.iter().map(|at| &part.weights[*at]);
    rows.extend(weights.flat_map(weight_rows).map(|row| (row, Style::Small)));
    rows.extend(result.map(|result| (format!("gives {result}"), Style::Small)));
    let piece = match op.shape {
        OpShape::Sign(text) => signed(text, note),
        OpShape::Kept => boxed(rows, "drum"),
        OpShape::Weighted => boxed(rows, "wbox"),
        OpShape::Plain => boxed(rows, "pill"),
    };
    heat(piece.grouped("op", id), note.class)
}

/// A circle in the middle of its room, with its note on the right.
fn signed(text: &str, note: &Note) -> Piece {
    let lines = overlay::lines(note);
    let widths = lines.iter().map(|line| 5.0 + width(line, Style::Small));
    let x = (12.0 + widths.fold(0.0, f64::max)).ceil();
    let mut piece = Piece::new(2.0 * x, 24.0);
    sign(&mut piece, (x, 12.0), text);
    let mut y = 16.0 - 6.5 * lines.len().saturating_sub(1) as f64;
    for line in lines {
        piece.start(x + 17.0, y, Style::Small, line);
        y += 13.0;
    }
    piece
}

/// A box of lines, with the class of its frame.
fn boxed(mut rows: Vec<(String, Style)>, frame: &'static str) -> Piece {
    for (text, style) in &mut rows {
        *text = cut(text, *style, MAX_ROW);
    }
    let widths = rows.iter().map(|(text, style)| width(text, *style));
    let w = (widths.fold(0.0, f64::max) + 20.0).ceil();
    let dip = if frame == "drum" { 6.0 } else { 0.0 };
    let texts: f64 = rows.iter().map(|(_, style)| style.leading()).sum();
    let mut piece = Piece::new(w, texts + 7.0 + 2.0 * dip);
    match frame {
        "drum" => drum(&mut piece, dip),
        "wbox" => piece.frame(6.0, frame),
        _ => piece.frame(12.0, frame),
    }
    let mut y = 2.0 + 1.5 * dip;
    for (text, style) in rows {
        y += style.leading();
        piece.middle(w / 2.0, y - 3.0, style, &text);
    }
    piece
}

/// The operations of a part between its inputs and its result, and a line from the result to the bottom.
fn inside(part: &Part) -> Piece {
    let (mut pieces, mut arrows) = (Vec::new(), Vec::new());
    let mut inputs: HashMap<&str, usize> = HashMap::new();
    for edge in &part.edges {
        if let End::Outside(name) = &edge.from {
            inputs.entry(name).or_insert_with(|| {
                pieces.push(label(&with_dims(name, &edge.shape), "in"));
                pieces.len() - 1
            });
        }
    }
    let mut of_op = Vec::new();
    for (at, op) in part.ops.iter().enumerate() {
        let edges: Vec<&Edge> = part.edges.iter().filter(|edge| edge.to == at).collect();
        let mut into = Vec::new();
        for edge in &edges {
            let mut from = match &edge.from {
                End::Op(from) => of_op[*from],
                End::Outside(name) => inputs[name.as_str()],
            };
            if edge.is_part {
                arrows.push((from, pieces.len()));
                from = pieces.len();
                pieces.push(label(&with_dims("part", &edge.shape), "cutout"));
            }
            into.push(from);
        }
        into.dedup();
        arrows.extend(into.into_iter().map(|from| (from, pieces.len())));
        of_op.push(pieces.len());
        pieces.push(op_box(part, op, &op.id, result(op, &edges), &op.note));
    }
    let (mut piece, boxes) = graph(pieces, &arrows);
    let is_end = |at: &usize| {
        let is_read = part.edges.iter().any(|edge| edge.from == End::Op(*at));
        !is_read && part.ops[*at].shape != OpShape::Kept
    };
    let end = (0..part.ops.len()).rev().find(is_end).map(|at| of_op[at]);
    let middle = |r: &Rect| r.x + r.w / 2.0;
    if let (Some(first), Some(last)) = (boxes.first(), boxes.get(end.unwrap_or(0))) {
        let out = middle(last);
        piece.ports = Some([middle(first), out]);
        piece.line(&[(out, last.y + last.h), (out, piece.h)], "wire");
    }
    piece
}

/// Dimensions of a result, if they differ from those of the inputs.
fn result(op: &Op, into: &[&Edge]) -> Option<String> {
    let is_same = into.iter().any(|edge| edge.shape == op.result);
    let is_shown = match op.shape {
        OpShape::Weighted => true,
        OpShape::Plain => !is_same,
        OpShape::Sign(_) | OpShape::Kept => false,
    };
    (is_shown && !op.result.is_empty()).then(|| dims(&op.result))
}
