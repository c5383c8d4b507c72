//! Unigram language model (Kudo 2018): of all ways to cut a text into tokens the one whose scores
//! sum highest, found from left to right (Viterbi).
//!
//! A character without a token costs more than any token and becomes an unknown one; unknown ones
//! in a row are one. The text is normalised first, by a table of replacements that the file may
//! carry; spaces are written as U+2581.

use crate::weights::{Array, Metadata};

use super::vocab::{Kind, Vocabulary};
use super::{Error, SPACE};

const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";

/// How much less an unknown character scores than the least likely token.
const UNKNOWN_PENALTY: f64 = 10.0;

/// What the algorithm needs besides the vocabulary.
#[derive(Debug)]
pub(super) struct Unigram {
    /// Texts of the tokens that a text may be cut into, in order, with their ids and scores.
    tokens: Vec<(Box<[u8]>, u32, f64)>,
    replacements: Option<Replacements>,
    adds_space_prefix: bool,
    merges_spaces: bool,
    unknown: u32,
    unknown_score: f64,
}

impl Unigram {
    pub(super) fn new(
        metadata: &Metadata,
        vocab: &Vocabulary,
        unknown: Option<u32>,
        adds_space_prefix: bool,
        merges_spaces: bool,
    ) -> Result<Self, Error> {
        let mut tokens: Vec<(Box<[u8]>, u32, f64)> = vocab
            .iter()
            .filter_map(|(id, text, kind)| {
                let score = match kind {
                    // As likely as certain, so that they are picked.
                    Kind::UserDefined => 0.0,
                    Kind::Normal | Kind::Unused => f64::from(vocab.score(id)),
                    _ => return None,
                };
                Some((text.into(), id, score))
            })
            .collect();
        // Of two tokens with one text the later one counts.
        tokens.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
        tokens.dedup_by(|later, first| later.0 == first.0);
        let least = vocab
            .iter()
            .filter(|(_, _, kind)| *kind == Kind::Normal)
            .map(|(id, _, _)| f64::from(vocab.score(id)))
            .fold(f64::from(f32::MAX), f64::min);
        Ok(Self {
            tokens,
            replacements: Replacements::read(metadata)?,
            adds_space_prefix,
            merges_spaces,
            unknown: unknown.ok_or(Error::NoUnknownToken)?,
            unknown_score: least - UNKNOWN_PENALTY,
        })
    }

    /// Appends the tokens of a text without special tokens to `out`.
    pub(super) fn encode(&self, text: &str, out: &mut Vec<u32>) {
        let text = self.normalise(text);
        /// The best way to the end of a token: the token, where it starts, the sum of scores.
        #[derive(Clone, Copy)]
        struct Best {
            id: u32,
            start: usize,
            score: f64,
        }
        let unreached = Best {
            id: self.unknown,
            start: 0,
            score: f64::NEG_INFINITY,
        };
        let mut best = vec![unreached; text.len() + 1];
        best[0].score = 0.0;
        let mut at = 0;
        while at < text.len() {
            let end_of_char = (at + utf8_len(text[at])).min(text.len());
            let before = best[at].score;
            let mut reach = |end: usize, id: u32, score: f64| {
                if before + score > best[end].score {
                    best[end] = Best {
                        id,
                        start: at,
                        score: before + score,
                    };
                }
            };
            let mut has_char = false;
            self.for_each_prefix(&text[at..], |len, id, score| {
                has_char |= at + len == end_of_char;
                reach(at + len, id, score);
            });
            if !has_char {
                reach(end_of_char, self.unknown, self.unknown_score);
            }
            at = end_of_char;
        }
        let first = out.len();
        let mut end = text.len();
        let mut after_unknown = false;
        while end > 0 {
            let Best { id, start, .. } = best[end];
            let is_unknown = id == self.unknown;
            if !(after_unknown && is_unknown) {
                out.push(id);
            }
            after_unknown = is_unknown;
            end = start;
        }
        out[first..].reverse();
    }

