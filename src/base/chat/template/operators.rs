//! Python's `+`, `~`, `*`, `%`, subscripts and slices, and the charges for comparisons and stores.
//!
//! The engine's own operators neither support Python's `Markup` (a text marked safe escapes what is added to it) nor
//! limit the size of their results; `guard` replaces them by these filters. Invariant: lists created here hold their
//! items themselves, never a view of another list, so that views do not pile up in a loop.

use std::cmp::Ordering;

use minijinja::formatting::{FormatStyle, format};
use minijinja::value::{Rest, ValueKind};
use minijinja::{Environment, Error, Value};

use super::budget::{self, ITEM, Walk, owned};
use super::error::fault;
use super::print::{escaped, str};
use super::value::{PyNumber, int, is_list, list, same_safety};

/// The names of this module's filters, the most used ones first. No template needs these names itself.
pub(super) const NAMES: &str = "__keep __walk __item __add __iterate __concat __keep_inside __slice __mod __mul __map __gt __lt \
     __gte __lte __ordered";

pub(super) fn register(env: &mut Environment<'static>) {
    env.add_filter("__add", add);
    env.add_filter("__concat", concat);
    env.add_filter("__mul", mul);
    env.add_filter("__mod", modulo);
    env.add_filter("__item", item);
    env.add_filter("__slice", slice);
    env.add_filter("__map", map);
    type Holds = fn(Ordering) -> bool;
    let orders: [(&str, Holds); 4] = [
        ("__gt", Ordering::is_gt),
        ("__gte", Ordering::is_ge),
        ("__lt", Ordering::is_lt),
        ("__lte", Ordering::is_le),
    ];
    for (name, holds) in orders {
        env.add_filter(name, move |left: &Value, right: &Value| {
            // Nothing is above, below or equal to what is not a number.
            let is_nan =
                |value| matches!(PyNumber::of(value), Some(PyNumber::Float(x)) if x.is_nan());
            let order = compare(left, right)?;
            Ok::<_, Error>(holds(order) && !is_nan(left) && !is_nan(right))
        });
    }
    env.add_filter("__ordered", |pair: Value| {
        let item = |at: usize| pair.get_item(&Value::from(at));
        compare(&item(0)?, &item(1)?).map(|_| pair.clone())
    });
    // The walks for a value that is compared or searched, one that is stored in a variable, one that is stored in a
    // namespace.
    let walks = [
        ("__walk", Walk::Read),
        ("__keep", Walk::Keep),
        ("__keep_inside", Walk::KeepInside),
    ];
    for (name, walk) in walks {
        env.add_filter(name, move |value: Value| {
            budget::walk(&value, walk).map(|()| value)
        });
    }
    env.add_filter("__iterate", |value: Value| {
        // A loop over a text first counts its characters.
        budget::read(count_cost(&value)).map(|()| value)
    });
}

fn count_cost(value: &Value) -> usize {
    value.as_str().map_or(0, str::len).saturating_mul(4)
}

fn arithmetic(
    operator: &str,
    left: &Value,
    right: &Value,
    of_ints: fn(i128, i128) -> Option<i128>,
    of_floats: fn(f64, f64) -> f64,
) -> Result<Value, Error> {
    match (PyNumber::of(left), PyNumber::of(right)) {
        (Some(PyNumber::Int(a)), Some(PyNumber::Int(b))) => int(of_ints(a, b)),
        (Some(a), Some(b)) => Ok(Value::from(of_floats(a.as_f64(), b.as_f64()))),
        _ => Err(unsupported(operator, left, right)),
    }
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
    arithmetic("+", left, right, i128::checked_add, |a, b| a + b)
}

/// `left ~ right`. Without automatic escaping, Jinja2 joins plain texts here, even from markup.
fn concat(left: &Value, right: &Value) -> Result<Value, Error> {
    budget::made(budget::size(left).saturating_add(budget::size(right)))?;
    Ok(Value::from(str(left)? + &str(right)?))
}

