//! Colours, numbers and marks of a measurement on boxes, and the legend that says what they mean.
//!
//! A colour is never alone: the number stands in the box as text, and the first difference has a sign and
//! a word. Text on a colour has the colour of ink, since the quiet one would be too pale.

use super::scene::{Anchor, Item, Piece, Rect, Seg};
use super::text::{Style, cut, width, wrap};
use crate::inspect::diagram::overlay::LEVELS;
use crate::inspect::diagram::{Legend, Note};

/// Classes of boxes, palest first.
const HOT: [&str; LEVELS] = [
    "hot o0", "hot o1", "hot o2", "hot o3", "hot o4", "hot o5", "hot o6", "hot o7", "hot o8",
];
/// Of a box without a number.
const COLD: &str = "hot none";
/// What a mark says.
const FIRST: &str = "first difference";
/// Room of the sign before its word.
const SIGN: f64 = 17.0;

fn class(note: &Note) -> &'static str {
    match note.class {
        "" => note.level.map_or(COLD, |level| HOT[level.min(LEVELS - 1)]),
        class => class,
    }
}

/// Colours the first shape of a piece, which is its frame, and makes its texts readable on that.
pub(super) fn heat(piece: &mut Piece, note: Option<&Note>) {
    let Some(note) = note else { return };
    let is_shape = |item: &Item| matches!(item, Item::Box(..) | Item::Circle(..) | Item::Path(..));
    if let Some(at) = piece.items.iter().position(is_shape) {
        piece.items.insert(at + 1, Item::Close);
        let open = Item::Open(class(note), String::new(), String::new());
        piece.items.insert(at, open);
    }
    for item in &mut piece.items {
        if let Item::Text(_, _, _, Style::Small, class, _) = item {
            *class = "on";
        }
    }
}

/// The number of a box, as a line of its text.
pub(super) fn number(note: Option<&Note>) -> Option<String> {
    note.map(|note| note.text.clone())
        .filter(|text| !text.is_empty())
}

/// Whether the first difference is in a box.
pub(super) fn is_first(note: Option<&Note>) -> bool {
    note.is_some_and(|note| note.first.is_some())
}

/// Pixels that a mark takes with its word.
pub(super) fn mark_width() -> f64 {
    SIGN + width(FIRST, Style::Name)
}

/// A mark with its word, whose left is at `x` and whose base line is at `y`.
pub(super) fn mark(piece: &mut Piece, x: f64, y: f64) {
    sign(piece, x, y);
    piece.start(x + SIGN, y, Style::Name, FIRST);
}

/// A triangle with an exclamation mark.
fn sign(piece: &mut Piece, x: f64, y: f64) {
    let (left, right, top) = (x, x + 13.0, y - 10.5);
    let triangle = vec![
        Seg::M(left, y + 1.0),
        Seg::L(right, y + 1.0),
        Seg::L(x + 6.5, top),
        Seg::Z,
    ];
    piece.push(Item::Path(triangle, "flag"));
    piece.line(&[(x + 6.5, y - 6.0), (x + 6.5, y - 3.0)], "flagtext");
    piece.line(&[(x + 6.5, y - 1.5), (x + 6.5, y - 0.5)], "flagtext");
}

/// A circle of the wiring, with its number behind it if there is room for `room` pixels of it.
pub(super) fn beside_sign(piece: &mut Piece, at: (f64, f64), note: Option<&Note>, room: f64) {
    let (mut x, y) = at;
    if is_first(note) && mark_width() <= room {
        mark(piece, x, y);
        x += mark_width() + 10.0;
    }
    let left = room - (x - at.0);
    if let Some(text) = number(note).filter(|text| width(text, Style::Line) <= left) {
        piece.start(x, y, Style::Line, &text);
    }
}

/// The cell of a layer in a strip: its letter and its number.
pub(super) fn cell(frame: Rect, letter: &str, note: &Note) -> Piece {
    let mut piece = Piece::new(frame.w, frame.h);
    piece.push(Item::Box(frame, 3.0, "swatch"));
    heat(&mut piece, Some(note));
    let y = frame.y + frame.h / 2.0 + 4.0;
    piece.text_as(frame.x + 5.0, y, Anchor::Start, Style::Small, "on", letter);
    let room = frame.w - 12.0 - width(letter, Style::Small);
    let mut right = frame.x + frame.w - 5.0;
    if note.first.is_some() {
        sign(&mut piece, right - 12.0, y);
        right -= SIGN;
    }
    let room = room - (frame.x + frame.w - 5.0 - right);
    let text = cut(&note.short, Style::Small, room);
    piece.text_as(right, y, Anchor::End, Style::Small, "on", &text);
    piece
}

/// A small box of a colour.
pub(super) fn swatch(class: &'static str) -> Piece {
    let mut piece = Piece::default();
    let (x, y, w, h) = (0.0, 0.0, 26.0, 15.0);
    piece.push(Item::Box(Rect::new(x, y, w, h), 3.0, "swatch"));
    let note = Note {
        class,
        ..Note::default()
    };
    heat(&mut piece, Some(&note));
    piece
}

/// What the colours mean, in `room` pixels.
pub(super) fn legend(legend: &Legend, room: f64) -> Piece {
    const SWATCH: f64 = 26.0;
    const ROW: f64 = 20.0;
    let mut piece = Piece::new(room, 0.0);
    let mut y = 0.0;
    for line in wrap(
        &cut(&legend.title, Style::Title, 2.0 * room),
        Style::Title,
        room,
    ) {
        y += Style::Title.leading();
        let line = cut(&line, Style::Title, room);
        piece.start(0.0, y - 4.0, Style::Title, &line);
    }
    y += 6.0;
    let shades = legend.shades.iter();
    let coloured = shades.map(|shade| (shade.text.as_str(), Some(shade.level)));
    let entries: Vec<(&str, Option<usize>)> = coloured.chain([("no number", None)]).collect();
    let widths = entries.iter().map(|(text, _)| width(text, Style::Small));
    let widest = widths.fold(0.0, f64::max);
    let each = SWATCH + 6.0 + widest.ceil() + 12.0;
    let columns = ((room + 12.0) / each).floor().clamp(1.0, 10.0) as usize;
    let rows = entries.len().div_ceil(columns);
    for (at, (text, level)) in entries.into_iter().enumerate() {
        let (x, y) = ((at / rows) as f64 * each, y + (at % rows) as f64 * ROW);
        let frame = Rect::new(x, y, SWATCH, 15.0);
        let mut swatch = Piece::default();
        swatch.push(Item::Box(frame, 3.0, "swatch"));
        heat(
            &mut swatch,
            Some(&Note {
                level,
                ..Note::default()
            }),
        );
        piece.put(swatch, 0.0, 0.0);
        piece.start(x + SWATCH + 6.0, y + 11.5, Style::Small, text);
    }
    y += rows as f64 * ROW + 2.0;
    if let Some(first) = &legend.first {
        y += Style::Line.leading();
        sign(&mut piece, 0.0, y - 4.0);
        for (at, line) in wrap(first, Style::Line, room - SIGN).iter().enumerate() {
            y += if at > 0 { Style::Line.leading() } else { 0.0 };
            let line = cut(line, Style::Line, room - SIGN);
            piece.start(SIGN, y - 4.0, Style::Line, &line);
        }
    }
    for text in &legend.lines {
        for line in wrap(text, Style::Small, room) {
            y += Style::Small.leading();
            let line = cut(&line, Style::Small, room);
            piece.start(0.0, y - 4.0, Style::Small, &line);
        }
    }
    piece.h = y;
    piece
}
