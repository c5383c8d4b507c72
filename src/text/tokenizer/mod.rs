//! Tokenizers, built from what a weight file says about its vocabulary.
//!
//! A [`Tokenizer`] splits a text at its special tokens (`specials`) and hands the rest to the
//! algorithm the file names: SentencePiece by score (`spm`) or byte-pair merges (`bpe`, with the
//! words of `words` and `pretokenizer`). An algorithm is one file and one row of [`MODELS`].
//! Not here: chat templates, and holding back the bytes of unfinished characters.
//!
//! Invariant: decoding works on bytes, because a token may end inside a character.

mod bpe;
mod byte_level;
mod chain;
mod pretokenizer;
mod quirks;
mod roles;
mod specials;
mod spm;
mod vocab;
mod words;

use std::borrow::Cow;

use crate::weights::{Metadata, StringArray};

use bpe::{Merges, Scratch};
use pretokenizer::PreTokenizer;
use roles::{Defaults, Roles};
use specials::{Part, Specials};
use vocab::{Kind, Vocabulary, named_byte, required_strings};
use words::Splitter;

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const MERGES: &str = "tokenizer.ggml.merges";

/// What is wrong with a vocabulary, or with a text for it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A key the tokenizer needs is missing.
    #[error("missing key `{0}`")]
    MissingKey(&'static str),
    /// A key holds a value of another type.
    #[error("`{key}` is of type {found}, expected {expected}")]
    WrongType {
        /// The key.
        key: &'static str,
        /// Type of its value.
        found: &'static str,
        /// What it should be.
        expected: &'static str,
    },
    /// An array has fewer entries than there are tokens.
    #[error("`{key}` has {found} entries, expected {expected}, one per token")]
    ShortArray {
        /// The key.
        key: &'static str,
        /// Entries it has.
        found: usize,
        /// Number of tokens.
        expected: usize,
    },
    /// The vocabulary has no tokens.
    #[error("`tokenizer.ggml.tokens` is empty")]
    EmptyVocabulary,
    /// The vocabulary has more tokens than ids.
    #[error("`tokenizer.ggml.tokens` has {0} entries, more than there are ids")]
    TooManyTokens(usize),
    /// A tokenizer model nobody knows, or one that is not supported.
    #[error("tokenizer model `{0}` is not supported")]
    UnsupportedModel(String),
    /// A pre-tokenizer nobody knows.
    #[error("unknown pre-tokenizer `{0}` (`tokenizer.ggml.pre`)")]
    UnknownPreTokenizer(String),
    /// A pattern of the pre-tokenizer does not compile.
    #[error("pre-tokenizer pattern `{pattern}`")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// What is wrong with it.
        source: Box<regex_automata::meta::BuildError>,
    },
    /// The model comes without a tokenizer, so texts cannot be encoded.
    #[error(
        "the model has no tokenizer (`tokenizer.ggml.model` is `{0}`): it takes token ids only"
    )]
    NoTokenizer(String),
    /// A byte of the text has no token, and there is no token for the unknown.
    #[error("the vocabulary has no token for byte {0:#04x}")]
    NoTokenForByte(u8),
    /// The text is 4 GiB or longer.
    #[error("the text is too long: {0} bytes")]
    TextTooLong(usize),
}

/// What a tokenizer model implies.
struct Model {
    name: &'static str,
    algorithm: Algorithm,
    /// The pre-tokenizer, whatever the file says.
    pre: Option<&'static str>,
    defaults: Defaults,
}

#[derive(Clone, Copy)]
enum Algorithm {
    Pieces,
    Merges,
    /// Token ids only.
    Absent,
}

const NO_DEFAULTS: Defaults = Defaults {
    bos: None,
    eos: None,
    unk: None,
};

const fn model(name: &'static str, algorithm: Algorithm) -> Model {
    Model {
        name,
        algorithm,
        pre: None,
        defaults: NO_DEFAULTS,
    }
}

/// The values of `tokenizer.ggml.model`.
const MODELS: &[Model] = &[
    Model {
        defaults: Defaults {
            bos: Some(1),
            eos: Some(2),
            unk: Some(0),
        },
        ..model("llama", Algorithm::Pieces)
    },
    model("gpt2", Algorithm::Merges),
    Model {
        pre: Some("gemma4"),
        ..model("gemma4", Algorithm::Merges)
    },
    model("none", Algorithm::Absent),
    model("no_vocab", Algorithm::Absent),
    model("test", Algorithm::Absent),
];

/// How texts become tokens.
#[derive(Debug)]
enum Encoder {
    Pieces {
        adds_space_prefix: bool,
    },
    Words {
        merges: Box<Merges>,
        splitter: Splitter,
        pre: &'static PreTokenizer,
    },
    Absent {
        model: String,
    },
}

