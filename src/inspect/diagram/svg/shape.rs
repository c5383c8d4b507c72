//! Shapes that several pictures share: labels, arrows, chains of pieces, drums, small boxes.

use super::flow::flow;
use super::scene::{Anchor, Item, Piece, Point, Rect, Seg};
use super::text::{Style, cut, width};

/// Vertical gap between the pieces of a chain.
pub(super) const GAP: f64 = 26.0;
/// Maximum width of the text of a label or of an operation's box.
pub(super) const MAX_ROW: f64 = 430.0;

/// The link between consecutive pieces.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Link {
    /// An arrow.
    Wire,
    /// The thick line of the hidden state.
    Spine,
}

/// Pieces one below the other, through which a value flows: each piece starts where the one before it ends.
pub(super) fn chain(pieces: Vec<Piece>, link: Link) -> Piece {
    let (mut x, mut left) = (0.0, 0.0f64);
    let mut places = Vec::new();
    for piece in &pieces {
        let [into, out] = piece.ports();
        places.push(x - into);
        left = left.min(x - into);
        x += out - into;
    }
    let mut all = Piece {
        ports: Some([-left, x - left]),
        ..Piece::default()
    };
    let mut before: Option<Point> = None;
    for (piece, place) in pieces.into_iter().zip(places) {
        let at = place - left;
        let [into, out] = piece.ports().map(|port| at + port);
        if let Some(from) = before {
            all.skip(GAP);
            let to = (into, all.h);
            match link {
                Link::Wire => arrow(&mut all, &[from, from, to, to]),
                Link::Spine => {
                    all.line(&[from, (into, to.1 - 8.0)], "spine");
                    spine_head(&mut all, to);
                }
            }
        }
        all.add(at, piece);
        before = Some((out, all.h));
    }
    all
}

/// Pieces laid out along arrows `(from, to)`, which go from earlier to later pieces, with the rectangles of the pieces.
pub(super) fn graph(pieces: Vec<Piece>, arrows: &[(usize, usize)]) -> (Piece, Vec<Rect>) {
    let sizes = pieces.iter().map(|p| (p.w, p.h));
    let flow = flow(&sizes.collect::<Vec<_>>(), arrows);
    let mut all = Piece::new(flow.w, flow.h);
    flow.routes.iter().for_each(|route| arrow(&mut all, route));
    for (piece, place) in pieces.into_iter().zip(&flow.boxes) {
        all.put(piece, place.x, place.y);
    }
    (all, flow.boxes)
}

/// A text on an arrow.
pub(super) fn label(text: &str, class: &'static str) -> Piece {
    let text = cut(text, Style::Small, MAX_ROW);
    let mut piece = Piece::new((width(&text, Style::Small) + 12.0).ceil(), 18.0);
    piece.frame(4.0, class);
    piece.middle(piece.w / 2.0, 13.0, Style::Small, &text);
    piece
}

/// An arrow along a route, with rounded bends.
pub(super) fn arrow(piece: &mut Piece, route: &[Point]) {
    let mut before: Option<Point> = None;
    let segs = route.iter().map(|(x, y)| {
        let seg = match before {
            None => Seg('M', vec![(*x, *y)]),
            Some((from, _)) if (from - x).abs() < 0.5 => Seg('L', vec![(*x, *y)]),
            Some((from, top)) => {
                let middle = f64::midpoint(top, *y);
                Seg('C', vec![(from, middle), (*x, middle), (*x, *y)])
            }
        };
        before = Some((*x, *y));
        seg
    });
    piece.push(Item::Path(segs.collect(), "wire"));
    route.last().into_iter().for_each(|end| head(piece, *end));
}

/// The head of a downward arrow at a point.
pub(super) fn head(piece: &mut Piece, end: Point) {
    tip(piece, end, (0.0, 1.0));
}

/// The head of an arrow at a point, with a direction along an axis.
pub(super) fn tip(piece: &mut Piece, (x, y): Point, (dx, dy): Point) {
    let (a, b) = (x - 6.0 * dx, y - 6.0 * dy);
    let (side, up) = (3.5 * dy, 3.5 * dx);
    piece.outline(&[(a - side, b - up), (a + side, b + up), (x, y)], "tip");
}

/// The direction from a point to another one on the same vertical or horizontal line.
pub(super) fn toward(from: Point, to: Point) -> Point {
    let sign = |n: f64| if n.abs() > 0.5 { n.signum() } else { 0.0 };
    (sign(to.0 - from.0), sign(to.1 - from.1))
}

/// The end of the hidden state's line at a point.
pub(super) fn spine_head(piece: &mut Piece, (x, y): Point) {
    let corners = [(x - 8.0, y - 9.0), (x + 8.0, y - 9.0), (x, y)];
    piece.outline(&corners, "spinetip");
}

/// The drum outline of something that is kept, as large as the piece.
pub(super) fn drum(piece: &mut Piece, dip: f64) {
    let (w, h) = (piece.w, piece.h);
    let lid = |y: f64, down: f64| Seg('C', vec![(w * 0.1, y + down), (w * 0.9, y + down), (w, y)]);
    let below = h + 0.2 * dip;
    let bottom = vec![(w * 0.9, below), (w * 0.1, below), (0.0, h - dip)];
    let body = vec![
        Seg('M', vec![(0.0, dip)]),
        lid(dip, -1.2 * dip),
        Seg('L', vec![(w, h - dip)]),
        Seg('C', bottom),
        Seg('Z', Vec::new()),
    ];
    piece.push(Item::Path(body, "drum"));
    let front = vec![Seg('M', vec![(0.0, dip)]), lid(dip, 1.2 * dip)];
    piece.push(Item::Path(front, "rim"));
}

/// A square box with a short text.
pub(super) fn cell(side: f64, class: &'static str, text: &str) -> Piece {
    let mut piece = Piece::new(side, side);
    piece.frame(3.0, class);
    let over = if class == "now" { "over" } else { "" };
    if !text.is_empty() {
        let (middle, y) = (side / 2.0, side / 2.0 + 4.0);
        let (style, text) = (Style::Small, text.to_owned());
        piece.push(Item::Text(middle, y, Anchor::Middle, style, over, text));
    }
    piece
}

/// A circle with a sign, centred at a point.
pub(super) fn sign(piece: &mut Piece, (x, y): Point, text: &str) {
    piece.push(Item::Circle(x, y, 11.0, "sign"));
    piece.middle(x, y + 4.5, Style::Title, text);
}

/// A square.
pub(super) fn square(x: f64, y: f64, side: f64) -> Rect {
    Rect::new(x, y, side, side)
}
