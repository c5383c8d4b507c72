//! Shapes and texts with coordinates, their composition into fragments, and their output as SVG.
//!
//! Every text knows the rectangle that it occupies, so that tests can check for overlaps. A [`Fragment`] grows downwards:
//! [`Fragment::add`], [`Fragment::write`] and [`Fragment::skip`] continue below all of its contents.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;

use super::text::{TextStyle, width, wrap};

/// A point; y grows downwards.
pub type Point = (f64, f64);

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rect {
    pub x: f64,
    pub y: f64,
    pub w: f64,
    pub h: f64,
}

impl Rect {
    /// A rectangle by its left, top, width and height.
    pub fn new(x: f64, y: f64, w: f64, h: f64) -> Self {
        Self { x, y, w, h }
    }

    /// Whether two rectangles overlap by more than a border.
    pub fn meets(&self, other: &Self) -> bool {
        let apart = |a: f64, n: f64, b: f64, m: f64| a + n <= b || b + m <= a;
        !apart(self.x, self.w, other.x, other.w) && !apart(self.y, self.h, other.y, other.h)
    }
}

/// The position of a text relative to its x.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

impl Anchor {
    /// The class of the anchor, and the share of the text that lies left of its x.
    fn of(self) -> (&'static str, f64) {
        match self {
            Self::Start => ("", 0.0),
            Self::Middle => ("m", 0.5),
            Self::End => ("e", 1.0),
        }
    }
}

/// A segment of a path: SVG's letter for it (`M`, `L`, `C`, `Q` or `Z`) and its points; the last point is its end.
#[derive(Clone, Debug, PartialEq)]
pub struct PathSegment(pub char, pub Vec<Point>);

