//! The case of characters as Python's methods of texts change it.
//!
//! Python knows a form of some letters for the start of a word, and one of sigma for its end; the standard
//! library knows the second only within whole texts.

/// A capital, followed by small letters.
pub(super) fn capitalize(text: &str) -> String {
    let Some(first) = text.chars().next() else {
        return String::new();
    };
    // The lower case of a sigma depends on the characters before it.
    let small = text.to_lowercase();
    let n_first: usize = first.to_lowercase().map(char::len_utf8).sum();
    capital(first) + small.get(n_first..).unwrap_or_default()
}

/// A letter at the start of a word: one character that stands for two has a form of its own for it.
fn capital(c: char) -> String {
    match c {
        '\u{1c4}'..='\u{1c6}' => "\u{1c5}".to_owned(),
        '\u{1c7}'..='\u{1c9}' => "\u{1c8}".to_owned(),
        '\u{1ca}'..='\u{1cc}' => "\u{1cb}".to_owned(),
        '\u{1f1}'..='\u{1f3}' => "\u{1f2}".to_owned(),
        _ => {
            let mut is_first = true;
            let mut out = String::new();
            for c in c.to_uppercase() {
                if is_first || !c.is_uppercase() {
                    out.push(c);
                    is_first = !is_cased(c);
                } else {
                    out.extend(c.to_lowercase());
                    is_first = false;
                }
            }
            out
        }
    }
}

/// Whether a character has a case.
pub(super) fn is_cased(c: char) -> bool {
    let has_both = matches!(c, '\u{1c5}' | '\u{1c8}' | '\u{1cb}' | '\u{1f2}');
    c.is_lowercase() || c.is_uppercase() || has_both
}

/// The text without forms for small letters, for comparing: what a letter's capital is when small.
pub(super) fn fold(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            'ı' => out.push(c),
            _ => out.extend(c.to_uppercase().flat_map(char::to_lowercase)),
        }
    }
    out
}

/// A capital at the start of each run of letters.
pub(super) fn title(text: &str) -> String {
    map_letters(text, |c, is_inside| (!is_inside).then(|| capital(c)))
}

pub(super) fn swap_case(text: &str) -> String {
    map_letters(text, |c, _| {
        (!c.is_uppercase()).then(|| c.to_uppercase().collect())
    })
}

/// Each character as `change` says, given whether a letter comes before it, or as a small letter: sigma
/// has a form of its own at the end of a word.
fn map_letters(text: &str, change: impl Fn(char, bool) -> Option<String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut is_inside = false;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let is_last = is_inside && !chars.peek().copied().is_some_and(is_cased);
        match change(c, is_inside) {
            Some(changed) => out.push_str(&changed),
            None if c == 'Σ' && is_last => out.push('ς'),
            None => out.extend(c.to_lowercase()),
        }
        is_inside = is_cased(c);
    }
    out
}
