//! Literals of Python, as `ast.literal_eval` reads them, and calls with such arguments, as JSON.
//!
//! What JSON cannot say (bytes, complex numbers, infinities, keys that are tuples) is refused, and so is everything
//! that is no literal. Reads complete text. Invariant: integers keep all their digits.

use super::json::{JsonMembers, is_number, quoted};

const MAX_DEPTH: usize = 100;
/// Maximum number of digits of an integer that is not written in decimal form.
const MAX_DIGITS: usize = 4096;

struct LiteralReader<'a> {
    rest: &'a str,
}

/// The arguments of a call, from its opening to its closing parenthesis, as a JSON object. Arguments without a name get
/// those of `names`, in order.
pub(super) fn arguments<'a>(text: &str, names: impl Iterator<Item = &'a str>) -> Option<String> {
    let mut reader = LiteralReader { rest: text };
    let found = reader.arguments(names)?;
    reader.rest.is_empty().then_some(found)
}

/// A text that is one literal, as JSON.
pub(super) fn literal(text: &str) -> Option<String> {
    let mut reader = LiteralReader { rest: text };
    let found = reader.value(0)?;
    reader.space();
    reader.rest.is_empty().then_some(found)
}

impl LiteralReader<'_> {
    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn takes(&mut self, text: &str) -> bool {
        let rest = self.rest.strip_prefix(text);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// Consumes white space, comments and joined lines.
    fn space(&mut self) {
        loop {
            self.rest = self.rest.trim_start();
            if self.rest.starts_with('#') {
                self.rest = &self.rest[self.rest.find('\n').unwrap_or(self.rest.len())..];
            } else if !self.takes("\\\n") {
                return;
            }
        }
    }

    fn arguments<'a>(&mut self, mut names: impl Iterator<Item = &'a str>) -> Option<String> {
        let mut out = JsonMembers::default();
        let mut has_named = false;
        if !self.takes("(") {
            return None;
        }
        loop {
            self.space();
            if self.takes(")") {
                return Some(out.json());
            }
            let name = match self.keyword() {
                Some(name) => {
                    has_named = true;
                    name
                }
                None if has_named => return None,
                None => names.next()?.to_owned(),
            };
            let value = self.value(1)?;
            if !out.insert(name, value) {
                return None;
            }
            self.space();
            if !self.takes(",") && self.peek() != Some(')') {
                return None;
            }
        }
    }

    /// Consumes `NAME =`, if it is there.
    fn keyword(&mut self) -> Option<String> {
        let is_part = |c: char| c.is_alphanumeric() || "_-.".contains(c);
        let end = self.rest.find(|c| !is_part(c))?;
        let (name, rest) = self.rest.split_at(end);
        if !name.starts_with(|c: char| c.is_alphabetic() || c == '_') {
            return None;
        }
        let rest = rest.trim_start().strip_prefix('=')?;
        if rest.starts_with('=') {
            return None;
        }
        self.rest = rest;
        Some(name.to_owned())
    }

    fn value(&mut self, depth: usize) -> Option<String> {
        if depth > MAX_DEPTH {
            return None;
        }
        self.space();
        if let Some(text) = self.strings() {
            return text.map(|text| quoted(&text));
        }
        match self.peek()? {
            '(' => {
                self.takes("(");
                self.parenthesis(depth + 1)
            }
            '[' => {
                self.takes("[");
                let all = self.values("]", depth + 1)?.0;
                Some(format!("[{}]", all.join(", ")))
            }
            '{' => {
                self.takes("{");
                self.braces(depth + 1)
            }
            sign @ ('+' | '-') => {
                self.rest = &self.rest[1..];
                self.space();
                let value = self.number()?;
                Some(if sign == '-' {
                    format!("-{value}")
                } else {
                    value
                })
            }
            c if c.is_ascii_digit() || c == '.' => self.number(),
            _ => self.word(),
        }
    }

    /// Values up to a closing bracket, and whether a comma follows the last one.
    fn values(&mut self, close: &str, depth: usize) -> Option<(Vec<String>, bool)> {
        let (mut out, mut has_comma) = (Vec::new(), true);
        loop {
            self.space();
            if self.takes(close) {
                return Some((out, has_comma));
            }
            if !has_comma {
                return None;
            }
            out.push(self.value(depth)?);
            self.space();
            has_comma = self.takes(",");
        }
    }

    /// A tuple, or a value in parentheses.
    fn parenthesis(&mut self, depth: usize) -> Option<String> {
        let (mut all, has_comma) = self.values(")", depth)?;
        if all.len() == 1 && !has_comma {
            return all.pop();
        }
        Some(format!("[{}]", all.join(", ")))
    }

    fn braces(&mut self, depth: usize) -> Option<String> {
        let mut out = JsonMembers::default();
        loop {
            self.space();
            if self.takes("}") {
                return Some(out.json());
            }
            let first = self.value(depth)?;
            self.space();
            if !self.takes(":") {
                // A set has no pairs.
                let is_more = self.takes(",");
                if !out.json().eq("{}") || !is_more && self.peek() != Some('}') {
                    return None;
                }
                let (rest, _) = self.values("}", depth)?;
                let all: Vec<String> = std::iter::once(first).chain(rest).collect();
                return Some(format!("[{}]", all.join(", ")));
            }
            let value = self.value(depth)?;
            out.insert(key(&first)?, value);
            self.space();
            if !self.takes(",") && self.peek() != Some('}') {
                return None;
            }
        }
    }

    fn word(&mut self) -> Option<String> {
        let end = self.rest.find(|c: char| !c.is_alphanumeric() && c != '_');
        let (word, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest;
        match word {
            "True" | "true" => Some("true".into()),
            "False" | "false" => Some("false".into()),
            "None" | "null" => Some("null".into()),
            "set" => {
                self.space();
                let is_call = self.takes("(");
                self.space();
                (is_call && self.takes(")")).then(|| "[]".into())
            }
            _ => None,
        }
    }

    fn number(&mut self) -> Option<String> {
        let mut end = 0;
        let is_based = self
            .rest
            .strip_prefix('0')
            .is_some_and(|rest| rest.starts_with(['x', 'X']));
        let mut before = ' ';
        for (at, c) in self.rest.char_indices() {
            let is_sign = matches!(c, '+' | '-') && matches!(before, 'e' | 'E') && !is_based;
            if !c.is_alphanumeric() && c != '_' && c != '.' && !is_sign {
                break;
            }
            end = at + c.len_utf8();
            before = c;
        }
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        number(word)
    }

    /// One string or several next to each other; `None` if there is none, `Some(None)` if one is malformed.
    fn strings(&mut self) -> Option<Option<String>> {
        let mut out = None;
        loop {
            let start = self
                .rest
                .trim_start_matches(|c: char| c.is_ascii_alphabetic());
            let prefix = &self.rest[..self.rest.len() - start.len()];
            let quote = ["'''", "\"\"\"", "'", "\""].into_iter();
            let Some(quote) = quote.clone().find(|quote| start.starts_with(quote)) else {
                return out.map(Some);
            };
            let is_raw = match prefix {
                "" | "u" | "U" => false,
                "r" | "R" => true,
                _ => return Some(None),
            };
            let Some(end) = end_of(&start[quote.len()..], quote) else {
                return Some(None);
            };
            let inner = &start[quote.len()..quote.len() + end];
            let Some(text) = (if is_raw {
                Some(inner.to_owned())
            } else {
                unescaped(inner)
            }) else {
                return Some(None);
            };
            out.get_or_insert_with(String::new).push_str(&text);
            self.rest = &start[2 * quote.len() + end..];
            self.space();
        }
    }
}

