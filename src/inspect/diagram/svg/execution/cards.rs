//! Cards of scenes, arranged in rows.

use super::super::fragment::Fragment;
use super::super::text::TextStyle;
use super::marks::{GAP, MAX_CARD, MIN_CARD, PAD, lettered};
use super::{bars, layers, passes};
use crate::diagram::{Drawing, Scene, ScenePicture};

/// The scenes of the execution, as cards in rows of `room` pixels.
pub fn execution(drawing: &Drawing, room: f64) -> Fragment {
    let room = room.max(MIN_CARD);
    let most = (((room + GAP) / (MIN_CARD + GAP)) as usize).max(1);
    // The minimum number of rows, with about the same number of cards in each.
    let n_rows = drawing.scenes.len().div_ceil(most).max(1);
    let each = drawing.scenes.len().div_ceil(n_rows).max(1);
    let rows = drawing.scenes.chunks(each);
    let rows = rows.map(|now| row(drawing, now, room)).collect();
    Fragment::wrapped(rows, (0.0, GAP), room)
}

/// Cards side by side, with equal heights.
fn row(drawing: &Drawing, scenes: &[Scene], room: f64) -> Fragment {
    let n = scenes.len().max(1) as f64;
    let w = ((room - GAP * (n - 1.0)) / n).floor().min(MAX_CARD);
    let card = |scene| card(drawing, scene, w - 2.0 * PAD);
    let cards: Vec<Fragment> = scenes.iter().map(card).collect();
    let h = cards.iter().map(|card| card.h).fold(0.0, f64::max);
    let cards = cards.into_iter().map(|card| {
        let mut framed = Fragment::new(w, h + 2.0 * PAD);
        framed.frame(10.0, "frame");
        framed.put(card, PAD, PAD);
        framed
    });
    Fragment {
        w: room,
        ..Fragment::wrapped(cards.collect(), (GAP, 0.0), room)
    }
}

/// The card of a scene: its title, its layers, a sentence, its picture and its numbers.
fn card(drawing: &Drawing, scene: &Scene, room: f64) -> Fragment {
    let mut fragment = Fragment::new(room, 0.0);
    fragment.write(0.0, TextStyle::Title, &scene.title);
    let layers = match scene.kinds.len() {
        0 => String::new(),
        n if n == drawing.kinds.len() => "all layers".into(),
        _ => lettered(drawing, "layers", &scene.kinds),
    };
    fragment.write(0.0, TextStyle::Small, &layers);
    fragment.skip(4.0);
    fragment.write(0.0, TextStyle::Line, &scene.line);
    fragment.skip(14.0);
    let picture = picture(drawing, &scene.picture, room);
    fragment.add(((room - picture.w) / 2.0).round(), picture);
    fragment.skip(10.0);
    for fact in &scene.facts {
        fragment.write(0.0, TextStyle::Small, fact);
    }
    fragment
}

fn picture(drawing: &Drawing, picture: &ScenePicture, room: f64) -> Fragment {
    match picture {
        ScenePicture::Prefill(kinds) => passes::prefill(drawing, kinds),
        ScenePicture::Decode(kinds) => passes::decode(drawing, kinds),
        ScenePicture::Whole { seen, pooling } => passes::whole(seen, *pooling),
        ScenePicture::Denoising => passes::denoising(),
        ScenePicture::State => layers::state(),
        ScenePicture::Window { rule, evicts, rows } => layers::window(rule, *evicts, rows),
        ScenePicture::Shared(loans) => layers::shared(drawing, loans),
        ScenePicture::Latent(row) => layers::latent(*row),
        ScenePicture::Experts(numbers) => layers::experts(*numbers),
        ScenePicture::Reads(read) => bars::reads(read, room),
        ScenePicture::Keeps(held) => bars::keeps(held, room),
    }
}
