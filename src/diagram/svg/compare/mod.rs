//! A comparison as a picture: in words, the patterns of both, then every kind of layers side by side.
//!
//! What is equal is small and quiet. What differs has a colour, a sign and a word, so that none of them
//! is needed to see it.

mod part;
mod pattern;
mod row;

use super::scene::{Anchor, Item, Piece, Rect, Seg};
use super::stack::framed;
use super::text::{Style, width};
use crate::arch::Join;
use crate::diagram::compare::{
    Comparison, Finding, KindPair, Level, PartPair, Side, Sublayer, Told, model_rows,
};

use part::side_text;
use row::{BOTH, COLUMN, Mark, PAD, Row, bare, fitted, left, sign, stacked};

/// Beside the columns, for the stream.
const MARGIN: f64 = 46.0;
/// Where the stream is within it.
const SPINE: f64 = 16.0;
const WIDTH: f64 = BOTH + 2.0 * MARGIN;
/// Differences that are told in words; the command line tells all.
const TOLD: usize = 14;
/// Between rows of a sublayer, and between sublayers.
const GAP: f64 = 8.0;
const APART: f64 = 30.0;

/// The picture.
pub(super) fn picture(comparison: &Comparison<'_>) -> Piece {
    let names = comparison.names();
    let mut all = vec![
        heading(comparison, &names),
        told(comparison.findings(), &names),
    ];
    all.push(pattern::patterns(comparison, &names));
    all.extend(stages("Before the layers", &comparison.begin));
    for (at, pair) in comparison.kinds.iter().enumerate() {
        all.push(kind(at + 1, pair));
    }
    all.extend(stages("Behind the layers", &comparison.end));
    all.extend(numbers(comparison));
    framed(stacked(all, 28.0))
}

/// The two names, what is known of both, and what the signs mean.
fn heading(comparison: &Comparison<'_>, names: &[String; 2]) -> Piece {
    let mut piece = Piece::new(WIDTH, 0.0);
    let mut bottom: f64 = 0.0;
    for side in [Side::A, Side::B] {
        let drawing = comparison.drawing(side);
        let letter = if side == Side::A { "A" } else { "B" };
        let badge = Rect {
            x: MARGIN + left(side),
            y: 0.0,
            w: 34.0,
            h: 34.0,
        };
        piece.push(Item::Box(badge, 8.0, Mark::Only(side).class()));
        let x = badge.x + 17.0;
        piece.text(x, 24.0, Anchor::Middle, Style::Heading, letter);
        let room = COLUMN - 46.0;
        let mut y = 0.0;
        for line in fitted(&names[side as usize], Style::Heading, room) {
            y += 24.0;
            piece.text(x + 29.0, y, Anchor::Start, Style::Heading, &line);
        }
        let facts = drawing.facts.iter();
        let facts: Vec<String> = facts
            .map(|(name, value)| format!("{name} {value}"))
            .collect();
        let text = match drawing.is_symbolic {
            true => format!(
                "definition {}, without a file and its numbers",
                drawing.arch
            ),
            false => format!(
                "architecture {} \u{b7} {}",
                drawing.arch,
                facts.join(" \u{b7} ")
            ),
        };
        for line in fitted(&text, Style::Line, room) {
            y += Style::Line.leading();
            piece.text(x + 29.0, y + 4.0, Anchor::Start, Style::Line, &line);
        }
        bottom = bottom.max(y + 4.0);
    }
    piece.h = bottom + 14.0;
    legend(&mut piece);
    piece
}

fn legend(piece: &mut Piece) {
    let y = piece.h + 14.0;
    let mut x = MARGIN;
    let marks = [
        (Mark::Equal, "equal in both"),
        (Mark::Differs, "computed otherwise"),
        (Mark::Moved, "at another place"),
        (Mark::Only(Side::A), "only in A"),
        (Mark::Only(Side::B), "only in B"),
        (Mark::Number, "another number"),
        (Mark::Name, "another name"),
    ];
    for (mark, words) in marks {
        let chip = Rect {
            x,
            y: y - 14.0,
            w: 22.0,
            h: 20.0,
        };
        let class = if mark == Mark::Equal || mark == Mark::Name {
            "quiet"
        } else {
            mark.class()
        };
        piece.push(Item::Box(chip, 5.0, class));
        piece.text(x + 11.0, y + 1.0, Anchor::Middle, Style::Title, mark.sign());
        piece.text(x + 28.0, y, Anchor::Start, Style::Small, words);
        x += 28.0 + width(words, Style::Small) + 22.0;
    }
    piece.h = y + 8.0;
}

