//! Shapes and texts with coordinates, and how they are written as SVG.
//!
//! Every text knows the rectangle it takes, so that tests can tell whether any two meet.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::text::{Style, width, wrap};

/// A rectangle; y grows downwards.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rect {
    /// Left.
    pub x: f64,
    /// Top.
    pub y: f64,
    /// Width.
    pub w: f64,
    /// Height.
    pub h: f64,
}

impl Rect {
    /// A rectangle by its left, top, width and height.
    pub fn new(x: f64, y: f64, w: f64, h: f64) -> Self {
        Self { x, y, w, h }
    }

    /// Whether two rectangles share more than a border.
    pub fn meets(&self, other: &Self) -> bool {
        let apart = |a: f64, n: f64, b: f64, m: f64| a + n <= b || b + m <= a;
        !apart(self.x, self.w, other.x, other.w) && !apart(self.y, self.h, other.y, other.h)
    }
}

/// Where the x of a text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// At its begin.
    Start,
    /// In its middle.
    Middle,
    /// At its end.
    End,
}

impl Anchor {
    fn class(self) -> &'static str {
        match self {
            Self::Start => "",
            Self::Middle => "m",
            Self::End => "e",
        }
    }
}

/// A piece of a line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Seg {
    /// Begin here.
    M(f64, f64),
    /// Straight to here.
    L(f64, f64),
    /// Round, with two control points.
    C([f64; 6]),
    /// Round, with one control point.
    Q([f64; 4]),
    /// Back to the begin.
    Z,
}

impl Seg {
    fn points(&self) -> Vec<(f64, f64)> {
        match self {
            Self::M(x, y) | Self::L(x, y) => vec![(*x, *y)],
            Self::C([a, b, c, d, e, f]) => vec![(*a, *b), (*c, *d), (*e, *f)],
            Self::Q([a, b, c, d]) => vec![(*a, *b), (*c, *d)],
            Self::Z => Vec::new(),
        }
    }
}

