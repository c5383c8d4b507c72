//! Values as a Python program sees them: JSON as engine values, and Python's attributes of a `dict`.
//!
//! Python's objects have attributes besides their items: `schema.items` is the method, even if the schema has a key of
//! that name, and only `schema['items']` is the entry. [`Dict`] keeps the two apart. Invariant: keys keep the order of
//! the JSON text.

use std::fmt;
use std::sync::Arc;

use minijinja::value::{Enumerator, Object, Rest, Tuple, ValueKind, ValueOrKwargs};
use minijinja::{Error, ErrorKind, State, Value};

use super::budget::{self, ITEM};
use super::digits::of_marked;
use super::methods;
use super::print::str;

/// A failure of the running template, like an exception of the Python runtime.
pub(super) fn fault(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

/// A JSON value as the template sees it.
pub(super) fn from_json(json: &serde_json::Value) -> Value {
    match json {
        serde_json::Value::Null => Value::from(()),
        serde_json::Value::Bool(flag) => Value::from(*flag),
        serde_json::Value::Number(number) => match number.as_i128() {
            Some(int) => Value::from(int),
            None => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(text) => match of_marked(text) {
            Some(int) => Value::from(int),
            None => Value::from(text.as_str()),
        },
        serde_json::Value::Array(items) => items.iter().map(from_json).collect(),
        serde_json::Value::Object(entries) => {
            let entries = entries.iter();
            let entries = entries.map(|(key, item)| (Value::from(key.as_str()), from_json(item)));
            Value::from_object(Dict(Value::from_pairs(entries)))
        }
    }
}

/// An ordered mapping whose attributes are those of a Python `dict`.
#[derive(Debug)]
pub(super) struct Dict(Value);

impl Object for Dict {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.as_object()?.get_value(key)
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        if methods::is_dict_method(key) {
            let (this, name) = (Value::from_dyn_object(Arc::clone(self)), key.to_owned());
            let method = move |state: &mut State, args: Rest<ValueOrKwargs>| {
                methods::call(state, &this, &name, &args.into_values())
            };
            return Some(Value::from_function(method));
        }
        self.0.as_object()?.get_value_by_str(key)
    }

    fn call_method(
        self: &Arc<Self>,
        state: &mut State<'_, '_>,
        method: &str,
        args: &[Value],
    ) -> Result<Value, Error> {
        methods::call(
            state,
            &Value::from_dyn_object(Arc::clone(self)),
            method,
            args,
        )
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let map = self.0.as_object();
        map.map_or(Enumerator::Empty, |map| map.enumerate())
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        self.0.len()
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let this = Value::from_dyn_object(Arc::clone(self));
        f.write_str(&str(&this).map_err(|_| fmt::Error)?)
    }
}

/// The pairs of a mapping, in order.
pub(super) fn entries(value: &Value) -> Result<Vec<(Value, Value)>, Error> {
    let map = value.as_object().filter(|_| value.kind() == ValueKind::Map);
    let pairs = map.and_then(|map| map.try_iter_pairs());
    let pairs = pairs.ok_or_else(|| fault("Can only get item pairs from a mapping."))?;
    budget::made(budget::size(value))?;
    Ok(pairs.collect())
}

/// The items of a value. A none has no items and, as in Python, cannot be iterated over.
pub(super) fn iterate(value: &Value) -> Result<impl Iterator<Item = Value>, Error> {
    if value.is_none() {
        return Err(fault("'NoneType' object is not iterable"));
    }
    budget::read(budget::size(value))?;
    value.try_iter()
}

/// A view as a list of its items; other values unchanged.
pub(super) fn owned(value: Value) -> Result<Value, Error> {
    if value.kind() != ValueKind::Iterable {
        return Ok(value);
    }
    let charged = |item: Result<Value, Error>| budget::made(ITEM).and(item);
    value.try_iter()?.checked().map(charged).collect()
}

pub(super) fn is_list(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable)
}

pub(super) fn list(items: Vec<Value>, is_tuple: bool) -> Value {
    if is_tuple {
        Value::from(Tuple::from(items))
    } else {
        Value::from(items)
    }
}

/// A text derived from `source`, marked safe if `source` is.
pub(super) fn same_safety(source: &Value, text: impl Into<String>) -> Value {
    if source.is_safe() {
        Value::from_safe_string(text.into())
    } else {
        Value::from(text.into())
    }
}

/// A number as Python computes with it; booleans are numbers.
#[derive(Clone, Copy)]
pub(super) enum Number {
    Int(i128),
    Float(f64),
}

impl Number {
    pub(super) fn of(value: &Value) -> Option<Self> {
        match value.kind() {
            ValueKind::Bool => Some(Self::Int(i128::from(value.is_true()))),
            ValueKind::Number if value.is_integer() => {
                i128::try_from(value.clone()).ok().map(Self::Int)
            }
            ValueKind::Number => f64::try_from(value.clone()).ok().map(Self::Float),
            _ => None,
        }
    }

    pub(super) fn as_f64(self) -> f64 {
        match self {
            Self::Int(int) => int as f64,
            Self::Float(float) => float,
        }
    }
}

/// The value of an integer, if it fits.
pub(super) fn int(result: Option<i128>) -> Result<Value, Error> {
    let result = result.ok_or_else(|| fault("the number is too large"))?;
    Ok(i64::try_from(result).map_or_else(|_| Value::from(result), Value::from))
}
