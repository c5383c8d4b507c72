//! Small pictures: who shares keys, which experts are used, which keys are seen.

use std::ops::Range;

use super::scene::{Item, Piece, Rect};
use super::text::{Style, width, wrap};
use crate::inspect::diagram::{Icon, MASK};

const SIDE: f64 = 30.0;

/// Pictures beside each other, with their words; as many rows as the room needs.
pub(super) fn row(icons: &[Icon], room: f64) -> Piece {
    let mut piece = Piece::new(room, 0.0);
    let (mut x, mut y, mut h) = (0.0, 0.0, 0.0f64);
    for icon in icons {
        let (picture, text) = match icon {
            Icon::Heads { per_group, text } => (heads(*per_group), text),
            Icon::Experts { numbers, text } => (experts(*numbers), text),
            Icon::Mask { seen, text } => (mask(seen), text),
        };
        let lines = wrap(text, Style::Small, (room - picture.w - 6.0).max(60.0));
        let beside = lines.iter().map(|line| width(line, Style::Small));
        let beside = beside.fold(0.0, f64::max);
        if x > 0.0 && x + picture.w + 6.0 + beside > room {
            (x, y) = (0.0, y + h + 6.0);
            h = 0.0;
        }
        let leading = Style::Small.leading();
        let words = lines.len() as f64 * leading;
        let all = picture.h.max(words);
        h = h.max(all);
        let w = picture.w;
        let top = y + (all - words) / 2.0;
        let picture_y = y + (all - picture.h) / 2.0;
        piece.put(picture, x, picture_y);
        for (i, line) in lines.iter().enumerate() {
            let y = top + (i + 1) as f64 * leading - 4.0;
            piece.start(x + w + 6.0, y, Style::Small, line);
        }
        x += w + 6.0 + beside + 16.0;
    }
    piece.h = y + h;
    piece
}

fn square(x: f64, y: f64, side: f64) -> Rect {
    Rect::new(x, y, side, side)
}

/// Query heads (circles) over the key head (square) that they share.
fn heads(per_group: Option<u64>) -> Piece {
    let shown = per_group.map_or(3, |n| n.clamp(1, 4)) as usize;
    let w = 12.0 * shown.max(2) as f64;
    let mut piece = Piece::new(w, SIDE);
    let step = w / shown as f64;
    for i in 0..shown {
        let x = step * (i as f64 + 0.5);
        piece.line(&[(x, 6.0), (w / 2.0, 22.0)], "thin");
        piece.push(Item::Circle(x, 6.0, 4.0, "dot"));
    }
    piece.push(Item::Box(square(w / 2.0 - 5.0, 20.0, 10.0), 1.0, "key"));
    piece
}

/// A grid of experts; those that are used are filled and have a thick border.
fn experts(numbers: Option<(u64, u64)>) -> Piece {
    let (used, all) = numbers.unwrap_or((2, 8));
    let shown = all.clamp(1, 32) as usize;
    let filled = (used as usize).min(shown);
    let columns = shown.div_ceil(if shown > 8 { 4 } else { 2 });
    let rows = shown.div_ceil(columns);
    let mut piece = Piece::new(columns as f64 * 8.0, rows as f64 * 8.0);
    // Spread over the grid rather than the first ones: which are used depends on the token.
    let used: Vec<usize> = (0..filled)
        .map(|i| (i * shown / filled + 1) % shown)
        .collect();
    for i in 0..shown {
        let (x, y) = ((i % columns) as f64 * 8.0, (i / columns) as f64 * 8.0);
        let class = if used.contains(&i) { "key" } else { "cell" };
        piece.push(Item::Box(square(x, y, 6.5), 1.0, class));
    }
    piece
}

/// Queries downwards, keys to the right; what is seen is filled.
fn mask(seen: &[Range<u32>]) -> Piece {
    let cell = SIDE / f64::from(MASK);
    let mut piece = Piece::new(SIDE, SIDE);
    piece.push(Item::Box(square(0.0, 0.0, SIDE), 1.0, "cell"));
    for (query, keys) in (0u32..).zip(seen) {
        let run = Rect::new(
            f64::from(keys.start) * cell,
            f64::from(query) * cell,
            f64::from(keys.end - keys.start) * cell,
            cell,
        );
        piece.push(Item::Box(run, 0.0, "seen"));
    }
    piece
}
