//! Pictures as SVG documents with a title, and a description of two or three sentences for users who cannot see them. It
//! is read aloud, so it names the contents, not how they are drawn.

use super::super::compare::Comparison;
use super::super::{Drawing, LayerKind};
use super::overlay::swatch;
use super::text::TextStyle;
use super::{Fragment, layer, stack};
use crate::describe;
use lab_base::util::wording::{bytes, capital, count};

/// Maximum number of kinds of layers that are named.
const KINDS: usize = 8;
/// Gap between two stacks side by side.
const GAP: f64 = 56.0;

/// A picture as an SVG document.
pub fn document(drawing: &Drawing, fragment: &Fragment, what: &str) -> String {
    let title = format!("{}: {what}", drawing.name);
    fragment.to_svg(&title, &description(drawing, what))
}

/// The description of a picture that shows `what` of a drawing.
fn description(drawing: &Drawing, what: &str) -> String {
    let (name, mode) = (&drawing.name, describe::mode_phrase(drawing.mode));
    let labels = drawing.kinds.iter().map(|kind| kind.label.clone());
    let mut named: Vec<String> = labels.take(KINDS).collect();
    let more = drawing.kinds.len() - named.len();
    named.extend((more > 0).then(|| format!("{more} more")));
    let mut out = format!("{name}: {mode}. {}: {}.", capital(what), named.join("; "));
    if let Some(cost) = &drawing.cost {
        let (n, weights) = (drawing.layers.len(), count(cost.params));
        out += &format!(" Layers: {n}. Weights: {weights} in {}.", bytes(cost.bytes));
    }
    if let Some(legend) = &drawing.overlay {
        out += &format!(" Coloured by: {}.", legend.title);
    }
    out
}

/// Two drawings side by side as an SVG document.
pub fn comparison(comparison: &Comparison, name: &str) -> String {
    let [a, b] = comparison.names();
    let n = comparison.findings.len();
    let desc = format!("{a} and {b} side by side, with the list of their differences: {n}.");
    compared(comparison).to_svg(name, &desc)
}

/// A kind of layer as an SVG document without a model's name: equal kinds have equal documents.
pub fn kind(kind: &LayerKind) -> String {
    let fragment = stack::framed(layer::kind(kind, None));
    let desc = "One kind of layers, down to operations and weights.";
    fragment.to_svg(&kind.label, desc)
}

/// The comparison of two drawings: their stacks side by side with the differences marked, and the list below.
pub fn compared(comparison: &Comparison) -> Fragment {
    let [a, b] = comparison.names();
    let both = comparison.drawings.each_ref().map(|drawing| {
        let column = stack::column(drawing);
        let mut fragment = stack::heading(drawing, column.w);
        fragment.skip(10.0);
        fragment.add(0.0, column);
        fragment
    });
    let room = both[0].w + GAP + both[1].w;
    let legend = [
        swatch("hot ne", "differs"),
        swatch("hot oa", &format!("only in {a}")),
        swatch("hot ob", &format!("only in {b}")),
    ];
    let mut fragment = Fragment::new(room, 0.0);
    fragment.add(0.0, Fragment::wrapped(legend.into(), (24.0, 5.0), room));
    fragment.skip(19.0);
    fragment.add(0.0, Fragment::wrapped(both.into(), (GAP, 0.0), room));
    fragment.skip(20.0);
    for (title, lines) in comparison.sections() {
        fragment.write(0.0, TextStyle::Title, title);
        for (n, line) in lines {
            let y = fragment.h + TextStyle::Line.leading() - TextStyle::Line.drop();
            let number = n.map(|n| format!("{n}.")).unwrap_or_default();
            fragment.end(24.0, y, TextStyle::Line, &number);
            fragment.write(if n.is_some() { 32.0 } else { 0.0 }, TextStyle::Line, &line);
        }
        fragment.skip(12.0);
    }
    stack::framed(fragment)
}
