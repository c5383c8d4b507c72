//! Converts values of the language to metadata.

use crate::arch::expr::{Expr, Value};
use crate::arch::{ArchDef, ParamSource};
use lab_base::weights::{Array, StringArray, Value as Meta};

/// Whether a parameter is a floating-point number, judged by a literal or another parameter in its place elsewhere. A
/// checked definition has no cycles and no long chains of such parameters.
pub(super) fn is_float(def: &ArchDef, name: &str) -> bool {
    let Some(ParamSource::Key { default, synth, .. }) = def.params.get(name).map(|p| &p.source)
    else {
        return false;
    };
    let is_of_float = |expr: &Expr| match (expr.as_literal(), expr.as_name()) {
        (Some(value), _) => matches!(value, Value::Float(_)),
        (None, Some(other)) => is_float(def, other),
        (None, None) => false,
    };
    [default, synth].into_iter().flatten().any(is_of_float)
}

pub(super) fn to_meta(value: &Value, is_float: bool) -> Option<Meta> {
    let number = |value: &Value| match value {
        Value::Int(v) => Some(*v as f32),
        Value::Float(v) => Some(*v as f32),
        _ => None,
    };
    Some(match value {
        Value::Int(_) | Value::Float(_) if is_float => Meta::F32(number(value)?),
        Value::Int(v) => match (u32::try_from(*v), i32::try_from(*v)) {
            (Ok(v), _) => Meta::U32(v),
            (_, Ok(v)) => Meta::I32(v),
            _ => Meta::I64(*v),
        },
        Value::Float(v) => Meta::F32(*v as f32),
        Value::Bool(v) => Meta::Bool(*v),
        Value::Str(v) => Meta::Str(v.clone()),
        Value::List(items) => Meta::Array(list(items, is_float)?),
    })
}

/// Integers of 64 bits, unsigned if none is negative: other engines do not read lists of `i64`.
fn wide(ints: Vec<i64>) -> Array {
    let unsigned: Option<_> = ints.iter().map(|v| u64::try_from(*v).ok()).collect();
    unsigned.map_or_else(|| Array::I64(ints), Array::U64)
}

/// A list of integers from a stored tensor. Their values do not decide their width.
pub(super) fn stored_integers(value: &Value) -> Option<Meta> {
    let Value::List(items) = value else {
        return None;
    };
    Some(Meta::Array(wide(integers(items)?)))
}

fn integers(items: &[Value]) -> Option<Vec<i64>> {
    let integer = |v: &Value| match v {
        Value::Int(v) => Some(*v),
        _ => None,
    };
    items.iter().map(integer).collect()
}

/// The narrowest array that represents all items.
fn list(items: &[Value], is_float: bool) -> Option<Array> {
    if let Some(ints) = integers(items).filter(|_| !is_float) {
        let unsigned = ints.iter().map(|v| u32::try_from(*v).ok()).collect();
        let signed = ints.iter().map(|v| i32::try_from(*v).ok()).collect();
        return Some(match (unsigned, signed) {
            (Some(all), _) => Array::U32(all),
            (None, Some(all)) => Array::I32(all),
            (None, None) => wide(ints),
        });
    }
    match items.first()? {
        Value::Int(_) | Value::Float(_) => {
            let number = |v: &Value| match v {
                Value::Int(v) => Some(*v as f32),
                Value::Float(v) => Some(*v as f32),
                _ => None,
            };
            Some(Array::F32(items.iter().map(number).collect::<Option<_>>()?))
        }
        Value::Bool(_) => {
            let flag = |v: &Value| match v {
                Value::Bool(v) => Some(*v),
                _ => None,
            };
            Some(Array::Bool(items.iter().map(flag).collect::<Option<_>>()?))
        }
        Value::Str(_) => {
            let mut out = StringArray::default();
            for item in items {
                let Value::Str(text) = item else { return None };
                out.push(text.as_bytes());
            }
            Some(Array::Str(out))
        }
        Value::List(_) => None,
    }
}
