//! The options of a schema's grammar, from `x-guidance` at its root, as llguidance has them.

use serde_json::Value;

use super::super::Error;
use super::super::lark_regex::lark_literal;
use super::read::schema_error;

/// White space between the parts of a JSON text. It is bounded: otherwise a model could write spaces without end.
const SPACE: &str = r"[ \t]|\r?\n[ \t]{0,20}";

/// How the parts of a JSON text stand together; each is an expression in Lark's form.
pub(super) struct LarkOptions {
    pub(super) space: Option<String>,
    pub(super) comma: String,
    pub(super) colon: String,
    pub(super) allows_overlaps: bool,
}

impl LarkOptions {
    pub(super) fn of(schema: &Value) -> Result<Self, Error> {
        let mut this = Self {
            space: Some(lark_literal(SPACE)),
            comma: "\",\"".into(),
            colon: "\":\"".into(),
            allows_overlaps: false,
        };
        let given = schema.get("x-guidance").and_then(Value::as_object);
        let flexible = given.and_then(|given| given.get("whitespace_flexible"));
        if flexible == Some(&Value::Bool(false)) {
            this.space = None;
        }
        for (key, value) in given.into_iter().flatten() {
            match (key.as_str(), value) {
                (_, Value::Null) => {}
                ("whitespace_flexible", Value::Bool(_)) => {}
                ("whitespace_pattern", Value::String(text)) => {
                    this.space = Some(lark_literal(text))
                }
                ("item_separator", Value::String(text)) => this.comma = lark_literal(text),
                ("key_separator", Value::String(text)) => this.colon = lark_literal(text),
                ("coerce_one_of", Value::Bool(value)) => this.allows_overlaps = *value,
                _ => {
                    let message = "unknown, or not of its type, or cannot be honoured";
                    return Err(schema_error(&format!("/x-guidance/{key}"), message));
                }
            }
        }
        Ok(this)
    }
}
