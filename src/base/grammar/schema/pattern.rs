//! Regular expressions of JSON Schema, which are those of ECMA-262, as expressions over the JSON text of a string.
//!
//! A value is searched for a match, so that `^` and `$` may stand anywhere. What a finite automaton cannot decide (back
//! references), look-around and borders of words are refused by name. Not here: `guided_regex`, whose dialect is that of
//! the constraint library.
//!
//! Invariant: a character has one spelling in JSON ([`in_json`]), so that a text has one too.

use regex_syntax::hir::ClassUnicode;

use super::super::lark_regex::{alternatives, counts};
use super::char_classes::{ANY, all, in_json, negated, property, set, space};

const MAX_DEPTH: usize = 100;
const MAX_BYTES: usize = 1 << 20;

/// The expression that the JSON text between the quotes of a string matches as a whole if its value matches `pattern`
/// somewhere; `None` if no value does.
pub(super) fn to_json(pattern: &str) -> Result<Option<String>, String> {
    let chars: Vec<char> = pattern.chars().collect();
    let mut parser = Parser {
        chars: &chars,
        at: 0,
        depth: 0,
    };
    let node = parser.alternatives()?;
    if parser.at < chars.len() {
        return Err(parser.fault("`)` without `(`"));
    }
    let mut writer = Writer { n_bytes: 0 };
    if !node.asserts {
        let inner = writer.write(&node, false, false)?;
        return Ok(inner.map(|inner| format!("{ANY}*{inner}{ANY}*")));
    }
    let any = PatternNode::of(PatternSyntax::Repeat(
        Box::new(PatternNode::of(PatternSyntax::Class(all()))),
        0,
        None,
    ));
    let whole = [any.clone(), node, any];
    writer.write_row(&whole, true, true)
}

#[derive(Clone)]
struct PatternNode {
    kind: PatternSyntax,
    asserts: bool,
}

#[derive(Clone)]
enum PatternSyntax {
    Class(ClassUnicode),
    Row(Vec<PatternNode>),
    Or(Vec<PatternNode>),
    Repeat(Box<PatternNode>, u32, Option<u32>),
    Start,
    End,
}

impl PatternNode {
    fn of(kind: PatternSyntax) -> Self {
        let asserts = match &kind {
            PatternSyntax::Class(_) => false,
            PatternSyntax::Row(all) | PatternSyntax::Or(all) => all.iter().any(|node| node.asserts),
            PatternSyntax::Repeat(inner, ..) => inner.asserts,
            PatternSyntax::Start | PatternSyntax::End => true,
        };
        Self { kind, asserts }
    }

    /// Whether it matches nothing at a place that is the start of the text or not, and its end or not.
    fn may_be_empty(&self, is_start: bool, is_end: bool) -> bool {
        match &self.kind {
            PatternSyntax::Class(_) => false,
            PatternSyntax::Row(all) => all.iter().all(|node| node.may_be_empty(is_start, is_end)),
            PatternSyntax::Or(all) => all.iter().any(|node| node.may_be_empty(is_start, is_end)),
            PatternSyntax::Repeat(inner, min, _) => {
                *min == 0 || inner.may_be_empty(is_start, is_end)
            }
            PatternSyntax::Start => is_start,
            PatternSyntax::End => is_end,
        }
    }
}

struct Parser<'a> {
    chars: &'a [char],
    at: usize,
    depth: usize,
}

enum Escape {
    /// A code point, possibly one half of a surrogate pair.
    Char(u32),
    Class(ClassUnicode),
}

