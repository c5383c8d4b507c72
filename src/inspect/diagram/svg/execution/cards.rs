//! Cards of scenes, arranged in rows.

use super::super::scene::Piece;
use super::super::text::Style;
use super::marks::{GAP, MAX_CARD, MIN_CARD, PAD, lettered};
use super::{bars, layers, passes};
use crate::diagram::{Drawing, Picture, Scene};

/// The scenes of the execution, as cards in rows of `room` pixels.
pub fn execution(drawing: &Drawing, room: f64) -> Piece {
    let room = room.max(MIN_CARD);
    let most = (((room + GAP) / (MIN_CARD + GAP)) as usize).max(1);
    // The minimum number of rows, with about the same number of cards in each.
    let n_rows = drawing.scenes.len().div_ceil(most).max(1);
    let each = drawing.scenes.len().div_ceil(n_rows).max(1);
    let rows = drawing.scenes.chunks(each);
    let rows = rows.map(|now| row(drawing, now, room)).collect();
    Piece::wrapped(rows, (0.0, GAP), room)
}

/// Cards side by side, with equal heights.
fn row(drawing: &Drawing, scenes: &[Scene], room: f64) -> Piece {
    let n = scenes.len().max(1) as f64;
    let w = ((room - GAP * (n - 1.0)) / n).floor().min(MAX_CARD);
    let card = |scene| card(drawing, scene, w - 2.0 * PAD);
    let cards: Vec<Piece> = scenes.iter().map(card).collect();
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

/// The card of a scene: its title, its layers, a sentence, its picture and its numbers.
fn card(drawing: &Drawing, scene: &Scene, room: f64) -> Piece {
    let mut piece = Piece::new(room, 0.0);
    piece.write(0.0, Style::Title, &scene.title);
    let layers = match scene.kinds.len() {
        0 => String::new(),
        n if n == drawing.kinds.len() => "all layers".into(),
        _ => lettered(drawing, "layers", &scene.kinds),
    };
    piece.write(0.0, Style::Small, &layers);
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

fn picture(drawing: &Drawing, picture: &Picture, room: f64) -> Piece {
    match picture {
        Picture::Prefill(kinds) => passes::prefill(drawing, kinds),
        Picture::Decode(kinds) => passes::decode(drawing, kinds),
        Picture::Whole { seen, pooling } => passes::whole(seen, *pooling),
        Picture::Denoising => passes::denoising(),
        Picture::State => layers::state(),
        Picture::Window { rule, evicts, rows } => layers::window(rule, *evicts, rows),
        Picture::Shared(loans) => layers::shared(drawing, loans),
        Picture::Latent(row) => layers::latent(*row),
        Picture::Experts(numbers) => layers::experts(*numbers),
        Picture::Reads(read) => bars::reads(read, room),
        Picture::Keeps(held) => bars::keeps(held, room),
    }
}
