//! Pictures as SVG documents with a title and a description.

use super::super::compare::Comparison;
use super::super::{Drawing, Kind};
use super::{Piece, compared, desc, layer, stack};

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

/// A kind of layer as an SVG document without a model's name: equal kinds have equal documents.
pub fn kind(kind: &Kind) -> String {
    let piece = stack::framed(layer::kind(kind, None));
    piece.to_svg(
        &kind.label,
        "One kind of layers, down to operations and weights.",
    )
}
