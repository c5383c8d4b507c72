//! All kinds of layers on one page.

use super::super::{Drawing, Kind};
use super::overlay::legend;
use super::{Piece, layer, stack};
use crate::common::wording;

/// Maximum width of a row of kinds.
const MAX_ROW: f64 = 3000.0;
/// Maximum width of the legend above the kinds.
pub(in crate::inspect::diagram) const LEGEND: f64 = 1000.0;

/// All kinds of layers, with their operations and weights.
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

/// The layers of a kind, in words; empty if they are unknown.
pub(in crate::inspect::diagram) fn layers_of(drawing: &Drawing, kind: &Kind) -> String {
    let (n, n_all) = (kind.layers.len(), drawing.layers.len());
    let which = wording::layers(&kind.layers, n_all);
    match (drawing.is_symbolic, drawing.kinds.len()) {
        (true, 1) => "all layers".into(),
        (true, _) => String::new(),
        (false, _) => format!("{n} of {n_all} layers: {which}"),
    }
}
