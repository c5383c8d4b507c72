//! Tokenization by cost, from the end of a text to its start: at every character the cheapest path to the end; of equal
//! ones, the path with the longest first token.
//!
//! Costs are integers, scores times 10 000. A character without a token costs as much as a score of -1000 and becomes
//! its bytes. Spaces represent themselves. The algorithm is llama.cpp's `plamo2`, except that a control token is never
//! found in plain text. A byte order mark at the start is dropped.

use super::Error;
use super::prefix_trie::PrefixTrie;
use super::vocab::{TokenKind, Vocabulary};

/// The cost of a character without a token.
const UNKNOWN: i64 = 10_000_000;
/// A token with at least this cost is not used.
const FORBIDDEN: i64 = 20_000_000;
const BYTE_ORDER_MARK: char = '\u{feff}';

#[derive(Debug)]
pub(super) struct LowestCost {
    /// The ids and costs of the tokens, by their texts.
    tokens: PrefixTrie<(u32, i64)>,
    bytes: Vec<u32>,
}

/// The cheapest path from a position to the end: its cost, the bytes of the first token, and the token.
#[derive(Clone, Copy)]
struct BestPath {
    cost: i64,
    len: usize,
    id: Option<u32>,
}

impl LowestCost {
    pub(super) fn new(vocab: &Vocabulary) -> Result<Self, Error> {
        let is_text = |kind| {
            matches!(
                kind,
                TokenKind::Normal | TokenKind::UserDefined | TokenKind::Unused
            )
        };
        let cost = |id| {
            let score = f64::from(vocab.score(id));
            // A score that is not finite counts as a missing one.
            if score.is_finite() {
                -((score * 1e4).round() as i64)
            } else {
                FORBIDDEN
            }
        };
        let tokens = vocab
            .iter()
            .filter(|(_, _, kind)| is_text(*kind))
            .map(|(id, text, _)| (text.into(), (id, cost(id))));
        let byte = |byte| {
            let id = vocab.byte_token(byte);
            let id = id.filter(|&id| vocab.kind(id) == Some(TokenKind::Byte));
            id.ok_or(Error::NoTokenForByte(byte))
        };
        Ok(Self {
            tokens: PrefixTrie::new(tokens),
            bytes: (0..=u8::MAX).map(byte).collect::<Result<_, _>>()?,
        })
    }

    pub(super) fn encode(&self, text: &str, out: &mut Vec<u32>) {
        let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
        let end = BestPath {
            cost: 0,
            len: 0,
            id: None,
        };
        let mut paths = vec![end; text.len() + 1];
        for (at, c) in text.char_indices().rev() {
            let mut best = BestPath {
                cost: paths[at + c.len_utf8()].cost.saturating_add(UNKNOWN),
                len: c.len_utf8(),
                id: None,
            };
            // Entries come shortest first, so of equal costs the longest token counts.
            self.tokens.each(&text.as_bytes()[at..], |len, (id, cost)| {
                if cost >= FORBIDDEN || !text.is_char_boundary(at + len) {
                    return;
                }
                let cost = paths[at + len].cost.saturating_add(cost);
                if cost <= best.cost {
                    best = BestPath {
                        cost,
                        len,
                        id: Some(id),
                    };
                }
            });
            paths[at] = best;
        }
        let mut at = 0;
        while at < text.len() {
            let BestPath { len, id, .. } = paths[at];
            match id {
                Some(id) => out.push(id),
                None => {
                    let bytes = text.as_bytes()[at..at + len].iter();
                    out.extend(bytes.map(|byte| self.bytes[usize::from(*byte)]));
                }
            }
            at += len;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::metadata;
    use crate::tokenizer::Tokenizer;

    /// Texts and scores of the tokens after 256 bytes and four special tokens.
    const TOKENS: &[(&str, f32)] = &[
        ("a", -3.0),
        ("b", -2.5),
        ("ab", -4.0),
        ("ba", -5.5),
        ("aba", -9.5),
        ("日", -6.0),
        ("日本", -7.0),
        (" ", -1.0),
        (" a", -4.0),
        ("aa", f32::NAN),
        ("bb", -2000.0),
        ("aaa", 1.5),
    ];
    const FIRST: u32 = 260;

    fn tokenizer() -> Tokenizer {
        let special = ["unk", "bos", "eos", "pad"].map(|role| format!("<|plamo:{role}|>"));
        let mut tokens: Vec<_> = special.map(|text| (text, 3, 0.0)).into();
        tokens.extend((0..=255).map(|byte| (format!("<0x{byte:02X}>"), 6, 0.0)));
        let texts = TOKENS.iter();
        tokens.extend(texts.map(|(text, score)| ((*text).to_owned(), 1, *score)));
        Tokenizer::from_metadata(&metadata("plamo2", &tokens)).expect("a vocabulary")
    }

    /// The cheapest path by exhaustive search: cost, then tokens, longest first.
    fn naive(text: &str) -> (i64, Vec<u32>) {
        let Some(c) = text.chars().next() else {
            return (0, Vec::new());
        };
        let mut paths: Vec<(usize, i64, Vec<u32>)> = (FIRST..)
            .zip(TOKENS)
            .filter(|(_, (token, score))| text.starts_with(token) && *score > -2000.0)
            .map(|(id, (token, score))| (token.len(), -(score * 1e4).round() as i64, vec![id]))
            .collect();
        paths.sort_by_key(|(len, ..)| std::cmp::Reverse(*len));
        let bytes = text[..c.len_utf8()]
            .bytes()
            .map(|byte| u32::from(byte) + 4)
            .collect();
        paths.push((c.len_utf8(), 10_000_000, bytes));
        let mut best: Option<(i64, Vec<u32>)> = None;
        for (len, cost, mut ids) in paths {
            let (rest, more) = naive(&text[len..]);
            if best.as_ref().is_none_or(|(least, _)| cost + rest < *least) {
                ids.extend(more);
                best = Some((cost + rest, ids));
            }
        }
        best.unwrap_or_default()
    }

    proptest! {
        #[test]
        fn no_way_is_cheaper(text in "[ab日本 z]{0,8}") {
            let ids = tokenizer().encode(&text, false, false).expect("tokens");
            prop_assert_eq!(ids, naive(&text).1);
        }
    }

    #[test]
    fn control_tokens_are_found_on_request_only() {
        let tokenizer = tokenizer();
        let ids = |text, special| tokenizer.encode(text, false, special).expect("tokens");
        assert_eq!(ids("<|plamo:eos|>a", true), [2, FIRST]);
        assert!(!ids("<|plamo:eos|>", false).contains(&2));
        assert_eq!(ids("\u{feff}a", false), [FIRST]);
        assert_eq!(
            tokenizer.decode(&ids("日本z é", false)),
            "日本z é".as_bytes()
        );
    }

    #[test]
    fn every_byte_needs_a_token() {
        let tokens = [("a", 1, 0.0)];
        assert!(Tokenizer::from_metadata(&metadata("plamo2", &tokens)).is_err());
    }
}
