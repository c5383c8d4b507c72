//! Values as a Python program would see them: JSON to engine values, `str()` and `repr()`.
//!
//! Python's objects have attributes besides their items: `schema.items` is the method, also where
//! the schema has a key of that name, and only `schema['items']` is the entry. [`Dict`] keeps the
//! two apart. Invariant: key order is the order of the JSON text.

use std::fmt::{self, Write};
use std::sync::Arc;

use minijinja::value::{Enumerator, Object, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

use super::list_filters::Group;
use super::{budget, methods};

/// How deep printed values may nest; the printers recurse.
pub(super) const MAX_DEPTH: usize = 128;

/// A failure of the running template, as the Python runtime would raise one.
pub(super) fn fault(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

/// A JSON value as the template sees it.
pub(super) fn from_json(json: &serde_json::Value) -> Value {
    match json {
        serde_json::Value::Null => Value::from(()),
        serde_json::Value::Bool(flag) => Value::from(*flag),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(int), _) => Value::from(int),
            (None, Some(int)) => Value::from(int),
            (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(text) => Value::from(text.as_str()),
        serde_json::Value::Array(items) => items.iter().map(from_json).collect(),
        serde_json::Value::Object(entries) => Value::from_object(Dict::new(
            entries
                .iter()
                .map(|(key, item)| (Value::from(key.as_str()), from_json(item))),
        )),
    }
}

/// An ordered mapping whose attributes are those of a Python `dict`.
#[derive(Debug)]
pub(super) struct Dict(Value);

impl Dict {
    pub(super) fn new(entries: impl Iterator<Item = (Value, Value)>) -> Self {
        Self(Value::from_pairs(entries))
    }
}

impl Object for Dict {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.as_object()?.get_value(key)
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        if methods::is_dict_method(key) {
            return Some(Value::from_object(BoundMethod {
                receiver: Value::from_dyn_object(Arc::clone(self)),
                name: key.to_owned(),
            }));
        }
        self.0.as_object()?.get_value_by_str(key)
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        self.0
            .as_object()
            .map_or(Enumerator::Empty, |map| map.enumerate())
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        self.0.len()
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let this = Value::from_dyn_object(Arc::clone(self));
        f.write_str(&str(&this).map_err(|_| fmt::Error)?)
    }
}

/// A method taken from its object without being called (`schema.items`).
#[derive(Debug)]
struct BoundMethod {
    receiver: Value,
    name: String,
}

impl Object for BoundMethod {
    fn repr(self: &Arc<Self>) -> minijinja::value::ObjectRepr {
        minijinja::value::ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        methods::call(state, &self.receiver, &self.name, args)
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<built-in method {} of dict object>", self.name)
    }
}

/// The float held by a value, if it holds one (integers are not floats).
pub(super) fn as_float(value: &Value) -> Option<f64> {
    if value.kind() != ValueKind::Number || value.is_integer() {
        return None;
    }
    f64::try_from(value.clone()).ok()
}

/// Python's `str(value)`.
pub(super) fn str(value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::String => Ok(value.as_str().unwrap_or_default().to_owned()),
        ValueKind::Undefined => Ok(String::new()),
        _ => {
            let mut out = String::new();
            write_repr(&mut out, value, 0)?;
            Ok(out)
        }
    }
}

/// Appends Python's `repr(value)`.
fn write_repr(out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(fault("maximum recursion depth exceeded while printing"));
    }
    // Any value takes a few bytes and its separator, and longer to print than to copy.
    budget::made(32 + value.as_str().map_or(0, str::len))?;
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::None => out.push_str("None"),
        ValueKind::String if value.is_safe() => {
            out.push_str("Markup(");
            write_str_repr(out, value.as_str().unwrap_or_default());
            out.push(')');
        }
        ValueKind::String => write_str_repr(out, value.as_str().unwrap_or_default()),
        ValueKind::Number => match as_float(value) {
            Some(float) => out.push_str(&float_repr(float)),
            None => out.push_str(&value.to_string()),
        },
        ValueKind::Seq | ValueKind::Iterable => {
            let is_group = value.downcast_object_ref::<Group>().is_some();
            let is_tuple = value.is_tuple() || is_group;
            out.push(if is_tuple { '(' } else { '[' });
            let mut n_items = 0;
            for item in value.try_iter()?.checked() {
                if n_items > 0 {
                    out.push_str(", ");
                }
                write_repr(out, &item?, depth + 1)?;
                n_items += 1;
            }
            if is_tuple && n_items == 1 {
                out.push(',');
            }
            out.push(if is_tuple { ')' } else { ']' });
        }
        ValueKind::Map => {
            out.push('{');
            for (n_items, (key, item)) in entries(value)?.into_iter().enumerate() {
                if n_items > 0 {
                    out.push_str(", ");
                }
                write_repr(out, &key, depth + 1)?;
                out.push_str(": ");
                write_repr(out, &item, depth + 1)?;
            }
            out.push('}');
        }
        _ => {
            let _ = write!(out, "{value}");
        }
    }
    Ok(())
}

/// The pairs of a mapping, in order.
pub(super) fn entries(value: &Value) -> Result<Vec<(Value, Value)>, Error> {
    let pairs = value
        .as_object()
        .filter(|_| value.kind() == ValueKind::Map)
        .and_then(|map| map.try_iter_pairs())
        .ok_or_else(|| fault("Can only get item pairs from a mapping."))?;
    Ok(pairs.collect())
}

fn write_str_repr(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            _ if c == quote => {
                out.push('\\');
                out.push(c);
            }
            _ if is_printable(c) => out.push(c),
            _ => {
                let code = u32::from(c);
                let _ = match code {
                    0..=0xff => write!(out, "\\x{code:02x}"),
                    0x100..=0xffff => write!(out, "\\u{code:04x}"),
                    _ => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push(quote);
}

/// Python's `str.isprintable` for one character.
///
/// The standard library knows the set but shows it only through `escape_debug`, which also
/// escapes a combining mark where it comes first; hence the letter before it.
pub(super) fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return !c.is_ascii_control();
    }
    let mut pair = String::from('a');
    pair.push(c);
    pair.escape_debug().count() == 2
}

/// Python's `repr` of a float: the shortest digits that read back, with an exponent below 1e-4
/// and from 1e16 on.
pub(super) fn float_repr(float: f64) -> String {
    if float.is_nan() {
        return "nan".to_owned();
    }
    if float.is_infinite() {
        return if float > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{float:e}");
    let Some((mantissa, exponent)) = scientific.split_once('e') else {
        return scientific;
    };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        return format!("{float:?}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}
