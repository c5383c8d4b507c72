//! The description of a picture in two or three sentences, for users who cannot see it. It is read aloud, so it names
//! the contents, not how they are drawn.

use crate::common::wording::{bytes, capital, count};
use crate::inspect::describe;
use crate::inspect::diagram::Drawing;

/// Maximum number of kinds of layers that are named.
const KINDS: usize = 8;

/// The description of a picture that shows `what` of a drawing.
pub(super) fn drawing(drawing: &Drawing, what: &str) -> String {
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
