//! Methods of Python's `str`, `dict`, `list`, `tuple` and numbers, which templates call freely.
//!
//! Called for every method that an engine value does not have itself. Invariant: nothing here
//! changes a value. Python's sandbox forbids the methods that would; they are refused by name.

use minijinja::formatting::{FormatStyle, format};
use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, State, Value};

use super::budget::{self, ITEM, Walk};
use super::call::{Call, Row, find, run};
use super::case::{capitalize, fold, is_cased, swap_case, title};
use super::print::{escaped, is_printable, str};
use super::value::{Number, entries, fault, is_list, list, same_safety};

const OF_TEXTS: &[Row] = &[
    ("strip lstrip rstrip", "chars", strip),
    ("split rsplit", "sep maxsplit", split),
    ("splitlines", "keepends", |call| {
        let lines = lines(call.this_text(), call.flag(0));
        charge_parts(lines.len())?;
        Ok(lines.into_iter().map(Value::from).collect())
    }),
    ("partition rpartition", "sep", partition),
    ("find rfind index rindex count", "sub start end", search),
    ("startswith endswith", "affix start end", has_affix),
    ("center ljust rjust zfill", "width fillchar", pad),
    ("replace", "old new count", |call| {
        let (old, new) = (call.required_text(0)?, call.required_text(1)?);
        replace(call.this_text(), old, new, call.int(2)?)
    }),
    ("join", "iterable", join),
    ("removeprefix", "prefix", |call| {
        let rest = call.this_text().strip_prefix(call.required_text(0)?);
        Ok(rest.map_or_else(|| call.this.clone(), Value::from))
    }),
    ("removesuffix", "suffix", |call| {
        let rest = call.this_text().strip_suffix(call.required_text(0)?);
        Ok(rest.map_or_else(|| call.this.clone(), Value::from))
    }),
    ("translate", "table", translate),
    ("expandtabs", "tabsize", expand_tabs),
    (
        "upper lower casefold title capitalize swapcase",
        "",
        |call| {
            let text = call.this_text();
            Ok(Value::from(match call.name {
                "upper" => text.to_uppercase(),
                "lower" => text.to_lowercase(),
                "casefold" => fold(text),
                "title" => title(text),
                "capitalize" => capitalize(text),
                _ => swap_case(text),
            }))
        },
    ),
    (
        "isspace isalpha isalnum isdigit isnumeric isdecimal isascii islower isupper istitle \
         isprintable isidentifier",
        "",
        |call| Ok(Value::from(is_of_class(call.this_text(), call.name))),
    ),
];

const OF_MAPPINGS: &[Row] = &[
    ("get", "key default", |call| {
        let map = call.this.as_object();
        let found = map.and_then(|map| map.get_value(call.required(0).ok()?));
        call.required(0)?;
        Ok(found.unwrap_or_else(|| call.value(1).cloned().unwrap_or(Value::from(()))))
    }),
    ("keys", "", |call| {
        Ok(entries(call.this)?.into_iter().map(|pair| pair.0).collect())
    }),
    ("values", "", |call| {
        Ok(entries(call.this)?.into_iter().map(|pair| pair.1).collect())
    }),
    ("items", "", |call| pairs(call.this)),
    ("copy", "", |call| Ok(call.this.clone())),
];

const OF_LISTS: &[Row] = &[
    ("copy", "", |call| Ok(call.this.clone())),
    ("count index", "value", |call| {
        let wanted = call.required(0)?;
        budget::walk(call.this, Walk::Read)?;
        let mut items = call.this.try_iter()?;
        if call.name == "count" {
            return Ok(Value::from(items.filter(|item| item == wanted).count()));
        }
        let position = items.position(|item| item == *wanted);
        let position = position.ok_or_else(|| fault("the value is not in the list"))?;
        Ok(Value::from(position))
    }),
];

