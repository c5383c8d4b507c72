//! Texts with numbers, found by either: the tokens of a vocabulary, the symbols of a byte-pair encoding.
//!
//! A vocabulary has hundreds of thousands of texts, so each is stored once, in one allocation with the others; the
//! index holds numbers only. Invariant: every number in the index is below the number of texts.

use std::hash::BuildHasher;

use hashbrown::HashTable;
use rustc_hash::FxBuildHasher;

use crate::weights::StringArray;

/// Texts in the order of their numbers, which start at 0.
#[derive(Debug, Default)]
pub(super) struct TextIndex {
    texts: StringArray,
    /// The number of each text, by the hash of the text.
    index: HashTable<u32>,
}

impl TextIndex {
    /// No texts yet, with space in the index for `n`.
    pub(super) fn with_capacity(n: usize) -> Self {
        Self {
            texts: StringArray::default(),
            index: HashTable::with_capacity(n),
        }
    }

    /// Appends a text and returns its number, which the text finds from now on, even if it occurred before.
    pub(super) fn push(&mut self, text: &[u8]) -> u32 {
        let number = self.texts.len() as u32;
        self.texts.push(text);
        let texts = &self.texts;
        let is_same = |other: &u32| texts.get(*other as usize) == Some(text);
        let rehash = |other: &u32| texts.get(*other as usize).map_or(0, hash);
        let entry = self.index.entry(hash(text), is_same, rehash);
        entry.insert(number);
        number
    }

    /// The number of a text, which is appended if it is new.
    pub(super) fn number(&mut self, text: &[u8]) -> u32 {
        self.find(text).unwrap_or_else(|| self.push(text))
    }

    /// The number of a text. Of several that are the same, the last one.
    #[inline]
    pub(super) fn find(&self, text: &[u8]) -> Option<u32> {
        let is_same = |other: &u32| self.texts.get(*other as usize) == Some(text);
        self.index.find(hash(text), is_same).copied()
    }

    pub(super) fn get(&self, number: u32) -> Option<&[u8]> {
        self.texts.get(number as usize)
    }

    pub(super) fn len(&self) -> usize {
        self.texts.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.texts.iter()
    }
}

#[inline]
fn hash(text: &[u8]) -> u64 {
    FxBuildHasher.hash_one(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_finds_the_last_of_its_numbers() {
        let mut texts = TextIndex::default();
        for n in 0..1000_u32 {
            assert_eq!(texts.push(format!("text {}", n % 700).as_bytes()), n);
        }
        for n in 0..700_u32 {
            let last = if n < 300 { n + 700 } else { n };
            assert_eq!(texts.find(format!("text {n}").as_bytes()), Some(last));
        }
        assert_eq!(texts.get(999), Some(&b"text 299"[..]));
        assert_eq!(texts.find(b"text"), None);
        assert_eq!(texts.number(b"text 1"), 701);
        assert_eq!(texts.number(b""), 1000);
        assert_eq!(texts.len(), 1001);
    }
}
