//! Tests (`is …`) whose Jinja2 meaning differs from the engine's own.

use minijinja::value::ValueKind;
use minijinja::{Environment, Value};

/// Registers the tests of this module.
pub(super) fn register(env: &mut Environment<'static>) {
    env.add_test("sequence", is_sequence);
    env.add_test("iterable", is_iterable);
    env.add_test("callable", is_callable);
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

fn is_callable(value: &Value) -> bool {
    value.kind() == ValueKind::Plain
}