/// The methods of numbers that a template has a use for.
const OF_NUMBERS: &[Row] = &[
    ("is_integer", "", |call| match Number::of(call.this) {
        Some(Number::Float(float)) => Ok(Value::from(float.fract() == 0.0)),
        _ => Ok(Value::from(true)),
    }),
    ("bit_length", "", |call| match Number::of(call.this) {
        Some(Number::Int(int)) => Ok(Value::from(128 - int.unsigned_abs().leading_zeros())),
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }),
];

/// Methods that change their object; the sandbox refuses them.
const MUTATORS: [&str; 11] = [
    "append",
    "extend",
    "insert",
    "remove",
    "sort",
    "reverse",
    "pop",
    "popitem",
    "clear",
    "update",
    "setdefault",
];
/// The attributes of every Python `dict`; they come before its entries.
const OF_EVERY_DICT: [&str; 11] = [
    "get",
    "keys",
    "values",
    "items",
    "copy",
    "pop",
    "popitem",
    "clear",
    "update",
    "setdefault",
    "fromkeys",
];

/// Longest text that one call may make.
const MAX_TEXT: usize = 1 << 26;
const TOO_LONG: &str = "the text would be too long";

pub(super) fn is_dict_method(name: &str) -> bool {
    OF_EVERY_DICT.contains(&name)
}

/// Calls `value.method(*args)`.
pub(super) fn call(
    _state: &mut State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let kind = value.kind();
    let rows = match kind {
        ValueKind::String => return text_method(value, method, args),
        ValueKind::Map | ValueKind::Seq | ValueKind::Iterable if MUTATORS.contains(&method) => {
            let message = format!("access to attribute '{method}' of {kind} is unsafe");
            return Err(fault(message));
        }
        ValueKind::Map => OF_MAPPINGS,
        ValueKind::Seq | ValueKind::Iterable => OF_LISTS,
        ValueKind::Number | ValueKind::Bool => OF_NUMBERS,
        _ => &[],
    };
    let row = find(rows, method).ok_or_else(|| Error::from(ErrorKind::UnknownMethod))?;
    run(row, method, value, args)
}

/// A method of a text. That of a markup gives markup, and escapes what it puts in.
pub(super) fn text_method(value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    if method == "format" {
        let pattern = value.as_str().unwrap_or_default();
        charge_format(pattern, args)?;
        let text = format(FormatStyle::StrFormat, pattern, args)?;
        return Ok(same_safety(value, text));
    }
    let row = find(OF_TEXTS, method).ok_or_else(|| Error::from(ErrorKind::UnknownMethod))?;
    if !value.is_safe() {
        return run(row, method, value, args);
    }
    let escape = |argument: &Value| match argument.kind() {
        ValueKind::String => escaped(argument).map(Value::from_safe_string),
        ValueKind::Seq | ValueKind::Iterable => argument
            .try_iter()?
            .map(|item| escaped(&item).map(Value::from))
            .collect(),
        _ => Ok(argument.clone()),
    };
    let args: Vec<Value> = match method {
        "replace" | "join" => args.iter().map(escape).collect::<Result<_, Error>>()?,
        _ => args.to_vec(),
    };
    let result = run(row, method, value, &args)?;
    Ok(match result.as_str() {
        Some(text) => Value::from_safe_string(text.to_owned()),
        None => result,
    })
}

/// The entries of a mapping as a list of tuples.
pub(super) fn pairs(mapping: &Value) -> Result<Value, Error> {
    let pairs = entries(mapping)?.into_iter();
    Ok(pairs
        .map(|(key, item)| list(vec![key, item], true))
        .collect())
}

