//! Pictures of what some layers do: what they see, keep, share and pick.

use std::collections::BTreeSet;

use super::super::icon::grid;
use super::super::scene::{Item, Piece, Rect};
use super::super::shape::{cell, drum};
use super::super::text::Style;
use super::{BADGE, ROOM, SIDE, arrow, badge, cells, legend};
use crate::inspect::diagram::{Drawing, Loan, View, WINDOW};

/// A state that goes from token to token; only the last one is there.
pub(super) fn state() -> Piece {
    const TOKENS: usize = 5;
    const EACH: f64 = 52.0;
    const BOX: f64 = 30.0;
    let mut piece = Piece::new((TOKENS - 1) as f64 * EACH + BOX, 86.0);
    for at in 0..TOKENS {
        let x = at as f64 * EACH;
        let middle = x + BOX / 2.0;
        let token = cell(SIDE, "tok", &(at + 1).to_string());
        piece.put(token, middle - SIDE / 2.0, 0.0);
        arrow(&mut piece, (middle, SIDE), (middle, 38.0));
        let class = if at + 1 == TOKENS { "keep" } else { "gone" };
        piece.put(cell(BOX, class, ""), x, 38.0);
        if at > 0 {
            arrow(&mut piece, (x - EACH + BOX, 53.0), (x, 53.0));
        }
    }
    piece.start(0.0, 83.0, Style::Small, "replaced");
    piece.end(piece.w, 83.0, Style::Small, "kept");
    piece
}

/// What the last tokens of a text see: a row for each of them.
pub(super) fn window(rule: &str, evicts: bool, views: &[View]) -> Piece {
    const NAMES: f64 = 54.0;
    const EACH: f64 = 20.0;
    let x = |key: u32| NAMES + f64::from(key) * EACH;
    let mut piece = Piece::new(x(WINDOW), 0.0);
    for view in views {
        let name = format!("token {}", view.query + 1);
        piece.start(0.0, piece.h + 13.0, Style::Small, &name);
        let last = if evicts { view.query + 1 } else { WINDOW };
        let row = (0..last).map(|key| {
            let class = match (key == view.query, view.keys.contains(&key), evicts) {
                (true, ..) => "now",
                (_, true, _) => "keep",
                (_, false, true) => "gone",
                (_, false, false) => "tok",
            };
            (class, String::new())
        });
        piece.add(NAMES, cells(SIDE, EACH, &row.collect::<Vec<_>>()));
        piece.skip(4.0);
    }
    if rule == "chunked" {
        let begins: BTreeSet<u32> = views.iter().map(|view| view.keys.start).collect();
        for x in begins.into_iter().map(|at| x(at) - 1.0) {
            piece.line(&[(x, -4.0), (x, piece.h + 2.0)], "cut");
        }
    }
    let unseen = match evicts {
        true => ("gone", "evicted"),
        false => ("tok", "not seen"),
    };
    piece.skip(8.0);
    piece.add(
        NAMES,
        legend(&[("now", "itself"), ("keep", "seen"), unseen]),
    );
    piece
}

/// Who reads what whom keeps.
pub(super) fn shared(drawing: &Drawing, loans: &[Loan]) -> Piece {
    /// Readers that are drawn one by one, and loans that are drawn.
    const READERS: usize = 4;
    const LOANS: usize = 3;
    let letter = |layer: &usize| badge(drawing, drawing.layers.get(*layer).copied().unwrap_or(0));
    let mut piece = Piece::new(ROOM, 18.0);
    for (x, text) in [(0.0, "writes"), (148.0, "read")] {
        piece.start(x, 10.0, Style::Small, text);
    }
    for loan in loans.iter().take(LOANS) {
        let (y, level) = (piece.h, piece.h + 20.0);
        piece.put(letter(&loan.owner), 0.0, level - BADGE / 2.0);
        arrow(&mut piece, (BADGE + 4.0, level), (58.0, level));
        let mut keys = Piece::new(58.0, 40.0);
        drum(&mut keys, 5.0);
        keys.middle(29.0, 27.0, Style::Line, "keys");
        piece.put(keys, 58.0, y);
        arrow(&mut piece, (116.0, level), (144.0, level));
        // How many there are is for the model file to say.
        let mut readers = loan.readers.clone();
        if drawing.is_symbolic {
            readers.dedup_by_key(|layer| drawing.layers.get(*layer));
        }
        let shown = readers.iter().take(READERS).map(letter);
        let mut shown = Piece::wrapped(shown.collect(), (3.0, 0.0), ROOM);
        if readers.len() > READERS {
            let more = format!("+{}", readers.len() - READERS);
            shown.start(shown.w + 5.0, BADGE / 2.0 + 4.0, Style::Small, &more);
        }
        piece.put(shown, 148.0, level - BADGE / 2.0);
        piece.skip(50.0);
    }
    piece.skip(-10.0);
    piece
}

