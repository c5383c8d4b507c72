//! The whole model: what comes in, the stack with its pattern, what comes out.

use super::layer::{self, Detail};
use super::notes::{NOTES, notes};
use super::overlay::{heat, is_first, mark, mark_width, number};
use super::part::{card, cost_text, label, shape, single, spine_head};
use super::scene::{Item, Piece, Rect};
use super::text::{Style, width, wrap};
use crate::arch::Mode;
use crate::inspect::diagram::kinds::Times;
use crate::inspect::diagram::{Drawing, Kind, Part, Run, Slot};

/// Width of a card, and of one of several side by side.
const ROOM: f64 = 440.0;
const BRANCH: f64 = 280.0;
const GAP: f64 = 26.0;
/// Room beside a repeated piece for how often it repeats.
const SIDE: f64 = 74.0;
const SPINE: f64 = 24.0;

/// Width of a kind of layer.
pub(super) fn room(drawing: &Drawing) -> f64 {
    let slots = drawing.kinds.iter().flat_map(|kind| &kind.slots);
    let most = slots.map(|slot| slot.branches.len()).max().unwrap_or(1);
    ROOM.max(SPINE + layer::OUT + most as f64 * BRANCH)
}

/// The picture of the whole.
pub(super) fn stack(drawing: &Drawing) -> Piece {
    let column = column(drawing);
    let w = column.w + 40.0 + NOTES;
    let title = heading(drawing, w);
    let top = title.h + 10.0;
    let notes = notes(drawing);
    let scenes = super::execution(drawing, w);
    let below = top + column.h.max(notes.h) + 30.0 + Style::Heading.leading();
    let mut page = Piece::new(w.max(title.w), below + 14.0 + scenes.h);
    let how = "How it is executed";
    page.start(0.0, below - 7.0, Style::Heading, how);
    page.put(scenes, 0.0, below + 14.0);
    let x = column.w + 40.0;
    page.put(title, 0.0, 0.0);
    page.put(column, 0.0, top);
    page.put(notes, x, top);
    framed(page)
}

/// What comes in, the layers, what comes out, one below the other along the stream.
pub(super) fn column(drawing: &Drawing) -> Piece {
    let rows = rows(drawing);
    let w = rows.iter().map(|row| row.w).fold(0.0, f64::max);
    let mut piece = Piece::new(w, 0.0);
    let mut y = 0.0;
    let mut last: Option<f64> = None;
    let middle = (w / 2.0).round();
    for row in rows {
        let x = ((w - row.w) / 2.0).round();
        if let Some(from) = last {
            piece.line(&[(middle, from), (middle, y - 8.0)], "spine");
            spine_head(&mut piece, middle, y);
        }
        let h = row.h;
        piece.put(row, x, y);
        last = Some(y + h);
        y += h + GAP;
    }
    piece.h = y - GAP;
    piece
}

/// The rows of the column.
fn rows(drawing: &Drawing) -> Vec<Piece> {
    let mut rows: Vec<Piece> = Vec::new();
    let tokens = format!("{}: T token ids", input_words(drawing.mode));
    rows.push(label(&tokens, "in"));
    let (aside, begin): (Vec<&Part>, Vec<&Part>) = drawing
        .begin
        .iter()
        .partition(|part| part.kind == "per_layer_input");
    rows.extend(begin.into_iter().map(|part| card(part, ROOM)));
    let before_layers = rows.len();
    let mut shown = vec![false; drawing.kinds.len()];
    let mut times = Times::new(drawing.is_symbolic);
    rows.push(runs(
        drawing,
        &drawing.pattern,
        &mut shown,
        &mut times,
        false,
    ));
    for part in &drawing.end {
        rows.push(match part.kind {
            "norm" => single(part).piece,
            _ => card(part, ROOM),
        });
    }
    rows.push(label(&output_words(drawing), "in"));
    let w = rows.iter().map(|row| row.w).fold(0.0, f64::max);
    for part in aside {
        rows.insert(before_layers, self::aside(part, w));
    }
    rows
}

