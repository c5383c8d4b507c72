//! The bytes that a token contributes to a text.
//!
//! Tokens are spelled for matching, not for reading: with spaces as U+2581, or entirely in the byte-level alphabet.
//! Special tokens are spelled literally.

use super::SPACE;
use super::byte_level;
use super::longest;
use super::vocab::{Kind, named_byte};

/// How the texts of plain tokens spell spaces.
#[derive(Clone, Copy, Debug)]
pub(super) enum Spaces {
    Escaped,
    ByteLevel,
    AsIs,
    /// Bytes with escape sequences.
    Escapes,
}

impl Spaces {
    /// The bytes that a token contributes to a text.
    pub(super) fn piece(self, text: &[u8], kind: Kind) -> Vec<u8> {
        match (kind, self) {
            (Kind::Unused, Self::Escapes) => Vec::new(),
            (_, Self::Escapes) => longest::unescaped(text),
            (Kind::Byte, _) if named_byte(text).is_some() => named_byte(text).into_iter().collect(),
            (_, Self::AsIs) | (Kind::Control | Kind::UserDefined | Kind::Unknown, _) => {
                text.to_vec()
            }
            (Kind::Byte, _) => text.to_vec(),
            (Kind::Unused, _) => Vec::new(),
            (Kind::Normal, Self::Escaped) => unescape_spaces(text),
            (Kind::Normal, Self::ByteLevel) => {
                let mut piece = Vec::with_capacity(text.len());
                for chunk in text.utf8_chunks() {
                    byte_level::append_bytes(chunk.valid(), &mut piece);
                    piece.extend_from_slice(chunk.invalid());
                }
                piece
            }
        }
    }
}

fn unescape_spaces(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
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
    out
}
