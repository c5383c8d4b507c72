//! The constraint of a completion, from the fields that define one.
//!
//! The fields are OpenAI's `response_format`, with the forms of llama-server and TGI; llama-server's `grammar` and
//! `json_schema`; vLLM's `guided_json`, `guided_regex`, `guided_choice`, `guided_grammar` and `structured_outputs`. At
//! most one constraint may be set, but several fields may hold the same one. A schema is enforced whatever `strict` is.
//! Not here: the meaning of constraints.

use std::sync::Arc;

use serde_json::Value;

use crate::served::ServedModel;
use lab_base::grammar;
use lab_base::grammar::{CompiledConstraint, Constraint};
use lab_sampling::Params;

use super::fields::fields;
use super::json_access::unsupported;
use super::object_fields::{ObjectFields, ignore_unknown};
use crate::http::error::{Error, invalid, quoted, refuse};

fields! {
    pub(crate) struct ConstraintFields prunes SHAPES {
        response_format: Option<Value>,
        /// GBNF, or Lark.
        grammar: Option<Value>,
        json_schema: Option<Value>,
        guided_json: Option<Value>,
        guided_regex: Option<Value>,
        /// Texts of which the completion is one.
        guided_choice: Option<Value>,
        guided_grammar: Option<Value>,
        structured_outputs: Option<Value>,
    }
}

const JSON_SCHEMA: ObjectFields = ObjectFields::of("name description schema strict");
const RESPONSE_FORMAT: ObjectFields = ObjectFields {
    inner: &[("json_schema", &JSON_SCHEMA)],
    ..ObjectFields::of("type json_schema schema value")
};
/// There is one backend, and objects are closed unless a schema opens them.
const STRUCTURED_OUTPUTS: ObjectFields = ObjectFields {
    idle: "_backend _backend_was_auto disable_additional_properties disable_fallback",
    ..ObjectFields::of(
        "json regex choice grammar json_object structural_tag whitespace_pattern \
        disable_any_whitespace",
    )
};

const SHAPES: &[(&str, &ObjectFields)] = &[
    ("response_format", &RESPONSE_FORMAT),
    ("structured_outputs", &STRUCTURED_OUTPUTS),
];

/// A constraint, and the field that it comes from, for error messages.
#[derive(Clone, Debug)]
pub(crate) struct ConstraintSpec {
    pub(crate) param: String,
    pub(crate) constraint: Constraint,
}

impl ConstraintFields {
    pub(crate) fn constraint(&self) -> Result<Option<ConstraintSpec>, Error> {
        let mut all = Vec::new();
        if let Some(format) = given(&self.response_format) {
            all.extend(of_response_format(format)?);
        }
        if let Some(grammar) = given(&self.grammar) {
            let text = text("grammar", grammar)?;
            all.push(spec("grammar", Constraint::grammar(text)));
        }
        for (name, schema) in [
            ("json_schema", &self.json_schema),
            ("guided_json", &self.guided_json),
        ] {
            if let Some(schema) = given(schema) {
                all.push(spec(name, of_schema(name, schema)?));
            }
        }
        if let Some(regex) = given(&self.guided_regex) {
            let text = text("guided_regex", regex)?;
            all.push(spec("guided_regex", Constraint::Regex(text.into())));
        }
        if let Some(choices) = given(&self.guided_choice) {
            all.push(spec("guided_choice", one_of("guided_choice", choices)?));
        }
        if let Some(grammar) = given(&self.guided_grammar) {
            let text = text("guided_grammar", grammar)?;
            all.push(spec("guided_grammar", Constraint::grammar(text)));
        }
        if let Some(outputs) = given(&self.structured_outputs) {
            all.extend(of_structured_outputs(outputs)?);
        }
        one_of_all(all)
    }
}

/// The only constraint of these; equal ones are one.
fn one_of_all(all: Vec<ConstraintSpec>) -> Result<Option<ConstraintSpec>, Error> {
    let mut all = all.into_iter();
    let Some(first) = all.next() else {
        return Ok(None);
    };
    match all.find(|other| other.constraint != first.constraint) {
        None => Ok(Some(first)),
        Some(other) => invalid(
            &other.param,
            format!(
                "`{}` and `{}` both constrain the completion, expected at most one",
                first.param, other.param
            ),
        ),
    }
}

impl ConstraintSpec {
    /// Compiles the constraint off the threads that serve connections.
    pub(crate) async fn compile(
        self,
        served: &Arc<ServedModel>,
        sampling: Params,
    ) -> Result<CompiledConstraint, Error> {
        let Self { param, constraint } = self;
        let handle = served.handle.clone();
        tokio::task::spawn_blocking(move || handle.compile(constraint, &sampling))
            .await
            .map_err(Error::engine)?
            .map_err(|error| Self::refused(&param, &error))
    }

    fn refused(param: &str, error: &grammar::Error) -> Error {
        match error {
            grammar::Error::Busy => Error::Busy {
                limit: grammar::MAX_WAITING,
            },
            grammar::Error::NoThread => Error::engine(error),
            _ => Error::invalid_value(param, format!("`{param}`: {error}")),
        }
    }
}

/// The value of a field; clients without a constraint send null or an empty text.
fn given(field: &Option<Value>) -> Option<&Value> {
    field.as_ref().filter(|value| !is_nothing(value))
}

fn is_nothing(value: &Value) -> bool {
    value.is_null() || value == ""
}

