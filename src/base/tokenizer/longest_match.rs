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

    const TOKENS: &[(&str, i32)] = &[
        ("<s>", 3),
        ("a", 1),
        ("ab", 1),
        ("abcd", 1),
        (r"\n", 1),
        (r"\\", 1),
        (r"\xe6\x97", 1),
        (r"\xa5", 1),
        (r"\'", 1),
        (" a", 1),
        ("xyz", 1),
        ("[PAD11]", 5),
        ("b", 1),
        ("c", 1),
        ("?", 2),
    ];

    fn tokenizer(set: impl FnOnce(&mut crate::weights::Metadata)) -> Tokenizer {
        let tokens: Vec<_> = TOKENS
            .iter()
            .map(|(text, kind)| ((*text).to_owned(), *kind, 0.0))
            .collect();
        let mut metadata = metadata("rwkv", &tokens);
        set(&mut metadata);
        Tokenizer::from_metadata(&metadata).expect("a vocabulary")
    }

    #[test]
    fn the_longest_token_wins_at_every_place() {
        let tokenizer = tokenizer(|_| ());
        let ids = |text| tokenizer.encode(text, true, false).expect("tokens");
        assert_eq!(ids("abcab"), [2, 13, 2]);
        assert_eq!(ids("abcda\n\\'"), [3, 1, 4, 5, 8]);
        assert_eq!(ids("日 a"), [6, 7, 9]);
        assert_eq!(tokenizer.decode(&ids("日 a\n\\'")), "日 a\n\\'".as_bytes());
        assert_eq!(
            tokenizer.encode("<s>a", true, true).expect("tokens"),
            [0, 1]
        );
        // `x` starts a token but is none, and there is no unknown token.
        assert!(tokenizer.encode("xya", true, false).is_err());
        assert!(tokenizer.encode("<s>", true, false).is_err());
    }

    #[test]
    fn unknown_bytes_have_a_token_where_the_file_names_one() {
        let tokenizer = tokenizer(|metadata| {
            metadata.insert(
                "tokenizer.ggml.unknown_token_id",
                crate::weights::Value::U32(14),
            );
        });
        assert_eq!(
            tokenizer.encode("xya", true, false).expect("tokens"),
            [14, 14, 1]
        );
        assert_eq!(tokenizer.encode("", true, false).expect("tokens"), [0; 0]);
    }

    #[test]
    fn escapes_that_are_cut_off_are_harmless() {
        assert_eq!(unescaped(br"a\"), b"a");
        assert_eq!(unescaped(br"\x4"), b"");
        assert_eq!(unescaped(br"\x41\xzzb\q"), b"Abq");
    }
}
