//! Python's `+`, `-`, `~` and `*`, and the checks that `rewrite` puts into expressions.
//!
//! The engine's own operators know neither Python's `Markup` (a text marked safe escapes what it is
//! added to) nor a bound on what they make. All are filters, under the names of [`names`].
//! Invariant: lists made here hold their items themselves, never a view of another list, so that
//! views do not pile up in a loop.

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Environment, Error, Value};

use super::budget::{self, ITEM, Walk};
use super::value::{as_float, fault, str};

/// The filters of this module; a template has no reason to use these names itself.
pub(super) mod names {
    pub(in super::super) const ADD: &str = "__add";
    pub(in super::super) const SUB: &str = "__sub";
    pub(in super::super) const CONCAT: &str = "__concat";
    pub(in super::super) const MUL: &str = "__mul";
    /// Around a value that is compared, searched or looked up.
    pub(in super::super) const WALK: &str = "__walk";
    /// Around what a loop runs over.
    pub(in super::super) const ITERATE: &str = "__iterate";
    /// Around a value whose items or slices are taken.
    pub(in super::super) const INDEX: &str = "__index";
    /// Around a slice.
    pub(in super::super) const OWN: &str = "__own";
    /// Around a value given to a variable.
    pub(in super::super) const KEEP: &str = "__keep";
    /// Around a value given to an attribute of a namespace.
    pub(in super::super) const KEEP_INSIDE: &str = "__keep_inside";
    /// Around the length of a piece of literal text.
    pub(in super::super) const LITERAL: &str = "__literal";
}

/// Registers the filters of this module.
pub(super) fn register(env: &mut Environment<'static>) {
    env.add_filter(names::ADD, add);
    env.add_filter(names::SUB, sub);
    env.add_filter(names::CONCAT, concat);
    env.add_filter(names::MUL, mul);
    for (name, walk) in [
        (names::WALK, Walk::Read),
        (names::KEEP, Walk::Keep),
        (names::KEEP_INSIDE, Walk::KeepInside),
    ] {
        env.add_filter(name, move |value: &Value| {
            budget::walk(value, walk).map(|()| value.clone())
        });
    }
    env.add_filter(names::ITERATE, |value: &Value| {
        // Of a text the loop first counts the characters.
        budget::read(
            value
                .as_str()
                .map_or(0, |text| text.len().saturating_mul(4)),
        )
        .map(|()| value.clone())
    });
    env.add_filter(names::INDEX, index);
    env.add_filter(names::OWN, own);
    env.add_filter(names::LITERAL, |bytes: usize| {
        budget::made(bytes).map(|()| false)
    });
}

/// `left + right`
pub(super) fn add(left: &Value, right: &Value) -> Result<Value, Error> {
    if let (Some(a), Some(b)) = (left.as_str(), right.as_str()) {
        budget::made(a.len().saturating_add(b.len()))?;
        if left.is_safe() || right.is_safe() {
            return Ok(Value::from_safe_string(escaped(left)? + &escaped(right)?));
        }
        return Ok(Value::from([a, b].concat()));
    }
    if is_list(left) && is_list(right) && left.is_tuple() == right.is_tuple() {
        let (left, right) = (&owned(left.clone())?, &owned(right.clone())?);
        budget::made(budget::size(left).saturating_add(budget::size(right)))?;
        let items = left.try_iter()?.chain(right.try_iter()?).collect();
        return Ok(list(items, left.is_tuple()));
    }
    match (number(left), number(right)) {
        (Some(Number::Int(a)), Some(Number::Int(b))) => int(a.checked_add(b)),
        (Some(a), Some(b)) => Ok(Value::from(a.as_f64() + b.as_f64())),
        _ => Err(unsupported("+", left, right)),
    }
}

fn sub(left: &Value, right: &Value) -> Result<Value, Error> {
    match (number(left), number(right)) {
        (Some(Number::Int(a)), Some(Number::Int(b))) => int(a.checked_sub(b)),
        (Some(a), Some(b)) => Ok(Value::from(a.as_f64() - b.as_f64())),
        _ => Err(unsupported("-", left, right)),
    }
}

/// `left ~ right`. Without automatic escaping Jinja2 joins plain texts here, also of markup.
fn concat(left: &Value, right: &Value) -> Result<Value, Error> {
    budget::made(budget::size(left).saturating_add(budget::size(right)))?;
    Ok(Value::from(str(left)? + &str(right)?))
}

