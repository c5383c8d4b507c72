//! Checks of a JSON Schema before the library gets it, so that refusals name the place.
//!
//! The library names keywords that it cannot enforce, but not where they are. Here the parts of a
//! schema that a completion can reach are walked, and the first fault is reported with its JSON pointer.
//! Keywords that no draft of JSON Schema knows are annotations, as the specification says.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::Error;

/// Keywords of the specification that are not enforced.
const UNSUPPORTED: &[&str] = &[
    "$dynamicRef",
    "$recursiveRef",
    "contains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "else",
    "if",
    "maxContains",
    "minContains",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
];

/// White space between the parts of a JSON text. Bounded: otherwise a model could write spaces without
/// end.
const SPACE: &str = r"[ \t]|(\r?\n){1,2}[ \t]{0,20}";

/// The schema for the library.
///
/// # Errors
/// A place that cannot be enforced.
pub(super) fn prepare(schema: Value) -> Result<Value, Error> {
    Walk::new(&schema).schema("", &schema)?;
    let mut fields = match schema {
        Value::Object(fields) => fields,
        // `true` allows every value, and the walk has refused everything else.
        _ => Map::new(),
    };
    fields
        .entry("x-guidance")
        .or_insert_with(|| json!({ "whitespace_pattern": SPACE }));
    Ok(Value::Object(fields))
}

struct Walk<'a> {
    root: &'a Value,
    /// References that were followed.
    seen: HashSet<&'a str>,
}

impl<'a> Walk<'a> {
    fn new(root: &'a Value) -> Self {
        Self {
            root,
            seen: HashSet::new(),
        }
    }

    fn schema(&mut self, at: &str, schema: &'a Value) -> Result<(), Error> {
        let fields = match schema {
            Value::Object(fields) => fields,
            Value::Bool(false) if at.is_empty() => return Err(fault(at, "nothing fits `false`")),
            Value::Bool(_) => return Ok(()),
            _ => return Err(fault(at, "expected an object or a boolean")),
        };
        for (key, value) in fields {
            let at = format!("{at}/{}", escaped(key));
            if UNSUPPORTED.contains(&key.as_str()) {
                return Err(fault(&at, &format!("`{key}` cannot be enforced")));
            }
            self.keyword(&at, key, value)?;
        }
        Ok(())
    }

    /// Walks the schemas below a keyword.
    fn keyword(&mut self, at: &str, key: &str, value: &'a Value) -> Result<(), Error> {
        match key {
            "additionalItems" | "additionalProperties" => self.schema(at, value),
            "items" if !value.is_array() => self.schema(at, value),
            "items" | "prefixItems" | "anyOf" | "oneOf" | "allOf" => {
                let Some(all) = value.as_array() else {
                    return Err(fault(at, "expected an array of schemas"));
                };
                let mut each = all.iter().enumerate();
                each.try_for_each(|(i, schema)| self.schema(&format!("{at}/{i}"), schema))
            }
            "properties" | "patternProperties" => {
                let Some(all) = value.as_object() else {
                    return Err(fault(at, "expected an object of schemas"));
                };
                let mut each = all.iter();
                each.try_for_each(|(name, schema)| {
                    self.schema(&format!("{at}/{}", escaped(name)), schema)
                })
            }
            "$ref" => self.reference(at, value),
            _ => Ok(()),
        }
    }

    fn reference(&mut self, at: &str, value: &'a Value) -> Result<(), Error> {
        let Some(reference) = value.as_str() else {
            return Err(fault(at, "expected a text"));
        };
        let Some(pointer) = reference.strip_prefix('#') else {
            return Err(fault(
                at,
                &format!("`{reference}` is not inside the schema, expected `#/...`"),
            ));
        };
        let pointer = pointer.strip_suffix('/').unwrap_or(pointer);
        let Some(target) = self.root.pointer(pointer) else {
            return Err(fault(at, &format!("there is no `{reference}`")));
        };
        if self.seen.insert(reference) {
            self.schema(pointer, target)?;
        }
        Ok(())
    }
}

/// A key as part of a JSON pointer (RFC 6901, section 3).
fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

fn fault(at: &str, message: &str) -> Error {
    Error::Schema {
        at: at.to_owned(),
        message: message.to_owned(),
    }
}
