//! Pictures of passes: what goes through the layers together, what comes out, what stays.

use std::ops::Range;

use super::super::scene::{Item, Piece, Rect};
use super::super::shape::{cell, drum};
use super::super::text::{Style, cut};
use super::{ROOM, SIDE, arrow, cells, legend, vector};
use crate::inspect::diagram::Drawing;
use crate::plan::Pooling;

/// From one token to the next.
const STEP: f64 = 21.0;
/// Where the layers begin and end, from the top and to the right.
const TOP: f64 = 54.0;
const BOTTOM: f64 = 92.0;
const RIGHT: f64 = 166.0;

/// A pass of tokens whose left ends and texts are given, and the token that follows from the last of them.
fn pass(tokens: &[(f64, &'static str, usize)], next: (&'static str, &str)) -> Piece {
    let mut piece = Piece::new(ROOM, 136.0);
    let mut end = 0.0;
    for (x, class, n) in tokens {
        piece.put(cell(SIDE, class, &n.to_string()), *x, 16.0);
        if *class != "gone" {
            end = x + SIDE / 2.0;
            arrow(&mut piece, (end, 16.0 + SIDE), (end, TOP));
        }
    }
    let frame = Rect::new(0.0, TOP, RIGHT, BOTTOM - TOP);
    piece.push(Item::Box(frame, 6.0, "wbox"));
    for y in [TOP + 8.0, BOTTOM - 8.0] {
        piece.line(&[(8.0, y), (RIGHT - 8.0, y)], "fan");
    }
    let middle = f64::midpoint(TOP, BOTTOM) + 4.0;
    piece.middle(RIGHT / 2.0, middle, Style::Line, "all layers");
    arrow(&mut piece, (end, BOTTOM), (end, 112.0));
    let last = tokens.last().map_or(0, |(.., n)| n + 1);
    piece.put(
        cell(SIDE, next.0, &last.to_string()),
        end - SIDE / 2.0,
        112.0,
    );
    piece.end(end - SIDE / 2.0 - 6.0, 125.0, Style::Small, next.1);
    piece
}

/// What stays between passes, beside the layers, which write it and, unless they begin, read it.
fn kept(piece: &mut Piece, drawing: &Drawing, kinds: [&[usize]; 2], is_read: bool) {
    const H: f64 = 48.0;
    const X: f64 = RIGHT + 30.0;
    let drums = ["keys", "states"].into_iter().zip(kinds);
    let drums: Vec<(&str, &[usize])> = drums.filter(|(_, kinds)| !kinds.is_empty()).collect();
    let all = drums.len() as f64 * (H + 8.0) - 8.0;
    for (at, (name, kinds)) in drums.into_iter().enumerate() {
        let y = f64::midpoint(TOP, BOTTOM) - all / 2.0 + at as f64 * (H + 8.0);
        let level = (y + H / 2.0).clamp(TOP + 8.0, BOTTOM - 8.0);
        piece.put(named_drum(drawing, name, kinds, ROOM - X, H), X, y);
        let off = if is_read { 5.0 } else { 0.0 };
        if is_read {
            arrow(piece, (X, level - off), (RIGHT, level - off));
        }
        arrow(piece, (RIGHT, level + off), (X, level + off));
    }
}

/// A drum with a name on it and the letters of the layers that it is of below.
fn named_drum(drawing: &Drawing, name: &str, kinds: &[usize], w: f64, h: f64) -> Piece {
    let mut piece = Piece::new(w, h);
    drum(&mut piece, 6.0);
    let letters = kinds
        .iter()
        .map(|kind| drawing.kinds[*kind].letter.as_str());
    let of = match kinds.len() == drawing.kinds.len() {
        true => String::new(),
        false => format!("of {}", letters.collect::<Vec<&str>>().join(", ")),
    };
    let middle = h / 2.0 + if of.is_empty() { 8.0 } else { 2.0 };
    piece.middle(w / 2.0, middle, Style::Line, name);
    let of = cut(&of, Style::Small, w - 6.0);
    piece.middle(w / 2.0, middle + 14.0, Style::Small, &of);
    piece
}

/// A prompt in two passes.
pub(super) fn prefill(drawing: &Drawing, keys: &[usize], states: &[usize]) -> Piece {
    // The second pass stands apart.
    let left = |at: usize| at as f64 * STEP + if at < 4 { 2.0 } else { 14.0 };
    let tokens: Vec<_> = (0..7).map(|at| (left(at), "tok", at + 1)).collect();
    let mut piece = pass(&tokens, ("now", "the next token"));
    for (name, from, to) in [("1st pass", 0, 3), ("2nd pass", 4, 6)] {
        let middle = f64::midpoint(left(from), left(to) + SIDE);
        piece.middle(middle, 10.0, Style::Small, name);
    }
    kept(&mut piece, drawing, [keys, states], false);
    piece
}

/// The token that came last, by itself, and what comes of it.
pub(super) fn decode(drawing: &Drawing, keys: &[usize], states: &[usize]) -> Piece {
    let left = |at: usize| 24.0 + at as f64 * STEP;
    let class = |at: usize| if at < 5 { "gone" } else { "now" };
    let tokens: Vec<_> = (0..6).map(|at| (left(at), class(at), at + 4)).collect();
    let mut piece = pass(&tokens, ("tok", "read next"));
    let middle = f64::midpoint(left(0), left(4) + SIDE);
    piece.middle(middle, 10.0, Style::Small, "read before");
    kept(&mut piece, drawing, [keys, states], true);
    piece
}

/// A text whose tokens see each other, and its vectors, or the tokens for its masks.
pub(super) fn whole(seen: &[Range<u32>], pooling: Option<Pooling>) -> Piece {
    const EACH: f64 = 38.0;
    const LEVEL: f64 = 72.0;
    /// Tokens of the text that are no masks.
    const PROMPT: usize = 3;
    let left = (ROOM - (seen.len() as f64 - 1.0) * EACH) / 2.0;
    let middles: Vec<f64> = (0..seen.len()).map(|at| left + at as f64 * EACH).collect();
    let mut piece = Piece::new(ROOM, LEVEL + 28.0);
    for (x, keys) in middles.iter().zip(seen) {
        for key in &middles[keys.start as usize..keys.end as usize] {
            piece.line(&[(*key, SIDE), (*x, LEVEL)], "fan");
        }
    }
    for (at, x) in middles.iter().enumerate() {
        let token = match pooling.is_none() && at >= PROMPT {
            true => cell(SIDE, "gone", "?"),
            false => cell(SIDE, "tok", &(at + 1).to_string()),
        };
        piece.put(token, x - SIDE / 2.0, 0.0);
        vector(&mut piece, *x, LEVEL, "keep");
    }
    match pooling {
        Some(pooling) => pool(&mut piece, pooling, &middles),
        None => logits(&mut piece, &middles[PROMPT.min(middles.len())..]),
    }
    piece
}

/// A token below each vector of a mask; `from` are their middles.
fn logits(piece: &mut Piece, from: &[f64]) {
    let (top, y) = (piece.h, piece.h + 18.0);
    for x in from {
        arrow(piece, (*x, top), (*x, y));
        piece.put(cell(SIDE, "now", ""), x - SIDE / 2.0, y);
    }
    let left = from.first().map_or(ROOM, |x| x - SIDE / 2.0 - 8.0);
    piece.end(left, y + 13.0, Style::Small, "logits");
    piece.h = y + SIDE;
}

/// Vectors become one; `from` are their middles.
fn pool(piece: &mut Piece, pooling: Pooling, from: &[f64]) {
    let (top, end) = (piece.h, piece.h + 28.0);
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

/// A text from pass to pass: what is fixed last is filled, what is masked has a question mark.
pub(super) fn denoising(n_prompt: u32, block: u32, fixed: &[Vec<u32>]) -> Piece {
    const CELL: f64 = 16.0;
    const EACH: f64 = 18.0;
    const NAMES: f64 = 42.0;
    let n_answer = fixed.iter().map(Vec::len).sum::<usize>() as u32;
    let answer = NAMES + f64::from(n_prompt) * EACH + 5.0;
    let x = |at: u32| answer + f64::from(at) * EACH + f64::from(at / block) * 5.0;
    let mut piece = Piece::new(x(n_answer - 1) + CELL, 18.0);
    let mut head = |name: &str, from: f64, to: f64| {
        piece.middle(f64::midpoint(from, to), 10.0, Style::Small, name);
    };
    head("prompt", NAMES, answer - 7.0);
    for from in (0..n_answer).step_by(block as usize) {
        let last = (from + block).min(n_answer) - 1;
        head(
            &format!("block {}", from / block + 1),
            x(from),
            x(last) + CELL,
        );
    }
    for pass in 0..=fixed.len() {
        let name = match pass {
            0 => "start".to_owned(),
            n => format!("step {n}"),
        };
        let y = piece.h;
        piece.start(0.0, y + 12.0, Style::Small, &name);
        let prompt = vec![("tok", String::new()); n_prompt as usize];
        piece.put(cells(CELL, EACH, &prompt), NAMES, y);
        for at in 0..n_answer {
            let known = fixed[..pass].iter().position(|step| step.contains(&at));
            let token = match known {
                None => cell(CELL, "gone", "?"),
                Some(step) if step + 1 == pass => cell(CELL, "now", ""),
                Some(_) => cell(CELL, "tok", ""),
            };
            piece.put(token, x(at), y);
        }
        piece.skip(EACH + 3.0);
    }
    piece.skip(2.0);
    piece.add(
        NAMES,
        legend(&[("now", "new"), ("tok", "known"), ("gone", "masked")]),
    );
    piece
}
