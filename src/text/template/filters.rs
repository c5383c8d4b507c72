//! The filters, tests and functions of Jinja2, in Python's terms.
//!
//! Each row takes and gives what Jinja2's callable of that name does (`str()` of anything, Python's white
//! space, attributes apart from items). The engine's own are used where they do the same, with
//! a charge before them and after them; those that Jinja2 does not know are removed. Not here: `urlize`
//! and `wordwrap`, which lay out web pages.

use std::cmp::Ordering;

use minijinja::value::{Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, State, Value, filters, functions, tests};

use super::budget::{self, ITEM, Walk};
use super::call::{Call, Row, run};
use super::lists;
use super::methods::{
    append, charge_printf, has_case, is_dict_method, is_space, pairs, replace, text_method,
};
use super::operators::{add, compare, modulo};
use super::print::{escaped, repr, str, tojson};
use super::text;
use super::value::{Dict, Number, entries, fault, iterate, list, owned, same_safety};

const FILTERS: &[Row] = &[
    ("tojson", "ensure_ascii indent separators sort_keys", tojson),
    ("pprint", "", |call| repr(call.this).map(Value::from)),
    ("string", "", |call| {
        Ok(same_safety(call.this, str(call.this)?))
    }),
    ("safe", "", |call| {
        str(call.this).map(Value::from_safe_string)
    }),
    ("escape e", "", |call| {
        escaped(call.this).map(Value::from_safe_string)
    }),
    ("forceescape", "", |call| {
        escaped(&Value::from(str(call.this)?)).map(Value::from_safe_string)
    }),
    ("upper lower capitalize", "", |call| {
        by_method(call, call.name)
    }),
    ("trim", "chars", |call| by_method(call, "strip")),
    ("center", "width", |call| by_method(call, "center")),
    ("replace", "old new count", |call| {
        let (old, new) = (str(call.required(0)?)?, str(call.required(1)?)?);
        replace(&str(call.this)?, &old, &new, call.int(2)?)
    }),
    ("title", "", text::title),
    ("striptags", "", text::without_tags),
    ("wordcount", "", text::word_count),
    ("indent", "width first blank", text::indent),
    ("truncate", "length killwords end leeway", text::truncate),
    ("urlencode", "", text::url_encoded),
    ("filesizeformat", "binary", text::file_size),
    ("xmlattr", "autospace", text::attributes),
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
    ("attr", "name", attr),
    ("int", "default base", int),
    ("float", "default", float),
    ("round", "precision method", round),
    ("abs", "", |call| filters::abs(as_number(call.this))),
    ("first", "", |call| {
        Ok(iterate(call.this)?.next().unwrap_or(Value::UNDEFINED))
    }),
    ("last", "", |call| {
        Ok(iterate(call.this)?.last().unwrap_or(Value::UNDEFINED))
    }),
    ("min max", "case_sensitive attribute", lists::outermost),
    ("sort", "reverse case_sensitive attribute", lists::sort),
    ("unique", "case_sensitive attribute", lists::unique),
    ("groupby", "attribute default case_sensitive", lists::group),
    ("dictsort", "case_sensitive by reverse", lists::dict_sort),
    ("batch", "linecount fill_with", lists::batch),
    ("slice", "slices fill_with", lists::slice),
];

const TESTS: &[Row] = &[
    ("sequence", "", |call| {
        Ok(Value::from(
            call.this.kind() == ValueKind::Map || is_iterable(call.this),
        ))
    }),
    ("iterable", "", |call| {
        Ok(Value::from(is_iterable(call.this)))
    }),
    ("callable", "", |call| {
        let kind = call.this.kind();
        // In Python also undefined values.
        Ok(Value::from(matches!(
            kind,
            ValueKind::Plain | ValueKind::Undefined
        )))
    }),
    ("odd", "", |call| {
        remainder(call, 2).map(|rest| Value::from(rest == Value::from(1)))
    }),
    ("even", "", |call| {
        remainder(call, 2).map(|rest| Value::from(rest == Value::from(0)))
    }),
    ("divisibleby", "num", |call| {
        let by = call
            .int(0)?
            .ok_or_else(|| fault("missing argument 'num'"))?;
        Ok(Value::from(remainder(call, by)? == Value::from(0)))
    }),
    ("lower upper", "", |call| {
        budget::walk(call.this, Walk::Read)?;
        Ok(Value::from(has_case(
            &str(call.this)?,
            call.name == "upper",
        )))
    }),
    ("lt lessthan <", "other", |call| {
        ordered(call, Ordering::is_lt)
    }),
    ("le <=", "other", |call| ordered(call, Ordering::is_le)),
    ("gt greaterthan >", "other", |call| {
        ordered(call, Ordering::is_gt)
    }),
    ("ge >=", "other", |call| ordered(call, Ordering::is_ge)),
];

