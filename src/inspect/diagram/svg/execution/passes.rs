//! Pictures of passes: what goes through the layers together, what comes out, what stays.

use std::ops::Range;

use super::super::scene::{Item, Piece, Rect};
use super::super::text::Style;
use super::layers::legend;
use super::{ROOM, arrow, cell, drum};
use crate::inspect::diagram::Drawing;
use crate::plan::Pooling;

/// Side of a token's box, and from one to the next.
const SIDE: f64 = 18.0;
const STEP: f64 = 21.0;
/// Where the layers begin and end, from the top and to the right.
const TOP: f64 = 54.0;
const BOTTOM: f64 = 92.0;
const RIGHT: f64 = 166.0;
/// Tokens of the prompt in the picture, and how many of them the first pass takes.
const TOKENS: usize = 7;
const FIRST: usize = 4;

/// Left of a token; the second pass stands apart.
fn left(at: usize) -> f64 {
    at as f64 * STEP + if at < FIRST { 2.0 } else { 14.0 }
}

/// The box of all layers, with a few of them as lines.
fn layers(piece: &mut Piece) {
    let frame = Rect::new(0.0, TOP, RIGHT, BOTTOM - TOP);
    piece.push(Item::Box(frame, 6.0, "wbox"));
    for y in [TOP + 8.0, BOTTOM - 8.0] {
        piece.line(&[(8.0, y), (RIGHT - 8.0, y)], "fan");
    }
    let middle = f64::midpoint(TOP, BOTTOM) + 4.0;
    piece.middle(RIGHT / 2.0, middle, Style::Line, "all layers");
}

/// What stays between passes, beside the layers, which write it and, unless they begin, read it.
fn kept(piece: &mut Piece, drawing: &Drawing, keys: &[usize], states: &[usize], is_read: bool) {
    let names = [("keys", keys), ("states", states)];
    let drums: Vec<_> = names
        .iter()
        .filter(|(_, kinds)| !kinds.is_empty())
        .collect();
    let middle = f64::midpoint(TOP, BOTTOM);
    let h = 48.0;
    let all = drums.len() as f64 * (h + 8.0) - 8.0;
    for (at, (name, kinds)) in drums.iter().enumerate() {
        let y = middle - all / 2.0 + at as f64 * (h + 8.0);
        let (x, level) = (RIGHT + 30.0, (y + h / 2.0).clamp(TOP + 8.0, BOTTOM - 8.0));
        piece.put(drum(drawing, name, kinds, ROOM - x, h), x, y);
        match is_read {
            true => {
                arrow(piece, &[(x, level - 5.0), (RIGHT, level - 5.0)]);
                arrow(piece, &[(RIGHT, level + 5.0), (x, level + 5.0)]);
            }
            false => arrow(piece, &[(RIGHT, level), (x, level)]),
        }
    }
}

/// A prompt in two passes.
pub(super) fn prefill(drawing: &Drawing, keys: &[usize], states: &[usize]) -> Piece {
    let mut piece = Piece::new(ROOM, 136.0);
    let middle = |from: usize, to: usize| f64::midpoint(left(from), left(to - 1) + SIDE);
    for (name, from, to) in [("1st pass", 0, FIRST), ("2nd pass", FIRST, TOKENS)] {
        piece.middle(middle(from, to), 10.0, Style::Small, name);
    }
    for at in 0..TOKENS {
        let x = left(at);
        cell(&mut piece, x, 16.0, SIDE, "tok", &(at + 1).to_string());
        arrow(
            &mut piece,
            &[(x + SIDE / 2.0, 16.0 + SIDE), (x + SIDE / 2.0, TOP)],
        );
    }
    layers(&mut piece);
    kept(&mut piece, drawing, keys, states, false);
    let x = left(TOKENS - 1);
    arrow(
        &mut piece,
        &[(x + SIDE / 2.0, BOTTOM), (x + SIDE / 2.0, 112.0)],
    );
    cell(&mut piece, x, 112.0, SIDE, "now", "8");
    piece.end(x - 6.0, 125.0, Style::Small, "the next token");
    piece
}

/// The token that came last, by itself, and what comes of it.
pub(super) fn decode(drawing: &Drawing, keys: &[usize], states: &[usize]) -> Piece {
    let mut piece = Piece::new(ROOM, 136.0);
    let at = |n: usize| 24.0 + n as f64 * STEP;
    let now = 5;
    let x = at(now);
    piece.middle(
        f64::midpoint(at(0), at(now - 1) + SIDE),
        10.0,
        Style::Small,
        "read before",
    );
    for n in 0..now {
        cell(&mut piece, at(n), 16.0, SIDE, "gone", &(n + 4).to_string());
    }
    cell(&mut piece, x, 16.0, SIDE, "now", "9");
    arrow(
        &mut piece,
        &[(x + SIDE / 2.0, 16.0 + SIDE), (x + SIDE / 2.0, TOP)],
    );
    layers(&mut piece);
    kept(&mut piece, drawing, keys, states, true);
    arrow(
        &mut piece,
        &[(x + SIDE / 2.0, BOTTOM), (x + SIDE / 2.0, 112.0)],
    );
    cell(&mut piece, x, 112.0, SIDE, "tok", "10");
    piece.end(x - 6.0, 125.0, Style::Small, "read next");
    piece
}

/// Tokens of the text in the picture that are no masks.
const PROMPT: usize = 3;

