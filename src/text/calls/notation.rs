//! Arguments in a notation of their own, to JSON.

use serde_json::{Map, Value};

use super::format::Notation;
use super::json::Found;

/// Deepest nesting.
const MAX_DEPTH: usize = 32;

struct Reader<'a> {
    notation: &'a Notation,
    text: &'a str,
    at: usize,
}

/// The arguments at the start of a text, and their length.
pub(super) fn arguments(text: &str, notation: &Notation) -> Found<(Value, usize)> {
    let mut reader = Reader {
        notation,
        text,
        at: 0,
    };
    match reader.mark(&notation.open) {
        Found::Yes(()) => {}
        Found::More => return Found::More,
        Found::No => return Found::No,
    }
    let close = &notation.close;
    reader
        .object(&notation.assign, close, 0)
        .map(|value| (value, reader.at))
}

macro_rules! get {
    ($found:expr) => {
        match $found {
            Found::Yes(value) => value,
            Found::More => return Found::More,
            Found::No => return Found::No,
        }
    };
}
pub(super) use get;

impl Reader<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn space(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start().len();
    }

    /// Takes a mark after white space.
    fn mark(&mut self, mark: &str) -> Found<()> {
        self.space();
        let rest = self.rest();
        if rest.starts_with(mark) {
            self.at += mark.len();
            return Found::Yes(());
        }
        match mark.starts_with(rest) {
            true => Found::More,
            false => Found::No,
        }
    }

    /// Pairs up to `close`, separated by commas.
    fn object(&mut self, assign: &str, close: &str, depth: usize) -> Found<Value> {
        let mut out = Map::new();
        if matches!(self.mark(close), Found::Yes(())) {
            return Found::Yes(out.into());
        }
        loop {
            let key = get!(self.key(assign));
            get!(self.mark(assign));
            let value = get!(self.value(depth + 1));
            out.insert(key, value);
            match self.mark(",") {
                Found::Yes(()) => {}
                Found::More => return Found::More,
                Found::No => return self.mark(close).map(|()| out.into()),
            }
        }
    }

    fn key(&mut self, assign: &str) -> Found<String> {
        self.space();
        if let Found::Yes(text) = self.string() {
            return Found::Yes(text);
        }
        let rest = self.rest();
        let Some(end) = rest.find(assign) else {
            let is_name = |c: char| c.is_alphanumeric() || "_-. ".contains(c);
            return match rest.chars().all(is_name) || self.is_quoted() {
                true => Found::More,
                false => Found::No,
            };
        };
        let key = rest[..end].trim().to_owned();
        self.at += end;
        match key.is_empty() || key.contains(['{', '}', '(', ')', ',']) {
            true => Found::No,
            false => Found::Yes(key),
        }
    }

    /// Whether the rest begins with a mark of strings, or may yet.
    fn is_quoted(&self) -> bool {
        let rest = self.rest();
        let mut quotes = self.notation.quotes.iter();
        quotes.any(|quote| rest.starts_with(quote.as_str()) || quote.starts_with(rest))
    }

    /// A string between its marks.
    fn string(&mut self) -> Found<String> {
        let rest = self.rest();
        let quotes = &self.notation.quotes;
        let Some(quote) = quotes.iter().find(|quote| rest.starts_with(quote.as_str())) else {
            return match self.is_quoted() {
                true => Found::More,
                false => Found::No,
            };
        };
        let mut out = String::new();
        let mut inner = &rest[quote.len()..];
        loop {
            if inner.starts_with(quote.as_str()) {
                self.at += rest.len() - inner.len() + quote.len();
                return Found::Yes(out);
            }
            let mut chars = inner.chars();
            match chars.next() {
                None => return Found::More,
                Some('\\') if self.notation.escapes => match chars.next() {
                    None => return Found::More,
                    Some('n') => out.push('\n'),
                    Some('t') => out.push('\t'),
                    Some('r') => out.push('\r'),
                    Some(c) => out.push(c),
                },
                Some(c) => out.push(c),
            }
            inner = chars.as_str();
        }
    }

    fn value(&mut self, depth: usize) -> Found<Value> {
        if depth > MAX_DEPTH {
            return Found::No;
        }
        self.space();
        match self.string() {
            Found::No => {}
            found => return found.map(Value::String),
        }
        match self.rest().bytes().next() {
            None => Found::More,
            Some(b'{') => {
                self.at += 1;
                self.object(":", "}", depth)
            }
            Some(b'[') => {
                self.at += 1;
                self.list(depth)
            }
            _ => self.word(),
        }
    }

    fn list(&mut self, depth: usize) -> Found<Value> {
        let mut out = Vec::new();
        if matches!(self.mark("]"), Found::Yes(())) {
            return Found::Yes(out.into());
        }
        loop {
            out.push(get!(self.value(depth + 1)));
            match self.mark(",") {
                Found::Yes(()) => {}
                Found::More => return Found::More,
                Found::No => return self.mark("]").map(|()| out.into()),
            }
        }
    }

    /// A number, a truth value or nothing.
    fn word(&mut self) -> Found<Value> {
        let rest = self.rest();
        let is_part = |c: char| c.is_ascii_alphanumeric() || "+-._".contains(c);
        let Some(end) = rest.find(|c| !is_part(c)) else {
            return Found::More;
        };
        let word = rest[..end].to_owned();
        self.at += end;
        match plain(&word) {
            Some(value) => Found::Yes(value),
            None => Found::No,
        }
    }
}

/// The value of a word outside strings.
pub(super) fn plain(word: &str) -> Option<Value> {
    match word {
        "True" => Some(true.into()),
        "False" => Some(false.into()),
        "None" => Some(Value::Null),
        _ => serde_json::from_str(word).ok(),
    }
}
