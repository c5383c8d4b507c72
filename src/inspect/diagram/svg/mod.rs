//! Pictures of a drawing: places of boxes first, then text.
//!
//! Everything is laid out in pixels by code of this folder ([`flow`] within blocks), so that pictures are
//! the same on every machine and tests can look at the rectangles. Colours are classes of a style sheet
//! with a light and a dark set; whatever a colour says, a word, a letter or a shape says too.

mod compare;
mod desc;
mod execution;
mod flow;
mod icon;
mod layer;
mod notes;
mod overlay;
mod part;
mod scene;
mod stack;
mod style;
mod text;
mod zoom;

pub use flow::{Flow, Size, flow};
pub use scene::{Anchor, Item, Piece, Rect, Seg, escape};
pub use style::SHEET;
#[cfg(feature = "png")]
pub(super) use style::light;
pub use text::{Style, width};
pub(super) use zoom::{cost, dims, legend, notes, opened, slots, stream, told, whole};

use super::compare::Comparison;
use super::{Drawing, Kind};
use crate::common::wording;

/// Widest row of kinds side by side.
const MAX_ROW: f64 = 3000.0;
/// Widest legend above kinds.
const LEGEND: f64 = 1000.0;

/// The whole model: input, stack with the pattern of its layers, head.
pub fn stack(drawing: &Drawing) -> Piece {
    stack::stack(drawing)
}

/// How the model is executed, as cards in rows of `room` pixels, without a heading.
pub fn execution(drawing: &Drawing, room: f64) -> Piece {
    execution::execution(drawing, room)
}

/// Every kind of layer, down to its operations and weights.
pub fn layers(drawing: &Drawing) -> Piece {
    let kinds = drawing.kinds.iter();
    let mut columns: Vec<Piece> = kinds
        .map(|kind| layer::kind(kind, Some(&layers_of(drawing, &kind.layers))))
        .collect();
    columns.push(layer::stages(drawing));
    let (mut x, mut y, mut h) = (0.0, 0.0, 0.0f64);
    let mut page = Piece::default();
    for piece in columns {
        if x > 0.0 && x + piece.w > MAX_ROW {
            (x, y) = (0.0, y + h + 48.0);
            h = 0.0;
        }
        h = h.max(piece.h);
        page.w = page.w.max(x + piece.w);
        let w = piece.w;
        page.put(piece, x, y);
        x += w + 56.0;
    }
    page.h = y + h;
    let title = titled(drawing, page.w.max(600.0));
    let mut all = Piece::new(page.w.max(title.w), page.h + title.h + 16.0);
    let top = title.h + 16.0;
    all.put(title, 0.0, 0.0);
    all.put(page, 0.0, top);
    stack::framed(all)
}

/// The heading, with the legend of a measurement below it.
fn titled(drawing: &Drawing, room: f64) -> Piece {
    let mut title = stack::heading(drawing, room);
    if let Some(legend) = &drawing.overlay {
        let legend = overlay::legend(legend, room.min(LEGEND));
        title.w = title.w.max(legend.w);
        let (y, h) = (title.h + 6.0, legend.h);
        title.put(legend, 0.0, y);
        title.h = y + h + 8.0;
    }
    title
}

/// A kind of layer by itself, without a name, so that equal ones are equal.
pub fn kind(kind: &Kind) -> Piece {
    stack::framed(layer::kind(kind, None))
}

/// Which layers a kind stands for, in words.
fn layers_of(drawing: &Drawing, layers: &[usize]) -> String {
    if drawing.is_symbolic {
        return match drawing.kinds.len() {
            1 => "all layers".into(),
            _ => String::new(),
        };
    }
    let (n, n_all) = (layers.len(), drawing.layers.len());
    format!("{n} of {n_all} layers: {}", wording::layers(layers, n_all))
}

/// A picture as an SVG document.
pub fn document(drawing: &Drawing, piece: &Piece, what: &str) -> String {
    let title = format!("{}: {what}", drawing.name);
    let desc = desc::drawing(drawing, what);
    piece.to_svg(&title, &desc, &style::rules(piece))
}

/// What two drawings have in common and what not, side by side.
pub fn compared(comparison: &Comparison) -> Piece {
    compare::picture(comparison)
}

/// The same as an SVG document.
pub fn comparison(comparison: &Comparison, name: &str) -> String {
    let piece = compared(comparison);
    let desc = desc::comparison(comparison);
    piece.to_svg(name, &desc, &style::rules(&piece))
}

/// The whole model as a small SVG document, without what is told where the pointer rests.
pub fn small_stack(drawing: &Drawing) -> String {
    let desc = desc::drawing(drawing, "the whole model");
    compact(&stack(drawing), &drawing.name, &desc)
}

/// A kind of layer as a small SVG document: the same for equal ones, whoever has them.
pub fn small_kind(kind: &Kind) -> String {
    compact(&self::kind(kind), &kind.label, &desc::kind(kind))
}

fn compact(piece: &Piece, title: &str, desc: &str) -> String {
    let piece = piece.without_words();
    piece.to_svg(title, desc, &style::rules(&piece))
}
