//! A block with everything in it, a norm as a single box, and either as a card without its inside.

use std::collections::HashMap;

use super::flow::{Flow, Size, flow};
use super::icon;
use super::overlay::{heat, is_first, mark, mark_width, number};
use super::scene::{Anchor, Item, Piece, Rect, Seg};
use super::text::{Style, cut, width, wrap};
use crate::common::wording::{bytes, count, percent};
use crate::inspect::diagram::{Cost, End, Note, Op, OpShape, Part, Weight};

/// Between a border and what is inside.
const PAD: f64 = 12.0;
/// Longest text of an operation's box.
const MAX_ROW: f64 = 430.0;
/// Least width of a block's heading.
const MIN_HEADING: f64 = 330.0;

/// A part with the places at which its input arrives and its result leaves.
pub(super) struct Drawn {
    pub(super) piece: Piece,
    pub(super) in_x: f64,
    pub(super) out_x: f64,
}

/// Dimensions as text, in ggml's order, without those that are 1.
pub(super) fn shape(dims: &[String]) -> String {
    let said: Vec<&str> = dims
        .iter()
        .map(String::as_str)
        .filter(|d| *d != "1")
        .collect();
    match said.is_empty() {
        true => "1".into(),
        false => said.join(" \u{d7} "),
    }
}

/// Elements, bytes and share of the model.
pub(super) fn cost_text(cost: &Cost) -> String {
    format!(
        "{} \u{b7} {} \u{b7} {}",
        count(cost.params),
        bytes(cost.bytes),
        percent(cost.share)
    )
}

/// What is told of a part where the pointer rests.
fn told(part: &Part) -> String {
    let mut lines = vec![part.title.clone(), part.formula.clone()];
    lines.retain(|line| !line.is_empty());
    if let Some(line) = part.source_line {
        lines.push(format!("{}, line {line} of the definition", part.path));
    }
    lines.join("\n")
}

/// A block down to its operations.
pub(super) fn block(part: &Part) -> Drawn {
    let inside = Inside::new(part);
    let room = inside.flow.w.max(MIN_HEADING);
    let heading = heading(part, room, true);
    let w = room + 2.0 * PAD;
    let top = heading.h + PAD;
    let left = PAD + ((room - inside.flow.w) / 2.0).round();
    let h = top + inside.flow.h + 2.0 * PAD;
    let mut piece = Piece::new(w, h);
    piece.push(Item::Open(part.class, part.id.clone(), told(part)));
    let frame = Rect::new(0.0, 0.0, w, h);
    piece.push(Item::Box(frame, 10.0, "frame"));
    piece.put(headed(heading, part, w), 0.0, 0.0);
    let (in_x, out_x) = (left + inside.in_x, left + inside.out_x);
    piece.line(&[(out_x, top + inside.out_y), (out_x, h)], "wire");
    // Around the heading to where the operations begin.
    piece.put(inside.piece(), left, top);
    piece.push(Item::Close);
    Drawn {
        piece,
        in_x: in_x.round(),
        out_x: out_x.round(),
    }
}

/// A heading on a band of the colour of its part, if a measurement is shown.
fn headed(heading: Piece, part: &Part, w: f64) -> Piece {
    let mut piece = Piece::new(w, heading.h + 4.0);
    if part.note.is_some() {
        let band = Rect::new(0.0, 0.0, w, piece.h);
        piece.push(Item::Box(band, 10.0, "frame"));
    }
    piece.put(heading, PAD, 0.0);
    match part.note.is_some() {
        true => heated(piece, part.note.as_ref()),
        false => piece,
    }
}

fn heated(mut piece: Piece, note: Option<&Note>) -> Piece {
    heat(&mut piece, note);
    piece
}

/// A norm, or another part of one operation, as one box.
pub(super) fn single(part: &Part) -> Drawn {
    let Some(op) = part.ops.first() else {
        let piece = Piece::new(10.0, 0.0);
        return Drawn {
            piece,
            in_x: 5.0,
            out_x: 5.0,
        };
    };
    let mut inner = op_box(part, op, None, part.note.as_ref());
    // A part that is a single box has its name there, and not its operation.
    if let Some(Item::Open(_, id, _)) = inner.items.first_mut() {
        id.clone_from(&part.id);
    }
    let mut piece = Piece::new(inner.w, inner.h);
    piece.push(Item::Open(part.class, String::new(), told(part)));
    let middle = (inner.w / 2.0).round();
    piece.put(inner, 0.0, 0.0);
    piece.push(Item::Close);
    Drawn {
        piece,
        in_x: middle,
        out_x: middle,
    }
}

