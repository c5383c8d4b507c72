//! The `tojson` filter: the text that Python's `json.dumps` gives.
//!
//! Not HTML-safe on purpose: prompts are not web pages, and models were trained on the plain form.
//! Invariant: with the default arguments the output is byte for byte `json.dumps(value,
//! ensure_ascii=False)`: key order kept, `", "` and `": "` between items.

use std::fmt::Write;

use minijinja::value::{Rest, ValueKind, ValueOrKwargs};
use minijinja::{Error, Value};

use super::arguments::{bind, flag};
use super::budget;
use super::value::{MAX_DEPTH, as_float, entries, fault, float_repr};

/// The arguments of `json.dumps` that templates use.
#[derive(Debug)]
struct Style {
    ensure_ascii: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

/// `value | tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`
pub(super) fn tojson(value: &Value, args: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let [ensure_ascii, indent, separators, sort_keys] = bind(
        &args.into_values(),
        ["ensure_ascii", "indent", "separators", "sort_keys"],
    )?;
    let indent = indent_text(indent)?;
    let (item_separator, key_separator) = match separators {
        Some(pair) if !pair.is_none() => separator_texts(&pair)?,
        _ if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        _ => (", ".to_owned(), ": ".to_owned()),
    };
    let style = Style {
        ensure_ascii: flag(&ensure_ascii),
        indent,
        item_separator,
        key_separator,
        sort_keys: flag(&sort_keys),
    };
    let mut out = String::new();
    style.write(&mut out, value, 0)?;
    Ok(out)
}

/// What one level of indentation is: a text, or a number of spaces.
fn indent_text(indent: Option<Value>) -> Result<Option<String>, Error> {
    let Some(indent) = indent.filter(|value| !value.is_none()) else {
        return Ok(None);
    };
    if let Some(text) = indent.as_str() {
        return Ok(Some(text.to_owned()));
    }
    let width = i64::try_from(indent).map_err(|_| fault("tojson: `indent` is not a number"))?;
    Ok(Some(" ".repeat(width.clamp(0, 64) as usize)))
}

fn separator_texts(pair: &Value) -> Result<(String, String), Error> {
    let texts: Vec<Value> = pair.try_iter()?.collect();
    match texts.as_slice() {
        [item, key] => Ok((item.to_string(), key.to_string())),
        _ => Err(fault("tojson: `separators` is not a pair")),
    }
}

impl Style {
    fn write(&self, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(fault("maximum recursion depth exceeded in tojson"));
        }
        let layout = self.item_separator.len()
            + self.key_separator.len()
            + self
                .indent
                .as_ref()
                .map_or(0, |indent| indent.len() * (depth + 1));
        budget::made(32 + layout + value.as_str().map_or(0, str::len))?;
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&number(value)),
            ValueKind::String => self.write_string(out, value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.checked().collect::<Result<_, _>>()?;
                self.write_container(out, ['[', ']'], depth, &items, |out, item| {
                    self.write(out, item, depth + 1)
                })?;
            }
            ValueKind::Map => {
                let mut pairs = entries(value)?;
                if self.sort_keys {
                    pairs.sort_by(|a, b| a.0.cmp(&b.0));
                }
                self.write_container(out, ['{', '}'], depth, &pairs, |out, (key, item)| {
                    self.write_string(out, &key_text(key)?);
                    out.push_str(&self.key_separator);
                    self.write(out, item, depth + 1)
                })?;
            }
            kind => {
                return Err(fault(format!(
                    "value of type {kind} is not JSON serializable"
                )));
            }
        }
        Ok(())
    }

    fn write_container<T>(
        &self,
        out: &mut String,
        brackets: [char; 2],
        depth: usize,
        items: &[T],
        mut write_item: impl FnMut(&mut String, &T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.push(brackets[0]);
        for (n_items, item) in items.iter().enumerate() {
            if n_items > 0 {
                out.push_str(&self.item_separator);
            }
            self.break_line(out, depth + 1);
            write_item(out, item)?;
        }
        if !items.is_empty() {
            self.break_line(out, depth);
        }
        out.push(brackets[1]);
        Ok(())
    }

    fn break_line(&self, out: &mut String, depth: usize) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            for _ in 0..depth {
                out.push_str(indent);
            }
        }
    }

    fn write_string(&self, out: &mut String, text: &str) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                _ if c < ' ' || (self.ensure_ascii && c > '~') => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                _ => out.push(c),
            }
        }
        out.push('"');
    }
}

fn number(value: &Value) -> String {
    match as_float(value) {
        Some(float) if float.is_nan() => "NaN".to_owned(),
        Some(float) if float.is_infinite() => {
            if float > 0.0 { "Infinity" } else { "-Infinity" }.to_owned()
        }
        Some(float) => float_repr(float),
        None => value.to_string(),
    }
}

/// A mapping key as JSON text; Python writes numbers, booleans and none as strings.
fn key_text(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.as_str().unwrap_or_default().to_owned()),
        ValueKind::Number => Ok(number(key)),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.to_owned()),
        ValueKind::None => Ok("null".to_owned()),
        kind => Err(fault(format!(
            "keys must be str, int, float, bool or None, not {kind}"
        ))),
    }
}
