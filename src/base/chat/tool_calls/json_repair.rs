//! Reads the JSON object that a model writes as arguments, while it arrives, and writes it as valid JSON.
//!
//! What has one reading only is mended: control characters in strings, escapes that JSON does not have, a quote within
//! a string, a comma before a closing bracket, Python's words. Everything else is a fault. Invariant: what was written,
//! followed by what [`JsonRepair::complete`] writes, is valid JSON.

use super::json::{literal, push_escaped};

/// Maximum nesting. Common parsers of JSON refuse more.
const MAX_DEPTH: usize = 120;

/// The result of reading text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RepairStep {
    More,
    /// The object ended after so many bytes.
    End(usize),
    /// The character at this place cannot follow.
    Fault(usize),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Expects {
    #[default]
    Start,
    /// A key, or the end of an object without members.
    FirstKey,
    /// A key after a comma.
    NextKey,
    Colon,
    /// The value of a member.
    Value,
    /// A value, or the end of a list without values.
    FirstValue,
    /// A value after a comma in a list.
    NextValue,
    /// A comma or a closing bracket. `is_text`: the value before it is a string, whose closing quote is held.
    Next {
        is_text: bool,
    },
    /// More of a number or a word.
    Literal,
    /// More of a string.
    Text {
        is_key: bool,
    },
    /// More of an escape in a string.
    Escape {
        is_key: bool,
    },
}

/// An object that is being read.
#[derive(Clone, Debug, Default)]
pub(super) struct JsonRepair {
    /// The open brackets; whether each is an object's.
    open: Vec<bool>,
    expects: Expects,
    /// What was read and is written only once its meaning is certain: a comma, a key with its colon, a closing quote.
    held: String,
    /// The number, word or escape (without its backslash) that is being read.
    part: String,
    /// The first half of a surrogate pair.
    high: Option<String>,
    /// Whether the value may be a list.
    takes_lists: bool,
}

impl JsonRepair {
    pub(super) fn read(&mut self, text: &str, out: &mut String) -> RepairStep {
        for (at, c) in text.char_indices() {
            if !self.step(c, out) {
                return RepairStep::Fault(at);
            }
            if self.open.is_empty() {
                return RepairStep::End(at + c.len_utf8());
            }
        }
        RepairStep::More
    }

