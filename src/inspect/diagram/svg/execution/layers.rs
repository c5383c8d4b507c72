//! Pictures of what some layers do: attend, keep, share, and select experts.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::super::fragment::{DrawItem, Fragment, Rect};
use super::super::shape::{cell, graph, label, square};
use super::super::text::TextStyle;
use super::{ROOM, SIDE, arrow, cells, kept, legend, lettered};
use crate::diagram::{Drawing, TEXT_TOKENS};

/// A state that is passed from token to token; only the last one is kept.
pub(super) fn state() -> Fragment {
    const TOKENS: usize = 5;
    const EACH: f64 = 52.0;
    const BOX: f64 = 30.0;
    let mut fragment = Fragment::new((TOKENS - 1) as f64 * EACH + BOX, 86.0);
    for at in 0..TOKENS {
        let x = at as f64 * EACH;
        let middle = x + BOX / 2.0;
        let token = cell(SIDE, "tok", &(at + 1).to_string());
        fragment.put(token, middle - SIDE / 2.0, 0.0);
        arrow(&mut fragment, (middle, SIDE), (middle, 38.0));
        let class = if at + 1 == TOKENS { "keep" } else { "gone" };
        fragment.put(cell(BOX, class, ""), x, 38.0);
        if at > 0 {
            arrow(&mut fragment, (x - EACH + BOX, 53.0), (x, 53.0));
        }
    }
    fragment.start(0.0, 83.0, TextStyle::Small, "replaced");
    fragment.end(fragment.w, 83.0, TextStyle::Small, "kept");
    fragment
}

/// The keys that the last tokens of a text attend to, with a row for each token.
pub(super) fn window(rule: &str, evicts: bool, rows: &[(u32, Range<u32>)]) -> Fragment {
    const NAMES: f64 = 54.0;
    const EACH: f64 = 20.0;
    let x = |key: u32| NAMES + f64::from(key) * EACH;
    let mut fragment = Fragment::new(x(TEXT_TOKENS), 0.0);
    for (query, keys) in rows {
        let name = format!("token {}", query + 1);
        fragment.start(0.0, fragment.h + 13.0, TextStyle::Small, &name);
        let last = if evicts { query + 1 } else { TEXT_TOKENS };
        let row = (0..last).map(|key| {
            let class = match (key == *query, keys.contains(&key), evicts) {
                (true, ..) => "now",
                (_, true, _) => "keep",
                (_, false, true) => "gone",
                (_, false, false) => "tok",
            };
            (class, String::new())
        });
        fragment.add(NAMES, cells(SIDE, EACH, &row.collect::<Vec<_>>()));
        fragment.skip(4.0);
    }
    if rule == "chunked" {
        let begins: BTreeSet<u32> = rows.iter().map(|(_, keys)| keys.start).collect();
        for x in begins.into_iter().map(|at| x(at) - 1.0) {
            fragment.line(&[(x, -4.0), (x, fragment.h + 2.0)], "cut");
        }
    }
    let unseen = match evicts {
        true => ("gone", "evicted"),
        false => ("tok", "masked"),
    };
    fragment.skip(8.0);
    let meanings = [("now", "itself"), ("keep", "visible"), unseen];
    fragment.add(NAMES, legend(&meanings));
    fragment
}

/// The layers that read the caches of others.
pub(super) fn shared(drawing: &Drawing, loans: &BTreeMap<usize, Vec<usize>>) -> Fragment {
    /// Maximum number of readers that are drawn one by one, and of caches that are drawn.
    const READERS: usize = 4;
    const LOANS: usize = 3;
    let kind = |layer: &usize| drawing.layers.get(*layer).copied().unwrap_or(0);
    let loans = loans.iter().take(LOANS).map(|(owner, readers)| {
        let mut readers: Vec<usize> = readers.iter().map(kind).collect();
        // Without a file, the number of readers is unknown.
        if drawing.is_symbolic {
            readers.dedup();
        }
        let word = match readers.len().saturating_sub(READERS) {
            0 => "read by".to_owned(),
            more => format!("read by {more} more and"),
        };
        readers.truncate(READERS);
        let keys = kept(drawing, "keys", &[]);
        let writer = lettered(drawing, "written by", &[kind(owner)]);
        let readers = lettered(drawing, &word, &readers);
        let fragments = vec![label(&writer, "in"), keys, label(&readers, "in")];
        graph(fragments, &[(0, 1), (1, 2)]).0
    });
    Fragment::wrapped(loans.collect(), (24.0, 14.0), ROOM)
}

/// Heads above the one row that they read, with the part of it that is also the values.
pub(super) fn latent(row: Option<(u64, u64)>) -> Fragment {
    const HEADS: usize = 6;
    let w = ROOM - 20.0;
    // Without numbers, the share of the values is fixed.
    let share = row.map_or(0.75, |(k, v)| v as f64 / k.max(1) as f64);
    let end = w * share.clamp(0.0, 1.0);
    let mut one = Fragment::new(w, 46.0);
    one.push(DrawItem::Box(Rect::new(0.0, 0.0, w, 20.0), 3.0, "keep"));
    one.line(&[(end, 0.0), (end, 20.0)], "cut");
    one.middle(w / 2.0, 14.0, TextStyle::Small, "one row");
    one.line(&[(0.0, 27.0), (end, 27.0)], "wire");
    one.start(0.0, 42.0, TextStyle::Small, "also the values");
    one.end(w, 42.0, TextStyle::Small, "all of it: keys");
    let mut head = Fragment::new(12.0, 12.0);
    head.push(DrawItem::Circle(6.0, 6.0, 6.0, "dot"));
    let heads = std::iter::repeat_n(head, HEADS);
    let arrows: Vec<(usize, usize)> = (0..HEADS).map(|at| (at, HEADS)).collect();
    graph(heads.chain([one]).collect(), &arrows).0
}

/// A token, the router, and the experts, some of which are selected.
pub(super) fn experts(numbers: Option<(u64, u64)>) -> Fragment {
    /// Maximum number of experts that are drawn.
    const EXPERTS: u64 = 512;
    let shown = numbers.unwrap_or((2, 8)).1.clamp(1, EXPERTS) as usize;
    let columns = match shown {
        0..=8 => shown,
        n => (3.0 * n as f64).sqrt().ceil() as usize,
    };
    let each = (ROOM / columns as f64).floor().min(23.0);
    let side = each - if each < 9.0 { 1.0 } else { 3.0 };
    // The used experts depend on the token, so they are spread over the grid.
    let filled = (numbers.unwrap_or((2, 8)).0 as usize).min(shown);
    let used = (0..filled).map(|i| (i * shown + shown / 2) / filled % shown);
    let used: Vec<usize> = used.collect();
    let rows = shown.div_ceil(columns);
    let mut grid = Fragment::new(columns as f64 * each - (each - side), rows as f64 * each);
    for i in 0..shown {
        let (x, y) = ((i % columns) as f64 * each, (i / columns) as f64 * each);
        let class = if used.contains(&i) { "key" } else { "cell" };
        grid.push(DrawItem::Box(square(x, y, side), 1.0, class));
    }
    let fragments = vec![label("a token", "in"), label("router", "pill"), grid];
    graph(fragments, &[(0, 1), (1, 2)]).0
}
