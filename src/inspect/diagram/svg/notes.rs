//! The column beside the stack: a cell for every layer, the names of kinds, and memory.

use super::overlay;
use super::scene::Piece;
use super::shape::cell;
use super::text::Style;
use crate::inspect::diagram::Drawing;

/// Width of the column.
pub(super) const NOTES: f64 = 330.0;
/// The classes of cells, by the kind of the layer.
const KINDS: [&str; 4] = ["k0", "k1", "k2", "k3"];

/// The column beside the stack.
pub(in crate::inspect::diagram) fn notes(drawing: &Drawing) -> Piece {
    let mut piece = Piece::new(NOTES, 0.0);
    if let Some(legend) = &drawing.overlay {
        piece.add(0.0, overlay::legend(legend, NOTES));
        piece.skip(14.0);
    }
    if !drawing.layers.is_empty() {
        strip(&mut piece, drawing);
        piece.skip(18.0);
    }
    for kind in &drawing.kinds {
        let name = format!("{}: {}", kind.letter, kind.label);
        piece.write(0.0, Style::Name, &name);
    }
    let amounts = drawing.kept.amounts();
    if !amounts.is_empty() {
        piece.skip(10.0);
        piece.write(0.0, Style::Title, "Memory between passes");
    }
    for line in &amounts {
        piece.write(0.0, Style::Line, line);
    }
    if drawing.kept.per_token.or(drawing.kept.in_window).is_some() {
        piece.write(0.0, Style::Small, "KV cache of 16 bits");
    }
    piece
}

/// A cell for every layer, with the letter of its kind.
fn strip(piece: &mut Piece, drawing: &Drawing) {
    const SIDE: f64 = 19.0;
    /// Width of a cell with a number.
    const NOTED: f64 = 79.0;
    piece.write(0.0, Style::Title, "Layers, in order");
    piece.skip(4.0);
    if drawing.is_symbolic {
        let text = "how many there are, and of which kind, is for the model file to say; this is an example";
        piece.write(0.0, Style::Small, text);
        piece.skip(4.0);
    }
    let notes = drawing.overlay.as_ref().map(|legend| &legend.layers);
    let cells = drawing.layers.iter().enumerate().map(|(at, kind)| {
        let letter = &drawing.kinds[*kind].letter;
        match notes.and_then(|notes| notes.get(at)) {
            Some(note) => overlay::cell(NOTED, SIDE, letter, note),
            None => cell(SIDE, KINDS[kind % 4], letter),
        }
    });
    piece.add(0.0, Piece::wrapped(cells.collect(), (3.0, 3.0), NOTES));
}