fn text<'a>(param: &str, value: &'a Value) -> Result<&'a str, Error> {
    value
        .as_str()
        .ok_or_else(|| Error::wrong_type(param, "not a string"))
}

fn spec(param: impl Into<String>, constraint: Constraint) -> ConstraintSpec {
    ConstraintSpec {
        param: param.into(),
        constraint,
    }
}

/// The constraint of a schema, which some clients send as a string.
fn of_schema(param: &str, value: &Value) -> Result<Constraint, Error> {
    let Value::String(text) = value else {
        return Ok(Constraint::JsonSchema(value.clone()));
    };
    serde_json::from_str(text)
        .map(Constraint::JsonSchema)
        .map_err(|error| Error::invalid_value(param, format!("`{param}` is not JSON: {error}")))
}

/// The constraint of a format. A schema is in `json_schema.schema` (OpenAI), `schema` (llama-server) or `value` (TGI).
fn of_response_format(format: &Value) -> Result<Option<ConstraintSpec>, Error> {
    const WHOLE: &str = "response_format";
    const KIND: &str = "response_format.type";
    const SCHEMA: &str = "response_format.json_schema";
    const VALUE: &str = "response_format.value";
    let Some(fields) = format.as_object() else {
        return refuse(WHOLE, " is not an object");
    };
    let Some(kind) = fields.get("type").and_then(Value::as_str) else {
        return refuse(KIND, " is missing or not a string");
    };
    let given = |name: &str| fields.get(name).filter(|value| !value.is_null());
    match kind {
        "text" => {
            // Text has no schema.
            let others = ["json_schema", "schema", "value"].into_iter();
            for name in others.filter(|name| given(name).is_some()) {
                ignore_unknown(format!("{WHOLE}.{name}"), None)?;
            }
            return Ok(None);
        }
        "regex" => {
            let value = given("value").ok_or_else(|| Error::missing(VALUE))?;
            let regex = Constraint::Regex(text(VALUE, value)?.into());
            return Ok(Some(spec(VALUE, regex)));
        }
        "json" | "json_object" | "json_schema" => {}
        other => {
            let (other, expected) = (
                quoted(other),
                "`text`, `json_object`, `json_schema` or `regex`",
            );
            return refuse(KIND, format!(" is `{other}`, expected {expected}"));
        }
    }
    let mut all = Vec::new();
    if let Some(named) = given("json_schema") {
        let inner = named.get("schema").filter(|schema| !schema.is_null());
        let param = format!("{SCHEMA}.schema");
        match (named.is_object(), inner) {
            (true, Some(schema)) => all.push(spec(&param, of_schema(&param, schema)?)),
            (true, None) => {
                return refuse(&param, " is missing");
            }
            (false, _) => {
                return refuse(SCHEMA, " is missing or not an object");
            }
        }
    }
    if let Some(schema) = given("schema") {
        let param = format!("{WHOLE}.schema");
        all.push(spec(&param, of_schema(&param, schema)?));
    }
    if let Some(value) = given("value") {
        // With a name, the schema is one level below.
        let inner = value.get("schema").filter(|_| value.get("name").is_some());
        all.push(spec(VALUE, of_schema(VALUE, inner.unwrap_or(value))?));
    }
    match (one_of_all(all)?, kind) {
        (None, "json_schema") => refuse(SCHEMA, " is missing or not an object"),
        (None, _) => Ok(Some(spec(WHOLE, Constraint::json_object()))),
        (found, _) => Ok(found),
    }
}

fn of_structured_outputs(outputs: &Value) -> Result<Vec<ConstraintSpec>, Error> {
    const WHOLE: &str = "structured_outputs";
    let Some(fields) = outputs.as_object() else {
        return refuse(WHOLE, " is not an object");
    };
    let is_given = |value: &Value| !is_nothing(value) && value != &Value::Bool(false);
    let mut all = Vec::new();
    for (name, value) in fields.iter().filter(|(_, value)| is_given(value)) {
        let param = format!("{WHOLE}.{name}");
        let constraint = match name.as_str() {
            "json" => of_schema(&param, value)?,
            "choice" => one_of(&param, value)?,
            "json_object" if value == &Value::Bool(true) => Constraint::json_object(),
            "json_object" => return Err(Error::wrong_type(param, "expected true or false")),
            "regex" => Constraint::Regex(text(&param, value)?.into()),
            "grammar" => Constraint::grammar(text(&param, value)?),
            _ => return Err(unsupported(&param, "it is not supported")),
        };
        all.push(spec(param, constraint));
    }
    Ok(all)
}

/// A regular expression that matches exactly these texts.
fn one_of(param: &str, value: &Value) -> Result<Constraint, Error> {
    const EXPECTED: &str = "expected an array of one or more strings, none of them empty";
    let fault = || Error::wrong_type(param, EXPECTED);
    let texts = value.as_array().filter(|texts| !texts.is_empty());
    let escaped = texts.ok_or_else(fault)?.iter().map(|text| {
        let text = text.as_str().filter(|text| !text.is_empty());
        text.map(literal).ok_or_else(fault)
    });
    let escaped: Vec<String> = escaped.collect::<Result<_, _>>()?;
    Ok(Constraint::Regex(format!("({})", escaped.join("|"))))
}

/// A regular expression that matches exactly this text.
fn literal(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        // `\<` and `\>` are borders of words.
        if c.is_ascii_punctuation() && !matches!(c, '<' | '>') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}
