//! The files of a model: metadata, tensors and vocabulary, from a GGUF file, a folder of tensors or the program itself.

use std::path::Path;

use crate::hf;
use crate::hf::Maps;
use lab_base::tokenizer;
use lab_base::tokenizer::Tokenizer;
use lab_base::tokenizer::folder::FolderTokenizer;
use lab_base::weights;
use lab_base::weights::{Weights, experts, gguf};

use super::definitions::Definitions;
use super::error::Error;
use super::recognise;
use super::sampling_defaults;
use super::source::{BUILT_IN, ModelSource};
use super::transcription;

/// The parts of a model on disk.
#[derive(Debug)]
pub struct ModelFiles {
    /// Metadata and tensors.
    pub weights: Weights,
    /// The vocabulary of a folder; the vocabulary of a file is in its metadata.
    pub vocabulary: Option<FolderTokenizer>,
    /// Parts of a folder's model that are not among the weights, such as towers, in words.
    pub left_out: Option<String>,
}

impl ModelFiles {
    /// The tokenizer.
    ///
    /// # Errors
    /// The vocabulary is missing or cannot be used.
    pub fn tokenizer(self) -> Result<Tokenizer, tokenizer::Error> {
        tokenizer_of(self.vocabulary, &self.weights)
    }
}

/// The tokenizer of a folder's vocabulary, or of the vocabulary in a file's metadata.
///
/// # Errors
/// The vocabulary is missing or cannot be used.
pub fn tokenizer_of(
    vocabulary: Option<FolderTokenizer>,
    weights: &Weights,
) -> Result<Tokenizer, tokenizer::Error> {
    match vocabulary {
        Some(folder) => Ok(folder.into_tokenizer()),
        None => Tokenizer::from_metadata(weights.metadata()).map_err(|error| match error {
            tokenizer::Error::MissingKey(_) if hf::is_folder(Path::new(weights.label())) => {
                tokenizer::Error::NoVocabulary
            }
            error => error,
        }),
    }
}

/// Reads the file or folder of a model.
///
/// # Errors
/// The file cannot be read or breaks its format, or no map fits the folder.
pub fn read(source: &ModelSource, with: &Definitions) -> Result<ModelFiles, Error> {
    let file = |weights| ModelFiles {
        weights,
        vocabulary: None,
        left_out: None,
    };
    Ok(match source {
        ModelSource::BuiltIn(name) => {
            let shipped = BUILT_IN.iter().find(|(other, _)| other == name);
            let bytes = shipped.map_or(&[][..], |(_, file)| &file.0);
            file(gguf::from_static("the built-in model", bytes)?)
        }
        ModelSource::File(path) | ModelSource::Named { path, .. } => {
            let built_in = BUILT_IN.each_ref().map(|(name, _)| *name);
            if let Some(what) = recognise::of_path(path, &built_in) {
                let model = path.display().to_string();
                let what = with_map(what, path, &with.maps);
                return Err(Error::NotAModelPath { model, what });
            }
            return read_path(path, with);
        }
    })
}

/// The reason why a path has no usable model, with what its configuration says: a map, or why there is none. A download
/// would be in vain without one.
fn with_map(what: String, path: &Path, maps: &Maps) -> String {
    if !recognise::lacks_weights(path) {
        return what;
    }
    match hf::map_of(path, maps) {
        Ok(map) => format!("{what} (the map `{map}` is for its class)"),
        Err(hf::Error::NoMap { message, .. }) => format!("{message}; {what}"),
        Err(_) => what,
    }
}

/// [`read`] for an existing path.
fn read_path(path: &Path, with: &Definitions) -> Result<ModelFiles, Error> {
    Ok(match hf::is_folder(path) {
        true => {
            let opened = hf::open(path, &with.maps, &with.archs, with.allow_unmapped)?;
            let mut weights = opened.weights;
            let folder = hf::folder_of(path);
            // A model without a vocabulary still computes logits.
            let has_vocabulary = tokenizer::folder::has_vocabulary(folder);
            let vocabulary = has_vocabulary.then(|| tokenizer::folder::read(folder));
            let vocabulary = vocabulary.transpose()?;
            if let Some(vocabulary) = &vocabulary {
                weights.add_metadata(vocabulary.metadata());
            }
            weights.add_metadata(&sampling_defaults::of_folder(folder));
            weights.add_metadata(&transcription::of_folder(folder));
            ModelFiles {
                weights,
                vocabulary,
                left_out: opened.left_out,
            }
        }
        false => ModelFiles {
            weights: experts::stacked(weights::open(path)?)?,
            vocabulary: None,
            left_out: None,
        },
    })
}
