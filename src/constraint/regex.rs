//! Regular expressions as grammars, and the library's error messages about them.

use llguidance::api::TopLevelGrammar;

/// A regular expression that must match the whole completion; anchors at its ends are redundant.
pub(super) fn regex(text: &str) -> TopLevelGrammar {
    let inner = text.strip_prefix('^').unwrap_or(text);
    let inner = match inner.strip_suffix('$') {
        Some(rest) if !ends_in_escape(rest) => rest,
        _ => inner,
    };
    if inner.is_empty() {
        return TopLevelGrammar::from_lark("start: \"\"".into());
    }
    TopLevelGrammar::from_regex(inner)
}

/// The library's message about a regular expression, without the grammar that was made from it.
pub(super) fn of_regex(message: &str) -> String {
    let inner = message
        .split_once("(in regex): ")
        .map_or(message, |(_, rest)| rest);
    let inner = inner
        .split_once("\n   1 | start:")
        .map_or(inner, |(rest, _)| rest);
    inner.trim_end().to_owned()
}

/// Whether the text ends in an escape, so that the next character would be escaped.
fn ends_in_escape(text: &str) -> bool {
    let backslashes = text.bytes().rev().take_while(|b| *b == b'\\').count();
    backslashes % 2 == 1
}
