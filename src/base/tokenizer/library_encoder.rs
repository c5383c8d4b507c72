//! Encoding by the `tokenizers` library, for folders that none of the algorithms here supports.
//!
//! The library splits at special tokens itself, so `specials` is not used with it. Pieces and roles come from the
//! metadata, as for every other vocabulary. Not here: reading the folder.
//!
//! Invariant: a panic of the library, which indexes with numbers from its file, becomes an error.

use crate::util::panics::caught;

use super::Error;
use super::pieces::PieceSpelling;

/// A vocabulary that the library encodes with.
#[derive(Debug)]
pub(crate) struct LibraryEncoder {
    /// The library, configured to recognise all special tokens.
    whole: tokenizers::Tokenizer,
    /// The library, configured to treat control tokens as text.
    literal: tokenizers::Tokenizer,
    /// The tokens that a text starts and ends with, if special tokens are requested.
    frame: (Vec<u32>, Vec<u32>),
    pub(super) spaces: PieceSpelling,
    /// Whether encoding preserves every byte of a text.
    pub(super) keeps_bytes: bool,
}

impl LibraryEncoder {
    pub(super) fn new(
        whole: tokenizers::Tokenizer,
        frame: (Vec<u32>, Vec<u32>),
        spaces: PieceSpelling,
        keeps_bytes: bool,
    ) -> Self {
        let mut literal = whole.clone();
        literal.set_encode_special_tokens(true);
        Self {
            whole,
            literal,
            frame,
            spaces,
            keeps_bytes,
        }
    }

    pub(super) fn encode(
        &self,
        text: &str,
        add_special: bool,
        parse_special: bool,
    ) -> Result<Vec<u32>, Error> {
        let library = if parse_special {
            &self.whole
        } else {
            &self.literal
        };
        let mut ids = ids(library, text).map_err(Error::External)?;
        if add_special {
            ids.splice(0..0, self.frame.0.iter().copied());
            ids.extend_from_slice(&self.frame.1);
        }
        Ok(ids)
    }

    /// The token that a text starts with, if special tokens are requested.
    pub(super) fn first(&self) -> Option<u32> {
        self.frame.0.first().copied()
    }

    /// The token that a text ends with, if special tokens are requested.
    pub(super) fn last(&self) -> Option<u32> {
        self.frame.1.last().copied()
    }
}

/// The tokens of a text. Special tokens are recognised, and none are added.
pub(super) fn ids(library: &tokenizers::Tokenizer, text: &str) -> Result<Vec<u32>, String> {
    guarded(|| Ok(library.encode_fast(text, false)?.get_ids().to_vec()))
}

/// Calls the library; errors and panics become messages.
pub(super) fn guarded<T>(call: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    match caught(call) {
        Some(result) => result.map_err(|error| error.to_string()),
        None => Err("the library of the format panicked over it".to_owned()),
    }
}
