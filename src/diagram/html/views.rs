//! The pictures of a page: the stack, and each kind of layers slot by slot, closed and opened.
//!
//! Every picture is a piece of `svg`. Here its groups get the names of what they show, found by the path
//! and order in which the piece opens them. A block by itself is its slot's picture, seen closer: no
//! block is drawn opened twice.

use std::collections::VecDeque;

use super::places::{Places, WHOLE};
use super::{Further, badge};
use crate::diagram::svg::{self, Item, Piece, escape};
use crate::diagram::{Drawing, Kind};

/// The pictures as HTML, and the rectangle of each part in its opened picture.
pub(super) struct Views {
    pub(super) html: String,
    /// In the order of [`Places::parts`]: x, y, width, height.
    pub(super) rects: Vec<[f64; 4]>,
}

impl Views {
    /// All pictures.
    pub(super) fn new(drawing: &Drawing, places: &Places<'_>, further: &[Further]) -> Self {
        let mut views = Self {
            html: String::new(),
            rects: vec![[0.0; 4]; places.parts.len()],
        };
        views.stack(drawing, places, further);
        for (at, kind) in drawing.kinds.iter().enumerate() {
            views.layer(drawing, places, at, kind);
        }
        for at in places.of_kind(None) {
            views.stage(places, at);
        }
        views
    }

    fn push(&mut self, text: &str) {
        self.html.push_str(text);
    }

    fn stack(&mut self, drawing: &Drawing, places: &Places<'_>, further: &[Further]) {
        self.push(&format!(
            "<section class=\"view\" data-view=\"{WHOLE}\" aria-label=\"The stack\">\n"
        ));
        self.push("<div class=\"row\">\n");
        let whole = svg::whole(drawing);
        let groups = named(&whole, drawing, places, &places.of_kind(None));
        self.picture(&whole, &groups, "whole", "The stack, from input to output");
        let notes = svg::notes(drawing);
        self.picture(
            &notes,
            &plain(&notes),
            "notes",
            "Layers and numbers of the whole model",
        );
        self.push("</div>\n");
        for Further { title, piece } in further {
            let name = escape(title);
            self.push(&format!(
                "<section class=\"further\" aria-label=\"{name}\">\n<h2>{name}</h2>\n"
            ));
            self.picture(piece, &plain(piece), "more", title);
            self.push("</section>\n");
        }
        self.push("</section>\n");
    }

    fn layer(&mut self, drawing: &Drawing, places: &Places<'_>, at: usize, kind: &Kind) {
        let place = &places.kinds[at];
        let label = escape(&format!("Layer {}: {}", kind.letter, kind.label));
        self.push(&format!(
            "<section class=\"view\" data-view=\"{place}\" aria-label=\"{label}\">\n"
        ));
        self.push(&heading(drawing, kind));
        let begin = svg::stream("x: the stream, from the layer before", false);
        self.picture(&begin, &[], "stream", "The stream begins");
        for (n, pieces) in svg::slots(drawing, kind).into_iter().enumerate() {
            let slot = &kind.slots[n];
            let name = escape(&slot.name);
            self.push(&format!(
                "<section class=\"step\" data-step=\"{place}/{n}\" aria-label=\"slot {name}\">\n<button \
                 class=\"fold\" type=\"button\" aria-expanded=\"false\" title=\"expand or collapse \
                 {name}\"><span class=\"sign\" aria-hidden=\"true\"></span>{name}</button>\n"
            ));
            let [closed, opened] = pieces;
            let own = places.of_slot((at, n));
            let groups = named(&closed, drawing, places, &own);
            self.picture(
                &closed,
                &groups,
                "closed",
                &format!("{} collapsed", slot.name),
            );
            self.opened(&opened, drawing, places, &own, &slot.name);
            self.push("</section>\n");
        }
        let end = svg::stream("x: to the layer behind", true);
        self.picture(&end, &[], "stream", "The stream goes on");
        self.push("</section>\n");
    }

    /// A part before or behind the layers.
    fn stage(&mut self, places: &Places<'_>, at: usize) {
        let place = &places.parts[at];
        let title = escape(&place.part.title);
        self.push(&format!(
            "<section class=\"view\" data-view=\"{}\" aria-label=\"{title}\">\n<section class=\"step open\">\n",
            place.at
        ));
        let piece = svg::opened(place.part);
        let groups = self.measured(&piece, places, &[at], &[]);
        self.picture(&piece, &groups, "opened", &place.part.title);
        self.push("</section>\n</section>\n");
    }

    fn opened(
        &mut self,
        piece: &Piece,
        drawing: &Drawing,
        places: &Places<'_>,
        own: &[usize],
        name: &str,
    ) {
        let groups = self.measured(piece, places, own, &drawing.kinds);
        self.picture(piece, &groups, "opened", &format!("{name} expanded"));
    }

    /// Attributes of groups; remembers where the parts are.
    fn measured(
        &mut self,
        piece: &Piece,
        places: &Places<'_>,
        own: &[usize],
        kinds: &[Kind],
    ) -> Vec<String> {
        let shown = shown(piece, kinds, places, own);
        for (group, rect) in shown.iter().zip(piece.groups()) {
            if let Shown::Part(at) = group {
                self.rects[*at] = rect;
            }
        }
        attributes(piece, places, &shown)
    }