/// Heads over the one row that they read, and the part of it that is also the values.
pub(super) fn latent(row: Option<(u64, u64)>) -> Piece {
    const HEADS: usize = 6;
    let mut piece = Piece::new(ROOM, 98.0);
    let (top, w) = (50.0, ROOM - 20.0);
    for at in 0..HEADS {
        let x = 10.0 + w * (at as f64 + 0.5) / HEADS as f64;
        piece.line(&[(x, 12.0), (ROOM / 2.0, top)], "fan");
        piece.push(Item::Circle(x, 8.0, 6.0, "dot"));
    }
    // Without numbers no part is larger than another.
    let share = row.map_or(0.75, |(k, v)| v as f64 / k.max(1) as f64);
    let end = 10.0 + w * share.clamp(0.0, 1.0);
    piece.push(Item::Box(Rect::new(10.0, top, w, 20.0), 3.0, "keep"));
    piece.line(&[(end, top), (end, top + 20.0)], "cut");
    piece.middle(ROOM / 2.0, top + 14.0, Style::Small, "one row");
    let under = top + 27.0;
    piece.line(&[(10.0, under), (end, under)], "wire");
    piece.start(10.0, under + 15.0, Style::Small, "also the values");
    piece.end(10.0 + w, under + 15.0, Style::Small, "all of it: keys");
    piece
}

/// A token, the router, and the experts, of which some are picked.
pub(super) fn experts(numbers: Option<(u64, u64)>) -> Piece {
    /// Most experts that are drawn.
    const EXPERTS: u64 = 512;
    let shown = numbers.unwrap_or((2, 8)).1.clamp(1, EXPERTS) as usize;
    let (side, columns): (f64, usize) = match shown {
        0..=8 => (20.0, 8),
        9..=32 => (14.0, 16),
        33..=64 => (12.0, 16),
        65..=128 => (10.0, 22),
        129..=256 => (7.0, 32),
        _ => (5.0, 42),
    };
    let columns = columns.min(shown);
    let each = side + if side < 8.0 { 1.0 } else { 3.0 };
    let (top, middle) = (70.0, ROOM / 2.0);
    let mut piece = Piece::new(ROOM, top);
    piece.put(cell(SIDE, "now", ""), middle - SIDE / 2.0, 0.0);
    piece.start(middle + 16.0, 13.0, Style::Small, "a token");
    arrow(&mut piece, (middle, SIDE), (middle, 28.0));
    let router = Rect::new(middle - 32.0, 28.0, 64.0, 20.0);
    piece.push(Item::Box(router, 10.0, "pill"));
    piece.middle(middle, 42.0, Style::Small, "router");
    let grid = grid(numbers, shown, columns, (side, each));
    let left = ((ROOM - grid.w) / 2.0).round();
    if shown > columns {
        arrow(&mut piece, (middle, 48.0), (middle, top - 2.0));
    } else {
        for item in &grid.items {
            if let Item::Box(frame, _, "key") = item {
                let end = (left + frame.x + side / 2.0, top);
                piece.line(&[(middle, 48.0), end], "thin");
            }
        }
    }
    piece.add(left, grid);
    piece
}
