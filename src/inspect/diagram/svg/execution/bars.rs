//! Bytes as bars, all of one picture on one scale, each with its number.

use super::super::scene::{Item, Piece, Rect};
use super::super::text::{Style, cut};
use super::layers::legend;
use crate::common::wording::bytes;
use crate::inspect::diagram::Held;

/// Height of a bar, and from one to the next.
const BAR: f64 = 12.0;
const LINE: f64 = 19.0;
/// Room for names and for numbers.
const NAMES: f64 = 118.0;
const NUMBERS: f64 = 64.0;

/// A bar in parts: classes and bytes.
struct Bar {
    name: String,
    parts: Vec<(&'static str, u64)>,
}

impl Bar {
    fn new(name: &str, class: &'static str, bytes: u64) -> Self {
        Self {
            name: name.to_owned(),
            parts: vec![(class, bytes)],
        }
    }

    fn bytes(&self) -> u64 {
        self.parts
            .iter()
            .fold(0, |sum, (_, n)| sum.saturating_add(*n))
    }
}

/// Bars below each other.
fn bars(piece: &mut Piece, top: f64, bars: &[Bar], most: u64, room: f64) -> f64 {
    let scale = (room - NAMES - NUMBERS) / most.max(1) as f64;
    let mut y = top;
    for bar in bars {
        let name = cut(&bar.name, Style::Small, NAMES - 6.0);
        piece.start(0.0, y + 10.0, Style::Small, &name);
        let mut x = NAMES;
        for (class, n) in bar.parts.iter().filter(|(_, n)| *n > 0) {
            let w = (*n as f64 * scale).max(1.0);
            let frame = Rect::new(x, y, w, BAR);
            piece.push(Item::Box(frame, 1.0, class));
            x += w;
        }
        piece.end(room, y + 10.0, Style::Small, &bytes(bar.bytes()));
        y += LINE;
    }
    y
}

/// What stands over some bars.
fn head(piece: &mut Piece, y: f64, text: &str) -> f64 {
    piece.start(0.0, y + 11.0, Style::Name, text);
    y + 19.0
}

/// Bytes that one token reads.
pub(super) fn reads(
    weights: &[(String, u64)],
    keys: &[(u64, u64)],
    states: u64,
    room: f64,
) -> Piece {
    let weights = weights.iter().map(|(name, n)| Bar::new(name, "bar1", *n));
    let weights: Vec<Bar> = weights.collect();
    let keys = keys
        .iter()
        .map(|(tokens, n)| Bar::new(&tokens_text(*tokens), "bar2", *n));
    let keys: Vec<Bar> = keys.collect();
    let states = [Bar::new("states", "bar3", states)];
    let states: &[Bar] = if states[0].bytes() > 0 { &states } else { &[] };
    let all = weights.iter().chain(&keys).chain(states);
    let most = all.map(Bar::bytes).max().unwrap_or(1);
    let mut piece = Piece::new(room, 0.0);
    let mut y = head(&mut piece, 0.0, "Weights");
    y = bars(&mut piece, y, &weights, most, room);
    if !keys.is_empty() {
        y = head(&mut piece, y + 4.0, "Keys and values, after");
        y = bars(&mut piece, y, &keys, most, room);
    }
    if !states.is_empty() {
        y = bars(&mut piece, y + 4.0, states, most, room);
    }
    piece.h = y;
    piece
}

/// Bytes that are kept of a text.
pub(super) fn keeps(held: &[Held], room: f64) -> Piece {
    let all = held.iter().map(|held| Bar {
        name: tokens_text(held.tokens),
        parts: vec![
            ("bar1", held.all),
            ("bar2", held.window),
            ("bar3", held.state),
        ],
    });
    let all: Vec<Bar> = all.collect();
    let most = all.iter().map(Bar::bytes).max().unwrap_or(1);
    let mut piece = Piece::new(room, 0.0);
    let mut y = head(&mut piece, 0.0, "Context of");
    y = bars(&mut piece, y, &all, most, room);
    let names = ["all keys", "window", "states"];
    let parts = all.first().map_or(&[][..], |bar| &bar.parts);
    let present = parts.iter().zip(names).filter(|((_, n), _)| *n > 0);
    let present: Vec<(&'static str, &str)> =
        present.map(|((class, _), name)| (*class, name)).collect();
    if present.len() > 1 {
        legend(&mut piece, 0.0, y + 4.0, &present);
        y += 18.0;
    }
    piece.h = y;
    piece
}

fn tokens_text(n: u64) -> String {
    match n {
        1 => "1 token".into(),
        n => format!("{n} tokens"),
    }
}
