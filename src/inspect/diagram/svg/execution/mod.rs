//! Scenes as cards: a name, a sentence, a picture, numbers, in rows of cards of one height.

mod bars;
mod layers;
mod passes;

use super::part;
use super::scene::{Anchor, Item, Piece, Rect, Seg};
use super::text::{Style, width, wrap};
use crate::inspect::diagram::{Drawing, Picture, Scene};

/// Least and greatest width of a card, and what is between cards and inside their borders.
const MIN_CARD: f64 = 280.0;
const MAX_CARD: f64 = 460.0;
const GAP: f64 = 16.0;
const PAD: f64 = 12.0;
/// Width of a picture.
const ROOM: f64 = MIN_CARD - 2.0 * PAD;
/// Side of a badge with a letter.
const BADGE: f64 = 19.0;

/// All scenes; those about bytes, which are higher, in rows of their own.
pub(super) fn execution(drawing: &Drawing, room: f64) -> Piece {
    let mut page = Piece::new(room.max(MIN_CARD), 0.0);
    let is_bars =
        |scene: &&Scene| matches!(scene.picture, Picture::Reads { .. } | Picture::Keeps(_));
    let (bars, others): (Vec<&Scene>, Vec<&Scene>) = drawing.scenes.iter().partition(is_bars);
    for scenes in [others, bars] {
        rows(&mut page, drawing, &scenes);
    }
    page.h = (page.h - GAP).max(0.0);
    page
}

/// As many rows as some scenes need, with about as many in each.
fn rows(page: &mut Piece, drawing: &Drawing, scenes: &[&Scene]) {
    let most = (((page.w + GAP) / (MIN_CARD + GAP)) as usize).max(1);
    let n_rows = scenes.len().div_ceil(most);
    let mut rest = scenes;
    for row in 0..n_rows {
        let (now, later) = rest.split_at(rest.len().div_ceil(n_rows - row));
        rest = later;
        let drawn = self::row(drawing, now, page.w);
        let (y, h) = (page.h, drawn.h);
        page.put(drawn, 0.0, y);
        page.h += h + GAP;
    }
}

/// A card in the making.
struct Card {
    above: Piece,
    picture: Piece,
    below: Piece,
}

impl Card {
    fn new(drawing: &Drawing, scene: &Scene, room: f64) -> Self {
        Self {
            above: above(drawing, scene, room),
            picture: picture(drawing, &scene.picture, room),
            below: below(scene, room),
        }
    }
}

/// Cards beside each other, whose pictures begin at one height.
fn row(drawing: &Drawing, scenes: &[&Scene], room: f64) -> Piece {
    let n = scenes.len().max(1) as f64;
    let w = ((room - GAP * (n - 1.0)) / n).floor().min(MAX_CARD);
    let inner = w - 2.0 * PAD;
    let cards = scenes.iter().map(|scene| Card::new(drawing, scene, inner));
    let cards: Vec<Card> = cards.collect();
    let above = cards.iter().map(|card| card.above.h).fold(0.0, f64::max);
    let top = PAD + above + 14.0;
    let height = |card: &Card| top + card.picture.h + 10.0 + card.below.h + PAD;
    let h = cards.iter().map(height).fold(0.0, f64::max);
    let mut piece = Piece::new(room, h);
    for (at, card) in cards.into_iter().enumerate() {
        let x = at as f64 * (w + GAP);
        let frame = Rect::new(x, 0.0, w, h);
        piece.push(Item::Box(frame, 10.0, "frame"));
        let middle = x + PAD + ((inner - card.picture.w) / 2.0).round();
        let bottom = h - PAD - card.below.h;
        piece.put(card.above, x + PAD, PAD);
        piece.put(card.picture, middle, top);
        piece.put(card.below, x + PAD, bottom);
    }
    piece
}

/// What a scene is called, which layers it is about, and what happens.
fn above(drawing: &Drawing, scene: &Scene, room: f64) -> Piece {
    let mut piece = Piece::new(room, 0.0);
    let about = about(drawing, &scene.kinds, room);
    let mut y = Style::Title.leading();
    piece.start(0.0, y - 5.0, Style::Title, &scene.title);
    let is_beside = width(&scene.title, Style::Title) + 12.0 + about.w <= room;
    if about.h > 0.0 && is_beside {
        let x = room - about.w;
        piece.put(about, x, 0.0);
    } else if about.h > 0.0 {
        let h = about.h;
        piece.put(about, 0.0, y + 2.0);
        y += h + 4.0;
    }
    y += 4.0;
    y = piece.rows((0.0, y), &scene.line, Style::Line, room);
    piece.h = y;
    piece
}

