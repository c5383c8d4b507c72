//! Characters changed into others as Python's methods of texts do it: their case, and by a table.
//!
//! Python knows a form of some letters for the start of a word, and one of sigma for its end; the standard
//! library knows the second only within whole texts.

use minijinja::value::ValueKind;
use minijinja::{Error, Value};

use super::arguments::bind;
use super::budget;
use super::value::fault;

/// A capital, and small letters behind it.
pub(super) fn capitalize(text: &str) -> String {
    let Some(first) = text.chars().next() else {
        return String::new();
    };
    // What is small at the end of a word depends on what stands before it.
    let small = text.to_lowercase();
    let n_first: usize = first.to_lowercase().map(char::len_utf8).sum();
    capital(first).collect::<String>() + small.get(n_first..).unwrap_or_default()
}

/// A letter at the start of a word: one character that stands for two has a form of its own for it.
fn capital(c: char) -> impl Iterator<Item = char> {
    let single = match c {
        '\u{1c4}'..='\u{1c6}' => Some('\u{1c5}'),
        '\u{1c7}'..='\u{1c9}' => Some('\u{1c8}'),
        '\u{1ca}'..='\u{1cc}' => Some('\u{1cb}'),
        '\u{1f1}'..='\u{1f3}' => Some('\u{1f2}'),
        _ => None,
    };
    let mut is_first = true;
    let several = c.to_uppercase().flat_map(move |c| {
        let is_capital = std::mem::take(&mut is_first) || !c.is_uppercase();
        is_first = is_capital && !is_cased(c);
        let small = (!is_capital).then(|| c.to_lowercase());
        small.into_iter().flatten().chain(is_capital.then_some(c))
    });
    let several = single.is_none().then_some(several);
    single.into_iter().chain(several.into_iter().flatten())
}

/// Whether a character has a case.
pub(super) fn is_cased(c: char) -> bool {
    let has_both = matches!(c, '\u{1c5}' | '\u{1c8}' | '\u{1cb}' | '\u{1f2}');
    c.is_lowercase() || c.is_uppercase() || has_both
}

/// A letter of a text as a small one: sigma has a form of its own at the end of a word.
fn small(c: char, before: Option<char>, behind: Option<char>) -> impl Iterator<Item = char> {
    let is_last = c == 'Σ' && before.is_some_and(is_cased) && !behind.is_some_and(is_cased);
    let last = is_last.then_some('ς');
    let other = (!is_last).then(|| c.to_lowercase());
    last.into_iter().chain(other.into_iter().flatten())
}

/// Small letters without forms of their own, for comparing: what a letter's capital is when small.
pub(super) fn fold(c: char) -> impl Iterator<Item = char> {
    let is_own = c == 'ı';
    let folded = c.to_uppercase().flat_map(char::to_lowercase);
    let folded = (!is_own).then_some(folded);
    is_own
        .then_some(c)
        .into_iter()
        .chain(folded.into_iter().flatten())
}

/// A capital at the start of each run of letters.
pub(super) fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut before: Option<char> = None;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if before.is_some_and(is_cased) {
            out.extend(small(c, before, chars.peek().copied()));
        } else {
            out.extend(capital(c));
        }
        before = Some(c);
    }
    out
}

pub(super) fn swap_case(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut before = None;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c.is_uppercase() {
            out.extend(small(c, before, chars.peek().copied()));
        } else {
            out.extend(c.to_uppercase());
        }
        before = Some(c);
    }
    out
}

/// `text.translate(table)`: characters by their numbers to numbers, texts or nothing.
pub(super) fn translate(text: &str, args: &[Value]) -> Result<Value, Error> {
    let [table] = bind(args, ["table"])?;
    let table = table.ok_or_else(|| fault("missing argument 'table'"))?;
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        let to = match table.kind() {
            ValueKind::Map => table.get_item(&Value::from(u32::from(c)))?,
            _ => return Err(fault("translate: expected a mapping")),
        };
        budget::made(to.as_str().map_or(4, str::len))?;
        match (to.as_str(), to.as_i64()) {
            (Some(text), _) => out.push_str(text),
            (None, Some(n)) => {
                let c = u32::try_from(n).ok().and_then(char::from_u32);
                out.push(c.ok_or_else(|| fault("translate: no character"))?);
            }
            (None, None) if to.is_none() => {}
            _ => out.push(c),
        }
    }
    Ok(Value::from(out))
}
