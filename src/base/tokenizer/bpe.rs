//! Byte-pair encoding: neighbouring symbols are joined in the order of a ranked list of merges.
//!
//! Symbols are numbers: first the tokens, then texts that occur only in merges. Byte-level vocabularies start from
//! bytes, others from characters. Ties are resolved to the left. The text was split into words before (`pretokenizer`);
//! no merge crosses a word.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rustc_hash::FxHashMap;

use crate::weights::StringArray;

use super::chain::{Chain, NONE};
use super::pretokenizer::{PreTokenizer, VocabularySpelling};
use super::splitter::Splitter;
use super::text_index::TextIndex;
use super::vocab::Vocabulary;
use super::{Error, SPACE, byte_level};

/// A pair of neighbours that may be joined: its rank, left and right index, its length in bytes when it was found, and
/// the symbol it becomes. The lowest one is joined first.
type MergeCandidate = Reverse<(u32, u32, u32, u32, u32)>;

#[derive(Debug)]
pub(super) struct Bpe {
    merges: Merges,
    splitter: Splitter,
    pre: &'static PreTokenizer,
}

/// The merges of a vocabulary, by the numbers of their symbols.
#[derive(Debug)]
struct Merges {
    spelling: VocabularySpelling,
    /// Number of tokens: symbols from this number on are not tokens.
    tokens: u32,
    /// The bytes of each symbol; none for a token that spells no bytes.
    symbols: TextIndex,
    /// The symbol of each byte; [`NONE`] if it has none.
    bytes: [u32; 256],
    /// (left, right) to (rank, joined).
    joined: FxHashMap<(u32, u32), (u32, u32)>,
}

/// Buffers that are reused for each word.
#[derive(Default)]
struct Scratch {
    chain: Chain,
    heap: BinaryHeap<MergeCandidate>,
}

impl Bpe {
    /// Prepares the pre-tokenizer `pre` and merges of the form `left right`.
    pub(super) fn new(
        vocab: &Vocabulary,
        merges: &StringArray,
        pre: &'static PreTokenizer,
    ) -> Result<Self, Error> {
        Ok(Self {
            merges: Merges::new(vocab, merges, pre.spelling),
            splitter: Splitter::new(&pre.steps)?,
            pre,
        })
    }

    pub(super) fn encode(&self, vocab: &Vocabulary, text: &str, out: &mut Vec<u32>) {
        let mut text = match self.pre.escapes_spaces {
            true => Cow::Owned(text.replace(' ', SPACE)),
            false => Cow::Borrowed(text),
        };
        if self.pre.prefixes_lines {
            text = Cow::Owned(prefixed(&text));
        }
        let mut scratch = Scratch::default();
        for word in self.splitter.split(&text) {
            let word = &text[word];
            if self.pre.drops_white_space && word.trim().is_empty() {
                continue;
            }
            match self.merges.token(word).filter(|_| self.keeps(word)) {
                Some(id) => out.push(id),
                None => self.merges.encode(vocab, word, &mut scratch, out),
            }
        }
    }

    /// Whether a word that is a token is kept whole.
    fn keeps(&self, word: &str) -> bool {
        self.pre.ignore_merges
            || self.pre.keeps_line_feeds && word.bytes().all(|byte| byte == b'\n')
    }
}

/// The text with an escaped space at the start of every line that lacks one.
fn prefixed(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + SPACE.len());
    for line in text.split_inclusive('\n') {
        if !line.starts_with(['\n', '\u{2581}']) {
            out.push_str(SPACE);
        }
        out.push_str(line);
    }
    out
}

impl Merges {
    /// Reads merges of the form `left right`. Merges that can never apply are left out.
    fn new(vocab: &Vocabulary, merges: &StringArray, spelling: VocabularySpelling) -> Self {
        let mut this = Self {
            spelling,
            tokens: vocab.len() as u32,
            symbols: TextIndex::with_capacity(vocab.len()),
            bytes: [NONE; 256],
            joined: FxHashMap::default(),
        };
        this.joined.reserve(merges.len());
        let mut raw = Vec::new();
        for (_, text, _) in vocab.iter() {
            raw.clear();
            // A token that spells no bytes is no symbol: no word and no part of a merge is empty.
            if !spell(text, spelling, &mut raw) {
                raw.clear();
            }
            this.symbols.push(&raw);
        }
        for (rank, merge) in (0..).zip(merges.iter()) {
            this.add(rank, merge, &mut raw);
        }
        for byte in 0..=u8::MAX {
            if let Some(symbol) = this.symbols.find(&[byte]) {
                this.bytes[usize::from(byte)] = symbol;
            }
        }
        this
    }

