//! Encoding by the `tokenizers` library, for the vocabularies of folders that it reads.
//!
//! The library splits at special tokens itself, so `specials` is not used with it. Pieces and roles come from the
//! metadata, as for every other vocabulary. Not here: reading the folder.
//!
//! Invariants: a panic of the library, which indexes with numbers from its file, becomes an error; no text contains a
//! token outside the vocabulary.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value as Json, json};
use tokenizers::models::wordlevel::WordLevel;
use tokenizers::{
    AddedVocabulary, Model as _, ModelWrapper, NormalizerWrapper, OffsetReferential, OffsetType,
    PreTokenizer as _, PreTokenizerWrapper,
};

use crate::util::panics::caught;

use super::Error;
use super::pieces::PieceSpelling;

/// A vocabulary that the library encodes with.
#[derive(Debug)]
pub(super) struct LibraryVocabulary {
    pub(super) library: tokenizers::Tokenizer,
    /// The tokens that a text starts and ends with, if special tokens are requested.
    pub(super) frame: (Vec<u32>, Vec<u32>),
    pub(super) spelling: PieceSpelling,
    /// Whether a space is added before a text.
    pub(super) adds_space: bool,
    /// Whether encoding preserves every byte of a text.
    pub(super) keeps_bytes: bool,
}

#[derive(Debug)]
pub(super) struct LibraryEncoder {
    pub(super) vocabulary: LibraryVocabulary,
    whole: Steps,
    /// As `whole`; control tokens are text.
    literal: Steps,
    /// As `literal`, for a text that continues another one: no space is added before it.
    continued: Steps,
}

/// The steps before the model.
#[derive(Debug)]
struct Steps {
    added: AddedVocabulary,
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: Option<PreTokenizerWrapper>,
}

impl LibraryEncoder {
    /// `n_tokens`: ids from there on are none of the vocabulary.
    pub(super) fn new(
        vocabulary: LibraryVocabulary,
        n_tokens: usize,
        is_control: impl Fn(u32) -> bool,
    ) -> Result<Self, Error> {
        let library = &vocabulary.library;
        let known = library.get_added_vocabulary();
        let steps = |is_literal: bool, adds_space: bool| -> tokenizers::Result<Steps> {
            let normalizer = changed(library.get_normalizer(), adds_space)?;
            // A model that gives every token the id that it has.
            let ids = WordLevel::builder().vocab(known.get_vocab().clone());
            let tokens = known.get_added_tokens_decoder().iter();
            let tokens = tokens.filter(|(id, _)| (**id as usize) < n_tokens);
            let tokens = tokens.map(|(id, token)| token.clone().special(is_control(*id)));
            let mut added = AddedVocabulary::new();
            added.add_tokens(tokens, &ids.build()?, normalizer.as_ref())?;
            added.set_encode_special_tokens(is_literal);
            Ok(Steps {
                added,
                normalizer,
                pre_tokenizer: changed(library.get_pre_tokenizer(), adds_space)?,
            })
        };
        let make = || Ok((steps(false, true)?, steps(true, true)?, steps(true, false)?));
        let (whole, literal, continued) = guarded(make).map_err(Error::External)?;
        Ok(Self {
            vocabulary,
            whole,
            literal,
            continued,
        })
    }

    pub(super) fn encode(
        &self,
        text: &str,
        add_special: bool,
        parse_special: bool,
    ) -> Result<Vec<u32>, Error> {
        let steps = match parse_special {
            true => &self.whole,
            false => &self.literal,
        };
        let (first, last) = &self.vocabulary.frame;
        let ids = self.ids(steps, text)?;
        Ok(match add_special {
            true => [first, &ids[..], last].concat(),
            false => ids,
        })
    }

    /// The tokens of a text that continues another one.
    pub(super) fn encode_continuation(&self, text: &str) -> Result<Vec<u32>, Error> {
        self.ids(&self.continued, text)
    }

    /// The tokens of a text. The library's own function also makes their texts and positions.
    fn ids(&self, steps: &Steps, text: &str) -> Result<Vec<u32>, Error> {
        let encode = || {
            let normalizer = steps.normalizer.as_ref();
            let mut parts = steps.added.extract_and_normalize(normalizer, text);
            if let Some(pre_tokenizer) = &steps.pre_tokenizer {
                pre_tokenizer.pre_tokenize(&mut parts)?;
            }
            let model = self.vocabulary.library.get_model();
            parts.tokenize(|part| model.tokenize(part.get()))?;
            let parts = parts.get_splits(OffsetReferential::Normalized, OffsetType::None);
            let tokens = parts
                .iter()
                .flat_map(|(.., tokens)| tokens.iter().flatten());
            Ok(tokens.map(|token| token.id).collect())
        };
        guarded(encode).map_err(Error::External)
    }

    /// The token that a text starts with, if special tokens are requested.
    pub(super) fn first(&self) -> Option<u32> {
        self.vocabulary.frame.0.first().copied()
    }

    /// The name of the algorithm.
    pub(super) fn kind(&self) -> &'static str {
        match self.vocabulary.library.get_model() {
            ModelWrapper::BPE(_) => "byte-pair encoding",
            ModelWrapper::Unigram(_) => "unigram, by likelihood",
            ModelWrapper::WordPiece(_) => "WordPiece",
            ModelWrapper::WordLevel(_) => "whole words",
        }
    }
}

/// A copy of a step; without `adds_space`, one that adds no space before a text.
fn changed<T: Serialize + DeserializeOwned + Clone>(
    step: Option<&T>,
    adds_space: bool,
) -> tokenizers::Result<Option<T>> {
    fn change(step: &mut Json) {
        for (key, off) in [
            ("prepend_scheme", json!("never")),
            ("add_prefix_space", json!(false)),
            ("prepend", json!("")),
        ] {
            if let Some(value) = step.get_mut(key) {
                *value = off;
            }
        }
        for key in ["normalizers", "pretokenizers"] {
            let steps = step.get_mut(key).and_then(Json::as_array_mut);
            steps.into_iter().flatten().for_each(change);
        }
    }
    let mut json = match step {
        Some(step) if !adds_space => serde_json::to_value(step)?,
        step => return Ok(step.cloned()),
    };
    change(&mut json);
    Ok(Some(serde_json::from_value(json)?))
}

/// The tokens of a text. Special tokens are recognised, and none are added.
pub(super) fn ids(library: &tokenizers::Tokenizer, text: &str) -> Result<Vec<u32>, String> {
    guarded(|| Ok(library.encode_fast(text, false)?.get_ids().to_vec()))
}

/// Calls the library; errors and panics become messages.
pub(super) fn guarded<T>(call: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    match caught(call) {
        Some(result) => result.map_err(|error| error.to_string()),
        None => Err("the library of the format panicked over it".to_owned()),
    }
}
