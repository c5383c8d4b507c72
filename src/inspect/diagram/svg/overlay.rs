//! Colours, numbers and marks of a measurement on boxes, and the legend that explains them.
//!
//! A colour never stands alone: the number and the mark of the first difference are text in the box. Text on a colour
//! is drawn in the text colour, because the muted one would be too pale.

use super::fragment::{DrawItem, Fragment, Rect};
use super::text::{TextStyle, cut, width};
use crate::diagram::boxes::{COLD, HOT};
use crate::diagram::{BoxNote, Legend};

const FIRST: &str = "\u{25b2} first difference";
/// The mark without text, where there is little room.
const MARK: &str = "\u{25b2} ";
/// Width of a colour swatch, including the gap after it.
const SWATCH: f64 = 32.0;

/// Colours the first shape of a fragment, which is its frame, and makes the texts on it readable.
pub(super) fn heat(mut fragment: Fragment, class: &'static str) -> Fragment {
    if class.is_empty() {
        return fragment;
    }
    let is_shape = |item: &DrawItem| {
        matches!(
            item,
            DrawItem::Box(..) | DrawItem::Circle(..) | DrawItem::Path(..)
        )
    };
    if let Some(at) = fragment.items.iter().position(is_shape) {
        fragment.items.insert(at + 1, DrawItem::Close);
        fragment
            .items
            .insert(at, DrawItem::Open(class, String::new()));
    }
    for item in &mut fragment.items {
        if let DrawItem::Text(_, _, _, TextStyle::Small, class, _) = item {
            *class = "on";
        }
    }
    fragment
}

/// The note of a box, as lines: the mark of the first difference, and the number.
pub(super) fn lines(note: &BoxNote) -> Vec<&str> {
    let mark = note.first.as_ref().map(|_| FIRST);
    let number = Some(note.text.as_str()).filter(|text| !text.is_empty());
    mark.into_iter().chain(number).collect()
}

/// The cell of a layer in the strip: its letter and its number.
pub(super) fn cell(w: f64, h: f64, letter: &str, note: &BoxNote) -> Fragment {
    let mut fragment = Fragment::new(w, h);
    fragment.frame(3.0, "swatch");
    let (y, room) = (h / 2.0 + 4.0, w - 12.0 - width(letter, TextStyle::Small));
    fragment.start(5.0, y, TextStyle::Small, letter);
    let mark = note.first.as_ref().map_or("", |_| MARK);
    let number = cut(&format!("{mark}{}", note.short), TextStyle::Small, room);
    fragment.end(w - 5.0, y, TextStyle::Small, &number);
    heat(fragment, note.class)
}

/// A colour swatch with its meaning.
pub(super) fn swatch(class: &'static str, text: &str) -> Fragment {
    let mut fragment = Fragment::default();
    fragment.push(DrawItem::Box(
        Rect::new(0.0, 0.0, 26.0, 15.0),
        3.0,
        "swatch",
    ));
    let mut fragment = heat(fragment, class);
    (fragment.w, fragment.h) = (SWATCH + width(text, TextStyle::Small).ceil(), 15.0);
    fragment.start(SWATCH, 11.5, TextStyle::Small, text);
    fragment
}

/// The legend of the colours, `room` pixels wide.
pub(in crate::diagram) fn legend(legend: &Legend, room: f64) -> Fragment {
    let mut fragment = Fragment::new(room, 0.0);
    let title = cut(&legend.title, TextStyle::Title, 2.0 * room);
    fragment.write(0.0, TextStyle::Title, &title);
    fragment.skip(6.0);
    let shades = legend.shades.iter();
    let shades = shades.map(|shade| swatch(HOT[shade.level], &shade.text));
    let entries = shades.chain([swatch(COLD, "no number")]).collect();
    fragment.add(0.0, Fragment::wrapped(entries, (12.0, 5.0), room));
    fragment.skip(7.0);
    if let Some(first) = &legend.first {
        fragment.write(0.0, TextStyle::Line, &format!("{MARK}{first}"));
    }
    for text in &legend.lines {
        fragment.write(0.0, TextStyle::Small, text);
    }
    fragment
}