#[derive(Clone, Debug, PartialEq)]
pub enum DrawItem {
    /// A rectangle with rounded corners.
    Box(Rect, f64, &'static str),
    /// A circle: centre, radius, class.
    Circle(f64, f64, f64, &'static str),
    /// A line or an outline.
    Path(Vec<PathSegment>, &'static str),
    /// A text: x, baseline, anchor, style, additional class.
    Text(f64, f64, Anchor, TextStyle, &'static str, String),
    /// A picture that is stretched to a rectangle: its bytes, as JPEG.
    Picture(Rect, Arc<[u8]>),
    /// The start of a group: its class, and the name of what it shows.
    Open(&'static str, String),
    /// The end of a group.
    Close,
}

impl DrawItem {
    /// The rectangle of a text.
    pub fn text_rect(&self) -> Option<Rect> {
        let Self::Text(x, y, anchor, style, _, text) = self else {
            return None;
        };
        let w = width(text, *style);
        // From the height of a capital to the bottom of letters that descend below the baseline.
        let (left, top) = (x - w * anchor.of().1, y - 0.8 * style.size());
        Some(Rect::new(left, top, w, style.size()))
    }

    fn shift(&mut self, dx: f64, dy: f64) {
        let shift = |x: &mut f64, y: &mut f64| (*x, *y) = (*x + dx, *y + dy);
        match self {
            Self::Box(rect, ..) | Self::Picture(rect, _) => shift(&mut rect.x, &mut rect.y),
            Self::Circle(x, y, ..) | Self::Text(x, y, ..) => shift(x, y),
            Self::Path(segs, _) => {
                let points = segs.iter_mut().flat_map(|seg| &mut seg.1);
                points.for_each(|(x, y)| shift(x, y));
            }
            Self::Open(..) | Self::Close => {}
        }
    }
}

/// The background for which a standalone picture has its colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Theme {
    #[default]
    Light,
    Dark,
}

/// Items in a rectangle whose origin is 0, 0.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fragment {
    pub w: f64,
    pub h: f64,
    /// The items, in drawing order.
    pub items: Vec<DrawItem>,
    /// The x at which a value enters, and at which it leaves; `None` for the middle.
    pub ports: Option<[f64; 2]>,
    /// The colours of [`Self::to_svg`].
    pub theme: Theme,
}

impl Fragment {
    pub fn new(w: f64, h: f64) -> Self {
        Self {
            w,
            h,
            ..Self::default()
        }
    }

    pub(super) fn ports(&self) -> [f64; 2] {
        self.ports.unwrap_or([(self.w / 2.0).round(); 2])
    }

    pub fn push(&mut self, item: DrawItem) {
        self.items.push(item);
    }

    /// Adds a text that starts at `x`.
    pub fn start(&mut self, x: f64, y: f64, style: TextStyle, text: &str) {
        self.text(x, y, Anchor::Start, style, text);
    }

    /// Adds a text that is centred at `x`.
    pub fn middle(&mut self, x: f64, y: f64, style: TextStyle, text: &str) {
        self.text(x, y, Anchor::Middle, style, text);
    }

    /// Adds a text that ends at `x`.
    pub fn end(&mut self, x: f64, y: f64, style: TextStyle, text: &str) {
        self.text(x, y, Anchor::End, style, text);
    }

    fn text(&mut self, x: f64, y: f64, anchor: Anchor, style: TextStyle, text: &str) {
        if !text.is_empty() {
            self.push(DrawItem::Text(x, y, anchor, style, "", text.to_owned()));
        }
    }

    /// Adds a text below everything else, wrapped at the right border.
    pub fn write(&mut self, x: f64, style: TextStyle, text: &str) {
        for line in wrap(text, style, self.w - x) {
            self.h += style.leading();
            self.start(x, self.h - style.drop(), style, &line);
        }
    }

    /// Adds empty space below everything else.
    pub fn skip(&mut self, h: f64) {
        self.h += h;
    }

    /// Adds a fragment below everything else.
    pub fn add(&mut self, x: f64, inner: Self) {
        let (y, h) = (self.h, inner.h);
        self.w = self.w.max(x + inner.w);
        self.put(inner, x, y);
        self.h += h;
    }

    /// Adds another fragment at a position.
    pub fn put(&mut self, fragment: Self, x: f64, y: f64) {
        self.items
            .extend(fragment.items.into_iter().map(|mut item| {
                item.shift(x, y);
                item
            }));
    }

    /// Pieces side by side, in as many rows as they need within `room` pixels.
    pub(super) fn wrapped(fragments: Vec<Self>, gap: Point, room: f64) -> Self {
        let mut all = Self::default();
        let (mut x, mut y) = (0.0, 0.0);
        for fragment in fragments {
            if x > 0.0 && x + fragment.w > room {
                (x, y) = (0.0, all.h + gap.1);
            }
            all.w = all.w.max(x + fragment.w);
            all.h = all.h.max(y + fragment.h);
            let w = fragment.w;
            all.put(fragment, x, y);
            x += w + gap.0;
        }
        all
    }

    pub(super) fn frame(&mut self, rx: f64, class: &'static str) {
        let frame = Rect::new(0.0, 0.0, self.w, self.h);
        self.push(DrawItem::Box(frame, rx, class));
    }

    /// The fragment as a group, with the name of what it shows.
    #[must_use]
    pub(super) fn grouped(mut self, class: &'static str, id: &str) -> Self {
        self.items.insert(0, DrawItem::Open(class, id.to_owned()));
        self.push(DrawItem::Close);
        self
    }

    /// Adds a line through the points.
    pub fn line(&mut self, points: &[Point], class: &'static str) {
        let letters = std::iter::once('M').chain(std::iter::repeat('L'));
        let segs = points.iter().zip(letters);
        let segs = segs.map(|(point, letter)| PathSegment(letter, vec![*point]));
        self.push(DrawItem::Path(segs.collect(), class));
    }

    pub(super) fn outline(&mut self, points: &[Point], class: &'static str) {
        self.line(points, class);
        if let Some(DrawItem::Path(segs, _)) = self.items.last_mut() {
            segs.push(PathSegment('Z', Vec::new()));
        }
    }

    /// The rectangles of all texts, with their texts.
    pub fn texts(&self) -> impl Iterator<Item = (Rect, &str)> {
        self.items.iter().filter_map(|item| match item {
            DrawItem::Text(.., text) => Some((item.text_rect()?, text.as_str())),
            _ => None,
        })
    }

    /// The fragment as an SVG document.
    pub fn to_svg(&self, title: &str, desc: &str) -> String {
        let (w, h, style) = (
            self.w.ceil(),
            self.h.ceil(),
            rules(&self.classes(), self.theme),
        );
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {w} {h}\" width=\"{w}\" \
             height=\"{h}\" role=\"img\" aria-labelledby=\"title desc\">\n<title \
             id=\"title\">{}</title>\n<desc id=\"desc\">{}</desc>\n<style>{style}</style>\n<rect \
             class=\"paper\" width=\"{w}\" height=\"{h}\"/>\n{}</svg>\n",
            escape(title),
            escape(desc),
            self.elements(false)
        )
    }

    /// The fragment as SVG elements. In a page, texts have the measured width, into which a script fits them, and groups
    /// have the names of what they show.
    pub fn elements(&self, is_page: bool) -> String {
        let items = self.items.iter();
        items.map(|item| element(item, is_page)).collect()
    }

    /// The classes that occur.
    pub fn classes(&self) -> BTreeSet<&'static str> {
        let mut all = BTreeSet::from(["paper"]);
        for item in &self.items {
            match item {
                DrawItem::Box(_, _, class)
                | DrawItem::Circle(_, _, _, class)
                | DrawItem::Path(_, class)
                | DrawItem::Open(class, ..) => all.extend(class.split(' ')),
                DrawItem::Text(_, _, anchor, style, class, _) => {
                    all.extend([style.class(), anchor.of().0, class]);
                }
                DrawItem::Picture(..) | DrawItem::Close => {}
            }
        }
        all
    }
}

/// A coordinate, rounded to half pixels.
fn half(value: f64) -> f64 {
    (value * 2.0).round() / 2.0
}

/// An attribute; empty if its value is empty.
fn attribute(name: &str, value: &str) -> String {
    match value {
        "" => String::new(),
        value => format!(" {name}=\"{}\"", escape(value)),
    }
}

/// The element of an item, or the tag that begins or ends a group.
fn element(item: &DrawItem, is_page: bool) -> String {
    match item {
        DrawItem::Box(r, rx, class) => {
            let [x, y, w, h, rx] = [r.x, r.y, r.w, r.h, *rx].map(half);
            let size = format!("x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\"");
            format!("<rect class=\"{class}\" {size} rx=\"{rx}\"/>\n")
        }
        DrawItem::Circle(x, y, r, class) => {
            let [x, y, r] = [*x, *y, *r].map(half);
            format!("<circle class=\"{class}\" cx=\"{x}\" cy=\"{y}\" r=\"{r}\"/>\n")
        }
        DrawItem::Path(segs, class) => match path(segs) {
            path if path.is_empty() => path,
            path => format!("<path class=\"{class}\" d=\"{path}\"/>\n"),
        },
        DrawItem::Text(x, y, anchor, style, class, text) => {
            let room = is_page.then(|| width(text, *style).ceil());
            let room = room.map_or_else(String::new, |w| format!(" data-w=\"{w}\""));
            let all = [style.class(), anchor.of().0, class];
            let all: Vec<&str> = all.into_iter().filter(|c| !c.is_empty()).collect();
            let (class, x, y, text) = (all.join(" "), half(*x), half(*y), self::escape(text));
            format!("<text class=\"{class}\" x=\"{x}\" y=\"{y}\"{room}>{text}</text>\n")
        }
        DrawItem::Picture(r, bytes) => {
            let [x, y, w, h] = [r.x, r.y, r.w, r.h].map(half);
            let size = format!(
                "x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\" preserveAspectRatio=\"none\""
            );
            let data = BASE64_STANDARD.encode(bytes);
            format!("<image {size} href=\"data:image/jpeg;base64,{data}\"/>\n")
        }
        DrawItem::Open(class, id) => {
            let id = attribute("data-at", if is_page { id } else { "" });
            format!("<g class=\"{class}\"{id}>\n")
        }
        DrawItem::Close => "</g>\n".into(),
    }
}

/// A path without zero-length lines, which some renderers do not draw; empty if nothing else remains.
fn path(segs: &[PathSegment]) -> String {
    let (mut out, mut is_line, mut last) = (String::new(), false, None);
    for PathSegment(letter, points) in segs {
        let points: Vec<Point> = points.iter().map(|(x, y)| (half(*x), half(*y))).collect();
        if *letter == 'L' && points.last() == last.as_ref() {
            continue;
        }
        is_line |= *letter != 'M';
        last = points.last().copied().or(last);
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x} {y}")).collect();
        out += &format!("{letter}{}", points.join(" "));
    }
    if is_line { out } else { String::new() }
}