/// What is computed otherwise, in words.
fn told(findings: &[Finding], names: &[String; 2]) -> Piece {
    let differing = findings.iter().filter(|f| f.level == Level::Computation);
    let all: Vec<&Finding> = differing.collect();
    let mut piece = Piece::new(WIDTH, 0.0);
    let mut y = 8.0;
    let room = BOTH - 2.0 * PAD - 26.0;
    for finding in all.iter().take(TOLD) {
        let mark = match finding.told {
            Told::Only(side, _) => Mark::Only(side),
            _ => Mark::Differs,
        };
        let chip = Rect {
            x: MARGIN + PAD,
            y: y + 2.0,
            w: 18.0,
            h: 18.0,
        };
        piece.push(Item::Box(chip, 4.0, mark.class()));
        piece.text(
            chip.x + 9.0,
            y + 16.0,
            Anchor::Middle,
            Style::Title,
            mark.sign(),
        );
        for line in fitted(&bare(&finding.sentence(names)), Style::Line, room) {
            y += Style::Line.leading();
            piece.text(chip.x + 28.0, y - 2.0, Anchor::Start, Style::Line, &line);
        }
        y += 7.0;
    }
    let rest = match all.len() {
        0 => "Both compute the same.".to_owned(),
        n if n > TOLD => format!("and {} more, marked below", n - TOLD),
        _ => String::new(),
    };
    if !rest.is_empty() {
        y += Style::Line.leading();
        piece.text(MARGIN + PAD, y - 2.0, Anchor::Start, Style::Line, &rest);
        y += 7.0;
    }
    piece.h = y + 4.0;
    let panel = Rect {
        x: MARGIN,
        y: 0.0,
        w: BOTH,
        h: piece.h,
    };
    piece.items.insert(0, Item::Box(panel, 10.0, "frame"));
    piece
}

