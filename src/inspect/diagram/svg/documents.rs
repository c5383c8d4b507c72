//! Pictures as SVG documents with a title, and a description of two or three sentences for users who cannot see them. It
//! is read aloud, so it names the contents, not how they are drawn.

use super::super::compare::Comparison;
use super::super::{Drawing, Kind};
use super::{Piece, compared, layer, stack};
use crate::common::wording::{bytes, capital, count};
use crate::inspect::describe;

/// Maximum number of kinds of layers that are named.
const KINDS: usize = 8;

/// A picture as an SVG document.
pub fn document(drawing: &Drawing, piece: &Piece, what: &str) -> String {
    let title = format!("{}: {what}", drawing.name);
    piece.to_svg(&title, &description(drawing, what))
}

/// The description of a picture that shows `what` of a drawing.
fn description(drawing: &Drawing, what: &str) -> String {
    let (name, mode) = (&drawing.name, describe::mode(drawing.mode));
    let labels = drawing.kinds.iter().map(|kind| kind.label.clone());
    let mut named: Vec<String> = labels.take(KINDS).collect();
    let more = drawing.kinds.len() - named.len();
    named.extend((more > 0).then(|| format!("{more} more")));
    let mut out = format!("{name}: {mode}. {}: {}.", capital(what), named.join("; "));
    if let Some(cost) = &drawing.cost {
        let (n, weights) = (drawing.layers.len(), count(cost.params));
        out += &format!(" Layers: {n}. Weights: {weights} in {}.", bytes(cost.bytes));
    }
    if let Some(legend) = &drawing.overlay {
        out += &format!(" Coloured by: {}.", legend.title);
    }
    out
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
    let desc = "One kind of layers, down to operations and weights.";
    piece.to_svg(&kind.label, desc)
}
