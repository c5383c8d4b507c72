//! Two parts side by side: in one line what is equal, with every difference what is not.

use super::super::part::shape;
use super::super::scene::{Anchor, Item, Piece, Rect};
use super::super::text::{Style, cut};
use super::row::{BOTH, COLUMN, GUTTER, Mark, PAD, Row, fitted, left, sign, stacked};
use crate::diagram::compare::{
    Level, OpPair, PartPair, Role, Side, Sublayer, WeightPair, Wire, Wiring, choice_words, gives,
    present,
};
use crate::diagram::{Part, Weight};

/// Lines of operations or weights of a part that only one side has.
const LISTED: usize = 12;

/// What parts of a sublayer look like, one below the other.
pub(super) fn parts(sublayer: &Sublayer<'_>) -> Vec<Piece> {
    let is_block = |pair: &&PartPair<'_>| pair.role.either() == Some(&Role::Block);
    let blocks: Vec<&PartPair<'_>> = sublayer.parts.iter().filter(is_block).collect();
    let of_a = blocks.iter().find_map(|pair| pair.part.a);
    let of_b = blocks.iter().find_map(|pair| pair.part.b);
    let replaced = of_a.zip(of_b).filter(|_| blocks.len() > 1);
    let mut out = Vec::new();
    let mut is_drawn = false;
    for pair in &sublayer.parts {
        match replaced.filter(|_| is_block(&pair)) {
            Some((a, b)) if !is_drawn => {
                out.push(instead(a, b));
                is_drawn = true;
            }
            Some(_) => {}
            None => out.push(part(pair, sublayer.is_moved && is_block(&pair))),
        }
    }
    out
}

/// A pair of parts, or one alone.
pub(super) fn part(pair: &PartPair<'_>, is_moved: bool) -> Piece {
    match (pair.part.matched(), pair.part.only()) {
        (Some((a, b)), _) if is_quiet(pair) && !is_moved => equal(pair, a, b),
        (Some((a, b)), _) => differing(pair, a, b, is_moved),
        (None, Some((side, part))) => {
            let mut piece = alone(side, part, pair.role.either());
            nothing(&mut piece, side.other());
            piece
        }
        (None, None) => Piece::default(),
    }
}

/// Whether nothing differs but names, and sizes that follow from others.
fn is_quiet(pair: &PartPair<'_>) -> bool {
    let is_loud = |row: &WeightPair<'_>| {
        let types = row.weight.matched().map(|(a, b)| a.types != b.types);
        row.level > Level::Numbers || row.level == Level::Numbers && types == Some(true)
    };
    let options = pair
        .options
        .iter()
        .any(|option| option.level >= Level::Numbers);
    let ops = pair.ops.iter().any(|op| op.level >= Level::Numbers);
    let is_loud = options || ops || pair.weights.iter().any(is_loud);
    !is_loud && pair.level() < Level::Computation
}

fn frame(piece: &mut Piece, x: f64, w: f64, class: &'static str) {
    let h = piece.h;
    let rect = Rect { x, y: 0.0, w, h };
    piece.items.insert(0, Item::Box(rect, 8.0, class));
}

/// `4 weights, 11 operations`.
fn counted(weights: usize, ops: usize) -> String {
    let some = |n: usize, what: &str| match n {
        0 => None,
        1 => Some(format!("1 {what}")),
        n => Some(format!("{n} {what}s")),
    };
    let all = [some(weights, "weight"), some(ops, "operation")];
    let all: Vec<String> = all.into_iter().flatten().collect();
    all.join(", ")
}

fn title(part: &Part, role: Option<&Role>) -> String {
    match (part.kind, role) {
        ("norm", Some(Role::Before)) => format!("{} before the block", part.title),
        ("norm", Some(Role::Behind)) => format!("{} behind the block", part.title),
        ("norm", Some(Role::Stream)) => format!("{} of the stream", part.title),
        _ => part.title.clone(),
    }
}

/// One line.
fn equal(pair: &PartPair<'_>, a: &Part, b: &Part) -> Piece {
    let mut piece = Piece::new(BOTH, 26.0);
    let parts = [(Side::A, a, pair.role.a), (Side::B, b, pair.role.b)];
    for (side, part, role) in parts {
        let counts = counted(part.weights.len(), part.ops.len());
        let text = format!("{} \u{b7} {counts}", title(part, role.as_ref()));
        let text = cut(&text, Style::Small, COLUMN - 2.0 * PAD);
        piece.text(left(side) + PAD, 17.0, Anchor::Start, Style::Small, &text);
    }
    let mark = Mark::of(pair.level());
    sign(&mut piece, mark, 13.0);
    frame(&mut piece, 0.0, BOTH, "quiet");
    piece
}

