//! The tokens of a vocabulary: their texts, kinds and scores, read from a file's metadata.
//!
//! Nothing here tokenizes. Invariant: texts, kinds and scores have the same length.

use std::borrow::Cow;

use crate::weights::{Array, Metadata, StringArray};

use super::Error;
use super::text_index::TextIndex;

/// The kind of a token, as the file declares it.
#[derive(Clone, Copy, Debug, serde::Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(super) enum TokenKind {
    Normal,
    Unknown,
    /// A token that is matched only if special tokens are requested.
    Control,
    /// A token that is matched in every text, before the tokenizer proper.
    UserDefined,
    /// A single byte, written `<0xNN>`.
    Byte,
    /// An unused token, or one of an unknown kind; it matches no text.
    Unused,
}

impl TokenKind {
    fn from_code(code: Option<i64>) -> Self {
        code.and_then(Self::known).unwrap_or(Self::Unused)
    }

    /// The kind of a known `token_type`.
    pub(super) fn known(code: i64) -> Option<Self> {
        Some(match code {
            1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => return None,
        })
    }

    /// The `token_type` of a kind.
    pub(super) fn code(self) -> i32 {
        match self {
            Self::Normal => 1,
            Self::Unknown => 2,
            Self::Control => 3,
            Self::UserDefined => 4,
            Self::Unused => 5,
            Self::Byte => 6,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Vocabulary {
    texts: TextIndex,
    kinds: Vec<TokenKind>,
    scores: Vec<f32>,
    longest: usize,
}

impl Vocabulary {
    /// Reads `tokenizer.ggml.tokens`, `token_type` and `scores`.
    pub(super) fn read(metadata: &Metadata) -> Result<Self, Error> {
        const TOKENS: &str = "tokenizer.ggml.tokens";
        let tokens = required_strings(metadata, TOKENS)?;
        if tokens.is_empty() {
            return Err(Error::EmptyVocabulary);
        }
        if u32::try_from(tokens.len()).is_err() {
            return Err(Error::TooManyTokens(tokens.len()));
        }

        let types = companion(metadata, "tokenizer.ggml.token_type", tokens.len())?;
        let scores = companion(metadata, "tokenizer.ggml.scores", tokens.len())?;
        let mut vocab = Self {
            texts: TextIndex::with_capacity(tokens.len()),
            ..Self::default()
        };
        for (id, text) in tokens.iter().enumerate() {
            let kind = types.map_or(TokenKind::Normal, |types| {
                TokenKind::from_code(types.get(id).and_then(|v| v.as_i64()))
            });
            let score = scores
                .and_then(|scores| scores.get(id)?.as_f64())
                .unwrap_or(0.0);
            let text = match text {
                // An empty text would match everywhere.
                b"" => Cow::Owned(format!("[EMPTY_{id}]").into_bytes()),
                text => Cow::Borrowed(text),
            };
            vocab.push(&text, kind, score as f32);
        }
        Ok(vocab)
    }

    fn push(&mut self, text: &[u8], kind: TokenKind, score: f32) {
        self.longest = self.longest.max(text.len());
        self.texts.push(text);
        self.kinds.push(kind);
        // Adding zero turns -0 into 0, because `total_cmp` orders -0 below 0.
        self.scores.push(score + 0.0);
    }

    pub(super) fn len(&self) -> usize {
        self.texts.len()
    }

    /// Length of the longest text in bytes.
    pub(super) fn longest(&self) -> usize {
        self.longest
    }

    pub(super) fn text(&self, id: u32) -> Option<&[u8]> {
        self.texts.get(id)
    }

    #[inline]
    pub(super) fn kind(&self, id: u32) -> Option<TokenKind> {
        self.kinds.get(id as usize).copied()
    }

    pub(super) fn set_kind(&mut self, id: u32, kind: TokenKind) {
        if let Some(slot) = self.kinds.get_mut(id as usize) {
            *slot = kind;
        }
    }

    #[inline]
    pub(super) fn score(&self, id: u32) -> f32 {
        self.scores.get(id as usize).copied().unwrap_or(0.0)
    }

    /// The token with a text. Of several with the same text, the last one.
    #[inline]
    pub(super) fn id_of(&self, text: &[u8]) -> Option<u32> {
        self.texts.find(text)
    }

    /// Ids, texts and kinds in the order of the file.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &[u8], TokenKind)> {
        let kinds = self.kinds.iter().copied();
        (0..)
            .zip(self.texts.iter().zip(kinds))
            .map(|(id, (text, kind))| (id, text, kind))
    }

    /// The token for one byte: `<0xNN>` with upper-case digits.
    pub(super) fn byte_token(&self, byte: u8) -> Option<u32> {
        const HEX: &[u8; 16] = b"0123456789ABCDEF";
        let (high, low) = (HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]);
        self.id_of(&[b'<', b'0', b'x', high, low, b'>'])
    }
}

/// The byte that a text of the form `<0xNN>` names: exactly two hexadecimal digits.
pub(super) fn named_byte(text: &[u8]) -> Option<u8> {
    let [b'<', b'0', b'x', high, low, b'>'] = *text else {
        return None;
    };
    let digit = |c: u8| char::from(c).to_digit(16);
    Some((digit(high)? * 16 + digit(low)?) as u8)
}

pub(super) fn required_strings<'a>(
    metadata: &'a Metadata,
    key: &'static str,
) -> Result<&'a StringArray, Error> {
    let value = metadata.get(key).ok_or(Error::MissingKey(key))?;
    value
        .as_array()
        .and_then(Array::as_strings)
        .ok_or(Error::WrongType {
            key,
            found: value.type_name(),
            expected: "an array of strings",
        })
}

/// An optional array of numbers with at least one entry per token.
fn companion<'a>(
    metadata: &'a Metadata,
    key: &'static str,
    tokens: usize,
) -> Result<Option<&'a Array>, Error> {
    let Some(value) = metadata.get(key) else {
        return Ok(None);
    };
    let array = value
        .as_array()
        .filter(|array| !matches!(array, Array::Str(_) | Array::Array(_) | Array::Bool(_)))
        .ok_or(Error::WrongType {
            key,
            found: value.type_name(),
            expected: "an array of numbers",
        })?;
    if array.len() < tokens {
        return Err(Error::ShortArray {
            key,
            found: array.len(),
            expected: tokens,
        });
    }
    Ok(Some(array))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_byte_has_exactly_two_hexadecimal_digits() {
        assert_eq!(named_byte(b"<0x0A>"), Some(10));
        assert_eq!(named_byte(b"<0xff>"), Some(255));
        for text in [
            "<0x-1>", "<0x+1>", "<0x1>", "<0x001>", "<0x 1>", "<0xG0>", "",
        ] {
            assert_eq!(named_byte(text.as_bytes()), None, "{text}");
        }
    }
}