/// Whether a text is of the class of characters for which a method asks.
fn is_of_class(text: &str, method: &str) -> bool {
    let every = |is: fn(char) -> bool| !text.is_empty() && text.chars().all(is);
    match method {
        "isspace" => every(is_space),
        "isalpha" => every(char::is_alphabetic),
        "isalnum" => every(char::is_alphanumeric),
        "isdigit" | "isnumeric" | "isdecimal" => every(char::is_numeric),
        "isascii" => text.is_ascii(),
        "islower" | "isupper" => has_case(text, method == "isupper"),
        "istitle" => text.chars().any(is_cased) && title(text) == text,
        "isprintable" => text.chars().all(is_printable),
        _ => {
            let is_start = |c: char| c.is_alphabetic() || c == '_';
            let is_part = |c: char| is_start(c) || c.is_numeric();
            text.starts_with(is_start) && text.chars().all(is_part)
        }
    }
}

/// Whether a text has letters and all of them have one case.
pub(super) fn has_case(text: &str, is_upper: bool) -> bool {
    let (has_lower, has_upper) = (
        text.chars().any(char::is_lowercase),
        text.chars().any(char::is_uppercase),
    );
    if is_upper {
        has_upper && !has_lower
    } else {
        has_lower && !has_upper
    }
}

/// White space as Python counts it: Unicode's, and the four ASCII separators.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

fn strip(call: &Call<'_>) -> Result<Value, Error> {
    let (this, chars) = (call.this_text(), call.text(0)?);
    let is_stripped = |c: char| chars.map_or_else(|| is_space(c), |set| set.contains(c));
    Ok(Value::from(match call.name {
        "lstrip" => this.trim_start_matches(is_stripped),
        "rstrip" => this.trim_end_matches(is_stripped),
        _ => this.trim_matches(is_stripped),
    }))
}

fn split(call: &Call<'_>) -> Result<Value, Error> {
    let (this, is_from_right) = (call.this_text(), call.name == "rsplit");
    let max = usize::try_from(call.int(1)?.unwrap_or(-1)).unwrap_or(usize::MAX);
    let mut parts: Vec<&str> = match call.text(0)? {
        Some("") => return Err(fault("empty separator")),
        Some(separator) => {
            charge_parts(this.matches(separator).count())?;
            let n_parts = max.saturating_add(1);
            match is_from_right {
                true => this.rsplitn(n_parts, separator).collect(),
                false => this.splitn(n_parts, separator).collect(),
            }
        }
        None => {
            charge_parts(this.chars().filter(|&c| is_space(c)).count())?;
            split_spaces(this, is_from_right, max)
        }
    };
    if is_from_right {
        parts.reverse();
    }
    Ok(parts.into_iter().collect())
}

/// Splits at runs of white space, at most `max` times; white space at the ends gives no part, but
/// stays in the part that is not cut further. From the right, the last part comes first.
fn split_spaces(text: &str, is_from_right: bool, max: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text;
    loop {
        rest = match is_from_right {
            true => rest.trim_end_matches(is_space),
            false => rest.trim_start_matches(is_space),
        };
        if rest.is_empty() {
            return parts;
        }
        let cut = match is_from_right {
            _ if parts.len() == max => None,
            true => rest.rsplit_once(is_space).map(|(head, part)| (part, head)),
            false => rest.split_once(is_space),
        };
        let (part, remainder) = cut.unwrap_or((rest, ""));
        parts.push(part);
        rest = remainder;
    }
}

/// Charges for a text cut in as many places.
fn charge_parts(n_cuts: usize) -> Result<(), Error> {
    budget::made(n_cuts.saturating_add(1).saturating_mul(2 * ITEM))
}

fn partition(call: &Call<'_>) -> Result<Value, Error> {
    let (this, separator) = (call.this_text(), call.required_text(0)?);
    let (cut, uncut) = match call.name {
        _ if separator.is_empty() => return Err(fault("empty separator")),
        "partition" => (this.split_once(separator), [this, "", ""]),
        _ => (this.rsplit_once(separator), ["", "", this]),
    };
    let parts = cut.map_or(uncut, |(head, tail)| [head, separator, tail]);
    Ok(list(parts.map(Value::from).to_vec(), true))
}

