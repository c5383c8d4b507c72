//! Python's `+`, `-`, `~`, `*`, `%` and slices, and the checks that `rewrite` puts into expressions.
//!
//! The engine's own operators know neither Python's `Markup` (a text marked safe escapes what it is
//! added to) nor a bound on what they make. All are filters, under the names of [`names`].
//! Invariant: lists made here hold their items themselves, never a view of another list, so that
//! views do not pile up in a loop.

use std::cmp::Ordering;

use minijinja::formatting::{FormatStyle, format};
use minijinja::value::{Rest, Tuple, ValueKind};
use minijinja::{Environment, Error, Value};

use super::arguments::optional_int;
use super::budget::{self, ITEM, Walk};
use super::methods::charge_printf;
use super::value::{as_float, fault, str};

/// The filters of this module; a template has no reason to use these names itself.
pub(super) mod names {
    pub(in super::super) const ADD: &str = "__add";
    pub(in super::super) const SUB: &str = "__sub";
    pub(in super::super) const CONCAT: &str = "__concat";
    pub(in super::super) const MUL: &str = "__mul";
    pub(in super::super) const MOD: &str = "__mod";
    /// Around a value that is compared, searched or looked up.
    pub(in super::super) const WALK: &str = "__walk";
    /// Around what a loop runs over.
    pub(in super::super) const ITERATE: &str = "__iterate";
    /// Around a value whose items are taken.
    pub(in super::super) const INDEX: &str = "__index";
    pub(in super::super) const SLICE: &str = "__slice";
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
    env.add_filter(names::MOD, modulo);
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
    env.add_filter(names::SLICE, slice);
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

/// `left % right`: the remainder with the sign of the divisor, or a text with values put in.
pub(super) fn modulo(left: &Value, right: &Value) -> Result<Value, Error> {
    if let Some(pattern) = left.as_str() {
        let args: Vec<Value> = match right.is_tuple() {
            true => right.try_iter()?.collect(),
            false => vec![right.clone()],
        };
        charge_printf(pattern, &args)?;
        return Ok(same_safety(
            left,
            format(FormatStyle::Printf, pattern, &args)?,
        ));
    }
    match (number(left), number(right)) {
        (Some(_), Some(Number::Int(0))) => Err(fault("division by zero")),
        (Some(Number::Int(a)), Some(Number::Int(b))) => {
            let rest = a.checked_rem(b);
            int(rest.map(|rest| {
                if rest != 0 && (rest < 0) != (b < 0) {
                    rest + b
                } else {
                    rest
                }
            }))
        }
        (Some(a), Some(b)) => {
            let (a, b) = (a.as_f64(), b.as_f64());
            let rest = a % b;
            let is_other_sign = rest != 0.0 && (rest < 0.0) != (b < 0.0);
            Ok(Value::from(if is_other_sign { rest + b } else { rest }))
        }
        _ => Err(unsupported("%", left, right)),
    }
}

/// The order of two values where Python has one: of numbers, of texts, of lists item by item.
pub(super) fn compare(left: &Value, right: &Value) -> Result<Ordering, Error> {
    if let (Some(a), Some(b)) = (left.as_str(), right.as_str()) {
        budget::read(2 * ITEM + a.len().min(b.len()))?;
        return Ok(a.cmp(b));
    }
    budget::read(2 * ITEM)?;
    if let (Some(a), Some(b)) = (number(left), number(right)) {
        return Ok(match (a, b) {
            (Number::Int(a), Number::Int(b)) => a.cmp(&b),
            (a, b) => a
                .as_f64()
                .partial_cmp(&b.as_f64())
                .unwrap_or(Ordering::Equal),
        });
    }
    if is_list(left) && is_list(right) && left.is_tuple() == right.is_tuple() {
        for (a, b) in left.try_iter()?.zip(right.try_iter()?) {
            if a != b {
                return compare(&a, &b);
            }
        }
        return Ok(left.len().cmp(&right.len()));
    }
    Err(unsupported("<", left, right))
}

/// A value whose items are taken. In a text the engine counts characters to find a position, and in
/// a view it counts items.
fn index(value: &Value) -> Result<Value, Error> {
    if matches!(value.kind(), ValueKind::String | ValueKind::Iterable) {
        budget::read(budget::size(value).saturating_mul(4))?;
    }
    Ok(value.clone())
}

/// `value[start:stop:step]`; of what has no items an undefined value, as Jinja2 gives it.
fn slice(value: &Value, bounds: Rest<Value>) -> Result<Value, Error> {
    let mut bounds = bounds.0.into_iter();
    let mut bound = |name| optional_int(&bounds.next(), name);
    let (start, stop) = (bound("start")?, bound("stop")?);
    let step = bound("step")?.unwrap_or(1);
    if step == 0 {
        return Err(fault("slice step cannot be zero"));
    }
    budget::made(budget::size(value))?;
    if value.is_undefined() {
        return Err(fault("the value is undefined"));
    }
    if let Some(text) = value.as_str() {
        budget::read(text.len().saturating_mul(4))?;
        let chars: Vec<char> = text.chars().collect();
        let taken = sliced(chars.len(), start, stop, step).map(|at| chars[at]);
        return Ok(same_safety(value, taken.collect()));
    }
    if !is_list(value) {
        return Ok(Value::UNDEFINED);
    }
    let items: Vec<Value> = owned(value.clone())?.try_iter()?.collect();
    let taken = sliced(items.len(), start, stop, step).map(|at| items[at].clone());
    Ok(list(taken.collect(), value.is_tuple()))
}

/// The positions of a slice of `len` items, as Python counts them.
fn sliced(
    len: usize,
    start: Option<i64>,
    stop: Option<i64>,
    step: i64,
) -> impl Iterator<Item = usize> {
    let len = len as i64;
    let is_up = step > 0;
    let (lowest, highest) = if is_up { (0, len) } else { (-1, len - 1) };
    let place = |bound: Option<i64>, default: i64| match bound {
        None => default,
        Some(at) if at < 0 => at.saturating_add(len).clamp(lowest, highest),
        Some(at) => at.clamp(lowest, highest),
    };
    let (first, end) = if is_up {
        (place(start, lowest), place(stop, highest))
    } else {
        (place(start, highest), place(stop, lowest))
    };
    let next = move |at: &i64| at.checked_add(step);
    std::iter::successors(Some(first), next)
        .take_while(move |at| if is_up { *at < end } else { *at > end })
        .map(|at| at as usize)
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

/// A whole number or boolean as Python computes with it.
pub(super) fn as_int(value: &Value) -> Option<i128> {
    match number(value) {
        Some(Number::Int(int)) => Some(int),
        _ => None,
    }
}

fn int(result: Option<i128>) -> Result<Value, Error> {
    let result = result.ok_or_else(|| fault("the number is too large"))?;
    Ok(i64::try_from(result).map_or_else(|_| Value::from(result), Value::from))
}

fn unsupported(operator: &str, left: &Value, right: &Value) -> Error {
    fault(std::format!(
        "unsupported operand types for {operator}: {} and {}",
        left.kind(),
        right.kind()
    ))
}
