//! Integers beyond 64 bits in JSON, of which the JSON library keeps the first digits only.
//!
//! Python's integers have any length. [`keep_long_integers`] writes long ones as marked strings, and [`of_marked`] reads them as
//! integers again where values become those of a template. Invariant: all else in the JSON text stays as it is.

use std::borrow::Cow;

/// What marks a string that stands for an integer: noncharacters, which no text is made of.
const MARK: &str = "\u{10ffff}\u{10fffe}";
/// Number of digits from which on an integer may need more than 64 bits.
const LONG: usize = 20;

/// A JSON text in which integers of 20 to 38 digits, which 128 bits hold, are marked strings.
pub fn keep_long_integers(json: &str) -> Cow<'_, str> {
    let bytes = json.as_bytes();
    let (mut out, mut copied) = (String::new(), 0);
    let (mut at, mut is_in_string) = (0, false);
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'\\' if is_in_string => at += 1,
            b'"' => is_in_string = !is_in_string,
            b'-' | b'0'..=b'9' if !is_in_string => {
                let is_part =
                    |byte: &u8| matches!(byte, b'-' | b'+' | b'.' | b'0'..=b'9' | b'e' | b'E');
                let end = at + bytes[at..].iter().take_while(|byte| is_part(byte)).count();
                let number = &json[at..end];
                let digits = number.strip_prefix('-').unwrap_or(number);
                let is_integer = digits.bytes().all(|byte| byte.is_ascii_digit());
                if is_integer
                    && (LONG..=38).contains(&digits.len())
                    && number.parse::<u64>().is_err()
                {
                    out += &json[copied..at];
                    out += &format!("\"{MARK}{number}\"");
                    copied = end;
                }
                at = end;
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    match copied {
        0 => Cow::Borrowed(json),
        _ => Cow::Owned(out + &json[copied..]),
    }
}

/// The integer that a string stands for.
pub(super) fn of_marked(text: &str) -> Option<i128> {
    text.strip_prefix(MARK)?.parse().ok()
}