/// The letters of kinds of layers; nothing if a scene is about the whole model.
fn about(drawing: &Drawing, kinds: &[usize], room: f64) -> Piece {
    if kinds.is_empty() {
        return Piece::default();
    }
    if kinds.len() == drawing.kinds.len() {
        let text = "all layers";
        let w = width(text, Style::Small);
        let mut piece = Piece::new(w, BADGE);
        piece.start(0.0, 13.5, Style::Small, text);
        return piece;
    }
    let word = "layers";
    let left = width(word, Style::Small) + 6.0;
    let step = BADGE + 3.0;
    let columns = (((room - left) / step) as usize).max(1);
    let w = left + kinds.len().min(columns) as f64 * step - 3.0;
    let mut piece = Piece::new(w, kinds.len().div_ceil(columns) as f64 * step - 3.0);
    piece.start(0.0, 13.5, Style::Small, word);
    for (at, kind) in kinds.iter().enumerate() {
        let (x, y) = (
            left + (at % columns) as f64 * step,
            (at / columns) as f64 * step,
        );
        badge(&mut piece, drawing, *kind, x, y);
    }
    piece
}

/// The letter of a kind of layers in its box.
fn badge(piece: &mut Piece, drawing: &Drawing, kind: usize, x: f64, y: f64) {
    let letter = drawing
        .kinds
        .get(kind)
        .map_or("", |kind| kind.letter.as_str());
    let class = ["k0", "k1", "k2", "k3"][kind % 4];
    cell(piece, x, y, BADGE, class, letter);
}

/// Numbers and choices of a scene.
fn below(scene: &Scene, room: f64) -> Piece {
    let mut piece = Piece::new(room, 0.0);
    let mut y = 0.0;
    for line in scene
        .facts
        .iter()
        .flat_map(|fact| wrap(fact, Style::Small, room))
    {
        y += Style::Small.leading();
        piece.start(0.0, y - 4.0, Style::Small, &line);
    }
    piece.h = y;
    piece
}

fn picture(drawing: &Drawing, picture: &Picture, room: f64) -> Piece {
    match picture {
        Picture::Prefill { keys, states } => passes::prefill(drawing, keys, states),
        Picture::Decode { keys, states } => passes::decode(drawing, keys, states),
        Picture::Whole { seen, pooling } => passes::whole(seen, *pooling),
        Picture::Denoising {
            n_prompt,
            block,
            fixed,
        } => passes::denoising(*n_prompt, *block, fixed),
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

/// A box of equal sides with a short text.
fn cell(piece: &mut Piece, x: f64, y: f64, side: f64, class: &'static str, text: &str) {
    let frame = Rect::new(x, y, side, side);
    piece.push(Item::Box(frame, 3.0, class));
    let over = if class == "now" { "over" } else { "" };
    let (x, y) = (x + side / 2.0, y + side / 2.0 + 4.0);
    piece.text_as(x, y, Anchor::Middle, Style::Small, over, text);
}

/// A drum with a name on it and the letters of the layers that it is of below.
fn drum(drawing: &Drawing, name: &str, kinds: &[usize], w: f64, h: f64) -> Piece {
    let mut inner = Piece::new(w, h);
    part::drum(&mut inner, w, h, 6.0);
    let is_all = kinds.len() == drawing.kinds.len();
    let letters: Vec<&str> = kinds
        .iter()
        .map(|kind| drawing.kinds[*kind].letter.as_str())
        .collect();
    let of = match is_all || kinds.is_empty() {
        true => String::new(),
        false => super::text::cut(&format!("of {}", letters.join(", ")), Style::Small, w - 6.0),
    };
    let middle = h / 2.0 + if of.is_empty() { 8.0 } else { 2.0 };
    inner.middle(w / 2.0, middle, Style::Line, name);
    inner.middle(w / 2.0, middle + 14.0, Style::Small, &of);
    inner
}

/// A thin arrow, whose head looks where the last piece of the line goes.
fn arrow(piece: &mut Piece, points: &[(f64, f64)]) {
    piece.line(points, "wire");
    let [.., (a, b), (x, y)] = *points else {
        return;
    };
    let (dx, dy) = (
        (x - a).signum() * f64::from((x - a).abs() > 0.5),
        (y - b).signum(),
    );
    let (dx, dy) = if dx == 0.0 { (0.0, dy) } else { (dx, 0.0) };
    let back = (x - 6.0 * dx, y - 6.0 * dy);
    let head = vec![
        Seg::M(back.0 - 3.5 * dy, back.1 - 3.5 * dx),
        Seg::L(back.0 + 3.5 * dy, back.1 + 3.5 * dx),
        Seg::L(x, y),
        Seg::Z,
    ];
    piece.push(Item::Path(head, "tip"));
}
