//! Values as text: Python's `str` and `repr`, and what `json.dumps` gives.
//!
//! One printer walks through a value; a [`Style`] says how each kind is written. JSON is not HTML-safe
//! on purpose: prompts are not web pages, and models were trained on the plain form. Invariant: with the
//! default arguments `tojson` gives byte for byte `json.dumps(value, ensure_ascii=False)`: key order
//! kept, `", "` and `": "` between items.

use std::fmt::Write;

use minijinja::value::ValueKind;
use minijinja::{Error, Value};

use super::budget;
use super::call::Call;
use super::value::{Number, entries, fault};

/// How deep printed values may nest; the printer recurses.
const MAX_DEPTH: usize = 128;

/// How values are written.
#[derive(Debug)]
struct Style {
    is_json: bool,
    ensure_ascii: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

impl Style {
    fn new(is_json: bool) -> Self {
        Self {
            is_json,
            ensure_ascii: false,
            indent: None,
            item_separator: ", ".to_owned(),
            key_separator: ": ".to_owned(),
            sort_keys: false,
        }
    }
}

/// Python's `str(value)`.
pub(super) fn str(value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::String => Ok(value.as_str().unwrap_or_default().to_owned()),
        ValueKind::Undefined => Ok(String::new()),
        _ => repr(value),
    }
}

/// Python's `repr(value)`.
pub(super) fn repr(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    Style::new(false).write(&mut out, value, 0)?;
    Ok(out)
}

/// `value | tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`
pub(super) fn tojson(call: &Call<'_>) -> Result<Value, Error> {
    let mut style = Style::new(true);
    style.ensure_ascii = call.flag(0);
    style.indent = match call.value(1).map(|indent| (indent, indent.as_str())) {
        None => None,
        Some((_, Some(text))) => Some(text.to_owned()),
        Some(_) => Some(" ".repeat(call.int(1)?.unwrap_or(0).clamp(0, 64) as usize)),
    };
    if style.indent.is_some() {
        style.item_separator = ",".to_owned();
    }
    if let Some(pair) = call.value(2) {
        let texts: Vec<Value> = pair.try_iter()?.collect();
        let [item, key] = texts.as_slice() else {
            return Err(fault("tojson: `separators` is not a pair"));
        };
        (style.item_separator, style.key_separator) = (item.to_string(), key.to_string());
    }
    style.sort_keys = call.flag(3);
    let mut out = String::new();
    style.write(&mut out, call.this, 0)?;
    Ok(Value::from(out))
}

