//! Pictures of passes: the inputs that run through the layers together, the outputs, and what is kept.

use std::cmp::Ordering;
use std::ops::Range;

use super::super::fragment::{DrawItem, Fragment, Rect};
use super::super::shape::{graph, label};
use super::super::text::{TextStyle, width};
use super::{SIDE, cells, kept, legend};
use crate::diagram::{Drawing, MASK_TOKENS};
use lab_core::plan::Pooling;

type Cell = (&'static str, String);

/// Tokens that are labelled with their numbers.
fn numbered(class: &'static str, numbers: Range<u32>) -> Vec<Cell> {
    numbers.map(|n| (class, n.to_string())).collect()
}

/// Tokens side by side, below a caption.
fn tokens(word: &str, side: f64, all: &[Cell]) -> Fragment {
    let row = cells(side, side + 3.0, all);
    titled(word, row)
}

/// A fragment below a caption, if there is one.
fn titled(word: &str, inner: Fragment) -> Fragment {
    let mut fragment = Fragment::new(width(word, TextStyle::Small).max(inner.w), 0.0);
    fragment.skip(if word.is_empty() { 0.0 } else { 16.0 });
    fragment.middle(fragment.w / 2.0, 10.0, TextStyle::Small, word);
    fragment.add((fragment.w - inner.w) / 2.0, inner);
    fragment
}

/// A pass: its input, the layers, and its output; with the memory that it writes and, unless it is the first, reads.
fn pass(
    drawing: &Drawing,
    mut fragments: Vec<Fragment>,
    out: Fragment,
    kinds: &[Vec<usize>; 2],
    is_read: bool,
) -> Fragment {
    let named = ["keys", "states"].into_iter().zip(kinds);
    let named = named.filter(|(_, kinds)| !kinds.is_empty());
    let drums = named.map(|(name, kinds)| kept(drawing, name, kinds));
    let drums: Vec<Fragment> = drums.collect();
    fragments.extend(drums.iter().filter(|_| is_read).cloned());
    let layers = fragments.len();
    fragments.extend([label("all layers", "wbox"), out]);
    fragments.extend(drums);
    let into = (0..layers).map(|at| (at, layers));
    let out = (layers + 1..fragments.len()).map(|at| (layers, at));
    let arrows: Vec<(usize, usize)> = into.chain(out).collect();
    graph(fragments, &arrows).0
}

/// A prompt in two passes.
pub(super) fn prefill(drawing: &Drawing, kinds: &[Vec<usize>; 2]) -> Fragment {
    let passes = [("1st pass", 1..5), ("2nd pass", 5..8)];
    let passes = passes.map(|(word, all)| tokens(word, SIDE, &numbered("tok", all)));
    let next = tokens("next token", SIDE, &numbered("now", 8..9));
    pass(drawing, passes.into(), next, kinds, false)
}

/// The last token by itself, and the token that it yields.
pub(super) fn decode(drawing: &Drawing, kinds: &[Vec<usize>; 2]) -> Fragment {
    let all = [numbered("gone", 6..9), numbered("now", 9..10)].concat();
    let last = tokens("read before", SIDE, &all);
    let next = tokens("read next", SIDE, &numbered("tok", 10..11));
    pass(drawing, vec![last], next, kinds, true)
}

/// A text whose tokens attend to each other, and its vectors, or the tokens for its masks.
pub(super) fn whole(seen: &[Range<u32>], pooling: Option<Pooling>) -> Fragment {
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
    let mut fragments = vec![
        tokens("", SIDE, &all),
        titled("attention mask", mask(seen)),
        label("all layers", "wbox"),
    ];
    fragments.extend(out);
    let arrows = [(0, 2), (1, 2), (2, 3), (3, 4)];
    let n_arrows = fragments.len() - 1;
    graph(fragments, &arrows[..n_arrows]).0
}

/// The attention mask: queries downwards, keys to the right; attended keys are filled.
fn mask(seen: &[Range<u32>]) -> Fragment {
    const CELL: f64 = 5.0;
    let side = CELL * f64::from(MASK_TOKENS);
    let mut fragment = Fragment::new(side, side);
    fragment.frame(1.0, "cell");
    for (query, keys) in (0u32..).zip(seen) {
        let [x, y, n] = [keys.start, query, keys.end - keys.start].map(|n| f64::from(n) * CELL);
        fragment.push(DrawItem::Box(Rect::new(x, y, n, CELL), 0.0, "seen"));
    }
    fragment
}

/// A text over several passes: tokens fixed by the last pass are filled, masked ones have a question mark.
pub(super) fn denoising() -> Fragment {
    /// The step that unmasks each position of the completion, and the number of positions that are denoised together.
    const STEPS: [usize; 8] = [2, 1, 1, 2, 3, 4, 4, 3];
    const BLOCK: usize = 4;
    const CELL: f64 = 15.0;
    const NAMES: f64 = 42.0;
    let mut fragment = Fragment::default();
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
        let row = Fragment::wrapped(groups.collect(), (6.0, 0.0), f64::MAX);
        fragment.start(0.0, fragment.h + row.h - 3.0, TextStyle::Small, &name);
        fragment.add(NAMES, row);
        fragment.skip(6.0);
    }
    let meanings = [("now", "new"), ("tok", "known"), ("gone", "masked")];
    fragment.add(NAMES, legend(&meanings));
    fragment
}
