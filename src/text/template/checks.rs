//! Tests (`is …`) whose Jinja2 meaning differs from the engine's own.

use std::cmp::Ordering;

use minijinja::value::ValueKind;
use minijinja::{Environment, Error, Value};

use super::budget::{self, Walk};
use super::operators::{compare, modulo};
use super::value::str;

/// Registers the tests of this module.
pub(super) fn register(env: &mut Environment<'static>) {
    env.add_test("sequence", is_sequence);
    env.add_test("iterable", is_iterable);
    env.add_test("callable", is_callable);
    env.add_test("odd", |value: &Value| {
        Ok::<_, Error>(remainder(value, 2)? == Value::from(1))
    });
    env.add_test("even", |value: &Value| {
        Ok::<_, Error>(remainder(value, 2)? == Value::from(0))
    });
    env.add_test("divisibleby", |value: &Value, by: i64| {
        Ok::<_, Error>(remainder(value, by)? == Value::from(0))
    });
    env.add_test("lower", |value: &Value| {
        is_cased(value, char::is_lowercase, char::is_uppercase)
    });
    env.add_test("upper", |value: &Value| {
        is_cased(value, char::is_uppercase, char::is_lowercase)
    });
    type Names = &'static [&'static str];
    type Holds = fn(Ordering) -> bool;
    let ordered: [(Names, Holds); 4] = [
        (&["lt", "lessthan", "<"], Ordering::is_lt),
        (&["le", "<="], Ordering::is_le),
        (&["gt", "greaterthan", ">"], Ordering::is_gt),
        (&["ge", ">="], Ordering::is_ge),
    ];
    for (names, holds) in ordered {
        for name in names {
            env.add_test(*name, move |value: &Value, other: &Value| {
                budget::walk(value, Walk::Read)?;
                budget::walk(other, Walk::Read)?;
                compare(value, other).map(holds)
            });
        }
    }
}

fn remainder(value: &Value, by: i64) -> Result<Value, Error> {
    budget::read(budget::size(value))?;
    modulo(value, &Value::from(by))
}

/// Whether the letters of a value's text have one case.
fn is_cased(
    value: &Value,
    wanted: fn(char) -> bool,
    unwanted: fn(char) -> bool,
) -> Result<bool, Error> {
    budget::walk(value, Walk::Read)?;
    let text = str(value)?;
    Ok(text.chars().any(wanted) && !text.chars().any(unwanted))
}

/// Whatever has a length and items: in Python also texts, mappings and undefined values.
fn is_sequence(value: &Value) -> bool {
    value.kind() == ValueKind::Map || is_iterable(value)
}

fn is_iterable(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::Undefined
            | ValueKind::String
            | ValueKind::Seq
            | ValueKind::Map
            | ValueKind::Iterable
    )
}

/// In Python also undefined values.
fn is_callable(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Plain | ValueKind::Undefined)
}
