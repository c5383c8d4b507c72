//! The byte-level alphabet: one printable character for each of the 256 bytes.
//!
//! Vocabularies of byte-level models spell their tokens in this alphabet, so that no token contains a space or a
//! control character. Bytes that are printable in Latin-1 represent themselves; the others, in ascending order, are
//! U+0100, U+0101 and so on.

const fn is_printable(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff)
}

/// Bytes that do not represent themselves, in ascending order: U+0100 is the first of them.
const SHIFTED: [u8; 68] = {
    let mut out = [0; 68];
    let (mut byte, mut n) = (0, 0);
    while byte < 256 {
        if !is_printable(byte as u8) {
            out[n] = byte as u8;
            n += 1;
        }
        byte += 1;
    }
    out
};

pub(super) fn letter_of(byte: u8) -> char {
    match SHIFTED
        .iter()
        .zip(0x100..)
        .find(|(other, _)| **other == byte)
    {
        Some((_, code)) => char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER),
        None => char::from(byte),
    }
}

/// The byte of a character of the alphabet; `None` for any other character.
pub(super) fn byte_of(c: char) -> Option<u8> {
    match u32::from(c) {
        code @ 0..=0xff => Some(code as u8).filter(|&byte| is_printable(byte)),
        code => SHIFTED.get(code as usize - 0x100).copied(),
    }
}

/// The bytes that a token text spells; `None` if it has a character outside the alphabet.
pub(super) fn bytes_of(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    append_spelled(text, &mut out).is_empty().then_some(out)
}

/// Appends the bytes that a token text spells. Characters outside the alphabet are copied unchanged.
pub(super) fn append_bytes(mut text: &str, out: &mut Vec<u8>) {
    loop {
        text = append_spelled(text, out);
        let Some(other) = text.chars().next() else {
            return;
        };
        let (other, rest) = text.split_at(other.len_utf8());
        out.extend_from_slice(other.as_bytes());
        text = rest;
    }
}

/// Appends the bytes that a token text spells up to the first character outside the alphabet, and returns the text from
/// there on.
pub(super) fn append_spelled<'a>(mut text: &'a str, out: &mut Vec<u8>) -> &'a str {
    loop {
        // Most characters are ASCII that represents itself: as many as there are at once.
        let bytes = text.as_bytes();
        let mut plain = 0;
        while plain < bytes.len() && matches!(bytes[plain], 0x21..=0x7e) {
            plain += 1;
        }
        out.extend_from_slice(&bytes[..plain]);
        text = &text[plain..];
        let Some((c, byte)) = text.chars().next().and_then(|c| Some((c, byte_of(c)?))) else {
            return text;
        };
        out.push(byte);
        text = &text[c.len_utf8()..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_exactly_one_character() {
        let mut seen = [false; 256];
        for byte in ('\0'..='\u{200}').filter_map(byte_of) {
            assert!(!seen[usize::from(byte)], "{byte:#x} has two characters");
            seen[usize::from(byte)] = true;
        }
        assert!(seen.iter().all(|&s| s));
    }

    #[test]
    fn space_and_newline_have_their_well_known_letters() {
        assert_eq!(byte_of('Ġ'), Some(b' '));
        assert_eq!(byte_of('Ċ'), Some(b'\n'));
        assert_eq!(byte_of(' '), None);
        assert!((0..=u8::MAX).all(|byte| byte_of(letter_of(byte)) == Some(byte)));
        assert_eq!(bytes_of("Ġhé"), Some(vec![b' ', b'h', 0xe9]));
        assert_eq!(bytes_of("日"), None);
    }

    #[test]
    fn characters_outside_the_alphabet_are_kept() {
        let mut out = Vec::new();
        append_bytes("Ġ日", &mut out);
        assert_eq!(out, " 日".as_bytes());
    }
}