    /// Calls `visit` with length, id and score of every token that `text` begins with.
    fn for_each_prefix(&self, text: &[u8], mut visit: impl FnMut(usize, u32, f64)) {
        let mut tokens = self.tokens.as_slice();
        for (at, byte) in text.iter().enumerate() {
            // The tokens that go on like the text stand side by side.
            let start = tokens.partition_point(|(token, _, _)| token.get(at) < Some(byte));
            let end = tokens.partition_point(|(token, _, _)| token.get(at) <= Some(byte));
            tokens = &tokens[start..end];
            match tokens.first() {
                None => return,
                Some((token, id, score)) if token.len() == at + 1 => visit(at + 1, *id, *score),
                Some(_) => {}
            }
        }
    }

    /// The text with replacements made and spaces spelled as in the vocabulary.
    fn normalise(&self, text: &str) -> Vec<u8> {
        let mut out = Vec::with_capacity(text.len() + text.len() / 2);
        let mut has_prefix = false;
        let mut in_word = false;
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            let replaced = self.replacements.as_ref().and_then(|r| r.longest(rest));
            let (len, piece) = replaced.unwrap_or_else(|| {
                let len = utf8_len(rest[0]).min(rest.len());
                (len, &rest[..len])
            });
            for byte in piece {
                if *byte == b' ' {
                    in_word = false;
                    if !self.merges_spaces {
                        out.extend_from_slice(SPACE.as_bytes());
                    }
                    continue;
                }
                if !in_word {
                    in_word = true;
                    if (self.adds_space_prefix && !has_prefix) || self.merges_spaces {
                        out.extend_from_slice(SPACE.as_bytes());
                        has_prefix = true;
                    }
                }
                out.push(*byte);
            }
            rest = &rest[len..];
        }
        out
    }
}

/// Bytes of a character that begins with this one; 1 for what begins none.
fn utf8_len(byte: u8) -> usize {
    match byte {
        0xF0.. => 4,
        0xE0.. => 3,
        0xC0.. => 2,
        _ => 1,
    }
}

/// SentencePiece's table of replacements: a double array trie with XOR-compressed offsets (Kanda
/// 2018) over the texts that are replaced, then what replaces them, each ended by a zero byte.
///
/// A node is 32 bits: the offset of its children in bits 10 to 30, in units of 256 if bit 9 is set;
/// whether a text ends here in bit 8; the byte that leads here in bits 0 to 7. The child of such an
/// end holds the place of the replacement, with bit 31 set.
#[derive(Debug)]
struct Replacements {
    nodes: Vec<u32>,
    texts: Vec<u8>,
}

impl Replacements {
    fn read(metadata: &Metadata) -> Result<Option<Self>, Error> {
        let bytes: Vec<u8> = match metadata.get(CHARSMAP).and_then(|value| value.as_array()) {
            Some(Array::U8(bytes)) => bytes.clone(),
            Some(Array::I8(bytes)) => bytes.iter().map(|byte| *byte as u8).collect(),
            Some(_) => {
                return Err(Error::WrongType {
                    key: CHARSMAP,
                    found: "an array",
                    expected: "an array of bytes",
                });
            }
            None => return Ok(None),
        };
        if bytes.is_empty() {
            return Ok(None);
        }
        let broken = || Error::BrokenTable(CHARSMAP);
        let (head, rest) = bytes.split_first_chunk::<4>().ok_or_else(broken)?;
        let size = u32::from_le_bytes(*head) as usize;
        let (nodes, texts) = rest.split_at_checked(size).ok_or_else(broken)?;
        let node = |bytes: &[u8]| bytes.try_into().map(u32::from_le_bytes).unwrap_or(0);
        Ok(Some(Self {
            nodes: nodes.chunks_exact(4).map(node).collect(),
            texts: texts.to_vec(),
        }))
    }