impl Style {
    fn write(&self, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(fault("maximum recursion depth exceeded while printing"));
        }
        let indent = self.indent.as_ref().map_or(0, String::len);
        let separators = self.item_separator.len() + self.key_separator.len();
        let layout = separators + indent * (depth + 1);
        // Any value takes a few bytes, and longer to print than to copy.
        budget::made(32 + layout + value.as_str().map_or(0, str::len))?;
        match value.kind() {
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.checked().collect::<Result<_, _>>()?;
                let brackets = match !self.is_json && value.is_tuple() {
                    true if items.len() == 1 => ["(", ",)"],
                    true => ["(", ")"],
                    false => ["[", "]"],
                };
                self.write_container(out, brackets, depth, &items, |out, item| {
                    self.write(out, item, depth + 1)
                })
            }
            ValueKind::Map => {
                let mut pairs = entries(value)?;
                if self.sort_keys {
                    pairs.sort_by(|a, b| a.0.cmp(&b.0));
                }
                self.write_container(out, ["{", "}"], depth, &pairs, |out, (key, item)| {
                    if self.is_json {
                        out.push_str(&self.quoted(&json_key(key)?));
                    } else {
                        self.write(out, key, depth + 1)?;
                    }
                    out.push_str(&self.key_separator);
                    self.write(out, item, depth + 1)
                })
            }
            _ => {
                out.push_str(&self.scalar(value)?);
                Ok(())
            }
        }
    }

    fn write_container<T>(
        &self,
        out: &mut String,
        [open, close]: [&str; 2],
        depth: usize,
        items: &[T],
        mut write_item: impl FnMut(&mut String, &T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let break_line = |out: &mut String, depth| {
            if let Some(indent) = &self.indent {
                out.push('\n');
                out.push_str(&indent.repeat(depth));
            }
        };
        out.push_str(open);
        for (n_items, item) in items.iter().enumerate() {
            if n_items > 0 {
                out.push_str(&self.item_separator);
            }
            break_line(out, depth + 1);
            write_item(out, item)?;
        }
        if !items.is_empty() {
            break_line(out, depth);
        }
        out.push_str(close);
        Ok(())
    }

    /// A value without items.
    fn scalar(&self, value: &Value) -> Result<String, Error> {
        let word = |json: &str, python: &str| (if self.is_json { json } else { python }).to_owned();
        Ok(match value.kind() {
            ValueKind::None => word("null", "None"),
            ValueKind::Bool if value.is_true() => word("true", "True"),
            ValueKind::Bool => word("false", "False"),
            ValueKind::Number => match Number::of(value) {
                Some(Number::Float(float)) if float.is_nan() => word("NaN", "nan"),
                Some(Number::Float(f64::INFINITY)) => word("Infinity", "inf"),
                Some(Number::Float(f64::NEG_INFINITY)) => word("-Infinity", "-inf"),
                Some(Number::Float(float)) => float_repr(float),
                _ => value.to_string(),
            },
            ValueKind::String => {
                let quoted = self.quoted(value.as_str().unwrap_or_default());
                match value.is_safe() && !self.is_json {
                    true => format!("Markup({quoted})"),
                    false => quoted,
                }
            }
            kind if self.is_json => {
                return Err(fault(format!(
                    "value of type {kind} is not JSON serializable"
                )));
            }
            ValueKind::Undefined => "Undefined".to_owned(),
            _ => value.to_string(),
        })
    }

    fn quoted(&self, text: &str) -> String {
        if !self.is_json {
            return python_quoted(text);
        }
        let quoted = serde_json::Value::from(text).to_string();
        if !self.ensure_ascii {
            return quoted;
        }
        let mut out = String::with_capacity(quoted.len());
        for c in quoted.chars() {
            if c <= '~' {
                out.push(c);
                continue;
            }
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        }
        out
    }
}

/// A mapping key as JSON text; Python writes numbers, booleans and none as strings.
fn json_key(key: &Value) -> Result<String, Error> {
    match (key.as_str(), key.kind()) {
        (Some(text), _) => Ok(text.to_owned()),
        (None, ValueKind::Number | ValueKind::Bool | ValueKind::None) => {
            Style::new(true).scalar(key)
        }
        (None, kind) => Err(fault(format!(
            "keys must be str, int, float, bool or None, not {kind}"
        ))),
    }
}

fn python_quoted(text: &str) -> String {
    let is_double = text.contains('\'') && !text.contains('"');
    let quote = if is_double { '"' } else { '\'' };
    let mut out = String::from(quote);
    for c in text.chars() {
        let code = u32::from(c);
        let _ = match c {
            '\n' => write!(out, "\\n"),
            '\r' => write!(out, "\\r"),
            '\t' => write!(out, "\\t"),
            '\\' => write!(out, "\\\\"),
            _ if c == quote => write!(out, "\\{c}"),
            _ if is_printable(c) => write!(out, "{c}"),
            _ if code <= 0xff => write!(out, "\\x{code:02x}"),
            _ if code <= 0xffff => write!(out, "\\u{code:04x}"),
            _ => write!(out, "\\U{code:08x}"),
        };
    }
    out.push(quote);
    out
}

/// Python's `str.isprintable` for one character.
///
/// The standard library knows the set but shows it only through `escape_debug`, which also
/// escapes a combining mark where it comes first; hence the letter before it.
pub(super) fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return !c.is_ascii_control();
    }
    String::from_iter(['a', c]).escape_debug().count() == 2
}

/// Python's `repr` of a finite float: the shortest digits that read back, with an exponent below 1e-4
/// and from 1e16 on.
fn float_repr(float: f64) -> String {
    let scientific = format!("{float:e}");
    let Some((mantissa, exponent)) = scientific.split_once('e') else {
        return scientific;
    };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        return format!("{float:?}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
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