/// Something to draw.
#[derive(Clone, Debug, PartialEq)]
pub enum Item {
    /// A rectangle with round corners.
    Box(Rect, f64, &'static str),
    /// A circle: middle, radius, class.
    Circle(f64, f64, f64, &'static str),
    /// A line or an outline.
    Path(Vec<Seg>, &'static str),
    /// A text: x, base line, anchor, style, further class.
    Text(f64, f64, Anchor, Style, &'static str, String),
    /// A group begins: class, name of what it shows, and what is told of it.
    Open(&'static str, String, String),
    /// The group ends.
    Close,
}

impl Item {
    /// The rectangle of a text.
    pub fn text_rect(&self) -> Option<Rect> {
        let Self::Text(x, y, anchor, style, _, text) = self else {
            return None;
        };
        let w = width(text, *style);
        let x = match anchor {
            Anchor::Start => *x,
            Anchor::Middle => x - w / 2.0,
            Anchor::End => x - w,
        };
        // From the height of a capital to what hangs below the base line.
        Some(Rect::new(x, y - 0.8 * style.size(), w, style.size()))
    }

    /// Left, top, right and bottom of what is drawn; lines by the points they go through and towards.
    pub(super) fn bounds(&self) -> Option<[f64; 4]> {
        let of_rect = |r: &Rect| [r.x, r.y, r.x + r.w, r.y + r.h];
        match self {
            Self::Box(rect, ..) => Some(of_rect(rect)),
            Self::Circle(x, y, r, _) => Some([x - r, y - r, x + r, y + r]),
            Self::Text(..) => self.text_rect().as_ref().map(of_rect),
            Self::Path(segs, _) => segs.iter().flat_map(Seg::points).fold(None, |all, (x, y)| {
                let [a, b, c, d] = all.unwrap_or([x, y, x, y]);
                Some([a.min(x), b.min(y), c.max(x), d.max(y)])
            }),
            Self::Open(..) | Self::Close => None,
        }
    }

    fn shift(&mut self, dx: f64, dy: f64) {
        let shift = |x: &mut f64, y: &mut f64| {
            *x += dx;
            *y += dy;
        };
        match self {
            Self::Box(rect, ..) => shift(&mut rect.x, &mut rect.y),
            Self::Circle(x, y, ..) | Self::Text(x, y, ..) => shift(x, y),
            Self::Path(segs, _) => {
                for seg in segs {
                    match seg {
                        Seg::M(x, y) | Seg::L(x, y) => shift(x, y),
                        Seg::C([a, b, c, d, e, f]) => {
                            shift(a, b);
                            shift(c, d);
                            shift(e, f);
                        }
                        Seg::Q([a, b, c, d]) => {
                            shift(a, b);
                            shift(c, d);
                        }
                        Seg::Z => {}
                    }
                }
            }
            Self::Open(..) | Self::Close => {}
        }
    }
}

/// Items in a rectangle of their own that begins at 0, 0.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Piece {
    /// Width.
    pub w: f64,
    /// Height.
    pub h: f64,
    /// What is drawn, in order.
    pub items: Vec<Item>,
}

impl Piece {
    /// An empty piece of a size.
    pub fn new(w: f64, h: f64) -> Self {
        Self {
            w,
            h,
            items: Vec::new(),
        }
    }

    /// Adds one item.
    pub fn push(&mut self, item: Item) {
        self.items.push(item);
    }

    /// Adds a text that begins at `x`.
    pub fn start(&mut self, x: f64, y: f64, style: Style, text: &str) {
        self.text(x, y, Anchor::Start, style, text);
    }

    /// Adds a text whose middle is at `x`.
    pub fn middle(&mut self, x: f64, y: f64, style: Style, text: &str) {
        self.text(x, y, Anchor::Middle, style, text);
    }

    /// Adds a text that ends at `x`.
    pub fn end(&mut self, x: f64, y: f64, style: Style, text: &str) {
        self.text(x, y, Anchor::End, style, text);
    }

    /// Adds a text.
    pub fn text(&mut self, x: f64, y: f64, anchor: Anchor, style: Style, text: &str) {
        self.text_as(x, y, anchor, style, "", text);
    }

    /// Adds a text below `y` in as many lines as it needs in `room` pixels; gives their bottom.
    pub fn rows(&mut self, (x, mut y): (f64, f64), text: &str, style: Style, room: f64) -> f64 {
        for line in wrap(text, style, room) {
            y += style.leading();
            self.start(x, y - 4.0, style, &line);
        }
        y
    }

    /// Adds a text with a further class.
    pub fn text_as(
        &mut self,
        x: f64,
        y: f64,
        anchor: Anchor,
        style: Style,
        class: &'static str,
        text: &str,
    ) {
        if !text.is_empty() {
            self.push(Item::Text(x, y, anchor, style, class, text.to_owned()));
        }
    }

    /// Adds a straight or broken line.
    pub fn line(&mut self, points: &[(f64, f64)], class: &'static str) {
        let mut segs = Vec::with_capacity(points.len());
        for (i, (x, y)) in points.iter().enumerate() {
            segs.push(if i == 0 {
                Seg::M(*x, *y)
            } else {
                Seg::L(*x, *y)
            });
        }
        self.push(Item::Path(segs, class));
    }

    /// Adds another piece at a place.
    pub fn put(&mut self, piece: Self, x: f64, y: f64) {
        self.items.extend(piece.items.into_iter().map(|mut item| {
            item.shift(x, y);
            item
        }));
    }

    /// The rectangles of all texts, with the texts.
    pub fn texts(&self) -> impl Iterator<Item = (Rect, &str)> {
        self.items.iter().filter_map(|item| match item {
            Item::Text(.., text) => Some((item.text_rect()?, text.as_str())),
            _ => None,
        })
    }

    /// The piece as an SVG document.
    pub fn to_svg(&self, title: &str, desc: &str, style: &str) -> String {
        let (w, h) = (self.w.ceil(), self.h.ceil());
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {w} {h}\" width=\"{w}\" \
             height=\"{h}\" role=\"img\" aria-labelledby=\"title desc\">\n<title \
             id=\"title\">{}</title>\n<desc id=\"desc\">{}</desc>\n<style>{style}</style>\n<rect \
             class=\"paper\" width=\"{w}\" height=\"{h}\"/>\n",
            escape(title),
            escape(desc)
        );
        for item in merged(&self.items) {
            write_item(&mut out, &item, false);
        }
        out.push_str("</svg>\n");
        out
    }

    /// The piece as SVG elements of a page, whose groups have the names of what they show.
    pub fn elements(&self) -> String {
        let mut out = String::new();
        for item in merged(&self.items) {
            match item {
                Item::Open(class, id, _) if id.is_empty() => {
                    out.push_str(&format!("<g class=\"{class}\">\n"));
                }
                Item::Open(class, id, _) => {
                    out.push_str(&format!("<g class=\"{class}\" data-at=\"{id}\">\n"));
                }
                other => write_item(&mut out, &other, true),
            }
        }
        out
    }

    /// The same without what is told where the pointer rests, and without the groups of operations.
    #[must_use]
    pub fn without_words(&self) -> Self {
        let mut open = Vec::new();
        let kept = self.items.iter().filter_map(|item| match item {
            Item::Open(class, ..) => {
                let is_kept = class.starts_with("part");
                open.push(is_kept);
                is_kept.then(|| Item::Open(class, String::new(), String::new()))
            }
            Item::Close => open.pop().unwrap_or(false).then_some(Item::Close),
            other => Some(other.clone()),
        });
        Self {
            items: kept.collect(),
            ..*self
        }
    }

    /// Classes that occur.
    pub fn classes(&self) -> BTreeSet<&'static str> {
        let mut all = BTreeSet::from(["paper"]);
        for item in &self.items {
            match item {
                Item::Box(_, _, class)
                | Item::Circle(_, _, _, class)
                | Item::Path(_, class)
                | Item::Open(class, ..) => all.extend(class.split(' ')),
                Item::Text(_, _, anchor, style, class, _) => {
                    all.extend(class.split(' '));
                    all.extend([style.class(), anchor.class()]);
                }
                Item::Close => {}
            }
        }
        all
    }
}

/// Lines of a class that follow each other as one.
fn merged(items: &[Item]) -> Vec<Item> {
    let mut out: Vec<Item> = Vec::with_capacity(items.len());
    // Where the present run of lines began.
    let mut start = 0;
    for item in items {
        let Item::Path(segs, class) = item else {
            out.push(item.clone());
            start = out.len();
            continue;
        };
        let known = out[start..].iter_mut().find_map(|other| match other {
            Item::Path(known, other) if other == class => Some(known),
            _ => None,
        });
        match known {
            Some(known) => known.extend(segs),
            None => out.push(item.clone()),
        }
    }
    out
}

/// A coordinate: whole or half pixels.
fn n(value: f64) -> String {
    let halves = (value * 2.0).round() / 2.0;
    halves.to_string()
}

/// Writes an item; `is_page` says that a script fits each text into the width that was measured.
fn write_item(out: &mut String, item: &Item, is_page: bool) {
    let result = match item {
        Item::Box(r, rx, class) => writeln!(
            out,
            "<rect class=\"{class}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"{}\"/>",
            n(r.x),
            n(r.y),
            n(r.w),
            n(r.h),
            n(*rx)
        ),
        Item::Circle(x, y, r, class) => writeln!(
            out,
            "<circle class=\"{class}\" cx=\"{}\" cy=\"{}\" r=\"{}\"/>",
            n(*x),
            n(*y),
            n(*r)
        ),
        Item::Path(segs, class) => writeln!(out, "<path class=\"{class}\" d=\"{}\"/>", path(segs)),
        Item::Text(x, y, anchor, style, class, text) => {
            let all = [style.class(), anchor.class(), class];
            let all: Vec<&str> = all.into_iter().filter(|c| !c.is_empty()).collect();
            let (class, x, y) = (all.join(" "), n(*x), n(*y));
            let room = match is_page {
                true => format!(" data-w=\"{}\"", width(text, *style).ceil()),
                false => String::new(),
            };
            let text = escape(text);
            writeln!(
                out,
                "<text class=\"{class}\" x=\"{x}\" y=\"{y}\"{room}>{text}</text>"
            )
        }
        Item::Open(class, path, told) => {
            let path = match path.is_empty() {
                true => String::new(),
                false => format!(" data-path=\"{}\"", escape(path)),
            };
            let told = match told.is_empty() {
                true => String::new(),
                false => format!("<title>{}</title>", escape(told)),
            };
            writeln!(out, "<g class=\"{class}\"{path}>{told}")
        }
        Item::Close => writeln!(out, "</g>"),
    };
    debug_assert!(result.is_ok(), "writing to a string does not fail");
}

/// An outline; coordinates are those from the point before, which are shorter.
fn path(segs: &[Seg]) -> String {
    let round = |v: f64| (v * 2.0).round() / 2.0;
    let (mut x, mut y) = (0.0, 0.0);
    let mut out = String::new();
    for seg in segs {
        let relative = |points: &[f64]| -> Vec<String> {
            let from = [x, y];
            let each = points.iter().enumerate();
            each.map(|(i, v)| (round(*v) - from[i % 2]).to_string())
                .collect()
        };
        let (text, end) = match seg {
            Seg::M(a, b) => (format!("M{} {}", n(*a), n(*b)), Some((*a, *b))),
            Seg::L(a, b) if round(*a) == x => (format!("v{}", round(*b) - y), Some((*a, *b))),
            Seg::L(a, b) if round(*b) == y => (format!("h{}", round(*a) - x), Some((*a, *b))),
            Seg::L(a, b) => (
                format!("l{}", relative(&[*a, *b]).join(" ")),
                Some((*a, *b)),
            ),
            Seg::C(p) => (format!("c{}", relative(p).join(" ")), Some((p[4], p[5]))),
            Seg::Q(p) => (format!("q{}", relative(p).join(" ")), Some((p[2], p[3]))),
            // Nothing follows the end of an outline but another begin.
            Seg::Z => ("z".to_owned(), None),
        };
        out.push_str(&text);
        if let Some((a, b)) = end {
            (x, y) = (round(a), round(b));
        }
    }
    out
}

/// Text as XML content or attribute; characters that XML forbids become a sign for them.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' | '\t' => out.push(c),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}
