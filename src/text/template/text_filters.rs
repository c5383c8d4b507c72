//! Filters of Jinja2 that make a text of a value: layout, case, escapes, attributes of markup.
//!
//! Each gives what Jinja2's filter of that name does. Not here: `urlize` and `wordwrap`, which lay out
//! web pages. Invariant: what grows with an argument is charged before it is made.

use minijinja::value::{Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, Value};

use super::arguments::{bind, flag, optional_int};
use super::budget;
use super::case::capitalize;
use super::methods::{pad, split_line_texts};
use super::operators::{escaped, same_safety};
use super::value::{entries, fault, str};

/// Registers the filters of this module.
pub(super) fn register(env: &mut Environment<'static>) {
    type Change = fn(&str) -> String;
    let of_text: [(&str, Change); 6] = [
        ("upper", str::to_uppercase),
        ("lower", str::to_lowercase),
        ("capitalize", capitalize),
        ("title", title),
        ("striptags", without_tags),
        ("forceescape", |text| markup_escaped(text)),
    ];
    for (name, change) in of_text {
        env.add_filter(name, move |value: &Value| {
            let text = str(value)?;
            budget::made(text.len().saturating_mul(5))?;
            let changed = change(&text);
            Ok::<_, Error>(match name {
                "forceescape" => Value::from_safe_string(changed),
                "striptags" => Value::from(changed),
                _ => same_safety(value, changed),
            })
        });
    }
    env.add_filter("pprint", |value: &Value| repr(value));
    env.add_filter("center", center);
    env.add_filter("wordcount", |value: &Value| {
        str(value).map(|text| words(&text))
    });
    env.add_filter("indent", indent);
    env.add_filter("truncate", truncate);
    env.add_filter("urlencode", url_encoded);
    env.add_filter("filesizeformat", file_size);
    env.add_filter("xmlattr", attributes);
}

/// `repr` of a value that fits a line; longer ones are not broken into lines as Python does it.
fn repr(value: &Value) -> Result<String, Error> {
    let list = str(&Value::from(vec![value.clone()]))?;
    Ok(list[1..list.len() - 1].to_owned())
}

/// A capital at the start and behind each of `-`, white space and opening brackets.
fn title(text: &str) -> String {
    let is_border = |c: char| c.is_whitespace() || "-({[<".contains(c);
    let words = text.split_inclusive(is_border);
    words
        .map(|word| {
            let mut chars = word.chars();
            let first = chars.next().map(char::to_uppercase);
            first.into_iter().flatten().collect::<String>() + &chars.as_str().to_lowercase()
        })
        .collect()
}

fn markup_escaped(text: &str) -> String {
    escaped(&Value::from(text)).unwrap_or_default()
}

/// The text of markup: without comments and tags, white space as one blank, entities as characters.
fn without_tags(text: &str) -> String {
    let mut text = text.to_owned();
    for (open, close) in [("<!--", "-->"), ("<", ">")] {
        let mut out = String::with_capacity(text.len());
        let mut rest = text.as_str();
        while let Some((head, tail)) = rest.split_once(open) {
            let Some((_, behind)) = tail.split_once(close) else {
                break;
            };
            out.push_str(head);
            rest = behind;
        }
        out.push_str(rest);
        text = out;
    }
    let words: Vec<&str> = text.split_whitespace().collect();
    unescaped(&words.join(" "))
}

/// Entities as characters: those with numbers, and the names that escaping makes.
fn unescaped(text: &str) -> String {
    const NAMES: [(&str, char); 6] = [
        ("amp", '&'),
        ("lt", '<'),
        ("gt", '>'),
        ("quot", '"'),
        ("apos", '\''),
        ("nbsp", '\u{a0}'),
    ];
    let mut out = String::with_capacity(text.len());
    let mut parts = text.split('&');
    out.push_str(parts.next().unwrap_or_default());
    for part in parts {
        let entity = part.split_once(';').and_then(|(name, behind)| {
            let c = match name.strip_prefix('#') {
                Some(number) => match number.strip_prefix(['x', 'X']) {
                    Some(hex) => u32::from_str_radix(hex, 16).ok(),
                    None => number.parse().ok(),
                }
                .and_then(char::from_u32),
                None => NAMES.iter().find(|(n, _)| *n == name).map(|(_, c)| *c),
            };
            Some((c?, behind))
        });
        match entity {
            Some((c, behind)) => {
                out.push(c);
                out.push_str(behind);
            }
            None => {
                out.push('&');
                out.push_str(part);
            }
        }
    }
    out
}

fn center(value: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let [width] = bind(&args.into_values(), ["width"])?;
    let width = width.unwrap_or_else(|| Value::from(80));
    Ok(same_safety(
        value,
        str(&pad(&str(value)?, "center", &[width])?)?,
    ))
}

/// Runs of letters, digits and underscores.
fn words(text: &str) -> usize {
    let parts = text.split(|c: char| !c.is_alphanumeric() && c != '_');
    parts.filter(|part| !part.is_empty()).count()
}

