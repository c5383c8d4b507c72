//! Values as text: Python's `str` and `repr`, and the output of `json.dumps`.
//!
//! One printer walks through a value; a [`Style`] determines how each kind of value is written. JSON is deliberately
//! not HTML-safe: prompts are not web pages, and models were trained on the plain form. Invariant: with the default
//! arguments, `tojson` is byte for byte equal to `json.dumps(value, ensure_ascii=False)`: key order kept, `", "` and
//! `": "` as separators.

use std::fmt::Write;

use minijinja::value::ValueKind;
use minijinja::{Error, Value};

use super::budget::{self, ChargedText, entries};
use super::callable::BoundCall;
use super::error::fault;
use super::value::PyNumber;

/// Maximum nesting of printed values; the printer recurses.
const MAX_DEPTH: usize = 128;

#[derive(Debug, Default)]
struct Style {
    is_json: bool,
    ensure_ascii: bool,
    indent: Option<String>,
    /// The separators between items, and between a key and its item.
    separators: [String; 2],
    sort_keys: bool,
}

/// Python's `str(value)`.
pub(super) fn str(value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::String => Ok(value.as_str().unwrap_or_default().to_owned()),
        ValueKind::Undefined => Ok(String::new()),
        _ => Style {
            separators: [", ", ": "].map(str::to_owned),
            ..Style::default()
        }
        .printed(value),
    }
}

/// `value | tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`
pub(super) fn tojson(call: &BoundCall<'_>) -> Result<Value, Error> {
    let indent = match call.value(1).map(|indent| (indent, indent.as_str())) {
        None => None,
        Some((_, Some(text))) => Some(text.to_owned()),
        Some(_) => Some(" ".repeat(call.int(1)?.unwrap_or(0).clamp(0, 64) as usize)),
    };
    let separators = match call.value(2) {
        None => [if indent.is_some() { "," } else { ", " }, ": "].map(str::to_owned),
        Some(pair) => {
            let texts: Vec<String> = pair.try_iter()?.map(|text| text.to_string()).collect();
            let pair = <[String; 2]>::try_from(texts);
            pair.map_err(|_| fault("tojson: `separators` is not a pair"))?
        }
    };
    let style = Style {
        is_json: true,
        ensure_ascii: call.flag(0),
        indent,
        separators,
        sort_keys: call.flag(3),
    };
    style.printed(call.this).map(Value::from)
}

impl Style {
    fn printed(&self, value: &Value) -> Result<String, Error> {
        let mut out = ChargedText::default();
        self.write(&mut out, value, 0)?;
        Ok(out.0)
    }

    fn write(&self, out: &mut ChargedText, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(fault("maximum recursion depth exceeded while printing"));
        }
        // Printing any value costs more than copying it.
        budget::made(32)?;
        match value.kind() {
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.checked().collect::<Result<_, _>>()?;
                let brackets = match !self.is_json && value.is_tuple() {
                    true if items.len() == 1 => ["(", ",)"],
                    true => ["(", ")"],
                    false => ["[", "]"],
                };
                self.write_items(out, brackets, depth, &items, |out, item| {
                    self.write(out, item, depth + 1)
                })
            }
            ValueKind::Map => {
                let mut pairs = entries(value)?;
                if self.sort_keys {
                    pairs.sort_by(|a, b| a.0.cmp(&b.0));
                }
                self.write_items(out, ["{", "}"], depth, &pairs, |out, (key, item)| {
                    match (self.is_json, key.kind()) {
                        // Python's JSON has the texts of other keys.
                        (true, ValueKind::None | ValueKind::Bool | ValueKind::Number) => {
                            out.push(&self.quoted(&self.scalar(key)?))?;
                        }
                        (true, kind) if kind != ValueKind::String => {
                            return Err(fault(format!("keys must be strings, not {kind}")));
                        }
                        _ => self.write(out, key, depth + 1)?,
                    }
                    out.push(&self.separators[1])?;
                    self.write(out, item, depth + 1)
                })
            }
            _ => out.push(&self.scalar(value)?),
        }
    }

    fn write_items<T>(
        &self,
        out: &mut ChargedText,
        [open, close]: [&str; 2],
        depth: usize,
        items: &[T],
        mut write_item: impl FnMut(&mut ChargedText, &T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let break_line = |out: &mut ChargedText, depth| match &self.indent {
            Some(indent) => out.push("\n").and_then(|()| out.repeat(indent, depth)),
            None => Ok(()),
        };
        out.push(open)?;
        for (n_items, item) in items.iter().enumerate() {
            if n_items > 0 {
                out.push(&self.separators[0])?;
            }
            break_line(out, depth + 1)?;
            write_item(out, item)?;
        }
        if !items.is_empty() {
            break_line(out, depth)?;
        }
        out.push(close)
    }

    fn scalar(&self, value: &Value) -> Result<String, Error> {
        let word = |json: &str, python: &str| (if self.is_json { json } else { python }).to_owned();
        Ok(match value.kind() {
            ValueKind::None => word("null", "None"),
            ValueKind::Bool if value.is_true() => word("true", "True"),
            ValueKind::Bool => word("false", "False"),
            ValueKind::Number => match PyNumber::of(value) {
                Some(PyNumber::Float(float)) if float.is_nan() => word("NaN", "nan"),
                Some(PyNumber::Float(f64::INFINITY)) => word("Infinity", "inf"),
                Some(PyNumber::Float(f64::NEG_INFINITY)) => word("-Infinity", "-inf"),
                Some(PyNumber::Float(float)) => float_repr(float),
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

fn python_quoted(text: &str) -> String {
    let is_double = text.contains('\'') && !text.contains('"');
    let quote = if is_double { '"' } else { '\'' };
    let mut out = String::with_capacity(text.len() + 2);
    out.push(quote);
    for c in text.chars() {
        let code = u32::from(c);
        let _ = match c {
            '\n' => out.write_str("\\n"),
            '\r' => out.write_str("\\r"),
            '\t' => out.write_str("\\t"),
            '\\' => out.write_str("\\\\"),
            _ if c == quote => write!(out, "\\{c}"),
            _ if is_printable(c) => out.write_char(c),
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
/// The standard library exposes this set only through `escape_debug`, which also escapes a combining mark at the start
/// of a text; hence the letter before it.
fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return !c.is_ascii_control();
    }
    let mut bytes = [b'a'; 5];
    let len = 1 + c.encode_utf8(&mut bytes[1..]).len();
    let text = std::str::from_utf8(&bytes[..len]).unwrap_or_default();
    text.escape_debug().count() == 2
}

/// Python's `repr` of a finite float: the shortest digits that parse to the same float, with an exponent below 1e-4 and
/// from 1e16 on.
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

/// `markupsafe.escape`: markup unchanged, the text of any other value escaped.
pub(super) fn escaped(value: &Value) -> Result<String, Error> {
    let text = str(value)?;
    if value.is_safe() {
        return Ok(text);
    }
    let mut escaped = String::with_capacity(text.len());
    let mut rest = &*text;
    let is_escaped = |byte: u8| matches!(byte, b'&' | b'<' | b'>' | b'"' | b'\'');
    while let Some(at) = rest.bytes().position(is_escaped) {
        escaped.push_str(&rest[..at]);
        escaped.push_str(match rest.as_bytes()[at] {
            b'&' => "&amp;",
            b'<' => "&lt;",
            b'>' => "&gt;",
            b'"' => "&#34;",
            _ => "&#39;",
        });
        rest = &rest[at + 1..];
    }
    escaped.push_str(rest);
    budget::made(escaped.len())?;
    Ok(escaped)
}
