//! Builds a tokenizer from metadata: the algorithm of the tokenizer model, and the file's settings.
//!
//! Files are untrusted: every value is checked here, or made harmless by the code that reads it.

use std::borrow::Cow;
use std::sync::LazyLock;

use serde::Deserialize;

use crate::weights::{Metadata, StringArray};

use super::bpe::Bpe;
use super::library_encoder::{LibraryEncoder, LibraryVocabulary};
use super::longest_match::LongestMatch;
use super::lowest_cost::LowestCost;
use super::normaliser::Normaliser;
use super::pieces::PieceSpelling;
use super::pretokenizer;
use super::roles::{DefaultIds, SpecialIds};
use super::specials::SpecialTokens;
use super::spm::Spm;
use super::unigram::Unigram;
use super::vocab::{TokenKind, Vocabulary, required_strings};
use super::wordpiece::{self, WordPiece};
use super::{Encoder, Error, Tokenizer, keys, normal_form, roles, strip_rules};

/// The properties that a value of `tokenizer.ggml.model` implies.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenizerModel {
    name: Cow<'static, str>,
    algorithm: Algorithm,
    /// The pre-tokenizer, which overrides the file's.
    pre: Option<String>,
    #[serde(default)]
    defaults: DefaultIds,
}

/// The algorithm that encodes texts; `models.toml` describes each.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(super) enum Algorithm {
    Scores,
    Merges,
    WordPiece,
    Likelihood,
    Longest,
    Costs,
    /// No tokenizer: token ids only.
    Absent,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    model: Vec<TokenizerModel>,
}

static MODELS: LazyLock<Vec<TokenizerModel>> = LazyLock::new(|| {
    let table: Table = toml::from_str(include_str!("models.toml")).expect("models.toml");
    table.model
});

/// The entry for a vocabulary that the library of its folder encodes with.
static EXTERNAL: TokenizerModel = TokenizerModel {
    name: Cow::Borrowed("external"),
    algorithm: Algorithm::Absent,
    pre: None,
    defaults: DefaultIds {
        bos: None,
        eos: None,
        unk: None,
        sep: None,
    },
};

impl Algorithm {
    /// The value of `tokenizer.ggml.model` for this algorithm.
    pub(super) fn model_name(self) -> &'static str {
        let model = MODELS.iter().find(|model| model.algorithm == self);
        model.map_or("", |model| &model.name)
    }
}

impl Tokenizer {
    /// Reads the `tokenizer.ggml.*` keys of a file.
    pub fn from_metadata(metadata: &Metadata) -> Result<Self, Error> {
        let name = metadata
            .str(keys::MODEL)
            .ok_or(Error::MissingKey(keys::MODEL))?;
        let model = MODELS
            .iter()
            .find(|model| model.name == name)
            .ok_or_else(|| Error::UnsupportedModel(name.to_owned()))?;
        match model.algorithm {
            Algorithm::Scores => Self::with_spm(metadata, model),
            Algorithm::Merges => Self::with_bpe(metadata, model),
            Algorithm::WordPiece => Self::with_wordpiece(metadata, model),
            Algorithm::Likelihood => Self::with_unigram(metadata, model),
            Algorithm::Longest => Self::with_longest(metadata, model),
            Algorithm::Costs => Self::with_costs(metadata, model),
            Algorithm::Absent => Self::without_encoder(metadata, model),
        }
    }

    fn with_spm(metadata: &Metadata, model: &'static TokenizerModel) -> Result<Self, Error> {
        let adds_space_prefix = flag(metadata, keys::ADD_SPACE_PREFIX, true);
        let mut this = Self::new(
            metadata,
            model,
            Vocabulary::read(metadata)?,
            PieceSpelling::Escaped,
        );
        this.adds_bos = flag(metadata, keys::ADD_BOS, true);
        this.drops_first_space = adds_space_prefix && !flag(metadata, keys::SPACE_IS_LAST, false);
        this.form = normal_form::read(metadata)?;
        let merges_spaces = flag(metadata, keys::REMOVE_EXTRA_SPACES, false);
        let normaliser = Normaliser::read(metadata, &this.vocab, adds_space_prefix, merges_spaces)?;
        let spm = Spm::new(&this.vocab, normaliser, this.roles.unk);
        this.encoder = Some(Encoder::Spm(spm));
        Ok(this)
    }

