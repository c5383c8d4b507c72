//! Kinds of values as Python has them: dictionaries, lists and tuples, markup, numbers.

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, Value};

use super::error::fault;

/// An ordered mapping whose attributes are those of a Python `dict`.
#[derive(Debug)]
pub(super) struct PyDict(pub(super) Value);

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
pub(super) enum PyNumber {
    Int(i128),
    Float(f64),
}

impl PyNumber {
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
