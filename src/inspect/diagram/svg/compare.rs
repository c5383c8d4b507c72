//! Two stacks side by side with their differences marked, and the list of differences below.

use super::overlay::swatch;
use super::scene::Piece;
use super::stack;
use super::text::Style;
use crate::inspect::diagram::compare::Comparison;

/// Gap between the two stacks.
const GAP: f64 = 56.0;

/// The comparison of two drawings, side by side.
pub fn compared(comparison: &Comparison) -> Piece {
    let [a, b] = comparison.names();
    let both = comparison.drawings.each_ref().map(|drawing| {
        let column = stack::column(drawing);
        let mut piece = stack::heading(drawing, column.w);
        piece.skip(10.0);
        piece.add(0.0, column);
        piece
    });
    let room = both[0].w + GAP + both[1].w;
    let legend = [
        swatch("hot ne", "differs"),
        swatch("hot oa", &format!("only in {a}")),
        swatch("hot ob", &format!("only in {b}")),
    ];
    let mut piece = Piece::new(room, 0.0);
    piece.add(0.0, Piece::wrapped(legend.into(), (24.0, 5.0), room));
    piece.skip(19.0);
    piece.add(0.0, Piece::wrapped(both.into(), (GAP, 0.0), room));
    piece.skip(20.0);
    for (title, lines) in comparison.sections() {
        piece.write(0.0, Style::Title, title);
        for (n, line) in lines {
            let y = piece.h + Style::Line.leading() - Style::Line.drop();
            let number = n.map(|n| format!("{n}.")).unwrap_or_default();
            piece.end(24.0, y, Style::Line, &number);
            piece.write(if n.is_some() { 32.0 } else { 0.0 }, Style::Line, &line);
        }
        piece.skip(12.0);
    }
    stack::framed(piece)
}