fn mul(left: &Value, right: &Value) -> Result<Value, Error> {
    let (repeated, times) = if number(left).is_some() {
        (right, left)
    } else {
        (left, right)
    };
    if !is_list(repeated) && repeated.kind() != ValueKind::String {
        return match (number(left), number(right)) {
            (Some(Number::Int(a)), Some(Number::Int(b))) => int(a.checked_mul(b)),
            (Some(a), Some(b)) => Ok(Value::from(a.as_f64() * b.as_f64())),
            _ => Err(unsupported("*", left, right)),
        };
    }
    let Some(Number::Int(times)) = number(times) else {
        return Err(unsupported("*", left, right));
    };
    let times = usize::try_from(times.max(0)).unwrap_or(usize::MAX);
    let repeated = &owned(repeated.clone())?;
    budget::made(budget::size(repeated).saturating_mul(times))?;
    if budget::size(repeated) == 0 {
        return Ok(repeated.clone());
    }
    if let Some(text) = repeated.as_str() {
        return Ok(same_safety(repeated, text.repeat(times)));
    }
    let items: Vec<Value> = repeated.try_iter()?.collect();
    let n_items = items.len() * times;
    let repeated_items = items.into_iter().cycle().take(n_items).collect();
    Ok(list(repeated_items, repeated.is_tuple()))
}

/// A value whose items are taken. In a text the engine counts characters to find a position, and in
/// a view it counts items.
fn index(value: &Value) -> Result<Value, Error> {
    if matches!(value.kind(), ValueKind::String | ValueKind::Iterable) {
        budget::read(budget::size(value).saturating_mul(4))?;
    }
    Ok(value.clone())
}

/// A list that owns its items, for one that may be a view; texts are charged for.
fn own(value: &Value) -> Result<Value, Error> {
    budget::made(budget::size(value))?;
    owned(value.clone())
}

/// The items of a view as a list; other values as they are.
pub(super) fn owned(value: Value) -> Result<Value, Error> {
    if value.kind() != ValueKind::Iterable {
        return Ok(value);
    }
    let mut items = Vec::new();
    for item in value.try_iter()?.checked() {
        budget::made(ITEM)?;
        items.push(item?);
    }
    Ok(Value::from(items))
}

/// `markupsafe.escape`: markup as it is, any other value's text escaped.
pub(super) fn escaped(value: &Value) -> Result<String, Error> {
    let text = str(value)?;
    if value.is_safe() {
        return Ok(text);
    }
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            _ => out.push(c),
        }
    }
    budget::made(out.len() - text.len())?;
    Ok(out)
}

/// A text made from `source`, marked safe if that is.
pub(super) fn same_safety(source: &Value, text: String) -> Value {
    if source.is_safe() {
        Value::from_safe_string(text)
    } else {
        Value::from(text)
    }
}

fn is_list(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable)
}

fn list(items: Vec<Value>, is_tuple: bool) -> Value {
    if is_tuple {
        Value::from(Tuple::from(items))
    } else {
        Value::from(items)
    }
}

enum Number {
    Int(i128),
    Float(f64),
}

impl Number {
    fn as_f64(&self) -> f64 {
        match self {
            Self::Int(int) => *int as f64,
            Self::Float(float) => *float,
        }
    }
}

/// A number as Python computes with it, which includes the two booleans.
fn number(value: &Value) -> Option<Number> {
    match value.kind() {
        ValueKind::Bool => Some(Number::Int(i128::from(value.is_true()))),
        ValueKind::Number => match as_float(value) {
            Some(float) => Some(Number::Float(float)),
            None => i128::try_from(value.clone()).ok().map(Number::Int),
        },
        _ => None,
    }
}

fn int(result: Option<i128>) -> Result<Value, Error> {
    let result = result.ok_or_else(|| fault("the number is too large"))?;
    Ok(i64::try_from(result).map_or_else(|_| Value::from(result), Value::from))
}

fn unsupported(operator: &str, left: &Value, right: &Value) -> Error {
    fault(format!(
        "unsupported operand types for {operator}: {} and {}",
        left.kind(),
        right.kind()
    ))
}
