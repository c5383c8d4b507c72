//! The constraint of a completion, from the fields that define one.
//!
//! The fields are OpenAI's `response_format`; llama-server's `grammar` and `json_schema`; vLLM's `guided_json`,
//! `guided_regex`, `guided_choice`, `guided_grammar` and `structured_outputs`. At most one may be set. A schema is
//! enforced whatever `strict` is. Not here: the meaning of constraints.

use std::sync::Arc;

use serde_json::Value;

use crate::constraint::{self, Compiled, Constraint};
use crate::engine::serving::Served;
use crate::sampling::Params;

use super::error::Error;
use super::fields::fields;

fields! {
    /// The fields of a request that constrain its completion.
    pub(super) struct Fields {
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

/// A constraint, and the field that it comes from, for error messages.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) param: String,
    pub(super) constraint: Constraint,
}

impl Fields {
    /// The requested constraint.
    pub(super) fn constraint(&self) -> Result<Option<Wanted>, Error> {
        let mut all = Vec::new();
        if let Some(format) = given(&self.response_format) {
            all.extend(of_response_format(format)?);
        }
        if let Some(grammar) = given(&self.grammar) {
            let text = text("grammar", grammar)?;
            // Clients without a grammar send an empty one.
            let grammar = (!text.is_empty()).then(|| Constraint::grammar(text));
            all.extend(grammar.map(|grammar| wanted("grammar", grammar)));
        }
        for (name, schema) in [
            ("json_schema", &self.json_schema),
            ("guided_json", &self.guided_json),
        ] {
            if let Some(schema) = given(schema) {
                all.push(wanted(name, of_schema(name, schema)?));
            }
        }
        if let Some(regex) = given(&self.guided_regex) {
            let text = text("guided_regex", regex)?;
            all.push(wanted("guided_regex", Constraint::Regex(text.into())));
        }
        if let Some(choices) = given(&self.guided_choice) {
            all.push(wanted("guided_choice", one_of("guided_choice", choices)?));
        }
        if let Some(grammar) = given(&self.guided_grammar) {
            let text = text("guided_grammar", grammar)?;
            all.push(wanted("guided_grammar", Constraint::grammar(text)));
        }
        if let Some(outputs) = given(&self.structured_outputs) {
            all.push(of_structured_outputs(outputs)?);
        }
        match all.as_slice() {
            [] | [_] => Ok(all.pop()),
            [first, second, ..] => Err(Error::value(
                &second.param,
                format!(
                    "`{}` and `{}` both constrain the completion, expected at most one",
                    first.param, second.param
                ),
            )),
        }
    }
}

impl Wanted {
    /// Compiles the constraint off the threads that serve connections.
    pub(super) async fn compile(
        self,
        served: &Arc<Served>,
        sampling: Params,
    ) -> Result<Compiled, Error> {
        let Self { param, constraint } = self;
        let handle = served.handle.clone();
        tokio::task::spawn_blocking(move || handle.compile(constraint, &sampling))
            .await
            .map_err(|error| Error::Engine {
                detail: error.to_string(),
            })?
            .map_err(|error| Self::refused(&param, &error))
    }

    /// The error for a constraint that cannot be used.
    fn refused(param: &str, error: &constraint::Error) -> Error {
        match error {
            constraint::Error::Busy => Error::Busy {
                limit: constraint::MAX_WAITING,
            },
            constraint::Error::NoThread => Error::Engine {
                detail: error.to_string(),
            },
            _ => Error::value(param, format!("`{param}`: {error}")),
        }
    }
}

fn given(field: &Option<Value>) -> Option<&Value> {
    field.as_ref().filter(|value| !value.is_null())
}

fn text<'a>(param: &str, value: &'a Value) -> Result<&'a str, Error> {
    value
        .as_str()
        .ok_or_else(|| Error::kind(param, "not a string"))
}

