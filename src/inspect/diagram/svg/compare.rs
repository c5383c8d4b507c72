//! Two stacks side by side with the differing parts marked, and the list of differences below them.

use super::overlay::swatch;
use super::scene::Piece;
use super::stack;
use super::text::{Style, width};
use crate::inspect::diagram::compare::{Comparison, Level};

/// Between the two.
const GAP: f64 = 56.0;

/// The picture.
pub(super) fn picture(comparison: &Comparison) -> Piece {
    let names = comparison.names();
    let columns = comparison.drawings.each_ref().map(stack::column);
    let room = columns[0].w + GAP + columns[1].w;
    let mut piece = Piece::new(room, 0.0);
    let legend = [
        ("hot ne", "differs".to_owned()),
        ("hot oa", format!("only in {}", names[0])),
        ("hot ob", format!("only in {}", names[1])),
    ];
    let mut x = 0.0;
    for (class, text) in legend {
        if x > 0.0 && x + 32.0 + width(&text, Style::Small) > room {
            (x, piece.h) = (0.0, piece.h + 20.0);
        }
        piece.put(swatch(class), x, piece.h);
        piece.start(x + 32.0, piece.h + 11.5, Style::Small, &text);
        x += 32.0 + width(&text, Style::Small) + 24.0;
    }
    piece.h += 34.0;
    let top = piece.h;
    let mut x = 0.0;
    for (drawing, column) in comparison.drawings.iter().zip(columns) {
        let w = column.w;
        let heading = stack::heading(drawing, w);
        let y = top + heading.h + 10.0;
        piece.h = piece.h.max(y + column.h);
        piece.put(heading, x, top);
        piece.put(column, x, y);
        x += w + GAP;
    }
    piece.h += 20.0;
    for (level, title) in [
        (Level::Computation, "What is computed"),
        (Level::Sizes, "Sizes"),
        (Level::Names, "Names"),
    ] {
        let sentences = comparison.sentences(level);
        if sentences.is_empty() && level != Level::Computation {
            continue;
        }
        piece.row(title, Style::Title, 0.0, room);
        if level == Level::Computation && comparison.is_same() {
            piece.row("Both compute the same.", Style::Line, 0.0, room);
        }
        for (n, sentence) in sentences {
            let y = piece.h + Style::Line.leading() - 4.0;
            piece.end(24.0, y, Style::Line, &format!("{n}."));
            piece.row(&sentence, Style::Line, 32.0, room);
        }
        piece.h += 12.0;
    }
    stack::framed(piece)
}

impl Piece {
    /// Adds a text below all else, in as many lines as it needs between `x` and `right`.
    pub(super) fn row(&mut self, text: &str, style: Style, x: f64, right: f64) {
        self.h = self.rows((x, self.h), text, style, right - x);
    }
}