/// Where the text of a string ends, which a quote closes.
fn end_of(text: &str, quote: &str) -> Option<usize> {
    let mut is_escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            _ if text[at..].starts_with(quote) => return Some(at),
            _ => {}
        }
    }
    None
}

/// The text of a string that is not raw. Half a surrogate pair, which is no text, becomes U+FFFD.
fn unescaped(text: &str) -> Option<String> {
    let mut out = String::new();
    let mut high: Option<u32> = None;
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        if at > 0 && high.take().is_some() {
            out.push('\u{fffd}');
        }
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let c = rest.chars().next()?;
        rest = &rest[c.len_utf8()..];
        let n_digits = match c {
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => 0,
        };
        let code = match c {
            '0'..='7' => {
                let is_more = rest
                    .bytes()
                    .take(2)
                    .take_while(|b| (b'0'..=b'7').contains(b));
                let n = is_more.count();
                let code = u32::from_str_radix(&format!("{c}{}", &rest[..n]), 8).ok();
                rest = &rest[n..];
                code
            }
            _ if n_digits > 0 => {
                let digits = rest.get(..n_digits)?;
                let is_hex = digits.bytes().all(|b| b.is_ascii_hexdigit());
                rest = &rest[n_digits..];
                Some(u32::from_str_radix(digits, 16).ok().filter(|_| is_hex)?)
            }
            _ => None,
        };
        match (code, high.take()) {
            (Some(low @ 0xdc00..=0xdfff), Some(high)) => {
                let code = 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
                out.push(char::from_u32(code)?);
                continue;
            }
            (_, Some(_)) => out.push('\u{fffd}'),
            (_, None) => {}
        }
        match code {
            Some(code @ 0xd800..=0xdbff) => high = Some(code),
            Some(0xdc00..=0xdfff) => out.push('\u{fffd}'),
            Some(code) => out.push(char::from_u32(code)?),
            None => match c {
                '\n' => {}
                '\\' | '\'' | '"' => out.push(c),
                'a' => out.push('\u{7}'),
                'b' => out.push('\u{8}'),
                'f' => out.push('\u{c}'),
                'n' => out.push('\n'),
                'r' => out.push('\r'),
                't' => out.push('\t'),
                'v' => out.push('\u{b}'),
                c => out.extend(['\\', c]),
            },
        }
    }
    if high.is_some() {
        out.push('\u{fffd}');
    }
    out.push_str(rest);
    Some(out)
}