impl Parser<'_> {
    fn fault(&self, message: &str) -> String {
        format!("pattern, column {}: {message}", self.at + 1)
    }

    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn take(&mut self, text: &str) -> bool {
        let rest = &self.chars[self.at..];
        let n = text.chars().count();
        let is_next = rest.len() >= n && rest.iter().copied().take(n).eq(text.chars());
        self.at += if is_next { n } else { 0 };
        is_next
    }

    fn alternatives(&mut self) -> Result<PatternNode, String> {
        if self.depth == MAX_DEPTH {
            return Err(self.fault(&format!("more than {MAX_DEPTH} groups in each other")));
        }
        self.depth += 1;
        let mut all = vec![self.row()?];
        while self.take("|") {
            all.push(self.row()?);
        }
        self.depth -= 1;
        Ok(match all.len() {
            1 => all.remove(0),
            _ => PatternNode::of(PatternSyntax::Or(all)),
        })
    }

    fn row(&mut self) -> Result<PatternNode, String> {
        let mut all = Vec::new();
        while let Some(c) = self.peek() {
            if c == '|' || c == ')' {
                break;
            }
            let atom = self.atom(c)?;
            all.push(self.repeated(atom)?);
        }
        Ok(PatternNode::of(PatternSyntax::Row(all)))
    }

    fn atom(&mut self, c: char) -> Result<PatternNode, String> {
        let at = self.at;
        self.at += 1;
        let kind = match c {
            '^' => PatternSyntax::Start,
            '$' => PatternSyntax::End,
            '.' => {
                let mut ends = set(&[(0xa, 0xa), (0xd, 0xd), (0x2028, 0x2029)]);
                ends.negate();
                PatternSyntax::Class(ends)
            }
            '(' => return self.group(at),
            '[' => PatternSyntax::Class(self.class()?),
            '\\' => match self.escape(false)? {
                Escape::Char(code) => PatternSyntax::Class(set(&[(code, code)])),
                Escape::Class(class) => PatternSyntax::Class(class),
            },
            '*' | '+' | '?' => {
                self.at = at;
                return Err(self.fault(&format!("`{c}` has nothing to repeat")));
            }
            '{' if self.counts(at).is_some() => {
                self.at = at;
                return Err(self.fault("`{` has nothing to repeat"));
            }
            c => PatternSyntax::Class(set(&[(c as u32, c as u32)])),
        };
        Ok(PatternNode::of(kind))
    }

    fn group(&mut self, at: usize) -> Result<PatternNode, String> {
        if self.take("?") {
            let look = ["=", "!", "<=", "<!"].iter().any(|mark| self.take(mark));
            let is_plain = !look && self.take(":");
            // Python's form of a named group too: it has no other meaning.
            let is_named = !look && !is_plain && (self.take("<") || self.take("P<"));
            if is_named {
                let name = self.chars[self.at..].iter().take_while(|c| **c != '>');
                self.at += name.count();
            }
            let is_closed = !is_named || self.take(">");
            if look || !(is_plain || is_named) || !is_closed {
                self.at = at;
                return Err(self.fault(match (look, is_named) {
                    (true, _) => "look-around cannot be enforced",
                    (_, true) => "the name of the group has no end",
                    _ => "`(?` begins no group of ECMA-262",
                }));
            }
        }
        let inner = self.alternatives()?;
        if !self.take(")") {
            self.at = at;
            return Err(self.fault("`(` without `)`"));
        }
        Ok(inner)
    }

    /// The counts of a quantifier `{n}`, `{n,}` or `{n,m}` at a place, and where it ends; any other `{` is a character.
    fn counts(&self, at: usize) -> Option<(u64, Option<u64>, usize)> {
        let text: String = self.chars.get(at..)?.iter().take(64).collect();
        let inner = text.strip_prefix('{')?.split_once('}')?.0;
        let (min, max) = match inner.split_once(',') {
            None => (inner, Some(inner)),
            Some((min, "")) => (min, None),
            Some((min, max)) => (min, Some(max)),
        };
        let number = |text: &str| {
            let is_number = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            is_number.then(|| text.parse().unwrap_or(u64::MAX))
        };
        let max = match max {
            None => None,
            Some(max) => Some(number(max)?),
        };
        Some((number(min)?, max, at + inner.len() + 2))
    }

    fn repeated(&mut self, atom: PatternNode) -> Result<PatternNode, String> {
        let at = self.at;
        let (min, max) = match self.peek() {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            Some('{') => match self.counts(at) {
                Some((min, max, end)) => {
                    self.at = end - 1;
                    (min, max)
                }
                None => return Ok(atom),
            },
            _ => return Ok(atom),
        };
        if matches!(atom.kind, PatternSyntax::Start | PatternSyntax::End) {
            self.at = at;
            return Err(self.fault("an assertion cannot be repeated"));
        }
        self.at += 1;
        // Whether a repetition is lazy does not change what matches.
        self.take("?");
        let count = |n: u64| u32::try_from(n).ok().filter(|n| *n <= 1_000_000_000);
        let (Some(low), Some(high)) = (count(min), count(max.unwrap_or(0))) else {
            self.at = at;
            return Err(self.fault("the count is above 1000000000"));
        };
        let high = max.map(|_| high);
        if high.is_some_and(|high| high < low) {
            self.at = at;
            return Err(self.fault("the counts are out of order"));
        }
        if atom.asserts && (low, high) != (1, Some(1)) && (low, high) != (0, Some(1)) {
            self.at = at;
            return Err(self.fault("`^` or `$` within a repetition cannot be enforced"));
        }
        Ok(PatternNode::of(PatternSyntax::Repeat(
            Box::new(atom),
            low,
            high,
        )))
    }

    fn class(&mut self) -> Result<ClassUnicode, String> {
        let start = self.at;
        let is_negated = self.take("^");
        let mut found = ClassUnicode::empty();
        loop {
            if self.at >= self.chars.len() {
                self.at = start - 1;
                return Err(self.fault("`[` without `]`"));
            }
            if self.take("]") {
                break;
            }
            let at = self.at;
            let first = self.class_atom()?;
            let is_range =
                self.peek() == Some('-') && self.chars.get(self.at + 1).is_some_and(|c| *c != ']');
            let Escape::Char(low) = first else {
                // Next to a class, `-` is a character.
                if let Escape::Class(class) = first {
                    found.union(&class);
                }
                continue;
            };
            if !is_range {
                found.union(&set(&[(low, low)]));
                continue;
            }
            self.at += 1;
            match self.class_atom()? {
                Escape::Char(high) if high < low => {
                    self.at = at;
                    return Err(self.fault("the range is out of order"));
                }
                Escape::Char(high) => found.union(&set(&[(low, high)])),
                Escape::Class(class) => {
                    found.union(&class);
                    found.union(&set(&[(low, low), (0x2d, 0x2d)]));
                }
            }
        }
        Ok(if is_negated { negated(found) } else { found })
    }

    fn class_atom(&mut self) -> Result<Escape, String> {
        match self.peek() {
            Some('\\') => {
                self.at += 1;
                self.escape(true)
            }
            Some(c) => {
                self.at += 1;
                Ok(Escape::Char(c as u32))
            }
            None => Err(self.fault("the class has no end")),
        }
    }

    fn escape(&mut self, in_class: bool) -> Result<Escape, String> {
        let at = self.at - 1;
        let Some(c) = self.peek() else {
            self.at = at;
            return Err(self.fault("`\\` at the end"));
        };
        self.at += 1;
        let refuse = |this: &mut Self, message: &str| {
            this.at = at;
            Err(this.fault(message))
        };
        let next_is_digit = self.peek().is_some_and(|c| c.is_ascii_digit());
        Ok(match c {
            'd' | 'D' | 'w' | 'W' | 's' | 'S' => {
                let mut class = match c.to_ascii_lowercase() {
                    'd' => set(&[(0x30, 0x39)]),
                    'w' => set(&[(0x30, 0x39), (0x41, 0x5a), (0x5f, 0x5f), (0x61, 0x7a)]),
                    _ => space(),
                };
                if c.is_ascii_uppercase() {
                    class.negate();
                }
                Escape::Class(class)
            }
            't' => Escape::Char(9),
            'n' => Escape::Char(10),
            'v' => Escape::Char(11),
            'f' => Escape::Char(12),
            'r' => Escape::Char(13),
            'b' if in_class => Escape::Char(8),
            'b' | 'B' => return refuse(self, "borders of words cannot be enforced"),
            '0' if !next_is_digit => Escape::Char(0),
            '0'..='9' | 'k' => return refuse(self, "back references cannot be enforced"),
            'c' => match self.peek().filter(char::is_ascii_alphabetic) {
                Some(letter) => {
                    self.at += 1;
                    Escape::Char(letter as u32 % 32)
                }
                None => return refuse(self, "`\\c` without a letter"),
            },
            'x' => match self.hexadecimal(2) {
                Some(code) => Escape::Char(code),
                None => return refuse(self, "`\\x` without two hexadecimal digits"),
            },
            'u' => match self.code_point() {
                Some(code) => Escape::Char(code),
                None => return refuse(self, "`\\u` without a code point"),
            },
            'p' | 'P' => {
                let rest: String = self.chars[self.at..].iter().take(64).collect();
                let name = rest.strip_prefix('{').and_then(|rest| rest.split_once('}'));
                let Some(class) = name.and_then(|(name, _)| property(c, name)) else {
                    return refuse(self, "no property of Unicode that is known");
                };
                self.at += name.map_or(0, |(name, _)| name.chars().count() + 2);
                Escape::Class(class)
            }
            c if c.is_ascii_alphabetic() => {
                return refuse(self, &format!("`\\{c}` is no escape of ECMA-262"));
            }
            c => Escape::Char(c as u32),
        })
    }

    fn hexadecimal(&mut self, n: usize) -> Option<u32> {
        let digits: String = self.chars.get(self.at..self.at + n)?.iter().collect();
        let is_number = digits.bytes().all(|b| b.is_ascii_hexdigit());
        let code = u32::from_str_radix(&digits, 16)
            .ok()
            .filter(|_| is_number)?;
        self.at += n;
        Some(code)
    }

    /// The rest of `\uHHHH`, of two of them that are a surrogate pair, or of `\u{...}`.
    fn code_point(&mut self) -> Option<u32> {
        if self.take("{") {
            let n = self.chars[self.at..].iter().take_while(|c| **c != '}');
            let n = n.count().min(8);
            let code = self.hexadecimal(n).filter(|code| *code <= 0x10_ffff)?;
            return self.take("}").then_some(code);
        }
        let high = self.hexadecimal(4)?;
        let after = self.at;
        if (0xd800..0xdc00).contains(&high) && self.take("\\u") {
            if let Some(low @ 0xdc00..0xe000) = self.hexadecimal(4) {
                return Some(0x1_0000 + ((high - 0xd800) << 10) + (low - 0xdc00));
            }
            self.at = after;
        }
        Some(high)
    }
}

