//! The pieces of a page with levels: the stack, the slots of a layer closed and opened, a block opened.
//!
//! They are the drawings of this folder, not others: a page puts them one below the other. The stream
//! goes through every slot at the same place and to its ends, so that it is one line on the page.

use std::collections::HashMap;

use super::scene::{Item, Piece};
use super::text::Style;
use super::{layer, layers_of, notes as beside, overlay, part, stack};
use crate::inspect::diagram::{Cost, Drawing, Kind, Part, Slot};

/// Room on each side, for the ends of strokes.
const EDGE: f64 = 3.0;

/// Input, layers and output along the stream, without name and notes.
pub(in crate::inspect::diagram) fn whole(drawing: &Drawing) -> Piece {
    edged(stack::column(drawing))
}

/// What stands beside the stack.
pub(in crate::inspect::diagram) fn notes(drawing: &Drawing) -> Piece {
    edged(beside::notes(drawing))
}

/// What the colours of a measurement mean; none without one.
pub(in crate::inspect::diagram) fn legend(drawing: &Drawing) -> Option<Piece> {
    let legend = drawing.overlay.as_ref()?;
    Some(edged(overlay::legend(legend, super::LEGEND)))
}

/// Each slot of a kind of layers: closed to a row of cards, and opened to its operations.
pub(in crate::inspect::diagram) fn slots(drawing: &Drawing, kind: &Kind) -> Vec<[Piece; 2]> {
    let room = stack::room(drawing);
    let both = |slot: &Slot| {
        [
            stack::small_slot(slot, room),
            layer::slot(slot, layer::Detail::Full),
        ]
        .map(on_stream)
    };
    kind.slots.iter().map(both).collect()
}

/// A block with its operations, or a norm.
pub(in crate::inspect::diagram) fn opened(part: &Part) -> Piece {
    edged(match part.kind {
        "norm" => part::single(part).piece,
        _ => part::block(part).piece,
    })
}

/// The begin or the end of the stream in a layer.
pub(in crate::inspect::diagram) fn stream(text: &str, is_end: bool) -> Piece {
    const HEIGHT: f64 = 30.0;
    let mut piece = Piece::new(420.0, HEIGHT);
    let to = if is_end { HEIGHT - 10.0 } else { HEIGHT };
    piece.line(&[(layer::SPINE, 0.0), (layer::SPINE, to)], "spine");
    if is_end {
        part::spine_head(&mut piece, layer::SPINE, HEIGHT - 2.0);
    }
    let x = layer::SPINE + 14.0;
    piece.start(x, 13.0, Style::Small, text);
    edged(piece)
}

/// Which layers a kind stands for, in words; empty if nobody can know.
pub(in crate::inspect::diagram) fn told(drawing: &Drawing, kind: &Kind) -> String {
    layers_of(drawing, &kind.layers)
}

/// Dimensions as text, ggml order.
pub(in crate::inspect::diagram) fn dims(dims: &[String]) -> String {
    part::shape(dims)
}

/// Elements, bytes and share of the model.
pub(in crate::inspect::diagram) fn cost(cost: &Cost) -> String {
    part::cost_text(cost)
}

/// A slot with the stream, which lies below all else.
fn on_stream(slot: Piece) -> Piece {
    let mut piece = Piece::new(slot.w, slot.h);
    let ends = [(layer::SPINE, 0.0), (layer::SPINE, slot.h)];
    piece.line(&ends, "spine");
    piece.put(slot, 0.0, 0.0);
    edged(piece)
}

fn edged(inner: Piece) -> Piece {
    let mut piece = Piece::new(inner.w + 2.0 * EDGE, inner.h);
    piece.put(inner, EDGE, 0.0);
    piece
}

impl Piece {
    /// The smallest rectangle `[x, y, w, h]` around the boxes, circles, texts and lines of each named group.
    pub(in crate::inspect::diagram) fn groups(&self) -> HashMap<String, [f64; 4]> {
        let mut all = HashMap::new();
        let mut open: Vec<(&str, [f64; 4])> = Vec::new();
        for item in &self.items {
            match item {
                Item::Open(_, id, _) => open.push((id, [f64::MAX, f64::MAX, f64::MIN, f64::MIN])),
                Item::Close => {
                    if let Some((id, [x, y, right, bottom])) = open.pop() {
                        all.insert(id.to_owned(), [x, y, right - x, bottom - y]);
                    }
                }
                other => {
                    let Some([x, y, right, bottom]) = other.bounds() else {
                        continue;
                    };
                    for (_, [a, b, c, d]) in &mut open {
                        (*a, *b) = (a.min(x), b.min(y));
                        (*c, *d) = (c.max(right), d.max(bottom));
                    }
                }
            }
        }
        all
    }
}
