//! The filters, tests and functions of Jinja2, with Python's semantics.
//!
//! Each row behaves like Jinja2's callable of that name (`str()` of any value, Python's white space, attributes
//! separate from items). The engine's own callables are used where they do the same, with charges before and after;
//! those that Jinja2 does not have are removed. Filters that lay out web pages or reports are left out: no prompt needs
//! them.

use minijinja::filters::{map, reject, rejectattr, select, selectattr};
use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, State, Value, filters, functions, tests};

use super::budget::{self, ChargedText, ITEM, Walk, iterate, owned};
use super::callable::{BoundCall, CallableRow, run};
use super::error::fault;
use super::methods::{is_space, lines, pairs, replace, text_method};
use super::operators::{add, charge_printf, compare, modulo};
use super::print::{escaped, str, tojson};
use super::sorting::{self, attribute};
use super::value::{PyNumber, list, same_safety};

const FILTERS: &[CallableRow] = &[
    ("tojson", "ensure_ascii indent separators sort_keys", tojson),
    ("string", "", |call| {
        Ok(same_safety(call.this, str(call.this)?))
    }),
    ("safe", "", |call| {
        str(call.this).map(Value::from_safe_string)
    }),
    ("escape e", "", |call| {
        escaped(call.this).map(Value::from_safe_string)
    }),
    ("upper lower capitalize", "", |call| {
        by_method(call, call.name)
    }),
    ("trim", "chars", |call| by_method(call, "strip")),
    ("replace", "old new count", |call| {
        let (old, new) = (str(call.required(0)?)?, str(call.required(1)?)?);
        replace(&str(call.this)?, &old, &new, call.int(2)?)
    }),
    ("title", "", |call| {
        let text = filters::title(str(call.this)?.into());
        Ok(same_safety(call.this, text))
    }),
    ("indent", "width first blank", indent),
    ("join", "d attribute", join),
    ("sum", "attribute start", sum),
    ("length count", "", length),
    ("items", "", |call| match call.this.is_undefined() {
        true => Ok(list(Vec::new(), false)),
        false => pairs(call.this),
    }),
    ("default d", "default_value boolean", |call| {
        if call.this.is_undefined() || (call.flag(1) && !call.this.is_true()) {
            return Ok(call.given(0).cloned().unwrap_or_else(|| Value::from("")));
        }
        Ok(call.this.clone())
    }),
    ("round", "precision method", round),
    ("int", "default base", int),
    ("float", "default", |call| {
        let default = || call.given(0).cloned().unwrap_or_else(|| Value::from(0.0));
        Ok(as_float(call.this)?.map_or_else(default, Value::from))
    }),
    ("first", "", |call| {
        Ok(iterate(call.this)?.next().unwrap_or(Value::UNDEFINED))
    }),
    ("last", "", |call| {
        Ok(iterate(call.this)?.last().unwrap_or(Value::UNDEFINED))
    }),
    ("min max", "case_sensitive attribute", sorting::outermost),
    ("sort", "reverse case_sensitive attribute", sorting::sort),
    ("unique", "case_sensitive attribute", sorting::unique),
    ("dictsort", "case_sensitive by reverse", sorting::dict_sort),
];

const TESTS: &[CallableRow] = &[
    ("sequence iterable", "", |call| {
        use ValueKind as K;
        Ok(Value::from(matches!(
            call.this.kind(),
            K::Undefined | K::String | K::Seq | K::Map | K::Iterable
        )))
    }),
    ("odd", "", |call| leaves(call, &Value::from(2), 1)),
    ("even", "", |call| leaves(call, &Value::from(2), 0)),
    ("divisibleby", "num", |call| {
        leaves(call, call.required(0)?, 0)
    }),
    ("lower", "", |call| by_method(call, "islower")),
    ("upper", "", |call| by_method(call, "isupper")),
    (
        "lt lessthan < le <= gt greaterthan > ge >=",
        "other",
        ordered,
    ),
];

/// Filters of the engine that Jinja2 does not have, or that differ from Jinja2's and that no prompt needs.
const UNKNOWN: [&str; 9] = [
    "attr", "batch", "chain", "groupby", "lines", "pprint", "slice", "split", "zip",
];

