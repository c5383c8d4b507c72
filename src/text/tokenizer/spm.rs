//! SentencePiece BPE: neighbouring pieces are joined in the order of the joined token's score.
//!
//! A piece that is no token at the end is written as its bytes (`<0xNN>` tokens). Spaces are
//! written as U+2581. Ties are resolved to the left.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::chain::{Chain, NONE};
use super::vocab::Vocabulary;
use super::{Error, SPACE};

/// A pair of neighbours that together are a token.
struct Candidate {
    score: f32,
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
    pub(super) adds_space_prefix: bool,
    /// Stands for bytes without a token.
    pub(super) unknown: Option<u32>,
}

impl Spm {
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
        for piece in join(vocab, &text).iter().map(|(_, piece)| piece) {
            let bytes = &text.as_bytes()[piece];
            match vocab.id_of(bytes) {
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

/// The pieces of a text once nothing can be joined any more.
fn join(vocab: &Vocabulary, text: &str) -> Chain {
    let mut chain = Chain::default();
    let mut start = 0;
    for c in text.chars() {
        chain.push(0, start, c.len_utf8() as u32);
        start += c.len_utf8() as u32;
    }

    let mut heap = BinaryHeap::new();
    for right in 1..chain.len() {
        heap.extend(candidate(vocab, text, &chain, right - 1, right));
    }
    while let Some(best) = heap.pop() {
        if !chain.is_pair(best.left, best.right, best.bytes) {
            continue;
        }
        chain.join(best.left, best.right, 0);
        let (prev, next) = chain.neighbours(best.left);
        heap.extend(candidate(vocab, text, &chain, prev, best.left));
        heap.extend(candidate(vocab, text, &chain, best.left, next));
    }
    chain
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
        left,
        right,
        bytes,
    })
}
