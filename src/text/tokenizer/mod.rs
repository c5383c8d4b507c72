//! Tokenizers, built from what a weight file says about its vocabulary.
//!
//! A [`Tokenizer`] splits a text at its special tokens (`specials`) and hands the rest to the
//! algorithm the file names: SentencePiece by score (`spm`), byte-pair merges (`bpe`, with the words
//! of `words` and `pretokenizer`), `wordpiece`, `unigram`, the `longest` token, the least `costs`, or the
//! library of the folder that the vocabulary came in (`folder`, `external`). An algorithm is one file and one row of the table in `load`.
//! Not here: chat templates, and holding back the bytes of unfinished characters.
//!
//! Invariant: decoding works on bytes, because a token may end inside a character.

mod bpe;
mod byte_level;
mod chain;
mod costs;
mod error;
mod external;
pub mod folder;
mod frame;
mod keys;
mod load;
mod longest;
mod normal_form;
mod normaliser;
mod pieces;
mod prefixes;
mod pretokenizer;
mod quirks;
mod replacements;
mod roles;
mod specials;
mod spm;
mod unigram;
mod vocab;
mod wordpiece;
mod words;

use std::borrow::Cow;
use std::sync::Arc;

use crate::weights::StringArray;

pub use error::Error;
pub use frame::Frame;
pub use keys::unread;

use bpe::Bpe;
use costs::Costs;
use external::External;
use longest::Longest;
use normal_form::Form;
use roles::Roles;
use specials::{Part, Specials};
use spm::Spm;
use unigram::Unigram;
use vocab::{Kind, Vocabulary};
use wordpiece::WordPiece;

/// The character that vocabularies write for a space.
const SPACE: &str = "\u{2581}";

/// A vocabulary that encodes texts and decodes tokens. Immutable and shared freely.
#[derive(Debug)]
pub struct Tokenizer {
    /// Value of `tokenizer.ggml.model`.
    model: &'static str,
    vocab: Vocabulary,
    roles: Roles,
    specials: Specials,
    /// How texts become tokens; `None` for models that take token ids only.
    encoder: Option<Encoder>,
    /// The Unicode normal form that texts are brought to first.
    form: Option<Form>,
    /// The bytes each token contributes to a text.
    pieces: StringArray,
    vocab_len: usize,
    adds_bos: bool,
    adds_eos: bool,
    adds_sep: bool,
    /// Between the texts of a pair the separator follows the end of the first.
    doubles_end: bool,
    drops_first_space: bool,
    /// No space is put after a special token.
    space_at_start_only: bool,
}

/// How texts without special tokens become tokens.
#[derive(Debug)]
enum Encoder {
    Spm(Spm),
    Bpe(Box<Bpe>),
    WordPiece(Box<WordPiece>),
    Unigram(Box<Unigram>),
    Longest(Longest),
    Costs(Costs),
    /// By the library of the vocabulary's folder, special tokens included.
    External(Arc<External>),
}

impl Tokenizer {
    /// The tokens of a text. `add_special` adds the BOS and EOS tokens that the vocabulary requires;
    /// `parse_special` recognises control tokens in the text.
    pub fn encode(
        &self,
        text: &str,
        add_special: bool,
        parse_special: bool,
    ) -> Result<Vec<u32>, Error> {
        let Some(encoder) = &self.encoder else {
            return Err(Error::NoTokenizer(self.model));
        };
        // Positions are 32 bits wide, and an escaped space has three bytes.
        if text.len() >= u32::MAX as usize / 4 {
            return Err(Error::TextTooLong(text.len()));
        }
        if let Encoder::External(external) = encoder {
            return external.encode(text, add_special, parse_special);
        }

        let mut out = Vec::with_capacity(text.len() / 3 + 2);
        if add_special && self.adds_bos {
            out.extend(self.roles.bos);
        }
        self.encode_parts(encoder, text, parse_special, false, &mut out)?;
        if add_special && self.adds_eos {
            out.extend(self.roles.eos);
        }
        if add_special && self.adds_sep {
            out.extend(self.roles.sep);
        }
        Ok(out)
    }

    /// The tokens of a text that continues another, without special tokens: nothing is put first.
    ///
    /// # Errors
    /// A model without a tokenizer, or bytes without a token.
    pub fn encode_continuation(&self, text: &str) -> Result<Vec<u32>, Error> {
        let Some(encoder) = &self.encoder else {
            return Err(Error::NoTokenizer(self.model));
        };
        if let Encoder::External(external) = encoder {
            return external.encode(text, false, false);
        }
        let mut out = Vec::with_capacity(text.len() / 3 + 2);
        self.encode_parts(encoder, text, false, true, &mut out)?;
        Ok(out)
    }

