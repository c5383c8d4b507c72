//! Finds the end of a JSON value in text that may be incomplete, and writes JSON without losing digits.

use std::collections::HashMap;

use serde_json::Value;

/// The result of parsing text that may be incomplete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parsed<T> {
    /// More text is needed.
    More,
    /// The text does not match.
    No,
    /// The text matches.
    Yes(T),
}

impl<T> Parsed<T> {
    pub(super) fn map<U>(self, f: impl FnOnce(T) -> U) -> Parsed<U> {
        match self {
            Self::More => Parsed::More,
            Self::No => Parsed::No,
            Self::Yes(value) => Parsed::Yes(f(value)),
        }
    }
}

/// Scans an object, an array or a string byte by byte.
#[derive(Clone, Debug, Default)]
pub(super) struct JsonScan {
    depth: usize,
    in_string: bool,
    is_escaped: bool,
}

impl JsonScan {
    /// A scan that starts inside `depth` open brackets.
    pub(super) fn within(depth: usize) -> Self {
        Self {
            depth,
            ..Self::default()
        }
    }

    /// Scans a byte. Returns whether the value ends with it.
    pub(super) fn ends_with(&mut self, byte: u8) -> bool {
        if self.in_string {
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' => self.is_escaped = true,
                b'"' => {
                    self.in_string = false;
                    return self.depth == 0;
                }
                _ => {}
            }
            return false;
        }
        match byte {
            b'"' => self.in_string = true,
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                return self.depth == 0;
            }
            _ => {}
        }
        false
    }

    /// Number of bytes up to the end of the value, if the text contains it.
    pub(super) fn end(&mut self, text: &str) -> Option<usize> {
        let at = text.bytes().position(|byte| self.ends_with(byte));
        at.map(|at| at + 1)
    }
}

/// The length of the value at the start of a text.
pub(super) fn value(text: &str) -> Parsed<usize> {
    match text.bytes().next() {
        None => Parsed::More,
        Some(b'{' | b'[' | b'"') => match JsonScan::default().end(text) {
            Some(end) => Parsed::Yes(end),
            None => Parsed::More,
        },
        Some(byte) if byte.is_ascii_alphanumeric() || byte == b'-' => {
            let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
            match text.bytes().position(|byte| !is_part(byte)) {
                Some(end) => Parsed::Yes(end),
                None => Parsed::More,
            }
        }
        Some(_) => Parsed::No,
    }
}

/// The complete JSON string at the start of a text, and its length.
pub(super) fn string(text: &str) -> Parsed<(String, usize)> {
    if text.is_empty() {
        return Parsed::More;
    }
    if !text.starts_with('"') {
        return Parsed::No;
    }
    match value(text) {
        Parsed::Yes(end) => match unquoted(&text[..end]) {
            Some(string) => Parsed::Yes((string, end)),
            None => Parsed::No,
        },
        _ => Parsed::More,
    }
}

/// The text of a JSON string, whose control characters may be written as they are.
pub(super) fn unquoted(text: &str) -> Option<String> {
    match text.contains(|c| c < ' ') {
        false => serde_json::from_str(text).ok(),
        true => {
            let mut escaped = String::new();
            for c in text.chars() {
                push_escaped(c, &mut escaped);
            }
            serde_json::from_str(&escaped).ok()
        }
    }
}

/// Appends a character of a string. A control character becomes its escape.
pub(super) fn push_escaped(c: char, out: &mut String) {
    match c {
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        c if c < ' ' => out.push_str(&format!("\\u{:04x}", c as u32)),
        c => out.push(c),
    }
}

pub(super) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// Whether a text is a number as JSON writes it.
pub(super) fn is_number(text: &str) -> bool {
    let n_digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let rest = text.strip_prefix('-').unwrap_or(text);
    let n = n_digits(rest);
    if n == 0 || (n > 1 && rest.starts_with('0')) {
        return false;
    }
    let mut rest = &rest[n..];
    if let Some(fraction) = rest.strip_prefix('.') {
        let n = n_digits(fraction);
        if n == 0 {
            return false;
        }
        rest = &fraction[n..];
    }
    match rest.strip_prefix(['e', 'E']) {
        None => rest.is_empty(),
        Some(exponent) => {
            let exponent = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
            !exponent.is_empty() && n_digits(exponent) == exponent.len()
        }
    }
}

/// A number, a boolean or null, as JSON. The words may be Python's.
pub(super) fn literal(word: &str) -> Option<&str> {
    match word {
        "true" | "True" => Some("true"),
        "false" | "False" => Some("false"),
        "null" | "None" => Some("null"),
        _ => is_number(word).then_some(word),
    }
}

/// The members of an object in the order of their first keys, with their values as JSON. The last value of a key counts.
#[derive(Debug, Default)]
pub(super) struct JsonMembers {
    all: Vec<(String, String)>,
    places: HashMap<String, usize>,
}

impl JsonMembers {
    /// Adds a member. Returns whether its key is new.
    pub(super) fn insert(&mut self, key: String, value: String) -> bool {
        if let Some(place) = self.places.get(&key) {
            self.all[*place].1 = value;
            return false;
        }
        self.places.insert(key.clone(), self.all.len());
        self.all.push((key, value));
        true
    }

    /// The object as JSON.
    pub(super) fn json(&self) -> String {
        let all = self.all.iter();
        let all = all.map(|(key, value)| format!("{}: {value}", quoted(key)));
        format!("{{{}}}", all.collect::<Vec<_>>().join(", "))
    }
}