/// Text as XML content or attribute. Characters that XML forbids are replaced.
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

/// The style sheet: fonts, lines and colours. The first rule is the table of colours, each with a value for light and for
/// dark backgrounds. A page uses the sheet unchanged; its colours follow `color-scheme`. A standalone picture gets the
/// values of its theme, because many viewers support neither variables nor media queries.
pub const SHEET: &str = include_str!("style.css");

/// The rules for the classes that occur in a picture, with the colours of a theme.
fn rules(classes: &BTreeSet<&str>, theme: Theme) -> String {
    let is_used = |selector: &&str| {
        let mut names = selector.split(['.', ' ']).filter(|name| !name.is_empty());
        names.all(|name| ["text", "*"].contains(&name) || classes.contains(name))
    };
    let mut rules = SHEET.split('}').filter_map(|rule| rule.split_once('{'));
    let colours = colours(rules.next().map_or("", |(_, table)| table), theme);
    let mut out = String::new();
    for (selectors, body) in rules {
        let used: Vec<&str> = selectors.trim().split(',').filter(is_used).collect();
        if used.is_empty() {
            continue;
        }
        let selectors = used.join(",");
        let value = |body: String, (name, value): (&&str, &&str)| {
            body.replace(&format!("var({name})"), value)
        };
        let body = colours.iter().fold(body.to_owned(), value);
        out.push_str(&format!("{selectors}{{{body}}}"));
    }
    out
}

