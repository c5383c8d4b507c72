//! Texts, counts and regular expressions in Lark's form, and the library's error messages about regular expressions.

use serde_json::Value;

/// A text as a string literal.
pub(super) fn quoted(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// The operator of a repetition, which is also that of regular expressions.
pub(super) fn counts(min: u32, max: Option<u32>) -> String {
    match (min, max) {
        (0, None) => "*".to_owned(),
        (1, None) => "+".to_owned(),
        (0, Some(1)) => "?".to_owned(),
        (min, None) => format!("{{{min},}}"),
        (min, Some(max)) => format!("{{{min},{max}}}"),
    }
}

/// Expressions of which one matches; `None` if there are none.
pub(super) fn alternatives(mut ways: Vec<String>) -> Option<String> {
    match ways.len() {
        0 | 1 => ways.pop(),
        _ => Some(format!("(?:{})", ways.join("|"))),
    }
}

/// A regular expression that matches a text as a whole, as a part of a grammar in Lark's form: between slashes, with
/// those within escaped. Anchors at its ends are redundant.
pub(super) fn lark_literal(text: &str) -> String {
    let inner = without_anchors(text);
    if inner.is_empty() {
        return "\"\"".to_owned();
    }
    let mut out = String::with_capacity(inner.len() + 2);
    out.push('/');
    let mut is_escaped = false;
    for c in inner.chars() {
        match c {
            '/' if !is_escaped => out.push_str("\\/"),
            // A line feed would end the literal.
            '\n' if is_escaped => out.push('n'),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
        is_escaped = c == '\\' && !is_escaped;
    }
    out.push('/');
    out
}

fn without_anchors(text: &str) -> &str {
    let inner = text.strip_prefix('^').unwrap_or(text);
    match inner.strip_suffix('$') {
        Some(rest) if !ends_in_escape(rest) => rest,
        _ => inner,
    }
}

/// The library's message about a regular expression, without the grammar that was made from it.
pub(super) fn regex_message(message: &str) -> String {
    let inner = message
        .split_once("(in regex): ")
        .map_or(message, |(_, rest)| rest);
    let inner = inner
        .split_once("\n   1 | start:")
        .map_or(inner, |(rest, _)| rest);
    inner.trim_end().to_owned()
}

fn ends_in_escape(text: &str) -> bool {
    let backslashes = text.bytes().rev().take_while(|b| *b == b'\\').count();
    backslashes % 2 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_literal_has_no_bare_slash_and_no_anchor() {
        let cases = [
            (r"a/b", r"/a\/b/"),
            (r"a\/b", r"/a\/b/"),
            (r"a\\/b", r"/a\\\/b/"),
            (r"^[a-z]+$", r"/[a-z]+/"),
            (r"a\$", r"/a\$/"),
            ("a\nb", r"/a\nb/"),
            ("^$", "\"\""),
        ];
        for (text, expected) in cases {
            assert_eq!(lark_literal(text), expected, "{text}");
        }
    }
}
