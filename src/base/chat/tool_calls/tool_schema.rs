//! What the JSON Schema of a tool says about the type of an argument that a model writes as plain text.
//!
//! A text is a string wherever the schema allows one: so nothing of it is lost. Only `type`, `enum`, `const`, `anyOf`,
//! `oneOf`, `allOf` and `$ref` count, and, without these, keywords that mean strings. Not here: validation.

use serde_json::{Value, json};

use super::json::{is_number, literal, quoted};
use super::json_repair::repaired;
use super::python;

/// Maximum number of schemas that are looked at for one question.
const MAX_STEPS: usize = 2000;
/// Maximum nesting of these schemas.
const MAX_DEPTH: usize = 64;

/// Keywords that mean a string if the schema names no type.
const OF_STRINGS: &[&str] = &[
    "pattern",
    "minLength",
    "maxLength",
    "format",
    "contentEncoding",
    "contentMediaType",
];
/// Values of `format` that OpenAPI has for numbers.
const OF_NUMBERS: &[&str] = &["int32", "int64", "uint32", "uint64", "float", "double"];

/// A schema within the schema of a tool, which has the definitions that it refers to.
#[derive(Clone, Copy, Debug)]
pub struct ToolSchema<'a> {
    root: &'a Value,
    own: &'a Value,
}

/// A question about values: whether a schema allows one.
struct Question<'a> {
    root: &'a Value,
    value: &'a Value,
    /// Whether only the type of the value counts.
    is_of_type: bool,
    steps: usize,
    depth: usize,
}

impl<'a> ToolSchema<'a> {
    pub fn of_tool(parameters: &'a Value) -> Self {
        Self {
            root: parameters,
            own: parameters,
        }
    }

    /// The schema of an argument; of any value if there is none.
    pub fn argument(&self, key: &str) -> Self {
        let mut steps = MAX_STEPS;
        let found = property(self.root, self.own, key, &mut steps, MAX_DEPTH);
        Self {
            root: self.root,
            own: found.unwrap_or(&Value::Null),
        }
    }

    /// The names of the arguments, in order.
    pub fn names(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let all = self.own["properties"].as_object().into_iter().flatten();
        all.map(|(name, _)| name.as_str())
    }

    /// Whether strings are allowed; `None` if the schema does not say of which type values are.
    pub fn allows_strings(&self) -> Option<bool> {
        self.allows(&json!(""), true)
    }

    /// The only strings that are allowed, if the schema lists them: those of `enum` and `const` in all of its parts that
    /// allow strings.
    pub fn texts(&self) -> Option<Vec<Value>> {
        let mut out = Vec::new();
        let mut steps = MAX_STEPS;
        let is_list = texts(self.root, self.own, &mut out, &mut steps, MAX_DEPTH)?;
        out.dedup();
        is_list.then_some(out)
    }

    /// Whether a value is allowed (`is_of_type`: whether one of its type is); `None` if the schema does not say.
    fn allows(&self, value: &Value, is_of_type: bool) -> Option<bool> {
        let mut question = Question {
            root: self.root,
            value,
            is_of_type,
            steps: MAX_STEPS,
            depth: MAX_DEPTH,
        };
        question.ask(self.own)
    }

    /// The JSON of an argument that is written as plain text.
    pub(super) fn json(&self, text: &str) -> String {
        let trimmed = text.trim();
        match self.allows_strings() {
            None => like(trimmed).unwrap_or_else(|| quoted(text)),
            Some(false) => typed(trimmed).unwrap_or_else(|| quoted(text)),
            Some(true) => {
                let allows = |value: &Value| self.allows(value, false) == Some(true);
                if trimmed == "null" && allows(&Value::Null) {
                    return "null".into();
                }
                if allows(&text.into()) {
                    return quoted(text);
                }
                if allows(&trimmed.into()) {
                    return quoted(trimmed);
                }
                let other = typed(trimmed);
                let other = other
                    .filter(|json| serde_json::from_str(json).is_ok_and(|value| allows(&value)));
                other.unwrap_or_else(|| quoted(text))
            }
        }
    }
}

/// The JSON of a text without a type: what it looks like, unless a number would lose digits.
fn like(text: &str) -> Option<String> {
    match is_number(text) {
        true => {
            let same = serde_json::from_str::<Value>(text).ok()?.to_string();
            (same == text).then_some(same)
        }
        false => literal(text).map(str::to_owned).or_else(|| nested(text)),
    }
}

/// The JSON of a text that is not a string.
pub(super) fn typed(text: &str) -> Option<String> {
    let word = literal(text).map(str::to_owned);
    let word = word.or_else(|| match text.to_ascii_lowercase().as_str() {
        word @ ("true" | "false" | "null") => Some(word.to_owned()),
        _ => None,
    });
    word.or_else(|| nested(text))
        .or_else(|| python::literal(text).filter(|json| !json.starts_with('"')))
        .or_else(|| {
            let (sign, digits) = match text.strip_prefix('-') {
                Some(digits) => ("-", digits),
                None => ("", text),
            };
            let number = python::number(digits.trim_start_matches('0'))?;
            Some(format!("{sign}{number}"))
        })
        .or_else(|| {
            serde_json::from_str::<String>(text)
                .ok()
                .map(|_| text.to_owned())
        })
}

