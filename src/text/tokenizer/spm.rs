//! SentencePiece BPE: neighbouring pieces are joined in the order of the joined token's score.
//!
//! A piece that is no token at the end is written as its bytes (`<0xNN>` tokens). Spaces are
//! written as U+2581. Ties are resolved to the left.
//!
//! Invariant: a text may be cut between two characters that no token holds side by side, because
//! nothing is ever joined across; in most vocabularies that is before every word.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use rustc_hash::FxHashSet;

use super::chain::{Chain, NONE};
use super::vocab::Vocabulary;
use super::{Error, SPACE};

/// A pair of neighbours that together are a token.
struct Candidate {
    score: f32,
    id: u32,
    left: u32,
    right: u32,
    /// Length of both in bytes when the pair was found: another length means it is outdated.
    bytes: u32,
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score
            .total_cmp(&other.score)
            .then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Candidate {}

/// What the algorithm needs besides the vocabulary.
#[derive(Debug)]
pub(super) struct Spm {
    /// A text begins with a space, except right after another text.
    adds_space_prefix: bool,
    /// Stands for bytes without a token.
    unknown: Option<u32>,
    /// Characters that stand side by side in a token.
    neighbours: FxHashSet<(char, char)>,
}

/// Buffers kept from stretch to stretch.
#[derive(Default)]
struct Scratch {
    chain: Chain,
    heap: BinaryHeap<Candidate>,
}

impl Spm {
    pub(super) fn new(vocab: &Vocabulary, adds_space_prefix: bool, unknown: Option<u32>) -> Self {
        let texts = vocab
            .iter()
            .filter_map(|(_, text, _)| std::str::from_utf8(text).ok());
        Self {
            adds_space_prefix,
            unknown,
            neighbours: texts
                .flat_map(|text| text.chars().zip(text.chars().skip(1)))
                .collect(),
        }
    }

    /// Appends the tokens of a text without special tokens to `out`.
    pub(super) fn encode(
        &self,
        vocab: &Vocabulary,
        text: &str,
        after_text: bool,
        out: &mut Vec<u32>,
    ) -> Result<(), Error> {
        let prefix = match self.adds_space_prefix {
            true if !after_text => SPACE,
            _ => "",
        };
        let text = format!("{prefix}{}", text.replace(' ', SPACE));
        let mut scratch = Scratch::default();
        let (mut start, mut before) = (0, None);
        for (at, c) in text.char_indices() {
            if before.is_some_and(|before| !self.neighbours.contains(&(before, c))) {
                self.encode_stretch(vocab, &text[start..at], &mut scratch, out)?;
                start = at;
            }
            before = Some(c);
        }
        self.encode_stretch(vocab, &text[start..], &mut scratch, out)
    }

    /// Encodes a stretch of text whose ends nothing is joined across.
    fn encode_stretch(
        &self,
        vocab: &Vocabulary,
        text: &str,
        scratch: &mut Scratch,
        out: &mut Vec<u32>,
    ) -> Result<(), Error> {
        scratch.join(vocab, text);
        for (symbol, piece) in scratch.chain.iter() {
            let bytes = &text.as_bytes()[piece];
            match Some(symbol)
                .filter(|&id| id != NONE)
                .or_else(|| vocab.id_of(bytes))
            {
                Some(id) => out.push(id),
                None => self.append_bytes(vocab, bytes, out)?,
            }
        }
        Ok(())
    }

    fn append_bytes(
        &self,
        vocab: &Vocabulary,
        bytes: &[u8],
        out: &mut Vec<u32>,
    ) -> Result<(), Error> {
        for &byte in bytes {
            let id = vocab
                .byte_token(byte)
                .or_else(|| vocab.id_of(&[byte]))
                .or(self.unknown)
                .ok_or(Error::NoTokenForByte(byte))?;
            out.push(id);
        }
        Ok(())
    }
}

impl Scratch {
    /// Joins the characters of a text until nothing can be joined any more. A piece that was
    /// joined has its token as its symbol, a single character has none.
    fn join(&mut self, vocab: &Vocabulary, text: &str) {
        let Self { chain, heap } = self;
        chain.clear();
        for (start, c) in text.char_indices() {
            chain.push(NONE, start as u32, c.len_utf8() as u32);
        }
        for right in 1..chain.len() {
            heap.extend(candidate(vocab, text, chain, right - 1, right));
        }
        while let Some(best) = heap.pop() {
            if !chain.is_pair(best.left, best.right, best.bytes) {
                continue;
            }
            chain.join(best.left, best.right, best.id);
            let (prev, next) = chain.neighbours(best.left);
            heap.extend(candidate(vocab, text, chain, prev, best.left));
            heap.extend(candidate(vocab, text, chain, best.left, next));
        }
    }
}

fn candidate(
    vocab: &Vocabulary,
    text: &str,
    chain: &Chain,
    left: u32,
    right: u32,
) -> Option<Candidate> {
    if left == NONE || right == NONE {
        return None;
    }
    let span = chain.span(left, right);
    if span.len() > vocab.longest() {
        return None;
    }
    let bytes = span.len() as u32;
    let id = vocab.id_of(&text.as_bytes()[span])?;
    Some(Candidate {
        score: vocab.score(id),
        id,
        left,
        right,
        bytes,
    })
}
