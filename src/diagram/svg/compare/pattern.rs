//! The layers of both sides above each other; kinds that correspond have the same number.

use super::super::scene::{Anchor, Item, Piece, Rect};
use super::super::text::{Style, cut, width};
use super::row::{BOTH, Mark};
use super::{MARGIN, WIDTH};
use crate::diagram::Run;
use crate::diagram::compare::{Comparison, Side};
use crate::diagram::kinds::Times;

/// Height of a box.
const HIGH: f64 = 30.0;
/// Between boxes.
const BESIDE: f64 = 10.0;
/// Room for the name of a side.
const NAME: f64 = 150.0;
/// Runs of a side that are drawn.
const RUNS: usize = 64;

/// Both patterns.
pub(super) fn patterns(comparison: &Comparison<'_>, names: &[String; 2]) -> Piece {
    let mut piece = Piece::new(WIDTH, 0.0);
    let mut y = 0.0;
    for side in [Side::A, Side::B] {
        let drawing = comparison.drawing(side);
        let name = cut(&names[side as usize], Style::Title, NAME - 12.0);
        let mut times = Times::new(drawing.is_symbolic);
        let line = line(
            comparison,
            side,
            &drawing.pattern,
            &mut times,
            BOTH - NAME,
            false,
        );
        piece.text(MARGIN, y + 25.0, Anchor::Start, Style::Title, &name);
        let h = line.h;
        piece.put(line, MARGIN + NAME, y);
        y += h + 8.0;
    }
    piece.h = y;
    piece
}

/// Runs beside each other, in as many rows as the room needs.
fn line(
    comparison: &Comparison<'_>,
    side: Side,
    runs: &[Run],
    times: &mut Times,
    room: f64,
    is_inner: bool,
) -> Piece {
    let mut piece = Piece::default();
    let (mut x, mut y, mut h) = (0.0, 0.0, 0.0f64);
    let drawn = runs
        .iter()
        .take(RUNS)
        .map(|one| run(comparison, side, one, times, room, is_inner));
    let more = (runs.len() > RUNS).then(|| said(&format!("{} more", runs.len() - RUNS), "run"));
    for one in drawn.chain(more) {
        if x > 0.0 && x + one.w > room {
            (x, y) = (0.0, y + h + BESIDE);
            h = 0.0;
        }
        h = h.max(one.h);
        let w = one.w;
        piece.put(one, x, y);
        piece.w = piece.w.max(x + w);
        x += w + BESIDE;
    }
    piece.h = y + h;
    piece
}

fn run(
    comparison: &Comparison<'_>,
    side: Side,
    run: &Run,
    times: &mut Times,
    room: f64,
    is_inner: bool,
) -> Piece {
    match run {
        Run::Layers { kind, count } => {
            let number = comparison.number(side, *kind);
            let pair = comparison.kinds.get(number.saturating_sub(1));
            let is_alone = pair.is_some_and(|pair| pair.kind.matched().is_none());
            let (sign, class) = match is_alone {
                true => (Mark::Only(side).sign(), Mark::Only(side).class()),
                false => ("", "badge"),
            };
            let often = times.next(*count, is_inner);
            said(format!("{often} kind {number} {sign}").trim(), class)
        }
        Run::Repeat { count, of } => {
            let text = times.next(*count, is_inner);
            let left = width(&text, Style::Name) + 18.0;
            let inner = line(comparison, side, of, times, room - left - BESIDE, true);
            let (w, h) = (left + inner.w + BESIDE, inner.h + 12.0);
            let mut piece = Piece::new(w, h);
            let frame = Rect {
                x: 0.0,
                y: 0.0,
                w,
                h,
            };
            piece.push(Item::Box(frame, 8.0, "repeat"));
            piece.text(10.0, h / 2.0 + 4.0, Anchor::Start, Style::Name, &text);
            piece.put(inner, left, 6.0);
            piece
        }
    }
}

fn said(text: &str, class: &'static str) -> Piece {
    let w = (width(text, Style::Name) + 20.0).ceil();
    let mut piece = Piece::new(w, HIGH + 8.0);
    let frame = Rect {
        x: 0.0,
        y: 4.0,
        w,
        h: HIGH,
    };
    piece.push(Item::Box(frame, 6.0, class));
    piece.text(w / 2.0, 24.0, Anchor::Middle, Style::Name, text);
    piece
}
