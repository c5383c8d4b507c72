//! The properties of the objects that a schema describes, for formats that write each argument on its own. A schema may be
//! put together of others, and leave a choice of them: then there are several ways. Not here: the values of properties.

use serde_json::{Value, json};

/// Properties of an object, each with its schema and whether it is required.
pub(super) type Properties = Vec<(String, Value, bool)>;

const MAX_WAYS: usize = 64;

/// The properties of the objects that a schema describes, for each combination of its options; of what has too many, the
/// ones that are named outside of options.
pub(super) fn properties(schema: &Value) -> Vec<Properties> {
    let mut n_left = MAX_WAYS;
    let ways = combined(schema, schema, &mut n_left);
    ways.unwrap_or_else(|| vec![own_properties(schema)])
}

fn own_properties(schema: &Value) -> Properties {
    let required = schema["required"].as_array().into_iter().flatten();
    let required: Vec<&str> = required.filter_map(Value::as_str).collect();
    let all = schema["properties"].as_object().into_iter().flatten();
    let mut out: Properties = all
        .map(|(key, own)| (key.clone(), own.clone(), required.contains(&key.as_str())))
        .collect();
    for name in required {
        if !out.iter().any(|(key, ..)| key == name) {
            out.push((name.to_owned(), Value::Bool(true), true));
        }
    }
    out
}

/// `None` if there are too many ways, or references without an end.
fn combined(root: &Value, schema: &Value, n_left: &mut usize) -> Option<Vec<Properties>> {
    *n_left = n_left.checked_sub(1)?;
    let kinds = &schema["type"];
    let is_kind = |kind: &Value| kind == "object";
    if !kinds.is_null()
        && !is_kind(kinds)
        && !kinds.as_array().is_some_and(|k| k.iter().any(is_kind))
    {
        return Some(Vec::new());
    }
    let mut ways = vec![own_properties(schema)];
    let reference = schema["$ref"].as_str().and_then(|at| at.strip_prefix('#'));
    let target = reference.and_then(|at| root.pointer(at));
    let all = schema["allOf"].as_array().into_iter().flatten();
    let mut parts = Vec::new();
    for part in target.into_iter().chain(all) {
        parts.push(combined(root, part, n_left)?);
    }
    for name in ["anyOf", "oneOf"] {
        if let Some(options) = schema[name].as_array() {
            let mut ways = Vec::new();
            for option in options {
                ways.extend(combined(root, option, n_left)?);
            }
            parts.push(ways);
        }
    }
    for part in parts {
        let both = ways
            .iter()
            .flat_map(|way| part.iter().map(|own| joined(way, own)));
        ways = both.collect();
        if ways.len() > MAX_WAYS {
            return None;
        }
    }
    Some(ways)
}

fn joined(a: &Properties, b: &Properties) -> Properties {
    let mut out = a.clone();
    for (key, own, is_required) in b {
        match out.iter_mut().find(|(known, ..)| known == key) {
            Some((_, known, needed)) => {
                *needed |= is_required;
                if *known == Value::Bool(true) {
                    *known = own.clone();
                } else if *own != Value::Bool(true) && own != known {
                    *known = json!({ "allOf": [known, own] });
                }
            }
            None => out.push((key.clone(), own.clone(), *is_required)),
        }
    }
    out
}

/// A part of a schema, with the definitions that it may refer to.
pub(super) fn with_definitions(part: &Value, schema: &Value) -> Value {
    let mut part = part.clone();
    if let Some(fields) = part.as_object_mut() {
        for key in ["$defs", "definitions"] {
            if let Some(definitions) = schema.get(key) {
                fields.entry(key).or_insert_with(|| definitions.clone());
            }
        }
    }
    part
}

/// Whether a schema restricts a number to some values.
pub(super) fn is_bounded(schema: &Value) -> bool {
    const BOUNDS: &[&str] = &[
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "enum",
        "const",
    ];
    let is_number = schema["type"] == "integer" || schema["type"] == "number";
    is_number && BOUNDS.iter().any(|key| schema.get(key).is_some())
}
