//! Pictures of what some layers do: what they see, keep, share and pick.

use std::collections::BTreeSet;

use super::super::part::drum;
use super::super::scene::{Item, Piece, Rect};
use super::super::text::{Style, width};
use super::{BADGE, ROOM, arrow, badge, cell};
use crate::inspect::diagram::{Drawing, Loan, View, WINDOW};

const SIDE: f64 = 18.0;

/// A state that goes from token to token; only the last one is there.
pub(super) fn state() -> Piece {
    const TOKENS: usize = 5;
    const EACH: f64 = 52.0;
    const BOX: f64 = 30.0;
    let mut piece = Piece::new((TOKENS - 1) as f64 * EACH + BOX, 86.0);
    for at in 0..TOKENS {
        let x = at as f64 * EACH;
        let middle = x + BOX / 2.0;
        let token = (at + 1).to_string();
        cell(&mut piece, middle - SIDE / 2.0, 0.0, SIDE, "tok", &token);
        arrow(&mut piece, &[(middle, SIDE), (middle, 38.0)]);
        let class = if at + 1 == TOKENS { "keep" } else { "gone" };
        cell(&mut piece, x, 38.0, BOX, class, "");
        if at > 0 {
            arrow(&mut piece, &[(x - EACH + BOX, 53.0), (x, 53.0)]);
        }
    }
    let w = piece.w;
    piece.start(0.0, 83.0, Style::Small, "replaced");
    piece.end(w, 83.0, Style::Small, "kept");
    piece
}

/// What the last tokens of a text see: a row for each of them.
pub(super) fn window(rule: &str, evicts: bool, views: &[View]) -> Piece {
    const NAMES: f64 = 54.0;
    const EACH: f64 = 20.0;
    let x = |key: u32| NAMES + f64::from(key) * EACH;
    let h = views.len() as f64 * 22.0 + 20.0;
    let mut piece = Piece::new(x(WINDOW), h);
    for (nth, view) in views.iter().enumerate() {
        let y = nth as f64 * 22.0;
        let name = format!("token {}", view.query + 1);
        piece.start(0.0, y + 13.0, Style::Small, &name);
        let last = if evicts { view.query + 1 } else { WINDOW };
        for key in 0..last {
            let class = match (key == view.query, view.keys.contains(&key), evicts) {
                (true, ..) => "now",
                (_, true, _) => "keep",
                (_, false, true) => "gone",
                (_, false, false) => "tok",
            };
            cell(&mut piece, x(key), y, SIDE, class, "");
        }
    }
    if rule == "chunked" {
        let begins = views.iter().map(|view| view.keys.start);
        for at in begins.collect::<BTreeSet<u32>>() {
            let x = x(at) - 1.0;
            piece.line(&[(x, -4.0), (x, h - 18.0)], "cut");
        }
    }
    legend(
        &mut piece,
        NAMES,
        h - 12.0,
        &[
            ("now", "itself"),
            ("keep", "seen"),
            if evicts {
                ("gone", "evicted")
            } else {
                ("tok", "not seen")
            },
        ],
    );
    piece
}

