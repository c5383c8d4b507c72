//! Filters whose Jinja2 meaning differs from the engine's own.
//!
//! Each takes and gives what Jinja2's filter of that name does, in Python's terms (`str()` of
//! anything, ranges of white space, `count` of `replace`). Filters not named here are the
//! engine's.

use minijinja::value::{Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, Value};

use super::arguments::{bind, flag, optional_int, optional_text};
use super::budget::{self, ITEM, Walk};
use super::json::tojson;
use super::methods::{self, is_space};
use super::operators::{add, as_int, escaped, same_safety};
use super::value::{Dict, entries, fault, str};

/// Registers the filters of this module.
pub(super) fn register(env: &mut Environment<'static>) {
    env.add_filter("tojson", tojson);
    env.add_filter("string", |value: &Value| {
        str(value).map(|text| same_safety(value, text))
    });
    env.add_filter("safe", |value: &Value| {
        str(value).map(Value::from_safe_string)
    });
    for name in ["escape", "e"] {
        env.add_filter(name, |value: &Value| {
            escaped(value).map(Value::from_safe_string)
        });
    }
    env.add_filter("sum", sum);
    env.add_filter("trim", trim);
    env.add_filter("replace", replace);
    env.add_filter("join", join);
    env.add_filter("length", length);
    env.add_filter("count", length);
    env.add_filter("items", items);
    env.add_filter("default", default);
    env.add_filter("d", default);
    env.add_filter("int", int);
    env.add_filter("float", float);
    env.add_filter("attr", attr);
    env.add_function("dict", dict);
}

fn trim(value: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let [chars] = bind(&args.into_values(), ["chars"])?;
    let chars = optional_text(&chars, "chars")?;
    let is_trimmed = |c: char| chars.map_or_else(|| is_space(c), |set| set.contains(c));
    budget::made(budget::size(value))?;
    let trimmed = str(value)?.trim_matches(is_trimmed).to_owned();
    Ok(same_safety(value, trimmed))
}

fn replace(value: &Value, args: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let [old, new, count] = bind(&args.into_values(), ["old", "new", "count"])?;
    let (Some(old), Some(new)) = (old, new) else {
        return Err(fault("replace takes an old and a new text"));
    };
    let count = optional_int(&count, "count")?;
    methods::replace(&str(value)?, &str(&old)?, &str(&new)?, count)
}

fn join(value: &Value, args: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let [separator, attribute] = bind(&args.into_values(), ["d", "attribute"])?;
    let separator = separator.as_ref().map(str).transpose()?.unwrap_or_default();
    let mut out = String::new();
    for (position, item) in iterate(value)?.enumerate() {
        let item = match attribute.as_ref().filter(|path| !path.is_none()) {
            Some(path) => attribute_of(&item, path)?,
            None => item,
        };
        let text = str(&item)?;
        budget::made(separator.len() + text.len())?;
        if position > 0 {
            out.push_str(&separator);
        }
        out.push_str(&text);
    }
    Ok(out)
}

fn sum(value: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let [attribute, start] = bind(&args.into_values(), ["attribute", "start"])?;
    let start = start.unwrap_or_else(|| Value::from(0));
    iterate(value)?.try_fold(start, |total, item| {
        match attribute.as_ref().filter(|path| !path.is_none()) {
            Some(path) => add(&total, &attribute_of(&item, path)?),
            None => add(&total, &item),
        }
    })
}

/// The items of a value; none has no items, in Python not even an empty list of them.
pub(super) fn iterate(value: &Value) -> Result<impl Iterator<Item = Value>, Error> {
    if value.is_none() {
        return Err(fault("'NoneType' object is not iterable"));
    }
    budget::read(budget::size(value))?;
    value.try_iter()
}

/// `a.b.0` as Jinja2 reads the `attribute` argument: items before attributes, numbers as indices.
pub(super) fn attribute_of(item: &Value, path: &Value) -> Result<Value, Error> {
    let Some(path) = path.as_str() else {
        return item.get_item(path);
    };
    path.split('.')
        .try_fold(item.clone(), |value, part| match part.parse::<usize>() {
            Ok(index) => value.get_item(&Value::from(index)),
            Err(_) => value.get_item(&Value::from(part)),
        })
}

/// An attribute, which an entry of a mapping is not.
fn attr(value: &Value, name: &Value) -> Result<Value, Error> {
    let object = value.as_object().map(|object| object.type_name());
    let is_dict =
        value.kind() == ValueKind::Map && object.is_some_and(|name| !name.ends_with("::Namespace"));
    let name = str(name)?;
    if is_dict && !methods::is_dict_method(&name) {
        return Ok(Value::UNDEFINED);
    }
    value.get_attr(&name)
}