/// Filters and functions of the engine that no Jinja2 template can mean.
const FOREIGN_FILTERS: [&str; 4] = ["chain", "zip", "lines", "split"];

/// Registers the filters, tests and functions of Jinja2.
pub(super) fn register(env: &mut Environment<'static>) {
    for name in FOREIGN_FILTERS {
        env.remove_filter(name);
    }
    env.remove_global("debug");
    for (names, params, body) in FILTERS {
        for name in names.split(' ') {
            env.add_filter(name, move |this: &Value, args: Rest<ValueOrKwargs>| {
                run((names, params, *body), name, this, &args.into_values())
            });
        }
    }
    for (names, params, body) in TESTS {
        for name in names.split(' ') {
            env.add_test(name, move |this: &Value, args: Rest<ValueOrKwargs>| {
                run((names, params, *body), name, this, &args.into_values())
            });
        }
    }
    let engines: [(&str, Value, Charge); 8] = [
        ("list", Value::from_function(filters::list), read_all),
        ("reverse", Value::from_function(filters::reverse), read_all),
        ("format", Value::from_function(filters::format), format_args),
        ("map", Value::from_function(filters::map), items_read),
        ("select", Value::from_function(filters::select), items_read),
        (
            "selectattr",
            Value::from_function(filters::selectattr),
            items_read,
        ),
        ("reject", Value::from_function(filters::reject), items_read),
        (
            "rejectattr",
            Value::from_function(filters::rejectattr),
            items_read,
        ),
    ];
    for (name, inner, charge) in engines {
        env.add_filter(name, charged(inner, charge));
    }
    let compared = [
        ("eq equalto ==", Value::from_function(tests::is_eq)),
        ("ne !=", Value::from_function(tests::is_ne)),
        ("in", Value::from_function(tests::is_in)),
    ];
    for (names, inner) in compared {
        for name in names.split(' ') {
            env.add_test(name, charged(inner.clone(), walk_all));
        }
    }
    env.add_function(
        "namespace",
        charged(Value::from_function(functions::namespace), walk_all),
    );
    env.add_function("dict", dict);
}

/// Charges for the arguments; false if there is nothing to look at and the result is an empty list.
type Charge = fn(&[Value]) -> Result<bool, Error>;

/// A callable of the engine, after `charge` has seen its arguments; a view that it gives becomes a list.
fn charged(
    inner: Value,
    charge: Charge,
) -> impl Fn(&mut State, Rest<ValueOrKwargs>) -> Result<Value, Error> + Send + Sync + 'static {
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

fn read_all(args: &[Value]) -> Result<bool, Error> {
    let mut args = args.iter();
    args.try_for_each(|arg| budget::read(ITEM + budget::size(arg)))?;
    Ok(true)
}

fn walk_all(args: &[Value]) -> Result<bool, Error> {
    let mut args = args.iter();
    args.try_for_each(|arg| budget::walk(arg, Walk::Read))?;
    Ok(true)
}

fn format_args(args: &[Value]) -> Result<bool, Error> {
    if let Some((pattern, args)) = args.split_first() {
        charge_printf(&str(pattern)?, args)?;
    }
    Ok(true)
}

