//! The pictures of a page: the stack, and each kind of layers with its operations and weights.
//!
//! Every picture is a fragment of `svg` whose groups have the names of what they show. A single block is shown by
//! zooming into its layer's picture: no opened block is drawn twice.

use super::badge;
use crate::diagram::ids::WHOLE;
use crate::diagram::svg::{self, Fragment, escape};
use crate::diagram::{Drawing, LayerKind, UnitBox};

/// Width of the pictures of execution, in pixels.
const EXECUTION: f64 = 1000.0;
/// Margin on each side of a picture, for the ends of strokes.
const EDGE: f64 = 3.0;

pub(super) fn views(drawing: &Drawing) -> String {
    let kinds = drawing.kinds.iter().map(|kind| layer(drawing, kind));
    let stages = drawing.begin.iter().chain(&drawing.end).map(stage);
    stack(drawing) + &kinds.chain(stages).collect::<String>()
}

fn view(name: &str, label: &str, inside: &str) -> String {
    let label = escape(label);
    format!(
        "<section class=\"view\" data-view=\"{name}\" aria-label=\"{label}\">\n{inside}</section>\n"
    )
}

fn stack(drawing: &Drawing) -> String {
    let name = "How it is executed";
    let column = "The stack, from input to output";
    let notes = "Layers and numbers of the whole model";
    let inside = format!(
        "<div class=\"row\">\n{}{}</div>\n<section class=\"execution\" aria-label=\"{name}\">\n\
         <h2>{name}</h2>\n{}</section>\n",
        picture(svg::column(drawing), "whole", column),
        picture(svg::notes(drawing), "notes", notes),
        bare(&svg::execution(drawing, EXECUTION), "scenes", name),
    );
    view(WHOLE, "The stack", &inside)
}

fn layer(drawing: &Drawing, kind: &LayerKind) -> String {
    let mut inside = heading(drawing, kind);
    if let Some(legend) = &drawing.overlay {
        let legend = svg::legend(legend, svg::LEGEND);
        inside += &picture(legend, "scale", "What the colours mean");
    }
    let label = format!("Layer {}: {}", kind.letter, kind.label);
    inside += &picture(svg::slots(kind), "opened", &label);
    view(&kind.id, &label, &inside)
}

/// The picture of a part before or after the layers.
fn stage(part: &UnitBox) -> String {
    let opened = picture(svg::opened(part), "opened", &part.title);
    view(&part.id, &part.title, &opened)
}

fn picture(inner: Fragment, class: &str, label: &str) -> String {
    let mut fragment = Fragment::new(inner.w + 2.0 * EDGE, inner.h);
    fragment.put(inner, EDGE, 0.0);
    bare(&fragment, class, label)
}

fn bare(fragment: &Fragment, class: &str, label: &str) -> String {
    let (w, h) = (fragment.w.ceil(), fragment.h.ceil());
    format!(
        "<svg class=\"{class}\" viewBox=\"0 0 {w} {h}\" width=\"{w}\" height=\"{h}\" role=\"group\" \
         aria-label=\"{}\">\n{}</svg>\n",
        escape(label),
        fragment.elements(true)
    )
}

fn heading(drawing: &Drawing, kind: &LayerKind) -> String {
    let mut lines = vec![svg::layers_of(drawing, kind)];
    lines.extend(kind.cost.as_ref().map(svg::cost_text));
    let measured = Some(kind.note.sentence()).filter(|note| !note.is_empty());
    let measured = drawing.overlay.as_ref().zip(measured);
    lines.extend(measured.map(|(legend, note)| format!("{}: {note}", legend.title)));
    lines.retain(|line| !line.is_empty());
    let lines = lines.iter().map(|line| format!("<p>{}</p>", escape(line)));
    format!(
        "<header class=\"kindhead\">{}<div><h2>{}</h2>{}</div></header>\n",
        badge(&kind.letter),
        escape(&kind.label),
        lines.collect::<String>()
    )
}
