//! Access to values within a request's JSON, by the place that errors name: `tools[0].function.name`.

use serde_json::{Map, Value};

use crate::http::error::Error;

pub(crate) type JsonMap = Map<String, Value>;

/// A field that is present and not null.
pub(crate) fn given<'a>(fields: &'a JsonMap, name: &str) -> Option<&'a Value> {
    fields.get(name).filter(|value| !value.is_null())
}

pub(crate) fn malformed(param: &str, expected: &str) -> Error {
    let message = format!("`{param}` is missing or wrong, expected {expected}");
    Error::invalid_value(param, message)
}

/// An error about a value that is known but not supported.
pub(crate) fn unsupported(param: &str, what: &str) -> Error {
    Error::unsupported(param, format!("`{param}`: {what}"))
}

pub(crate) fn object_at<'a>(
    param: &str,
    value: impl Into<Option<&'a Value>>,
) -> Result<&'a JsonMap, Error> {
    let fields = value.into().and_then(Value::as_object);
    fields.ok_or_else(|| malformed(param, "an object"))
}

/// The text `name` of the object at `at`.
pub(crate) fn text_at<'a>(at: &str, fields: &'a JsonMap, name: &str) -> Result<&'a str, Error> {
    let value = fields.get(name).and_then(Value::as_str);
    value.ok_or_else(|| malformed(&format!("{at}.{name}"), "a string"))
}