/// `value | indent(width=4, first=False, blank=False)`
fn indent(value: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let [width, first, blank] = bind(&args.into_values(), ["width", "first", "blank"])?;
    let text = value.as_str();
    let text = text.ok_or_else(|| fault(format!("indent: {} is no text", value.kind())))?;
    let margin = match width.as_ref().and_then(Value::as_str) {
        Some(margin) => margin.to_owned(),
        None => {
            let width = optional_int(&width, "width")?.unwrap_or(4);
            let width = usize::try_from(width).unwrap_or(0);
            budget::made(width)?;
            " ".repeat(width)
        }
    };
    // The line break that Jinja2 adds keeps one at the end of the text.
    let text = format!("{text}\n");
    let lines = split_line_texts(&text, false);
    budget::made(text.len() + margin.len().saturating_mul(lines.len() + 1))?;
    let mut out = String::new();
    for (at, line) in lines.iter().enumerate() {
        if at > 0 {
            out.push('\n');
        }
        let is_indented = match at {
            0 => flag(&first),
            _ => flag(&blank) || !line.is_empty(),
        };
        if is_indented {
            out.push_str(&margin);
        }
        out.push_str(line);
    }
    Ok(same_safety(value, out))
}

/// `value | truncate(length=255, killwords=False, end='...', leeway=5)`
fn truncate(value: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let names = ["length", "killwords", "end", "leeway"];
    let [length, killwords, end, leeway] = bind(&args.into_values(), names)?;
    let count = |given, name, default| {
        let n = optional_int(given, name)?.unwrap_or(default);
        usize::try_from(n).map_err(|_| fault(format!("truncate: `{name}` is {n}")))
    };
    let (length, leeway) = (count(&length, "length", 255)?, count(&leeway, "leeway", 5)?);
    let end = end.as_ref().map_or(Ok("...".to_owned()), str)?;
    let Some(kept) = length.checked_sub(end.chars().count()) else {
        return Err(fault(format!("expected length >= {}", end.chars().count())));
    };
    let n = value.len().filter(|_| !value.is_undefined());
    if value.is_undefined() || n.is_some_and(|n| n <= length.saturating_add(leeway)) {
        return Ok(value.clone());
    }
    let text = value.as_str();
    let text = text.ok_or_else(|| fault(format!("truncate: {} is no text", value.kind())))?;
    budget::made(text.len() + end.len())?;
    let kept: String = text.chars().take(kept).collect();
    let kept = match kept.rsplit_once(' ') {
        Some((words, _)) if !flag(&killwords) => words,
        _ => &kept,
    };
    Ok(same_safety(value, format!("{kept}{end}")))
}

/// A text, or pairs of a query, as part of an address.
fn url_encoded(value: &Value) -> Result<String, Error> {
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
    let pairs: Vec<(Value, Value)> = match value.kind() {
        ValueKind::Map => entries(value)?,
        ValueKind::Seq | ValueKind::Iterable => value
            .try_iter()?
            .map(|item| {
                let parts: Vec<Value> = item.try_iter()?.collect();
                match <[Value; 2]>::try_from(parts) {
                    Ok([key, value]) => Ok((key, value)),
                    Err(_) => Err(fault("urlencode: expected pairs")),
                }
            })
            .collect::<Result<_, Error>>()?,
        ValueKind::Undefined => Vec::new(),
        _ => return quoted(value, false),
    };
    let pairs = pairs.iter();
    let parts: Result<Vec<String>, Error> = pairs
        .map(|(key, value)| Ok(format!("{}={}", quoted(key, true)?, quoted(value, true)?)))
        .collect();
    Ok(parts?.join("&"))
}

/// A number of bytes for people, in powers of 1000 or (`binary`) of 1024.
fn file_size(value: &Value, args: Rest<ValueOrKwargs>) -> Result<String, Error> {
    const UNITS: [&str; 8] = ["k", "M", "G", "T", "P", "E", "Z", "Y"];
    let [binary] = bind(&args.into_values(), ["binary"])?;
    let is_binary = flag(&binary);
    let bytes = super::filters::as_float(value);
    let bytes = bytes.ok_or_else(|| fault("filesizeformat: not a number"))?;
    let base: f64 = if is_binary { 1024.0 } else { 1000.0 };
    if bytes == 1.0 {
        return Ok("1 Byte".to_owned());
    }
    if bytes < base {
        return Ok(format!("{} Bytes", bytes.trunc() as i64));
    }
    let last = UNITS.len() - 1;
    let at = (0..last).find(|i| bytes < base.powi(*i as i32 + 2));
    let at = at.unwrap_or(last);
    let amount = base * bytes / base.powi(at as i32 + 2);
    let unit = match (is_binary, UNITS[at]) {
        (true, unit) => format!("{}iB", unit.to_uppercase()),
        (false, unit) => format!("{unit}B"),
    };
    Ok(format!("{amount:.1} {unit}"))
}

/// The entries of a mapping as attributes of a tag.
fn attributes(value: &Value, args: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let [autospace] = bind(&args.into_values(), ["autospace"])?;
    let mut out = String::new();
    for (key, value) in entries(value)? {
        if value.is_none() || value.is_undefined() {
            continue;
        }
        let name = str(&key)?;
        if name.contains(|c: char| c.is_whitespace() || "/>=".contains(c)) {
            return Err(fault(format!(
                "invalid character in attribute name: '{name}'"
            )));
        }
        let part = format!("{}=\"{}\"", escaped(&key)?, escaped(&value)?);
        budget::made(part.len() + 1)?;
        if !out.is_empty() || autospace.as_ref().is_none_or(Value::is_true) {
            out.push(' ');
        }
        out.push_str(&part);
    }
    Ok(out)
}