/// The JSON of an object or a list, as it is written.
fn nested(text: &str) -> Option<String> {
    let is_nested = text.starts_with(['{', '[']);
    is_nested.then(|| repaired(text, true)).flatten()
}

/// The schema of a property, also where the schema of the object is put together from others.
fn property<'a>(
    root: &'a Value,
    schema: &'a Value,
    key: &str,
    steps: &mut usize,
    depth: usize,
) -> Option<&'a Value> {
    *steps = steps.checked_sub(1)?;
    let depth = depth.checked_sub(1)?;
    if let Some(own) = schema["properties"].get(key) {
        return Some(own);
    }
    let reference = schema["$ref"].as_str().and_then(|at| target(root, at));
    let parts = ["allOf", "anyOf", "oneOf"].into_iter();
    let parts = parts.filter_map(|name| schema[name].as_array()).flatten();
    for part in reference.into_iter().chain(parts) {
        if let Some(found) = property(root, part, key, steps, depth) {
            return Some(found);
        }
    }
    let rest = &schema["additionalProperties"];
    rest.is_object().then_some(rest)
}

/// Collects the strings that a schema lists. Returns whether it allows no others; `None` beyond a limit.
fn texts(
    root: &Value,
    schema: &Value,
    out: &mut Vec<Value>,
    steps: &mut usize,
    depth: usize,
) -> Option<bool> {
    *steps = steps.checked_sub(1)?;
    let depth = depth.checked_sub(1)?;
    let own = ToolSchema { root, own: schema };
    if own.allows_strings() == Some(false) {
        return Some(true);
    }
    let listed = schema.get("const").map(std::slice::from_ref);
    if let Some(listed) = listed.or_else(|| schema["enum"].as_array().map(Vec::as_slice)) {
        out.extend(listed.iter().filter(|value| value.is_string()).cloned());
        return Some(true);
    }
    if let Some(target) = schema["$ref"].as_str().and_then(|at| target(root, at)) {
        return texts(root, target, out, steps, depth);
    }
    for name in ["anyOf", "oneOf"] {
        if let Some(parts) = schema[name].as_array() {
            for part in parts {
                if !texts(root, part, out, steps, depth)? {
                    return Some(false);
                }
            }
            return Some(true);
        }
    }
    for part in schema["allOf"].as_array().into_iter().flatten() {
        if texts(root, part, out, steps, depth)? {
            return Some(true);
        }
    }
    Some(false)
}

fn target<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    root.pointer(reference.strip_prefix('#')?)
}

impl Question<'_> {
    /// The answer of a schema; `None` if it does not say.
    fn ask(&mut self, schema: &Value) -> Option<bool> {
        self.steps = self.steps.checked_sub(1)?;
        self.depth = self.depth.checked_sub(1)?;
        let answer = self.answer(schema);
        self.depth += 1;
        answer
    }

    fn answer(&mut self, schema: &Value) -> Option<bool> {
        let mut answers = vec![self.of_types(schema), self.of_values(schema)];
        if let Some(at) = schema["$ref"].as_str() {
            let root = self.root;
            answers.push(target(root, at).and_then(|schema| self.ask(schema)));
        }
        for part in schema["allOf"].as_array().into_iter().flatten() {
            answers.push(self.ask(part));
        }
        for name in ["anyOf", "oneOf"] {
            if let Some(parts) = schema[name].as_array() {
                answers.push(self.any(parts));
            }
        }
        let all = answers.iter().flatten().copied();
        if let Some(answer) = all.reduce(|a, b| a && b) {
            let is_null = self.value.is_null() && schema["nullable"] == true;
            return Some(answer || is_null);
        }
        let is_number = OF_NUMBERS.iter().any(|name| schema["format"] == *name);
        let is_string = OF_STRINGS.iter().any(|name| schema.get(name).is_some());
        (is_string && !is_number).then(|| self.value.is_string())
    }

    /// The answer of alternatives: one that does not say allows everything.
    fn any(&mut self, parts: &[Value]) -> Option<bool> {
        let mut is_any = false;
        for part in parts {
            is_any |= self.ask(part)?;
        }
        Some(is_any)
    }

    fn of_types(&self, schema: &Value) -> Option<bool> {
        match &schema["type"] {
            Value::String(own) => Some(is_of(self.value, own)),
            Value::Array(all) => {
                let mut all = all.iter().filter_map(Value::as_str);
                Some(all.any(|own| is_of(self.value, own)))
            }
            _ => None,
        }
    }

    fn of_values(&self, schema: &Value) -> Option<bool> {
        let is_type =
            |own: &Value| std::mem::discriminant(own) == std::mem::discriminant(self.value);
        let allows = |own: &Value| match self.is_of_type {
            true => is_type(own),
            false => own == self.value,
        };
        if let Some(own) = schema.get("const") {
            return Some(allows(own));
        }
        Some(schema["enum"].as_array()?.iter().any(allows))
    }
}

/// Whether a value is of a type that a schema names.
fn is_of(value: &Value, kind: &str) -> bool {
    match value {
        Value::Null => kind == "null",
        Value::Bool(_) => kind == "boolean",
        Value::Number(n) => {
            kind == "number" || kind == "integer" && n.as_f64().is_none_or(|n| n.fract() == 0.0)
        }
        Value::String(_) => kind == "string",
        Value::Array(_) => kind == "array",
        Value::Object(_) => kind == "object",
    }
}