struct Writer {
    n_bytes: usize,
}

impl Writer {
    /// The texts that a node matches between places of which the first is the start of the whole text or not, and the
    /// second its end or not; `None` if there are none.
    fn write(
        &mut self,
        node: &PatternNode,
        is_start: bool,
        is_end: bool,
    ) -> Result<Option<String>, String> {
        let written = match &node.kind {
            PatternSyntax::Class(inner) => in_json(inner),
            PatternSyntax::Start => is_start.then(String::new),
            PatternSyntax::End => is_end.then(String::new),
            PatternSyntax::Row(all) => self.write_row(all, is_start, is_end)?,
            PatternSyntax::Or(all) => {
                let mut ways = Vec::new();
                for node in all {
                    ways.extend(self.write(node, is_start, is_end)?);
                }
                one_of(ways)
            }
            PatternSyntax::Repeat(inner, min, max) => {
                let inner = self.write(inner, is_start, is_end)?;
                let counts = counts(*min, *max);
                match inner {
                    Some(inner) if *max != Some(0) => Some(format!("(?:{inner}){counts}")),
                    _ => (*min == 0).then(String::new),
                }
            }
        };
        self.n_bytes += written.as_ref().map_or(0, String::len);
        match self.n_bytes > MAX_BYTES {
            true => Err("pattern: too large to be enforced".into()),
            false => Ok(written),
        }
    }

