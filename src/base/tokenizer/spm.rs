//! SentencePiece BPE: neighbouring pieces are joined, the pair with the best score of the joined token first.
//!
//! A piece that is not a token at the end is written as its bytes (`<0xNN>` tokens); without such tokens it is unknown,
//! and adjacent unknown pieces become one token. An unused token is split again into the pieces that it was joined
//! from, and a control token is never joined. Ties are resolved to the left.
//!
//! Invariant: a text may be split between two characters that are adjacent in no token, because nothing is ever joined
//! across them; in most vocabularies, every word starts at such a place.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use rustc_hash::{FxHashMap, FxHashSet};

use super::Error;
use super::chain::{Chain, NONE};
use super::normaliser::Normaliser;
use super::vocab::{TokenKind, Vocabulary};

/// The symbol of a piece that is never joined.
const FROZEN: u32 = NONE - 1;

/// A pair of neighbours that together are a token.
struct MergeCandidate {
    score: f32,
    id: u32,
    left: u32,
    right: u32,
    /// The length of both in bytes when the pair was found; if it has changed, the pair is outdated.
    bytes: u32,
}

impl Ord for MergeCandidate {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score
            .total_cmp(&other.score)
            .then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for MergeCandidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for MergeCandidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for MergeCandidate {}

#[derive(Debug)]
pub(super) struct Spm {
    normaliser: Normaliser,
    /// The token for bytes without a token.
    unknown: Option<u32>,
    /// Pairs of characters that are adjacent in some token.
    neighbours: FxHashSet<(char, char)>,
}

/// Buffers that are reused for each stretch of text.
#[derive(Default)]
struct Scratch {
    chain: Chain,
    heap: BinaryHeap<MergeCandidate>,
    /// The lengths of the left parts of unused tokens.
    parts: FxHashMap<Box<[u8]>, usize>,
}

impl Spm {
    pub(super) fn new(vocab: &Vocabulary, normaliser: Normaliser, unknown: Option<u32>) -> Self {
        let texts = vocab
            .iter()
            .filter_map(|(_, text, _)| std::str::from_utf8(text).ok());
        Self {
            normaliser,
            unknown,
            neighbours: texts
                .flat_map(|text| text.chars().zip(text.chars().skip(1)))
                .collect(),
        }
    }

    pub(super) fn keeps_bytes(&self) -> bool {
        self.normaliser.keeps_bytes()
    }

    pub(super) fn encode(
        &self,
        vocab: &Vocabulary,
        text: &str,
        after_text: bool,
        out: &mut Vec<u32>,
    ) -> Result<(), Error> {
        let text = self.normaliser.apply(text, after_text);
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

    /// Encodes a stretch of text. Nothing is joined across its ends.
    fn encode_stretch(
        &self,
        vocab: &Vocabulary,
        text: &str,
        scratch: &mut Scratch,
        out: &mut Vec<u32>,
    ) -> Result<(), Error> {
        scratch.join(vocab, text, &self.normaliser);
        for (symbol, piece) in scratch.chain.iter() {
            match symbol {
                FROZEN => out.extend(
                    self.normaliser
                        .symbol(&text.as_bytes()[piece])
                        .map(|(_, id)| id),
                ),
                id if id != NONE && scratch.parts.is_empty() => out.push(id),
                _ => self.append(vocab, &text.as_bytes()[piece], &scratch.parts, out)?,
            }
        }
        Ok(())
    }

    /// Appends the token of a piece, or its replacement.
    fn append(
        &self,
        vocab: &Vocabulary,
        piece: &[u8],
        parts: &FxHashMap<Box<[u8]>, usize>,
        out: &mut Vec<u32>,
    ) -> Result<(), Error> {
        let mut pieces = vec![piece];
        while let Some(piece) = pieces.pop() {
            if let Some((left, right)) = parts.get(piece).and_then(|at| piece.split_at_checked(*at))
            {
                pieces.extend([right, left]);
                continue;
            }
            match vocab.id_of(piece).filter(|&id| is_text(vocab, id)) {
                Some(id) => out.push(id),
                None => self.append_bytes(vocab, piece, out)?,
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
            let known = vocab.byte_token(byte).or_else(|| vocab.id_of(&[byte]));
            match known {
                Some(id) => out.push(id),
                None if out.last().copied() == self.unknown && self.unknown.is_some() => {}
                None => out.push(self.unknown.ok_or(Error::NoTokenForByte(byte))?),
            }
        }
        Ok(())
    }
}

impl Scratch {
    /// Joins the characters of a text until no more can be joined.
    fn join(&mut self, vocab: &Vocabulary, text: &str, normaliser: &Normaliser) {
        self.chain.clear();
        self.parts.clear();
        let mut end = 0;
        for (start, c) in text.char_indices() {
            // The other characters of a symbol.
            if start < end {
                continue;
            }
            let (symbol, len) = match normaliser.symbol(&text.as_bytes()[start..]) {
                Some((len, _)) => (FROZEN, len),
                None => (NONE, c.len_utf8()),
            };
            self.chain.push(symbol, start as u32, len as u32);
            end = start + len;
        }
        for right in 1..self.chain.len() {
            self.consider(vocab, text, right - 1, right);
        }
        while let Some(best) = self.heap.pop() {
            if !self.chain.is_pair(best.left, best.right, best.bytes) {
                continue;
            }
            self.chain.join(best.left, best.right, best.id);
            let (prev, next) = self.chain.neighbours(best.left);
            self.consider(vocab, text, prev, best.left);
            self.consider(vocab, text, best.left, next);
        }
    }

    /// Adds the pair of two neighbours if together they are a token.
    fn consider(&mut self, vocab: &Vocabulary, text: &str, left: u32, right: u32) {
        let chain = &self.chain;
        let ends = [left, right];
        if ends.contains(&NONE) || ends.iter().any(|&end| chain.symbol(end) == FROZEN) {
            return;
        }
        let span = chain.span(left, right);
        if span.len() > vocab.longest() {
            return;
        }
        let piece = &text.as_bytes()[span];
        let Some(id) = vocab.id_of(piece).filter(|&id| is_text(vocab, id)) else {
            return;
        };
        if vocab.kind(id) == Some(TokenKind::Unused) {
            let at = chain.span(left, left).len();
            self.parts.insert(piece.into(), at);
        }
        self.heap.push(MergeCandidate {
            score: vocab.score(id),
            id,
            left,
            right,
            bytes: piece.len() as u32,
        });
    }
}

/// Whether characters may be joined to this token.
fn is_text(vocab: &Vocabulary, id: u32) -> bool {
    matches!(
        vocab.kind(id),
        Some(TokenKind::Normal | TokenKind::UserDefined | TokenKind::Unused)
    )
}
