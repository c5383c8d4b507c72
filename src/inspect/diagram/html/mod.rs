//! A drawing as one HTML file with three levels: stack, layer, block.
//!
//! All layout is done by `svg`; the script only shows, hides and marks. The file loads nothing: its policy forbids
//! every source except its own style and script, which are named by their SHA-256 sums. Pictures, data and the address
//! in the browser refer to each other by the names of `ids`. Texts from models and definitions are escaped, never
//! markup.

use std::sync::LazyLock;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::{Serialize, Serializer};
use serde_json::json;
use sha2::{Digest, Sha256};

use super::ids::WHOLE;
use super::svg::{self, Fragment, escape};
use super::{BoxNote, Drawing, Kept, LayerKind, UnitBox, WeightCost};

/// The concatenated files, and their SHA-256 sum in the form of a content security policy.
fn with_sum(files: &[&str]) -> (String, String) {
    let text = files.concat();
    let sum = BASE64_STANDARD.encode(Sha256::digest(text.as_bytes()));
    (text, sum)
}

static STYLE: LazyLock<(String, String)> =
    LazyLock::new(|| with_sum(&[svg::SHEET, include_str!("page.css")]));

static SCRIPT: LazyLock<(String, String)> = LazyLock::new(|| {
    with_sum(&[
        include_str!("page.js"),
        include_str!("panel.js"),
        include_str!("search.js"),
        include_str!("keys.js"),
    ])
});

pub fn page(drawing: &Drawing) -> String {
    let ((style, style_sum), (script, script_sum)) = (&*STYLE, &*SCRIPT);
    format!(
        include_str!("page.html"),
        name = escape(&drawing.name),
        arch = escape(&drawing.arch),
        facts = facts(drawing),
        levels = levels(drawing),
        views = views(drawing),
        data = data(drawing),
        style_sum = style_sum,
        script_sum = script_sum,
        style = style,
        script = script,
    )
}

/// The properties of the whole model, as list items.
fn facts(drawing: &Drawing) -> String {
    let known = drawing.facts.iter();
    let known = known.map(|(name, value)| format!("{name} {value}"));
    let note = "no model file: sizes are parameters, T tokens".to_owned();
    let facts = known.chain(drawing.is_symbolic.then_some(note));
    let items = facts.map(|fact| format!("<li>{}</li>", escape(&fact)));
    items.collect()
}

/// Links to the stack and to each kind of layers.
fn levels(drawing: &Drawing) -> String {
    let mut out = format!("<a href=\"#{WHOLE}\">Stack</a>\n");
    for kind in &drawing.kinds {
        let (at, label, badge) = (&kind.id, escape(&kind.label), badge(&kind.letter));
        out += &format!("<a href=\"#{at}\" title=\"{label}\">{badge}<span>{label}</span></a>\n");
    }
    out
}

fn badge(letter: &str) -> String {
    format!("<b class=\"letter\">{}</b>", escape(letter))
}

/// The parts with their operations and weights as JSON, without characters that are special in markup. Properties of a
/// kind of layers are in its picture instead.
fn data(drawing: &Drawing) -> String {
    let value = json!({
        "name": drawing.name,
        "symbolic": drawing.is_symbolic,
        "measured": drawing.overlay.as_ref().map(|legend| &legend.title),
        "parts": drawing.parts().collect::<Vec<&UnitBox>>(),
    });
    let known = ['<', '>', '&', '\u{2028}', '\u{2029}'];
    known.into_iter().fold(value.to_string(), |text, c| {
        text.replace(c, &format!("\\u{:04x}", c as u32))
    })
}

impl Serialize for WeightCost {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&svg::cost_text(self))
    }
}

impl Serialize for Kept {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq([self.text.clone(), self.amounts()].concat())
    }
}

impl Serialize for BoxNote {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.sentence())
    }
}

/// Width of the pictures of execution, in pixels.
const EXECUTION: f64 = 1000.0;
/// Margin on each side of a picture, for the ends of strokes.
const EDGE: f64 = 3.0;

fn views(drawing: &Drawing) -> String {
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