/// Parts before or behind the layers.
fn stages(title: &str, pairs: &[PartPair<'_>]) -> Option<Piece> {
    let mut rows: Vec<Piece> = vec![caption(title)];
    rows.extend(pairs.iter().map(|pair| part::part(pair, false)));
    (rows.len() > 1).then(|| inset(stacked(rows, GAP)))
}

fn caption(title: &str) -> Piece {
    let mut piece = Piece::new(BOTH, 20.0);
    piece.text(0.0, 14.0, Anchor::Start, Style::Title, title);
    piece
}

/// Both columns with their margins.
fn inset(inner: Piece) -> Piece {
    let mut piece = Piece::new(WIDTH, inner.h);
    piece.put(inner, MARGIN, 0.0);
    piece
}

/// A kind of layers: two streams with what leaves and rejoins them.
fn kind(number: usize, pair: &KindPair<'_>) -> Piece {
    let mut piece = inset(kind_heading(number, pair));
    let top = piece.h + 6.0;
    let mut y = top + 14.0;
    let mut spans: [Vec<Span>; 2] = [Vec::new(), Vec::new()];
    for sublayer in &pair.sublayers {
        let rows = rows(sublayer, pair.kind.matched().is_some());
        let h = rows.h;
        piece.put(rows, MARGIN, y);
        let sides = [(&sublayer.at.a, 0), (&sublayer.at.b, 1)];
        for (place, side) in sides {
            if let Some(place) = place {
                let join = place.slot.join;
                Span::add(&mut spans[side], place.slot_at, join, y, y + h);
            }
        }
        y += h + APART;
    }
    piece.h = y - APART + 42.0;
    let bottom = piece.h;
    for (side, spans) in [Side::A, Side::B].into_iter().zip(&spans) {
        if !spans.is_empty() {
            stream(&mut piece, side, top, bottom, spans);
        }
    }
    piece
}

fn kind_heading(number: usize, pair: &KindPair<'_>) -> Piece {
    let mut piece = Piece::new(BOTH, 0.0);
    let mut bottom: f64 = 44.0;
    for (side, kind) in [(Side::A, pair.kind.a), (Side::B, pair.kind.b)] {
        let (title, layers) = match kind {
            Some(kind) => (
                format!("Kind {number}: {}", kind.label),
                where_text(&kind.when),
            ),
            None => (format!("Kind {number}: no such layers"), String::new()),
        };
        let y = side_text(&mut piece, side, 2.0, Style::Title, &title);
        bottom = bottom.max(side_text(&mut piece, side, y, Style::Small, &layers) + 10.0);
    }
    let mark = match pair.kind.only() {
        Some((side, _)) => Mark::Only(side),
        None => Mark::of(pair.level()),
    };
    piece.h = bottom;
    sign(&mut piece, mark, 18.0);
    let bar = Rect {
        x: 0.0,
        y: 0.0,
        w: BOTH,
        h: bottom,
    };
    piece.items.insert(0, Item::Box(bar, 8.0, "badge"));
    piece
}

/// Under which conditions layers are of a kind.
fn where_text(when: &[String]) -> String {
    match when.is_empty() {
        true => String::new(),
        false => format!("where {}", when.join(", ")),
    }
}

/// Everything of a sublayer; `is_known` says whether the other side has layers of the kind at all.
fn rows(sublayer: &Sublayer<'_>, is_known: bool) -> Piece {
    if let Some((side, _)) = sublayer.at.only() {
        let parts = sublayer.parts.iter();
        let parts = parts.filter_map(|pair| {
            let (_, part) = pair.part.only()?;
            Some(part::alone(side, part, pair.role.either()))
        });
        let mut piece = stacked(parts.collect(), GAP);
        if is_known {
            part::nothing(&mut piece, side.other());
        }
        return piece;
    }
    let mut rows = part::parts(sublayer);
    rows.extend(sublayer.wiring.iter().filter_map(part::wire));
    stacked(rows, GAP)
}

/// From where to where a slot goes.
struct Span {
    slot: usize,
    join: Join,
    top: f64,
    bottom: f64,
}

impl Span {
    /// Adds a piece of a slot, to the last span if that is of the same slot.
    fn add(all: &mut Vec<Self>, slot: usize, join: Join, top: f64, bottom: f64) {
        match all.last_mut() {
            Some(last) if last.slot == slot => last.bottom = bottom,
            _ => all.push(Self {
                slot,
                join,
                top,
                bottom,
            }),
        }
    }
}

/// The stream of a side, at its outer edge.
fn stream(piece: &mut Piece, side: Side, top: f64, bottom: f64, spans: &[Span]) {
    // From the stream inwards.
    let (x, edge, way) = match side {
        Side::A => (SPINE, MARGIN, 1.0),
        Side::B => (WIDTH - SPINE, WIDTH - MARGIN, -1.0),
    };
    piece.line(&[(x, top), (x, bottom - 8.0)], "spine");
    super::part::spine_head(piece, x, bottom);
    for span in spans {
        let (out, back) = (span.top + 12.0, span.bottom + 12.0);
        piece.push(Item::Circle(x, out, 4.0, "tip"));
        piece.line(&[(x, out), (edge - 1.0 * way, out)], "wire");
        tip(piece, edge, out, way);
        let turn = vec![
            Seg::M(edge + 24.0 * way, span.bottom),
            Seg::L(edge + 24.0 * way, back - 6.0),
            Seg::Q([edge + 24.0 * way, back, edge + 18.0 * way, back]),
            Seg::L(x + 14.0 * way, back),
        ];
        piece.push(Item::Path(turn, "wire"));
        tip(piece, x + 12.0 * way, back, -way);
        piece.push(Item::Circle(x, back, 11.0, "sign"));
        let sign = if span.join == Join::Add { "+" } else { "=" };
        piece.text(x, back + 4.5, Anchor::Middle, Style::Title, sign);
    }
}

/// The head of an arrow to the right (1) or to the left (-1).
fn tip(piece: &mut Piece, x: f64, y: f64, way: f64) {
    let segs = vec![
        Seg::M(x - 6.0 * way, y - 3.5),
        Seg::L(x - 6.0 * way, y + 3.5),
        Seg::L(x, y),
        Seg::Z,
    ];
    piece.push(Item::Path(segs, "tip"));
}

/// Numbers of the whole models that are other ones; those of parts are told with them.
fn numbers(comparison: &Comparison<'_>) -> Option<Piece> {
    let rows = model_rows(comparison);
    if rows.is_empty() {
        return None;
    }
    let pieces = rows.iter().map(|[what, a, b]| {
        let said = |value: &str| match value.is_empty() {
            true => String::new(),
            false => format!("{what}: {value}"),
        };
        Row::new(Mark::Number, &said(a), &said(b)).piece()
    });
    let mut all = vec![caption("Other numbers")];
    all.extend(pieces);
    Some(inset(stacked(all, 2.0)))
}

#[cfg(test)]
mod tests {
    use super::row::GUTTER;
    use super::*;

    #[test]
    fn signs_and_words_fit_between_the_columns() {
        let marks = [
            Mark::Equal,
            Mark::Name,
            Mark::Number,
            Mark::Differs,
            Mark::Moved,
            Mark::Only(Side::A),
            Mark::Only(Side::B),
        ];
        for mark in marks {
            assert!(
                18.0 + width(mark.word(), Style::Small) <= GUTTER,
                "{mark:?}"
            );
        }
    }
}
