//! Scenes as cards: a name, a sentence, a picture, numbers, in rows of cards of one height.

mod bars;
mod layers;
mod passes;

use super::scene::{Piece, Point};
use super::shape::{cell, drum, tip, toward};
use super::text::{Style, cut, width};
use crate::inspect::diagram::{Drawing, Picture, Scene};

/// Least and greatest width of a card, and what is between cards and inside their borders.
const MIN_CARD: f64 = 280.0;
const MAX_CARD: f64 = 460.0;
const GAP: f64 = 16.0;
const PAD: f64 = 12.0;
/// Width of a picture.
const ROOM: f64 = MIN_CARD - 2.0 * PAD;
/// Side of a token's box.
const SIDE: f64 = 18.0;

/// How the model is executed, as cards in rows of `room` pixels.
pub fn execution(drawing: &Drawing, room: f64) -> Piece {
    let room = room.max(MIN_CARD);
    let most = (((room + GAP) / (MIN_CARD + GAP)) as usize).max(1);
    // As many rows as they need, with about as many in each.
    let n_rows = drawing.scenes.len().div_ceil(most).max(1);
    let each = drawing.scenes.len().div_ceil(n_rows).max(1);
    let rows = drawing.scenes.chunks(each);
    let rows = rows.map(|now| row(drawing, now, room)).collect();
    Piece::wrapped(rows, (0.0, GAP), room)
}

/// Cards side by side, of one height.
fn row(drawing: &Drawing, scenes: &[Scene], room: f64) -> Piece {
    let n = scenes.len().max(1) as f64;
    let w = ((room - GAP * (n - 1.0)) / n).floor().min(MAX_CARD);
    let cards = scenes
        .iter()
        .map(|scene| card(drawing, scene, w - 2.0 * PAD));
    let cards: Vec<Piece> = cards.collect();
    let h = cards.iter().map(|card| card.h).fold(0.0, f64::max);
    let cards = cards.into_iter().map(|card| {
        let mut framed = Piece::new(w, h + 2.0 * PAD);
        framed.frame(10.0, "frame");
        framed.put(card, PAD, PAD);
        framed
    });
    Piece {
        w: room,
        ..Piece::wrapped(cards.collect(), (GAP, 0.0), room)
    }
}

/// What a scene is called, which layers it is about, what happens, its picture and its numbers.
fn card(drawing: &Drawing, scene: &Scene, room: f64) -> Piece {
    let mut piece = Piece::new(room, 0.0);
    piece.write(0.0, Style::Title, &scene.title);
    match scene.kinds.len() {
        0 => {}
        n if n == drawing.kinds.len() => piece.write(0.0, Style::Small, "all layers"),
        _ => {
            let layers = lettered(drawing, "layers", &scene.kinds);
            piece.write(0.0, Style::Small, &layers);
        }
    }
    piece.skip(4.0);
    piece.write(0.0, Style::Line, &scene.line);
    piece.skip(14.0);
    let picture = picture(drawing, &scene.picture, room);
    piece.add(((room - picture.w) / 2.0).round(), picture);
    piece.skip(10.0);
    for fact in &scene.facts {
        piece.write(0.0, Style::Small, fact);
    }
    piece
}

/// The letters of kinds of layers after a word.
fn lettered(drawing: &Drawing, word: &str, kinds: &[usize]) -> String {
    let letters = kinds.iter().filter_map(|kind| drawing.kinds.get(*kind));
    let letters: Vec<&str> = letters.map(|kind| kind.letter.as_str()).collect();
    format!("{word} {}", letters.join(", "))
}

fn picture(drawing: &Drawing, picture: &Picture, room: f64) -> Piece {
    match picture {
        Picture::Prefill { keys, states } => passes::prefill(drawing, keys, states),
        Picture::Decode { keys, states } => passes::decode(drawing, keys, states),
        Picture::Whole { seen, pooling } => passes::whole(seen, *pooling),
        Picture::Denoising => passes::denoising(),
        Picture::State => layers::state(),
        Picture::Window {
            rule,
            evicts,
            views,
        } => layers::window(rule, *evicts, views),
        Picture::Shared(loans) => layers::shared(drawing, loans),
        Picture::Latent { row } => layers::latent(*row),
        Picture::Experts { numbers } => layers::experts(*numbers),
        Picture::Reads {
            weights,
            keys,
            states,
        } => bars::reads(weights, keys, *states, room),
        Picture::Keeps(held) => bars::keeps(held, room),
    }
}

/// Small boxes with what they mean, in a line.
fn legend(meanings: &[(&'static str, &str)]) -> Piece {
    let entries = meanings.iter().map(|(class, text)| {
        let mut entry = cell(11.0, class, "");
        entry.w = 15.0 + width(text, Style::Small);
        entry.start(15.0, 9.5, Style::Small, text);
        entry
    });
    Piece::wrapped(entries.collect(), (12.0, 4.0), f64::MAX)
}

/// Boxes from left to right, each `each` pixels after the one before it.
fn cells(side: f64, each: f64, all: &[(&'static str, String)]) -> Piece {
    let all = all.iter().map(|(class, text)| cell(side, class, text));
    Piece::wrapped(all.collect(), (each - side, 0.0), f64::MAX)
}

/// A thin straight arrow along an axis.
fn arrow(piece: &mut Piece, from: Point, to: Point) {
    piece.line(&[from, to], "wire");
    tip(piece, to, toward(from, to));
}

/// A drum with a name, and the letters of the layers that it is of if they are not all.
fn kept(drawing: &Drawing, name: &str, kinds: &[usize]) -> Piece {
    let mut piece = Piece::new(62.0, 44.0);
    drum(&mut piece, 6.0);
    let letters = kinds
        .iter()
        .map(|kind| drawing.kinds[*kind].letter.as_str());
    let letters = letters.collect::<Vec<&str>>().join(", ");
    let is_all = kinds.is_empty() || kinds.len() == drawing.kinds.len();
    let y = if is_all { 30.0 } else { 24.0 };
    piece.middle(31.0, y, Style::Line, name);
    if !is_all {
        let of = cut(&format!("of {letters}"), Style::Small, 56.0);
        piece.middle(31.0, y + 13.0, Style::Small, &of);
    }
    piece
}
