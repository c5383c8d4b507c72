//! SentencePiece's normalisation: replacements, joined white space, spaces as U+2581.
//!
//! Tokens that the algorithm itself finds in texts (user-defined symbols of a SentencePiece model) are left unchanged.
//! The steps run in SentencePiece's order: first white space is joined, and removed at both ends; then a space is added
//! at the start (or the end), even if the text starts with one.

use std::borrow::Cow;

use crate::weights::Metadata;

use super::prefix_trie::PrefixTrie;
use super::replacements::Replacements;
use super::vocab::Vocabulary;
use super::{Error, SPACE, keys};

/// The changes to a text before it is split into tokens.
#[derive(Debug)]
pub(super) struct Normaliser {
    replacements: Option<Replacements>,
    /// Tokens that are matched within texts, in the vocabulary's spelling.
    symbols: Option<PrefixTrie<u32>>,
    adds_space: bool,
    /// Whether the space is added after a text instead of before it.
    space_is_last: bool,
    merges_spaces: bool,
}

impl Normaliser {
    /// Reads the keys of a file; the flags are about white space.
    pub(super) fn read(
        metadata: &Metadata,
        vocab: &Vocabulary,
        adds_space: bool,
        merges_spaces: bool,
    ) -> Result<Self, Error> {
        let symbols = metadata.array(keys::SYMBOLS).map(|ids| {
            let ids = (0..ids.len()).filter_map(|at| u32::try_from(ids.get(at)?.as_i64()?).ok());
            let entry = |id| Some((escaped(vocab.text(id)?).into(), id));
            PrefixTrie::new(ids.filter_map(entry))
        });
        Ok(Self {
            replacements: Replacements::read(metadata)?,
            symbols,
            adds_space,
            space_is_last: metadata.bool(keys::SPACE_IS_LAST).unwrap_or(false),
            merges_spaces,
        })
    }

    /// Whether the vocabulary requires SentencePiece's own normalisation.
    pub(super) fn is_exact(&self) -> bool {
        self.symbols.is_some()
    }

    /// Whether texts are unchanged except for the added space.
    pub(super) fn keeps_bytes(&self) -> bool {
        self.replacements.is_none() && !self.merges_spaces
    }

    /// The symbol that a text starts with: its length and id.
    pub(super) fn symbol(&self, text: &[u8]) -> Option<(usize, u32)> {
        self.symbols.as_ref()?.longest(text)
    }

    /// The symbol that is the whole text.
    pub(super) fn symbol_of(&self, text: &[u8]) -> Option<u32> {
        let text = escaped(text);
        let (len, id) = self.symbols.as_ref()?.longest(&text)?;
        (len == text.len()).then_some(id)
    }

    fn has_symbols(&self) -> bool {
        self.symbols
            .as_ref()
            .is_some_and(|symbols| !symbols.is_empty())
    }

    /// The text in the vocabulary's spelling. `after_text`: the text continues another one.
    pub(super) fn apply(&self, text: &str, after_text: bool) -> String {
        let mut out = String::with_capacity(text.len() + text.len() / 2 + SPACE.len());
        let mut rest = text;
        if self.merges_spaces {
            while let Some((len, _)) = self.next(rest).filter(|(_, part)| part == " ") {
                rest = &rest[len..];
            }
        }
        if rest.is_empty() {
            return out;
        }
        let adds_space = self.adds_space && !after_text;
        if adds_space && !self.space_is_last {
            out.push_str(SPACE);
        }
        let mut after_space = self.merges_spaces;
        while let Some((len, part)) = self.next(rest) {
            let part = match after_space {
                true => part.trim_start_matches(' '),
                false => &part,
            };
            for (at, word) in part.split(' ').enumerate() {
                if at > 0 {
                    out.push_str(SPACE);
                }
                out.push_str(word);
            }
            if !part.is_empty() {
                after_space = self.merges_spaces && part.ends_with(' ');
            }
            rest = &rest[len..];
        }
        if self.merges_spaces {
            out.truncate(out.trim_end_matches(SPACE).len());
        }
        if adds_space && self.space_is_last {
            out.push_str(SPACE);
        }
        out
    }

    /// The next piece: its length in the text, and its replacement.
    fn next<'a>(&'a self, text: &'a str) -> Option<(usize, Cow<'a, str>)> {
        let first = text.chars().next()?;
        if let Some((len, _)) = self.symbol(text.as_bytes()) {
            return Some((len, text[..len].into()));
        }
        let replaced = self
            .replacements
            .as_ref()
            .and_then(|table| table.longest(text.as_bytes()))
            // A malformed table may end inside a character.
            .filter(|(len, _)| text.is_char_boundary(*len));
        if let Some((len, with)) = replaced {
            return Some((len, String::from_utf8_lossy(with)));
        }
        // Characters are taken one by one if a symbol, a replacement or a space may start with any of them.
        let is_plain = self.replacements.is_none() && !self.has_symbols() && first != ' ';
        let len = match is_plain {
            true => text.find(' ').unwrap_or(text.len()),
            false => first.len_utf8(),
        };
        Some((len, text[..len].into()))
    }
}

/// A text with its spaces in the vocabulary's spelling.
pub(super) fn escaped(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    for (at, word) in text.split(|byte| *byte == b' ').enumerate() {
        if at > 0 {
            out.extend_from_slice(SPACE.as_bytes());
        }
        out.extend_from_slice(word);
    }
    out
}
