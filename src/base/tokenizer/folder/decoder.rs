//! The texts of tokens by the `decoder` of a `tokenizer.json`, if it is not one that the spelling of the tokens implies.
//!
//! The spelling says that U+2581 is a space, or that characters stand for bytes (`super::super::pieces`). Other decoders join words
//! with spaces, take marks for the place in a word off, or replace texts. What a token contributes is found by decoding
//! it between two marks. Not here: tokens of bytes, which are not texts by themselves.
//!
//! Invariant: the texts of the tokens, joined, are what the library decodes, but for a space at the start or the end.

use serde_json::Value as Json;
use tokenizers::{Decoder as _, ModelWrapper};

use super::super::library_encoder::guarded;
use super::super::vocab::TokenKind;
use super::super::{SPACE, Tokenizer};
use super::tokenizer_json::TokenizerJson;
use super::tokens::FolderToken;
use crate::weights::StringArray;

/// What decoders do to the texts of tokens.
#[derive(Debug)]
pub(super) struct DecodedPieces {
    /// The text of each token between two others; `None` for one that is not a text by itself.
    texts: Vec<Option<String>>,
    drops_first_space: bool,
    drops_last_space: bool,
}

/// A token of no vocabulary, from the private use area.
const MARK: &str = "\u{10fffd}";

impl DecodedPieces {
    /// The texts of tokens; `None` if their spelling implies them, or the library cannot decode them.
    pub(super) fn of(parsed: &TokenizerJson, tokens: &[FolderToken]) -> Option<Self> {
        if is_implied(parsed) {
            return None;
        }
        let decoder = parsed.library.get_decoder();
        // What is decoded between two marks. Without a decoder the library joins tokens with spaces.
        let decode = |tokens: &[&str]| {
            let whole = match decoder {
                Some(decoder) => {
                    let tokens = tokens.iter().map(|token| (*token).to_owned()).collect();
                    guarded(|| decoder.decode(tokens)).ok()?
                }
                None => tokens.join(" "),
            };
            let (_, after) = whole.split_once(MARK)?;
            Some(after.rsplit_once(MARK)?.0.to_owned())
        };
        let separator = decode(&[MARK, MARK])?;
        let of_token = |token: &FolderToken| {
            let inner = decode(&[MARK, &token.text, MARK])?;
            let text = inner.strip_suffix(&separator).unwrap_or(&inner);
            let is_text =
                token.kind != TokenKind::Byte && !text.contains(char::REPLACEMENT_CHARACTER);
            is_text.then(|| text.to_owned())
        };
        // A suffix stands for the space after a word, unless the word is the last one.
        let has_suffix = |step: &Json| step["type"] == "BPEDecoder";
        Some(Self {
            texts: tokens.iter().map(of_token).collect(),
            drops_first_space: separator.starts_with(' '),
            drops_last_space: parsed.decoder.iter().any(has_suffix),
        })
    }

    /// Gives the texts to the tokenizer of the folder.
    pub(super) fn apply(self, tokenizer: Tokenizer) -> Tokenizer {
        let mut pieces = StringArray::default();
        for (id, text) in self.texts.iter().enumerate() {
            match text {
                Some(text) => pieces.push(text.as_bytes()),
                None => pieces.push(tokenizer.piece(id as u32)),
            }
        }
        Tokenizer {
            pieces,
            drops_first_space: self.drops_first_space,
            drops_last_space: self.drops_last_space,
            ..tokenizer
        }
    }
}

/// Whether the spelling of the tokens says what they contribute.
fn is_implied(parsed: &TokenizerJson) -> bool {
    let is_usual = |step: &Json| match step["type"].as_str() {
        Some("ByteLevel" | "Metaspace" | "ByteFallback" | "Fuse") => true,
        Some("Replace") => step["pattern"]["String"] == SPACE && step["content"] == " ",
        Some("Strip") => step["content"] == " " && step["stop"] == 0,
        _ => false,
    };
    let marks_words = matches!(parsed.library.get_model(), ModelWrapper::WordPiece(_));
    !marks_words && !parsed.decoder.is_empty() && parsed.decoder.iter().all(is_usual)
}
