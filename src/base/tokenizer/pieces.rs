//! The bytes that a token contributes to a text.
//!
//! Tokens are spelled for matching, not for reading: with spaces as U+2581, or entirely in the byte-level alphabet.
//! Special tokens are spelled literally.

use super::SPACE;
use super::byte_level;
use super::longest_match;
use super::vocab::{TokenKind, named_byte};

/// How the texts of plain tokens spell spaces.
#[derive(Clone, Copy, Debug)]
pub(super) enum PieceSpelling {
    Escaped,
    ByteLevel,
    AsIs,
    /// Bytes with escape sequences.
    Escapes,
}

impl PieceSpelling {
    /// Appends the bytes that a token contributes to a text.
    pub(super) fn append_piece(self, text: &[u8], kind: TokenKind, out: &mut Vec<u8>) {
        match (kind, self) {
            (TokenKind::Unused, Self::Escapes) => {}
            (_, Self::Escapes) => out.extend(longest_match::unescaped(text)),
            (TokenKind::Byte, _) => match named_byte(text) {
                Some(byte) => out.push(byte),
                None => out.extend_from_slice(text),
            },
            (_, Self::AsIs)
            | (TokenKind::Control | TokenKind::UserDefined | TokenKind::Unknown, _) => {
                out.extend_from_slice(text);
            }
            (TokenKind::Unused, _) => {}
            (TokenKind::Normal, Self::Escaped) => append_unescaped(text, out),
            (TokenKind::Normal, Self::ByteLevel) => {
                for chunk in text.utf8_chunks() {
                    byte_level::append_bytes(chunk.valid(), out);
                    out.extend_from_slice(chunk.invalid());
                }
            }
        }
    }
}

/// Appends a text with spaces instead of [`SPACE`].
fn append_unescaped(text: &[u8], out: &mut Vec<u8>) {
    let mut rest = text;
    while let [first, after @ ..] = rest {
        rest = match rest.strip_prefix(SPACE.as_bytes()) {
            Some(after) => {
                out.push(b' ');
                after
            }
            None => {
                out.push(*first);
                after
            }
        };
    }
}