    /// `^` and `$` depend on whether what stands before or after them is empty, so both cases are written.
    fn write_row(
        &mut self,
        row: &[PatternNode],
        is_start: bool,
        is_end: bool,
    ) -> Result<Option<String>, String> {
        let Some((first, rest)) = row.split_first() else {
            return Ok(Some(String::new()));
        };
        if !row.iter().any(|node| node.asserts) {
            let mut out = String::new();
            for node in row {
                match self.write(node, false, false)? {
                    Some(text) => out.push_str(&text),
                    None => return Ok(None),
                }
            }
            return Ok(Some(out));
        }
        if rest.is_empty() {
            return self.write(first, is_start, is_end);
        }
        let mut ways = Vec::new();
        let head = self.write(first, is_start, false)?;
        if let Some(head) = head
            && let Some(tail) = self.write_row(rest, false, is_end)?
        {
            ways.push(head + &tail);
        }
        let rest_asserts = rest.iter().any(|node| node.asserts);
        if is_start && rest_asserts && first.may_be_empty(true, false) {
            ways.extend(self.write_row(rest, true, is_end)?);
        }
        let may_end = rest.iter().all(|node| node.may_be_empty(false, true));
        if is_end && first.asserts && may_end {
            ways.extend(self.write(first, is_start, true)?);
        }
        if is_start && is_end && row.iter().all(|node| node.may_be_empty(true, true)) {
            ways.push(String::new());
        }
        Ok(one_of(ways))
    }
}

fn one_of(mut ways: Vec<String>) -> Option<String> {
    let mut seen = std::collections::HashSet::new();
    ways.retain(|way| seen.insert(way.clone()));
    alternatives(ways)
}
