//! Small pictures: who shares keys, which experts are used, which keys are seen.

use std::ops::Range;

use super::scene::{Item, Piece, Rect};
use super::shape::square;
use super::text::{Style, width, wrap};
use crate::inspect::diagram::{MASK, Sign};

const SIDE: f64 = 30.0;

/// Pictures beside each other, with their words; as many rows as the room needs.
pub(super) fn row(icons: &[(Sign, String)], room: f64) -> Piece {
    let icons = icons.iter().map(|(sign, text)| {
        let picture = match sign {
            Sign::Heads(per_group) => heads(*per_group),
            Sign::Experts(numbers) => experts(*numbers),
            Sign::Mask(seen) => mask(seen),
        };
        worded(picture, text, room)
    });
    Piece::wrapped(icons.collect(), (16.0, 6.0), room)
}

/// A picture with words on its right.
fn worded(picture: Piece, text: &str, room: f64) -> Piece {
    let left = picture.w + 6.0;
    let room = (room - left).max(60.0);
    let lines = wrap(text, Style::Small, room);
    let widths = lines.iter().map(|line| width(line, Style::Small));
    let mut words = Piece::new(room, 0.0);
    words.write(0.0, Style::Small, text);
    words.w = widths.fold(0.0, f64::max);
    let mut piece = Piece::new(left + words.w, picture.h.max(words.h));
    let tops = [&picture, &words].map(|inner| (piece.h - inner.h) / 2.0);
    piece.put(picture, 0.0, tops[0]);
    piece.put(words, left, tops[1]);
    piece
}

/// Query heads (circles) over the key head (square) that they share.
fn heads(per_group: Option<u64>) -> Piece {
    let shown = per_group.map_or(3, |n| n.clamp(1, 4)) as usize;
    let w = 12.0 * shown.max(2) as f64;
    let mut piece = Piece::new(w, SIDE);
    for i in 0..shown {
        let x = w / shown as f64 * (i as f64 + 0.5);
        piece.line(&[(x, 6.0), (w / 2.0, 22.0)], "thin");
        piece.push(Item::Circle(x, 6.0, 4.0, "dot"));
    }
    piece.push(Item::Box(square(w / 2.0 - 5.0, 20.0, 10.0), 1.0, "key"));
    piece
}

/// A grid of experts; those that are used are filled and have a thick border.
fn experts(numbers: Option<(u64, u64)>) -> Piece {
    let shown = numbers.unwrap_or((2, 8)).1.clamp(1, 32) as usize;
    let columns = shown.div_ceil(if shown > 8 { 4 } else { 2 });
    grid(numbers, shown, columns, (6.5, 8.0))
}

/// So many experts in columns, with their side and the distance from one to the next. Those that are used
/// are spread over the grid: which ones are depends on the token.
pub(super) fn grid(
    numbers: Option<(u64, u64)>,
    shown: usize,
    columns: usize,
    (side, each): (f64, f64),
) -> Piece {
    let filled = (numbers.unwrap_or((2, 8)).0 as usize).min(shown);
    let used = (0..filled).map(|i| (i * shown + shown / 2) / filled % shown);
    let used: Vec<usize> = used.collect();
    let rows = shown.div_ceil(columns);
    let mut piece = Piece::new(columns as f64 * each - (each - side), rows as f64 * each);
    for i in 0..shown {
        let (x, y) = ((i % columns) as f64 * each, (i / columns) as f64 * each);
        let class = if used.contains(&i) { "key" } else { "cell" };
        piece.push(Item::Box(square(x, y, side), 1.0, class));
    }
    piece
}

/// Queries downwards, keys to the right; what is seen is filled.
pub(super) fn mask(seen: &[Range<u32>]) -> Piece {
    let cell = SIDE / f64::from(MASK);
    let mut piece = Piece::new(SIDE, SIDE);
    piece.frame(1.0, "cell");
    for (query, keys) in (0u32..).zip(seen) {
        let [x, y, n] = [keys.start, query, keys.end - keys.start].map(|n| f64::from(n) * cell);
        piece.push(Item::Box(Rect::new(x, y, n, cell), 0.0, "seen"));
    }
    piece
}