    /// Reads a character. Returns whether it can follow.
    fn step(&mut self, c: char, out: &mut String) -> bool {
        let is_space = matches!(c, ' ' | '\n' | '\r' | '\t');
        match self.expects {
            Expects::Text { is_key } => self.text(c, is_key, out),
            Expects::Escape { is_key } => return self.escape(c, is_key, out),
            Expects::Literal => {
                if c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.') {
                    self.part.push(c);
                    return true;
                }
                return self.end_literal(out) && self.step(c, out);
            }
            Expects::Start if c == '{' || (c == '[' && self.takes_lists) => self.nest(c, out),
            Expects::Start => return false,
            _ if is_space => match self.held.is_empty() {
                true => out.push(c),
                false => self.held.push(c),
            },
            Expects::FirstKey | Expects::NextKey => match c {
                '"' => {
                    self.held.push('"');
                    self.expects = Expects::Text { is_key: true };
                }
                '}' => self.close(c, out),
                _ => return false,
            },
            Expects::Colon if c == ':' => {
                self.held.push(':');
                self.expects = Expects::Value;
            }
            Expects::Colon => return false,
            Expects::Value | Expects::FirstValue | Expects::NextValue => match c {
                '"' => {
                    self.flush(out);
                    out.push('"');
                    self.expects = Expects::Text { is_key: false };
                }
                '{' | '[' if self.open.len() < MAX_DEPTH => {
                    self.flush(out);
                    self.nest(c, out);
                }
                ']' if self.expects != Expects::Value => self.close(c, out),
                c if c.is_ascii_alphanumeric() || c == '-' => {
                    self.part.push(c);
                    self.expects = Expects::Literal;
                }
                _ => return false,
            },
            Expects::Next { .. } => match (c, self.open.last()) {
                (',', last) => {
                    self.expects = match last {
                        Some(true) => Expects::NextKey,
                        _ => Expects::NextValue,
                    };
                    self.flush(out);
                    self.held.push(',');
                }
                ('}', Some(true)) | (']', Some(false)) => {
                    self.flush(out);
                    self.close(c, out);
                }
                _ => return false,
            },
        }
        true
    }

    fn flush(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
    }

    fn nest(&mut self, c: char, out: &mut String) {
        out.push(c);
        self.open.push(c == '{');
        self.expects = match c {
            '{' => Expects::FirstKey,
            _ => Expects::FirstValue,
        };
    }

    /// Closes a bracket. A comma that is still held is dropped.
    fn close(&mut self, c: char, out: &mut String) {
        self.held.clear();
        out.push(c);
        self.open.pop();
        self.expects = Expects::Next { is_text: false };
    }

    fn end_literal(&mut self, out: &mut String) -> bool {
        let Some(value) = literal(&self.part).map(str::to_owned) else {
            return false;
        };
        self.part.clear();
        self.flush(out);
        out.push_str(&value);
        self.expects = Expects::Next { is_text: false };
        true
    }

    fn text_of<'a>(&'a mut self, is_key: bool, out: &'a mut String) -> &'a mut String {
        if is_key { &mut self.held } else { out }
    }

    fn text(&mut self, c: char, is_key: bool, out: &mut String) {
        if c == '\\' {
            self.expects = Expects::Escape { is_key };
            return;
        }
        self.end_high(is_key, out);
        match c {
            '"' if is_key => {
                self.held.push('"');
                self.expects = Expects::Colon;
            }
            '"' => {
                self.held.push('"');
                self.expects = Expects::Next { is_text: true };
            }
            c => push_escaped(c, self.text_of(is_key, out)),
        }
    }

    /// Replaces the first half of a surrogate pair whose second half does not follow.
    fn end_high(&mut self, is_key: bool, out: &mut String) {
        if self.high.take().is_some() {
            self.text_of(is_key, out).push_str("\\ufffd");
        }
    }

    fn escape(&mut self, c: char, is_key: bool, out: &mut String) -> bool {
        let again = Expects::Text { is_key };
        if self.part.is_empty() && c == 'u' || !self.part.is_empty() && c.is_ascii_hexdigit() {
            self.part.push(c);
            if self.part.len() == 5 {
                self.expects = again;
                self.unit(is_key, out);
            }
            return true;
        }
        self.end_high(is_key, out);
        self.expects = again;
        let part = std::mem::take(&mut self.part);
        let target = self.text_of(is_key, out);
        match c {
            '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't' if part.is_empty() => {
                target.extend(['\\', c]);
                true
            }
            // JSON has no such escape, JavaScript and Python have it.
            '\'' if part.is_empty() => {
                target.push('\'');
                true
            }
            // The backslash is text.
            _ => {
                target.push_str("\\\\");
                target.push_str(&part);
                self.step(c, out)
            }
        }
    }

    fn unit(&mut self, is_key: bool, out: &mut String) {
        let part = std::mem::take(&mut self.part);
        let unit = u16::from_str_radix(&part[1..], 16).unwrap_or_default();
        match (unit, self.high.take()) {
            (0xdc00..=0xdfff, Some(high)) => {
                let target = self.text_of(is_key, out);
                target.push_str(&format!("\\{high}\\{part}"));
            }
            (unit, high) => {
                let target = self.text_of(is_key, out);
                if high.is_some() {
                    target.push_str("\\ufffd");
                }
                match unit {
                    0xd800..=0xdbff => self.high = Some(part),
                    0xdc00..=0xdfff => target.push_str("\\ufffd"),
                    _ => target.push_str(&format!("\\{part}")),
                }
            }
        }
    }

    /// After a fault: takes the closing quote that cannot be one as text. Returns whether there is such a quote.
    pub(super) fn reopen(&mut self, out: &mut String) -> bool {
        if self.expects != (Expects::Next { is_text: true }) {
            return false;
        }
        let held = std::mem::take(&mut self.held);
        out.push_str("\\\"");
        // White space follows the quote.
        held.chars().skip(1).for_each(|c| push_escaped(c, out));
        self.expects = Expects::Text { is_key: false };
        true
    }

    /// Reads a whole text, with quotes that cannot end a string taken as text.
    pub(super) fn read_whole(&mut self, text: &str, out: &mut String) -> RepairStep {
        let mut at = 0;
        loop {
            match self.read(&text[at..], out) {
                RepairStep::Fault(fault) if self.reopen(out) => at += fault,
                RepairStep::Fault(fault) => return RepairStep::Fault(at + fault),
                RepairStep::End(end) => return RepairStep::End(at + end),
                RepairStep::More => return RepairStep::More,
            }
        }
    }

    /// Whether only closing brackets are missing.
    pub(super) fn lacks_only_ends(&self) -> bool {
        match self.expects {
            Expects::Start
            | Expects::Colon
            | Expects::Value
            | Expects::Literal
            | Expects::Text { .. }
            | Expects::Escape { .. } => false,
            Expects::FirstKey
            | Expects::NextKey
            | Expects::FirstValue
            | Expects::NextValue
            | Expects::Next { .. } => true,
        }
    }

    /// Writes what makes valid JSON of what was written so far. A key without a value is left out.
    pub(super) fn complete(&mut self, out: &mut String) {
        match self.expects {
            Expects::Text { is_key: false } | Expects::Escape { is_key: false } => {
                self.end_high(false, out);
                out.push('"');
            }
            Expects::Next { .. } => self.flush(out),
            Expects::Literal => {
                self.end_literal(out);
            }
            _ => {}
        }
        self.held.clear();
        while let Some(is_object) = self.open.pop() {
            out.push(if is_object { '}' } else { ']' });
        }
    }

    /// What was read and not written, as it was read.
    pub(super) fn rest(&self) -> String {
        let high = self
            .high
            .as_ref()
            .map_or_else(String::new, |high| format!("\\{high}"));
        let escape = match self.expects {
            Expects::Escape { .. } => "\\",
            _ => "",
        };
        format!("{}{high}{escape}{}", self.held, self.part)
    }
}

