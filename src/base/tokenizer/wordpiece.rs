//! WordPiece: words are split into the longest tokens, from left to right.
//!
//! A text is normalised first: accents stripped, letters lower-cased, control characters dropped. White space separates
//! words; punctuation and Chinese characters are words of their own. A word starts with U+2581 in the vocabulary. A
//! word that cannot be split completely is one unknown token.

use regex_automata::meta::Regex;
use unicode_normalization::UnicodeNormalization;

use super::splitter::compile;
use super::vocab::Vocabulary;
use super::{Error, SPACE};

#[derive(Clone, Copy, Debug)]
pub(super) struct WordPieceNormaliser {
    pub(super) lowercase: bool,
    pub(super) strips_accents: bool,
}

#[derive(Debug)]
pub(super) struct WordPiece {
    normaliser: WordPieceNormaliser,
    /// The token for words without tokens.
    unknown: Option<u32>,
    /// A pattern that determines the class of a character, with alternatives in the order of `Class`.
    classes: Regex,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CharClass {
    Mark,
    Punctuation,
    Control,
    Symbol,
    Other,
}

const PATTERNS: &[&str] = &[r"\p{M}", r"\p{P}", r"[\p{Cc}\p{Cf}\p{Co}]", r"\p{S}"];

impl WordPiece {
    pub(super) fn new(
        normaliser: WordPieceNormaliser,
        unknown: Option<u32>,
    ) -> Result<Self, Error> {
        Ok(Self {
            normaliser,
            unknown,
            classes: compile(PATTERNS)?,
        })
    }

    pub(super) fn encode(
        &self,
        vocab: &Vocabulary,
        text: &str,
        out: &mut Vec<u32>,
    ) -> Result<(), Error> {
        for word in self.words(text) {
            let before = out.len();
            if !cut(vocab, &format!("{SPACE}{word}"), out) {
                out.truncate(before);
            }
            if out.len() == before {
                out.push(self.unknown.ok_or(Error::NoUnknownToken)?);
            }
        }
        Ok(())
    }

    fn class(&self, c: char) -> CharClass {
        let mut buffer = [0; 4];
        let found = self.classes.find(&*c.encode_utf8(&mut buffer));
        match found.map(|found| found.pattern().as_usize()) {
            Some(0) => CharClass::Mark,
            Some(1) => CharClass::Punctuation,
            Some(2) => CharClass::Control,
            Some(3) => CharClass::Symbol,
            _ => CharClass::Other,
        }
    }

    fn words(&self, text: &str) -> Vec<String> {
        let mut words = Vec::new();
        let mut word = String::new();
        for c in text.chars() {
            // The first character of a decomposition is kept: accents follow it.
            let c = match self.normaliser.strips_accents {
                true => std::iter::once(c).nfd().next().unwrap_or(c),
                false => c,
            };
            if c.is_whitespace() {
                words.push(std::mem::take(&mut word));
                continue;
            }
            let class = self.class(c);
            let is_dropped = matches!(c, '\0' | char::REPLACEMENT_CHARACTER)
                || class == CharClass::Control
                || (self.normaliser.strips_accents && class == CharClass::Mark);
            if is_dropped {
                continue;
            }
            let small = match self.normaliser.lowercase {
                true => c.to_lowercase().next().unwrap_or(c),
                false => c,
            };
            let stands_alone = class == CharClass::Punctuation
                || (c.is_ascii() && class == CharClass::Symbol)
                || is_chinese(c);
            if stands_alone {
                words.push(std::mem::take(&mut word));
                words.push(small.to_string());
            } else {
                word.push(small);
            }
        }
        words.push(word);
        words.retain(|word| !word.is_empty());
        words
    }
}

/// Splits a word into the longest tokens; false if some part of it is not a token.
fn cut(vocab: &Vocabulary, word: &str, out: &mut Vec<u32>) -> bool {
    let bytes = word.as_bytes();
    let mut start = 0;
    while start < bytes.len() {
        let longest = bytes.len().min(start + vocab.longest());
        let found = (start + 1..=longest)
            .rev()
            .filter(|end| word.is_char_boundary(*end))
            .find_map(|end| Some((vocab.id_of(&bytes[start..end])?, end)));
        let Some((id, end)) = found else {
            return false;
        };
        out.push(id);
        start = end;
    }
    true
}

/// Ideographs, as the original WordPiece tokenizer lists them.
fn is_chinese(c: char) -> bool {
    matches!(
        u32::from(c),
        0x4E00..=0x9FFF
            | 0x3400..=0x4DBF
            | 0x20000..=0x2A6DF
            | 0x2A700..=0x2B73F
            | 0x2B740..=0x2B81F
            | 0x2B920..=0x2CEAF
            | 0xF900..=0xFAFF
            | 0x2F800..=0x2FA1F
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_normalised_and_separated() {
        let normaliser = WordPieceNormaliser {
            lowercase: true,
            strips_accents: true,
        };
        let pieces = WordPiece::new(normaliser, None).expect("the patterns compile");
        assert_eq!(
            pieces.words(" Déjà-vu,\u{200b}日本 x\u{301}!\n$5 "),
            ["deja", "-", "vu", ",", "日", "本", "x", "!", "$", "5"]
        );
        let as_is = WordPieceNormaliser {
            lowercase: false,
            strips_accents: false,
        };
        let pieces = WordPiece::new(as_is, None).expect("the patterns compile");
        assert_eq!(pieces.words("Déjà VU"), ["Déjà", "VU"]);
    }
}