/// A block without its inside: its heading alone.
pub(super) fn card(part: &Part, room: f64) -> Piece {
    let heading = heading(part, room, false);
    let (w, h) = (room + 2.0 * PAD, heading.h + 8.0);
    let mut piece = Piece::new(w, h);
    piece.push(Item::Open(part.class, part.id.clone(), told(part)));
    let frame = Rect::new(0.0, 0.0, w, h);
    piece.push(Item::Box(frame, 10.0, "frame"));
    piece.put(heading, PAD, 0.0);
    piece.push(Item::Close);
    heated(piece, part.note.as_ref())
}

/// Title, words, formula, numbers and small pictures.
fn heading(part: &Part, room: f64, is_full: bool) -> Piece {
    let mut piece = Piece::new(room, 0.0);
    let mut y = 8.0;
    let cost = part.cost.as_ref().map(cost_text);
    let cost = cost.map(|text| text + &in_layers(part.paths.len()));
    let cost = cost.unwrap_or_default();
    let beside = width(&cost, Style::Small);
    let names = wrap(&part.title, Style::Title, room);
    let last = names.last().map_or(0.0, |name| width(name, Style::Title));
    let fits = cost.is_empty() || last + beside + 12.0 <= room;
    for name in &names {
        y += Style::Title.leading();
        let name = cut(name, Style::Title, room);
        piece.start(0.0, y - 5.0, Style::Title, &name);
    }
    if !fits {
        y += Style::Small.leading();
    }
    piece.text(
        if fits { room } else { 0.0 },
        y - 5.0,
        if fits { Anchor::End } else { Anchor::Start },
        Style::Small,
        &cost,
    );
    if let Some(cost) = &part.cost {
        let bar = |w: f64| Rect::new(0.0, y, w, 4.0);
        piece.push(Item::Box(bar(room), 2.0, "bar0"));
        piece.push(Item::Box(bar((room * cost.share).max(1.0)), 2.0, "bar1"));
        y += 8.0;
    }
    if is_first(part.note.as_ref()) {
        y += Style::Name.leading();
        mark(&mut piece, 0.0, y - 4.0);
    }
    let mut rows = |text: &str, style: Style| {
        y = piece.rows((0.0, y), text, style, room);
    };
    rows(&number(part.note.as_ref()).unwrap_or_default(), Style::Name);
    rows(&part.line, Style::Line);
    rows(&part.formula, Style::Small);
    if is_full {
        rows(&part.facts.join(" \u{b7} "), Style::Small);
    }
    for text in part.kept.text.iter().chain(&part.kept.amounts()) {
        rows(text, Style::Small);
    }
    if !part.icons.is_empty() {
        let icons = icon::row(&part.icons, room);
        y += 6.0;
        let h = icons.h;
        piece.put(icons, 0.0, y);
        y += h;
    }
    piece.h = y + 2.0;
    piece
}

/// Of how many layers numbers are the sum.
fn in_layers(n: usize) -> String {
    match n {
        0 | 1 => String::new(),
        n => format!(" in {n} layers"),
    }
}

/// One row of text for each thing that a weight is.
fn weight_rows(weight: &Weight) -> [String; 2] {
    let mut what = vec![shape(&weight.shape)];
    what.extend((!weight.types.is_empty()).then(|| weight.types.join("/")));
    if let Some(cost) = &weight.cost {
        what.push(format!(
            "{}{}",
            bytes(cost.bytes),
            in_layers(weight.tensors.len())
        ));
    }
    if weight.is_shared {
        what.push("shared".into());
    }
    [weight.name.clone(), what.join(" \u{b7} ")]
}

/// The box of an operation; `result` is written under its name if it says something.
fn op_box(part: &Part, op: &Op, result: Option<&str>, note: Option<&Note>) -> Piece {
    let rows = rows(part, op, result, note);
    let piece = match op.shape {
        OpShape::Sign(sign) => signed(op, sign, note),
        OpShape::Weighted => boxed(part, op, rows, 6.0, "wbox"),
        OpShape::Plain => boxed(part, op, rows, 12.0, "pill"),
        OpShape::Kept => boxed(part, op, rows, 0.0, "drum"),
    };
    heated(piece, note)
}

/// A circle in the middle of its room, with its number on the right.
fn signed(op: &Op, sign: &str, note: Option<&Note>) -> Piece {
    let text = number(note).unwrap_or_default();
    let beside = match text.is_empty() {
        true => 0.0,
        false => {
            width(&text, Style::Small).max(if is_first(note) { mark_width() } else { 0.0 }) + 5.0
        }
    };
    let x = (12.0 + beside).ceil();
    let mut piece = Piece::new(2.0 * x, 24.0);
    piece.push(Item::Open("op", op.id.clone(), op.title.clone()));
    piece.push(Item::Circle(x, 12.0, 11.0, "sign"));
    piece.middle(x, 16.5, Style::Title, sign);
    if is_first(note) {
        mark(&mut piece, x + 17.0, 9.0);
    }
    let y = if is_first(note) { 22.0 } else { 16.0 };
    piece.start(x + 17.0, y, Style::Small, &text);
    piece.push(Item::Close);
    piece
}

