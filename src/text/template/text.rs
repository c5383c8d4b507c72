//! Filters of Jinja2 that lay out texts, write addresses and markup, or read markup.
//!
//! Each gives what Jinja2's filter of that name does. Invariant: what grows with an argument is
//! charged before it is made.

use minijinja::value::ValueKind;
use minijinja::{Error, Value};

use super::budget;
use super::call::Call;
use super::filters::{as_float, pair_items};
use super::methods::lines;
use super::print::{escaped, str};
use super::value::{entries, fault, is_list, same_safety};

/// A capital at the start and after each of `-`, white space and opening brackets.
pub(super) fn title(call: &Call<'_>) -> Result<Value, Error> {
    let text = str(call.this)?;
    let is_border = |c: char| c.is_whitespace() || "-({[<".contains(c);
    let mut out = String::with_capacity(text.len());
    for word in text.split_inclusive(is_border) {
        let mut chars = word.chars();
        out.extend(chars.next().into_iter().flat_map(char::to_uppercase));
        out += &chars.as_str().to_lowercase();
    }
    Ok(same_safety(call.this, out))
}

/// Counts runs of letters, digits and underscores.
pub(super) fn word_count(call: &Call<'_>) -> Result<Value, Error> {
    let text = str(call.this)?;
    let parts = text.split(|c: char| !c.is_alphanumeric() && c != '_');
    Ok(Value::from(parts.filter(|part| !part.is_empty()).count()))
}

/// The text of markup: without comments and tags, white space as one space, entities as characters.
pub(super) fn without_tags(call: &Call<'_>) -> Result<Value, Error> {
    let mut text = str(call.this)?;
    for (open, close) in [("<!--", "-->"), ("<", ">")] {
        let mut out = String::with_capacity(text.len());
        let mut rest = text.as_str();
        while let Some((head, tail)) = rest.split_once(open) {
            let Some((_, after)) = tail.split_once(close) else {
                break;
            };
            out.push_str(head);
            rest = after;
        }
        text = out + rest;
    }
    let words: Vec<&str> = text.split_whitespace().collect();
    Ok(Value::from(unescaped(&words.join(" "))))
}

/// Entities as characters: those with numbers, and the names that escaping makes.
fn unescaped(text: &str) -> String {
    let entity = |part: &str| {
        let (name, after) = part.split_once(';')?;
        let c = match name {
            "amp" => '&',
            "lt" => '<',
            "gt" => '>',
            "quot" => '"',
            "apos" => '\'',
            "nbsp" => '\u{a0}',
            _ => {
                let number = name.strip_prefix('#')?;
                let code = match number.strip_prefix(['x', 'X']) {
                    Some(hex) => u32::from_str_radix(hex, 16),
                    None => number.parse(),
                };
                char::from_u32(code.ok()?)?
            }
        };
        Some(format!("{c}{after}"))
    };
    let mut parts = text.split('&');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        out += &entity(part).unwrap_or_else(|| format!("&{part}"));
    }
    out
}

/// `value | indent(width=4, first=False, blank=False)`
pub(super) fn indent(call: &Call<'_>) -> Result<Value, Error> {
    let text = call.this.as_str();
    let text =
        text.ok_or_else(|| fault(format!("indent: {} is not a string", call.this.kind())))?;
    let margin = match call.value(0).and_then(Value::as_str) {
        Some(margin) => margin.to_owned(),
        None => {
            let width = usize::try_from(call.int(0)?.unwrap_or(4)).unwrap_or(0);
            budget::made(width)?;
            " ".repeat(width)
        }
    };
    // The line break that Jinja2 adds keeps one at the end of the text.
    let text = format!("{text}\n");
    let lines = lines(&text, false);
    budget::made(margin.len().saturating_mul(lines.len() + 1))?;
    let mut out = String::new();
    for (at, line) in lines.iter().enumerate() {
        if at > 0 {
            out.push('\n');
        }
        let is_indented = match at {
            0 => call.flag(1),
            _ => call.flag(2) || !line.is_empty(),
        };
        if is_indented {
            out.push_str(&margin);
        }
        out.push_str(line);
    }
    Ok(same_safety(call.this, out))
}