/// `left * right`
fn mul(left: &Value, right: &Value) -> Result<Value, Error> {
    let (repeated, times) = match PyNumber::of(left) {
        Some(_) => (right, left),
        None => (left, right),
    };
    if !is_list(repeated) && repeated.kind() != ValueKind::String {
        return arithmetic("*", left, right, i128::checked_mul, |a, b| a * b);
    }
    let Some(PyNumber::Int(times)) = PyNumber::of(times) else {
        return Err(unsupported("*", left, right));
    };
    let times = usize::try_from(times.max(0)).unwrap_or(usize::MAX);
    let repeated = &owned(repeated.clone())?;
    let size = budget::size(repeated);
    // Any number of repetitions of nothing costs nothing.
    let times = if size == 0 { 0 } else { times };
    budget::made(size.saturating_mul(times))?;
    if let Some(text) = repeated.as_str() {
        return Ok(same_safety(repeated, text.repeat(times)));
    }
    let items: Vec<Value> = repeated.try_iter()?.collect();
    let n_items = items.len() * times;
    let items = items.into_iter().cycle().take(n_items);
    Ok(list(items.collect(), repeated.is_tuple()))
}

/// `left % right`: the remainder with the sign of the divisor, or a text with formatted values.
pub(super) fn modulo(left: &Value, right: &Value) -> Result<Value, Error> {
    if let Some(pattern) = left.as_str() {
        let args: Vec<Value> = match right.is_tuple() {
            true => right.try_iter()?.collect(),
            false => vec![right.clone()],
        };
        charge_printf(pattern, &args)?;
        let text = format(FormatStyle::Printf, pattern, &args)?;
        return Ok(same_safety(left, text));
    }
    if let (Some(_), Some(PyNumber::Int(0))) = (PyNumber::of(left), PyNumber::of(right)) {
        return Err(fault("division by zero"));
    }
    let of_ints = |a: i128, b: i128| {
        let rest = a.checked_rem(b)?;
        let is_between = rest != 0 && (rest < 0) != (b < 0);
        Some(if is_between { rest + b } else { rest })
    };
    let of_floats = |a: f64, b: f64| {
        let rest = a % b;
        let is_between = rest != 0.0 && (rest < 0.0) != (b < 0.0);
        if is_between { rest + b } else { rest }
    };
    arithmetic("%", left, right, of_ints, of_floats)
}

/// Charges for the possible size of a formatted text: every number in the pattern may be a width, every field may print
/// every argument, and a width may itself be an argument.
pub(super) fn charge_format(pattern: &str, args: &[Value]) -> Result<(), Error> {
    let widths = pattern
        .split(|c: char| !c.is_ascii_digit())
        .filter(|digits| !digits.is_empty())
        .map(|digits| digits.parse().unwrap_or(usize::MAX))
        .fold(0, usize::saturating_add);
    let n_fields = pattern.matches(['{', '%']).count();
    let is_nested = pattern.contains('*')
        || pattern
            .split('}')
            .any(|part| part.trim_start_matches(|c| c != '{').matches('{').count() > 1);
    let mut longest = 0;
    for arg in args {
        budget::walk(arg, Walk::Read)?;
        let width = usize::try_from(arg.clone()).ok().filter(|_| is_nested);
        longest = longest.max(str(arg)?.len()).max(width.unwrap_or(0));
    }
    budget::made(widths.saturating_add(n_fields.saturating_mul(longest)))
}

/// [`charge_format`] for `pattern % args`. All arguments must be used.
pub(super) fn charge_printf(pattern: &str, args: &[Value]) -> Result<(), Error> {
    let is_by_name = pattern.contains("%(") || args.iter().any(Value::is_kwargs);
    let n_used = pattern.replace("%%", "").matches(['%', '*']).count();
    let is_mapping = matches!(args, [only] if only.kind() == ValueKind::Map);
    if !is_by_name && !is_mapping && args.len() > n_used {
        let message = "not all arguments converted during string formatting";
        return Err(fault(message));
    }
    charge_format(pattern, args)
}