/// The lines of an operation's box.
fn rows(part: &Part, op: &Op, result: Option<&str>, note: Option<&Note>) -> Vec<(String, Style)> {
    let weights = op.weights.iter().map(|at| &part.weights[*at]);
    let mut rows = vec![(op.title.clone(), Style::Name)];
    rows.extend(number(note).map(|text| (text, Style::Line)));
    rows.extend(is_first(note).then(|| (String::new(), Style::Name)));
    for weight in weights {
        rows.extend(weight_rows(weight).map(|row| (row, Style::Small)));
    }
    rows.extend(result.map(|result| (format!("gives {result}"), Style::Small)));
    for (text, style) in &mut rows {
        *text = cut(text, *style, MAX_ROW);
    }
    rows
}

/// A box of lines; one without text is the mark of the first difference.
fn boxed(part: &Part, op: &Op, rows: Vec<(String, Style)>, rx: f64, class: &'static str) -> Piece {
    let weights: Vec<&Weight> = op.weights.iter().map(|at| &part.weights[*at]).collect();
    let widest = rows.iter().map(|(text, style)| match text.is_empty() {
        true => mark_width(),
        false => width(text, *style),
    });
    let w = (widest.fold(0.0, f64::max) + 20.0).ceil();
    let dip = if class == "drum" { 6.0 } else { 0.0 };
    let texts: f64 = rows.iter().map(|(_, style)| style.leading()).sum();
    let h = texts + 7.0 + 2.0 * dip;
    let mut piece = Piece::new(w, h);
    let docs = weights.iter().map(|w| format!("{}: {}", w.name, w.doc));
    let told: Vec<String> = op.ops.iter().cloned().chain(docs).collect();
    piece.push(Item::Open("op", op.id.clone(), told.join("\n")));
    if class == "drum" {
        drum(&mut piece, w, h, dip);
    } else {
        let frame = Rect::new(0.0, 0.0, w, h);
        piece.push(Item::Box(frame, rx, class));
    }
    let mut y = 2.0 + 1.5 * dip;
    for (text, style) in rows {
        y += style.leading();
        match text.is_empty() {
            true => mark(&mut piece, ((w - mark_width()) / 2.0).round(), y - 3.0),
            false => piece.middle(w / 2.0, y - 3.0, style, &text),
        }
    }
    piece.push(Item::Close);
    piece
}

/// The outline of something that is kept.
pub(super) fn drum(piece: &mut Piece, w: f64, h: f64, dip: f64) {
    let lid = |y: f64, down: f64| Seg::C([w * 0.1, y + down, w * 0.9, y + down, w, y]);
    let mut body = vec![Seg::M(0.0, dip), lid(dip, -1.2 * dip), Seg::L(w, h - dip)];
    body.push(Seg::C([
        w * 0.9,
        h + 0.2 * dip,
        w * 0.1,
        h + 0.2 * dip,
        0.0,
        h - dip,
    ]));
    body.push(Seg::Z);
    piece.push(Item::Path(body, "drum"));
    let front = vec![Seg::M(0.0, dip), lid(dip, 1.2 * dip)];
    piece.push(Item::Path(front, "rim"));
}

/// What is drawn inside a block, before it has its places.
enum Node<'p> {
    /// A value from outside.
    Input(String),
    /// That only a part of a value is read.
    PartOf(String),
    Op(&'p Op),
}

struct Inside {
    pieces: Vec<Piece>,
    flow: Flow,
    in_x: f64,
    out_x: f64,
    out_y: f64,
}