/// A text that is an object (`takes_lists`: or a list) as valid JSON; `None` if it is not one.
pub(super) fn repaired(text: &str, takes_lists: bool) -> Option<String> {
    let mut object = JsonRepair {
        takes_lists,
        ..JsonRepair::default()
    };
    let (text, mut out) = (text.trim(), String::new());
    match object.read_whole(text, &mut out) {
        RepairStep::End(end) => (end == text.len()).then_some(out),
        RepairStep::More | RepairStep::Fault(_) => None,
    }
}

/// Arguments of a call that may be cut off or malformed, as the valid JSON of an object that holds what can be read.
pub fn completed_arguments(arguments: &str) -> String {
    let (mut object, mut out) = (JsonRepair::default(), String::new());
    object.read_whole(arguments.trim_start(), &mut out);
    object.complete(&mut out);
    match out.is_empty() {
        true => "{}".to_owned(),
        false => out,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_one_reading_is_mended() {
        for (text, expected) in [
            ("{}", "{}"),
            (
                r#"{"a": [1, -2.50e+3, {"b": null}]}"#,
                r#"{"a": [1, -2.50e+3, {"b": null}]}"#,
            ),
            ("{\"a\": \"x\ny\t\u{1}\"}", r#"{"a": "x\ny\t\u0001"}"#),
            ("{\"a\nb\": 1}", r#"{"a\nb": 1}"#),
            (r#"{"a": 1,}"#, r#"{"a": 1}"#),
            (r#"{"a": [1, 2, ], }"#, r#"{"a": [1, 2]}"#),
            (r#"{"a": "grep \d+ \'x\'"}"#, r#"{"a": "grep \\d+ 'x'"}"#),
            (r#"{"a": "C:\users\u12g"}"#, r#"{"a": "C:\\users\\u12g"}"#),
            (
                r#"{"a": "\ud83d\ude00 \ud83d x\ude00\ud83d"}"#,
                r#"{"a": "\ud83d\ude00 \ufffd x\ufffd\ufffd"}"#,
            ),
            (r#"{"a": True, "b": None}"#, r#"{"a": true, "b": null}"#),
            (
                r#"{"a": "echo "hi"", "b": 1}"#,
                r#"{"a": "echo \"hi\"", "b": 1}"#,
            ),
            (
                r#"{"a": 123456789012345678901234567890, "b": 1.10}"#,
                r#"{"a": 123456789012345678901234567890, "b": 1.10}"#,
            ),
        ] {
            let found = repaired(text, false).unwrap_or_else(|| panic!("{text}"));
            assert_eq!(found, expected, "{text}");
            serde_json::from_str::<serde_json::Value>(&found)
                .unwrap_or_else(|e| panic!("{e}: {found}"));
        }
        assert_eq!(repaired("[1, ]", true).as_deref(), Some("[1]"));
    }

    #[test]
    fn what_has_no_reading_or_several_is_refused() {
        for text in [
            "",
            "[1]",
            "1",
            "{",
            "{,}",
            "{'a': 1}",
            "{a: 1}",
            r#"{"a" 1}"#,
            r#"{"a": }"#,
            r#"{"a": foo}"#,
            r#"{"a": 007}"#,
            r#"{"a": NaN}"#,
            r#"{"a": 1 "b": 2}"#,
            r#"{"a": 1]"#,
            r#"{"a": 1}}"#,
            r#"{"a": "b"#,
            r#"{"a": 1,, "b": 2}"#,
            r#"{"a": "say "hi", then go"}"#,
        ] {
            assert_eq!(repaired(text, false), None, "{text}");
        }
        let deep = format!("{{\"a\": {}{}}}", "[".repeat(200), "]".repeat(200));
        assert_eq!(repaired(&deep, false), None);
    }

    #[test]
    fn what_is_cut_off_is_completed_at_every_place() {
        let text = r#"{"a": "x\n\ud83d\ude00\"y", "b": [1, {"c": true, "d": []}], "e": -1.5e3}"#;
        for (end, _) in text.char_indices() {
            let found = completed_arguments(&text[..end]);
            let value: serde_json::Value =
                serde_json::from_str(&found).unwrap_or_else(|e| panic!("{e}: {found}"));
            assert!(value.is_object(), "{found}");
        }
        assert_eq!(completed_arguments(r#"{"a": "x"#), r#"{"a": "x"}"#);
        assert_eq!(completed_arguments(r#"{"a": "x", "b"#), r#"{"a": "x"}"#);
        assert_eq!(completed_arguments("no object"), "{}");
    }
}
