//! Scenes as cards: a name, a sentence, a picture, numbers, in rows of cards of one height.

mod bars;
mod layers;
mod passes;

use super::notes::KINDS;
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
/// Side of a token's box, and of a badge with a letter.
const SIDE: f64 = 18.0;
const BADGE: f64 = 19.0;

/// How the model is executed, as cards in rows of `room` pixels; scenes about bytes, which are higher, have
/// rows of their own.
pub fn execution(drawing: &Drawing, room: f64) -> Piece {
    let room = room.max(MIN_CARD);
    let is_bars =
        |scene: &&Scene| matches!(scene.picture, Picture::Reads { .. } | Picture::Keeps(_));
    let (bars, others): (Vec<&Scene>, Vec<&Scene>) = drawing.scenes.iter().partition(is_bars);
    let most = (((room + GAP) / (MIN_CARD + GAP)) as usize).max(1);
    let mut rows = Vec::new();
    for scenes in [others, bars] {
        // As many rows as they need, with about as many in each.
        let n_rows = scenes.len().div_ceil(most).max(1);
        let each = scenes.len().div_ceil(n_rows).max(1);
        rows.extend(scenes.chunks(each).map(|now| row(drawing, now, room)));
    }
    Piece::wrapped(rows, (0.0, GAP), room)
}

/// Cards beside each other, of one height.
fn row(drawing: &Drawing, scenes: &[&Scene], room: f64) -> Piece {
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
    let about = about(drawing, &scene.kinds, room);
    piece.write(0.0, Style::Title, &scene.title);
    if width(&scene.title, Style::Title) + 12.0 + about.w <= room {
        let x = room - about.w;
        piece.put(about, x, 0.0);
    } else {
        piece.skip(2.0);
        piece.add(0.0, about);
        piece.skip(2.0);
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

/// The letters of kinds of layers; nothing if a scene is about the whole model.
fn about(drawing: &Drawing, kinds: &[usize], room: f64) -> Piece {
    match kinds.len() {
        0 => Piece::default(),
        n if n == drawing.kinds.len() => lettered(drawing, "all layers", &[], room),
        _ => lettered(drawing, "layers", kinds, room),
    }
}

/// A word and the letters of kinds of layers in their boxes.
fn lettered(drawing: &Drawing, word: &str, kinds: &[usize], room: f64) -> Piece {
    let left = width(word, Style::Small) + 6.0;
    let badges = kinds.iter().map(|kind| {
        let letter = drawing.kinds.get(*kind).map_or("", |kind| &kind.letter);
        cell(BADGE, KINDS[kind % 4], letter)
    });
    let badges = Piece::wrapped(badges.collect(), (3.0, 3.0), room - left);
    let mut piece = Piece::new(left + badges.w, badges.h.max(BADGE));
    piece.start(0.0, 13.5, Style::Small, word);
    piece.put(badges, left, 0.0);
    piece
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

/// Boxes from left to right, each `each` pixels behind the one before it.
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