/// A text whose tokens see each other, and its vectors, or the tokens for its masks.
pub(super) fn whole(seen: &[Range<u32>], pooling: Option<Pooling>) -> Piece {
    const EACH: f64 = 38.0;
    const LEVEL: f64 = 72.0;
    let n = seen.len();
    let left = (ROOM - (n as f64 - 1.0) * EACH) / 2.0;
    let x = |at: usize| left + at as f64 * EACH;
    let mut piece = Piece::new(ROOM, LEVEL);
    for (at, keys) in seen.iter().enumerate() {
        for key in keys.clone() {
            piece.line(&[(x(key as usize), SIDE), (x(at), LEVEL)], "fan");
        }
    }
    for at in 0..n {
        let (class, text) = match pooling.is_none() && at >= PROMPT {
            true => ("gone", "?".to_owned()),
            false => ("tok", (at + 1).to_string()),
        };
        cell(&mut piece, x(at) - SIDE / 2.0, 0.0, SIDE, class, &text);
        vector(&mut piece, x(at), LEVEL, "keep");
    }
    let middles: Vec<f64> = (0..n).map(x).collect();
    match pooling {
        Some(pooling) => pool(&mut piece, pooling, &middles, LEVEL + 28.0),
        None => logits(
            &mut piece,
            middles.get(PROMPT..).unwrap_or_default(),
            LEVEL + 28.0,
        ),
    }
    piece
}

/// A token from each vector of a mask; `from` are their middles, which end at `top`.
fn logits(piece: &mut Piece, from: &[f64], top: f64) {
    let y = top + 18.0;
    for x in from {
        arrow(piece, &[(*x, top), (*x, y)]);
        cell(piece, x - SIDE / 2.0, y, SIDE, "now", "");
    }
    let left = from.first().map_or(ROOM, |x| x - SIDE / 2.0 - 8.0);
    piece.end(left, y + 13.0, Style::Small, "logits");
    piece.h = y + SIDE;
}

/// Vectors become one; `from` are their middles, which end at `top`.
fn pool(piece: &mut Piece, pooling: Pooling, from: &[f64], top: f64) {
    let end = top + 28.0;
    let (pooled, what) = match pooling {
        Pooling::Mean => (from, "mean"),
        Pooling::Max => (from, "max"),
        Pooling::MeanSqrt => (from, "sum / sqrt(n)"),
        Pooling::Weighted => (from, "weighted mean"),
        Pooling::First => (&from[..from.len().min(1)], "first"),
        Pooling::Last => (&from[from.len().saturating_sub(1)..], "last"),
    };
    for x in pooled {
        piece.line(&[(*x, top), (ROOM / 2.0, end)], "wire");
    }
    vector(piece, ROOM / 2.0, end, "key");
    piece.start(ROOM / 2.0 + 14.0, end + 18.0, Style::Small, what);
    piece.h = end + 28.0;
}

/// A narrow high box for a vector.
fn vector(piece: &mut Piece, x: f64, y: f64, class: &'static str) {
    let frame = Rect::new(x - 5.0, y, 10.0, 28.0);
    piece.push(Item::Box(frame, 2.0, class));
}

/// A text from pass to pass: what is fixed last is filled, what is masked has a question mark.
pub(super) fn denoising(n_prompt: u32, block: u32, fixed: &[Vec<u32>]) -> Piece {
    const CELL: f64 = 16.0;
    const EACH: f64 = 18.0;
    const NAMES: f64 = 42.0;
    let n_answer = fixed.iter().map(Vec::len).sum::<usize>() as u32;
    let gaps = |at: u32| f64::from(at / block) * 5.0;
    let answer = NAMES + f64::from(n_prompt) * EACH + 5.0;
    let x = |at: u32| answer + f64::from(at) * EACH + gaps(at);
    let mut piece = Piece::new(x(n_answer - 1) + CELL, 0.0);
    let middle = |from: f64, to: f64| f64::midpoint(from, to);
    let prompt = middle(NAMES, answer - 7.0);
    piece.middle(prompt, 10.0, Style::Small, "prompt");
    for (nth, from) in (0..n_answer).step_by(block as usize).enumerate() {
        let to = (from + block).min(n_answer) - 1;
        let name = format!("block {}", nth + 1);
        let over = middle(x(from), x(to) + CELL);
        piece.middle(over, 10.0, Style::Small, &name);
    }
    let mut y = 18.0;
    for pass in 0..=fixed.len() {
        let name = match pass {
            0 => "start".to_owned(),
            n => format!("step {n}"),
        };
        piece.start(0.0, y + 12.0, Style::Small, &name);
        for at in 0..n_prompt {
            cell(&mut piece, NAMES + f64::from(at) * EACH, y, CELL, "tok", "");
        }
        for at in 0..n_answer {
            let known = fixed[..pass].iter().position(|step| step.contains(&at));
            let (class, text) = match known {
                None => ("gone", "?"),
                Some(step) if step + 1 == pass => ("now", ""),
                Some(_) => ("tok", ""),
            };
            cell(&mut piece, x(at), y, CELL, class, text);
        }
        y += EACH + 3.0;
    }
    let meanings = [("now", "new"), ("tok", "known"), ("gone", "masked")];
    legend(&mut piece, NAMES, y + 2.0, &meanings);
    piece.h = y + 14.0;
    piece
}
