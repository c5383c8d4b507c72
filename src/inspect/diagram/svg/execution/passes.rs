//! Pictures of passes: the inputs that run through the layers together, the outputs, and what is kept.

use std::cmp::Ordering;
use std::ops::Range;

use super::super::scene::{Item, Piece, Rect};
use super::super::shape::{graph, label};
use super::super::text::{Style, width};
use super::{SIDE, cells, kept, legend};
use crate::diagram::{Drawing, MASK};
use lab_core::plan::Pooling;

/// A cell: its class and its text.
type Cell = (&'static str, String);

/// Tokens that are labelled with their numbers.
fn numbered(class: &'static str, numbers: Range<u32>) -> Vec<Cell> {
    numbers.map(|n| (class, n.to_string())).collect()
}

/// Tokens side by side, below a caption.
fn tokens(word: &str, side: f64, all: &[Cell]) -> Piece {
    let row = cells(side, side + 3.0, all);
    titled(word, row)
}

/// A piece below a caption, if there is one.
fn titled(word: &str, inner: Piece) -> Piece {
    let mut piece = Piece::new(width(word, Style::Small).max(inner.w), 0.0);
    piece.skip(if word.is_empty() { 0.0 } else { 16.0 });
    piece.middle(piece.w / 2.0, 10.0, Style::Small, word);
    piece.add((piece.w - inner.w) / 2.0, inner);
    piece
}

/// A pass: its input, the layers, and its output; with the memory that it writes and, unless it is the first, reads.
fn pass(
    drawing: &Drawing,
    mut pieces: Vec<Piece>,
    out: Piece,
    kinds: &[Vec<usize>; 2],
    is_read: bool,
) -> Piece {
    let named = ["keys", "states"].into_iter().zip(kinds);
    let named = named.filter(|(_, kinds)| !kinds.is_empty());
    let drums = named.map(|(name, kinds)| kept(drawing, name, kinds));
    let drums: Vec<Piece> = drums.collect();
    pieces.extend(drums.iter().filter(|_| is_read).cloned());
    let layers = pieces.len();
    pieces.extend([label("all layers", "wbox"), out]);
    pieces.extend(drums);
    let into = (0..layers).map(|at| (at, layers));
    let out = (layers + 1..pieces.len()).map(|at| (layers, at));
    let arrows: Vec<(usize, usize)> = into.chain(out).collect();
    graph(pieces, &arrows).0
}

/// A prompt in two passes.
pub(super) fn prefill(drawing: &Drawing, kinds: &[Vec<usize>; 2]) -> Piece {
    let passes = [("1st pass", 1..5), ("2nd pass", 5..8)];
    let passes = passes.map(|(word, all)| tokens(word, SIDE, &numbered("tok", all)));
    let next = tokens("next token", SIDE, &numbered("now", 8..9));
    pass(drawing, passes.into(), next, kinds, false)
}

/// The last token by itself, and the token that it yields.
pub(super) fn decode(drawing: &Drawing, kinds: &[Vec<usize>; 2]) -> Piece {
    let all = [numbered("gone", 6..9), numbered("now", 9..10)].concat();
    let last = tokens("read before", SIDE, &all);
    let next = tokens("read next", SIDE, &numbered("tok", 10..11));
    pass(drawing, vec![last], next, kinds, true)
}

/// A text whose tokens attend to each other, and its vectors, or the tokens for its masks.
pub(super) fn whole(seen: &[Range<u32>], pooling: Option<Pooling>) -> Piece {
    /// Number of tokens of the text that are not masks.
    const PROMPT: u32 = 3;
    let n = seen.len() as u32;
    let masked = |class: &'static str, text: &str| {
        let masks = (PROMPT..n).map(|_| (class, text.to_owned()));
        [numbered("tok", 1..PROMPT + 1), masks.collect()].concat()
    };
    let (all, out) = if pooling.is_some() {
        let vectors = ["a vector for each token", "one vector"];
        (
            numbered("tok", 1..n + 1),
            vectors.map(|it| label(it, "in")).into(),
        )
    } else {
        let logits = tokens("logits", SIDE, &masked("now", ""));
        (masked("gone", "?"), vec![logits])
    };
    let mut pieces = vec![
        tokens("", SIDE, &all),
        titled("attention mask", mask(seen)),
        label("all layers", "wbox"),
    ];
    pieces.extend(out);
    let arrows = [(0, 2), (1, 2), (2, 3), (3, 4)];
    let n_arrows = pieces.len() - 1;
    graph(pieces, &arrows[..n_arrows]).0
}

/// The attention mask: queries downwards, keys to the right; attended keys are filled.
fn mask(seen: &[Range<u32>]) -> Piece {
    const CELL: f64 = 5.0;
    let side = CELL * f64::from(MASK);
    let mut piece = Piece::new(side, side);
    piece.frame(1.0, "cell");
    for (query, keys) in (0u32..).zip(seen) {
        let [x, y, n] = [keys.start, query, keys.end - keys.start].map(|n| f64::from(n) * CELL);
        piece.push(Item::Box(Rect::new(x, y, n, CELL), 0.0, "seen"));
    }
    piece
}

/// A text over several passes: tokens fixed by the last pass are filled, masked ones have a question mark.
pub(super) fn denoising() -> Piece {
    /// The step that unmasks each position of the completion, and the number of positions that are denoised together.
    const STEPS: [usize; 8] = [2, 1, 1, 2, 3, 4, 4, 3];
    const BLOCK: usize = 4;
    const CELL: f64 = 15.0;
    const NAMES: f64 = 42.0;
    let mut piece = Piece::default();
    for pass in 0..=4 {
        let state = |step: &usize| match step.cmp(&pass) {
            Ordering::Greater => ("gone", "?".to_owned()),
            Ordering::Equal => ("now", String::new()),
            Ordering::Less => ("tok", String::new()),
        };
        let prompt = vec![("tok", String::new()); 3];
        let mut groups = vec![("prompt".to_owned(), prompt)];
        for (nth, block) in (1..).zip(STEPS.chunks(BLOCK)) {
            groups.push((format!("block {nth}"), block.iter().map(state).collect()));
        }
        let (name, is_first) = match pass {
            0 => ("start".to_owned(), true),
            n => (format!("step {n}"), false),
        };
        let groups = groups.iter().map(|(word, all)| {
            let word = if is_first { word } else { "" };
            tokens(word, CELL, all)
        });
        let row = Piece::wrapped(groups.collect(), (6.0, 0.0), f64::MAX);
        piece.start(0.0, piece.h + row.h - 3.0, Style::Small, &name);
        piece.add(NAMES, row);
        piece.skip(6.0);
    }
    let meanings = [("now", "new"), ("tok", "known"), ("gone", "masked")];
    piece.add(NAMES, legend(&meanings));
    piece
}