/// Small boxes with what they mean, in a line.
pub(super) fn legend(piece: &mut Piece, left: f64, y: f64, all: &[(&'static str, &str)]) {
    let mut x = left;
    for (class, text) in all {
        cell(piece, x, y, 11.0, class, "");
        piece.start(x + 15.0, y + 9.5, Style::Small, text);
        x += 15.0 + width(text, Style::Small) + 12.0;
    }
}

/// Layers that read, most of them that are drawn one by one.
const READERS: usize = 4;
/// Loans that are drawn.
const LOANS: usize = 3;

/// Who reads what whom keeps.
pub(super) fn shared(drawing: &Drawing, loans: &[Loan]) -> Piece {
    let mut piece = Piece::new(ROOM, 0.0);
    let heads = [(0.0, "writes"), (72.0, ""), (148.0, "read")];
    for (x, text) in heads {
        piece.start(x, 10.0, Style::Small, text);
    }
    let mut y = 18.0;
    for loan in loans.iter().take(LOANS) {
        let level = y + 20.0;
        layer(&mut piece, drawing, loan.owner, 0.0, level - BADGE / 2.0);
        arrow(&mut piece, &[(BADGE + 4.0, level), (58.0, level)]);
        let mut keys = Piece::new(58.0, 40.0);
        drum(&mut keys, 58.0, 40.0, 5.0);
        keys.middle(29.0, 27.0, Style::Line, "keys");
        piece.put(keys, 58.0, y);
        arrow(&mut piece, &[(116.0, level), (144.0, level)]);
        // How many there are is for the model file to say.
        let mut readers = loan.readers.clone();
        if drawing.is_symbolic {
            readers.dedup_by_key(|layer| drawing.layers.get(*layer));
        }
        for (at, reader) in readers.iter().take(READERS).enumerate() {
            let x = 148.0 + at as f64 * (BADGE + 3.0);
            layer(&mut piece, drawing, *reader, x, level - BADGE / 2.0);
        }
        if readers.len() > READERS {
            let x = 148.0 + READERS as f64 * (BADGE + 3.0) + 2.0;
            let more = format!("+{}", readers.len() - READERS);
            piece.start(x, level + 4.0, Style::Small, &more);
        }
        y += 50.0;
    }
    piece.h = y - 10.0;
    piece
}

/// A layer by the letter of its kind.
fn layer(piece: &mut Piece, drawing: &Drawing, at: usize, x: f64, y: f64) {
    let kind = drawing.layers.get(at).copied().unwrap_or_default();
    badge(piece, drawing, kind, x, y);
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
    let share = row
        .map_or(0.75, |(k, v)| v as f64 / k.max(1) as f64)
        .clamp(0.0, 1.0);
    let bar = |x: f64, w: f64| Rect::new(x, top, w, 20.0);
    piece.push(Item::Box(bar(10.0, w), 3.0, "keep"));
    piece.line(
        &[(10.0 + w * share, top), (10.0 + w * share, top + 20.0)],
        "cut",
    );
    piece.middle(ROOM / 2.0, top + 14.0, Style::Small, "one row");
    let under = top + 27.0;
    piece.line(&[(10.0, under), (10.0 + w * share, under)], "wire");
    piece.start(10.0, under + 15.0, Style::Small, "also the values");
    piece.end(10.0 + w, under + 15.0, Style::Small, "all of it: keys");
    piece
}

/// Most experts that are drawn.
const EXPERTS: u64 = 512;

/// A token, the router, and the networks, of which some are picked.
pub(super) fn experts(numbers: Option<(u64, u64)>) -> Piece {
    let (used, all) = numbers.unwrap_or((2, 8));
    let shown = all.clamp(1, EXPERTS) as usize;
    let filled = (used as usize).min(shown);
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
    let grid = columns as f64 * each - (each - side);
    let rows = shown.div_ceil(columns) as f64;
    let top = 70.0;
    let mut piece = Piece::new(ROOM, top + rows * each);
    let middle = ROOM / 2.0;
    cell(&mut piece, middle - SIDE / 2.0, 0.0, SIDE, "now", "");
    piece.start(middle + 16.0, 13.0, Style::Small, "a token");
    let router = Rect::new(middle - 32.0, 28.0, 64.0, 20.0);
    arrow(&mut piece, &[(middle, SIDE), (middle, 28.0)]);
    piece.push(Item::Box(router, 10.0, "pill"));
    piece.middle(middle, 42.0, Style::Small, "router");
    if shown > columns {
        arrow(&mut piece, &[(middle, 48.0), (middle, top - 2.0)]);
    }
    // Spread over the grid rather than the first ones: which are used depends on the token.
    let picked: Vec<usize> = (0..filled)
        .map(|i| (i * shown + shown / 2) / filled.max(1) % shown)
        .collect();
    let left = ((ROOM - grid) / 2.0).round();
    for at in 0..shown {
        let x = left + (at % columns) as f64 * each;
        let y = top + (at / columns) as f64 * each;
        let is_picked = picked.contains(&at);
        let class = if is_picked { "key" } else { "cell" };
        let frame = Rect::new(x, y, side, side);
        piece.push(Item::Box(frame, 1.0, class));
        if is_picked && shown == columns {
            piece.line(&[(middle, 48.0), (x + side / 2.0, y)], "thin");
        }
    }
    piece
}
