//! What a page knows of what it shows, as JSON that can stand within a page.
//!
//! Texts are those of the drawing; nothing is computed here. A page shows them as text, never as markup.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::inspect::diagram::overlay::Note;
use crate::inspect::diagram::{Drawing, Op, Part, Weight, svg};

/// All of it: kinds of layers, parts with their operations and weights, the text of the definition.
///
/// `rects` has the rectangle of each part in its opened picture, by its name.
pub(super) fn data(
    drawing: &Drawing,
    rects: &HashMap<String, [f64; 4]>,
    (path, text): (&str, &str),
) -> Value {
    let kinds = drawing.kinds.iter().map(|kind| {
        json!({
            "at": kind.id,
            "letter": kind.letter,
            "label": kind.label,
            "told": svg::layers_of(drawing, kind),
            "cost": kind.cost.as_ref().map(svg::cost_text),
            "when": kind.when,
            "note": note(&kind.note),
        })
    });
    let one = |part: &Part, place: Option<(usize, usize)>| {
        let rect = rects.get(&part.id).copied().unwrap_or_default();
        self::part(part, place, rect, drawing.is_symbolic)
    };
    let mut parts: Vec<Value> = drawing.begin.iter().map(|part| one(part, None)).collect();
    for (kind, own) in drawing.kinds.iter().enumerate() {
        for (slot, own) in own.slots.iter().enumerate() {
            parts.extend(own.parts().map(|part| one(part, Some((kind, slot)))));
        }
    }
    parts.extend(drawing.end.iter().map(|part| one(part, None)));
    json!({
        "name": drawing.name,
        "arch": drawing.arch,
        "symbolic": drawing.is_symbolic,
        "measured": drawing.overlay.as_ref().map(|legend| &legend.title),
        "definition": { "path": path, "text": text },
        "kinds": kinds.collect::<Vec<Value>>(),
        "parts": parts,
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

fn part(part: &Part, place: Option<(usize, usize)>, rect: [f64; 4], is_symbolic: bool) -> Value {
    json!({
        "at": part.id,
        "kind": place.map(|(kind, _)| kind),
        "slot": place.map(|(_, slot)| slot),
        "block": part.kind,
        "title": part.title,
        "line": part.line,
        "formula": part.formula,
        "facts": part.facts,
        "cost": part.cost.as_ref().map(svg::cost_text),
        "kept": kept(part),
        "note": note(&part.note),
        "layers": (!is_symbolic).then_some(part.paths.len()),
        "source": part.source_line,
        "rect": rect.map(f64::round),
        "ops": part.ops.iter().map(op).collect::<Vec<Value>>(),
        "weights": part.weights.iter().map(|own| weight(own, is_symbolic)).collect::<Vec<Value>>(),
    })
}

/// What a part keeps between passes.
fn kept(part: &Part) -> Vec<String> {
    let kept = &part.kept;
    [kept.text.clone(), kept.amounts()].concat()
}

/// What a measurement says.
fn note(note: &Note) -> Option<String> {
    let first = note.first.as_ref();
    let first = first.map(|first| format!("first difference: {first}"));
    let mut all = vec![note.text.clone(), first.unwrap_or_default()];
    all.retain(|text| !text.is_empty());
    (!all.is_empty()).then(|| all.join("; "))
}

fn op(op: &Op) -> Value {
    json!({
        "at": op.id,
        "title": op.title,
        "ops": op.ops,
        "shape": svg::dims(&op.result),
        "value": op.value,
        "weights": op.weights,
        "note": note(&op.note),
    })
}

fn weight(weight: &Weight, is_symbolic: bool) -> Value {
    json!({
        "at": weight.id,
        "name": weight.name,
        "key": weight.key,
        "doc": weight.doc,
        "shape": svg::dims(&weight.shape),
        "types": weight.types,
        "cost": weight.cost.as_ref().map(svg::cost_text),
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
