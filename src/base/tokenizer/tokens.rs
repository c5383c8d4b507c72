//! The properties of a tokenizer's tokens: their bytes, their texts and their roles.

use std::borrow::Cow;

use super::Tokenizer;
use super::vocab::TokenKind;

impl Tokenizer {
    /// The text of tokens, including special ones, without the space that encoding adds at the start or at the end. The
    /// result is bytes, because the tokens may end inside a character.
    pub fn decode(&self, ids: &[u32]) -> Vec<u8> {
        let mut out = Vec::new();
        for (index, &id) in ids.iter().enumerate() {
            let piece = match self.piece(id) {
                [b' ', rest @ ..] if index == 0 && self.drops_first_space => rest,
                piece => piece,
            };
            let piece = match piece {
                [rest @ .., b' '] if index + 1 == ids.len() && self.drops_last_space => rest,
                piece => piece,
            };
            out.extend_from_slice(piece);
        }
        out
    }

    /// The bytes that a token contributes to a text; empty for an id outside the vocabulary.
    pub fn piece(&self, id: u32) -> &[u8] {
        self.pieces.get(id as usize).unwrap_or_default()
    }

    /// The tokens whose bytes contain any of these texts.
    pub fn ids_holding(&self, texts: &[impl AsRef<str>]) -> Vec<u32> {
        let holds = |piece: &[u8], text: &[u8]| {
            !text.is_empty() && piece.windows(text.len()).any(|part| part == text)
        };
        (0..self.vocab_len as u32)
            .filter(|id| {
                let piece = self.piece(*id);
                let mut texts = texts.iter().map(|text| text.as_ref().as_bytes());
                texts.any(|text| holds(piece, text))
            })
            .collect()
    }

    /// Number of tokens, including those without a text.
    pub fn vocab_len(&self) -> usize {
        self.vocab_len
    }

    /// The token that starts a sequence.
    pub fn bos(&self) -> Option<u32> {
        self.roles.bos
    }

    /// The token that ends a sequence.
    pub fn eos(&self) -> Option<u32> {
        self.roles.eos
    }

    /// The token that separates texts.
    pub fn sep(&self) -> Option<u32> {
        self.roles.sep
    }

    /// The token that ends a turn.
    pub fn eot(&self) -> Option<u32> {
        self.roles.eot
    }

    /// The token for padding.
    pub fn pad(&self) -> Option<u32> {
        self.roles.pad
    }

    /// The unknown token.
    pub fn unk(&self) -> Option<u32> {
        self.roles.unk
    }

    /// The mask token of text diffusion.
    pub fn mask(&self) -> Option<u32> {
        self.roles.mask
    }

    /// Whether a token is a control token, which is not text.
    pub fn is_control(&self, id: u32) -> bool {
        self.vocab.kind(id) == Some(TokenKind::Control)
    }

    /// Whether a token represents text: it has bytes, ends no generation, and is neither a control nor the unknown
    /// token.
    pub fn is_text(&self, id: u32) -> bool {
        let is_kind = matches!(
            self.vocab.kind(id),
            Some(TokenKind::Normal | TokenKind::UserDefined | TokenKind::Byte)
        );
        is_kind && !self.is_end_of_generation(id) && !self.piece(id).is_empty()
    }

    /// Whether this token ends a generation.
    pub fn is_end_of_generation(&self, id: u32) -> bool {
        self.roles.ends.contains(&id)
    }

    /// The tokens that end a generation, rising.
    pub fn ends_of_generation(&self) -> impl Iterator<Item = u32> {
        self.roles.ends.iter().copied()
    }

    /// Whether `encode` adds the BOS token at the start if special tokens are requested.
    pub fn adds_bos(&self) -> bool {
        self.adds_bos && self.roles.bos.is_some()
    }

    /// Whether `encode` adds the EOS token at the end if special tokens are requested.
    pub fn adds_eos(&self) -> bool {
        self.adds_eos && self.roles.eos.is_some()
    }

    /// The text of a token as the vocabulary spells it.
    pub fn token_text(&self, id: u32) -> Option<Cow<'_, str>> {
        self.vocab.text(id).map(String::from_utf8_lossy)
    }

    /// The token with this text in the vocabulary's spelling.
    pub fn id_of(&self, text: &str) -> Option<u32> {
        self.vocab.id_of(text.as_bytes())
    }
}
