//! What a page knows of what it shows, as JSON that can stand within a page.
//!
//! Texts are those of the drawing; nothing is computed here. A page shows them as text, never as markup.

use serde_json::{Value, json};

use super::places::{Place, Places};
use crate::diagram::overlay::Note;
use crate::diagram::{Drawing, Op, Part, Weight, svg};

/// All of it: kinds of layers, parts with their operations and weights, the text of the definition.
///
/// `rects` has, for each part, the rectangle of its opened picture.
pub(super) fn data(
    drawing: &Drawing,
    places: &Places<'_>,
    rects: &[[f64; 4]],
    (path, text): (&str, &str),
) -> Value {
    let kinds = places.kinds.iter().zip(&drawing.kinds).map(|(at, kind)| {
        json!({
            "at": at,
            "letter": kind.letter,
            "label": kind.label,
            "told": svg::told(drawing, kind),
            "cost": kind.cost.as_ref().map(svg::cost),
            "when": kind.when,
            "note": note(kind.note.as_ref()),
        })
    });
    let parts = places.parts.iter().zip(rects);
    json!({
        "name": drawing.name,
        "arch": drawing.arch,
        "symbolic": drawing.is_symbolic,
        "measured": drawing.overlay.as_ref().map(|legend| &legend.title),
        "definition": { "path": path, "text": text },
        "kinds": kinds.collect::<Vec<Value>>(),
        "parts": parts.map(|(place, rect)| part(place, rect, drawing.is_symbolic)).collect::<Vec<Value>>(),
    })
}

/// JSON that a page can hold in a script element: without a character that markup knows.
pub(super) fn quoted(value: &Value) -> String {
    let mut out = String::new();
    for c in value.to_string().chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                out.push_str(&format!("\\u{:04x}", c as u32));
            }
            c => out.push(c),
        }
    }
    out
}

fn part(place: &Place<'_>, rect: &[f64; 4], is_symbolic: bool) -> Value {
    let part = place.part;
    let ops = place.ops.iter().zip(&part.ops);
    let weights = place.weights.iter().zip(&part.weights);
    json!({
        "at": place.at,
        "kind": place.slot.map(|(kind, _)| kind),
        "slot": place.slot.map(|(_, slot)| slot),
        "block": part.kind,
        "title": part.title,
        "line": part.line,
        "formula": part.formula,
        "facts": part.facts,
        "cost": part.cost.as_ref().map(svg::cost),
        "kept": kept(part),
        "note": note(part.note.as_ref()),
        "layers": (!is_symbolic).then_some(part.paths.len()),
        "source": part.source_line,
        "rect": rect.map(f64::round),
        "ops": ops.map(|(at, op)| self::op(at, op)).collect::<Vec<Value>>(),
        "weights": weights.map(|(at, weight)| self::weight(at, weight, is_symbolic)).collect::<Vec<Value>>(),
    })
}

/// What a part keeps between passes.
fn kept(part: &Part) -> Vec<String> {
    let kept = &part.kept;
    [kept.text.clone(), kept.amounts()].concat()
}

/// What a measurement says.
fn note(note: Option<&Note>) -> Option<String> {
    let note = note?;
    let first = note
        .first
        .as_ref()
        .map(|first| format!("first difference: {first}"));
    let said: Vec<String> = [note.text.clone()]
        .into_iter()
        .chain(first)
        .filter(|text| !text.is_empty())
        .collect();
    (!said.is_empty()).then(|| said.join("; "))
}

fn op(at: &str, op: &Op) -> Value {
    json!({
        "at": at,
        "title": op.title,
        "ops": op.ops,
        "shape": svg::dims(&op.result),
        "value": op.value,
        "weights": op.weights,
        "note": note(op.note.as_ref()),
    })
}

fn weight(at: &str, weight: &Weight, is_symbolic: bool) -> Value {
    json!({
        "at": at,
        "name": weight.name,
        "key": weight.key,
        "doc": weight.doc,
        "shape": svg::dims(&weight.shape),
        "types": weight.types,
        "cost": weight.cost.as_ref().map(svg::cost),
        "shared": weight.is_shared,
        "tensors": (!is_symbolic).then_some(weight.tensors.len()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_text_cannot_end_its_element() {
        let value = json!({ "a": "</script><!-- & \u{2028}" });
        let text = quoted(&value);
        assert!(!text.contains(['<', '>', '&', '\u{2028}']));
        assert_eq!(serde_json::from_str::<Value>(&text).ok(), Some(value));
    }
}
