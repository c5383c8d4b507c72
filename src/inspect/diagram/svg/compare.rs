//! Two stacks side by side with the differing parts marked, and the list of differences below them.

use super::overlay::swatch;
use super::scene::Piece;
use super::stack;
use super::text::Style;
use crate::inspect::diagram::compare::{Comparison, Level};

/// Between the two.
const GAP: f64 = 56.0;

/// What two drawings have in common and what not, side by side.
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
    for (level, title) in Level::TITLES {
        let sentences = comparison.sentences(level);
        let is_same = level == Level::Computation && comparison.is_same();
        if sentences.is_empty() && !is_same {
            continue;
        }
        piece.write(0.0, Style::Title, title);
        if is_same {
            piece.write(0.0, Style::Line, "Both compute the same.");
        }
        for (n, sentence) in sentences {
            let y = piece.h + Style::Line.leading() - Style::Line.drop();
            piece.end(24.0, y, Style::Line, &format!("{n}."));
            piece.write(32.0, Style::Line, &sentence);
        }
        piece.skip(12.0);
    }
    stack::framed(piece)
}
