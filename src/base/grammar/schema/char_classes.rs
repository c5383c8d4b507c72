//! Classes of characters, and their spelling in JSON.
//!
//! Invariant: a character has one spelling, so that a text has one too.

use regex_syntax::hir::{ClassUnicode, ClassUnicodeRange};

use super::super::lark_regex::alternatives;

pub(super) const ANY: &str = r#"(?:[^"\\\x00-\x1f]|\\["\\bfnrt]|\\u00(?:0[0-7be-f]|1[0-9a-f]))"#;

pub(in crate::grammar) fn set(ranges: &[(u32, u32)]) -> ClassUnicode {
    let is_half = |code: u32| (0xd800..0xe000).contains(&code);
    let range = |&(low, high): &(u32, u32)| {
        let low = char::from_u32(if is_half(low) { 0xe000 } else { low })?;
        let high = char::from_u32(if is_half(high) { 0xd7ff } else { high })?;
        (low <= high).then(|| ClassUnicodeRange::new(low, high))
    };
    ClassUnicode::new(ranges.iter().filter_map(range))
}

/// All characters but those of a class.
pub(in crate::grammar) fn negated(mut class: ClassUnicode) -> ClassUnicode {
    // The library does not join ranges that end and begin around the surrogates, and finds characters between them.
    let has = |c: char| {
        class
            .iter()
            .any(|range| range.start() <= c && c <= range.end())
    };
    if has('\u{d7ff}') && has('\u{e000}') {
        class.union(&set(&[(0xd7ff, 0xe000)]));
    }
    class.negate();
    class
}

pub(in crate::grammar) fn all() -> ClassUnicode {
    set(&[(0, 0x10_ffff)])
}

/// White space and line ends of ECMA-262.
pub(super) fn space() -> ClassUnicode {
    set(&[
        (0x09, 0x0d),
        (0x20, 0x20),
        (0xa0, 0xa0),
        (0x1680, 0x1680),
        (0x2000, 0x200a),
        (0x2028, 0x2029),
        (0x202f, 0x202f),
        (0x205f, 0x205f),
        (0x3000, 0x3000),
        (0xfeff, 0xfeff),
    ])
}

/// The class of `\p{name}`, or of `\P{name}`.
pub(super) fn property(kind: char, name: &str) -> Option<ClassUnicode> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '=';
    if name.is_empty() || !name.chars().all(is_name) {
        return None;
    }
    let hir = regex_syntax::parse(&format!("\\{kind}{{{name}}}")).ok()?;
    match hir.into_kind() {
        regex_syntax::hir::HirKind::Class(regex_syntax::hir::Class::Unicode(class)) => Some(class),
        _ => None,
    }
}

/// A class as an expression over JSON text: a control character, `"` and `\` have their short escape, or `\u00` and two
/// small digits; all other characters are written as they are.
pub(super) fn in_json(class: &ClassUnicode) -> Option<String> {
    let has = |c: char| {
        class
            .iter()
            .any(|range| range.start() <= c && c <= range.end())
    };
    let mut plain = class.clone();
    let mut quoted = set(&[(0, 0x1f), (0x22, 0x22), (0x5c, 0x5c)]);
    quoted.negate();
    plain.intersect(&quoted);
    let mut ways = Vec::new();
    let ranges: String = plain
        .iter()
        .map(|range| match range.start() == range.end() {
            true => format!("\\x{{{:x}}}", range.start() as u32),
            false => format!(
                "\\x{{{:x}}}-\\x{{{:x}}}",
                range.start() as u32,
                range.end() as u32
            ),
        })
        .collect();
    if !ranges.is_empty() {
        ways.push(match plain.literal() {
            Some(bytes) => regex_syntax::escape(&String::from_utf8(bytes).ok()?),
            None => format!("[{ranges}]"),
        });
    }
    let short = [
        ('"', "\""),
        ('\\', "\\\\"),
        ('\u{8}', "b"),
        ('\u{c}', "f"),
        ('\n', "n"),
        ('\r', "r"),
        ('\t', "t"),
    ];
    let letters: String = short
        .iter()
        .filter(|(c, _)| has(*c))
        .map(|(_, letter)| *letter)
        .collect();
    if !letters.is_empty() {
        ways.push(format!(r"\\[{letters}]"));
    }
    let controls = ('\0'..' ').filter(|c| has(*c) && !short.iter().any(|(s, _)| s == c));
    let controls: Vec<String> = controls.map(|c| format!("{:02x}", c as u32)).collect();
    match controls.len() {
        0 => {}
        27 => ways.push(r"\\u00(?:0[0-7be-f]|1[0-9a-f])".into()),
        _ => ways.push(format!(r"\\u00(?:{})", controls.join("|"))),
    }
    alternatives(ways)
}
