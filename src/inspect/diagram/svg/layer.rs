//! Kinds of layers with everything in them: the stream as a spine, branches that leave and rejoin it.

use super::overlay::{beside_sign, heat, is_first, mark, number};
use super::part::{Drawn, arrow, block, card, cost_text, head, label, single, spine_head};
use super::scene::{Item, Piece, Rect, Seg};
use super::stack::{small, tapped};
use super::text::{Style, width, wrap};
use crate::arch::Join;
use crate::inspect::diagram::words::{second, tap};
use crate::inspect::diagram::{Branch, Drawing, Factor, Kind, Part, Slot};

/// Where the stream is.
pub(super) const SPINE: f64 = 24.0;
/// Between the stream and what leaves it.
pub(super) const OUT: f64 = 44.0;
const GAP: f64 = 26.0;
/// Between branches side by side.
const BESIDE: f64 = 30.0;

/// One kind of layer; `told` says which layers are of it, if the kind is one of several in a picture.
pub(super) fn kind(kind: &Kind, told: Option<&str>) -> Piece {
    let slots: Vec<Piece> = kind
        .slots
        .iter()
        .map(|own| slot(own, Detail::Full))
        .collect();
    let w = slots.iter().map(|slot| slot.w).fold(420.0, f64::max);
    let heading = heading(kind, told, w);
    let mut piece = Piece::new(w, heading.h);
    piece.put(heading, 0.0, 0.0);
    let top = piece.h + 8.0;
    let mut y = top;
    let mut inner = Piece::new(w, 0.0);
    inner.start(
        SPINE + 12.0,
        y + 11.0,
        Style::Small,
        "x: the hidden state, from the layer before",
    );
    y += 24.0;
    for slot in slots {
        let h = slot.h;
        inner.put(slot, 0.0, y);
        y += h;
    }
    y += 26.0;
    inner.start(SPINE + 12.0, y - 6.0, Style::Small, "x: to the next layer");
    spine_head(&mut inner, SPINE, y + 4.0);
    piece.line(&[(SPINE, top), (SPINE, y - 4.0)], "spine");
    piece.put(inner, 0.0, 0.0);
    piece.h = y + 10.0;
    piece
}

/// What comes before the layers and behind them, one below the other.
pub(super) fn stages(drawing: &Drawing) -> Piece {
    let mut piece = Piece::default();
    let mut y = 0.0;
    let groups = [
        ("Before the layers", &drawing.begin),
        ("After the layers", &drawing.end),
    ];
    for (title, parts) in groups {
        if parts.is_empty() {
            continue;
        }
        y += Style::Title.leading();
        piece.start(0.0, y, Style::Title, title);
        y += 16.0;
        let mut column = Column::new();
        for part in parts {
            column.push(match part.kind {
                "norm" => single(part),
                _ => block(part),
            });
        }
        let Drawn { piece: inner, .. } = column.drawn();
        let (w, h) = (inner.w, inner.h);
        piece.put(inner, 0.0, y);
        piece.w = piece.w.max(w);
        y += h + 40.0;
    }
    piece.h = (y - 40.0).max(0.0);
    piece
}

/// Letter, label, which layers, conditions, numbers.
fn heading(kind: &Kind, told: Option<&str>, room: f64) -> Piece {
    let mut piece = Piece::new(room, 0.0);
    let Some(told) = told else {
        let lines = wrap(&kind.label, Style::Title, room);
        for (i, line) in lines.iter().enumerate() {
            let y = (i + 1) as f64 * Style::Title.leading();
            piece.start(0.0, y - 4.0, Style::Title, line);
        }
        piece.h = lines.len() as f64 * Style::Title.leading() + 8.0;
        return piece;
    };
    let badge = Rect::new(0.0, 0.0, 40.0, 40.0);
    piece.push(Item::Box(badge, 8.0, "badge"));
    piece.middle(20.0, 27.0, Style::Heading, &kind.letter);
    heat(&mut piece, kind.note.as_ref());
    let mut y: f64 = 0.0;
    if is_first(kind.note.as_ref()) {
        y += Style::Name.leading();
        mark(&mut piece, 52.0, y - 4.0);
    }
    let mut rows = |text: &str, style: Style| {
        y = piece.rows((52.0, y), text, style, room - 52.0);
    };
    rows(&kind.label, Style::Title);
    rows(&number(kind.note.as_ref()).unwrap_or_default(), Style::Name);
    rows(told, Style::Line);
    if let Some(cost) = &kind.cost {
        rows(&cost_text(cost), Style::Small);
    }
    for when in &kind.when {
        rows(&format!("where {when}"), Style::Small);
    }
    piece.h = y.max(40.0) + 12.0;
    piece
}