/// Titles, every difference, and how much is equal.
fn differing(pair: &PartPair<'_>, a: &Part, b: &Part, is_moved: bool) -> Piece {
    let roles = pair.role.matched().is_some_and(|(a, b)| a != b);
    let mark = if is_moved || roles {
        Mark::Moved
    } else {
        Mark::of(pair.level())
    };
    let mut rows = vec![heads(pair, a, b, mark)];
    rows.extend(
        pair.options
            .iter()
            .filter(|o| o.level >= Level::Numbers)
            .map(|option| {
                let row = match (option.a.is_off, option.b.is_off) {
                    (true, false) => Row::only(Side::B, &present(option.b)),
                    (false, true) => Row::only(Side::A, &present(option.a)),
                    _ => {
                        let [a, b] = [option.a, option.b].map(choice_words);
                        Row::new(Mark::of(option.level), &a, &b)
                    }
                };
                row.piece()
            }),
    );
    rows.extend(own_weights(pair));
    rows.extend(pair.weights.iter().filter_map(weight));
    rows.extend(own_ops(pair));
    rows.extend(pair.ops.iter().filter_map(op));
    if pair.is_rewired {
        let text = "the same operations";
        let row = Row::new(Mark::Differs, text, "connected otherwise");
        rows.push(row.piece());
    }
    rows.extend(rest(pair));
    let mut piece = stacked(rows, 0.0);
    piece.h += 6.0;
    frame(&mut piece, 0.0, BOTH, "frame");
    piece
}

fn heads(pair: &PartPair<'_>, a: &Part, b: &Part, mark: Mark) -> Piece {
    let parts = [(Side::A, a, pair.role.a), (Side::B, b, pair.role.b)];
    let heads = parts.map(|(side, part, role)| (side, head(part, &title(part, role.as_ref()))));
    let h = heads.iter().map(|(_, head)| head.h).fold(0.0, f64::max);
    let mut piece = Piece::new(BOTH, h);
    for (side, head) in heads {
        piece.put(head, left(side), 0.0);
    }
    sign(&mut piece, mark, 16.0);
    piece
}

/// Name and words of a part.
fn head(part: &Part, title: &str) -> Piece {
    let mut piece = Piece::new(COLUMN, 0.0);
    let mut y = 3.0 + Style::Title.leading();
    let title = cut(title, Style::Title, COLUMN - 2.0 * PAD);
    piece.text(PAD, y - 2.0, Anchor::Start, Style::Title, &title);
    for line in fitted(&part.line, Style::Small, COLUMN - 2.0 * PAD) {
        y += Style::Small.leading();
        piece.text(PAD, y - 2.0, Anchor::Start, Style::Small, &line);
    }
    piece.h = y + 6.0;
    piece
}

/// Weights that only one side has.
fn own_weights(pair: &PartPair<'_>) -> impl Iterator<Item = Piece> {
    let only = pair.weights.iter().filter_map(|row| row.weight.only());
    only.map(|(side, weight)| Row::only(side, &weight_words(weight)).piece())
}

/// Operations that only one side has, but for those of weights that are told before.
fn own_ops(pair: &PartPair<'_>) -> Option<Piece> {
    let is_alone = |side: Side, key: &str| {
        let mut only = pair.weights.iter().filter_map(|row| row.weight.only());
        only.any(|(of, weight)| of == side && weight.key == key)
    };
    let own = |side: Side| {
        let part = if side == Side::A {
            pair.part.a
        } else {
            pair.part.b
        }?;
        let only = pair.ops.iter().filter_map(|row| row.op.only());
        let mine = only.filter(|(of, op)| {
            let mut keys = op.weights.iter().map(|at| part.weights[*at].key.as_str());
            *of == side && !keys.any(|key| is_alone(side, key))
        });
        let titles: Vec<String> = mine.map(|(_, op)| op.title.clone()).collect();
        (!titles.is_empty()).then(|| format!("computes {}", titles.join(", ")))
    };
    // The kind of a norm is its operation.
    let is_told = pair.part.either().is_some_and(|part| part.kind == "norm");
    if is_told && !pair.options.is_empty() {
        return None;
    }
    row(own(Side::A).as_ref(), own(Side::B).as_ref())
}

fn row(a: Option<&String>, b: Option<&String>) -> Option<Piece> {
    let row = match (a, b) {
        (Some(a), Some(b)) => Row::new(Mark::Differs, a, b),
        (Some(a), None) => Row::only(Side::A, a),
        (None, Some(b)) => Row::only(Side::B, b),
        (None, None) => return None,
    };
    Some(row.piece())
}

/// A weight that both have and that differs in more than its name and its size, which follows from others.
fn weight(row: &WeightPair<'_>) -> Option<Piece> {
    let (a, b) = row.weight.matched()?;
    let texts = [a, b].map(|weight| {
        let types = weight.types.join("/");
        let shared = if weight.is_shared { "shared" } else { "" };
        let all = [weight.key.as_str(), &types, shared];
        let all: Vec<&str> = all.into_iter().filter(|text| !text.is_empty()).collect();
        format!("weight {}", all.join(", "))
    });
    let differs =
        row.level == Level::Computation || row.level == Level::Numbers && a.types != b.types;
    differs.then(|| Row::new(Mark::of(row.level), &texts[0], &texts[1]).piece())
}

