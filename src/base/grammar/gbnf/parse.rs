//! Parses GBNF text into rules. The notation is llama.cpp's (`grammars/README.md` of its source), where a rule ends
//! with its line unless a group is open or the line ends with `|`.

use std::collections::HashMap;

use super::super::Error;
use super::super::schema::char_classes::{all, negated, set};
use super::chars::CharSet;

const MAX_DEPTH: usize = 50;
/// Maximum count of a repetition; llama.cpp's own limit.
const MAX_COUNT: u32 = 2000;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Expr {
    /// One character of the set.
    Class(CharSet),
    /// Parts one after another; without parts, the empty text.
    Seq(Vec<Self>),
    /// One of several alternatives.
    Alt(Vec<Self>),
    /// A part repeated at least and at most so many times; without a maximum, any number of times.
    Repeat(Box<Self>, u32, Option<u32>),
    Rule(usize),
}

/// A grammar: the expression of each rule, and which rule is `root`.
#[derive(Debug)]
pub(in crate::grammar) struct GbnfRules {
    pub(super) bodies: Vec<Expr>,
    pub(super) root: usize,
    /// Line and column of `root`.
    pub(super) root_at: (usize, usize),
}

pub(in crate::grammar) fn parse(text: &str) -> Result<GbnfRules, Error> {
    Parser {
        text,
        at: 0,
        names: HashMap::new(),
        rules: Vec::new(),
        depth: 0,
    }
    .grammar()
}