/// A number in any of Python's forms, as JSON; `None` if JSON has no such number.
pub(super) fn number(word: &str) -> Option<String> {
    let digits = |text: &str, base: u32, may_start: bool| {
        let text = if may_start {
            text.strip_prefix('_').unwrap_or(text)
        } else {
            text
        };
        let is_even = !text.starts_with('_') && !text.ends_with('_') && !text.contains("__");
        let out = text.replace('_', "");
        (is_even && out.chars().all(|c| c.is_digit(base))).then_some(out)
    };
    let base = match word.get(..2).map(str::to_ascii_lowercase).as_deref() {
        Some("0x") => 16,
        Some("0o") => 8,
        Some("0b") => 2,
        _ => 10,
    };
    if base != 10 {
        let text = digits(&word[2..], base, true).filter(|text| !text.is_empty())?;
        return (text.len() <= MAX_DIGITS).then(|| decimal(&text, base));
    }
    let (mantissa, exponent) = match word.find(['e', 'E']) {
        Some(at) => (&word[..at], Some(&word[at + 1..])),
        None => (word, None),
    };
    let (whole, fraction) = match mantissa.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (mantissa, None),
    };
    let whole = digits(whole, 10, false)?;
    let fraction = match fraction {
        Some(fraction) => Some(digits(fraction, 10, false)?),
        None => None,
    };
    let is_integer = fraction.is_none() && exponent.is_none();
    if whole.is_empty() && fraction.as_ref().is_none_or(String::is_empty) {
        return None;
    }
    let significant = whole.trim_start_matches('0');
    if is_integer && significant.len() < whole.len() && !significant.is_empty() {
        return None;
    }
    let mut out = if significant.is_empty() {
        "0".to_owned()
    } else {
        significant.to_owned()
    };
    if let Some(fraction) = fraction {
        out.push('.');
        out.push_str(if fraction.is_empty() { "0" } else { &fraction });
    }
    if let Some(exponent) = exponent {
        let unsigned = exponent.trim_start_matches(['+', '-']);
        if exponent.len() - unsigned.len() > 1 || unsigned.is_empty() {
            return None;
        }
        out.push('e');
        out.push_str(&exponent[..exponent.len() - unsigned.len()]);
        out.push_str(&digits(unsigned, 10, false)?);
    }
    let is_finite = is_integer || out.parse::<f64>().is_ok_and(f64::is_finite);
    (is_finite && is_number(&out)).then_some(out)
}

/// The decimal digits of an integer in another base.
fn decimal(digits: &str, base: u32) -> String {
    const LIMB: u64 = 1_000_000_000;
    let mut limbs = vec![0u64];
    for digit in digits.chars().filter_map(|c| c.to_digit(base)) {
        let mut carry = u64::from(digit);
        for limb in &mut limbs {
            let value = *limb * u64::from(base) + carry;
            (*limb, carry) = (value % LIMB, value / LIMB);
        }
        if carry > 0 {
            limbs.push(carry);
        }
    }
    let (last, rest) = limbs
        .split_last()
        .map_or((0, &[][..]), |(last, rest)| (*last, rest));
    let rest: String = rest.iter().rev().map(|limb| format!("{limb:09}")).collect();
    format!("{last}{rest}")
}

/// The key of a dictionary as `json.dumps` writes it, from its value as JSON.
fn key(value: &str) -> Option<String> {
    match value.chars().next()? {
        '"' => serde_json::from_str(value).ok(),
        '[' | '{' => None,
        '-' | '0'..='9' if value.contains(['.', 'e', 'E']) => {
            let text = format!("{:?}", value.parse::<f64>().ok()?);
            Some(match text.split_once('e') {
                Some((mantissa, exponent)) => {
                    let (sign, exponent) = match exponent.strip_prefix('-') {
                        Some(exponent) => ('-', exponent),
                        None => ('+', exponent),
                    };
                    format!("{mantissa}e{sign}{exponent:0>2}")
                }
                None => text,
            })
        }
        '-' if value == "-0" => Some("0".into()),
        _ => Some(value.to_owned()),
    }
}