/// For filters that go through the items of a value, which Jinja2 does not look at where the value is
/// false.
fn items_read(args: &[Value]) -> Result<bool, Error> {
    let value = args.first().cloned().unwrap_or_default();
    if args
        .first()
        .is_some_and(|value| !value.is_kwargs() && !value.is_true())
    {
        return Ok(false);
    }
    budget::walk(&value, Walk::Read)?;
    budget::made(match value.kind() {
        ValueKind::String => budget::size(&value).saturating_mul(ITEM),
        _ => budget::size(&value),
    })?;
    Ok(true)
}

/// The result of a text's method on any value's text.
fn by_method(call: &Call<'_>, method: &str) -> Result<Value, Error> {
    let default = (method == "center").then(|| Value::from(80));
    let args: Vec<Value> = match method {
        "center" | "strip" => call.given(0).cloned().or(default).into_iter().collect(),
        _ => Vec::new(),
    };
    match call.this.as_str() {
        Some(_) => text_method(call.this, method, &args),
        None => text_method(&Value::from(str(call.this)?), method, &args),
    }
}

fn join(call: &Call<'_>) -> Result<Value, Error> {
    let separator = call.given(0).map(str).transpose()?.unwrap_or_default();
    let mut out = String::new();
    for (position, item) in iterate(call.this)?.enumerate() {
        append(&mut out, if position > 0 { &separator } else { "" })?;
        append(&mut out, &str(&attribute(&item, call.value(1))?)?)?;
    }
    Ok(Value::from(out))
}

fn sum(call: &Call<'_>) -> Result<Value, Error> {
    let start = call.given(1).cloned().unwrap_or_else(|| Value::from(0));
    iterate(call.this)?.try_fold(start, |total, item| {
        add(&total, &attribute(&item, call.value(0))?)
    })
}

/// `a.b.0` of an item as Jinja2 reads the `attribute` argument: items before attributes, numbers as
/// indices; the item itself without that argument.
pub(super) fn attribute(item: &Value, path: Option<&Value>) -> Result<Value, Error> {
    match path.map(|path| (path, path.as_str())) {
        None => Ok(item.clone()),
        Some((index, None)) => item.get_item(index),
        Some((_, Some(path))) => {
            path.split('.')
                .try_fold(item.clone(), |value, part| match part.parse::<usize>() {
                    Ok(index) => value.get_item(&Value::from(index)),
                    Err(_) => value.get_item(&Value::from(part)),
                })
        }
    }
}

/// An attribute, which an entry of a mapping is not.
fn attr(call: &Call<'_>) -> Result<Value, Error> {
    let object = call.this.as_object().map(|object| object.type_name());
    let is_dict = call.this.kind() == ValueKind::Map
        && object.is_some_and(|name| !name.ends_with("::Namespace"));
    let name = str(call.required(0)?)?;
    if is_dict && !is_dict_method(&name) {
        return Ok(Value::UNDEFINED);
    }
    call.this.get_attr(&name)
}

/// `dict(mapping_or_pairs, **kwargs)`
fn dict(args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let mut pairs: Vec<(Value, Value)> = Vec::new();
    for value in &args.into_values() {
        budget::walk(value, Walk::Read)?;
        match value.kind() {
            ValueKind::Map => pairs.extend(entries(value)?),
            ValueKind::Undefined => return Err(fault("the value is undefined")),
            _ => pairs.extend(pair_items(value, "dict")?),
        }
    }
    Ok(Dict::value(pairs.into_iter()))
}

/// The items of a list, which must be pairs.
pub(super) fn pair_items(value: &Value, name: &str) -> Result<Vec<(Value, Value)>, Error> {
    let pair = |item: Value| {
        budget::made(2 * ITEM)?;
        let parts: Vec<Value> = item.try_iter()?.collect();
        let pair = <[Value; 2]>::try_from(parts);
        pair.map(|[key, item]| (key, item))
            .map_err(|_| fault(format!("{name}: expected a mapping or pairs")))
    };
    iterate(value)?.map(pair).collect()
}

fn length(call: &Call<'_>) -> Result<Value, Error> {
    if call.this.is_undefined() {
        return Ok(Value::from(0));
    }
    let missing = || fault(format!("object of type {} has no len()", call.this.kind()));
    call.this.len().map(Value::from).ok_or_else(missing)
}

