//! Colours, numbers and marks of a measurement on boxes, and the legend that explains them.
//!
//! A colour never stands alone: the number and the mark of the first difference are text in the box. Text on a colour
//! is drawn in the text colour, because the muted one would be too pale.

use super::scene::{Item, Piece, Rect};
use super::text::{Style, cut, width};
use crate::diagram::legend::{COLD, HOT};
use crate::diagram::{Legend, Note};

/// The mark of the first difference.
const FIRST: &str = "\u{25b2} first difference";
/// The mark without text, where there is little room.
const MARK: &str = "\u{25b2} ";
/// Width of a colour swatch, including the gap after it.
const SWATCH: f64 = 32.0;

/// Colours the first shape of a piece, which is its frame, and makes the texts on it readable.
pub(super) fn heat(mut piece: Piece, class: &'static str) -> Piece {
    if class.is_empty() {
        return piece;
    }
    let is_shape = |item: &Item| matches!(item, Item::Box(..) | Item::Circle(..) | Item::Path(..));
    if let Some(at) = piece.items.iter().position(is_shape) {
        piece.items.insert(at + 1, Item::Close);
        piece.items.insert(at, Item::Open(class, String::new()));
    }
    for item in &mut piece.items {
        if let Item::Text(_, _, _, Style::Small, class, _) = item {
            *class = "on";
        }
    }
    piece
}

/// The note of a box, as lines: the mark of the first difference, and the number.
pub(super) fn lines(note: &Note) -> Vec<&str> {
    let mark = note.first.as_ref().map(|_| FIRST);
    let number = Some(note.text.as_str()).filter(|text| !text.is_empty());
    mark.into_iter().chain(number).collect()
}

/// The cell of a layer in the strip: its letter and its number.
pub(super) fn cell(w: f64, h: f64, letter: &str, note: &Note) -> Piece {
    let mut piece = Piece::new(w, h);
    piece.frame(3.0, "swatch");
    let (y, room) = (h / 2.0 + 4.0, w - 12.0 - width(letter, Style::Small));
    piece.start(5.0, y, Style::Small, letter);
    let mark = note.first.as_ref().map_or("", |_| MARK);
    let number = cut(&format!("{mark}{}", note.short), Style::Small, room);
    piece.end(w - 5.0, y, Style::Small, &number);
    heat(piece, note.class)
}

/// A colour swatch with its meaning.
pub(super) fn swatch(class: &'static str, text: &str) -> Piece {
    let mut piece = Piece::default();
    piece.push(Item::Box(Rect::new(0.0, 0.0, 26.0, 15.0), 3.0, "swatch"));
    let mut piece = heat(piece, class);
    (piece.w, piece.h) = (SWATCH + width(text, Style::Small).ceil(), 15.0);
    piece.start(SWATCH, 11.5, Style::Small, text);
    piece
}

/// The legend of the colours, `room` pixels wide.
pub(in crate::diagram) fn legend(legend: &Legend, room: f64) -> Piece {
    let mut piece = Piece::new(room, 0.0);
    let title = cut(&legend.title, Style::Title, 2.0 * room);
    piece.write(0.0, Style::Title, &title);
    piece.skip(6.0);
    let shades = legend.shades.iter();
    let shades = shades.map(|shade| swatch(HOT[shade.level], &shade.text));
    let entries = shades.chain([swatch(COLD, "no number")]).collect();
    piece.add(0.0, Piece::wrapped(entries, (12.0, 5.0), room));
    piece.skip(7.0);
    if let Some(first) = &legend.first {
        piece.write(0.0, Style::Line, &format!("{MARK}{first}"));
    }
    for text in &legend.lines {
        piece.write(0.0, Style::Small, text);
    }
    piece
}