/// A part beside the stream, which it reads and does not change.
fn aside(part: &Part, w: f64) -> Piece {
    let middle = (w / 2.0).round();
    let left = middle + 30.0;
    let card = card(part, w - left - 24.0);
    let mut piece = Piece::new(w, card.h);
    piece.line(&[(middle, 0.0), (middle, card.h)], "spine");
    let y = (card.h / 2.0).round();
    piece.line(&[(middle, y), (left, y)], "wire");
    piece.put(card, left, 0.0);
    piece
}

/// A margin around a picture.
pub(super) fn framed(inner: Piece) -> Piece {
    const MARGIN: f64 = 24.0;
    let mut page = Piece::new(inner.w + 2.0 * MARGIN, inner.h + 2.0 * MARGIN);
    page.put(inner, MARGIN, MARGIN);
    page
}

fn input_words(mode: Mode) -> &'static str {
    match mode {
        Mode::Causal => "tokens so far",
        Mode::Diffusion => "tokens, some masked",
        Mode::Encoder => "tokens",
    }
}

fn output_words(drawing: &Drawing) -> String {
    let last = drawing
        .parts()
        .flat_map(|part| &part.ops)
        .filter(|op| !op.result.is_empty())
        .last();
    let dims = last.map(|op| shape(&op.result)).unwrap_or_default();
    match drawing.mode {
        Mode::Encoder => format!("a vector for each token: {dims}"),
        Mode::Causal => format!("logits of each next token: {dims}"),
        Mode::Diffusion => format!("logits of each masked token: {dims}"),
    }
}

/// Lines that a name may take.
const NAMES: usize = 3;

/// Name and what holds for the whole model.
pub(super) fn heading(drawing: &Drawing, room: f64) -> Piece {
    let mut piece = Piece::new(room, 0.0);
    let mut y = 0.0;
    for line in wrap(&drawing.name, Style::Heading, room).iter().take(NAMES) {
        y += Style::Heading.leading();
        piece.start(0.0, y - 7.0, Style::Heading, line);
    }
    let facts = drawing
        .facts
        .iter()
        .map(|(name, value)| format!("{name} {value}"));
    let mut facts: Vec<String> = facts.collect();
    if drawing.name != drawing.arch {
        facts.insert(0, format!("architecture {}", drawing.arch));
    }
    if drawing.is_symbolic {
        facts.push(
            "no model file: sizes are the definition's parameters, T is the number of tokens"
                .into(),
        );
    }
    y = piece.rows((0.0, y), &facts.join(" \u{b7} "), Style::Line, room);
    piece.h = y + 8.0;
    piece
}

/// Pieces of the pattern, one below the other.
fn runs(
    drawing: &Drawing,
    all: &[Run],
    shown: &mut [bool],
    times: &mut Times,
    is_inner: bool,
) -> Piece {
    let pieces: Vec<Piece> = all
        .iter()
        .map(|run| self::run(drawing, run, shown, times, is_inner))
        .collect();
    let w = pieces.iter().map(|p| p.w).fold(0.0, f64::max);
    let mut piece = Piece::new(w, 0.0);
    let mut y = 0.0;
    for (i, inner) in pieces.into_iter().enumerate() {
        if i > 0 {
            piece.line(&[(w / 2.0, y - GAP), (w / 2.0, y - 8.0)], "spine");
            spine_head(&mut piece, w / 2.0, y);
        }
        let h = inner.h;
        piece.put(inner, 0.0, y);
        y += h + GAP;
    }
    piece.h = (y - GAP).max(0.0);
    piece
}

fn run(
    drawing: &Drawing,
    run: &Run,
    shown: &mut [bool],
    times: &mut Times,
    is_inner: bool,
) -> Piece {
    match run {
        Run::Layers { kind, count } => {
            let is_known = std::mem::replace(&mut shown[*kind], true);
            let kind = &drawing.kinds[*kind];
            let often = times.next(*count, is_inner);
            let room = room(drawing);
            let inner = match is_known {
                true => again(kind, room),
                false => layer(kind, room),
            };
            beside(inner, &often, "run")
        }
        Run::Repeat { count, of } => {
            let often = times.next(*count, is_inner);
            let inner = runs(drawing, of, shown, times, true);
            beside(inner, &often, "repeat")
        }
    }
}