    fn with_bpe(metadata: &Metadata, model: &'static TokenizerModel) -> Result<Self, Error> {
        let name = match &model.pre {
            Some(name) => name,
            None => pretokenizer_name(metadata)?,
        };
        let pre =
            pretokenizer::named(name).ok_or_else(|| Error::UnknownPreTokenizer(name.to_owned()))?;
        let merges = match required_strings(metadata, keys::MERGES) {
            Err(Error::MissingKey(_)) if pre.optional_merges => &StringArray::default(),
            merges => merges?,
        };

        let spaces = match pre.escapes_spaces {
            true => PieceSpelling::Escaped,
            false => PieceSpelling::ByteLevel,
        };
        let mut this = Self::new(metadata, model, Vocabulary::read(metadata)?, spaces);
        this.adds_bos = pre.always_adds_bos || flag(metadata, keys::ADD_BOS, pre.adds_bos);
        this.drops_first_space = flag(metadata, keys::ADD_SPACE_PREFIX, false);
        let bpe = Bpe::new(&this.vocab, merges, pre)?;
        this.encoder = Some(Encoder::Bpe(Box::new(bpe)));
        this.form = normal_form::read(metadata)?;
        Ok(this)
    }

    fn with_wordpiece(metadata: &Metadata, model: &'static TokenizerModel) -> Result<Self, Error> {
        let lowercase = flag(metadata, keys::LOWERCASE, true);
        let normaliser = wordpiece::WordPieceNormaliser {
            lowercase,
            strips_accents: flag(metadata, keys::STRIP_ACCENTS, lowercase),
        };
        let vocab = Vocabulary::read(metadata)?;
        let mut this = Self::new(metadata, model, vocab, PieceSpelling::Escaped);
        this.adds_bos = true;
        this.adds_eos = false;
        this.adds_sep = true;
        this.doubles_end = false;
        let pieces = WordPiece::new(normaliser, this.roles.unk)?;
        this.encoder = Some(Encoder::WordPiece(Box::new(pieces)));
        Ok(this)
    }

    fn with_unigram(metadata: &Metadata, model: &'static TokenizerModel) -> Result<Self, Error> {
        let adds_space_prefix = flag(metadata, keys::ADD_SPACE_PREFIX, false);
        let merges_spaces = flag(metadata, keys::REMOVE_EXTRA_SPACES, false);
        let vocab = Vocabulary::read(metadata)?;
        let mut this = Self::new(metadata, model, vocab, PieceSpelling::Escaped);
        this.adds_bos = flag(metadata, keys::ADD_BOS, false);
        this.adds_eos = flag(metadata, keys::ADD_EOS, true);
        this.drops_first_space = adds_space_prefix && !flag(metadata, keys::SPACE_IS_LAST, false);
        let normaliser = Normaliser::read(metadata, &this.vocab, adds_space_prefix, merges_spaces)?;
        let unigram = Unigram::new(&this.vocab, normaliser, this.roles.unk)?;
        this.encoder = Some(Encoder::Unigram(Box::new(unigram)));
        Ok(this)
    }

    fn with_longest(metadata: &Metadata, model: &'static TokenizerModel) -> Result<Self, Error> {
        let vocab = Vocabulary::read(metadata)?;
        let mut this = Self::new(metadata, model, vocab, PieceSpelling::Escapes);
        // Nothing is added before or after a text, whatever the file says.
        this.adds_eos = false;
        let longest = LongestMatch::new(&this.vocab, this.roles.unk);
        this.encoder = Some(Encoder::Longest(longest));
        Ok(this)
    }

    fn with_costs(metadata: &Metadata, model: &'static TokenizerModel) -> Result<Self, Error> {
        let vocab = Vocabulary::read(metadata)?;
        let mut this = Self::new(metadata, model, vocab, PieceSpelling::AsIs);
        this.adds_bos = flag(metadata, keys::ADD_BOS, false);
        let costs = LowestCost::new(&this.vocab)?;
        this.encoder = Some(Encoder::Costs(costs));
        Ok(this)
    }

