//! Pictures of a drawing: places of boxes first, then text.
//!
//! Everything is laid out in pixels by code of this folder ([`flow`] within blocks), so that pictures are
//! the same on every machine and tests can look at the rectangles. Colours are classes of a style
//! sheet; whatever a colour says, a word, a letter or a shape says too.

mod compare;
mod desc;
mod execution;
mod flow;
mod grid;
mod layer;
mod notes;
mod overlay;
mod part;
mod scene;
mod shape;
mod stack;
mod style;
mod text;

pub use compare::compared;
pub use execution::execution;
pub use grid::{Cell, Chart, Grid, MAX_CELLS, chart};
pub use scene::{Anchor, Item, Piece, Point, Rect, Seg, escape};
pub use stack::stack;
pub use style::SHEET;
pub use text::{Style, width};

pub(super) use layer::slots;
pub(super) use notes::notes;
pub(super) use overlay::legend;
pub(super) use part::{cost_text, dims, opened};
pub(super) use stack::column;

use super::compare::Comparison;
use super::{Drawing, Kind};
use crate::common::wording;

/// Widest row of kinds side by side.
const MAX_ROW: f64 = 3000.0;
/// Widest legend above kinds.
pub(super) const LEGEND: f64 = 1000.0;

/// Every kind of layer, down to its operations and weights.
pub fn layers(drawing: &Drawing) -> Piece {
    let kinds = drawing.kinds.iter();
    let columns = kinds.map(|kind| layer::kind(kind, Some(&layers_of(drawing, kind))));
    let columns = columns.chain([layer::stages(drawing)]).collect();
    let page = Piece::wrapped(columns, (56.0, 48.0), MAX_ROW);
    let mut all = stack::heading(drawing, page.w.max(600.0));
    if let Some(own) = &drawing.overlay {
        all.skip(6.0);
        all.add(0.0, legend(own, all.w.min(LEGEND)));
        all.skip(8.0);
    }
    all.skip(16.0);
    all.add(0.0, page);
    stack::framed(all)
}

/// Which layers a kind stands for, in words; empty if nobody can know.
pub(super) fn layers_of(drawing: &Drawing, kind: &Kind) -> String {
    let (n, n_all) = (kind.layers.len(), drawing.layers.len());
    match (drawing.is_symbolic, drawing.kinds.len()) {
        (true, 1) => "all layers".into(),
        (true, _) => String::new(),
        (false, _) => format!(
            "{n} of {n_all} layers: {}",
            wording::layers(&kind.layers, n_all)
        ),
    }
}

/// A picture as an SVG document.
pub fn document(drawing: &Drawing, piece: &Piece, what: &str) -> String {
    let title = format!("{}: {what}", drawing.name);
    let desc = desc::drawing(drawing, what);
    piece.to_svg(&title, &desc)
}

/// Two drawings side by side as an SVG document.
pub fn comparison(comparison: &Comparison, name: &str) -> String {
    let [a, b] = comparison.names();
    let n = comparison.findings.len();
    let desc = format!("{a} and {b} side by side, with the list of their differences: {n}.");
    compared(comparison).to_svg(name, &desc)
}

/// A kind of layer as an SVG document without a name: the same for equal ones, whoever has them.
pub fn kind(kind: &Kind) -> String {
    let piece = stack::framed(layer::kind(kind, None));
    piece.to_svg(
        &kind.label,
        "One kind of layers, down to operations and weights.",
    )
}