fn wanted(param: impl Into<String>, constraint: Constraint) -> Wanted {
    Wanted {
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
        .map_err(|error| Error::value(param, format!("`{param}` is not JSON: {error}")))
}

fn of_response_format(format: &Value) -> Result<Option<Wanted>, Error> {
    const WHOLE: &str = "response_format";
    const KIND: &str = "response_format.type";
    const SCHEMA: &str = "response_format.json_schema";
    let Some(fields) = format.as_object() else {
        return Err(Error::value(WHOLE, format!("`{WHOLE}` is not an object")));
    };
    let Some(kind) = fields.get("type").and_then(Value::as_str) else {
        return Err(Error::value(
            KIND,
            format!("`{KIND}` is missing or not a string"),
        ));
    };
    let known: &[&str] = match kind {
        "text" => &["type"],
        "json_object" => &["type", "schema"],
        "json_schema" => &["type", "json_schema"],
        other => {
            let message =
                format!("`{KIND}` is `{other}`, expected `text`, `json_object` or `json_schema`");
            return Err(Error::value(KIND, message));
        }
    };
    only(WHOLE, fields, known)?;
    match kind {
        "text" => Ok(None),
        "json_object" => {
            let param = "response_format.schema";
            let constraint = match fields.get("schema").filter(|schema| !schema.is_null()) {
                Some(schema) => of_schema(param, schema)?,
                None => Constraint::json_object(),
            };
            Ok(Some(wanted(param, constraint)))
        }
        _ => {
            let inner = fields.get("json_schema").and_then(Value::as_object);
            let Some(inner) = inner else {
                return Err(Error::value(
                    SCHEMA,
                    format!("`{SCHEMA}` is missing or not an object"),
                ));
            };
            only(SCHEMA, inner, &["name", "description", "schema", "strict"])?;
            let param = format!("{SCHEMA}.schema");
            match inner.get("schema").filter(|schema| !schema.is_null()) {
                Some(schema) => Ok(Some(wanted(&param, of_schema(&param, schema)?))),
                None => Err(Error::value(&param, format!("`{param}` is missing"))),
            }
        }
    }
}

fn of_structured_outputs(outputs: &Value) -> Result<Wanted, Error> {
    const WHOLE: &str = "structured_outputs";
    let Some(fields) = outputs.as_object() else {
        return Err(Error::value(WHOLE, format!("`{WHOLE}` is not an object")));
    };
    only(
        WHOLE,
        fields,
        &["json", "regex", "choice", "grammar", "json_object"],
    )?;
    let is_given = |value: &Value| !value.is_null() && value != &Value::Bool(false);
    let given: Vec<_> = fields.iter().filter(|(_, v)| is_given(v)).collect();
    let &[(name, value)] = given.as_slice() else {
        let message = format!("`{WHOLE}` has {} constraints, expected one", given.len());
        return Err(Error::value(WHOLE, message));
    };
    let param = format!("{WHOLE}.{name}");
    let constraint = match name.as_str() {
        "json" => of_schema(&param, value)?,
        "choice" => one_of(&param, value)?,
        "json_object" if value == &Value::Bool(true) => Constraint::json_object(),
        "json_object" => return Err(Error::kind(param, "expected true or false")),
        "regex" => Constraint::Regex(text(&param, value)?.into()),
        _ => Constraint::grammar(text(&param, value)?),
    };
    Ok(wanted(param, constraint))
}

/// A regular expression that matches exactly these texts.
fn one_of(param: &str, value: &Value) -> Result<Constraint, Error> {
    const EXPECTED: &str = "expected an array of one or more strings, none of them empty";
    let fault = || Error::kind(param, EXPECTED);
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

/// Refuses fields that are not in `known`.
fn only(param: &str, fields: &serde_json::Map<String, Value>, known: &[&str]) -> Result<(), Error> {
    match fields.keys().find(|name| !known.contains(&name.as_str())) {
        None => Ok(()),
        Some(name) => Err(Error::Field {
            param: format!("{param}.{name}"),
            message: format!("unknown parameter: `{param}.{name}`"),
            code: "unknown_parameter",
        }),
    }
}
