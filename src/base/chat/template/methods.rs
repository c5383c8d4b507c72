//! Methods of Python's `str`, `dict`, `list` and `tuple`, which templates may call.
//!
//! Called for every method that an engine value does not have itself. Invariant: nothing here changes a value. Methods
//! that would, which Python's sandbox forbids, and methods that no prompt needs are left out.

use minijinja::formatting::{FormatStyle, format};
use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, State, Value};

use super::budget::{self, ChargedText, ITEM, Walk, entries};
use super::callable::{BoundCall, CallableRow, find, run};
use super::error::fault;
use super::operators::charge_format;
use super::print::escaped;
use super::value::{is_list, list, same_safety};

const OF_TEXTS: &[CallableRow] = &[
    ("strip lstrip rstrip", "chars", strip),
    ("split rsplit", "sep maxsplit", split),
    ("splitlines", "keepends", |call| {
        let lines = lines(call.this_text(), call.flag(0));
        charge_parts(lines.len())?;
        Ok(lines.into_iter().map(Value::from).collect())
    }),
    ("partition rpartition", "sep", partition),
    ("find rfind index rindex count", "sub", search),
    ("startswith endswith", "affix", has_affix),
    ("replace", "old new count", |call| {
        let (old, new) = (call.required_text(0)?, call.required_text(1)?);
        replace(call.this_text(), old, new, call.int(2)?)
    }),
    ("join", "iterable", join),
    ("removeprefix removesuffix", "affix", |call| {
        let (this, affix) = (call.this_text(), call.required_text(0)?);
        let rest = match call.name {
            "removeprefix" => this.strip_prefix(affix),
            _ => this.strip_suffix(affix),
        };
        Ok(Value::from(rest.unwrap_or(this)))
    }),
    ("upper", "", |call| {
        Ok(call.this_text().to_uppercase().into())
    }),
    ("lower", "", |call| {
        Ok(call.this_text().to_lowercase().into())
    }),
    ("title", "", |call| Ok(title(call.this_text()).into())),
    ("capitalize", "", |call| {
        Ok(capitalize(call.this_text()).into())
    }),
    ("isascii", "", |call| Ok(call.this_text().is_ascii().into())),
    ("isupper islower", "", |call| {
        let this = call.this_text();
        let cases = [
            this.contains(char::is_uppercase),
            this.contains(char::is_lowercase),
        ];
        Ok((cases == [call.name == "isupper", call.name == "islower"]).into())
    }),
    ("isspace isalpha isalnum isdigit isnumeric", "", |call| {
        let is_of_class = match call.name {
            "isspace" => is_space,
            "isalpha" => char::is_alphabetic,
            "isalnum" => char::is_alphanumeric,
            _ => char::is_numeric,
        };
        let text = call.this_text();
        Ok((!text.is_empty() && text.chars().all(is_of_class)).into())
    }),
];