fn int(call: &Call<'_>) -> Result<Value, Error> {
    let base = call.int(1)?.unwrap_or(10);
    if call.this.is_undefined() {
        return Err(fault("the value is undefined"));
    }
    let parsed = match Number::of(call.this) {
        Some(Number::Int(int)) => Some(int),
        _ => call.this.as_str().and_then(|text| parse_int(text, base)),
    };
    let parsed = parsed.or_else(|| {
        let float = as_float(call.this)?.trunc();
        // Beyond this a float holds no i128.
        (float.abs() < 1e38).then_some(float as i128)
    });
    let default = || call.given(0).cloned().unwrap_or_else(|| Value::from(0));
    Ok(parsed.map_or_else(default, Value::from))
}

/// Python's `int(text, base)`: white space around, a sign, the prefix of the base, underscores.
fn parse_int(text: &str, base: i64) -> Option<i128> {
    let text = text.trim_matches(is_space);
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let prefix = match base {
        2 => ["0b", "0B"],
        8 => ["0o", "0O"],
        16 => ["0x", "0X"],
        3..=36 => ["", ""],
        _ => return None,
    };
    let mut digits = prefix
        .iter()
        .filter_map(|prefix| unsigned.strip_prefix(prefix));
    let digits = digits.next().unwrap_or(unsigned);
    if digits.starts_with(['+', '-', '_']) || digits.ends_with('_') {
        return None;
    }
    let magnitude = i128::from_str_radix(&digits.replace('_', ""), base as u32).ok()?;
    Some(if text.starts_with('-') {
        -magnitude
    } else {
        magnitude
    })
}

fn float(call: &Call<'_>) -> Result<Value, Error> {
    if call.this.is_undefined() {
        return Err(fault("the value is undefined"));
    }
    let default = || call.given(0).cloned().unwrap_or_else(|| Value::from(0.0));
    Ok(as_float(call.this).map_or_else(default, Value::from))
}

/// Python's `float(value)`, where it succeeds.
pub(super) fn as_float(value: &Value) -> Option<f64> {
    let Some(text) = value.as_str() else {
        return Number::of(value).map(Number::as_f64);
    };
    let text = text.trim_matches(is_space);
    let is_joined = |(i, _): (usize, _)| {
        let digit = |at: usize| text.as_bytes().get(at).is_some_and(u8::is_ascii_digit);
        i > 0 && digit(i - 1) && digit(i + 1)
    };
    let is_number = text.match_indices('_').all(is_joined);
    text.replace('_', "").parse().ok().filter(|_| is_number)
}

/// A boolean as the number that it is in Python.
fn as_number(value: &Value) -> Value {
    match value.kind() {
        ValueKind::Bool => Value::from(i64::from(value.is_true())),
        _ => value.clone(),
    }
}

/// `value | round(precision=0, method='common')`; the other methods give a float.
fn round(call: &Call<'_>) -> Result<Value, Error> {
    let precision = i32::try_from(call.int(0)?.unwrap_or(0));
    let precision = precision.map_err(|_| fault("round: too many digits"))?;
    let method = call.text(1)?.unwrap_or("common");
    let value = match method {
        "common" => as_number(call.this),
        _ => Value::from(f64::try_from(as_number(call.this))?),
    };
    let kwargs = std::iter::empty::<(&str, Value)>().collect();
    filters::round(value, Some(precision), Some(method), kwargs)
}

fn remainder(call: &Call<'_>, by: i64) -> Result<Value, Error> {
    modulo(call.this, &Value::from(by))
}

fn ordered(call: &Call<'_>, holds: fn(Ordering) -> bool) -> Result<Value, Error> {
    let other = call.required(0)?;
    budget::walk(call.this, Walk::Read)?;
    budget::walk(other, Walk::Read)?;
    compare(call.this, other).map(|order| Value::from(holds(order)))
}

fn is_iterable(value: &Value) -> bool {
    use ValueKind as K;
    matches!(
        value.kind(),
        K::Undefined | K::String | K::Seq | K::Map | K::Iterable
    )
}