/// `dict(mapping_or_pairs, **kwargs)`
fn dict(args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let mut entries_of: Vec<(Value, Value)> = Vec::new();
    for value in &args.into_values() {
        budget::walk(value, Walk::Read)?;
        if value.kind() == ValueKind::Map {
            entries_of.extend(entries(value)?);
            continue;
        }
        if value.is_undefined() {
            return Err(fault("the value is undefined"));
        }
        for pair in iterate(value)? {
            budget::made(2 * ITEM)?;
            let parts: Vec<Value> = pair.try_iter()?.collect();
            let [key, item] = <[Value; 2]>::try_from(parts)
                .map_err(|_| fault("dict: expected a mapping or pairs"))?;
            entries_of.push((key, item));
        }
    }
    Ok(Value::from_object(Dict::new(entries_of.into_iter())))
}

fn length(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() {
        return Ok(0);
    }
    // The characters of a text are counted.
    budget::read(value.as_str().map_or(0, str::len))?;
    value
        .len()
        .ok_or_else(|| fault(format!("object of type {} has no len()", value.kind())))
}

fn items(value: &Value) -> Result<Value, Error> {
    if value.is_undefined() {
        return Ok(Value::from(Vec::<Value>::new()));
    }
    budget::made(budget::size(value))?;
    methods::pairs(value)
}

fn default(value: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let [default_value, boolean] = bind(&args.into_values(), ["default_value", "boolean"])?;
    if value.is_undefined() || (flag(&boolean) && !value.is_true()) {
        return Ok(default_value.unwrap_or_else(|| Value::from("")));
    }
    Ok(value.clone())
}

fn int(value: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let [default, base] = bind(&args.into_values(), ["default", "base"])?;
    let base = optional_int(&base, "base")?.unwrap_or(10);
    if value.is_undefined() {
        return Err(fault("the value is undefined"));
    }
    if let Some(int) = as_int(value) {
        return Ok(Value::from(int));
    }
    budget::read(budget::size(value))?;
    let parsed = value.as_str().and_then(|text| parse_int(text, base));
    let parsed = parsed.or_else(|| {
        let float = as_float(value)?.trunc();
        // Beyond this a float holds no i128.
        (float.abs() < 1e38).then_some(float as i128)
    });
    Ok(parsed
        .map(Value::from)
        .or(default)
        .unwrap_or_else(|| Value::from(0)))
}

/// Python's `int(text, base)`: white space around, a sign, the prefix of the base, underscores.
fn parse_int(text: &str, base: i64) -> Option<i128> {
    let text = text.trim_matches(is_space);
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let prefix = match base {
        2 => ["0b", "0B"],
        8 => ["0o", "0O"],
        16 => ["0x", "0X"],
        3..=36 => ["", ""],
        _ => return None,
    };
    let digits = digits
        .strip_prefix(prefix[0])
        .or_else(|| digits.strip_prefix(prefix[1]))
        .unwrap_or(digits);
    if digits.starts_with(['+', '-']) || digits.starts_with('_') || digits.ends_with('_') {
        return None;
    }
    let magnitude = i128::from_str_radix(&digits.replace('_', ""), base as u32).ok()?;
    Some(if is_negative { -magnitude } else { magnitude })
}

fn float(value: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let [default] = bind(&args.into_values(), ["default"])?;
    if value.is_undefined() {
        return Err(fault("the value is undefined"));
    }
    budget::read(budget::size(value))?;
    Ok(as_float(value)
        .map(Value::from)
        .or(default)
        .unwrap_or_else(|| Value::from(0.0)))
}

/// Python's `float(value)`, where it succeeds.
pub(super) fn as_float(value: &Value) -> Option<f64> {
    match value.kind() {
        ValueKind::String => {
            let text = value.as_str()?.trim_matches(is_space);
            let is_joined = |(i, _): (usize, _)| {
                let digit = |at: usize| text.as_bytes().get(at).is_some_and(u8::is_ascii_digit);
                i > 0 && digit(i - 1) && digit(i + 1)
            };
            let is_number = text.match_indices('_').all(is_joined);
            text.replace('_', "").parse().ok().filter(|_| is_number)
        }
        ValueKind::Bool => as_int(value).map(|int| int as f64),
        ValueKind::Number => f64::try_from(value.clone()).ok(),
        _ => None,
    }
}
