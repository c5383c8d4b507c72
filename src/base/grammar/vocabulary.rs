//! A model's vocabulary for the constraint library: a tree over the bytes of tokens.
//!
//! Control tokens are in the tree after the byte 0xFF, which occurs in no text, so no grammar can match one as text; a
//! Lark grammar may name one (`<|name|>`). Not here: grammars.
//!
//! Invariant: the bytes of every token in the tree are those that it contributes to a completion.

use std::sync::Arc;

use llguidance::toktrie::{INVALID_TOKEN, TokRxInfo, TokTrie, TokenId, TokenizerEnv};

use crate::tokenizer::Tokenizer;
use crate::util::panics::caught;

use super::Error;

/// Longest token that the tree can hold, in bytes; longer ones are never allowed.
const MAX_TOKEN_BYTES: usize = 1000;

pub(super) struct ConstraintVocabulary {
    tokenizer: Arc<Tokenizer>,
    tree: TokTrie,
    forces: bool,
}

impl ConstraintVocabulary {
    /// The tree of a vocabulary. Without `forces`, every tokenization of a text is allowed, even where the grammar
    /// leaves only one text.
    pub(super) fn new(tokenizer: &Arc<Tokenizer>, forces: bool) -> Result<Self, Error> {
        let words: Vec<Vec<u8>> = (0..tokenizer.vocab_len() as u32)
            .map(|id| word(tokenizer, id))
            .collect();
        let ends: Vec<u32> = tokenizer
            .ends_of_generation()
            .filter(|id| (*id as usize) < words.len())
            .collect();
        let first = ends.first().copied().unwrap_or(INVALID_TOKEN);
        let info = TokRxInfo::new(words.len() as u32, first);
        // The library asserts that the number of nodes is within its limits.
        let tree = caught(|| {
            let tree = TokTrie::from(&info, &words);
            if ends.is_empty() {
                tree
            } else {
                tree.with_eos_tokens(&ends)
            }
        })
        .ok_or(Error::Vocabulary {
            n_tokens: words.len(),
        })?;
        Ok(Self {
            tokenizer: Arc::clone(tokenizer),
            tree,
            forces: forces && tokenizer.keeps_bytes(),
        })
    }

    /// The tokens of a text inside a completion; `None` if their bytes differ from the text's.
    fn spell(&self, text: &str) -> Option<Vec<TokenId>> {
        let ids = self.tokenizer.encode_continuation(text).ok()?;
        let bytes = ids.iter().flat_map(|id| self.tokenizer.piece(*id));
        let is_exact =
            ids.iter().all(|id| self.tokenizer.is_text(*id)) && bytes.eq(text.as_bytes());
        is_exact.then_some(ids)
    }
}

/// The bytes of a token in the tree; empty for a token that is never allowed.
fn word(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    let piece = tokenizer.piece(id);
    if tokenizer.is_text(id) {
        // 0xFF begins no character. In the tree it marks control tokens.
        let is_usable = piece.len() <= MAX_TOKEN_BYTES && !piece.starts_with(&[0xff]);
        return if is_usable {
            piece.to_vec()
        } else {
            Vec::new()
        };
    }
    let name = tokenizer.token_text(id).unwrap_or_default();
    if name.is_empty() || name.len() >= MAX_TOKEN_BYTES {
        return Vec::new();
    }
    [&[TokTrie::SPECIAL_TOKEN_MARKER], name.as_bytes()].concat()
}

impl TokenizerEnv for ConstraintVocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.tree
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.tree.tokenize_with_greedy_fallback(bytes, |text| {
            self.spell(text)
                .unwrap_or_else(|| self.tree.greedy_tokenize(text.as_bytes()))
        })
    }

    fn tokenize_is_canonical(&self) -> bool {
        self.forces
    }
}