/// A column of boxes through which a value goes down.
struct Column {
    items: Vec<Drawn>,
}

impl Column {
    fn new() -> Self {
        Self { items: Vec::new() }
    }

    fn push(&mut self, item: Drawn) {
        self.items.push(item);
    }

    fn label(&mut self, text: &str, class: &'static str) {
        self.push(centred(label(text, class)));
    }

    /// All of it, with where it begins and ends.
    fn drawn(self) -> Drawn {
        let mut left = 0.0f64;
        let mut x = 0.0;
        let mut places = Vec::new();
        for item in &self.items {
            // Inputs stand below results.
            let at = x - item.in_x;
            places.push(at);
            left = left.min(at);
            x = at + item.out_x;
        }
        let out_x = x - left;
        let in_x = self
            .items
            .first()
            .map_or(0.0, |item| places[0] - left + item.in_x);
        let mut piece = Piece::default();
        let mut y = 0.0;
        let mut last: Option<(f64, f64)> = None;
        for (item, place) in self.items.into_iter().zip(places) {
            let (w, h) = (item.piece.w, item.piece.h);
            let x = place - left;
            if let Some((from, top)) = last {
                arrow(
                    &mut piece,
                    &[
                        (from, top),
                        (from, top),
                        (x + item.in_x, y),
                        (x + item.in_x, y),
                    ],
                );
            }
            piece.put(item.piece, x, y);
            piece.w = piece.w.max(x + w);
            last = Some((x + item.out_x, y + h));
            y += h + GAP;
        }
        piece.h = (y - GAP).max(0.0);
        Drawn { piece, in_x, out_x }
    }
}

fn factor(column: &mut Column, factor: Option<&Factor>) {
    if let Some(factor) = factor {
        column.label(&format!("\u{d7} {}", factor.text), "pill");
    }
}

/// How much of the parts of a slot is drawn: all, or cards in so many pixels.
#[derive(Clone, Copy)]
pub(super) enum Detail {
    /// Operations and weights.
    Full,
    /// Cards, the room of all branches together.
    Cards(f64),
}

impl Detail {
    /// A block; in cards it has its share of the room.
    fn block(self, part: &Part, n: usize) -> Drawn {
        match self {
            Self::Full => block(part),
            Self::Cards(room) => {
                let each = (room - BESIDE * (n as f64 - 1.0)) / n as f64;
                centred(card(part, each - 24.0))
            }
        }
    }

    fn norm(self, column: &mut Column, part: Option<&Part>) {
        column.items.extend(part.map(|part| match self {
            Self::Full => single(part),
            Self::Cards(_) => centred(small(part)),
        }));
    }
}

fn centred(piece: Piece) -> Drawn {
    let middle = (piece.w / 2.0).round();
    Drawn {
        piece,
        in_x: middle,
        out_x: middle,
    }
}

fn branch(branch: &Branch, n: usize, detail: Detail) -> Drawn {
    let mut column = Column::new();
    if let Some(name) = &branch.from {
        column.label(&tap(name), "tap");
    }
    detail.norm(&mut column, branch.pre.as_ref());
    if let Some(name) = &branch.side {
        column.label(&second(name), "tap");
    }
    column.push(detail.block(&branch.block, n));
    detail.norm(&mut column, branch.post.as_ref());
    factor(&mut column, branch.factor.as_ref());
    if let Some(tap) = &branch.save {
        column.label(&format!("saved as {tap}"), "tap");
    }
    column.drawn()
}

