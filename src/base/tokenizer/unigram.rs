//! Unigram language model (Kudo 2018): the split of a text into tokens with the highest sum of scores, found from left
//! to right (Viterbi).
//!
//! A character without a token costs more than any token. It becomes its bytes if every byte has a token, otherwise the
//! unknown token; adjacent unknown characters become one. The text is normalised first.

use super::Error;
use super::normaliser::{self, Normaliser};
use super::prefix_trie::PrefixTrie;
use super::vocab::{TokenKind, Vocabulary};

/// The difference between the score of the least likely token and that of an unknown character.
const UNKNOWN_PENALTY: f32 = 10.0;

#[derive(Debug)]
pub(super) struct Unigram {
    normaliser: Normaliser,
    /// Ids and scores of the tokens that a text may be split into.
    tokens: PrefixTrie<(u32, f64)>,
    /// The unknown token, if bytes do not replace it.
    unknown: Option<u32>,
    unknown_score: f32,
    /// The token of each byte, if every byte has one.
    bytes: Option<Vec<u32>>,
}

/// The best path to the end of a token: the token, its start, the sum of scores.
#[derive(Clone, Copy)]
struct BestPath {
    /// The token; `None` for an unknown one.
    id: Option<u32>,
    start: usize,
    score: f64,
}

impl Unigram {
    pub(super) fn new<'v>(
        vocab: &'v Vocabulary,
        normaliser: Normaliser,
        unknown: Option<u32>,
    ) -> Result<Self, Error> {
        let normal = vocab
            .iter()
            .filter(|(_, _, kind)| *kind == TokenKind::Normal);
        let least = normal.map(|(id, _, _)| vocab.score(id));
        let least = least.fold(f32::MAX, f32::min);
        let is_exact = normaliser.is_exact();
        let entry = |(id, text, kind): (u32, &'v [u8], TokenKind)| match kind {
            // A symbol has the score of certainty, so that it is always chosen.
            TokenKind::UserDefined if normaliser.symbol_of(text) == Some(id) => {
                Some((normaliser::escaped(text).into(), (id, 0.0)))
            }
            TokenKind::UserDefined => Some((text.into(), (id, 0.0))),
            TokenKind::Unused if is_exact => None,
            TokenKind::Normal | TokenKind::Unused => {
                Some((text.into(), (id, f64::from(vocab.score(id)))))
            }
            _ => None,
        };
        let bytes: Option<Vec<u32>> = (0..=u8::MAX)
            .map(|byte| {
                let id = vocab.byte_token(byte)?;
                (vocab.kind(id) == Some(TokenKind::Byte)).then_some(id)
            })
            .collect();
        // As in SentencePiece, a model with bytes may have no unknown token; the id is then that of another piece.
        let is_none =
            |id: u32| is_exact && bytes.is_some() && vocab.kind(id) != Some(TokenKind::Unknown);
        let unknown = unknown.filter(|id| !is_none(*id));
        if unknown.is_none() && bytes.is_none() {
            return Err(Error::NoUnknownToken);
        }
        Ok(Self {
            tokens: PrefixTrie::new(vocab.iter().filter_map(entry)),
            unknown,
            unknown_score: least - UNKNOWN_PENALTY,
            bytes,
            normaliser,
        })
    }

    /// Appends the tokens of a text without special tokens to `out`. `after_text`: the text continues another one.
    pub(super) fn encode(&self, text: &str, after_text: bool, out: &mut Vec<u32>) {
        let text = self.normaliser.apply(text, after_text);
        let text = text.as_bytes();
        let best = self.best_ways(text);
        let first = out.len();
        let mut end = text.len();
        let mut after_unknown = false;
        while end > 0 {
            let BestPath { id, start, .. } = best[end];
            let is_unknown = id.is_none() || id == self.unknown;
            match &self.bytes {
                Some(bytes) if is_unknown => {
                    let piece = text[start..end].iter().rev();
                    out.extend(piece.map(|&byte| bytes[usize::from(byte)]));
                }
                _ if after_unknown && is_unknown => {}
                _ => out.extend(id.or(self.unknown)),
            }
            after_unknown = is_unknown;
            end = start;
        }
        out[first..].reverse();
    }

    /// The best path to each position of a text.
    fn best_ways(&self, text: &[u8]) -> Vec<BestPath> {
        let unreached = BestPath {
            id: None,
            start: 0,
            score: f64::NEG_INFINITY,
        };
        let mut best = vec![unreached; text.len() + 1];
        best[0].score = 0.0;
        let mut at = 0;
        while at < text.len() {
            let end_of_char = (at + utf8_len(text[at])).min(text.len());
            let before = best[at].score;
            let mut reach = |end: usize, id: Option<u32>, score: f64| {
                // SentencePiece sums in f32, which decides between paths with the same tokens.
                let score = match self.normaliser.is_exact() {
                    true => f64::from((before + score) as f32),
                    false => before + score,
                };
                if score > best[end].score {
                    best[end] = BestPath {
                        id,
                        start: at,
                        score,
                    };
                }
            };
            let mut has_char = false;
            self.tokens.each(&text[at..], |len, (id, score)| {
                has_char |= at + len == end_of_char;
                reach(at + len, Some(id), score);
            });
            if !has_char {
                reach(end_of_char, None, f64::from(self.unknown_score));
            }
            at = end_of_char;
        }
        best
    }
}

/// The number of bytes of a character that starts with this byte; 1 if none does.
fn utf8_len(byte: u8) -> usize {
    match byte {
        0xF0.. => 4,
        0xE0.. => 3,
        0xC0.. => 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::metadata;
    use super::*;

    const TOKENS: &[(&str, i32, f32)] = &[
        ("<unk>", 2, 0.0),
        ("▁", 1, -3.0),
        ("a", 1, -4.0),
        ("b", 1, -4.0),
        ("ab", 1, -5.0),
        ("▁ab", 1, -9.5),
        ("ba", 1, -6.5),
    ];

    #[test]
    fn the_likeliest_way_wins_and_unknown_ones_in_a_row_are_one() {
        let metadata = metadata("t5", TOKENS);
        let vocab = Vocabulary::read(&metadata).expect("a vocabulary");
        let normaliser = Normaliser::read(&metadata, &vocab, true, true).expect("no table");
        let unigram = Unigram::new(&vocab, normaliser, Some(0)).expect("a tokenizer");
        let cases: &[(&str, &[u32])] = &[
            ("ab", &[1, 4]),
            ("  aba  ab", &[1, 4, 2, 1, 4]),
            ("a日本b", &[1, 2, 0, 3]),
            ("", &[]),
            ("   ", &[]),
        ];
        for (text, expected) in cases {
            let mut found = Vec::new();
            unigram.encode(text, false, &mut found);
            assert_eq!(found, *expected, "{text:?}");
        }
    }
}