struct Rule<'a> {
    name: &'a str,
    /// The byte where the rule was first mentioned.
    at: usize,
    body: Option<Expr>,
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    names: HashMap<&'a str, usize>,
    rules: Vec<Rule<'a>>,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn grammar(mut self) -> Result<GbnfRules, Error> {
        self.space(true);
        while self.peek().is_some() {
            self.rule()?;
        }
        let Some(&root) = self.names.get("root") else {
            return Err(self.fault(self.text.len(), "there is no rule `root`"));
        };
        let mut bodies = Vec::with_capacity(self.rules.len());
        for i in 0..self.rules.len() {
            match self.rules[i].body.take() {
                Some(body) => bodies.push(body),
                None => {
                    let Rule { name, at, .. } = self.rules[i];
                    return Err(self.fault(at, &format!("there is no rule `{name}`")));
                }
            }
        }
        let root_at = self.place(self.rules[root].at);
        Ok(GbnfRules {
            bodies,
            root,
            root_at,
        })
    }

    fn rule(&mut self) -> Result<(), Error> {
        let start = self.at;
        let name = self.name()?;
        self.space(false);
        if !self.take("::=") {
            return Err(self.expected("`::=`"));
        }
        self.space(true);
        let index = self.index(name, start);
        if self.rules[index].body.is_some() {
            return Err(self.fault(start, &format!("duplicate rule `{name}`")));
        }
        let body = self.alternatives(false)?;
        self.rules[index].body = Some(body);
        match self.peek() {
            None | Some('\n' | '\r') => {}
            _ => return Err(self.expected("the end of the line")),
        }
        self.space(true);
        Ok(())
    }

    fn alternatives(&mut self, is_nested: bool) -> Result<Expr, Error> {
        let mut all = vec![self.sequence(is_nested)?];
        while self.take("|") {
            self.space(true);
            all.push(self.sequence(is_nested)?);
        }
        Ok(match all.len() {
            1 => all.remove(0),
            _ => Expr::Alt(all),
        })
    }

    fn sequence(&mut self, is_nested: bool) -> Result<Expr, Error> {
        let mut parts = Vec::new();
        while let Some(part) = self.item()? {
            self.space(is_nested);
            parts.push(self.repetitions(part, is_nested)?);
        }
        Ok(match parts.len() {
            1 => parts.remove(0),
            _ => Expr::Seq(parts),
        })
    }

    fn item(&mut self) -> Result<Option<Expr>, Error> {
        Ok(Some(match self.peek() {
            Some('"') => self.literal()?,
            Some('[') => self.class()?,
            Some('(') => self.group()?,
            Some('.') => {
                self.at += 1;
                Expr::Class(all().into())
            }
            Some(c) if is_name(c) => {
                let start = self.at;
                let name = self.name()?;
                Expr::Rule(self.index(name, start))
            }
            Some('<' | '!') => {
                return Err(self.fault(self.at, "tokens by name or number are not supported"));
            }
            Some('*' | '+' | '?' | '{') => {
                return Err(self.fault(self.at, "there is nothing to repeat"));
            }
            _ => return Ok(None),
        }))
    }

    fn group(&mut self) -> Result<Expr, Error> {
        let start = self.at;
        self.at += 1;
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.fault(
                start,
                &format!("more than {MAX_DEPTH} groups in each other"),
            ));
        }
        self.space(true);
        let inner = self.alternatives(true)?;
        if !self.take(")") {
            return Err(self.expected("`)`"));
        }
        self.depth -= 1;
        Ok(inner)
    }

    fn repetitions(&mut self, item: Expr, is_nested: bool) -> Result<Expr, Error> {
        let mut expr = item;
        let mut n = 0;
        loop {
            let start = self.at;
            let (min, max) = match self.peek() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => self.counts(is_nested)?,
                _ => return Ok(expr),
            };
            // The operator is skipped, or the closing brace at which `counts` stopped.
            self.at += 1;
            self.space(is_nested);
            n += 1;
            if n > MAX_DEPTH {
                return Err(self.fault(start, "too many repetitions of each other"));
            }
            expr = match max {
                Some(0) => Expr::Seq(Vec::new()),
                _ => Expr::Repeat(Box::new(expr), min, max),
            };
        }
    }

    fn counts(&mut self, is_nested: bool) -> Result<(u32, Option<u32>), Error> {
        let start = self.at;
        self.at += 1;
        self.space(is_nested);
        let min = self.count()?;
        self.space(is_nested);
        let mut max = Some(min);
        if self.take(",") {
            self.space(is_nested);
            max = match self.peek() {
                Some(c) if c.is_ascii_digit() => Some(self.count()?),
                _ => None,
            };
            self.space(is_nested);
        }
        if self.peek() != Some('}') {
            return Err(self.expected("`}`"));
        }
        if max.is_some_and(|max| max < min) {
            return Err(self.fault(start, "the larger count comes first"));
        }
        Ok((min, max))
    }

    fn count(&mut self) -> Result<u32, Error> {
        let start = self.at;
        while self.peek().is_some_and(|c| c.is_ascii_digit()) {
            self.at += 1;
        }
        let digits = &self.text[start..self.at];
        if digits.is_empty() {
            return Err(self.expected("a number"));
        }
        match digits.parse() {
            Ok(count) if count <= MAX_COUNT => Ok(count),
            _ => Err(self.fault(start, &format!("more than {MAX_COUNT} repetitions"))),
        }
    }

    fn literal(&mut self) -> Result<Expr, Error> {
        let start = self.at;
        self.at += 1;
        let mut chars = Vec::new();
        loop {
            match self.peek() {
                None => return Err(self.fault(start, "the string has no closing `\"`")),
                Some('"') => break,
                Some(_) => {
                    let c = self.character()?.into();
                    chars.push(Expr::Class(set(&[(c, c)]).into()));
                }
            }
        }
        self.at += 1;
        Ok(match chars.len() {
            1 => chars.remove(0),
            _ => Expr::Seq(chars),
        })
    }

    fn class(&mut self) -> Result<Expr, Error> {
        let start = self.at;
        self.at += 1;
        let is_negated = self.take("^");
        let mut ranges = Vec::new();
        loop {
            match self.peek() {
                None => return Err(self.fault(start, "the class has no closing `]`")),
                Some(']') => break,
                Some(_) => {}
            }
            let low_at = self.at;
            let low = self.character()?;
            let mut high = low;
            let rest = &self.text[self.at..];
            if rest.starts_with('-') && !rest.starts_with("-]") {
                self.at += 1;
                high = self.character()?;
            }
            if high < low {
                return Err(self.fault(low_at, &format!("`{low}` comes after `{high}`")));
            }
            ranges.push((low.into(), high.into()));
        }
        self.at += 1;
        let chars = set(&ranges);
        let chars = if is_negated { negated(chars) } else { chars };
        if ranges.is_empty() || chars.ranges().is_empty() {
            return Err(self.fault(start, "the class has no character"));
        }
        Ok(Expr::Class(chars.into()))
    }

    fn character(&mut self) -> Result<char, Error> {
        let start = self.at;
        let Some(c) = self.peek() else {
            return Err(self.expected("a character"));
        };
        self.at += c.len_utf8();
        if c != '\\' {
            return Ok(c);
        }
        let escape = self.peek();
        self.at += escape.map_or(0, char::len_utf8);
        match escape {
            Some('x') => self.hex(start, 2),
            Some('u') => self.hex(start, 4),
            Some('U') => self.hex(start, 8),
            Some('t') => Ok('\t'),
            Some('r') => Ok('\r'),
            Some('n') => Ok('\n'),
            Some(c @ ('\\' | '"' | '[' | ']' | '-' | '^')) => Ok(c),
            Some(c) => Err(self.fault(start, &format!("there is no escape `\\{c}`"))),
            None => Err(self.expected("an escaped character")),
        }
    }

    fn hex(&mut self, start: usize, n: usize) -> Result<char, Error> {
        let digits = self.text.get(self.at..self.at + n).unwrap_or_default();
        if digits.len() != n || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(self.fault(start, &format!("expected {n} hexadecimal digits")));
        }
        self.at += n;
        u32::from_str_radix(digits, 16)
            .ok()
            .and_then(char::from_u32)
            .ok_or_else(|| self.fault(start, &format!("U+{digits} is not a character")))
    }

    fn name(&mut self) -> Result<&'a str, Error> {
        let rest = &self.text[self.at..];
        let end = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
        if end == 0 {
            return Err(self.expected("the name of a rule"));
        }
        self.at += end;
        Ok(&rest[..end])
    }

    fn index(&mut self, name: &'a str, at: usize) -> usize {
        *self.names.entry(name).or_insert_with(|| {
            self.rules.push(Rule {
                name,
                at,
                body: None,
            });
            self.rules.len() - 1
        })
    }

    fn space(&mut self, lines: bool) {
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' => self.at += 1,
                '\n' | '\r' if lines => self.at += 1,
                '#' => {
                    let rest = &self.text[self.at..];
                    self.at += rest.find(['\n', '\r']).unwrap_or(rest.len());
                }
                _ => return,
            }
        }
    }

    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn take(&mut self, text: &str) -> bool {
        let is_there = self.text[self.at..].starts_with(text);
        if is_there {
            self.at += text.len();
        }
        is_there
    }

    fn expected(&self, what: &str) -> Error {
        let found = match self.peek() {
            None => "the end".into(),
            Some('\n' | '\r') => "the end of the line".into(),
            Some(c) => format!("`{c}`"),
        };
        self.fault(self.at, &format!("expected {what}, found {found}"))
    }

    fn fault(&self, at: usize, message: &str) -> Error {
        let (line, column) = self.place(at);
        Error::Gbnf {
            line,
            column,
            message: message.to_owned(),
        }
    }

    fn place(&self, at: usize) -> (usize, usize) {
        let before = &self.text[..at];
        let line_start = before.rfind('\n').map_or(0, |end| end + 1);
        let column = before[line_start..].chars().count() + 1;
        (before.matches('\n').count() + 1, column)
    }
}

pub(super) fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-' || c == '_'
}
