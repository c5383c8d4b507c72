//! The vocabulary of a folder that has been read.

use std::path::PathBuf;

use super::super::Tokenizer;
use super::Error;
use super::files::Files;
use crate::weights::Metadata;

/// The vocabulary and the chat templates of a folder.
#[derive(Debug)]
pub struct Folder {
    /// The file that holds the vocabulary, for messages.
    path: PathBuf,
    metadata: Metadata,
    tokenizer: Tokenizer,
    /// The properties that the metadata cannot state, and whether they matter.
    difference: Option<Difference>,
}

/// Why the metadata of a folder does not say all.
#[derive(Clone, Debug)]
pub(super) enum Difference {
    /// Unusual texts are tokenized otherwise: one of them.
    Slight(String),
    /// There is no way to say it.
    Whole(String),
}

impl Folder {
    /// The vocabulary as the keys of a GGUF file. Where none of them can say how texts are
    /// tokenized, `tokenizer.ggml.model` and `tokenizer.ggml.pre` are absent.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The tokenizer, which encodes as the folder says.
    pub fn into_tokenizer(self) -> Tokenizer {
        self.tokenizer
    }

    /// The tokenizer, which encodes as the folder says.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The metadata for a file that is to be tokenized as the folder is.
    ///
    /// # Errors
    /// A folder whose way of tokenizing no key can say.
    pub fn for_file(&self) -> Result<&Metadata, Error> {
        match &self.difference {
            Some(Difference::Whole(why)) => Err(Error::NotExpressible {
                path: self.path.clone(),
                why: why.clone(),
            }),
            _ => Ok(&self.metadata),
        }
    }

    /// A text that a file with the metadata tokenizes otherwise than the folder, where there is one.
    pub fn differs_at(&self) -> Option<&str> {
        match &self.difference {
            Some(Difference::Slight(text) | Difference::Whole(text)) => Some(text),
            None => None,
        }
    }
}

/// A folder whose vocabulary has been read.
pub(super) fn assembled(
    files: &Files,
    metadata: Metadata,
    tokenizer: Result<Tokenizer, super::super::Error>,
    difference: Option<Difference>,
) -> Result<Folder, Error> {
    let path = files.tokenizer_path();
    Ok(Folder {
        tokenizer: tokenizer.map_err(|source| Error::Vocabulary {
            path: path.clone(),
            source,
        })?,
        path,
        metadata,
        difference,
    })
}
