//! One line of two columns with a sign between them: a band over the sides that have it.

use super::super::scene::{Anchor, Item, Piece, Rect};
use super::super::text::{Style, cut, width, wrap};
use crate::diagram::compare::{Level, Side};

/// Width of a column.
pub(super) const COLUMN: f64 = 430.0;
/// Room between the columns, for a sign and a word.
pub(super) const GUTTER: f64 = 96.0;
/// Width of both columns.
pub(super) const BOTH: f64 = 2.0 * COLUMN + GUTTER;
/// Between a border and a text.
pub(super) const PAD: f64 = 14.0;

/// How a line is marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// In both.
    Equal,
    /// Another name.
    Name,
    /// Another number.
    Number,
    /// Another computation.
    Differs,
    /// At another place.
    Moved,
    /// On one side.
    Only(Side),
}

impl Mark {
    pub(super) fn of(level: Level) -> Self {
        match level {
            Level::Same => Self::Equal,
            Level::Names => Self::Name,
            Level::Numbers => Self::Number,
            Level::Computation => Self::Differs,
        }
    }

    pub(super) fn sign(self) -> &'static str {
        match self {
            Self::Equal => "=",
            Self::Name => "~",
            Self::Number => "\u{2248}",
            Self::Differs => "\u{2260}",
            Self::Moved => "\u{bb}",
            Self::Only(Side::A) => "\u{2212}",
            Self::Only(Side::B) => "+",
        }
    }

    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Equal => "equal",
            Self::Name => "other name",
            Self::Number => "number",
            Self::Differs => "differs",
            Self::Moved => "moved",
            Self::Only(Side::A) => "only A",
            Self::Only(Side::B) => "only B",
        }
    }

    pub(super) fn class(self) -> &'static str {
        match self {
            Self::Equal | Self::Name => "eq",
            Self::Number => "num",
            Self::Differs | Self::Moved => "ne",
            Self::Only(Side::A) => "oa",
            Self::Only(Side::B) => "ob",
        }
    }

    /// The columns it is about, from the left: begin and width.
    fn span(self) -> (f64, f64) {
        match self {
            Self::Only(Side::A) => (0.0, COLUMN + GUTTER),
            Self::Only(Side::B) => (COLUMN, COLUMN + GUTTER),
            _ => (0.0, BOTH),
        }
    }
}

/// Where a side's column begins.
pub(super) fn left(side: Side) -> f64 {
    match side {
        Side::A => 0.0,
        Side::B => COLUMN + GUTTER,
    }
}

/// Texts of the two sides.
pub(super) struct Row {
    pub(super) mark: Mark,
    pub(super) texts: [String; 2],
}

/// Names of code stand by themselves in a picture.
pub(super) fn bare(text: &str) -> String {
    text.replace('`', "")
}

impl Row {
    pub(super) fn new(mark: Mark, a: &str, b: &str) -> Self {
        let texts = [a, b].map(bare);
        Self { mark, texts }
    }

    /// What one side has.
    pub(super) fn only(side: Side, text: &str) -> Self {
        let mut texts = [String::new(), String::new()];
        texts[side as usize] = bare(text);
        Self {
            mark: Mark::Only(side),
            texts,
        }
    }

    /// The band, within a frame of both columns.
    pub(super) fn piece(&self) -> Piece {
        let room = COLUMN - 2.0 * PAD;
        let is_loud = !matches!(self.mark, Mark::Equal | Mark::Name);
        let style = if is_loud { Style::Line } else { Style::Small };
        let lines = self.texts.each_ref().map(|text| fitted(text, style, room));
        let most = lines.iter().map(Vec::len).max().unwrap_or(0).max(1);
        let h = most as f64 * style.leading() + 8.0;
        let mut piece = Piece::new(BOTH, h);
        if is_loud {
            let (x, w) = self.mark.span();
            let band = Rect {
                x: x + 5.0,
                y: 1.0,
                w: w - 10.0,
                h: h - 2.0,
            };
            piece.push(Item::Box(band, 6.0, self.mark.class()));
        }
        for (side, lines) in [Side::A, Side::B].into_iter().zip(&lines) {
            let x = left(side) + PAD;
            for (i, line) in lines.iter().enumerate() {
                let y = (i + 1) as f64 * style.leading();
                piece.text(x, y, Anchor::Start, style, line);
            }
        }
        sign(&mut piece, self.mark, h / 2.0);
        piece
    }
}

/// Sign and word between the columns.
pub(super) fn sign(piece: &mut Piece, mark: Mark, y: f64) {
    let word = width(mark.word(), Style::Small);
    let all = 18.0 + word;
    let x = COLUMN + ((GUTTER - all) / 2.0).round();
    piece.text(x, y + 5.0, Anchor::Start, Style::Title, mark.sign());
    piece.text(x + 18.0, y + 4.0, Anchor::Start, Style::Small, mark.word());
}

/// A text in lines of at most `room` pixels, words that are wider cut.
pub(super) fn fitted(text: &str, style: Style, room: f64) -> Vec<String> {
    let lines = wrap(text, style, room);
    lines.iter().map(|line| cut(line, style, room)).collect()
}

/// Pieces one below the other.
pub(super) fn stacked(pieces: Vec<Piece>, gap: f64) -> Piece {
    let mut out = Piece::new(BOTH, 0.0);
    let mut y = 0.0;
    for piece in pieces {
        let h = piece.h;
        out.w = out.w.max(piece.w);
        out.put(piece, 0.0, y);
        y += h + gap;
    }
    out.h = (y - gap).max(0.0);
    out
}