/// A vocabulary that encodes texts and decodes tokens. Immutable and shared freely.
#[derive(Debug)]
pub struct Tokenizer {
    vocab: Vocabulary,
    roles: Roles,
    specials: Specials,
    encoder: Encoder,
    /// The bytes each token contributes to a text.
    pieces: StringArray,
    adds_bos: bool,
    adds_eos: bool,
    drops_first_space: bool,
}

impl Tokenizer {
    /// Reads the `tokenizer.ggml.*` keys of a file.
    pub fn from_metadata(metadata: &Metadata) -> Result<Self, Error> {
        let name = metadata.str(MODEL).ok_or(Error::MissingKey(MODEL))?;
        let model = MODELS
            .iter()
            .find(|model| model.name == name)
            .ok_or_else(|| Error::UnsupportedModel(name.to_owned()))?;
        match model.algorithm {
            Algorithm::Pieces => Self::with_pieces(metadata, model),
            Algorithm::Merges => Self::with_merges(metadata, model),
            Algorithm::Absent => Self::absent(metadata, model),
        }
    }

    fn with_pieces(metadata: &Metadata, model: &Model) -> Result<Self, Error> {
        let adds_space_prefix = flag(metadata, "tokenizer.ggml.add_space_prefix", true);
        let vocab = Vocabulary::read(metadata)?;
        let encoder = Encoder::Pieces { adds_space_prefix };
        Ok(Self {
            adds_bos: flag(metadata, "tokenizer.ggml.add_bos_token", true),
            ..Self::assemble(metadata, model, vocab, encoder, Spaces::Escaped)
        })
    }

    fn with_merges(metadata: &Metadata, model: &Model) -> Result<Self, Error> {
        let name = match metadata.get(PRE) {
            _ if model.pre.is_some() => model.pre.unwrap_or_default(),
            None => pretokenizer::DEFAULT,
            Some(value) => match value.as_str() {
                Some("") => pretokenizer::DEFAULT,
                Some(name) => name,
                None => {
                    return Err(Error::WrongType {
                        key: PRE,
                        found: value.type_name(),
                        expected: "a string",
                    });
                }
            },
        };
        let pre =
            pretokenizer::named(name).ok_or_else(|| Error::UnknownPreTokenizer(name.to_owned()))?;

        let vocab = Vocabulary::read(metadata)?;
        let merges = match required_strings(metadata, MERGES) {
            Err(Error::MissingKey(_)) if pre.optional_merges => &StringArray::default(),
            merges => merges?,
        };
        let encoder = Encoder::Words {
            merges: Box::new(Merges::new(&vocab, merges, pre.spelling)),
            splitter: Splitter::new(pre.steps)?,
            pre,
        };
        let spaces = match pre.escapes_spaces {
            true => Spaces::Escaped,
            false => Spaces::ByteLevel,
        };
        let adds_bos = flag(metadata, "tokenizer.ggml.add_bos_token", pre.adds_bos);
        Ok(Self {
            adds_bos: adds_bos || pre.always_adds_bos,
            ..Self::assemble(metadata, model, vocab, encoder, spaces)
        })
    }

    fn absent(metadata: &Metadata, model: &Model) -> Result<Self, Error> {
        let vocab = match Vocabulary::read(metadata) {
            Err(Error::MissingKey(_) | Error::EmptyVocabulary) => Vocabulary::default(),
            vocab => vocab?,
        };
        let encoder = Encoder::Absent {
            model: model.name.to_owned(),
        };
        Ok(Self::assemble(
            metadata,
            model,
            vocab,
            encoder,
            Spaces::AsIs,
        ))
    }

    fn assemble(
        metadata: &Metadata,
        model: &Model,
        mut vocab: Vocabulary,
        encoder: Encoder,
        spaces: Spaces,
    ) -> Self {
        let roles = Roles::read(metadata, &mut vocab, model.defaults);
        let mut specials = Specials::new(&vocab);
        quirks::apply(metadata, &mut specials);
        let pieces = vocab
            .iter()
            .map(|(_, text, kind)| spaces.piece(text, kind))
            .collect();
        let prefix = matches!(encoder, Encoder::Pieces { adds_space_prefix } if adds_space_prefix);
        Self {
            vocab,
            roles,
            specials,
            encoder,
            pieces,
            adds_bos: false,
            adds_eos: flag(metadata, "tokenizer.ggml.add_eos_token", false),
            drops_first_space: flag(metadata, "tokenizer.ggml.add_space_prefix", prefix),
        }
    }

    /// The tokens of a text. `add_special` adds the BOS and EOS tokens the vocabulary asks for;
    /// `parse_special` recognises control tokens in the text.
    pub fn encode(
        &self,
        text: &str,
        add_special: bool,
        parse_special: bool,
    ) -> Result<Vec<u32>, Error> {
        if u32::try_from(text.len().saturating_mul(3)).is_err() {
            return Err(Error::TextTooLong(text.len()));
        }
        let mut out = Vec::with_capacity(text.len() / 3 + 2);
        if add_special && self.adds_bos {
            out.extend(self.roles.bos);
        }
        let mut scratch = Scratch::default();
        let mut after_text = false;
        for part in self.specials.split(text, parse_special) {
            match part {
                Part::Token(id) => out.push(id),
                Part::Text(text) => self.encode_text(text, after_text, &mut scratch, &mut out)?,
            }
            after_text = matches!(part, Part::Text(_));
        }
        if let Encoder::Absent { model } = &self.encoder {
            return Err(Error::NoTokenizer(model.clone()));
        }
        if add_special && self.adds_eos {
            out.extend(self.roles.eos);
        }
        Ok(out)
    }

