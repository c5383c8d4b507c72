//! The pictures of a page: the stack, and each kind of layers slot by slot, closed and opened.
//!
//! Every picture is a piece of `svg` whose groups have the names of what they show. A block by itself is
//! its slot's picture, seen closer: no block is drawn opened twice.

use super::badge;
use crate::inspect::diagram::ids::WHOLE;
use crate::inspect::diagram::svg::{self, Piece, escape};
use crate::inspect::diagram::{Drawing, Kind, Part, Slot};

/// Width of the pictures of execution, in pixels.
const EXECUTION: f64 = 1000.0;
/// Room on each side of a picture, for the ends of strokes.
const EDGE: f64 = 3.0;

/// All pictures as HTML.
pub(super) fn views(drawing: &Drawing) -> String {
    let mut views = Views(String::new());
    views.stack(drawing);
    for kind in &drawing.kinds {
        views.layer(drawing, kind);
    }
    for part in drawing.begin.iter().chain(&drawing.end) {
        views.stage(part);
    }
    views.0
}

struct Views(String);

impl Views {
    fn push(&mut self, text: &str) {
        self.0.push_str(text);
    }

    fn begin_view(&mut self, name: &str, label: &str) {
        let label = escape(label);
        self.push(&format!(
            "<section class=\"view\" data-view=\"{name}\" aria-label=\"{label}\">\n"
        ));
    }

    fn stack(&mut self, drawing: &Drawing) {
        self.begin_view(WHOLE, "The stack");
        self.push("<div class=\"row\">\n");
        let label = "The stack, from input to output";
        self.picture(&edged(svg::column(drawing)), "whole", label);
        let label = "Layers and numbers of the whole model";
        self.picture(&edged(svg::notes(drawing)), "notes", label);
        let name = "How it is executed";
        self.push(&format!(
            "</div>\n<section class=\"execution\" aria-label=\"{name}\">\n<h2>{name}</h2>\n"
        ));
        self.picture(&svg::execution(drawing, EXECUTION), "scenes", name);
        self.push("</section>\n</section>\n");
    }

    fn layer(&mut self, drawing: &Drawing, kind: &Kind) {
        self.begin_view(&kind.id, &format!("Layer {}: {}", kind.letter, kind.label));
        self.push(&heading(drawing, kind));
        if let Some(legend) = &drawing.overlay {
            let legend = edged(svg::legend(legend, svg::LEGEND));
            self.picture(&legend, "scale", "What the colours mean");
        }
        let begin = svg::stream("x: the hidden state, from the layer before", false);
        self.picture(&edged(begin), "stream", "The hidden state comes in");
        let room = svg::room(drawing);
        for slot in &kind.slots {
            self.slot(slot, room);
        }
        let end = svg::stream("x: to the next layer", true);
        self.picture(&edged(end), "stream", "The hidden state goes out");
        self.push("</section>\n");
    }

    /// A slot closed to a row of cards, and opened to its operations.
    fn slot(&mut self, slot: &Slot, room: f64) {
        let name = escape(&slot.name);
        self.push(&format!(
            "<section class=\"step\" aria-label=\"slot {name}\">\n<button \
             class=\"fold\" type=\"button\" aria-expanded=\"false\" title=\"expand or collapse \
             {name}\"><span class=\"sign\" aria-hidden=\"true\"></span>{name}</button>\n"
        ));
        let closed = svg::on_stream(svg::slot(slot, svg::Detail::cards(room)));
        self.picture(
            &edged(closed),
            "closed",
            &format!("{} collapsed", slot.name),
        );
        let opened = svg::on_stream(svg::slot(slot, svg::Detail::Full));
        self.picture(&edged(opened), "opened", &format!("{} expanded", slot.name));
        self.push("</section>\n");
    }

    /// A part before or after the layers.
    fn stage(&mut self, part: &Part) {
        self.begin_view(&part.id, &part.title);
        self.push("<section class=\"step open\">\n");
        self.picture(&edged(svg::opened(part)), "opened", &part.title);
        self.push("</section>\n</section>\n");
    }

    fn picture(&mut self, piece: &Piece, class: &str, label: &str) {
        let (w, h) = (piece.w.ceil(), piece.h.ceil());
        let label = escape(label);
        self.push(&format!(
            "<svg class=\"{class}\" viewBox=\"0 0 {w} {h}\" width=\"{w}\" height=\"{h}\" \
             role=\"group\" aria-label=\"{label}\">\n{}</svg>\n",
            piece.elements()
        ));
    }
}

fn edged(inner: Piece) -> Piece {
    let mut piece = Piece::new(inner.w + 2.0 * EDGE, inner.h);
    piece.put(inner, EDGE, 0.0);
    piece
}

/// Letter, label, which layers, numbers, and what opens and closes all slots.
fn heading(drawing: &Drawing, kind: &Kind) -> String {
    let mut lines = vec![svg::layers_of(drawing, kind)];
    lines.extend(kind.cost.as_ref().map(svg::cost_text));
    lines.extend(kind.when.iter().map(|when| format!("where {when}")));
    let measured = Some(kind.note.sentence()).filter(|note| !note.is_empty());
    let measured = drawing.overlay.as_ref().zip(measured);
    lines.extend(measured.map(|(legend, note)| format!("{}: {note}", legend.title)));
    lines.retain(|line| !line.is_empty());
    let lines = lines.iter().map(|line| format!("<p>{}</p>", escape(line)));
    format!(
        "<header class=\"kindhead\">{}<div><h2>{}</h2>{}</div><span class=\"folds\"><button \
         type=\"button\" data-key=\"e\">Expand all</button><button type=\"button\" \
         data-key=\"c\">Collapse all</button></span></header>\n",
        badge(&kind.letter),
        escape(&kind.label),
        lines.collect::<String>()
    )
}