    fn picture(&mut self, piece: &Piece, groups: &[String], class: &str, label: &str) {
        let (w, h) = (piece.w.ceil(), piece.h.ceil());
        self.push(&format!(
            "<svg class=\"{class}\" viewBox=\"0 0 {w} {h}\" width=\"{w}\" height=\"{h}\" role=\"group\" \
             aria-label=\"{}\">\n{}</svg>\n",
            escape(label),
            piece.elements(groups)
        ));
    }
}

/// What a group of a picture shows.
#[derive(Clone, Copy)]
enum Shown {
    /// A kind of layers, a place in [`Places::kinds`].
    Kind(usize),
    /// A part, a place in [`Places::parts`].
    Part(usize),
    /// An operation of a part.
    Op(usize, usize),
    /// Nothing with a name.
    Nothing,
}

/// What each group of a picture shows, in order; `own` are the parts outside of a kind's group.
fn shown(piece: &Piece, kinds: &[Kind], places: &Places<'_>, own: &[usize]) -> Vec<Shown> {
    let mut all = Vec::new();
    // Of each open group: what it shows, the parts that may come in it, and its operations so far.
    let mut open: Vec<(Shown, VecDeque<usize>, usize)> = Vec::new();
    let mut outside: VecDeque<usize> = own.iter().copied().collect();
    for item in &piece.items {
        match item {
            Item::Open("kind", letter, _) => {
                let kind = kinds.iter().position(|kind| kind.letter == *letter);
                let parts = kind.map(|kind| places.of_kind(Some(kind)));
                let shown = kind.map_or(Shown::Nothing, Shown::Kind);
                open.push((shown, parts.unwrap_or_default().into(), 0));
                all.push(shown);
            }
            Item::Open("op", ..) => {
                let part = open.iter_mut().rev().find_map(|(shown, _, n)| match shown {
                    Shown::Part(at) => Some((*at, n)),
                    _ => None,
                });
                let shown = part.map_or(Shown::Nothing, |(at, n)| {
                    *n += 1;
                    Shown::Op(at, *n - 1)
                });
                open.push((shown, VecDeque::new(), 0));
                all.push(shown);
            }
            Item::Open(class, path, _) => {
                let of_kind = open
                    .iter_mut()
                    .rev()
                    .find(|(s, ..)| matches!(s, Shown::Kind(_)));
                let left = of_kind.map_or(&mut outside, |(_, left, _)| left);
                let is_norm = class.ends_with(" nrm");
                let is_it = |at: &usize| {
                    let part = places.parts[*at].part;
                    part.path == *path && (part.kind == "norm") == is_norm
                };
                let found = left
                    .iter()
                    .position(is_it)
                    .filter(|_| class.starts_with("part"));
                let shown = found.and_then(|at| left.remove(at));
                let shown = shown.map_or(Shown::Nothing, Shown::Part);
                open.push((shown, VecDeque::new(), 0));
                all.push(shown);
            }
            Item::Close => drop(open.pop()),
            _ => {}
        }
    }
    all
}

fn named(piece: &Piece, drawing: &Drawing, places: &Places<'_>, own: &[usize]) -> Vec<String> {
    attributes(piece, places, &shown(piece, &drawing.kinds, places, own))
}

/// Class and name of each group. A part that is one box has its name there, and not its operation.
fn attributes(piece: &Piece, places: &Places<'_>, shown: &[Shown]) -> Vec<String> {
    let groups = piece.items.windows(2).filter_map(|pair| match pair {
        [Item::Open(class, ..), next] => Some((*class, matches!(next, Item::Open("op", ..)))),
        _ => None,
    });
    let mut out = Vec::new();
    let mut inner = None;
    for ((class, holds_op), shown) in groups.zip(shown) {
        let name = match (shown, inner.take()) {
            (Shown::Part(at), _) if holds_op => {
                inner = Some(*at);
                None
            }
            (_, Some(part)) => Some(&places.parts[part].at),
            (Shown::Kind(at), None) => Some(&places.kinds[*at]),
            (Shown::Part(at), None) => Some(&places.parts[*at].at),
            (Shown::Op(at, n), None) => places.parts[*at].ops.get(*n),
            (Shown::Nothing, None) => None,
        };
        let name = name.map_or_else(String::new, |name| format!(" data-at=\"{name}\""));
        out.push(format!(" class=\"{class}\"{name}"));
    }
    out
}

/// Groups that are not named.
fn plain(piece: &Piece) -> Vec<String> {
    let classes = piece.items.iter().filter_map(|item| match item {
        Item::Open(class, ..) => Some(format!(" class=\"{class}\"")),
        _ => None,
    });
    classes.collect()
}

/// Letter, label, which layers, numbers, and what opens and closes all slots.
fn heading(drawing: &Drawing, kind: &Kind) -> String {
    let mut lines = vec![svg::told(drawing, kind)];
    lines.extend(kind.cost.as_ref().map(svg::cost));
    lines.extend(kind.when.iter().map(|when| format!("where {when}")));
    lines.retain(|line| !line.is_empty());
    let lines = lines.iter().map(|line| format!("<p>{}</p>", escape(line)));
    format!(
        "<header class=\"kindhead\">{}<div><h2>{}</h2>{}</div><span class=\"folds\"><button \
         type=\"button\" data-fold=\"all\">Expand all</button><button type=\"button\" \
         data-fold=\"none\">Collapse all</button></span></header>\n",
        badge(&kind.letter),
        escape(&kind.label),
        lines.collect::<String>()
    )
}