impl Inside {
    fn new(part: &Part) -> Self {
        let mut nodes: Vec<Node<'_>> = Vec::new();
        let mut arrows = Vec::new();
        let mut inputs: HashMap<&str, usize> = HashMap::new();
        for edge in &part.edges {
            if let End::Outside(name) = &edge.from {
                inputs.entry(name).or_insert_with(|| {
                    let text = match edge.shape.is_empty() {
                        true => name.clone(),
                        false => format!("{name}: {}", shape(&edge.shape)),
                    };
                    nodes.push(Node::Input(text));
                    nodes.len() - 1
                });
            }
        }
        let mut of_op = Vec::new();
        for (at, op) in part.ops.iter().enumerate() {
            let mut into = Vec::new();
            for edge in part.edges.iter().filter(|edge| edge.to == at) {
                let from = match &edge.from {
                    End::Op(from) => of_op[*from],
                    End::Outside(name) => inputs[name.as_str()],
                };
                if !edge.is_part {
                    into.push(from);
                    continue;
                }
                nodes.push(Node::PartOf(match edge.shape.is_empty() {
                    true => "part".to_owned(),
                    false => format!("part: {}", shape(&edge.shape)),
                }));
                arrows.push((from, nodes.len() - 1));
                into.push(nodes.len() - 1);
            }
            into.dedup();
            nodes.push(Node::Op(op));
            of_op.push(nodes.len() - 1);
            arrows.extend(into.into_iter().map(|from| (from, nodes.len() - 1)));
        }
        let pieces: Vec<Piece> = nodes.iter().map(|node| node.piece(part)).collect();
        let sizes = pieces.iter().map(|p| Size { w: p.w, h: p.h });
        let flow = flow(&sizes.collect::<Vec<_>>(), &arrows);
        let middle = |at: usize| flow.boxes.get(at).map_or(0.0, |b| b.x + b.w / 2.0);
        let is_end = |at: &usize| {
            let read = part.edges.iter().any(|edge| edge.from == End::Op(*at));
            !read && part.ops[*at].shape != OpShape::Kept
        };
        let end = (0..part.ops.len()).rev().find(is_end).map(|at| of_op[at]);
        let out = end.unwrap_or(0);
        Self {
            in_x: middle(0),
            out_x: middle(out),
            out_y: flow.boxes.get(out).map_or(0.0, |b| b.y + b.h),
            pieces,
            flow,
        }
    }

    fn piece(self) -> Piece {
        let mut piece = Piece::new(self.flow.w, self.flow.h);
        for route in &self.flow.routes {
            arrow(&mut piece, route);
        }
        for (inner, place) in self.pieces.into_iter().zip(&self.flow.boxes) {
            piece.put(inner, place.x, place.y);
        }
        piece
    }
}

impl Node<'_> {
    fn piece(&self, part: &Part) -> Piece {
        match self {
            Self::Input(name) => label(name, "in"),
            Self::PartOf(text) => label(text, "cutout"),
            Self::Op(op) => op_box(part, op, result(part, op).as_deref(), op.note.as_ref()),
        }
    }
}

/// Dimensions of a result, where they are not those of what goes in.
fn result(part: &Part, op: &Op) -> Option<String> {
    let at = part.ops.iter().position(|other| std::ptr::eq(other, op))?;
    let mut into = part.edges.iter().filter(|edge| edge.to == at);
    let same = into.any(|edge| edge.shape == op.result);
    let is_sign = matches!(op.shape, OpShape::Sign(_));
    (!is_sign
        && !op.result.is_empty()
        && (!same || op.shape == OpShape::Weighted)
        && op.shape != OpShape::Kept)
        .then(|| shape(&op.result))
}

/// A text on an arrow.
pub(super) fn label(text: &str, class: &'static str) -> Piece {
    let text = cut(text, Style::Small, MAX_ROW);
    let w = (width(&text, Style::Small) + 12.0).ceil();
    let mut piece = Piece::new(w, 18.0);
    let frame = Rect::new(0.0, 0.0, w, 18.0);
    piece.push(Item::Box(frame, 4.0, class));
    piece.middle(w / 2.0, 13.0, Style::Small, &text);
    piece
}

/// An arrow along a route.
pub(super) fn arrow(piece: &mut Piece, route: &[(f64, f64)]) {
    let mut segs = Vec::new();
    for (i, (x, y)) in route.iter().enumerate() {
        let before = i.checked_sub(1).map(|before| route[before]);
        segs.push(match before {
            None => Seg::M(*x, *y),
            Some((from, _)) if (from - x).abs() < 0.5 => Seg::L(*x, *y),
            Some((from, top)) => {
                let middle = f64::midpoint(top, *y);
                Seg::C([from, middle, *x, middle, *x, *y])
            }
        });
    }
    piece.push(Item::Path(segs, "wire"));
    if let Some((x, y)) = route.last() {
        head(piece, *x, *y);
    }
}

/// The end of the stream at a point.
pub(super) fn spine_head(piece: &mut Piece, x: f64, y: f64) {
    let segs = vec![
        Seg::M(x - 8.0, y - 9.0),
        Seg::L(x + 8.0, y - 9.0),
        Seg::L(x, y),
        Seg::Z,
    ];
    piece.push(Item::Path(segs, "spinetip"));
}

/// The head of an arrow that goes down to a point.
pub(super) fn head(piece: &mut Piece, x: f64, y: f64) {
    let segs = vec![
        Seg::M(x - 3.5, y - 6.0),
        Seg::L(x + 3.5, y - 6.0),
        Seg::L(x, y),
        Seg::Z,
    ];
    piece.push(Item::Path(segs, "tip"));
}