pub(super) fn register(env: &mut Environment<'static>) {
    for name in UNKNOWN {
        env.remove_filter(name);
    }
    env.remove_global("debug");
    for row in FILTERS {
        for name in row.0.split(' ') {
            env.add_filter(name, callable(*row, name));
        }
    }
    for row in TESTS {
        for name in row.0.split(' ') {
            env.add_test(name, callable(*row, name));
        }
    }
    let engines: [(&str, Value, Charge); 9] = [
        ("abs", Value::from_function(filters::abs), walked),
        ("list", Value::from_function(filters::list), items),
        ("reverse", Value::from_function(filters::reverse), items),
        ("format", Value::from_function(filters::format), formatted),
        ("map", Value::from_function(map), items_if_true),
        ("select", Value::from_function(select), items_if_true),
        ("reject", Value::from_function(reject), items_if_true),
        (
            "selectattr",
            Value::from_function(selectattr),
            items_if_true,
        ),
        (
            "rejectattr",
            Value::from_function(rejectattr),
            items_if_true,
        ),
    ];
    for (name, inner, charge) in engines {
        env.add_filter(name, charged(inner, charge));
    }
    for name in ["eq", "equalto", "=="] {
        env.add_test(name, charged(Value::from_function(tests::is_eq), walked));
    }
    for name in ["ne", "!="] {
        env.add_test(name, charged(Value::from_function(tests::is_ne), walked));
    }
    env.add_test("in", charged(Value::from_function(tests::is_in), walked));
    let namespace = Value::from_function(functions::namespace);
    env.add_function("namespace", charged(namespace, walked));
    let dict = Value::from_function(functions::dict);
    env.add_function("dict", charged(dict, defined));
}

/// A callable of a table, in the form that the engine calls.
fn callable(
    row: CallableRow,
    name: &'static str,
) -> impl Fn(&Value, Rest<ValueOrKwargs>) -> Result<Value, Error> {
    move |this, args| run(row, name, this, &args.into_values())
}

/// A callable of the engine that runs after `charge` has accepted its arguments. A view in its result becomes a list.
fn charged(
    inner: Value,
    charge: Charge,
) -> impl Fn(&mut State, Rest<ValueOrKwargs>) -> Result<Value, Error> {
    move |state, args| {
        let args = args.into_values();
        if !charge(&args)? {
            return Ok(list(Vec::new(), false));
        }
        let result = inner.call(state, &args)?;
        budget::made(budget::size(&result))?;
        owned(result)
    }
}

/// A function that charges for arguments. It returns false if the result is an empty list without a call.
type Charge = fn(&[Value]) -> Result<bool, Error>;

fn walked(args: &[Value]) -> Result<bool, Error> {
    let mut args = args.iter();
    args.try_for_each(|arg| budget::walk(arg, Walk::Read))?;
    Ok(true)
}

fn defined(args: &[Value]) -> Result<bool, Error> {
    match args.iter().any(Value::is_undefined) {
        true => Err(fault("the value is undefined")),
        false => walked(args),
    }
}

fn formatted(args: &[Value]) -> Result<bool, Error> {
    if let Some((pattern, args)) = args.split_first() {
        charge_printf(&str(pattern)?, args)?;
    }
    Ok(true)
}

/// Charges for filters that iterate over the items of a value.
fn items(args: &[Value]) -> Result<bool, Error> {
    let n_items = args.first().and_then(Value::len).unwrap_or(0);
    budget::made(n_items.saturating_mul(ITEM))?;
    walked(args)
}

/// The same for filters whose result is empty for a false value, as in Jinja2.
fn items_if_true(args: &[Value]) -> Result<bool, Error> {
    let is_false = |value: &Value| !value.is_kwargs() && !value.is_true();
    Ok(!args.first().is_some_and(is_false) && items(args)?)
}

/// The result of a text method, applied to the text of any value.
fn by_method(call: &BoundCall<'_>, method: &str) -> Result<Value, Error> {
    let args: Vec<Value> = call.args.iter().flatten().cloned().collect();
    match call.this.as_str() {
        Some(_) => text_method(call.this, method, &args),
        None => text_method(&Value::from(str(call.this)?), method, &args),
    }
}

/// `value | indent(width=4, first=False, blank=False)`
fn indent(call: &BoundCall<'_>) -> Result<Value, Error> {
    let kind = call.this.kind();
    let text = call.this.as_str();
    let text = text.ok_or_else(|| fault(format!("indent: {kind} is not a string")))?;
    let (margin, width) = match call.value(0).and_then(Value::as_str) {
        Some(margin) => (margin, 1),
        None => (" ", usize::try_from(call.int(0)?.unwrap_or(4)).unwrap_or(0)),
    };
    budget::made(width)?;
    let margin = margin.repeat(width);
    // Jinja2 appends a line break, which preserves one at the end of the text.
    let text = format!("{text}\n");
    let lines = lines(&text, false);
    budget::made(margin.len().saturating_mul(lines.len()))?;
    let mut out = String::new();
    for (at, line) in lines.into_iter().enumerate() {
        out += if at > 0 { "\n" } else { "" };
        let is_indented = match at {
            0 => call.flag(1),
            _ => call.flag(2) || !line.is_empty(),
        };
        out += if is_indented { &margin } else { "" };
        out += line;
    }
    Ok(same_safety(call.this, out))
}

