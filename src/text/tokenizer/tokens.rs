//! What a tokenizer says of its tokens: their bytes, their texts and their roles.

use std::borrow::Cow;

use super::Tokenizer;
use super::vocab::Kind;

impl Tokenizer {
    /// The text of tokens, special ones included, without the space that encoding puts first.
    /// Bytes, because the tokens may stop inside a character.
    pub fn decode(&self, ids: &[u32]) -> Vec<u8> {
        let mut out = Vec::new();
        for (index, &id) in ids.iter().enumerate() {
            let piece = match self.piece(id) {
                [b' ', rest @ ..] if index == 0 && self.drops_first_space => rest,
                piece => piece,
            };
            out.extend_from_slice(piece);
        }
        out
    }

    /// The bytes one token contributes to a text; none for an id outside the vocabulary.
    pub fn piece(&self, id: u32) -> &[u8] {
        self.pieces.get(id as usize).unwrap_or_default()
    }

    /// The tokens whose bytes hold any of these texts.
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

    /// Number of tokens, those without a text included.
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

    /// The token that fills up a batch.
    pub fn pad(&self) -> Option<u32> {
        self.roles.pad
    }

    /// The token for text without a token.
    pub fn unk(&self) -> Option<u32> {
        self.roles.unk
    }

    /// The mask token of text diffusion.
    pub fn mask(&self) -> Option<u32> {
        self.roles.mask
    }

    /// Whether a token steers the model and is not text.
    pub fn is_control(&self, id: u32) -> bool {
        self.vocab.kind(id) == Some(Kind::Control)
    }

    /// Whether a token stands for text: no control or unknown token, none that ends a generation,
    /// and not one without bytes.
    pub fn is_text(&self, id: u32) -> bool {
        let is_kind = matches!(
            self.vocab.kind(id),
            Some(Kind::Normal | Kind::UserDefined | Kind::Byte)
        );
        is_kind && !self.is_end_of_generation(id) && !self.piece(id).is_empty()
    }

    /// The tokens that a generation ends with, rising.
    pub fn ends(&self) -> impl Iterator<Item = u32> {
        self.roles.ends.iter().copied()
    }

    /// Whether a generation ends with this token.
    pub fn is_end_of_generation(&self, id: u32) -> bool {
        self.roles.ends.contains(&id)
    }

    /// The tokens that a generation ends with, rising.
    pub fn ends_of_generation(&self) -> impl Iterator<Item = u32> {
        self.roles.ends.iter().copied()
    }

    /// Whether `encode` puts the BOS token first when special tokens are requested.
    pub fn adds_bos(&self) -> bool {
        self.adds_bos && self.roles.bos.is_some()
    }

    /// Whether `encode` puts the EOS token last when special tokens are requested.
    pub fn adds_eos(&self) -> bool {
        self.adds_eos && self.roles.eos.is_some()
    }

    /// The text of a token as the vocabulary spells it.
    pub fn token_text(&self, id: u32) -> Option<Cow<'_, str>> {
        self.vocab.text(id).map(String::from_utf8_lossy)
    }

    /// The token the vocabulary spells like this.
    pub fn id_of(&self, text: &str) -> Option<u32> {
        self.vocab.id_of(text.as_bytes())
    }
}