/// Branches side by side, and the circles that sum them.
fn branches(slot: &Slot, detail: Detail) -> Drawn {
    let n = slot.branches.len();
    let all = slot.branches.iter().map(|own| branch(own, n, detail));
    let mut all: Vec<Drawn> = all.collect();
    if all.len() == 1 {
        return all.remove(0);
    }
    let h = all.iter().map(|b| b.piece.h).fold(0.0, f64::max);
    let top = GAP;
    let mut piece = Piece::default();
    let mut ports = Vec::new();
    let mut x = 0.0;
    for (at, branch) in all.into_iter().enumerate() {
        let w = branch.piece.w;
        let shared = slot.branches[at].from.is_none();
        ports.push((x + branch.in_x, x + branch.out_x, branch.piece.h, shared));
        piece.put(branch.piece, x, top);
        x += w + BESIDE;
    }
    piece.w = x - BESIDE;
    let in_x = (piece.w / 2.0).round();
    let y = top + h + GAP;
    for (i, (from, to, height, shared)) in ports.iter().enumerate() {
        if *shared {
            arrow(
                &mut piece,
                &[(in_x, 0.0), (in_x, 0.0), (*from, top), (*from, top)],
            );
        }
        let first = ports[0].1;
        if i == 0 {
            piece.line(
                &[(*to, top + height), (*to, y + 12.0), (first, y + 12.0)],
                "wire",
            );
            continue;
        }
        // The sums go from left to right, as they are computed.
        piece.line(&[(ports[i - 1].1, y + 12.0), (*to, y + 12.0)], "wire");
        piece.line(&[(*to, top + height), (*to, y)], "wire");
        head(&mut piece, *to, y);
        plus(&mut piece, *to, y + 12.0, "+");
    }
    piece.h = y + 24.0;
    let out_x = ports[ports.len() - 1].1;
    Drawn { piece, in_x, out_x }
}

fn plus(piece: &mut Piece, x: f64, y: f64, sign: &str) {
    piece.push(Item::Circle(x, y, 11.0, "sign"));
    piece.middle(x, y + 4.5, Style::Title, sign);
}

/// One slot: away from the stream to the right, and back.
pub(super) fn slot(slot: &Slot, detail: Detail) -> Piece {
    let mut column = Column::new();
    if let Some(name) = tapped(slot) {
        column.label(&tap(name), "tap");
    }
    detail.norm(&mut column, slot.pre.as_ref());
    column.push(branches(slot, detail));
    detail.norm(&mut column, slot.post.as_ref());
    factor(&mut column, slot.scale.as_ref());
    let Drawn {
        piece: inner,
        in_x,
        out_x,
    } = column.drawn();
    let left = SPINE + OUT;
    let (w, h) = (left + inner.w, inner.h);
    let mut piece = Piece::new(w, 0.0);
    let (top, start) = (18.0, left + in_x);
    let begin = top + GAP;
    piece.push(Item::Open(
        "slot",
        String::new(),
        format!("slot {}", slot.name),
    ));
    if tapped(slot).is_none() {
        let turn = vec![
            Seg::M(SPINE, top),
            Seg::L(start - 8.0, top),
            Seg::Q([start, top, start, top + 8.0]),
            Seg::L(start, begin),
        ];
        piece.push(Item::Path(turn, "wire"));
        piece.push(Item::Circle(SPINE, top, 4.0, "tip"));
        head(&mut piece, start, begin);
    }
    piece.put(inner, left, begin);
    let end = begin + h + GAP;
    let back = left + out_x;
    let turn = vec![
        Seg::M(back, begin + h),
        Seg::L(back, end - 8.0),
        Seg::Q([back, end, back - 8.0, end]),
        Seg::L(SPINE + 12.0, end),
    ];
    piece.push(Item::Path(turn, "wire"));
    let tip = vec![
        Seg::M(SPINE + 18.0, end - 3.5),
        Seg::L(SPINE + 18.0, end + 3.5),
        Seg::L(SPINE + 12.0, end),
        Seg::Z,
    ];
    piece.push(Item::Path(tip, "tip"));
    let (sign, words) = match slot.join {
        Join::Add => ("+", "added to the hidden state"),
        Join::Set => ("=", "replaces the hidden state"),
    };
    let mut joint = Piece::default();
    plus(&mut joint, SPINE, end, sign);
    heat(&mut joint, slot.note.as_ref());
    piece.put(joint, 0.0, 0.0);
    let below = (SPINE + 24.0, end + 14.0);
    beside_sign(&mut piece, below, slot.note.as_ref(), w - below.0);
    let room = back - SPINE - 40.0;
    if width(words, Style::Small) <= room {
        piece.start(SPINE + 24.0, end - 5.0, Style::Small, words);
    }
    let mut y = end + 18.0;
    if let Some(after) = &slot.after {
        let norm = match detail {
            Detail::Full => single(after).piece,
            Detail::Cards(_) => small(after),
        };
        let h = norm.h;
        y += 8.0;
        piece.put(norm, 0.0, y);
        y += h + 8.0;
    }
    piece.push(Item::Close);
    piece.h = y;
    piece
}
