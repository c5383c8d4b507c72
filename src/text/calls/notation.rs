//! Converts arguments in a notation of their own to JSON.

use serde_json::{Map, Value};

use super::cursor::{Cursor, get};
use super::format::Notation;
use super::json::Found;

/// Maximum nesting.
const MAX_DEPTH: usize = 32;

struct Reader<'a> {
    notation: &'a Notation,
    cursor: Cursor<'a>,
}

/// The arguments at the start of a text, and their length.
pub(super) fn arguments(text: &str, notation: &Notation) -> Found<(Value, usize)> {
    let mut reader = Reader {
        notation,
        cursor: Cursor::new(text),
    };
    get!(reader.cursor.mark(&notation.open));
    let close = &notation.close;
    reader
        .object(&notation.assign, close, 0)
        .map(|value| (value, reader.cursor.at))
}

impl Reader<'_> {
    /// Parses pairs up to `close`, separated by commas.
    fn object(&mut self, assign: &str, close: &str, depth: usize) -> Found<Value> {
        let mut out = Map::new();
        if matches!(self.cursor.mark(close), Found::Yes(())) {
            return Found::Yes(out.into());
        }
        loop {
            let key = get!(self.key(assign));
            get!(self.cursor.mark(assign));
            let value = get!(self.value(depth + 1));
            out.insert(key, value);
            match self.cursor.mark(",") {
                Found::Yes(()) => {}
                Found::More => return Found::More,
                Found::No => return self.cursor.mark(close).map(|()| out.into()),
            }
        }
    }

    fn key(&mut self, assign: &str) -> Found<String> {
        self.cursor.space();
        if let Found::Yes(text) = self.string() {
            return Found::Yes(text);
        }
        let rest = self.cursor.rest();
        let Some(end) = rest.find(assign) else {
            let is_name = |c: char| c.is_alphanumeric() || "_-. ".contains(c);
            return match rest.chars().all(is_name) || self.is_quoted() {
                true => Found::More,
                false => Found::No,
            };
        };
        let key = rest[..end].trim().to_owned();
        self.cursor.at += end;
        match key.is_empty() || key.contains(['{', '}', '(', ')', ',']) {
            true => Found::No,
            false => Found::Yes(key),
        }
    }

    /// Whether the rest begins with a mark of strings, or may do so once more text arrives.
    fn is_quoted(&self) -> bool {
        let rest = self.cursor.rest();
        let mut quotes = self.notation.quotes.iter();
        quotes.any(|quote| rest.starts_with(quote.as_str()) || quote.starts_with(rest))
    }

    /// Parses a string between its marks.
    fn string(&mut self) -> Found<String> {
        let rest = self.cursor.rest();
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
                self.cursor.at += rest.len() - inner.len() + quote.len();
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
        self.cursor.space();
        match self.string() {
            Found::No => {}
            found => return found.map(Value::String),
        }
        match self.cursor.rest().bytes().next() {
            None => Found::More,
            Some(b'{') => {
                self.cursor.at += 1;
                self.object(":", "}", depth)
            }
            Some(b'[') => {
                self.cursor.at += 1;
                self.list(depth)
            }
            _ => self.word(),
        }
    }

    fn list(&mut self, depth: usize) -> Found<Value> {
        let mut out = Vec::new();
        if matches!(self.cursor.mark("]"), Found::Yes(())) {
            return Found::Yes(out.into());
        }
        loop {
            out.push(get!(self.value(depth + 1)));
            match self.cursor.mark(",") {
                Found::Yes(()) => {}
                Found::More => return Found::More,
                Found::No => return self.cursor.mark("]").map(|()| out.into()),
            }
        }
    }

    /// Parses a number, a boolean or null.
    fn word(&mut self) -> Found<Value> {
        let rest = self.cursor.rest();
        let is_part = |c: char| c.is_ascii_alphanumeric() || "+-._".contains(c);
        let Some(end) = rest.find(|c| !is_part(c)) else {
            return Found::More;
        };
        let word = rest[..end].to_owned();
        self.cursor.at += end;
        match plain(&word) {
            Some(value) => Found::Yes(value),
            None => Found::No,
        }
    }
}

/// The value of a word that is not in quotes.
pub(super) fn plain(word: &str) -> Option<Value> {
    match word {
        "True" => Some(true.into()),
        "False" => Some(false.into()),
        "None" => Some(Value::Null),
        _ => serde_json::from_str(word).ok(),
    }
}