/// A frame around a piece, with how often it repeats.
fn beside(inner: Piece, times: &str, class: &'static str) -> Piece {
    let pad = 12.0;
    let (w, h) = (inner.w + SIDE + 2.0 * pad, inner.h + 2.0 * pad);
    let mut piece = Piece::new(w, h);
    let frame = Rect::new(0.0, 0.0, w, h);
    piece.push(Item::Box(frame, 12.0, class));
    piece.middle(
        pad + (SIDE - 10.0) / 2.0,
        h / 2.0 + 7.0,
        Style::Heading,
        times,
    );
    piece.put(inner, SIDE + pad, pad);
    piece
}

/// A kind of layer that was drawn above.
fn again(kind: &Kind, room: f64) -> Piece {
    let mut piece = Piece::new(room, 40.0);
    piece.push(Item::Open("kind", kind.id.clone(), String::new()));
    badge(&mut piece, kind, 4.0);
    let text = format!("{}, as above", kind.label);
    piece.start(
        46.0,
        25.0,
        Style::Line,
        &super::text::cut(&text, Style::Line, room - 50.0),
    );
    piece.push(Item::Close);
    piece
}

fn badge(piece: &mut Piece, kind: &Kind, y: f64) {
    let frame = Rect::new(0.0, y, 32.0, 32.0);
    piece.push(Item::Box(frame, 6.0, "badge"));
    piece.middle(16.0, y + 23.0, Style::Heading, &kind.letter);
    heat(piece, kind.note.as_ref());
}

/// A kind of layer: the stream and what leaves and rejoins it.
fn layer(kind: &Kind, room: f64) -> Piece {
    let mut piece = Piece::new(room, 0.0);
    piece.push(Item::Open("kind", kind.id.clone(), String::new()));
    badge(&mut piece, kind, 0.0);
    let mut y: f64 = 0.0;
    if is_first(kind.note.as_ref()) {
        y += Style::Name.leading();
        mark(&mut piece, 46.0, y - 4.0);
    }
    y = piece.rows((46.0, y), &kind.label, Style::Title, room - 46.0);
    if let Some(text) = number(kind.note.as_ref()) {
        y += Style::Name.leading();
        piece.start(46.0, y - 4.0, Style::Name, &text);
    }
    if let Some(cost) = &kind.cost {
        y += Style::Small.leading();
        piece.start(46.0, y - 3.0, Style::Small, &cost_text(cost));
    }
    y = y.max(32.0) + 8.0;
    let top = y;
    let mut inner = Piece::new(room, 0.0);
    for slot in &kind.slots {
        let drawn = small_slot(slot, room);
        let h = drawn.h;
        // Names of taps may be wider than the cards.
        piece.w = piece.w.max(drawn.w);
        inner.put(drawn, 0.0, y);
        y += h;
    }
    y += 10.0;
    piece.line(&[(SPINE, top), (SPINE, y)], "spine");
    spine_head(&mut inner, SPINE, y + 8.0);
    piece.put(inner, 0.0, 0.0);
    piece.push(Item::Close);
    piece.h = y + 8.0;
    piece
}

/// The tap that a slot reads instead of the stream.
pub(super) fn tapped(slot: &Slot) -> Option<&String> {
    slot.from.as_ref().filter(|name| *name != "x")
}

/// A slot as one row of cards.
pub(super) fn small_slot(slot: &Slot, all: f64) -> Piece {
    layer::slot(slot, Detail::Cards(all - SPINE - layer::OUT))
}

/// A norm: its name, and its number behind that.
pub(super) fn small(part: &Part) -> Piece {
    let note = part.note.as_ref();
    let number = number(note).map(|text| format!(": {text}"));
    let title = format!("{}{}", part.title, number.unwrap_or_default());
    let marked = if is_first(note) {
        mark_width() + 12.0
    } else {
        0.0
    };
    let mut piece = Piece::new(0.0, 22.0);
    piece.w = (width(&title, Style::Line) + marked + 20.0).ceil();
    piece.push(Item::Open(part.class, part.id.clone(), String::new()));
    let frame = Rect::new(0.0, 0.0, piece.w, 22.0);
    piece.push(Item::Box(frame, 11.0, "frame"));
    let middle = (piece.w - marked) / 2.0;
    piece.middle(middle, 15.0, Style::Line, &title);
    if is_first(note) {
        let x = piece.w - marked;
        mark(&mut piece, x, 15.0);
    }
    piece.push(Item::Close);
    heat(&mut piece, note);
    piece
}
