//! The pictures of a page: the stack, and each kind of layers slot by slot, closed and opened.
//!
//! Every picture is a piece of `svg` whose groups have the names of what they show. A block by itself is
//! its slot's picture, seen closer: no block is drawn opened twice.

use super::badge;
use super::places::{Places, WHOLE};
use super::shown::{Shown, attributes, shown, unnamed};
use crate::diagram::svg::{self, Piece, escape};
use crate::diagram::{Drawing, Kind, Slot};

/// Width of the pictures of execution, in pixels.
const EXECUTION: f64 = 1000.0;

/// The pictures as HTML, and where the parts are in them.
pub(super) struct Views<'d> {
    drawing: &'d Drawing,
    places: &'d Places<'d>,
    pub(super) html: String,
    /// x, y, width and height of each part in its opened picture, in the order of [`Places::parts`].
    pub(super) rects: Vec<[f64; 4]>,
}

impl<'d> Views<'d> {
    /// All pictures.
    pub(super) fn new(drawing: &'d Drawing, places: &'d Places<'d>) -> Self {
        let mut views = Self {
            drawing,
            places,
            html: String::new(),
            rects: vec![[0.0; 4]; places.parts.len()],
        };
        views.stack();
        for (at, kind) in drawing.kinds.iter().enumerate() {
            views.layer(at, kind);
        }
        for at in places.of_kind(None) {
            views.stage(at);
        }
        views
    }

    fn push(&mut self, text: &str) {
        self.html.push_str(text);
    }

    fn begin_view(&mut self, name: &str, label: &str) {
        let label = escape(label);
        self.push(&format!(
            "<section class=\"view\" data-view=\"{name}\" aria-label=\"{label}\">\n"
        ));
    }

    fn stack(&mut self) {
        self.begin_view(WHOLE, "The stack");
        self.push("<div class=\"row\">\n");
        let whole = svg::whole(self.drawing);
        let shown = shown(&whole, self.drawing, self.places, self.places.of_kind(None));
        let groups = attributes(&whole, self.places, &shown);
        self.picture(&whole, &groups, "whole", "The stack, from input to output");
        let notes = svg::notes(self.drawing);
        self.plain(&notes, "notes", "Layers and numbers of the whole model");
        self.push("</div>\n");
        self.execution();
        self.push("</section>\n");
    }

    /// How the model is executed, below the stack.
    fn execution(&mut self) {
        let name = "How it is executed";
        self.push(&format!(
            "<section class=\"execution\" aria-label=\"{name}\">\n<h2>{name}</h2>\n"
        ));
        let scenes = svg::execution(self.drawing, EXECUTION);
        self.plain(&scenes, "scenes", name);
        self.push("</section>\n");
    }

    fn layer(&mut self, at: usize, kind: &Kind) {
        self.begin_view(
            &self.places.kinds[at],
            &format!("Layer {}: {}", kind.letter, kind.label),
        );
        self.push(&heading(self.drawing, kind));
        if let Some(legend) = svg::legend(self.drawing) {
            self.plain(&legend, "scale", "What the colours mean");
        }
        let begin = svg::stream("x: the hidden state, from the layer before", false);
        self.plain(&begin, "stream", "The hidden state comes in");
        let pieces = svg::slots(self.drawing, kind);
        for (n, (slot, pieces)) in kind.slots.iter().zip(&pieces).enumerate() {
            self.slot((at, n), slot, pieces);
        }
        let end = svg::stream("x: to the next layer", true);
        self.plain(&end, "stream", "The hidden state goes out");
        self.push("</section>\n");
    }

    fn slot(&mut self, at: (usize, usize), slot: &Slot, [closed, opened]: &[Piece; 2]) {
        let name = escape(&slot.name);
        let step = format!("{}/{}", self.places.kinds[at.0], at.1);
        self.push(&format!(
            "<section class=\"step\" data-step=\"{step}\" aria-label=\"slot {name}\">\n<button \
             class=\"fold\" type=\"button\" aria-expanded=\"false\" title=\"expand or collapse \
             {name}\"><span class=\"sign\" aria-hidden=\"true\"></span>{name}</button>\n"
        ));
        let own = self.places.of_slot(at);
        let shown = shown(closed, self.drawing, self.places, own.clone());
        let groups = attributes(closed, self.places, &shown);
        self.picture(
            closed,
            &groups,
            "closed",
            &format!("{} collapsed", slot.name),
        );
        self.opened(opened, own, &format!("{} expanded", slot.name));
        self.push("</section>\n");
    }

    /// A part before or behind the layers.
    fn stage(&mut self, at: usize) {
        let place = &self.places.parts[at];
        self.begin_view(&place.at, &place.part.title);
        self.push("<section class=\"step open\">\n");
        self.opened(&svg::opened(place.part), vec![at], &place.part.title);
        self.push("</section>\n</section>\n");
    }

    /// A picture with operations; remembers where the parts are.
    fn opened(&mut self, piece: &Piece, own: Vec<usize>, label: &str) {
        let shown = shown(piece, self.drawing, self.places, own);
        for (group, rect) in shown.iter().zip(piece.groups()) {
            if let Shown::Part(at) = group {
                self.rects[*at] = rect;
            }
        }
        let groups = attributes(piece, self.places, &shown);
        self.picture(piece, &groups, "opened", label);
    }

    fn plain(&mut self, piece: &Piece, class: &str, label: &str) {
        self.picture(piece, &unnamed(piece), class, label);
    }

    fn picture(&mut self, piece: &Piece, groups: &[String], class: &str, label: &str) {
        let (w, h) = (piece.w.ceil(), piece.h.ceil());
        let label = escape(label);
        self.push(&format!(
            "<svg class=\"{class}\" viewBox=\"0 0 {w} {h}\" width=\"{w}\" height=\"{h}\" \
             role=\"group\" aria-label=\"{label}\">\n{}</svg>\n",
            piece.elements(groups)
        ));
    }
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
