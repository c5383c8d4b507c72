//! Shapes that several pictures share: labels, arrows, chains of fragments, drums, small boxes.

use super::fragment::{Anchor, DrawItem, Fragment, PathSegment, Point, Rect};
use super::graph_layout::layout;
use super::text::{TextStyle, cut, width};

/// Vertical gap between the fragments of a chain.
pub(super) const GAP: f64 = 26.0;
/// Maximum width of the text of a label or of an operation's box.
pub(super) const MAX_ROW: f64 = 430.0;

/// The link between consecutive fragments.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Link {
    Wire,
    /// The thick line of the hidden state.
    Spine,
}

/// Pieces one below the other, through which a value flows: each fragment starts where the one before it ends.
pub(super) fn chain(fragments: Vec<Fragment>, link: Link) -> Fragment {
    let (mut x, mut left) = (0.0, 0.0f64);
    let mut places = Vec::new();
    for fragment in &fragments {
        let [into, out] = fragment.ports();
        places.push(x - into);
        left = left.min(x - into);
        x += out - into;
    }
    let mut all = Fragment {
        ports: Some([-left, x - left]),
        ..Fragment::default()
    };
    let mut before: Option<Point> = None;
    for (fragment, place) in fragments.into_iter().zip(places) {
        let at = place - left;
        let [into, out] = fragment.ports().map(|port| at + port);
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
        all.add(at, fragment);
        before = Some((out, all.h));
    }
    all
}

/// Pieces laid out along arrows `(from, to)`, which go from earlier to later fragments, with the rectangles of the fragments.
pub(super) fn graph(fragments: Vec<Fragment>, arrows: &[(usize, usize)]) -> (Fragment, Vec<Rect>) {
    let sizes = fragments.iter().map(|p| (p.w, p.h));
    let flow = layout(&sizes.collect::<Vec<_>>(), arrows);
    let mut all = Fragment::new(flow.w, flow.h);
    flow.routes.iter().for_each(|route| arrow(&mut all, route));
    for (fragment, place) in fragments.into_iter().zip(&flow.boxes) {
        all.put(fragment, place.x, place.y);
    }
    (all, flow.boxes)
}

pub(super) fn label(text: &str, class: &'static str) -> Fragment {
    let text = cut(text, TextStyle::Small, MAX_ROW);
    let mut fragment = Fragment::new((width(&text, TextStyle::Small) + 12.0).ceil(), 18.0);
    fragment.frame(4.0, class);
    fragment.middle(fragment.w / 2.0, 13.0, TextStyle::Small, &text);
    fragment
}

/// An arrow along a route, with rounded bends.
pub(super) fn arrow(fragment: &mut Fragment, route: &[Point]) {
    let mut before: Option<Point> = None;
    let segs = route.iter().map(|(x, y)| {
        let seg = match before {
            None => PathSegment('M', vec![(*x, *y)]),
            Some((from, _)) if (from - x).abs() < 0.5 => PathSegment('L', vec![(*x, *y)]),
            Some((from, top)) => {
                let middle = f64::midpoint(top, *y);
                PathSegment('C', vec![(from, middle), (*x, middle), (*x, *y)])
            }
        };
        before = Some((*x, *y));
        seg
    });
    fragment.push(DrawItem::Path(segs.collect(), "wire"));
    route
        .last()
        .into_iter()
        .for_each(|end| head(fragment, *end));
}

/// The head of a downward arrow at a point.
pub(super) fn head(fragment: &mut Fragment, end: Point) {
    tip(fragment, end, (0.0, 1.0));
}

/// The head of an arrow at a point, with a direction along an axis.
pub(super) fn tip(fragment: &mut Fragment, (x, y): Point, (dx, dy): Point) {
    let (a, b) = (x - 6.0 * dx, y - 6.0 * dy);
    let (side, up) = (3.5 * dy, 3.5 * dx);
    fragment.outline(&[(a - side, b - up), (a + side, b + up), (x, y)], "tip");
}

/// The direction from a point to another one on the same vertical or horizontal line.
pub(super) fn toward(from: Point, to: Point) -> Point {
    let sign = |n: f64| if n.abs() > 0.5 { n.signum() } else { 0.0 };
    (sign(to.0 - from.0), sign(to.1 - from.1))
}

/// The end of the hidden state's line at a point.
pub(super) fn spine_head(fragment: &mut Fragment, (x, y): Point) {
    let corners = [(x - 8.0, y - 9.0), (x + 8.0, y - 9.0), (x, y)];
    fragment.outline(&corners, "spinetip");
}

/// The drum outline of something that is kept, as large as the fragment.
pub(super) fn drum(fragment: &mut Fragment, dip: f64) {
    let (w, h) = (fragment.w, fragment.h);
    let lid = |y: f64, down: f64| {
        PathSegment('C', vec![(w * 0.1, y + down), (w * 0.9, y + down), (w, y)])
    };
    let below = h + 0.2 * dip;
    let bottom = vec![(w * 0.9, below), (w * 0.1, below), (0.0, h - dip)];
    let body = vec![
        PathSegment('M', vec![(0.0, dip)]),
        lid(dip, -1.2 * dip),
        PathSegment('L', vec![(w, h - dip)]),
        PathSegment('C', bottom),
        PathSegment('Z', Vec::new()),
    ];
    fragment.push(DrawItem::Path(body, "drum"));
    let front = vec![PathSegment('M', vec![(0.0, dip)]), lid(dip, 1.2 * dip)];
    fragment.push(DrawItem::Path(front, "rim"));
}

/// A square box with a short text.
pub(super) fn cell(side: f64, class: &'static str, text: &str) -> Fragment {
    let mut fragment = Fragment::new(side, side);
    fragment.frame(3.0, class);
    let over = if class == "now" { "over" } else { "" };
    if !text.is_empty() {
        let (middle, y) = (side / 2.0, side / 2.0 + 4.0);
        let (style, text) = (TextStyle::Small, text.to_owned());
        fragment.push(DrawItem::Text(middle, y, Anchor::Middle, style, over, text));
    }
    fragment
}

/// A circle with a sign, centred at a point.
pub(super) fn sign(fragment: &mut Fragment, (x, y): Point, text: &str) {
    fragment.push(DrawItem::Circle(x, y, 11.0, "sign"));
    fragment.middle(x, y + 4.5, TextStyle::Title, text);
}

pub(super) fn square(x: f64, y: f64, side: f64) -> Rect {
    Rect::new(x, y, side, side)
}
