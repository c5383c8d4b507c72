//! Longest match: a text is split, from left to right, into the longest tokens that match.
//!
//! Token texts represent arbitrary bytes, with escapes: `\t`, `\n`, `\r`, `\xNN`; any other character after a backslash
//! represents itself. Control and unused tokens match no text. Bytes that start a token but match none are unknown;
//! llama.cpp loops forever there.

use super::Error;
use super::prefix_trie::PrefixTrie;
use super::vocab::{TokenKind, Vocabulary};

#[derive(Debug)]
pub(super) struct LongestMatch {
    tokens: PrefixTrie<u32>,
    /// The token for bytes without a token.
    unknown: Option<u32>,
}

impl LongestMatch {
    pub(super) fn new(vocab: &Vocabulary, unknown: Option<u32>) -> Self {
        let is_text = |kind| {
            matches!(
                kind,
                TokenKind::Normal | TokenKind::UserDefined | TokenKind::Byte
            )
        };
        let tokens = vocab
            .iter()
            .filter(|(_, _, kind)| is_text(*kind))
            .map(|(id, text, _)| (unescaped(text).into(), id));
        Self {
            tokens: PrefixTrie::new(tokens),
            unknown,
        }
    }

    pub(super) fn encode(&self, text: &str, out: &mut Vec<u32>) -> Result<(), Error> {
        let mut rest = text.as_bytes();
        while let [byte, after @ ..] = rest {
            match self.tokens.longest(rest) {
                Some((len, id)) => {
                    out.push(id);
                    rest = &rest[len..];
                }
                None => {
                    out.push(self.unknown.ok_or(Error::NoTokenForByte(*byte))?);
                    rest = after;
                }
            }
        }
        Ok(())
    }
}

/// The bytes of a token's text, with escapes resolved. A truncated escape yields none.
pub(super) fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.iter().copied();
    while let Some(byte) = bytes.next() {
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        match bytes.next() {
            Some(b't') => out.push(b'\t'),
            Some(b'n') => out.push(b'\n'),
            Some(b'r') => out.push(b'\r'),
            Some(b'x') => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                if let (Some(high), Some(low)) = (digit(), digit()) {
                    out.push((high * 16 + low) as u8);
                }
            }
            other => out.extend(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::tests::metadata;
    use super::*;
    use crate::tokenizer::Tokenizer;
    use crate::weights::Value;

    const TOKENS: &[(&str, i32, f32)] = &[
        ("<s>", 3, 0.0),
        ("a", 1, 0.0),
        ("ab", 1, 0.0),
        ("abcd", 1, 0.0),
        (r"\n", 1, 0.0),
        (r"\\", 1, 0.0),
        (r"\xe6\x97", 1, 0.0),
        (r"\xa5", 1, 0.0),
        (r"\'", 1, 0.0),
        (" a", 1, 0.0),
        ("xyz", 1, 0.0),
        ("[PAD11]", 5, 0.0),
        ("b", 1, 0.0),
        ("c", 1, 0.0),
        ("?", 2, 0.0),
    ];

    #[test]
    fn the_longest_token_wins_at_every_place() {
        let mut metadata = metadata("rwkv", TOKENS);
        let tokenizer = Tokenizer::from_metadata(&metadata).expect("a vocabulary");
        metadata.insert("tokenizer.ggml.unknown_token_id", Value::U32(14));
        let with_unknown = Tokenizer::from_metadata(&metadata).expect("a vocabulary");
        // `x` starts a token but is none.
        let cases: &[(&Tokenizer, &str, bool, Option<&[u32]>)] = &[
            (&tokenizer, "abcab", false, Some(&[2, 13, 2])),
            (&tokenizer, "abcda\n\\'", false, Some(&[3, 1, 4, 5, 8])),
            (&tokenizer, "日 a", false, Some(&[6, 7, 9])),
            (&tokenizer, "<s>a", true, Some(&[0, 1])),
            (&tokenizer, "xya", false, None),
            (&tokenizer, "<s>", false, None),
            (&with_unknown, "xya", false, Some(&[14, 14, 1])),
            (&with_unknown, "", false, Some(&[])),
        ];
        for (tokenizer, text, parse_special, expected) in cases {
            let found = tokenizer.encode(text, true, *parse_special).ok();
            assert_eq!(found.as_deref(), *expected, "{text:?}");
        }
        let text = "日 a\n\\'";
        let ids = tokenizer.encode(text, true, false).expect("tokens");
        assert_eq!(tokenizer.decode(&ids), text.as_bytes());
    }

    #[test]
    fn escapes_that_are_cut_off_are_harmless() {
        assert_eq!(unescaped(br"a\"), b"a");
        assert_eq!(unescaped(br"\x4"), b"");
        assert_eq!(unescaped(br"\x41\xzzb\q"), b"Abq");
    }
}