    /// Adds a merge. `raw` is a buffer.
    fn add(&mut self, rank: u32, merge: &[u8], raw: &mut Vec<u8>) {
        // The left part is never empty, but may itself start with a space.
        let Some(space) = merge.iter().skip(1).position(|&b| b == b' ') else {
            return;
        };
        let (left, right) = (&merge[..=space], &merge[space + 2..]);
        raw.clear();
        if !spell(left, self.spelling, raw) {
            return;
        }
        let len = raw.len();
        if right.is_empty() || !spell(right, self.spelling, raw) {
            return;
        }
        let (left, right) = raw.split_at(len);
        let pair = (self.symbols.number(left), self.symbols.number(right));
        let whole = self.symbols.number(raw);
        // Of several merges of the same pair, the first one counts.
        self.joined.entry(pair).or_insert((rank, whole));
    }

    fn token(&self, word: &str) -> Option<u32> {
        let symbol = self.symbols.find(word.as_bytes())?;
        (symbol < self.tokens).then_some(symbol)
    }

    fn encode(&self, vocab: &Vocabulary, word: &str, scratch: &mut Scratch, out: &mut Vec<u32>) {
        let Scratch { chain, heap } = scratch;
        chain.clear();
        self.start(word, chain);
        for right in 1..chain.len() {
            self.find(chain, right - 1, right, heap);
        }
        while let Some(Reverse((_, left, right, bytes, joined))) = heap.pop() {
            if !chain.is_pair(left, right, bytes) {
                continue;
            }
            chain.join(left, right, joined);
            let (prev, next) = chain.neighbours(left);
            self.find(chain, prev, left, heap);
            self.find(chain, left, next, heap);
        }
        for (symbol, piece) in chain.iter() {
            if symbol < self.tokens {
                out.push(symbol);
            } else {
                self.append_bytes(vocab, &word.as_bytes()[piece], out);
            }
        }
    }

    fn start(&self, word: &str, chain: &mut Chain) {
        if self.spelling == VocabularySpelling::ByteLevel {
            for (start, byte) in (0..).zip(word.bytes()) {
                chain.push(self.bytes[usize::from(byte)], start, 1);
            }
            return;
        }
        for (start, c) in word.char_indices() {
            let symbol = self.symbols.find(c.encode_utf8(&mut [0; 4]).as_bytes());
            chain.push(symbol.unwrap_or(NONE), start as u32, c.len_utf8() as u32);
        }
    }

    /// Adds two neighbours to the heap if a merge joins them.
    fn find(&self, chain: &Chain, left: u32, right: u32, heap: &mut BinaryHeap<MergeCandidate>) {
        if left == NONE || right == NONE {
            return;
        }
        let pair = (chain.symbol(left), chain.symbol(right));
        if let Some(&(rank, joined)) = self.joined.get(&pair) {
            let bytes = chain.span(left, right).len() as u32;
            heap.push(Reverse((rank, left, right, bytes, joined)));
        }
    }

    /// Appends a piece that is not a token as its bytes. Bytes without a token are left out.
    fn append_bytes(&self, vocab: &Vocabulary, bytes: &[u8], out: &mut Vec<u32>) {
        match self.spelling {
            VocabularySpelling::Plain => {
                out.extend(bytes.iter().filter_map(|&b| vocab.byte_token(b)))
            }
            VocabularySpelling::ByteLevel => {
                let symbols = bytes.iter().map(|&b| self.bytes[usize::from(b)]);
                out.extend(symbols.filter(|&symbol| symbol < self.tokens));
            }
        }
    }
}

/// Appends the bytes that a token or a part of a merge represents. Returns false if it represents none; part of it may
/// be appended then.
fn spell(text: &[u8], spelling: VocabularySpelling, out: &mut Vec<u8>) -> bool {
    match spelling {
        VocabularySpelling::Plain => {
            out.extend_from_slice(text);
            true
        }
        VocabularySpelling::ByteLevel => {
            let spelled = |text| byte_level::append_spelled(text, out).is_empty();
            std::str::from_utf8(text).is_ok_and(spelled)
        }
    }
}
