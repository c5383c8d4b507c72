//! Finds metadata keys that a definition reads but that have no effect: with another value, the computation would be
//! the same.
//!
//! The plan describes the whole computation, so no weight is read. A key whose other values are refused has an effect.

use lab_base::weights::{Array, Metadata, Value};
use lab_core::models::OpenedModel;
use lab_core::plan::Plan;

/// The metadata keys of the architecture that were read but whose values do not matter, in the order of the file.
pub fn idle_keys(opened: &OpenedModel) -> Vec<String> {
    let metadata = opened.weights.metadata();
    let prefix = format!("{}.", opened.def.name);
    let is_read = |key: &str| key.starts_with(&prefix) && opened.plan.keys.contains(key);
    let read = metadata.iter().filter(|(key, _)| is_read(key));
    let computed = without_reported_fields(&opened.plan);
    let is_idle = |key: &str, value: &Value| {
        let others = other_values(value);
        let is_same = |other: Value| {
            let all = metadata.iter();
            let all = all.map(|(key, value)| (key.to_owned(), value.clone()));
            let mut changed: Metadata = all.collect();
            changed.insert(key, other);
            let plan = Plan::new(&opened.def, &changed, &opened.weights);
            plan.is_ok_and(|plan| self::without_reported_fields(&plan) == computed)
        };
        !others.is_empty() && others.into_iter().all(is_same)
    };
    let idle = read.filter(|(key, value)| is_idle(key, value));
    idle.map(|(key, _)| key.to_owned()).collect()
}

/// A plan without the fields that are only reported. The context length does not affect the result, but is kept because
/// reading it is intended.
fn without_reported_fields(plan: &Plan) -> Plan {
    Plan {
        params: Default::default(),
        keys: Default::default(),
        unread: Vec::new(),
        ..plan.clone()
    }
}

/// Other values of the same type; empty for types that no expression can read.
fn other_values(value: &Value) -> Vec<Value> {
    let integer = |v: i64| [v.saturating_add(1), v.saturating_mul(2).saturating_add(3)];
    let float = |v: f64| [v + 1.0, 2.0 * v + 0.5];
    match value {
        Value::Bool(v) => vec![Value::Bool(!v)],
        Value::Str(v) => vec![Value::Str(format!("{v} "))],
        Value::F32(_) | Value::F64(_) => {
            let all = value.as_f64().map(float).into_iter().flatten();
            all.map(Value::F64).collect()
        }
        Value::Array(Array::Bool(all)) => {
            let all = all.iter().map(|v| !v).collect();
            vec![Value::Array(Array::Bool(all))]
        }
        Value::Array(array) => {
            let elements: Option<Vec<Value>> = (0..array.len()).map(|i| array.get(i)).collect();
            let elements = elements.unwrap_or_default();
            let is_float = matches!(array, Array::F32(_) | Array::F64(_));
            let changed = |at: usize| -> Option<Value> {
                let floats = elements.iter().map(|v| Some(float(v.as_f64()?)[at]));
                let integers = elements.iter().map(|v| Some(integer(v.as_i64()?)[at]));
                Some(Value::Array(match is_float {
                    true => Array::F64(floats.collect::<Option<_>>()?),
                    false => Array::I64(integers.collect::<Option<_>>()?),
                }))
            };
            (0..2).filter_map(changed).collect()
        }
        other => {
            let all = other.as_i64().map(integer).into_iter().flatten();
            all.map(Value::I64).collect()
        }
    }
}
