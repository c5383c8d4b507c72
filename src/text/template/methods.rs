//! Methods of Python's `str`, `dict`, `list` and `tuple`, which templates call freely.
//!
//! Called for every method that an engine value does not have itself. Invariant: nothing here
//! changes a value. Python's sandbox forbids the methods that would; they are refused by name.

use minijinja::formatting::{FormatStyle, format};
use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

use super::arguments::{bind, flag, optional_int, optional_text, text};
use super::budget::{self, ITEM, Walk};
use super::case::{capitalize, fold, is_cased, swap_case, title, translate};
use super::operators::{as_int, escaped, same_safety};
use super::value::{as_float, entries, fault, is_printable, str};

/// Attributes that every Python `dict` has, whatever its keys.
const DICT_METHODS: [&str; 11] = [
    "keys",
    "values",
    "items",
    "get",
    "copy",
    "pop",
    "popitem",
    "clear",
    "update",
    "setdefault",
    "fromkeys",
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

/// Longest text that one call may make.
const MAX_TEXT: usize = 1 << 26;
const TOO_LONG: &str = "the text would be too long";

pub(super) fn is_dict_method(name: &str) -> bool {
    DICT_METHODS.contains(&name)
}

/// Calls `value.method(*args)`.
pub(super) fn call(
    _state: &mut State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let kind = value.kind();
    for argument in args {
        budget::read(ITEM + budget::size(argument))?;
    }
    match kind {
        ValueKind::String => markup_method(value, method, args),
        ValueKind::Map | ValueKind::Seq | ValueKind::Iterable if MUTATORS.contains(&method) => {
            Err(fault(format!(
                "access to attribute '{method}' of {kind} is unsafe"
            )))
        }
        ValueKind::Map => dict_method(value, method, args),
        ValueKind::Seq | ValueKind::Iterable => list_method(value, method, args),
        ValueKind::Number | ValueKind::Bool => number_method(value, method, args),
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

/// The methods of numbers that a template has a use for.
fn number_method(value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let [] = bind(args, [])?;
    match (method, as_float(value), as_int(value)) {
        ("is_integer", Some(float), _) => Ok(Value::from(float.fract() == 0.0)),
        ("is_integer", None, Some(_)) => Ok(Value::from(true)),
        ("bit_length", _, Some(int)) => Ok(Value::from(128 - int.unsigned_abs().leading_zeros())),
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

fn dict_method(value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    if method == "get" {
        let [key, default] = bind(args, ["key", "default"])?;
        let key = key.ok_or_else(|| fault("get expected at least 1 argument"))?;
        let found = value.as_object().and_then(|map| map.get_value(&key));
        return Ok(found.or(default).unwrap_or_else(|| Value::from(())));
    }
    let [] = bind(args, [])?;
    budget::made(budget::size(value))?;
    match method {
        "keys" => Ok(entries(value)?.into_iter().map(|(key, _)| key).collect()),
        "values" => Ok(entries(value)?.into_iter().map(|(_, item)| item).collect()),
        "items" => pairs(value),
        "copy" => Ok(value.clone()),
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

/// The entries of a mapping as a list of tuples.
pub(super) fn pairs(mapping: &Value) -> Result<Value, Error> {
    Ok(entries(mapping)?
        .into_iter()
        .map(|(key, item)| Value::from(Tuple::from([key, item])))
        .collect())
}

fn list_method(value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    if method == "copy" {
        let [] = bind(args, [])?;
        return Ok(value.clone());
    }
    if !matches!(method, "count" | "index") {
        return Err(Error::from(ErrorKind::UnknownMethod));
    }
    let [wanted] = bind(args, ["value"])?;
    let wanted = wanted.ok_or_else(|| fault("expected one argument"))?;
    budget::walk(value, Walk::Read)?;
    if method == "count" {
        let count = value.try_iter()?.filter(|item| *item == wanted).count();
        return Ok(Value::from(count));
    }
    let position = value.try_iter()?.position(|item| item == wanted);
    position
        .map(Value::from)
        .ok_or_else(|| fault("the value is not in the list"))
}

/// A method of a text. That of a markup gives markup, and escapes what it puts in.
fn markup_method(value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let this = value.as_str().unwrap_or_default();
    budget::made(this.len())?;
    if !value.is_safe() {
        return str_method(this, method, args);
    }
    let escape = |argument: &Value| match argument.kind() {
        ValueKind::String => escaped(argument).map(Value::from_safe_string),
        ValueKind::Seq | ValueKind::Iterable => argument
            .try_iter()?
            .map(|item| escaped(&item).map(Value::from))
            .collect(),
        _ => Ok(argument.clone()),
    };
    let result = if matches!(method, "replace" | "join") {
        let args: Vec<Value> = args.iter().map(escape).collect::<Result<_, Error>>()?;
        str_method(this, method, &args)?
    } else {
        str_method(this, method, args)?
    };
    Ok(match result.as_str() {
        Some(text) => same_safety(value, text.to_owned()),
        None => result,
    })
}

fn str_method(this: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    match method {
        "strip" | "lstrip" | "rstrip" => strip(this, method, args),
        "split" | "rsplit" => split(this, method == "rsplit", args),
        "partition" | "rpartition" => partition(this, method == "rpartition", args),
        "find" | "rfind" | "index" | "rindex" | "count" => search(this, method, args),
        "startswith" | "endswith" => has_affix(this, method == "startswith", args),
        "center" | "ljust" | "rjust" | "zfill" => pad(this, method, args),
        "translate" => translate(this, args),
        "replace" => {
            let [old, new, count] = bind(args, ["old", "new", "count"])?;
            let (old, new) = (text(&old, "old")?, text(&new, "new")?);
            replace(this, old, new, optional_int(&count, "count")?).map(Value::from)
        }
        "join" => {
            let [items] = bind(args, ["iterable"])?;
            join(this, &items.unwrap_or_default())
        }
        "format" => {
            charge_format(this, args)?;
            format(FormatStyle::StrFormat, this, args).map(Value::from)
        }
        "removeprefix" => {
            let [prefix] = bind(args, ["prefix"])?;
            let rest = this.strip_prefix(text(&prefix, "prefix")?);
            Ok(Value::from(rest.unwrap_or(this)))
        }
        "removesuffix" => {
            let [suffix] = bind(args, ["suffix"])?;
            let rest = this.strip_suffix(text(&suffix, "suffix")?);
            Ok(Value::from(rest.unwrap_or(this)))
        }
        "splitlines" => {
            let [keep_ends] = bind(args, ["keepends"])?;
            let lines = split_line_texts(this, flag(&keep_ends));
            charge_parts(lines.len())?;
            Ok(lines.into_iter().map(Value::from).collect())
        }
        "expandtabs" => {
            let [size] = bind(args, ["tabsize"])?;
            let size = optional_int(&size, "tabsize")?.unwrap_or(8);
            expand_tabs(this, size.clamp(0, 64) as usize)
        }
        _ => {
            let result = case_or_class(this, method);
            let result = result.ok_or_else(|| Error::from(ErrorKind::UnknownMethod))?;
            let [] = bind(args, [])?;
            Ok(result)
        }
    }
}

/// The methods without arguments: changes of case, and questions about the characters.
fn case_or_class(text: &str, method: &str) -> Option<Value> {
    let every = |is: fn(char) -> bool| Value::from(!text.is_empty() && text.chars().all(is));
    let cased = |wanted: fn(char) -> bool, unwanted: fn(char) -> bool| {
        Value::from(text.chars().any(wanted) && !text.chars().any(unwanted))
    };
    Some(match method {
        "upper" => Value::from(text.to_uppercase()),
        "lower" => Value::from(text.to_lowercase()),
        "casefold" => text.chars().flat_map(fold).collect::<String>().into(),
        "title" => Value::from(title(text)),
        "capitalize" => Value::from(capitalize(text)),
        "swapcase" => swap_case(text).into(),
        "isspace" => every(is_space),
        "isalpha" => every(char::is_alphabetic),
        "isalnum" => every(char::is_alphanumeric),
        "isdigit" | "isnumeric" | "isdecimal" => every(char::is_numeric),
        "isascii" => Value::from(text.is_ascii()),
        "islower" => cased(char::is_lowercase, char::is_uppercase),
        "isupper" => cased(char::is_uppercase, char::is_lowercase),
        "istitle" => Value::from(text.chars().any(is_cased) && title(text) == text),
        "isprintable" => Value::from(text.chars().all(is_printable)),
        "isidentifier" => {
            let (mut chars, is_start) = (text.chars(), |c: char| c.is_alphabetic() || c == '_');
            let is_sound = chars.next().is_some_and(is_start);
            Value::from(is_sound && chars.all(|c| is_start(c) || c.is_numeric()))
        }
        _ => return None,
    })
}

/// White space as Python counts it: Unicode's, and the four ASCII separators.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

fn strip(this: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let [chars] = bind(args, ["chars"])?;
    let chars = optional_text(&chars, "chars")?;
    let is_stripped = |c: char| chars.map_or_else(|| is_space(c), |set| set.contains(c));
    Ok(Value::from(match method {
        "lstrip" => this.trim_start_matches(is_stripped),
        "rstrip" => this.trim_end_matches(is_stripped),
        _ => this.trim_matches(is_stripped),
    }))
}

fn split(this: &str, from_right: bool, args: &[Value]) -> Result<Value, Error> {
    let [separator, max] = bind(args, ["sep", "maxsplit"])?;
    let max = optional_int(&max, "maxsplit")?.unwrap_or(-1);
    let max = usize::try_from(max).unwrap_or(usize::MAX);
    let Some(separator) = optional_text(&separator, "sep")? else {
        charge_parts(this.chars().filter(|&c| is_space(c)).count())?;
        return Ok(Value::from(split_spaces(this, from_right, max)));
    };
    if separator.is_empty() {
        return Err(fault("empty separator"));
    }
    charge_parts(this.matches(separator).count())?;
    let n_parts = max.saturating_add(1);
    if !from_right {
        return Ok(this.splitn(n_parts, separator).collect());
    }
    let mut parts: Vec<&str> = this.rsplitn(n_parts, separator).collect();
    parts.reverse();
    Ok(parts.into_iter().collect())
}

/// Charges for a text cut in as many places.
fn charge_parts(n_cuts: usize) -> Result<(), Error> {
    budget::made(n_cuts.saturating_add(1).saturating_mul(2 * ITEM))
}

fn partition(this: &str, from_right: bool, args: &[Value]) -> Result<Value, Error> {
    let [separator] = bind(args, ["sep"])?;
    let separator = text(&separator, "sep")?;
    if separator.is_empty() {
        return Err(fault("empty separator"));
    }
    let (cut, without) = if from_right {
        (this.rsplit_once(separator), ["", "", this])
    } else {
        (this.split_once(separator), [this, "", ""])
    };
    let parts = cut.map_or(without, |(head, tail)| [head, separator, tail]);
    Ok(Value::from(Tuple::from(parts.map(Value::from))))
}

/// Splits at runs of white space, at most `max` times; white space at the ends gives no part, but
/// stays in the part that is not cut further.
fn split_spaces(text: &str, from_right: bool, max: usize) -> Vec<Value> {
    let trimmed = |text: &'_ str| -> (usize, usize) {
        match from_right {
            true => (0, text.trim_end_matches(is_space).len()),
            false => (
                text.len() - text.trim_start_matches(is_space).len(),
                text.len(),
            ),
        }
    };
    let mut parts = Vec::new();
    let (start, end) = trimmed(text);
    let mut rest = &text[start..end];
    while !rest.is_empty() {
        let cut = if parts.len() == max {
            None
        } else if from_right {
            rest.char_indices()
                .rfind(|(_, c)| is_space(*c))
                .map(|(at, c)| at + c.len_utf8())
        } else {
            rest.find(is_space)
        };
        let (part, remainder) = match cut {
            None => (rest, ""),
            Some(at) if from_right => (&rest[at..], &rest[..at]),
            Some(at) => rest.split_at(at),
        };
        parts.push(Value::from(part));
        let (start, end) = trimmed(remainder);
        rest = &remainder[start..end];
    }
    if from_right {
        parts.reverse();
    }
    parts
}

/// The part of `this` between two character positions as Python counts them, and the position of
/// its first character.
fn window<'a>(
    this: &'a str,
    start: &Option<Value>,
    end: &Option<Value>,
) -> Result<Option<(usize, &'a str)>, Error> {
    let (start, end) = (optional_int(start, "start")?, optional_int(end, "end")?);
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

fn search(this: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let [wanted, start, end] = bind(args, ["sub", "start", "end"])?;
    let wanted = text(&wanted, "sub")?;
    let window = window(this, &start, &end)?;
    if method == "count" {
        return Ok(Value::from(window.map_or(0, |(_, part)| {
            if wanted.is_empty() {
                part.chars().count() + 1
            } else {
                part.matches(wanted).count()
            }
        })));
    }
    let found = window.and_then(|(offset, part)| {
        let at = if method.starts_with('r') {
            part.rfind(wanted)
        } else {
            part.find(wanted)
        };
        at.map(|at| offset + part[..at].chars().count())
    });
    match found {
        Some(position) => Ok(Value::from(position)),
        None if method.ends_with("index") => Err(fault("substring not found")),
        None => Ok(Value::from(-1)),
    }
}

fn has_affix(this: &str, at_start: bool, args: &[Value]) -> Result<Value, Error> {
    let [affix, start, end] = bind(args, ["affix", "start", "end"])?;
    let affix = affix.unwrap_or_default();
    let part = window(this, &start, &end)?.map(|(_, part)| part);
    let has = |affix: &Value| match (affix.as_str(), part) {
        (Some(_), None) => Ok(false),
        (Some(affix), Some(part)) if at_start => Ok(part.starts_with(affix)),
        (Some(affix), Some(part)) => Ok(part.ends_with(affix)),
        (None, _) => Err(fault(format!(
            "a prefix or suffix must be a string or a tuple of strings, not {}",
            affix.kind()
        ))),
    };
    if !matches!(affix.kind(), ValueKind::Seq | ValueKind::Iterable) {
        return has(&affix).map(Value::from);
    }
    for affix in affix.try_iter()? {
        if has(&affix)? {
            return Ok(Value::from(true));
        }
    }
    Ok(Value::from(false))
}

pub(super) fn pad(this: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let [width, fill] = bind(args, ["width", "fillchar"])?;
    let width = optional_int(&width, "width")?.ok_or_else(|| fault("missing argument 'width'"))?;
    let width = usize::try_from(width).unwrap_or(0);
    if width > MAX_TEXT {
        return Err(fault(TOO_LONG));
    }
    let fill = optional_text(&fill, "fillchar")?.unwrap_or(" ");
    if fill.chars().count() != 1 {
        return Err(fault(
            "the fill character must be exactly one character long",
        ));
    }
    let missing = width.saturating_sub(this.chars().count());
    budget::made(missing.saturating_mul(fill.len()))?;
    let fill = |n: usize| fill.repeat(n);
    Ok(Value::from(match method {
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
) -> Result<String, Error> {
    let found = if old.is_empty() {
        text.chars().count() + 1
    } else {
        text.matches(old).count()
    };
    let count = count
        .and_then(|count| usize::try_from(count).ok())
        .map_or(found, |count| count.min(found));
    if count.saturating_mul(new.len()).saturating_add(text.len()) > MAX_TEXT {
        return Err(fault(TOO_LONG));
    }
    budget::made(count.saturating_mul(new.len()).saturating_add(text.len()))?;
    Ok(text.replacen(old, new, count))
}

fn join(separator: &str, items: &Value) -> Result<Value, Error> {
    let mut out = String::new();
    for (position, item) in items.try_iter()?.checked().enumerate() {
        let item = item?;
        let text = item.as_str().ok_or_else(|| {
            fault(format!(
                "sequence item {position}: expected str instance, {} found",
                item.kind()
            ))
        })?;
        budget::made(separator.len() + text.len())?;
        if position > 0 {
            out.push_str(separator);
        }
        out.push_str(text);
    }
    Ok(Value::from(out))
}

/// Charges for what a format can make: every number in it may be a width, every field may print
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
        longest = longest.max(str(arg)?.len());
        if let Some(width) = usize::try_from(arg.clone()).ok().filter(|_| is_nested) {
            longest = longest.max(width);
        }
    }
    budget::made(widths.saturating_add(n_fields.saturating_mul(longest)))
}

/// The lines of a text as Python's `splitlines` cuts it.
pub(super) fn split_line_texts(text: &str, keep_ends: bool) -> Vec<&str> {
    let is_end = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'
                ..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(is_end) {
        let tail = &rest[at..];
        let end_length = if tail.starts_with("\r\n") {
            2
        } else {
            tail.chars().next().map_or(0, char::len_utf8)
        };
        let (with_end, remainder) = rest.split_at(at + end_length);
        lines.push(if keep_ends { with_end } else { &rest[..at] });
        rest = remainder;
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}

fn expand_tabs(text: &str, size: usize) -> Result<Value, Error> {
    let mut out = String::new();
    let mut column = 0;
    for c in text.chars() {
        match c {
            '\t' => {
                let n_spaces = if size == 0 { 0 } else { size - column % size };
                out.extend(std::iter::repeat_n(' ', n_spaces));
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
        if out.len() > MAX_TEXT {
            return Err(fault(TOO_LONG));
        }
    }
    Ok(Value::from(out))
}

/// [`charge_format`] of `pattern % args`, which must use all its arguments.
pub(super) fn charge_printf(pattern: &str, args: &[Value]) -> Result<(), Error> {
    let is_by_name = pattern.contains("%(") || args.iter().any(Value::is_kwargs);
    let n_used = pattern.replace("%%", "").matches(['%', '*']).count();
    let is_mapping = matches!(args, [only] if only.kind() == ValueKind::Map);
    if !is_by_name && !is_mapping && args.len() > n_used {
        return Err(fault(
            "not all arguments converted during string formatting",
        ));
    }
    charge_format(pattern, args)
}