/// The order of two values, if Python defines one: numbers, texts, lists item by item.
pub(super) fn compare(left: &Value, right: &Value) -> Result<Ordering, Error> {
    if let (Some(a), Some(b)) = (left.as_str(), right.as_str()) {
        budget::read(2 * ITEM + a.len().min(b.len()))?;
        return Ok(a.cmp(b));
    }
    budget::read(2 * ITEM)?;
    match (PyNumber::of(left), PyNumber::of(right)) {
        (Some(PyNumber::Int(a)), Some(PyNumber::Int(b))) => return Ok(a.cmp(&b)),
        (Some(a), Some(b)) => {
            let order = a.as_f64().partial_cmp(&b.as_f64());
            return Ok(order.unwrap_or(Ordering::Equal));
        }
        _ => {}
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

/// `value[key]`. To find a position, the engine counts characters in a text and items in a view.
fn item(value: &Value, key: &Value) -> Result<Value, Error> {
    if value.kind() == ValueKind::Iterable {
        budget::read(budget::size(value).saturating_mul(4))?;
    }
    budget::read(count_cost(value))?;
    budget::walk(key, Walk::Read)?;
    value.get_item(key)
}

/// `{key: value, …}`; the keys are compared with each other.
fn map(parts: Rest<Value>) -> Result<Value, Error> {
    let (mut parts, mut pairs) = (parts.0.into_iter(), Vec::new());
    while let (Some(key), Some(value)) = (parts.next(), parts.next()) {
        budget::walk(&key, Walk::Read)?;
        pairs.push((key, value));
    }
    Ok(Value::from_pairs(pairs))
}

/// `value[start:stop:step]`. For a value without items the result is undefined, as in Jinja2.
fn slice(value: &Value, start: &Value, stop: &Value, step: &Value) -> Result<Value, Error> {
    let bound = |bound: &Value| match bound.is_none() {
        true => Ok(None),
        false => i64::try_from(bound.clone()).map(Some),
    };
    let (start, stop, step) = (bound(start)?, bound(stop)?, bound(step)?.unwrap_or(1));
    if step == 0 {
        return Err(fault("slice step cannot be zero"));
    }
    budget::made(budget::size(value))?;
    if value.is_undefined() {
        return Err(fault("the value is undefined"));
    }
    if let Some(text) = value.as_str() {
        budget::read(count_cost(value))?;
        let len = text.chars().count();
        if step == 1 {
            let (first, end) = bounds(len, start, stop, step);
            let byte_at = |position: i64| {
                let mut indices = text.char_indices();
                let found = indices.nth(position as usize);
                found.map_or(text.len(), |(at, _)| at)
            };
            let part = text.get(byte_at(first)..byte_at(end));
            return Ok(same_safety(value, part.unwrap_or_default()));
        }
        let chars: Vec<char> = text.chars().collect();
        let taken = positions(len, start, stop, step).map(|at| chars[at]);
        return Ok(same_safety(value, taken.collect::<String>()));
    }
    if !is_list(value) {
        return Ok(Value::UNDEFINED);
    }
    let items: Vec<Value> = owned(value.clone())?.try_iter()?.collect();
    let taken = positions(items.len(), start, stop, step).map(|at| items[at].clone());
    Ok(list(taken.collect(), value.is_tuple()))
}

/// The start and end of a slice of `len` items, by Python's rules.
fn bounds(len: usize, start: Option<i64>, stop: Option<i64>, step: i64) -> (i64, i64) {
    let len = len as i64;
    let (lowest, highest) = if step > 0 { (0, len) } else { (-1, len - 1) };
    let place = |bound: Option<i64>, default: i64| match bound {
        None => default,
        Some(at) if at < 0 => at.saturating_add(len).clamp(lowest, highest),
        Some(at) => at.clamp(lowest, highest),
    };
    if step > 0 {
        (place(start, lowest), place(stop, highest))
    } else {
        (place(start, highest), place(stop, lowest))
    }
}

/// The positions of a slice of `len` items.
fn positions(
    len: usize,
    start: Option<i64>,
    stop: Option<i64>,
    step: i64,
) -> impl Iterator<Item = usize> {
    let (first, end) = bounds(len, start, stop, step);
    std::iter::successors(Some(first), move |at| at.checked_add(step))
        .take_while(move |at| if step > 0 { *at < end } else { *at > end })
        .map(|at| at as usize)
}

fn unsupported(operator: &str, left: &Value, right: &Value) -> Error {
    let (left, right) = (left.kind(), right.kind());
    fault(std::format!(
        "unsupported operand types for {operator}: {left} and {right}"
    ))
}