const OF_MAPPINGS: &[CallableRow] = &[
    ("get", "key default", |call| {
        let key = call.required(0)?;
        let found = call.this.as_object().and_then(|map| map.get_value(key));
        let default = || call.value(1).cloned().unwrap_or(Value::from(()));
        Ok(found.unwrap_or_else(default))
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

const OF_LISTS: &[CallableRow] = &[
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

/// Whether every Python `dict` has this attribute; attributes take precedence over entries.
pub(super) fn is_dict_method(name: &str) -> bool {
    matches!(
        name,
        "get" | "keys" | "values" | "items" | "copy" | "fromkeys" // The others change it.
            | "pop" | "popitem" | "clear" | "update" | "setdefault"
    )
}

/// Calls `value.method(*args)`.
pub(super) fn call(
    _state: &mut State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let rows = match value.kind() {
        ValueKind::String => return text_method(value, method, args),
        ValueKind::Map => OF_MAPPINGS,
        ValueKind::Seq | ValueKind::Iterable => OF_LISTS,
        _ => &[],
    };
    let row = find(rows, method).ok_or_else(|| Error::from(ErrorKind::UnknownMethod))?;
    run(row, method, value, args)
}

/// Calls a method of a text. A method of a markup text returns markup, and escapes what it inserts.
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
        _ => Ok(argument.clone()),
    };
    let args: Vec<Value> = match method {
        "join" => return Err(fault("markup does not join texts")),
        "replace" => args.iter().map(escape).collect::<Result<_, Error>>()?,
        _ => args.to_vec(),
    };
    let result = run(row, method, value, &args)?;
    Ok(match result.as_str() {
        Some(text) => Value::from_safe_string(text.to_owned()),
        None => result,
    })
}

pub(super) fn pairs(mapping: &Value) -> Result<Value, Error> {
    let pairs = entries(mapping)?.into_iter();
    Ok(pairs
        .map(|(key, item)| list(vec![key, item], true))
        .collect())
}

/// White space by Python's definition: Unicode's, and the four ASCII separators.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

fn strip(call: &BoundCall<'_>) -> Result<Value, Error> {
    let (this, chars) = (call.this_text(), call.text(0)?);
    let is_stripped = |c: char| chars.map_or_else(|| is_space(c), |set| set.contains(c));
    Ok(Value::from(match call.name {
        "lstrip" => this.trim_start_matches(is_stripped),
        "rstrip" => this.trim_end_matches(is_stripped),
        _ => this.trim_matches(is_stripped),
    }))
}

fn split(call: &BoundCall<'_>) -> Result<Value, Error> {
    let this = call.this_text();
    let max = usize::try_from(call.int(1)?.unwrap_or(-1));
    let n_parts = max.map_or(usize::MAX, |max| max.saturating_add(1));
    let parts: Vec<&str> = match call.text(0)? {
        Some("") => return Err(fault("empty separator")),
        None if n_parts < usize::MAX => return Err(fault("`maxsplit` needs a separator")),
        None => {
            charge_parts(this.chars().filter(|&c| is_space(c)).count())?;
            let runs = this.split(is_space);
            runs.filter(|run| !run.is_empty()).collect()
        }
        Some(separator) => {
            charge_parts(this.matches(separator).count())?;
            if call.name == "split" {
                this.splitn(n_parts, separator).collect()
            } else {
                let mut parts: Vec<&str> = this.rsplitn(n_parts, separator).collect();
                parts.reverse();
                parts
            }
        }
    };
    Ok(parts.into_iter().collect())
}

/// Charges for a text that is cut in `n_cuts` places.
fn charge_parts(n_cuts: usize) -> Result<(), Error> {
    budget::made(n_cuts.saturating_add(1).saturating_mul(2 * ITEM))
}

fn partition(call: &BoundCall<'_>) -> Result<Value, Error> {
    let (this, separator) = (call.this_text(), call.required_text(0)?);
    let (cut, uncut) = match call.name {
        _ if separator.is_empty() => return Err(fault("empty separator")),
        "partition" => (this.split_once(separator), [this, "", ""]),
        _ => (this.rsplit_once(separator), ["", "", this]),
    };
    let parts = cut.map_or(uncut, |(head, tail)| [head, separator, tail]);
    Ok(list(parts.map(Value::from).to_vec(), true))
}

fn search(call: &BoundCall<'_>) -> Result<Value, Error> {
    let (this, wanted) = (call.this_text(), call.required_text(0)?);
    let found = match call.name {
        "count" => return Ok(Value::from(this.matches(wanted).count())),
        "rfind" | "rindex" => this.rfind(wanted),
        _ => this.find(wanted),
    };
    match found {
        Some(at) => Ok(Value::from(this[..at].chars().count())),
        None if call.name.ends_with("index") => Err(fault("substring not found")),
        None => Ok(Value::from(-1)),
    }
}

fn has_affix(call: &BoundCall<'_>) -> Result<Value, Error> {
    let affixes = match call.required(0)? {
        one if !is_list(one) => vec![one.clone()],
        several => several.try_iter()?.collect(),
    };
    let wrong = "a prefix or suffix must be a string or a tuple of strings";
    for affix in &affixes {
        let affix = affix.as_str().ok_or_else(|| fault(wrong))?;
        let has = match call.name {
            "startswith" => call.this_text().starts_with(affix),
            _ => call.this_text().ends_with(affix),
        };
        if has {
            return Ok(Value::from(true));
        }
    }
    Ok(Value::from(false))
}

/// `text.replace(old, new, count)`; a missing or negative count replaces all.
pub(super) fn replace(
    text: &str,
    old: &str,
    new: &str,
    count: Option<i64>,
) -> Result<Value, Error> {
    let count = count.and_then(|count| usize::try_from(count).ok());
    // Searching for a character is much faster than for a text of one character.
    let mut chars = old.chars();
    let one = chars.next().filter(|_| chars.as_str().is_empty());
    let n_found = match one {
        Some(one) => text.matches(one).count(),
        None => text.matches(old).count(),
    };
    budget::read(n_found.saturating_mul(ITEM))?;
    let count = count.map_or(n_found, |count| count.min(n_found));
    budget::made(count.saturating_mul(new.len()))?;
    Ok(Value::from(match one {
        Some(one) => text.replacen(one, new, count),
        None => text.replacen(old, new, count),
    }))
}

fn join(call: &BoundCall<'_>) -> Result<Value, Error> {
    let mut out = ChargedText::default();
    for (position, item) in call.required(0)?.try_iter()?.checked().enumerate() {
        let item = item?;
        let text = item.as_str().ok_or_else(|| {
            let kind = item.kind();
            fault(format!(
                "sequence item {position}: expected str instance, {kind} found"
            ))
        })?;
        out.push(if position > 0 { call.this_text() } else { "" })?;
        out.push(text)?;
    }
    Ok(out.into())
}

/// The lines of a text, split as by Python's `splitlines`.
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

fn capitalize(text: &str) -> String {
    let Some(first) = text.chars().next() else {
        return String::new();
    };
    // The lower case of a sigma depends on the characters before it.
    let small = text.to_lowercase();
    let n_first: usize = first.to_lowercase().map(char::len_utf8).sum();
    capital(first) + small.get(n_first..).unwrap_or_default()
}

/// The text with title case at the start of each run of letters, and lower case elsewhere.
fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for run in text.split_inclusive(|c| !is_cased(c)) {
        out += &capitalize(run);
    }
    out
}

/// The title case of a letter: a character that stands for two letters has a separate form.
fn capital(c: char) -> String {
    match c {
        '\u{1c4}'..='\u{1c6}' => "\u{1c5}".to_owned(),
        '\u{1c7}'..='\u{1c9}' => "\u{1c8}".to_owned(),
        '\u{1ca}'..='\u{1cc}' => "\u{1cb}".to_owned(),
        '\u{1f1}'..='\u{1f3}' => "\u{1f2}".to_owned(),
        _ => {
            let mut capitals = c.to_uppercase();
            let first = capitals.next().into_iter();
            first.chain(capitals.flat_map(char::to_lowercase)).collect()
        }
    }
}

/// Whether a character has a case.
fn is_cased(c: char) -> bool {
    let has_both = matches!(c, '\u{1c5}' | '\u{1c8}' | '\u{1cb}' | '\u{1f2}');
    c.is_lowercase() || c.is_uppercase() || has_both
}
