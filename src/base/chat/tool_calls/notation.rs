//! Arguments in a notation of their own: where they end in text that arrives, and what they are as JSON.

use super::cursor::Cursor;
use super::format::Notation;
use super::json::{JsonMembers, Parsed, literal, quoted};
use super::python;

const MAX_DEPTH: usize = 100;

/// A search for the end of arguments. Each byte is read once.
#[derive(Clone, Debug, Default)]
pub(super) struct NotationScan {
    at: usize,
    depth: usize,
    /// The index of the mark that opened the string.
    quote: Option<usize>,
    in_comment: bool,
}

impl NotationScan {
    /// The end of the arguments at the start of a text, if the text contains it. The text may only grow.
    pub(super) fn end(&mut self, text: &str, notation: &Notation) -> Option<usize> {
        while let Some(c) = text[self.at..].chars().next() {
            let rest = &text[self.at..];
            if self.in_comment {
                self.in_comment = c != '\n';
                self.at += c.len_utf8();
                continue;
            }
            if let Some(quote) = self.quote {
                let quote = notation.quotes[quote].as_str();
                if c == '\\' && notation.is_python {
                    let next = rest.chars().nth(1)?;
                    self.at += 1 + next.len_utf8();
                } else if rest.starts_with(quote) {
                    self.at += quote.len();
                    self.quote = None;
                } else if quote.starts_with(rest) {
                    return None;
                } else {
                    self.at += c.len_utf8();
                }
                continue;
            }
            // The longest mark counts, which may not be there as a whole yet.
            let quotes = notation.quotes.iter().enumerate();
            let opening = quotes.filter(|(_, quote)| rest.starts_with(quote.as_str()));
            let longest = opening.max_by_key(|(_, quote)| quote.len());
            let found = longest.map_or(0, |(_, quote)| quote.len());
            let mut quotes = notation.quotes.iter();
            if quotes.any(|quote| quote.len() > found && quote.starts_with(rest)) {
                return None;
            }
            if let Some((i, quote)) = longest {
                self.at += quote.len();
                self.quote = Some(i);
                continue;
            }
            self.at += c.len_utf8();
            match c {
                '#' if notation.is_python => self.in_comment = true,
                '(' | '[' | '{' => self.depth += 1,
                ')' | ']' | '}' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return Some(self.at);
                    }
                }
                _ => {}
            }
        }
        None
    }
}

/// Complete arguments as a JSON object; `None` if they are malformed. Arguments without a name get those of `names`.
pub(super) fn arguments<'a>(
    text: &str,
    notation: &Notation,
    names: impl Iterator<Item = &'a str>,
) -> Option<String> {
    if notation.is_python {
        return python::arguments(text, names);
    }
    let mut reader = NotationReader {
        notation,
        cursor: Cursor::new(text),
    };
    if !reader.takes(&notation.open) {
        return None;
    }
    let found = reader.object(&notation.assign, &notation.close, 0)?;
    reader.cursor.rest().is_empty().then_some(found)
}

struct NotationReader<'a> {
    notation: &'a Notation,
    cursor: Cursor<'a>,
}

impl NotationReader<'_> {
    fn takes(&mut self, mark: &str) -> bool {
        self.cursor.mark(mark) == Parsed::Yes(())
    }

    /// Parses pairs up to `close`, separated by commas.
    fn object(&mut self, assign: &str, close: &str, depth: usize) -> Option<String> {
        let mut out = JsonMembers::default();
        if self.takes(close) {
            return Some(out.json());
        }
        loop {
            let key = self.key(assign)?;
            if !self.takes(assign) {
                return None;
            }
            let value = self.value(depth + 1)?;
            out.insert(key, value);
            if !self.takes(",") {
                return self.takes(close).then(|| out.json());
            }
        }
    }

    fn key(&mut self, assign: &str) -> Option<String> {
        self.cursor.space();
        if let Some(text) = self.string() {
            return Some(text);
        }
        let rest = self.cursor.rest();
        let end = rest.find([',', '{', '}', '(', ')', '[', ']']);
        let end = rest[..end.unwrap_or(rest.len())].find(assign)?;
        let key = rest[..end].trim().to_owned();
        self.cursor.at += end;
        (!key.is_empty()).then_some(key)
    }

    fn string(&mut self) -> Option<String> {
        let rest = self.cursor.rest();
        let mut quotes = self.notation.quotes.iter();
        let quote = quotes.find(|quote| rest.starts_with(quote.as_str()))?;
        let inner = &rest[quote.len()..];
        let end = inner.find(quote.as_str())?;
        self.cursor.at += 2 * quote.len() + end;
        Some(inner[..end].to_owned())
    }

    fn value(&mut self, depth: usize) -> Option<String> {
        if depth > MAX_DEPTH {
            return None;
        }
        self.cursor.space();
        if let Some(text) = self.string() {
            return Some(quoted(&text));
        }
        match self.cursor.rest().bytes().next()? {
            b'{' => {
                self.cursor.at += 1;
                self.object(":", "}", depth)
            }
            b'[' => {
                self.cursor.at += 1;
                self.list(depth)
            }
            _ => self.word(),
        }
    }

    fn list(&mut self, depth: usize) -> Option<String> {
        let mut out = Vec::new();
        if !self.takes("]") {
            loop {
                out.push(self.value(depth + 1)?);
                if !self.takes(",") {
                    break;
                }
            }
            if !self.takes("]") {
                return None;
            }
        }
        Some(format!("[{}]", out.join(", ")))
    }

    fn word(&mut self) -> Option<String> {
        let rest = self.cursor.rest();
        let is_part = |c: char| c.is_ascii_alphanumeric() || "+-._".contains(c);
        let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        self.cursor.at += end;
        literal(&rest[..end]).map(str::to_owned)
    }
}