    /// The prompt that asks for what is between two texts (fill-in-the-middle); none if the vocabulary
    /// has no tokens for it.
    ///
    /// # Errors
    /// As [`Self::encode`].
    pub fn encode_gap(&self, before: &str, after: &str) -> Result<Option<Vec<u32>>, Error> {
        let Some([prefix, suffix, middle]) = self.roles.fim else {
            return Ok(None);
        };
        let mut out = Vec::new();
        if self.adds_bos {
            out.extend(self.roles.bos);
        }
        out.push(prefix);
        out.extend(self.encode(before, false, false)?);
        out.push(suffix);
        out.extend(self.encode(after, false, false)?);
        out.push(middle);
        Ok(Some(out))
    }

    /// The tokens of other files, by name and text, that come before a gap: one list for each, to be put after
    /// [`Self::encode_repository`]. A file without a name is a snippet.
    ///
    /// # Errors
    /// As [`Self::encode`].
    pub fn encode_file(&self, name: Option<&str>, text: &str) -> Result<Vec<u32>, Error> {
        let mut out = Vec::new();
        match self.roles.file {
            Some(mark) => {
                out.push(mark);
                out.extend(self.encode(&format!("{}\n", name.unwrap_or("tmp")), false, false)?);
            }
            // The way the reference implementation tells files apart without such a token.
            None => out.extend(self.encode("\n\n--- snippet ---\n\n", false, false)?),
        }
        out.extend(self.encode(text, false, false)?);
        Ok(out)
    }

    /// The tokens before those of files, where the vocabulary has a token for it.
    ///
    /// # Errors
    /// As [`Self::encode`].
    pub fn encode_repository(&self) -> Result<Vec<u32>, Error> {
        let Some(mark) = self.roles.repo else {
            return Ok(Vec::new());
        };
        let name = self.encode("myproject\n", false, false)?;
        Ok([vec![mark], name].concat())
    }

    /// Whether the vocabulary has a token before the name of a file.
    pub fn marks_files(&self) -> bool {
        self.roles.file.is_some()
    }

    /// Appends the tokens of a text; `after_text` says whether it continues one.
    fn encode_parts(
        &self,
        encoder: &Encoder,
        text: &str,
        parse_special: bool,
        mut after_text: bool,
        out: &mut Vec<u32>,
    ) -> Result<(), Error> {
        for part in self.specials.split(text, parse_special) {
            match part {
                Part::Token(id) => out.push(id),
                Part::Text(text) => {
                    let text = self.form.map_or(Cow::Borrowed(text), |form| form.of(text));
                    self.encode_plain(encoder, &text, after_text, out)?;
                }
            }
            after_text = self.space_at_start_only || matches!(part, Part::Text(_));
        }
        Ok(())
    }

    /// Appends the tokens of a text without special tokens.
    fn encode_plain(
        &self,
        encoder: &Encoder,
        text: &str,
        after_text: bool,
        out: &mut Vec<u32>,
    ) -> Result<(), Error> {
        match encoder {
            Encoder::Bpe(bpe) => bpe.encode(&self.vocab, text, out),
            Encoder::Spm(spm) => spm.encode(&self.vocab, text, after_text, out)?,
            Encoder::WordPiece(pieces) => pieces.encode(&self.vocab, text, out)?,
            Encoder::Unigram(unigram) => unigram.encode(text, after_text, out),
            Encoder::Longest(longest) => longest.encode(text, out)?,
            Encoder::Costs(costs) => costs.encode(text, out),
            Encoder::External(external) => out.extend(external.encode(text, false, false)?),
        }
        Ok(())
    }

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

    /// How texts become tokens; `None` if no text does.
    pub fn kind(&self) -> Option<&'static str> {
        Some(match self.encoder.as_ref()? {
            Encoder::Bpe(_) => "byte-pair encoding",
            Encoder::Spm(_) => "SentencePiece, by scores",
            Encoder::Unigram(_) => "unigram, by likelihood",
            Encoder::WordPiece(_) => "WordPiece",
            Encoder::Longest(_) => "the longest token first",
            Encoder::Costs(_) => "the cheapest tokens",
            Encoder::External(_) => "by the library of its folder",
        })
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

    /// Whether encoding keeps every byte of a text, so that the tokens of bytes are well-defined.
    pub fn keeps_bytes(&self) -> bool {
        match &self.encoder {
            Some(Encoder::Bpe(_) | Encoder::Longest(_)) => true,
            // A table of replacements changes texts, and joined white space is gone.
            Some(Encoder::Spm(spm)) => spm.keeps_bytes(),
            Some(Encoder::External(external)) => external.keeps_bytes,
            _ => false,
        }
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

#[cfg(test)]
mod tests;