fn weight_words(weight: &Weight) -> String {
    let words = format!("weight {} [{}]", weight.key, shape(&weight.shape));
    match weight.doc.is_empty() {
        true => words,
        false => format!("{words}: {}", weight.doc),
    }
}

/// An operation that both have and that differs.
fn op(row: &OpPair<'_>) -> Option<Piece> {
    let (a, b) = row.op.matched()?;
    // Its weights are told by themselves.
    let is_told = !row.is_moved && a.title == b.title && a.weights.len() != b.weights.len();
    if row.level < Level::Numbers || is_told {
        return None;
    }
    let mark = if row.is_moved {
        Mark::Moved
    } else {
        Mark::of(row.level)
    };
    let words = [a, b].map(|op| match (row.level, op.ops.len() > 1) {
        (Level::Computation, true) if !row.is_moved => {
            let all: Vec<String> = op.ops.iter().map(|name| name.to_lowercase()).collect();
            format!("{} ({})", op.title, all.join(", "))
        }
        _ => op.title.clone(),
    });
    Some(Row::new(mark, &words[0], &words[1]).piece())
}

/// How much of a part is equal.
fn rest(pair: &PartPair<'_>) -> Option<Piece> {
    let weights = pair
        .weights
        .iter()
        .filter(|row| row.level < Level::Computation)
        .count();
    let ops = pair
        .ops
        .iter()
        .filter(|row| row.level < Level::Numbers)
        .count();
    let text = counted(weights, ops);
    (!text.is_empty()).then(|| Row::new(Mark::Equal, &text, &text).piece())
}

/// That a side has nothing of what is beside it.
pub(super) fn nothing(piece: &mut Piece, side: Side) {
    let h = piece.h;
    let empty = Rect {
        x: left(side) + 0.5,
        y: 0.5,
        w: COLUMN - 1.0,
        h: h - 1.0,
    };
    piece.push(Item::Box(empty, 8.0, "absent"));
    let middle = left(side) + COLUMN / 2.0;
    let y = h / 2.0 + 4.0;
    piece.text(middle, y, Anchor::Middle, Style::Small, "nothing here");
}

/// What only one side has, down to its weights.
pub(super) fn alone(side: Side, part: &Part, role: Option<&Role>) -> Piece {
    let mark = Mark::Only(side);
    let mut own = body(part, &title(part, role));
    let mut piece = Piece::new(BOTH, own.h);
    frame(&mut own, 0.0, COLUMN, mark.class());
    piece.put(own, left(side), 0.0);
    let h = piece.h;
    sign(&mut piece, mark, h / 2.0);
    piece
}

/// One block in the place of another.
fn instead(a: &Part, b: &Part) -> Piece {
    let bodies = [(Side::A, body(a, &a.title)), (Side::B, body(b, &b.title))];
    let h = bodies.iter().map(|(_, body)| body.h).fold(0.0, f64::max);
    let mut piece = Piece::new(BOTH, h);
    for (side, mut body) in bodies {
        body.h = h;
        frame(&mut body, 0.0, COLUMN, Mark::Only(side).class());
        piece.put(body, left(side), 0.0);
    }
    sign(&mut piece, Mark::Differs, h / 2.0);
    piece
}

/// A part that has no partner: words, formula, weights, number of operations.
fn body(part: &Part, title: &str) -> Piece {
    let mut piece = head(part, title);
    let mut y = piece.h;
    let room = COLUMN - 2.0 * PAD;
    let mut row = |text: &str| {
        for line in fitted(text, Style::Small, room) {
            y += Style::Small.leading();
            piece.text(PAD, y - 4.0, Anchor::Start, Style::Small, &line);
        }
    };
    if part.kind != "norm" {
        row(&part.formula);
    }
    for weight in part.weights.iter().take(LISTED) {
        row(&format!("\u{b7} {} [{}]", weight.key, shape(&weight.shape)));
    }
    if part.weights.len() > LISTED {
        row(&format!(
            "\u{b7} {} more weights",
            part.weights.len() - LISTED
        ));
    }
    row(&counted(0, part.ops.len()));
    piece.h = y + 8.0;
    piece
}

/// What differs in how a sublayer is put together.
pub(super) fn wire(wire: &Wire) -> Option<Piece> {
    if wire.level < Level::Numbers {
        return None;
    }
    let [a, b] = [&wire.a, &wire.b].map(|text| gives(wire.what, text));
    let is_value = matches!(wire.what, Wiring::Factor | Wiring::Side);
    let row = match (wire.a.is_empty(), wire.b.is_empty()) {
        (true, false) if is_value => Row::only(Side::B, &b),
        (false, true) if is_value => Row::only(Side::A, &a),
        _ => Row::new(Mark::of(wire.level), &a, &b),
    };
    Some(row.piece())
}

/// Room for what stands between the columns of a heading.
pub(super) fn side_text(piece: &mut Piece, side: Side, y: f64, style: Style, text: &str) -> f64 {
    let mut y = y;
    for line in fitted(text, style, COLUMN - 2.0 * PAD + GUTTER / 8.0) {
        y += style.leading();
        piece.text(left(side) + PAD, y, Anchor::Start, style, &line);
    }
    y
}