/// The names of the colours, with their values in a theme.
fn colours(table: &str, theme: Theme) -> HashMap<&str, &str> {
    let entries = table.split(';').filter_map(|entry| {
        let (name, value) = entry.trim().split_once(':')?;
        let values = value.strip_prefix("light-dark(")?.strip_suffix(')')?;
        let (light, dark) = values.split_once(',')?;
        let value = match theme {
            Theme::Light => light,
            Theme::Dark => dark,
        };
        Some((name, value))
    });
    entries.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_colour_is_defined_and_used() {
        let (table, rules) = SHEET.split_once('}').expect("a table");
        let colours = colours(table.trim_start_matches(":root{"), Theme::Light);
        let named = |text: &str| -> Vec<String> {
            let parts = text.split("var(").skip(1);
            let names = parts.filter_map(|part| part.split(')').next());
            names.map(str::to_owned).collect()
        };
        assert!(colours.len() > 20);
        for name in named(rules) {
            assert!(colours.contains_key(name.as_str()), "{name}");
        }
        for name in colours.keys() {
            assert!(rules.contains(&format!("var({name})")), "{name}");
        }
    }

    #[test]
    fn a_dark_picture_has_the_dark_colours_only() {
        let mut piece = Fragment::new(10.0, 10.0);
        piece.frame(0.0, "frame");
        let light = piece.to_svg("a", "b");
        piece.theme = Theme::Dark;
        let dark = piece.to_svg("a", "b");
        assert!(light.contains(".paper{fill:#fff}") && !light.contains("#12161d"));
        assert!(dark.contains(".paper{fill:#12161d}") && !dark.contains("#fff"));
        assert!(!dark.contains("var("), "{dark}");
    }
}