    /// Encodes a text without special tokens.
    fn encode_text(
        &self,
        text: &str,
        after_text: bool,
        scratch: &mut Scratch,
        out: &mut Vec<u32>,
    ) -> Result<(), Error> {
        match &self.encoder {
            Encoder::Pieces { adds_space_prefix } => {
                let prefix = match adds_space_prefix {
                    true if !after_text => SPACE,
                    _ => "",
                };
                let text = format!("{prefix}{}", text.replace(' ', SPACE));
                spm::encode(&self.vocab, self.roles.unk, &text, out)
            }
            Encoder::Words {
                merges,
                splitter,
                pre,
            } => {
                let text = match pre.escapes_spaces {
                    true => Cow::Owned(text.replace(' ', SPACE)),
                    false => Cow::Borrowed(text),
                };
                for word in splitter.split(&text) {
                    let word = &text[word];
                    let whole = pre.ignore_merges
                        || pre.keeps_line_feeds && word.bytes().all(|b| b == b'\n');
                    match merges.token(word).filter(|_| whole) {
                        Some(id) => out.push(id),
                        None => merges.encode(&self.vocab, word, scratch, out),
                    }
                }
                Ok(())
            }
            Encoder::Absent { model } => Err(Error::NoTokenizer(model.clone())),
        }
    }

    /// The text of tokens, special ones included, without the space that encoding puts first.
    /// Bytes, because the tokens may stop inside a character.
    pub fn decode(&self, ids: &[u32]) -> Vec<u8> {
        let mut out = Vec::new();
        for (index, &id) in ids.iter().enumerate() {
            let piece = self.piece(id);
            let piece = match piece {
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

    /// Number of tokens.
    pub fn vocab_len(&self) -> usize {
        self.vocab.len()
    }

    /// The token that begins a sequence.
    pub fn bos(&self) -> Option<u32> {
        self.roles.bos
    }

    /// The token that ends a sequence.
    pub fn eos(&self) -> Option<u32> {
        self.roles.eos
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

    /// The token that stands for text to be filled in.
    pub fn mask(&self) -> Option<u32> {
        self.roles.mask
    }

    /// Whether a token steers the model and is no text.
    pub fn is_control(&self, id: u32) -> bool {
        self.vocab.kind(id) == Some(Kind::Control)
    }

    /// Whether a generation ends with this token.
    pub fn is_end_of_generation(&self, id: u32) -> bool {
        self.roles.ends.contains(&id)
    }

    /// Whether `encode` puts the BOS token first when special tokens are asked for.
    pub fn adds_bos(&self) -> bool {
        self.adds_bos && self.roles.bos.is_some()
    }

    /// Whether `encode` puts the EOS token last when special tokens are asked for.
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

/// The character that vocabularies write for a space.
const SPACE: &str = "\u{2581}";

/// How the texts of plain tokens spell spaces.
#[derive(Clone, Copy)]
enum Spaces {
    Escaped,
    ByteLevel,
    AsIs,
}

impl Spaces {
    /// The bytes a token contributes to a text.
    fn piece(self, text: &[u8], kind: Kind) -> Vec<u8> {
        match (kind, self) {
            (_, Self::AsIs) | (Kind::Control | Kind::UserDefined | Kind::Unknown, _) => {
                text.to_vec()
            }
            (Kind::Byte, _) => named_byte(text).map_or_else(|| text.to_vec(), |byte| vec![byte]),
            (Kind::Unused, _) => Vec::new(),
            (Kind::Normal, Self::Escaped) => unescape_spaces(text),
            (Kind::Normal, Self::ByteLevel) => {
                let mut piece = Vec::with_capacity(text.len());
                for chunk in text.utf8_chunks() {
                    byte_level::append_bytes(chunk.valid(), &mut piece);
                    piece.extend_from_slice(chunk.invalid());
                }
                piece
            }
        }
    }
}

fn unescape_spaces(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, after @ ..] = rest {
        rest = match rest.strip_prefix(SPACE.as_bytes()) {
            Some(after) => {
                out.push(b' ');
                after
            }
            None => {
                out.push(*first);
                after
            }
        };
    }
    out
}

/// A flag of the file; anything but a boolean counts as absent.
fn flag(metadata: &Metadata, key: &str, default: bool) -> bool {
    metadata.bool(key).unwrap_or(default)
}

#[cfg(test)]
mod tests;
