//! SentencePiece BPE: neighbouring pieces are joined in the order of the joined token's score.
//!
//! A piece that is no token at the end is written as its bytes (`<0xNN>` tokens). Works on text
//! whose spaces are already replaced by U+2581. Ties are resolved to the left.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::Error;
use super::chain::{Chain, NONE};
use super::vocab::Vocabulary;

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

/// Appends the tokens of `text` to `out`; `unknown` stands for bytes without a token.
pub(super) fn encode(
    vocab: &Vocabulary,
    unknown: Option<u32>,
    text: &str,
    out: &mut Vec<u32>,
) -> Result<(), Error> {
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

    for (_, piece) in chain.iter() {
        let bytes = &text.as_bytes()[piece];
        match vocab.id_of(bytes) {
            Some(id) => out.push(id),
            None => append_bytes(vocab, unknown, bytes, out)?,
        }
    }
    Ok(())
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

fn append_bytes(
    vocab: &Vocabulary,
    unknown: Option<u32>,
    bytes: &[u8],
    out: &mut Vec<u32>,
) -> Result<(), Error> {
    for &byte in bytes {
        let id = vocab
            .byte_token(byte)
            .or_else(|| vocab.id_of(&[byte]))
            .or(unknown)
            .ok_or(Error::NoTokenForByte(byte))?;
        out.push(id);
    }
    Ok(())
}
