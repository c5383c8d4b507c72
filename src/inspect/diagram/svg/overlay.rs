//! Colours, numbers and marks of a measurement on boxes, and the legend that says what they mean.
//!
//! A colour is never alone: the number stands in the box as text, and the first difference has a sign and
//! a word. Text on a colour has the colour of ink, since the quiet one would be too pale.

use super::scene::{Item, Piece, Point, Rect};
use super::text::{Style, cut, width};
use crate::inspect::diagram::overlay::{COLD, HOT};
use crate::inspect::diagram::{Legend, Note};

/// What a mark says.
const FIRST: &str = "first difference";
/// Room of the sign before its word.
const SIGN: f64 = 17.0;
/// Width of a small box of a colour, with the room behind it.
const SWATCH: f64 = 32.0;

/// Colours the first shape of a piece, which is its frame, and makes its texts readable on that.
pub(super) fn heat(mut piece: Piece, class: &'static str) -> Piece {
    if class.is_empty() {
        return piece;
    }
    let is_shape = |item: &Item| matches!(item, Item::Box(..) | Item::Circle(..) | Item::Path(..));
    if let Some(at) = piece.items.iter().position(is_shape) {
        piece.items.insert(at + 1, Item::Close);
        let open = Item::Open(class, String::new(), String::new());
        piece.items.insert(at, open);
    }
    for item in &mut piece.items {
        if let Item::Text(_, _, _, Style::Small, class, _) = item {
            *class = "on";
        }
    }
    piece
}

/// Pixels that a mark of the first difference takes with its word; none without one.
pub(super) fn mark_width(note: &Note) -> f64 {
    match note.first {
        Some(_) => SIGN + width(FIRST, Style::Name),
        None => 0.0,
    }
}

impl Piece {
    /// Adds the mark of the first difference and the number of a box below all else, if it has them.
    pub(super) fn note(&mut self, x: f64, note: &Note) {
        if note.first.is_some() {
            self.skip(Style::Name.leading());
            self.mark((x, self.h - Style::Name.drop()));
        }
        self.write(x, Style::Name, &note.text);
    }

    /// Adds a mark with its word, whose base line begins at a point.
    pub(super) fn mark(&mut self, (x, y): Point) {
        self.flag((x, y));
        self.start(x + SIGN, y, Style::Name, FIRST);
    }

    /// Adds a triangle with an exclamation mark.
    fn flag(&mut self, (x, y): Point) {
        let middle = x + 6.5;
        let triangle = [(x, y + 1.0), (x + 13.0, y + 1.0), (middle, y - 10.5)];
        self.outline(&triangle, "flag");
        self.line(&[(middle, y - 6.0), (middle, y - 3.0)], "flagtext");
        self.line(&[(middle, y - 1.5), (middle, y - 0.5)], "flagtext");
    }

    /// Adds what is noted of a circle behind it, as far as there is room for it.
    pub(super) fn beside_sign(&mut self, (mut x, y): Point, note: &Note) {
        let marked = mark_width(note);
        if marked > 0.0 && x + marked <= self.w {
            self.mark((x, y));
            x += marked + 10.0;
        }
        if x + width(&note.text, Style::Line) <= self.w {
            self.start(x, y, Style::Line, &note.text);
        }
    }
}

/// The cell of a layer in a strip: its letter and its number.
pub(super) fn cell(w: f64, h: f64, letter: &str, note: &Note) -> Piece {
    let mut piece = Piece::new(w, h);
    piece.frame(3.0, "swatch");
    let (y, mut right) = (h / 2.0 + 4.0, w - 5.0);
    piece.start(5.0, y, Style::Small, letter);
    let mut room = w - 12.0 - width(letter, Style::Small);
    if note.first.is_some() {
        piece.flag((right - 12.0, y));
        (right, room) = (right - SIGN, room - SIGN);
    }
    piece.end(
        right,
        y,
        Style::Small,
        &cut(&note.short, Style::Small, room),
    );
    heat(piece, note.class)
}

/// A small box of a colour with what it stands for.
pub(super) fn swatch(class: &'static str, text: &str) -> Piece {
    let mut piece = Piece::default();
    piece.push(Item::Box(Rect::new(0.0, 0.0, 26.0, 15.0), 3.0, "swatch"));
    let mut piece = heat(piece, class);
    (piece.w, piece.h) = (SWATCH + width(text, Style::Small).ceil(), 15.0);
    piece.start(SWATCH, 11.5, Style::Small, text);
    piece
}

/// What the colours mean, in `room` pixels.
pub(in crate::inspect::diagram) fn legend(legend: &Legend, room: f64) -> Piece {
    const ROW: f64 = 20.0;
    let mut piece = Piece::new(room, 0.0);
    let title = cut(&legend.title, Style::Title, 2.0 * room);
    piece.write(0.0, Style::Title, &title);
    piece.skip(6.0);
    let shades = legend.shades.iter();
    let shades = shades.map(|shade| swatch(HOT[shade.level], &shade.text));
    let entries: Vec<Piece> = shades.chain([swatch(COLD, "no number")]).collect();
    let each = 12.0 + entries.iter().map(|entry| entry.w).fold(0.0, f64::max);
    let columns = ((room + 12.0) / each).floor().clamp(1.0, 10.0) as usize;
    let rows = entries.len().div_ceil(columns);
    for (at, entry) in entries.into_iter().enumerate() {
        let y = piece.h + (at % rows) as f64 * ROW;
        piece.put(entry, (at / rows) as f64 * each, y);
    }
    piece.skip(rows as f64 * ROW + 2.0);
    if let Some(first) = &legend.first {
        piece.flag((0.0, piece.h + Style::Line.leading() - 4.0));
        piece.write(SIGN, Style::Line, first);
    }
    for text in &legend.lines {
        piece.write(0.0, Style::Small, text);
    }
    piece
}