fn join(call: &BoundCall<'_>) -> Result<Value, Error> {
    let separator = call.given(0).map(str).transpose()?.unwrap_or_default();
    let mut out = ChargedText::default();
    for (position, item) in iterate(call.this)?.enumerate() {
        out.push(if position > 0 { &separator } else { "" })?;
        out.push(&str(&attribute(&item, call.value(1))?)?)?;
    }
    Ok(out.into())
}

fn sum(call: &BoundCall<'_>) -> Result<Value, Error> {
    let start = call.given(1).cloned().unwrap_or_else(|| Value::from(0));
    iterate(call.this)?.try_fold(start, |total, item| {
        add(&total, &attribute(&item, call.value(0))?)
    })
}

fn length(call: &BoundCall<'_>) -> Result<Value, Error> {
    if call.this.is_undefined() {
        return Ok(Value::from(0));
    }
    let missing = || fault(format!("object of type {} has no len()", call.this.kind()));
    call.this.len().map(Value::from).ok_or_else(missing)
}

fn int(call: &BoundCall<'_>) -> Result<Value, Error> {
    let base = call.int(1)?.unwrap_or(10);
    let Some(base) = u32::try_from(base)
        .ok()
        .filter(|base| (2..=36).contains(base))
    else {
        return Err(fault(format!("int: the base is {base}, expected 2 to 36")));
    };
    let parsed = match (PyNumber::of(call.this), call.this.as_str()) {
        (Some(PyNumber::Int(int)), _) => Some(int),
        (_, Some(text)) => digits(text).and_then(|digits| of_base(&digits, base)),
        _ => None,
    };
    // A larger float exceeds i128.
    let float = as_float(call.this)?.filter(|float| float.abs() < 1e38);
    let parsed = parsed.or_else(|| float.map(|float| float.trunc() as i128));
    let default = || call.given(0).cloned().unwrap_or_else(|| Value::from(0));
    Ok(parsed.map_or_else(default, Value::from))
}

/// The integer that a text writes in a base, with or without the prefix of the base.
fn of_base(digits: &str, base: u32) -> Option<i128> {
    let (is_negative, digits) = match digits.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, digits.strip_prefix('+').unwrap_or(digits)),
    };
    let prefix = match base {
        2 => "0b",
        8 => "0o",
        16 => "0x",
        _ => "",
    };
    let has_prefix = digits
        .get(..2)
        .is_some_and(|start| start.eq_ignore_ascii_case(prefix));
    let digits = if has_prefix { &digits[2..] } else { digits };
    if !digits.starts_with(|c: char| c.is_digit(base)) {
        return None;
    }
    let int = i128::from_str_radix(digits, base).ok()?;
    Some(if is_negative { -int } else { int })
}

fn digits(text: &str) -> Option<String> {
    let text = text.trim_matches(is_space);
    let is_joined = |(i, _): (usize, _)| {
        let digit = |at: usize| text.as_bytes().get(at).is_some_and(u8::is_ascii_digit);
        i > 0 && digit(i - 1) && digit(i + 1)
    };
    let is_number = text.match_indices('_').all(is_joined);
    is_number.then(|| text.replace('_', ""))
}

/// Python's `float(value)`; `None` if it fails.
fn as_float(value: &Value) -> Result<Option<f64>, Error> {
    match value.as_str() {
        _ if value.is_undefined() => Err(fault("the value is undefined")),
        Some(text) => Ok(digits(text).and_then(|digits| digits.parse().ok())),
        None => Ok(PyNumber::of(value).map(PyNumber::as_f64)),
    }
}

/// `value | round(precision=0, method='common')`; other methods return a float.
fn round(call: &BoundCall<'_>) -> Result<Value, Error> {
    let precision = i32::try_from(call.int(0)?.unwrap_or(0));
    let precision = precision.map_err(|_| fault("round: too many digits"))?;
    let method = call.text(1)?.unwrap_or("common");
    let value = match method {
        "common" => call.this.clone(),
        _ => Value::from(f64::try_from(call.this.clone())?),
    };
    let no_more = Kwargs::from_iter::<[(&str, Value); 0]>([]);
    filters::round(value, Some(precision), Some(method), no_more)
}

/// Whether division leaves this remainder.
fn leaves(call: &BoundCall<'_>, by: &Value, rest: i64) -> Result<Value, Error> {
    modulo(call.this, by).map(|found| Value::from(found == Value::from(rest)))
}

fn ordered(call: &BoundCall<'_>) -> Result<Value, Error> {
    let other = call.required(0)?;
    budget::walk(call.this, Walk::Read)?;
    budget::walk(other, Walk::Read)?;
    let order = compare(call.this, other)?;
    Ok(Value::from(match call.name {
        "lt" | "lessthan" | "<" => order.is_lt(),
        "le" | "<=" => order.is_le(),
        "gt" | "greaterthan" | ">" => order.is_gt(),
        _ => order.is_ge(),
    }))
}