/// The part of the text between the positions of the second and third argument, as Python counts
/// them, and the position of its first character.
fn window<'a>(call: &'a Call<'_>) -> Result<Option<(usize, &'a str)>, Error> {
    let this = call.this_text();
    let (start, end) = (call.int(1)?, call.int(2)?);
    if start.is_none() && end.is_none() {
        return Ok(Some((0, this)));
    }
    let length = this.chars().count();
    let position = |index: i64| {
        let distance = usize::try_from(index.unsigned_abs()).unwrap_or(usize::MAX);
        if index < 0 {
            length.saturating_sub(distance)
        } else {
            distance
        }
    };
    let start = start.map_or(0, position);
    let end = end.map_or(length, position).min(length);
    if start > end {
        return Ok(None);
    }
    let byte_at = |position: usize| {
        let mut indices = this.char_indices();
        indices.nth(position).map_or(this.len(), |(at, _)| at)
    };
    Ok(Some((start, &this[byte_at(start)..byte_at(end)])))
}

fn search(call: &Call<'_>) -> Result<Value, Error> {
    let wanted = call.required_text(0)?;
    let window = window(call)?;
    if call.name == "count" {
        return Ok(Value::from(
            window.map_or(0, |(_, part)| part.matches(wanted).count()),
        ));
    }
    let found = window.and_then(|(offset, part)| {
        let at = match call.name {
            "rfind" | "rindex" => part.rfind(wanted),
            _ => part.find(wanted),
        };
        at.map(|at| offset + part[..at].chars().count())
    });
    match found {
        Some(position) => Ok(Value::from(position)),
        None if call.name.ends_with("index") => Err(fault("substring not found")),
        None => Ok(Value::from(-1)),
    }
}

fn has_affix(call: &Call<'_>) -> Result<Value, Error> {
    let affix = call.given(0).cloned().unwrap_or_default();
    let part = window(call)?.map(|(_, part)| part);
    let has = |affix: &Value| match (affix.as_str(), part) {
        (Some(_), None) => Ok(false),
        (Some(affix), Some(part)) if call.name == "startswith" => Ok(part.starts_with(affix)),
        (Some(affix), Some(part)) => Ok(part.ends_with(affix)),
        (None, _) => Err(fault(format!(
            "a prefix or suffix must be a string or a tuple of strings, not {}",
            affix.kind()
        ))),
    };
    if !is_list(&affix) {
        return has(&affix).map(Value::from);
    }
    for affix in affix.try_iter()? {
        if has(&affix)? {
            return Ok(Value::from(true));
        }
    }
    Ok(Value::from(false))
}

fn pad(call: &Call<'_>) -> Result<Value, Error> {
    call.required(0)?;
    let this = call.this_text();
    let width = usize::try_from(call.int(0)?.unwrap_or(0)).unwrap_or(0);
    let fill = call.text(1)?.unwrap_or(" ");
    if fill.chars().count() != 1 {
        let message = "the fill character must be exactly one character long";
        return Err(fault(message));
    }
    let missing = width.saturating_sub(this.chars().count());
    if missing.saturating_mul(fill.len()) > MAX_TEXT {
        return Err(fault(TOO_LONG));
    }
    let fill = |n: usize| fill.repeat(n);
    Ok(Value::from(match call.name {
        "ljust" => this.to_owned() + &fill(missing),
        "rjust" => fill(missing) + this,
        "zfill" => {
            let (sign, digits) = this.split_at(usize::from(this.starts_with(['+', '-'])));
            format!("{sign}{}{digits}", "0".repeat(missing))
        }
        _ => {
            // The odd space stands on the left where the width is odd.
            let left = missing / 2 + (missing & width & 1);
            fill(left) + this + &fill(missing - left)
        }
    }))
}