    /// A vocabulary whose texts are encoded by the library of its folder.
    pub(super) fn with_library(
        metadata: &Metadata,
        library: LibraryVocabulary,
    ) -> Result<Self, Error> {
        let vocab = Vocabulary::read(metadata)?;
        let mut this = Self::new(metadata, &EXTERNAL, vocab, library.spelling);
        this.drops_first_space = library.adds_space;
        let (first, last) = &library.frame;
        let is = |id: Option<&u32>, role| id.is_some() && id.copied() == role;
        this.adds_bos = is(first.first(), this.roles.bos);
        this.adds_eos = is(last.last(), this.roles.eos);
        let is_control = |id| {
            matches!(
                this.vocab.kind(id),
                Some(TokenKind::Control | TokenKind::Unknown)
            )
        };
        let encoder = LibraryEncoder::new(library, this.vocab_len, is_control)?;
        this.encoder = Some(Encoder::External(Box::new(encoder)));
        Ok(this)
    }

    fn without_encoder(metadata: &Metadata, model: &'static TokenizerModel) -> Result<Self, Error> {
        let vocab = match Vocabulary::read(metadata) {
            Err(Error::MissingKey(_) | Error::EmptyVocabulary) => Vocabulary::default(),
            vocab => vocab?,
        };
        let arch = metadata.str("general.architecture").unwrap_or_default();
        let declared = metadata.i64(&format!("{arch}.vocab_size"));
        let declared = declared.and_then(|n| u32::try_from(n).ok()).unwrap_or(0);

        let mut this = Self::new(metadata, model, vocab, PieceSpelling::AsIs);
        this.vocab_len = this.vocab_len.max(declared as usize);
        Ok(this)
    }

    /// The parts that all models share, without an encoder.
    fn new(
        metadata: &Metadata,
        model: &'static TokenizerModel,
        mut vocab: Vocabulary,
        spaces: PieceSpelling,
    ) -> Self {
        let own = SpecialIds::read(metadata, &mut vocab, model.defaults);
        let mut specials = SpecialTokens::new(&vocab, metadata);
        strip_rules::apply(pretokenizer::rules(), metadata, &mut specials);
        specials.strip_listed(metadata);
        let (mut pieces, mut piece) = (StringArray::default(), Vec::new());
        for (_, text, kind) in vocab.iter() {
            piece.clear();
            spaces.append_piece(text, kind, &mut piece);
            pieces.push(&piece);
        }
        // Older files, without this key, are of encoders that separate texts so.
        let is_whole = metadata.get(roles::ENDS).is_some();
        let separates = !is_whole && own.sep.is_some() && own.sep == own.eos;
        Self {
            model: &model.name,
            pieces,
            vocab_len: vocab.len(),
            vocab,
            roles: own,
            specials,
            encoder: None,
            form: None,
            adds_bos: false,
            adds_eos: flag(metadata, keys::ADD_EOS, false),
            adds_sep: false,
            doubles_end: flag(metadata, keys::ADD_SEP, separates),
            drops_first_space: false,
            drops_last_space: false,
            space_at_start_only: flag(metadata, keys::SPACE_AT_START_ONLY, false),
        }
    }
}

fn pretokenizer_name(metadata: &Metadata) -> Result<&str, Error> {
    match metadata.get(keys::PRE) {
        None => Ok(pretokenizer::DEFAULT),
        Some(value) => match value.as_str() {
            Some("") => Ok(pretokenizer::DEFAULT),
            Some(name) => Ok(name),
            None => Err(Error::WrongType {
                key: keys::PRE,
                found: value.type_name(),
                expected: "a string",
            }),
        },
    }
}

/// A flag of the file; a value that is not a boolean counts as absent.
fn flag(metadata: &Metadata, key: &str, default: bool) -> bool {
    metadata.bool(key).unwrap_or(default)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_parses_and_its_names_are_distinct() {
        let table: Result<Table, _> = toml::from_str(include_str!("models.toml"));
        let models = table.unwrap_or_else(|error| panic!("{error}")).model;
        for (i, model) in models.iter().enumerate() {
            assert!(models[..i].iter().all(|other| other.name != model.name));
            let pre = model.pre.as_deref().map(pretokenizer::named);
            assert!(pre.is_none_or(|row| row.is_some()), "{}", model.name);
        }
        assert!(!Algorithm::Costs.model_name().is_empty());
    }
}