    /// The longest text that is replaced and that `text` begins with: its length and what replaces
    /// it. A broken table replaces nothing.
    fn longest(&self, text: &[u8]) -> Option<(usize, &[u8])> {
        let base = |node: u32| ((node >> 10) << ((node & (1 << 9)) >> 6)) as usize;
        let mut at = base(*self.nodes.first()?);
        let mut found = None;
        for (i, byte) in text.iter().enumerate() {
            at ^= usize::from(*byte);
            let Some(node) = self.nodes.get(at).copied() else {
                break;
            };
            if *byte == 0 || node & (1 << 31 | 0xff) != u32::from(*byte) {
                break;
            }
            at ^= base(node);
            if node & (1 << 8) != 0
                && let Some(value) = self.nodes.get(at)
            {
                found = Some((i + 1, (value & !(1 << 31)) as usize));
            }
        }
        let (len, place) = found?;
        let text = self.texts.get(place..)?;
        let end = text.iter().position(|byte| *byte == 0)?;
        Some((len, &text[..end]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::{StringArray, Value};

    fn unigram(tokens: &[(&str, f32, u32)], set: impl FnOnce(&mut Metadata)) -> Unigram {
        let mut metadata = Metadata::default();
        let texts: StringArray = tokens
            .iter()
            .map(|(text, _, _)| text.as_bytes().to_vec())
            .collect();
        let array = |array| Value::Array(array);
        metadata.insert("tokenizer.ggml.tokens", array(Array::Str(texts)));
        let scores = tokens.iter().map(|(_, score, _)| *score).collect();
        metadata.insert("tokenizer.ggml.scores", array(Array::F32(scores)));
        let types = tokens.iter().map(|(_, _, ty)| *ty).collect();
        metadata.insert("tokenizer.ggml.token_type", array(Array::U32(types)));
        set(&mut metadata);
        let vocab = Vocabulary::read(&metadata).expect("a vocabulary");
        Unigram::new(&metadata, &vocab, Some(0), true, true).expect("a tokenizer")
    }

    const TOKENS: &[(&str, f32, u32)] = &[
        ("<unk>", 0.0, 2),
        ("▁", -3.0, 1),
        ("a", -4.0, 1),
        ("b", -4.0, 1),
        ("ab", -5.0, 1),
        ("▁ab", -9.5, 1),
        ("ba", -6.5, 1),
    ];

    fn encode(unigram: &Unigram, text: &str) -> Vec<u32> {
        let mut out = Vec::new();
        unigram.encode(text, &mut out);
        out
    }

    #[test]
    fn the_likeliest_way_wins_and_unknown_ones_in_a_row_are_one() {
        let unigram = unigram(TOKENS, |_| ());
        assert_eq!(encode(&unigram, "ab"), [1, 4]);
        assert_eq!(encode(&unigram, "  aba  ab"), [1, 4, 2, 1, 4]);
        assert_eq!(encode(&unigram, "a日本b"), [1, 2, 0, 3]);
        assert!(encode(&unigram, "").is_empty());
        assert!(encode(&unigram, "   ").is_empty());
    }

    #[test]
    fn a_broken_table_is_refused_or_replaces_nothing() {
        let with = |bytes: Vec<u8>| {
            unigram(TOKENS, |metadata| {
                metadata.insert(CHARSMAP, Value::Array(Array::U8(bytes)));
            })
        };
        // A table whose root points far outside.
        let mut bytes = 8u32.to_le_bytes().to_vec();
        bytes.extend([0xff; 8]);
        assert_eq!(encode(&with(bytes), "ab"), [1, 4]);
        let mut metadata = Metadata::default();
        metadata.insert(CHARSMAP, Value::Array(Array::U8(vec![9, 0, 0, 0, 1])));
        assert!(Replacements::read(&metadata).is_err());
        metadata.insert(CHARSMAP, Value::Array(Array::U8(vec![9])));
        assert!(Replacements::read(&metadata).is_err());
    }
}
