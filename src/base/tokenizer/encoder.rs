//! The tokenizer, and how it encodes texts.

use std::borrow::Cow;

use super::Error;
use super::bpe::Bpe;
use super::library_encoder::LibraryEncoder;
use super::longest_match::LongestMatch;
use super::lowest_cost::LowestCost;
use super::normal_form::NormalForm;
use super::roles::SpecialIds;
use super::specials::{SpecialTokens, TextPart};
use super::spm::Spm;
use super::unigram::Unigram;
use super::vocab::Vocabulary;
use super::wordpiece::WordPiece;
use crate::weights::StringArray;

/// A vocabulary that encodes texts and decodes tokens. Immutable and freely shared.
#[derive(Debug)]
pub struct Tokenizer {
    /// Value of `tokenizer.ggml.model`.
    pub(super) model: &'static str,
    pub(super) vocab: Vocabulary,
    pub(super) roles: SpecialIds,
    pub(super) specials: SpecialTokens,
    /// The algorithm that encodes texts; `None` for models that take token ids only.
    pub(super) encoder: Option<Encoder>,
    /// The Unicode normal form to which texts are converted first.
    pub(super) form: Option<NormalForm>,
    /// The bytes that each token contributes to a text.
    pub(super) pieces: StringArray,
    pub(super) vocab_len: usize,
    pub(super) adds_bos: bool,
    pub(super) adds_eos: bool,
    pub(super) adds_sep: bool,
    /// Whether, between the texts of a pair, the separator follows the end of the first.
    pub(super) doubles_end: bool,
    pub(super) drops_first_space: bool,
    pub(super) drops_last_space: bool,
    /// Whether no space is added after a special token.
    pub(super) space_at_start_only: bool,
}

/// The algorithm that encodes texts without special tokens.
#[derive(Debug)]
pub(super) enum Encoder {
    Spm(Spm),
    Bpe(Box<Bpe>),
    WordPiece(Box<WordPiece>),
    Unigram(Box<Unigram>),
    Longest(LongestMatch),
    Costs(LowestCost),
    /// The library of the vocabulary's folder, which also handles special tokens.
    External(Box<LibraryEncoder>),
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
        let encoder = self.encoder_of(text)?;
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

    /// The tokens of a prompt that a chat template rendered. A folder's template writes all special tokens itself, as
    /// transformers assumes. For the template of a file, the vocabulary's BOS and EOS are added, as llama-server does, unless
    /// the text begins with BOS.
    ///
    /// # Errors
    /// The errors of [`Self::encode`].
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>, Error> {
        let bos = self.bos().and_then(|id| self.token_text(id));
        let writes_bos = bos.is_some_and(|bos| !bos.is_empty() && text.starts_with(&*bos));
        let is_of_folder = matches!(self.encoder, Some(Encoder::External(_)));
        self.encode(text, !writes_bos && !is_of_folder, true)
    }

    /// The tokens of a text that continues another one. No special tokens and no space are added.
    ///
    /// # Errors
    /// The model has no tokenizer, or bytes have no token.
    pub fn encode_continuation(&self, text: &str) -> Result<Vec<u32>, Error> {
        let encoder = self.encoder_of(text)?;
        if let Encoder::External(external) = encoder {
            return external.encode_continuation(text);
        }
        let mut out = Vec::with_capacity(text.len() / 3 + 2);
        self.encode_parts(encoder, text, false, true, &mut out)?;
        Ok(out)
    }

    /// The algorithm, for a text that it can take.
    fn encoder_of(&self, text: &str) -> Result<&Encoder, Error> {
        // Positions are 32-bit, and an escaped space has three bytes.
        match &self.encoder {
            None => Err(Error::NoTokenizer(self.model)),
            Some(_) if text.len() >= u32::MAX as usize / 4 => Err(Error::TextTooLong(text.len())),
            Some(encoder) => Ok(encoder),
        }
    }

    /// The prompt for the text between two texts (fill-in-the-middle); `None` if the vocabulary has no tokens for it.
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

    /// The tokens of another file before a gap, to be placed after [`Self::encode_repository`]. A file without a name
    /// is a snippet.
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
            // The reference implementation separates files so if there is no token for it.
            None => out.extend(self.encode("\n\n--- snippet ---\n\n", false, false)?),
        }
        out.extend(self.encode(text, false, false)?);
        Ok(out)
    }

    /// The tokens before those of files, if the vocabulary has a token for a repository.
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

    /// Appends the tokens of a text. `after_text`: the text continues another one.
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
                TextPart::Token(id) => out.push(id),
                TextPart::Text(text) => {
                    let text = self.form.map_or(Cow::Borrowed(text), |form| form.of(text));
                    self.encode_plain(encoder, &text, after_text, out)?;
                }
            }
            after_text = self.space_at_start_only || matches!(part, TextPart::Text(_));
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
            Encoder::External(external) => out.extend(external.encode_continuation(text)?),
        }
        Ok(())
    }

    /// The name of the encoding algorithm; `None` if texts cannot be encoded.
    pub fn kind(&self) -> Option<&'static str> {
        Some(match self.encoder.as_ref()? {
            Encoder::Bpe(_) => "byte-pair encoding",
            Encoder::Spm(_) => "SentencePiece, by scores",
            Encoder::Unigram(_) => "unigram, by likelihood",
            Encoder::WordPiece(_) => "WordPiece",
            Encoder::Longest(_) => "the longest token first",
            Encoder::Costs(_) => "the cheapest tokens",
            Encoder::External(external) => external.kind(),
        })
    }

    /// Whether encoding preserves every byte of a text, so that the bytes of each token are well-defined.
    pub fn keeps_bytes(&self) -> bool {
        match &self.encoder {
            Some(Encoder::Bpe(_) | Encoder::Longest(_)) => true,
            // Replacements change texts, and joining white space loses some.
            Some(Encoder::Spm(spm)) => spm.keeps_bytes(),
            Some(Encoder::External(external)) => external.vocabulary.keeps_bytes,
            _ => false,
        }
    }
}
