//! Sizes of cards, and small shapes that several pictures share.

use super::super::fragment::{Fragment, Point};
use super::super::shape::{cell, drum, tip, toward};
use super::super::text::{TextStyle, cut, width};
use crate::diagram::Drawing;

/// Minimum and maximum width of a card, the gap between cards, and the padding inside them.
pub(super) const MIN_CARD: f64 = 280.0;
pub(super) const MAX_CARD: f64 = 460.0;
pub(super) const GAP: f64 = 16.0;
pub(super) const PAD: f64 = 12.0;
/// Width of a picture.
pub(super) const ROOM: f64 = MIN_CARD - 2.0 * PAD;
/// Side length of a token's box.
pub(super) const SIDE: f64 = 18.0;

/// A word, followed by the letters of kinds of layers.
pub(super) fn lettered(drawing: &Drawing, word: &str, kinds: &[usize]) -> String {
    let letters = kinds.iter().filter_map(|kind| drawing.kinds.get(*kind));
    let letters: Vec<&str> = letters.map(|kind| kind.letter.as_str()).collect();
    format!("{word} {}", letters.join(", "))
}

/// Small boxes with their meanings, in a line.
pub(super) fn legend(meanings: &[(&'static str, &str)]) -> Fragment {
    let entries = meanings.iter().map(|(class, text)| {
        let mut entry = cell(11.0, class, "");
        entry.w = 15.0 + width(text, TextStyle::Small);
        entry.start(15.0, 9.5, TextStyle::Small, text);
        entry
    });
    Fragment::wrapped(entries.collect(), (12.0, 4.0), f64::MAX)
}

/// Boxes from left to right, at a distance of `each` pixels.
pub(super) fn cells(side: f64, each: f64, all: &[(&'static str, String)]) -> Fragment {
    let all = all.iter().map(|(class, text)| cell(side, class, text));
    Fragment::wrapped(all.collect(), (each - side, 0.0), f64::MAX)
}

/// A thin straight arrow along an axis.
pub(super) fn arrow(fragment: &mut Fragment, from: Point, to: Point) {
    fragment.line(&[from, to], "wire");
    tip(fragment, to, toward(from, to));
}

/// A drum with a name, and the letters of its layers if these are not all.
pub(super) fn kept(drawing: &Drawing, name: &str, kinds: &[usize]) -> Fragment {
    let mut fragment = Fragment::new(62.0, 44.0);
    drum(&mut fragment, 6.0);
    let is_all = kinds.is_empty() || kinds.len() == drawing.kinds.len();
    let y = if is_all { 30.0 } else { 24.0 };
    fragment.middle(31.0, y, TextStyle::Line, name);
    if !is_all {
        let of = cut(&lettered(drawing, "of", kinds), TextStyle::Small, 56.0);
        fragment.middle(31.0, y + 13.0, TextStyle::Small, &of);
    }
    fragment
}
