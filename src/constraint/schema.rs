//! Checks of a JSON Schema before it is passed to the library, so that errors name the faulty place.
//!
//! The library names keywords that it cannot enforce, but not where they are. This module walks the parts of a schema
//! that a completion can reach and reports the first fault with its JSON pointer. Keywords that no draft of JSON Schema
//! knows are annotations, as the specification says.

use std::collections::HashSet;
use std::fmt;

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

/// White space between the parts of a JSON text. It is bounded: otherwise a model could write spaces without end.
const SPACE: &str = r"[ \t]|(\r?\n){1,2}[ \t]{0,20}";

/// Maximum number of properties of an object: the library's work grows with its square.
const MAX_PROPERTIES: usize = 1000;
/// Maximum number of parts. A schema counts as one, and so do eight values of an enumeration.
const MAX_PARTS: usize = 1 << 14;
/// Maximum nesting of parts: each level is a recursive call.
const MAX_DEPTH: usize = 512;

/// The schema that the library gets.
///
/// # Errors
/// A part of the schema cannot be enforced.
pub(super) fn prepare(schema: Value) -> Result<Value, Error> {
    Walk::new(&schema).schema(&At::Root, &schema)?;
    let mut fields = match schema {
        Value::Object(fields) => fields,
        // `true` allows every value. The walk has refused every other value that is not an object.
        _ => Map::new(),
    };
    fields
        .entry("x-guidance")
        .or_insert_with(|| json!({ "whitespace_pattern": SPACE }));
    Ok(Value::Object(fields))
}

/// A place in a schema. It is formatted only if something is wrong there.
enum At<'p> {
    Root,
    /// The target of a reference.
    Pointer(&'p str),
    Key(&'p Self, &'p str),
    Item(&'p Self, usize),
}

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Pointer(pointer) => f.write_str(pointer),
            Self::Key(parent, key) => write!(f, "{parent}/{}", escaped(key)),
            Self::Item(parent, i) => write!(f, "{parent}/{i}"),
        }
    }
}

struct Walk<'a> {
    root: &'a Value,
    /// References that were followed already.
    seen: HashSet<&'a str>,
    /// Number of parts counted so far.
    n_parts: usize,
    depth: usize,
}

impl<'a> Walk<'a> {
    fn new(root: &'a Value) -> Self {
        Self {
            root,
            seen: HashSet::new(),
            n_parts: 0,
            depth: 0,
        }
    }

    /// Adds `n` to the count of parts.
    fn count(&mut self, at: &At<'_>, n: usize) -> Result<(), Error> {
        self.n_parts += n;
        match self.n_parts > MAX_PARTS {
            true => Err(fault(
                at,
                &format!("the schema has more than {MAX_PARTS} parts"),
            )),
            false => Ok(()),
        }
    }

    fn schema(&mut self, at: &At<'_>, schema: &'a Value) -> Result<(), Error> {
        self.count(at, 1)?;
        let fields = match schema {
            Value::Object(fields) => fields,
            Value::Bool(false) if matches!(at, At::Root) => {
                return Err(fault(at, "nothing fits `false`"));
            }
            Value::Bool(_) => return Ok(()),
            _ => return Err(fault(at, "expected an object or a boolean")),
        };
        if self.depth == MAX_DEPTH {
            return Err(fault(
                at,
                &format!("more than {MAX_DEPTH} schemas in each other"),
            ));
        }
        self.depth += 1;
        for (key, value) in fields {
            let at = At::Key(at, key);
            if UNSUPPORTED.contains(&key.as_str()) {
                return Err(fault(&at, &format!("`{key}` cannot be enforced")));
            }
            self.keyword(&at, key, value)?;
        }
        self.depth -= 1;
        Ok(())
    }

    /// Walks the schemas below a keyword.
    fn keyword(&mut self, at: &At<'_>, key: &str, value: &'a Value) -> Result<(), Error> {
        match key {
            "additionalItems" | "additionalProperties" => self.schema(at, value),
            "items" if !value.is_array() => self.schema(at, value),
            "items" | "prefixItems" | "anyOf" | "oneOf" | "allOf" => {
                let Some(all) = value.as_array() else {
                    return Err(fault(at, "expected an array of schemas"));
                };
                let mut each = all.iter().enumerate();
                each.try_for_each(|(i, schema)| self.schema(&At::Item(at, i), schema))
            }
            "properties" | "patternProperties" => {
                let Some(all) = value.as_object() else {
                    return Err(fault(at, "expected an object of schemas"));
                };
                if all.len() > MAX_PROPERTIES {
                    let n = all.len();
                    let message = format!("{n} properties, expected at most {MAX_PROPERTIES}");
                    return Err(fault(at, &message));
                }
                let mut each = all.iter();
                each.try_for_each(|(name, schema)| self.schema(&At::Key(at, name), schema))
            }
            // Values cost less than schemas.
            "enum" | "required" => self.count(at, value.as_array().map_or(0, Vec::len) / 8),
            "$ref" => self.reference(at, value),
            _ => Ok(()),
        }
    }

    fn reference(&mut self, at: &At<'_>, value: &'a Value) -> Result<(), Error> {
        let Some(reference) = value.as_str() else {
            return Err(fault(at, "expected a string"));
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
            self.schema(&At::Pointer(pointer), target)?;
        }
        Ok(())
    }
}

/// A key as part of a JSON pointer (RFC 6901, section 3).
fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

fn fault(at: &At<'_>, message: &str) -> Error {
    Error::Schema {
        at: at.to_string(),
        message: message.to_owned(),
    }
}