/// `value | truncate(length=255, killwords=False, end='...', leeway=5)`
pub(super) fn truncate(call: &Call<'_>) -> Result<Value, Error> {
    let count = |position, name, default| {
        let n = call.int(position)?.unwrap_or(default);
        usize::try_from(n).map_err(|_| fault(format!("truncate: `{name}` is {n}")))
    };
    let (length, leeway) = (count(0, "length", 255)?, count(3, "leeway", 5)?);
    let end = call.given(2).map_or(Ok("...".to_owned()), str)?;
    let n_end = end.chars().count();
    let kept = length.checked_sub(n_end);
    let kept = kept.ok_or_else(|| fault(format!("expected length >= {n_end}")))?;
    let n = call.this.len();
    if call.this.is_undefined() || n.is_some_and(|n| n <= length.saturating_add(leeway)) {
        return Ok(call.this.clone());
    }
    let text = call.this.as_str();
    let text =
        text.ok_or_else(|| fault(format!("truncate: {} is not a string", call.this.kind())))?;
    let kept: String = text.chars().take(kept).collect();
    let kept = match kept.rsplit_once(' ') {
        Some((words, _)) if !call.flag(1) => words,
        _ => &kept,
    };
    Ok(same_safety(call.this, format!("{kept}{end}")))
}

/// A text, or pairs of a query, as part of an address.
pub(super) fn url_encoded(call: &Call<'_>) -> Result<Value, Error> {
    let quoted = |value: &Value, in_query: bool| -> Result<String, Error> {
        let text = str(value)?;
        budget::made(text.len().saturating_mul(3))?;
        let bytes = text.bytes().map(|byte| match byte {
            b'/' if !in_query => "/".to_owned(),
            b' ' if in_query => "+".to_owned(),
            b if b.is_ascii_alphanumeric() || b"_.-~".contains(&b) => char::from(b).to_string(),
            b => format!("%{b:02X}"),
        });
        Ok(bytes.collect())
    };
    let pairs = match call.this.kind() {
        ValueKind::Map => entries(call.this)?,
        ValueKind::Undefined => Vec::new(),
        _ if is_list(call.this) => pair_items(call.this, "urlencode")?,
        _ => return quoted(call.this, false).map(Value::from),
    };
    let parts = pairs
        .iter()
        .map(|(key, value)| Ok(format!("{}={}", quoted(key, true)?, quoted(value, true)?)));
    let parts: Vec<String> = parts.collect::<Result<_, Error>>()?;
    Ok(Value::from(parts.join("&")))
}

/// A number of bytes for people, in powers of 1000 or (`binary`) of 1024.
pub(super) fn file_size(call: &Call<'_>) -> Result<Value, Error> {
    const UNITS: [&str; 8] = ["k", "M", "G", "T", "P", "E", "Z", "Y"];
    let is_binary = call.flag(0);
    let bytes = as_float(call.this).ok_or_else(|| fault("filesizeformat: not a number"))?;
    let base: f64 = if is_binary { 1024.0 } else { 1000.0 };
    if bytes == 1.0 {
        return Ok(Value::from("1 Byte"));
    }
    if bytes < base {
        return Ok(Value::from(format!("{} Bytes", bytes.trunc() as i64)));
    }
    let last = UNITS.len() - 1;
    let at = (0..last).find(|i| bytes < base.powi(*i as i32 + 2));
    let at = at.unwrap_or(last);
    let amount = base * bytes / base.powi(at as i32 + 2);
    let unit = match (is_binary, UNITS[at]) {
        (true, unit) => format!("{}iB", unit.to_uppercase()),
        (false, unit) => format!("{unit}B"),
    };
    Ok(Value::from(format!("{amount:.1} {unit}")))
}

/// The entries of a mapping as attributes of a tag.
pub(super) fn attributes(call: &Call<'_>) -> Result<Value, Error> {
    let mut out = String::new();
    for (key, value) in entries(call.this)? {
        if value.is_none() || value.is_undefined() {
            continue;
        }
        let name = str(&key)?;
        if name.contains(|c: char| c.is_whitespace() || "/>=".contains(c)) {
            let message = format!("invalid character in attribute name: '{name}'");
            return Err(fault(message));
        }
        let part = format!("{}=\"{}\"", escaped(&key)?, escaped(&value)?);
        budget::made(part.len())?;
        if !out.is_empty() || call.given(0).is_none_or(Value::is_true) {
            out.push(' ');
        }
        out.push_str(&part);
    }
    Ok(Value::from(out))
}