/// `text.replace(old, new, count)`; a missing or negative count replaces all.
pub(super) fn replace(
    text: &str,
    old: &str,
    new: &str,
    count: Option<i64>,
) -> Result<Value, Error> {
    let count = count.and_then(|count| usize::try_from(count).ok());
    let n_found = text.matches(old).count();
    budget::read(n_found.saturating_mul(ITEM))?;
    let count = count.map_or(n_found, |count| count.min(n_found));
    let length = count.saturating_mul(new.len()).saturating_add(text.len());
    if length > MAX_TEXT {
        return Err(fault(TOO_LONG));
    }
    Ok(Value::from(text.replacen(old, new, count)))
}

fn join(call: &Call<'_>) -> Result<Value, Error> {
    let (separator, items) = (call.this_text(), call.given(0).cloned().unwrap_or_default());
    let mut out = String::new();
    for (position, item) in items.try_iter()?.checked().enumerate() {
        let item = item?;
        let text = item.as_str().ok_or_else(|| {
            let kind = item.kind();
            fault(format!(
                "sequence item {position}: expected str instance, {kind} found"
            ))
        })?;
        append(&mut out, if position > 0 { separator } else { "" })?;
        append(&mut out, text)?;
    }
    Ok(Value::from(out))
}

/// Appends to a text that one call makes.
pub(super) fn append(out: &mut String, text: &str) -> Result<(), Error> {
    if out.len() + text.len() > MAX_TEXT {
        return Err(fault(TOO_LONG));
    }
    out.push_str(text);
    Ok(())
}

/// Charges for what a format can make: every number in it may be a width, every field may print
/// every argument, and a width may itself be an argument.
fn charge_format(pattern: &str, args: &[Value]) -> Result<(), Error> {
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
        longest = longest.max(str(arg)?.len());
        if let Some(width) = usize::try_from(arg.clone()).ok().filter(|_| is_nested) {
            longest = longest.max(width);
        }
    }
    budget::made(widths.saturating_add(n_fields.saturating_mul(longest)))
}

/// [`charge_format`] of `pattern % args`, which must use all its arguments.
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

/// The lines of a text as Python's `splitlines` cuts it.
pub(super) fn lines(text: &str, keep_ends: bool) -> Vec<&str> {
    let is_end = |c: char| matches!(c, '\n'..='\r' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}');
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(is_end) {
        let tail = &rest[at..];
        let n_end = match tail.starts_with("\r\n") {
            true => 2,
            false => tail.chars().next().map_or(0, char::len_utf8),
        };
        lines.push(&rest[..if keep_ends { at + n_end } else { at }]);
        rest = &tail[n_end..];
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}

fn expand_tabs(call: &Call<'_>) -> Result<Value, Error> {
    let size = call.int(0)?.unwrap_or(8).clamp(0, 64) as usize;
    let mut out = String::new();
    let mut column = 0;
    for c in call.this_text().chars() {
        match c {
            '\t' => {
                let n_spaces = if size == 0 { 0 } else { size - column % size };
                append(&mut out, &" ".repeat(n_spaces))?;
                column += n_spaces;
            }
            _ => {
                out.push(c);
                column = if matches!(c, '\n' | '\r') {
                    0
                } else {
                    column + 1
                };
            }
        }
    }
    Ok(Value::from(out))
}

/// `text.translate(table)`: characters by their numbers to numbers, texts or nothing.
fn translate(call: &Call<'_>) -> Result<Value, Error> {
    let table = call.required(0)?;
    if table.kind() != ValueKind::Map {
        return Err(fault("translate: expected a mapping"));
    }
    let mut out = String::new();
    for c in call.this_text().chars() {
        let to = table.get_item(&Value::from(u32::from(c)))?;
        budget::made(to.as_str().map_or(4, str::len))?;
        match (to.as_str(), to.as_i64()) {
            (Some(text), _) => out.push_str(text),
            (None, Some(n)) => {
                let c = u32::try_from(n).ok().and_then(char::from_u32);
                out.push(c.ok_or_else(|| fault("translate: no character"))?);
            }
            (None, None) if to.is_none() => {}
            _ => out.push(c),
        }
    }
    Ok(Value::from(out))
}
